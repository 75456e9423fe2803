"""Ranks on the nodes of a Slurm job: the one that pytest runs in, or one that we ask for and wait for.

The job is ended by its name, which no other job has, through a closer that is on record before ``salloc``
starts: Ctrl-C in the queue, or the death of pytest, leaves no job behind, not even a pending one. All was
tried with Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.held import held
from pytest_r1perf.launch.launcher import Closer, Node
from pytest_r1perf.launch.mark import marked_environment

_LOOK_S = 0.5
# The queue is asked this seldom: squeue is answered by the same daemon that schedules for everybody.
_ASK_S = 15.0
# And its answer passed on again this seldom when it does not change.
_REMIND_S = 300.0
_PATIENCE_S = 30.0
# Slurm kills after KillWait, 30 s by default, what does not heed SIGTERM; our agent does.
_COMPLETING_S = 15.0

# Reasons of a pending job that waiting does not mend (squeue(1), JOB REASON CODES).
_HOPELESS = {
    "BadConstraints": "no node can ever fit its constraints",
    "PartitionConfig": "the partition cannot give that many nodes",
    "PartitionNodeLimit": "the partition's limit on nodes",
    "PartitionTimeLimit": "the partition's time limit is shorter",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
}


@dataclass(slots=True)
class SlurmAllocation:
    """Nodes of one job. ``ours``: we asked for it and give it back."""

    job: str
    nodes: tuple[Node, ...]
    options: tuple[str, ...]
    ours: bool
    remote: bool = True
    released: bool = False

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        """A step of one task on that node, beside whatever else runs there, bound to no subset of its CPUs.

        ``--unbuffered``: output comes as it is written. The task's exit code is srun's, or 0 when the node was
        lost: it proves nothing.
        """
        where = (f"--jobid={self.job}", f"--nodelist={node.host}", "--nodes=1", "--ntasks=1")
        return ("srun", *where, "--overlap", "--unbuffered", "--cpu-bind=none", *self.options, *argv)

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        """What became of the job, or of a step that we did not end ourselves."""
        if not self.released:
            state = _final_state(self.job)
            for known, sentence in _STATES:
                if state == known:
                    return sentence.format(job=self.job)
        for node in self.nodes:
            text = said.get(node.rank, "")
            for pattern, sentence in _REASONS:
                if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                    return sentence.format(job=self.job, host=node.host)
        return None


_STATES = (
    ("CANCELLED", "the Slurm job {job} was cancelled while it was used (scancel, or an administrator)"),
    ("PREEMPTED", "the Slurm job {job} was preempted by one of higher priority; run it again, or in another partition"),
    ("TIMEOUT", "the Slurm job {job} ran out of time; ask for more with --time among salloc's options"),
    ("NODE_FAIL", "a node of the Slurm job {job} failed; sinfo -R says which, and why"),
    ("OUT_OF_MEMORY", "the Slurm job {job} used more memory than it was given; ask for --mem=0 to have all of a node"),
    ("DEADLINE", "the Slurm job {job} was ended at its deadline"),
    ("BOOT_FAIL", "a node of the Slurm job {job} did not boot; sinfo -R says which"),
    ("COMPLETING", "the Slurm job {job} is being ended by Slurm; scontrol show job {job} says why when that is done"),
    ("SUSPENDED", "the Slurm job {job} was suspended, so nothing that it measured counts"),
)

# Also when the job itself can no longer be asked about: it is forgotten after MinJobAge (300 s).
_REASONS = (
    (r"due to time limit", _STATES[2][1]),
    (r"due to preemption", _STATES[1][1]),
    (r"due to node failure|node failure on", "the node {host} of the Slurm job {job} failed; sinfo -R says why"),
    (r"oom.kill event|out of memory", _STATES[4][1]),
    (
        r"execve\(\): .*: (no such file or directory|permission denied)",
        "the Python that shall run our agent is not on {host}; set `python` of the platform's `launch` section to "
        "one that is (3.10 or newer)",
    ),
    (
        r"expired or invalid job|job \d+ has expired|already completing or completed",
        "the Slurm job {job} is over; it was cancelled or ran out of time",
    ),
    (
        r"requested node configuration is not available|unable to create step",
        "Slurm cannot start a step on {host} within job {job}; do `step_options` ask for more than the job has?",
    ),
    (
        r"unable to contact slurm controller|socket timed out|connection refused",
        "Slurm's controller, or slurmd on {host}, does not answer; scontrol ping and sinfo -R say more",
    ),
    # srun that was signalled (by us) says so first, and then the same as for a step that somebody cancelled.
    (
        r"\A(?!(?s:.*)(?:forcing job termination|srun: interrupt))(?s:.*)\*\*\* (?:step|job) \S+ on \S+ cancelled",
        "somebody cancelled the step on {host} (scancel), not the whole Slurm job {job}",
    ),
)


@dataclass(frozen=True, slots=True)
class SlurmLauncher:
    """``options`` go to ``salloc`` (partition, ``--gres``, ``--time``), ``step_options`` to ``srun``.

    ``session`` and ``state_dir`` are those of ``held``: where it is recorded that a job of ours exists.
    """

    session: str
    state_dir: Path
    options: tuple[str, ...] = ()
    step_options: tuple[str, ...] = ()
    name: str = "slurm"
    unclosed: list[str] = field(default_factory=list, compare=False)
    """Sentences about jobs that could not be given back."""

    @contextlib.contextmanager
    def allocate(self, count: int, waiting: Callable[[str], None]) -> Iterator[SlurmAllocation]:
        """The first ``count`` nodes of the job that we are in, or a job of our own with so many."""
        inside = os.environ.get("SLURM_JOB_ID")
        if inside is not None:
            yield SlurmAllocation(inside, _nodes_of_this_job(inside, count), self.step_options, ours=False)
            return
        name = f"r1perf-{self.session}-{secrets.token_hex(4)}"
        closer = Closer(("scancel", f"--name={name}", f"--user={getpass.getuser()}"), _slurm_environment())
        with held(self.session, self.state_dir, closers=[closer]) as hold:
            job = self._granted(name, count, marked_environment(hold.mark), waiting)
            allocation = SlurmAllocation(job, _nodes(_field(job, "NodeList"), count), self.step_options, ours=True)
            try:
                yield allocation
            finally:
                allocation.released = True
        self.unclosed.extend(hold.unclosed)

    def _granted(self, name: str, count: int, mark: Mapping[str, str], waiting: Callable[[str], None]) -> str:
        """Ask for the job and wait until it runs; its id."""
        # Ours last: the last of two counts.
        asked = ("--no-shell", "--wait-all-nodes=1", f"--nodes={count}", f"--job-name={name}")
        with tempfile.TemporaryFile() as said:
            try:
                salloc = subprocess.Popen(
                    ["salloc", *self.options, *asked],
                    env={**os.environ, **mark},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    # Ctrl-C is for us; the job is ended by its name.
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(
                    f"salloc cannot be started ({error.strerror}); is this a host of a Slurm cluster?"
                ) from error
            try:
                _wait(salloc, name, waiting)
            finally:
                if salloc.poll() is None:
                    salloc.terminate()
                    try:
                        salloc.wait(_PATIENCE_S)
                    except subprocess.TimeoutExpired:
                        salloc.kill()
                        salloc.wait()
            if salloc.returncode != 0:
                raise LaunchError(f"Slurm gave no {count} nodes: {_reason(said)}; look at `launch: options`")
            granted = re.search(r"Granted job allocation (\d+)", _text(said))
        if granted is None:
            raise LaunchError(f"salloc ended without a job of {count} nodes; try it by hand with the same options")
        return granted[1]


def _wait(salloc: subprocess.Popen[bytes], name: str, waiting: Callable[[str], None]) -> None:
    told, told_at, asked_at = "", 0.0, time.monotonic() - _ASK_S + 2 * _LOOK_S
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            salloc.wait(_LOOK_S)
            return
        now = time.monotonic()
        if now - asked_at < _ASK_S:
            continue
        asked_at = now
        answer = _ask("squeue", "--noheader", f"--name={name}", "--format=%A|%T|%r|%S")
        job, _, rest = answer.partition("|")
        if not rest:
            continue
        state, reason, start = [*rest.split("|"), "", ""][:3]
        if reason in _HOPELESS:
            raise LaunchError(
                f"the Slurm job would wait for ever: {reason} ({_HOPELESS[reason]}); change the options for salloc "
                "in the platform's `launch` section, or the topology"
            )
        expected = f", expected to start at {start}" if re.match(r"\d{4}-", start) else ""
        sentence = f"Slurm job {job} is {state} ({reason}){expected}"
        if sentence != told or now - told_at >= _REMIND_S:
            told, told_at = sentence, now
            waiting(sentence)


def _nodes_of_this_job(job: str, count: int) -> tuple[Node, ...]:
    listed = os.environ.get("SLURM_JOB_NODELIST") or _field(job, "NodeList")
    return _nodes(listed, count, f"this Slurm job ({job}); ask for more with --nodes={count}")


def _nodes(listed: str, count: int, where: str = "the Slurm job") -> tuple[Node, ...]:
    """Nodes by the names that Slurm has for them: ``hostname`` there may say something else."""
    hosts = _ask("scontrol", "show", "hostnames", listed).split() if listed else []
    if len(hosts) < count:
        raise LaunchError(f"{count} nodes are needed, and {len(hosts)} ({', '.join(hosts)}) are in {where}")
    return tuple(Node(rank, host) for rank, host in enumerate(hosts[:count]))


def _final_state(job: str) -> str:
    """The job's state, empty when Slurm does not know it any more.

    While Slurm still ends processes it says COMPLETING and hides why: that is waited for, but not for long.
    """
    until = time.monotonic() + _COMPLETING_S
    while (state := _field(job, "JobState")) == "COMPLETING" and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return state


def _field(job: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){name}=(\S+)", _ask("scontrol", "show", "job", job))
    return found[1] if found else ""


def _ask(*argv: str) -> str:
    """What a Slurm command prints; nothing when it fails, which the caller takes for "not known"."""
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _slurm_environment() -> dict[str, str]:
    """What scancel needs to find the same cluster; a closer may be run by another session."""
    return {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS", "PATH") if name in os.environ}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _reason(file: IO[bytes]) -> str:
    """The first thing that salloc calls an error, which says most; else its last words."""
    lines = [line.strip() for line in _text(file).splitlines() if line.strip() and not line.startswith("Try ")]
    errors = [line for line in lines if "error:" in line]
    line = [*errors[:1], *lines[-1:], "salloc said nothing"][0]
    return re.sub(r"^salloc: (?:error: )?", "", line)
