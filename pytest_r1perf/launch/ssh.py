"""Ranks on hosts that are reached by ssh.

Nothing ends on the other host because the ssh client here was killed (measured with OpenSSH 9.2: the remote
command lives on, whatever the signal). What ends it is the agent, which sees its standard input end.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.launcher import Node

# ssh takes the first value of an -o that it sees: these stand before the user's options and configuration.
# A shared connection (ControlMaster) would be ended with the run, under the feet of others.
_FIRM = (
    "BatchMode=yes",
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
)
# And these after them. A dead network is noticed after 4 x 15 s, on both ends (there by the end of input).
_DEFAULTS = ("ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")


@dataclass(frozen=True, slots=True)
class SshAllocation:
    """The first hosts of the list."""

    nodes: tuple[Node, ...]
    options: tuple[str, ...]
    remote: bool = True

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        """One ssh client, without a terminal: with one (``-tt``) the two outputs are mixed and lines changed.

        The login shell there replaces itself by the program (``exec``), and must quote as POSIX says for
        arguments that need it.
        """
        firm = [word for option in _FIRM for word in ("-o", option)]
        defaults = [word for option in _DEFAULTS for word in ("-o", option)]
        return ("ssh", *firm, *self.options, *defaults, "-T", node.host, f"exec {shlex.join(argv)}")

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        """What ssh, or the shell there, gave as its reason."""
        for node in self.nodes:
            sentence = diagnose(said.get(node.rank, ""), node.host)
            if sentence is not None:
                return sentence
        return None


@dataclass(frozen=True, slots=True)
class SshLauncher:
    """``hosts`` in the order of ranks, as ssh knows them (``node1``, ``user@node1``); ``options`` for ssh itself.

    Raises ``LaunchError`` for a host that ssh would take for an option.
    """

    hosts: tuple[str, ...]
    options: tuple[str, ...] = ()
    name: str = "ssh"

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not host or host.startswith("-") or re.search(r"[\s\0]", host):
                raise LaunchError(f"{host!r} is no host's name for ssh; correct the platform's list of hosts")
        for option in self.options:
            if re.fullmatch(r"-(?:t+|[fnNsW])", option):
                raise LaunchError(
                    f"the ssh option {option!r} would take standard input or output away from what runs there; "
                    "leave it out of the platform's options"
                )

    @contextlib.contextmanager
    def allocate(self, count: int, waiting: Callable[[str], None]) -> Iterator[SshAllocation]:  # noqa: ARG002
        """The first ``count`` hosts; who shares them is told by the leases there."""
        if count > len(self.hosts):
            raise LaunchError(
                f"{count} nodes are needed and the platform lists {len(self.hosts)} hosts ({', '.join(self.hosts)}); "
                "add hosts, or take a topology for fewer nodes"
            )
        nodes = tuple(Node(rank, host) for rank, host in enumerate(self.hosts[:count]))
        yield SshAllocation(nodes, self.options)


_BY_HAND = "`ssh {host} true` must work without a question"

# In this order: a changed host key also says "Host key verification failed".
_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed",
        "the host key of {host} is not the one that this host knows; find out why, and if {host} was installed "
        "anew, forget the old key (ssh-keygen -R {host}) and connect once by hand",
    ),
    (
        r"host key verification failed|no \S+ host key is known|authenticity of host .* can't be established",
        "the host key of {host} is not known here; connect once by hand and accept it, or add it to known_hosts",
    ),
    (
        r"permission denied \(|too many authentication failures|no supported authentication methods",
        f"{{host}} accepts none of our keys; {_BY_HAND} (a key without passphrase, or ssh-agent)",
    ),
    (
        r"could not resolve hostname",
        "ssh cannot find a host named {host}; correct the platform's list of hosts, DNS or ~/.ssh/config",
    ),
    (
        r"connect to host .*: connection refused",
        f"nothing listens for ssh on {{host}}; is sshd running there, and is the port right? {_BY_HAND}",
    ),
    (
        r"connect to host .*: (connection timed out|operation timed out|no route to host|network is unreachable)"
        r"|connection timed out during banner exchange",
        f"{{host}} cannot be reached by ssh; is it up, and no firewall between? {_BY_HAND}",
    ),
    (
        r"timeout, server .* not responding|client_loop: send disconnect|connection to .* closed by remote host"
        r"|connection reset by|connection closed by|kex_exchange_identification|broken pipe$",
        "the ssh connection to {host} broke; look at the network, at sshd's log there, and whether {host} is still up",
    ),
    # The login shell's own words, which begin with its name.
    (
        r"^\S*sh:(?:\d+:)? .*(not found|no such file or directory|permission denied|cannot execute|unknown command)"
        r"|: command not found\.?$",
        "the Python that shall run our agent is not on {host}; set `python` of the platform's `launch` section to "
        "one that is (3.10 or newer)",
    ),
)


def diagnose(said: str, host: str) -> str | None:
    """Why ssh to ``host`` failed, judging by its standard error; none of that text is repeated."""
    for pattern, sentence in _REASONS:
        if re.search(pattern, said, re.IGNORECASE | re.MULTILINE):
            return sentence.format(host=host)
    return None
