"""`launch.mark`, `launch.record`, `launch.reap`: a run is found and ended, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.launch import proc, reap, record
from pytest_r1perf.launch.mark import (
    RunMark,
    mark_of,
    marked_environment,
    new_mark,
    owner_alive,
    parse,
    this_place,
)
from pytest_r1perf.launch.reap import Victim
from pytest_r1perf.launch.record import First, Launch
from tests.processes import PRELUDE, Process, identity, noted, running, script, started, wait_until

SLEEP = "note('{0}'); time.sleep(600)"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def dead_owner() -> RunMark:
    """The mark of a process that has ended."""
    with subprocess.Popen(["sleep", "600"]) as process:
        pid, start = identity(process.pid)
        process.kill()
    return RunMark("dead", pid, start, 1)


@pytest.fixture
def bystander(notes: Path) -> Iterator[Process]:
    """Unmarked, of the same name and command line as the marked ones; must outlive every test."""
    with started(SLEEP.format("bystander"), notes) as process:
        wait_until(lambda: "bystander" in noted(notes), "the bystander")
        yield noted(notes)["bystander"]
        assert process.poll() is None, "the bystander was touched"


def victim(process: Process, mark: RunMark) -> Victim:
    return Victim(*process, mark, ())


# -- the mark
# ------------------------------------------------------------------------------------------------------


@given(
    session=st.from_regex(r"[A-Za-z0-9_.]{1,64}", fullmatch=True),
    numbers=st.tuples(*[st.integers(min_value=0, max_value=2**63)] * 3),
)
def test_a_mark_survives_being_written_and_read(session: str, numbers: tuple[int, int, int]) -> None:
    mark = RunMark(session, *numbers)
    assert parse(str(mark)) == mark
    assert "/" not in str(mark)


@given(st.text())
def test_a_foreign_value_marks_nothing(text: str) -> None:
    mark = parse(text)
    assert mark is None or str(mark) == text


@pytest.mark.parametrize("session", ["", "a-b", "a/b", "a b", "x" * 65])
def test_a_session_that_would_not_be_read_back_is_refused(session: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        RunMark(session, 1, 1, 1)


def test_the_environment_carries_the_mark_and_keeps_it_readable() -> None:
    mark = new_mark("s")
    assert marked_environment(mark) == {"R1PERF_RUN_ID": str(mark), "SPT_NOENV": "1"}


def test_an_owner_lives_by_pid_and_start_time(dead_owner: RunMark) -> None:
    mine = new_mark("mine")
    assert owner_alive(mine)
    assert not owner_alive(RunMark("mine", mine.owner_pid, mine.owner_start + 1, 1))
    assert not owner_alive(dead_owner)
    assert new_mark("mine") != mine


def test_a_zombie_owner_is_dead() -> None:
    process = subprocess.Popen(["true"])
    mark = RunMark("zombie", *identity(process.pid), 1)
    wait_until(lambda: not owner_alive(mark), "the zombie")
    assert Path(f"/proc/{process.pid}").exists()
    process.wait()


def test_an_owner_elsewhere_counts_as_alive() -> None:
    assert owner_alive(RunMark("s", 1, 0, 1, place="0" * 12))
    assert this_place() != "0" * 12


# -- find and end
# --------------------------------------------------------------------------------------------------


def test_only_the_marked_are_ended(notes: Path, bystander: Process) -> None:
    mark = new_mark("mine")
    with (
        started(SLEEP.format("marked"), notes, marked_environment(mark)) as process,
        started(SLEEP.format("other"), notes, marked_environment(new_mark("mine"))) as other,
    ):
        wait_until(lambda: {"marked", "other"} <= set(noted(notes)), "both")
        found = reap.find_marked(lambda candidate: candidate == mark)
        assert [(one.pid, one.start) for one in found] == [noted(notes)["marked"]]
        assert found[0].cmdline[0] == sys.executable
        assert mark_of(process.pid) == mark
        ending = reap.end(found, 30.0, own=mark)
        assert (ending.ended, ending.left) == (tuple(found), ())
        assert process.wait() == -signal.SIGTERM
        assert other.poll() is None
    assert running(bystander)


def test_a_pid_that_was_used_again_is_not_signalled(bystander: Process, dead_owner: RunMark) -> None:
    pid, start = bystander
    earlier = victim((pid, start - 1), dead_owner)
    reap.send(earlier, signal.SIGKILL)
    assert reap.end([earlier], 0.0) == reap.Ending((), ())
    assert running(bystander)


def test_neither_we_nor_our_ancestors_are_ended(dead_owner: RunMark) -> None:
    line = [victim(identity(pid), dead_owner) for pid in (os.getpid(), os.getppid())]
    assert reap.end(line, 0.0) == reap.Ending((), ())


def test_a_run_with_a_living_owner_is_left_alone(notes: Path, tmp_path: Path) -> None:
    with started("note('owner'); time.sleep(600)", notes):
        wait_until(lambda: "owner" in noted(notes), "the owner")
        mark = RunMark("foreign", *noted(notes)["owner"], 1)
        record.write(tmp_path, Launch(mark, "x"))
        with started(SLEEP.format("marked"), notes, marked_environment(mark)) as process:
            wait_until(lambda: "marked" in noted(notes), "the marked process")
            reap.reap_orphans(tmp_path)
            found = reap.find_marked(lambda candidate: candidate == mark)
            assert reap.end(found, 0.0) == reap.Ending((), tuple(found))
            assert process.poll() is None
        assert [launch.mark for launch in record.read(tmp_path)] == [mark]


def test_a_mark_of_another_host_is_left_alone(notes: Path, tmp_path: Path) -> None:
    mark = RunMark("remote", 1, 0, 1, place="0" * 12)
    with started(SLEEP.format("marked"), notes, marked_environment(mark)) as process:
        wait_until(lambda: "marked" in noted(notes), "the marked process")
        reap.reap_orphans(tmp_path)
        assert process.poll() is None
        # A launcher that asks for its own run on that host gets it.
        assert len(reap.end_run(mark).ended) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process of another user")
def test_another_users_process_is_left_alone(tmp_path: Path, dead_owner: RunMark) -> None:
    sleep = subprocess.Popen(["sleep", "600"], user=65534, env={**os.environ, **marked_environment(dead_owner)})
    try:
        wait_until(lambda: mark_of(sleep.pid) == dead_owner, "the mark")
        reap.reap_orphans(tmp_path)
        assert sleep.poll() is None
    finally:
        sleep.kill()
        sleep.wait()


def test_a_run_within_a_run_goes_with_it(notes: Path) -> None:
    # An inner pytest with its own mark, whose daemonised child carries the inner mark only.
    inner = """
