"""`launch.process.supervise` with several ranks, and what is closed at the end. Real processes throughout."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.ended import Ended
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.launch import proc, reap, record
from pytest_r1perf.launch.client import Client
from pytest_r1perf.launch.held import held
from pytest_r1perf.launch.launcher import Closer, Node, RankCommand
from pytest_r1perf.launch.mark import marked_environment, new_mark, parse
from pytest_r1perf.launch.process import Exit, LaunchError, Poll, RankExit, supervise
from pytest_r1perf.launch.ranks import clients_for, log_name
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.roundcheck import FinishedRun, outcome
from pytest_r1perf.sglang.log import LogReader
from pytest_r1perf.verdict import Verdict
from tests.processes import PRELUDE, TREE, TREE_ROLES, noted, running, script, started, wait_until

FOREVER = "time.sleep(600)"


class Bench:
    """One directory with logs, a state and the scripts' notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.state = folder / "state"

    def log(self, rank: int) -> Path:
        return self.folder / f"log{rank}"

    def closer(self, name: str = "closed", then: str = "exit 0", **changes: Any) -> Closer:
        """Notes its runs, a character each."""
        path = shlex.quote(str(self.folder / name))
        return Closer(("/bin/sh", "-c", f"printf x >> {path}; {then}"), **changes)

    def closed(self, name: str = "closed") -> int:
        path = self.folder / name
        return len(path.read_text()) if path.exists() else 0

    def run(self, *bodies: str, changes: Sequence[dict[str, Any]] = (), **settings: Any) -> Exit:
        mark = new_mark("test")
        env = {**os.environ, **marked_environment(mark), "R1PERF_TEST_NOTES": str(self.notes)}
        clients = []
        for rank, body in enumerate(bodies):
            own: dict[str, Any] = changes[rank] if rank < len(changes) else {}
            argv = own.pop("argv", tuple(script(body)))
            log = own.pop("log_path", self.log(rank))
            clients.append(Client(rank, argv, env, self.folder, log, **own))
        defaults: dict[str, Any] = {"timeout_s": 300, "grace_s": 0.3, "rank_grace_s": 0.5}
        return supervise(clients, mark=mark, state_dir=self.state, **(defaults | settings))

    def records(self) -> list[Path]:
        return list(self.state.glob("launches-*/*"))

    def assert_nothing_left(self) -> None:
        assert [role for role, process in noted(self.notes).items() if running(process)] == []
        assert self.records() == []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- ranks
# ---------------------------------------------------------------------------------------------------------


def test_rank_0_decides_and_the_others_go_with_it(bench: Bench) -> None:
    seen: list[bytes] = []
    exit = bench.run(
        "wait_for('stubborn'); print('zero'); sys.exit(3)",
        "print('one', flush=True)" + TREE + FOREVER,
        on_output=seen.append,
    )
    assert (exit.returncode, exit.ended_by, exit.left) == (3, "exit", ())
    assert exit.ranks == (RankExit(0, 3, False), RankExit(1, -signal.SIGTERM, False))
    assert b"".join(seen) == bench.log(0).read_bytes() == b"zero\n"
    assert bench.log(1).read_bytes().startswith(b"one\n")
    pids = {victim.pid for victim in exit.survivors}
    assert pids >= {noted(bench.notes)[role][0] for role in ("child", "daemon", "stubborn")}
    bench.assert_nothing_left()


def test_ranks_that_end_together_leave_no_survivor(bench: Bench) -> None:
    exit = bench.run("time.sleep(0.2)", "time.sleep(0.4); sys.exit(137)")
    assert (exit.returncode, exit.ended_by, exit.survivors) == (0, "exit", ())
    assert exit.ranks[1] == RankExit(1, 137, False)


