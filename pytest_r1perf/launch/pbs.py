"""Ranks on the nodes of the PBS job that pytest runs in.

Each rank's program is started by ``mpiexec``, the one thing that every PBS site has to reach a job's nodes
with standard input connected (``pbsdsh`` connects none). Open MPI 4.1 and MPICH 4.0 (Hydra) were both run for
this on one host; no PBS engine was. What is said of PBS itself rests on OpenPBS's manual: qsub(1B) and
pbs_resources(7B).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.launcher import Node

TEMPLATE = Path(__file__).parent.parent / "data" / "pbs-job.sh"


@dataclass(frozen=True, slots=True)
class PbsAllocation:
    """Nodes of the job that we are in; they are PBS's, and nothing is given back."""

    nodes: tuple[Node, ...]
    options: tuple[str, ...]
    remote: bool = True

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        """One ``mpiexec`` for one process, whose standard input is ours.

        Open MPI binds a lone process to one core unless told not to. A lone ``:`` or ``{}`` means something
        to one of the two mpiexecs and is refused (``ValueError``); our agent's arguments hold neither.
        """
        if strange := sorted({":", "{}"} & set(argv)):
            raise ValueError(f"mpiexec would not pass on the argument {strange[0]!r}")
        return ("mpiexec", *self.options, "-n", "1", "-host", node.host, "-bind-to", "none", *argv)

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        """What mpiexec gave as its reason."""
        for node in self.nodes:
            for pattern, sentence in _REASONS:
                if re.search(pattern, said.get(node.rank, ""), re.IGNORECASE | re.MULTILINE):
                    return sentence.format(host=node.host)
        return None


_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"unable to find the specified executable|could not access\s+or execute an executable"
        r"|execvp error on file (?!\S*hydra)",
        "the Python that shall run our agent is not on {host}; set `python` of the platform's `launch` section to "
        "one that is (3.10 or newer)",
    ),
    (
        r"unable to reliably start one or more\s+daemons|could not resolve hostname|lost contact with a remote daemon"
        r"|unable to (?:connect|launch) .*prox|lost communication with",
        "mpiexec cannot start anything on {host}, or lost it; is the node up, and is this mpiexec built for PBS?",
    ),
    (
        r"not enough slots|already filled|do not .* match the|host .* not found in (?:the )?(?:allocation|hostfile)",
        "mpiexec finds no free slot on {host}; ask PBS for `mpiprocs=1` on each node, and let nothing else of the job "
        "run there",
    ),
    (
        r"attempt to run as root",
        "Open MPI's mpiexec refuses to run as root; run as a user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    (
        r"walltime \S+ exceeded limit|job killed: walltime",
        "the PBS job ran out of its walltime; ask for more",
    ),
)


@dataclass(frozen=True, slots=True)
class PbsLauncher:
    """Inside a job only. ``options`` go to ``mpiexec`` before ours."""

    options: tuple[str, ...] = ()
    name: str = "pbs"

    @contextlib.contextmanager
    def allocate(self, count: int, waiting: Callable[[str], None]) -> Iterator[PbsAllocation]:  # noqa: ARG002
        """The first ``count`` hosts in ``$PBS_NODEFILE``; raises ``LaunchError`` outside a job."""
        hosts = job_hosts(os.environ)
        if len(hosts) < count:
            raise LaunchError(
                f"{count} nodes are needed and this PBS job has {len(hosts)} ({', '.join(hosts)}); "
                f"submit it with -l select={count}:..., place=scatter"
            )
        yield PbsAllocation(tuple(Node(rank, host) for rank, host in enumerate(hosts[:count])), self.options)


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of the PBS job that we are in, each once, in PBS's order: the first is the one we run on."""
    name = environ.get("PBS_NODEFILE")
    if not name:
        raise LaunchError(
            "this is no PBS job ($PBS_NODEFILE is not set): submit pytest as one, "
            f"after {TEMPLATE.name} in the plugin's data"
        )
    try:
        lines = Path(name).read_text(encoding="utf-8", errors="surrogateescape").split()
    except OSError as error:
        raise LaunchError(f"cannot read the job's list of nodes, $PBS_NODEFILE={name} ({error.strerror})") from error
    if not lines:
        raise LaunchError(f"the job's list of nodes, $PBS_NODEFILE={name}, is empty; is this the job's first host?")
    return tuple(dict.fromkeys(lines))


def job_script(
    command: Sequence[str],
    *,
    nodes: int,
    ncpus: int,
    ngpus: int,
    walltime_s: int,
    name: str = "r1perf",
    queue: str | None = None,
    project: str | None = None,
) -> str:
    """A job for ``qsub`` that runs ``command`` (pytest) on the first of ``nodes`` whole nodes.

    ``ncpus`` and ``ngpus`` are those of one node, ``walltime_s`` includes SGLang's start-up. A walltime is
    needed: at its end PBS takes the job's processes with it. Raises ``ValueError`` for what a ``#PBS`` line
    cannot hold.
    """
    if min(nodes, ncpus, walltime_s) < 1 or ngpus < 0:
        raise ValueError("nodes, CPUs and walltime of a job are at least 1, GPUs at least 0")
    # A directive is not shell: nothing quotes there, and a newline would end it.
    for what, value in (("name", name), ("queue", queue), ("project", project)):
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", value):
            raise ValueError(f"the job's {what} {value!r} does not fit on a #PBS line")
    gpus = f":ngpus={ngpus}" if ngpus else ""
    extra = [f"#PBS -q {queue}"] * (queue is not None) + [f"#PBS -P {project}"] * (project is not None)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=name,
        select=f"{nodes}:ncpus={ncpus}{gpus}:mpiprocs=1",
        walltime=f"{walltime_s // 3600:02}:{walltime_s // 60 % 60:02}:{walltime_s % 60:02}",
        extra="\n".join(["", *extra]),
        command=shlex.join(command),
    )