from pytest_r1perf.launch.mark import marked_environment, new_mark
os.environ.update(marked_environment(new_mark("inner")))
subprocess.Popen([sys.executable, "-c", {body!r}], start_new_session=True)
note("inner")
time.sleep(600)
""".format(body=PRELUDE + "daemon('inner-daemon', ignore_term=True)")
    mark = new_mark("outer")
    with started(inner, notes, marked_environment(mark)) as process:
        wait_until(lambda: {"inner", "inner-daemon"} <= set(noted(notes)), "the inner run")
        reap.end_run(mark, grace_s=0.2)
        assert process.wait() == -signal.SIGTERM
    assert not any(map(running, noted(notes).values()))


# -- what dead sessions left
# ---------------------------------------------------------------------------------------

OWNER = """
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import run
folder = Path(NOTES).parent
mark = new_mark("owner")
run([sys.executable, "-c", {inner!r}], env={{**os.environ, **marked_environment(mark)}}, cwd=folder,
    log_path=folder / "log", timeout_s=300, mark=mark, state_dir=folder / "state")
""".format(inner=PRELUDE + "daemon('daemon', ignore_term=True); wait_for('daemon'); note('main')\ntime.sleep(600)")


def test_when_pytest_and_guard_were_killed_the_next_session_ends_the_run(notes: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with started(OWNER, notes) as process:
        wait_until(lambda: "main" in noted(notes), "the run")
        (launch,) = record.read(state)
        (first,) = launch.firsts
        assert (first.pid, first.start) == noted(notes)["main"]
        assert first.sid == first.pid
        assert launch.program == sys.executable
        (guard,) = (stat.pid for stat in proc.own_processes() if str(launch.mark) in proc.command_line(stat.pid))
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
    reap.reap_orphans(state, grace_s=0.2)
    assert not any(map(running, noted(notes).values()))
    assert list(state.glob("launches-*/*")) == []
    assert reap.find_marked(lambda mark: mark == launch.mark) == []


@pytest.mark.usefixtures("bystander")
def test_a_wiped_environment_is_found_by_its_record(notes: Path, tmp_path: Path, dead_owner: RunMark) -> None:
    body = "note('wiped')\nif os.fork() == 0:\n    note('mate')\ntime.sleep(600)"
    process = subprocess.Popen([*script(body), str(notes)], env={}, start_new_session=True)
    try:
        wait_until(lambda: {"wiped", "mate"} <= set(noted(notes)), "both")
        record.write(tmp_path, Launch(dead_owner, "x", (First(*noted(notes)["wiped"], process.pid),)))
        ended = reap.reap_orphans(tmp_path, grace_s=30.0)
        assert {noted(notes)["wiped"], noted(notes)["mate"]} <= {(one.pid, one.start) for one in ended}
        assert record.read(tmp_path) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("claim", ["pid", "session"])
def test_a_record_of_a_pid_or_session_that_was_used_again_harms_nobody(
    notes: Path, tmp_path: Path, dead_owner: RunMark, claim: str
) -> None:
    process = subprocess.Popen([*script(SLEEP.format("new")), str(notes)], env={}, start_new_session=True)
    try:
        wait_until(lambda: "new" in noted(notes), "the process")
        pid, start = noted(notes)["new"]
        leader = pid if claim == "pid" else dead_owner.owner_pid
        record.write(tmp_path, Launch(dead_owner, "x", (First(leader, start - 1, pid),)))
        reap.reap_orphans(tmp_path)
        assert process.poll() is None
        assert record.read(tmp_path) == []
    finally:
        process.kill()
        process.wait()


ALONE = ["unshare", "--pid", "--fork", "--mount-proc"]
if os.geteuid() != 0:
    ALONE += ["--user", "--map-root-user"]


def test_the_marks_that_we_live_under_ourselves_are_left_alone(tmp_path: Path) -> None:
    # A terminal or batch job that was started from a run whose owner has died: its other processes are no
    # orphans. In a PID namespace of its own, so that no other session on this host takes them for orphans
    # either.
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("unshare --pid is not permitted here")
    inner = """