@pytest.mark.parametrize(("end", "code"), [("sys.exit(9)", 9), ("os.kill(os.getpid(), 9)", -9), ("sys.exit(0)", 0)])
def test_a_rank_that_dies_at_the_start_ends_the_run(bench: Bench, end: str, code: int) -> None:
    exit = bench.run("note('zero'); " + FOREVER, FOREVER, end)
    assert (exit.ended_by, exit.returncode) == ("rank", -signal.SIGTERM)
    assert exit.ranks[1:] == (RankExit(1, -signal.SIGTERM, False), RankExit(2, code, True))
    bench.assert_nothing_left()


def test_the_rank_that_ended_first_is_told_from_those_that_followed_it(bench: Bench) -> None:
    """The others break too when one is gone, and the lowest of them is not the cause."""
    follower = "wait_for('gone'); time.sleep(0.5); sys.exit(1)"
    exit = bench.run(FOREVER, follower, "note('gone'); sys.exit(9)", rank_grace_s=3.0)
    assert exit.ended_by == "rank"
    assert exit.ranks[1:] == (RankExit(1, 1, True), RankExit(2, 9, True))
    assert exit.first_early == RankExit(2, 9, True)
    assert exit.ranks[0].after_s is None
    assert exit.ranks[1].after_s is not None
    assert exit.ranks[2].after_s is not None
    assert exit.ranks[2].after_s < exit.ranks[1].after_s


def test_the_verdict_is_read_from_the_log_of_the_rank_that_ended_first(bench: Bench) -> None:
    """Two logs have a cause each; rank 2 ran out of memory, and rank 1 only lost its connection to it."""
    bodies = (
        FOREVER,
        "wait_for('gone'); time.sleep(0.5); print('RuntimeError: Connection closed by peer'); sys.exit(1)",
        "print('torch.OutOfMemoryError: CUDA out of memory.', flush=True); note('gone'); sys.exit(1)",
    )
    names = [{"log_path": bench.folder / log_name(rank)} for rank in range(3)]
    exit = bench.run(*bodies, changes=names, rank_grace_s=3.0)
    catalog = load_catalog()
    cell = cell_of(PerfSpec("tp1", n=1), catalog.platform("cpu"), catalog)
    run = FinishedRun(
        facts=LogReader().facts,
        ended=Ended(exit),
        folder=bench.folder,
        hosts=("a", "b", "c"),
        asked={},
        stated={},
        pins={},
        gpus=lambda seconds: Watched(),
    )
    problem = outcome(Measurement(cell), 1, run)
    assert isinstance(problem, Problem)
    assert problem.verdict is Verdict.OOM
    assert problem.cause.startswith("rank 2 on c ended first: ")
    assert problem.log == str(bench.folder / "log-rank2.txt")


def test_nobody_is_first_when_rank_0_ends_before_all_others(bench: Bench) -> None:
    assert bench.run("", FOREVER).first_early is None


def test_of_two_that_were_seen_ended_at_once_the_one_that_failed_is_first() -> None:
    ranks = (RankExit(0, -15, False), RankExit(1, 0, True, 3.0), RankExit(2, 1, True, 3.0), RankExit(3, 1, True, 4.0))
    assert Exit(-15, "rank", 13.0, ranks=ranks).first_early == ranks[2]


def test_rank_0_may_end_by_itself_when_another_died(bench: Bench) -> None:
    exit = bench.run("wait_for('gone'); time.sleep(0.3); sys.exit(4)", "note('gone')", rank_grace_s=60.0)
    assert (exit.ended_by, exit.returncode) == ("exit", 4)
    assert exit.ranks[1] == RankExit(1, 0, True)


def test_a_rank_that_hangs_is_covered_by_the_timeout(bench: Bench) -> None:
    exit = bench.run(
        "note('zero'); wait_for('never')", "signal.signal(15, signal.SIG_IGN); note('one'); " + FOREVER, timeout_s=2
    )
    assert exit.ended_by == "timeout"
    assert exit.ranks == (RankExit(0, -signal.SIGTERM, False), RankExit(1, -signal.SIGKILL, False))
    bench.assert_nothing_left()


