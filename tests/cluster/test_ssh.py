"""What ssh says when it does not come through, and what we make of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_r1perf.launch.ssh import SshLauncher
from tests.cluster.lab import SshLab, free_port

pytestmark = pytest.mark.cluster


def wrong_key(lab: SshLab) -> None:
    text = lab.config.read_text()
    lab.config.write_text(text.replace(f"IdentityFile {lab.folder}/key\n", f"IdentityFile {lab.folder}/otherkey\n"))


def other_host_key(lab: SshLab) -> None:
    key = (lab.folder / "otherkey.pub").read_text().split()
    (lab.folder / "known_hosts").write_text(f"lab {key[0]} {key[1]}\n")


def no_host_key(lab: SshLab) -> None:
    (lab.folder / "known_hosts").write_text("")


def closed_port(lab: SshLab) -> None:
    lab.config.write_text(lab.config.read_text().replace(f"Port {lab.port}", f"Port {free_port()}"))


def unknown_name(lab: SshLab) -> None:
    lab.config.write_text(lab.config.read_text().replace("HostName 127.0.0.1", "HostName node1.invalid"))


def far_away(lab: SshLab) -> None:
    # 203.0.113.0/24 is for documentation (RFC 5737): no route, or no answer.
    text = lab.config.read_text().replace("HostName 127.0.0.1", "HostName 203.0.113.1")
    lab.config.write_text(text + "  ConnectTimeout 2\n")


CAUSES = [
    (wrong_key, "accepts none of our keys"),
    (other_host_key, "the host key of node2 is not the one that this host knows"),
    (no_host_key, "the host key of node2 is not known here"),
    (closed_port, "nothing listens for ssh on node2"),
    (unknown_name, "ssh cannot find a host named node2"),
    (far_away, "node2 cannot be reached by ssh"),
]


@pytest.fixture
def broken(ssh_lab: SshLab, tmp_path: Path) -> SshLab:
    """A client's configuration of its own, to be spoilt."""
    config = tmp_path / "ssh_config"
    text = ssh_lab.config.read_text()
    for name in ("key", "otherkey", "otherkey.pub", "known_hosts"):
        (tmp_path / name).write_bytes((ssh_lab.folder / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    config.write_text(text.replace(str(ssh_lab.folder), str(tmp_path)))
    return SshLab(tmp_path, config, ssh_lab.port)


@pytest.mark.parametrize(("spoil", "cause"), CAUSES, ids=[spoil.__name__ for spoil, _ in CAUSES])
def test_the_cause_is_named_and_how_to_mend_it(broken: SshLab, spoil: Callable[[SshLab], None], cause: str) -> None:
    spoil(broken)
    options = (*broken.options, "-o", "ConnectTimeout=3")
    with SshLauncher(("node1", "node2"), options).allocate(2, print) as allocation:
        argv = allocation.connect(allocation.nodes[1], ["true"])
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
        assert done.returncode == 255
        sentence = allocation.diagnose({0: "", 1: done.stderr})
    assert sentence is not None
    assert cause in sentence, done.stderr
    assert "SHA256" not in sentence
    assert str(broken.folder) not in sentence


def test_the_users_configuration_neither_shares_the_connection_nor_asks(broken: SshLab) -> None:
    """A shared connection outlives its first client, and a terminal would mix the two outputs."""
    socket = broken.folder / "shared"
    broken.config.write_text(
        broken.config.read_text()
        + f"  ControlMaster auto\n  ControlPath {socket}\n  ControlPersist 60\n  RequestTTY force\n  RemoteCommand id\n"
    )
    with SshLauncher(("node1",), broken.options).allocate(1, print) as allocation:
        argv = allocation.connect(allocation.nodes[0], ["sh", "-c", "echo out; echo err >&2; test -t 0 || echo plain"])
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"out\nplain\n", b"err\n")
    assert not socket.exists()