from pytest_r1perf.launch.reap import end_run, find_marked, reap_orphans
from pytest_r1perf.launch.mark import parse
mark = parse(os.environ["R1PERF_RUN_ID"])
neighbour = subprocess.Popen(["sleep", "600"])
print(reap_orphans(Path(NOTES)), neighbour.poll(), flush=True)
print(len(find_marked(lambda found: found == mark)), len(end_run(mark, grace_s=60).ended), neighbour.wait())
"""
    outer = f"""
from pytest_r1perf.launch.mark import RunMark, marked_environment
with subprocess.Popen(["true"]) as owner:
    start = int(Path(f"/proc/{{owner.pid}}/stat").read_text().rpartition(")")[2].split()[19])
mark = RunMark("dead", owner.pid, start, 1)
env = {{**os.environ, **marked_environment(mark)}}
subprocess.run([sys.executable, "-c", {PRELUDE + inner!r}, NOTES], env=env)
"""
    command = [*ALONE, *script(outer), str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    assert output.stdout == f"[] None\n1 1 {-signal.SIGTERM}\n", output.stderr


# -- records
# -------------------------------------------------------------------------------------------------------


def test_records_from_before_a_reboot_go_and_another_hosts_stay(tmp_path: Path) -> None:
    folder = tmp_path / f"launches-{os.geteuid()}"
    folder.mkdir()
    here = os.uname().nodename
    marks = [RunMark("old", 1, 1, serial, place="0" * 12) for serial in (1, 2)]
    for mark, host in zip(marks, (here, "elsewhere"), strict=True):
        (folder / f"{mark}.json").write_text(json.dumps({"host": host, "boot": "another"}))
    (folder / "notes.json").write_text("not ours")
    reap.reap_orphans(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.json", f"{marks[1]}.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"firsts": 1}', '{"mark": "another"}'])
def test_a_damaged_record_of_a_dead_owner_is_removed(tmp_path: Path, dead_owner: RunMark, text: str) -> None:
    record.write(tmp_path, Launch(dead_owner, "x"))
    (path,) = tmp_path.glob("launches-*/*")
    path.write_text(text)
    assert record.read(tmp_path) == [Launch(dead_owner, "?")]
    reap.reap_orphans(tmp_path)
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to write a record as another user")
def test_another_users_record_is_not_believed(tmp_path: Path, dead_owner: RunMark, bystander: Process) -> None:
    record.write(tmp_path, Launch(dead_owner, "x", (First(*bystander, os.getsid(bystander[0])),)))
    (path,) = tmp_path.glob("launches-*/*")
    os.chown(path, 65534, 65534)
    reap.reap_orphans(tmp_path)
    assert running(bystander)