def test_a_rank_that_cannot_be_started_ends_those_that_were(bench: Bench) -> None:
    with pytest.raises(LaunchError, match="no-such-program"):
        bench.run(TREE + FOREVER, "", changes=[{"closers": (bench.closer(),)}, {"argv": ("no-such-program",)}])
    assert bench.closed() == 1
    bench.assert_nothing_left()


def test_the_records_name_the_first_process_of_each_rank(bench: Bench) -> None:
    found: list[set[int]] = []

    def poll() -> Poll:
        if {"zero", "one"} <= set(noted(bench.notes)):
            (launch,) = record.read(bench.state)
            found.append({first.pid for first in launch.firsts})
            return Poll.END
        return Poll.GO_ON

    bench.run("note('zero'); " + FOREVER, "note('one'); " + FOREVER, poll=poll)
    assert found == [{process[0] for process in noted(bench.notes).values()}]


def test_ranks_need_different_numbers(bench: Bench) -> None:
    mark = new_mark("test")
    client = Client(0, ("true",), marked_environment(mark), bench.folder, bench.log(0))
    with pytest.raises(ValueError, match="one client a rank"):
        supervise([client, client], timeout_s=1, mark=mark, state_dir=bench.state)


# -- standard streams
# ------------------------------------------------------------------------------------------

READ = """
import select
size = {size}
time.sleep({pause})
data = b""
while len(data) < size:
    data += os.read(0, 1 << 20)
more = select.select([0], [], [], 0.3)[0]
print(len(data), len(set(data)), bool(more), flush=True)
"""


def test_a_big_input_arrives_and_then_the_pipe_stays_open(bench: Bench) -> None:
    size = 3_000_000
    exit = bench.run(READ.format(size=size, pause=0.5), changes=[{"stdin": b"y" * size}])
    assert bench.log(0).read_text() == f"{size} 1 False\n"
    assert exit.ended_by == "exit"


def test_an_input_that_nobody_reads_holds_up_nothing(bench: Bench) -> None:
    exit = bench.run("note('zero'); " + FOREVER, changes=[{"stdin": b"y" * 3_000_000}], timeout_s=1, lifeline_s=0.0)
    assert exit.ended_by == "timeout"
    bench.assert_nothing_left()


def test_an_input_to_one_that_has_ended_is_no_error(bench: Bench) -> None:
    exit = bench.run("time.sleep(1)", "", changes=[{}, {"stdin": b"y" * 3_000_000}], rank_grace_s=60.0)
    assert (exit.ended_by, exit.returncode, exit.ranks[1].early) == ("exit", 0, True)


def test_the_lifeline_ends_before_any_signal(bench: Bench) -> None:
    # The far side has the time to say how it ended, and does; a local rank gets SIGTERM.
    body = "note('one'); sys.stdin.read(); time.sleep(0.5); print('goodbye'); sys.exit(5)"
    exit = bench.run("wait_for('one')", body, changes=[{}, {"stdin": b""}])
    assert exit.ranks[1] == RankExit(1, 5, False)
    assert bench.log(1).read_text() == "goodbye\n"


def test_standard_error_may_have_a_file_of_its_own(bench: Bench) -> None:
    bench.run("print('out'); print('err', file=sys.stderr)", changes=[{"errors_path": bench.folder / "errors"}])
    assert (bench.log(0).read_text(), (bench.folder / "errors").read_text()) == ("out\n", "err\n")


# -- local ranks
# -----------------------------------------------------------------------------------------------


class Here:
    """This host, as two nodes."""

    nodes = (Node(0, "localhost"), Node(1, "localhost"))
    remote = False

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        raise AssertionError(f"{node} {argv}: nothing is connected to")

    def diagnose(self, said: object) -> str | None:
        raise AssertionError(said)


def test_on_this_host_the_clients_are_the_commands_themselves(bench: Bench) -> None:
    mark = new_mark("test")
    commands = [
        RankCommand(rank, ("sh", "-c", f"echo $R1PERF_RUN_ID $OWN {rank}; {end}"), {"OWN": "a b"}, str(bench.folder))
        for rank, end in ((1, "sleep 600"), (0, "sleep 0.3"))
    ]
    clients = clients_for(
        Here(), commands, python="unused", session="test", mark=mark, folder=bench.folder, timeout_s=60
    )
    exit = supervise(clients, timeout_s=60, mark=mark, state_dir=bench.state, grace_s=0.3)
    assert (exit.returncode, exit.ended_by) == (0, "exit")
    assert (bench.folder / "log.txt").read_text() == f"{mark} a b 0\n"
    assert (bench.folder / "log-rank1.txt").read_text() == f"{mark} a b 1\n"


# -- closers
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["exit", "timeout", "error"])
def test_closers_run_however_the_run_ends(bench: Bench, end: str) -> None:
    def poll() -> Poll:
        assert end != "error"
        return Poll.GO_ON

    changes: list[dict[str, Any]] = [
        {"closers": (bench.closer("zero"),)},
        {"closers": (bench.closer("one"), bench.closer("two"))},
    ]
    bodies = ["" if end == "exit" else FOREVER, FOREVER]
    if end == "error":
        with pytest.raises(AssertionError):
            bench.run(*bodies, changes=changes, poll=poll)
    else:
        exit = bench.run(*bodies, changes=changes, timeout_s=1 if end == "timeout" else 300)
        assert (exit.ended_by, exit.unclosed) == (end, ())
    assert [bench.closed(name) for name in ("zero", "one", "two")] == [1, 1, 1]
    bench.assert_nothing_left()


def test_closers_come_after_the_processes_and_have_an_environment(bench: Bench) -> None:
    # The second rank notes its end; what clients do on SIGTERM is over before a closer takes it from them.
    body = "signal.signal(15, lambda *_: (note('ended'), os._exit(0)))\nnote('one')\ntime.sleep(600)"
    copy = bench.folder / "é x"
    once = 'test -e "$COPY" || cp "$NOTES" "$COPY"'
    closer = bench.closer(then=once, env={"NOTES": str(bench.notes), "COPY": str(copy)})
    bench.run("wait_for('one')", body, changes=[{"closers": (closer,)}], grace_s=60)
    assert set(noted(copy)) == {"one", "ended"}


def test_what_is_gone_already_counts_as_closed(bench: Bench) -> None:
    gone = bench.closer(then="echo 'Error: No such container: x' >&2; exit 1", gone="no such container")
    assert bench.run("", changes=[{"closers": (gone,)}]).unclosed == ()
    assert bench.closed() == 1
    bench.assert_nothing_left()


def test_nothing_started_nothing_closed(bench: Bench) -> None:
    with pytest.raises(LaunchError):
        bench.run("", changes=[{"argv": ("no-such-program",), "closers": (bench.closer(),)}])
    assert bench.closed() == 0
    assert bench.records() == []


def test_a_closer_that_fails_is_tried_twice_and_reported(bench: Bench) -> None:
    again = shlex.quote(str(bench.folder / "again"))
    closers = (
        bench.closer("never", "echo daemon is down; exit 3"),
        bench.closer("at once"),
        bench.closer("later", f"test -e {again} || {{ touch {again}; exit 1; }}"),
        Closer(("/no/such",)),
    )
    exit = bench.run("", changes=[{"closers": closers}])
    assert (exit.returncode, exit.ended_by) == (0, "exit")
    assert [bench.closed(name) for name in ("never", "at once", "later")] == [2, 1, 2]
    first, second = exit.unclosed
    assert first.endswith("exit code 3: daemon is down")
    assert second == "/no/such: cannot be started: No such file or directory"
    (path,) = bench.records()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (launch,) = record.read(bench.state)
    assert launch.closers == (closers[0], closers[3]), "those that worked are not tried again"


# -- a pytest of our own to kill
# -------------------------------------------------------------------------------------

OWNER = """
from pytest_r1perf.launch.client import Client
from pytest_r1perf.launch.held import held
from pytest_r1perf.launch.launcher import Closer
from pytest_r1perf.launch.mark import marked_environment, new_mark, parse
from pytest_r1perf.launch.process import supervise
folder = Path(NOTES).parent
def closer(name, then="exit 0"):
    return Closer(("/bin/sh", "-c", f"printf x >> '{folder}/{name}'; " + then))
"""
SUPERVISING = (
    OWNER
    + """
mark = new_mark("owner")
env = {**os.environ, **marked_environment(mark)}
clients = []
for rank, body in enumerate(BODIES):
    closers = (closer(f"closed{rank}", THEN),)
    clients.append(Client(rank, (sys.executable, "-c", body), env, folder, folder / f"log{rank}", closers=closers))
exit = supervise(clients, timeout_s=300, mark=mark, state_dir=folder / "state", grace_s=0.3)
print(exit.unclosed)
"""
)
HOLDING = (
    OWNER
    + """
made = folder / "made"
made.mkdir()
(made / "file").touch()
with held("owner", folder / "state", closers=[closer("closed0", THEN)], folders=[made]) as hold:
    subprocess.Popen(["sleep", "600"], env={**os.environ, **marked_environment(hold.mark)})
    note("main")
    time.sleep(600)
"""
)


def supervising(*bodies: str, then: str = "exit 0") -> str:
    return f"THEN = {then!r}\nBODIES = {[PRELUDE + body for body in bodies]!r}\n" + SUPERVISING


def holding(then: str = "exit 0") -> str:
    return f"THEN = {then!r}\n" + HOLDING


def guards_of(pid: int) -> list[int]:
    return [
        stat.pid
        for stat in proc.own_processes()
        if (line := proc.command_line(stat.pid))
        and any(part.endswith("guard.py") for part in line)
        and any(mark is not None and mark.owner_pid == pid for mark in map(parse, line))
    ]


def kill(process: subprocess.Popen[bytes], *, guard: bool) -> None:
    """As the kernel when memory is out: no handler runs."""
    if guard:
        process.send_signal(signal.SIGSTOP)
        for pid in guards_of(process.pid):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()


RANKS = (TREE + FOREVER, "note('rank1'); " + FOREVER)


def test_when_pytest_is_killed_the_guard_ends_all_ranks_and_runs_the_closers(bench: Bench) -> None:
    with started(supervising(*RANKS), bench.notes) as process:
        wait_until(lambda: {"main", "rank1"} <= set(noted(bench.notes)), "both ranks")
        kill(process, guard=False)
    wait_until(lambda: not bench.records(), "the end of the guard's work")
    assert (bench.closed("closed0"), bench.closed("closed1")) == (1, 1)
    assert set(noted(bench.notes)) == {*TREE_ROLES, "rank1"}
    bench.assert_nothing_left()


def test_when_the_guard_is_killed_too_the_next_session_does_it(bench: Bench) -> None:
    with started(supervising(*RANKS), bench.notes) as process:
        wait_until(lambda: {"main", "rank1"} <= set(noted(bench.notes)), "both ranks")
        kill(process, guard=True)
    assert (bench.closed("closed0"), bench.closed("closed1")) == (0, 0)
    said: list[str] = []
    reap.reap_orphans(bench.state, grace_s=0.2, tell=said.append)
    assert (bench.closed("closed0"), bench.closed("closed1")) == (1, 1)
    assert [sentence.split(":")[0] for sentence in said] == ["closed what a dead session left"] * 2
    bench.assert_nothing_left()


def test_what_could_not_be_closed_is_tried_again_by_the_next_session(bench: Bench) -> None:
    then = f"test -e '{bench.folder}/repaired'"
    with started(supervising("", then=then), bench.notes) as process:
        output, _ = process.communicate()
    assert b"exit code 1: it said nothing" in output
    assert bench.closed("closed0") == 2
    said: list[str] = []
    reap.reap_orphans(bench.state, tell=said.append)
    assert bench.closed("closed0") == 4
    assert "exit code 1" in said[0]
    assert len(bench.records()) == 1
    (bench.folder / "repaired").touch()
    reap.reap_orphans(bench.state)
    assert bench.closed("closed0") == 5
    assert bench.records() == []


def test_a_living_sessions_closers_are_not_run_by_others(bench: Bench) -> None:
    with started(holding(), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the hold")
        reap.reap_orphans(bench.state)
        assert bench.closed("closed0") == 0
        assert len(bench.records()) == 1
        kill(process, guard=False)
        wait_until(lambda: not bench.records(), "the guard")


def test_a_record_under_another_name_is_not_believed(bench: Bench) -> None:
    # Anybody may rename files in a directory that is everybody's.
    with started(holding(), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the hold")
        (path,) = bench.records()
        dead = subprocess.Popen(["true"])
        dead.wait()
        path.rename(path.with_name(f"x-{path.stem.split('-')[1]}-{dead.pid}-1-1.json"))
        reap.reap_orphans(bench.state)
        assert bench.closed("closed0") == 0
        kill(process, guard=True)


# -- what is no process
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [False, True])
def test_what_is_held_is_closed_at_the_end_of_the_block(bench: Bench, error: bool) -> None:
    made = bench.folder / "made"
    (made / "deep").mkdir(parents=True)
    closers = [bench.closer("good"), bench.closer("bad", "exit 2")]
    sleep: subprocess.Popen[bytes] | None = None
    try:
        with held("test", bench.state, closers=closers, folders=[made]) as hold:
            sleep = subprocess.Popen(["sleep", "600"], env={**os.environ, **marked_environment(hold.mark)})
            assert len(bench.records()) == 1
            assert bench.closed("good") == 0
            if error:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert error
    assert sleep is not None
    assert sleep.wait() == -signal.SIGTERM
    assert (bench.closed("good"), bench.closed("bad")) == (1, 2)
    assert [sentence.rpartition(": ")[0].endswith("exit code 2") for sentence in hold.unclosed] == [True]
    assert not made.exists()


@pytest.mark.parametrize("guard", [False, True])
def test_what_was_held_is_closed_when_pytest_is_killed(bench: Bench, guard: bool) -> None:
    with started(holding(), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the hold")
        kill(process, guard=guard)
    if guard:
        assert bench.closed("closed0") == 0
        assert (bench.folder / "made" / "file").exists()
        reap.reap_orphans(bench.state)
    wait_until(lambda: not bench.records(), "the end")
    assert bench.closed("closed0") == 1
    assert not (bench.folder / "made").exists()


def test_a_later_folder_of_the_same_name_stays(bench: Bench) -> None:
    made = bench.folder / "made"
    made.mkdir()
    with held("test", bench.state, folders=[made]):
        made.rename(bench.folder / "elsewhere")
        made.mkdir()
    assert made.exists()
    assert (bench.folder / "elsewhere").exists()


def test_a_batch_job_from_before_a_reboot_is_closed(bench: Bench) -> None:
    # No process of it is left, and its owner's pid means nothing: the record's host and boot decide.
    mark = new_mark("old")
    record.write(bench.state, record.Launch(mark, "held", (record.First(os.getpid(), 1, 1),), (bench.closer(),)))
    (path,) = bench.records()
    text = path.read_text().replace(proc.boot_id(), "another-boot").replace(mark.place, "0" * 12)
    path.unlink()
    path.with_name(path.name.replace(mark.place, "0" * 12)).write_text(text)
    reap.reap_orphans(bench.state)
    assert bench.closed() == 1
    assert bench.records() == []
