"""`launch.process.run`: however a run ends, nothing of it is left. Real processes throughout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf import devices
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import proc
from pytest_r1perf.launch.mark import marked_environment, new_mark, parse
from pytest_r1perf.launch.process import Exit, LaunchError, Poll, run
from tests.processes import PRELUDE, TREE, TREE_ROLES, identity, noted, running, script, started, wait_until


class Bench:
    """One directory with a log, a state and the scripts' notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.log = folder / "log"
        self.state = folder / "state"

    def argv(self, argv: list[str], **changes: Any) -> Exit:
        mark = new_mark("test")
        settings: dict[str, Any] = {
            "env": {**os.environ, **marked_environment(mark), "R1PERF_TEST_NOTES": str(self.notes)},
            "cwd": self.folder,
            "log_path": self.log,
            "timeout_s": 300,
            "mark": mark,
            "state_dir": self.state,
            "grace_s": 0.3,
        }
        return run(argv, **(settings | changes))

    def run(self, body: str, **changes: Any) -> Exit:
        return self.argv(script(body), **changes)

    def records(self) -> list[Path]:
        return list(self.state.glob("launches-*/*"))

    def assert_nothing_left(self) -> None:
        assert [role for role, process in noted(self.notes).items() if running(process)] == []
        assert self.records() == []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_command_that_ends_by_itself(bench: Bench) -> None:
    seen: list[bytes] = []
    exit = bench.run("print('one', flush=True); time.sleep(0.5); print('two')", on_output=seen.append)
    assert (exit.returncode, exit.ended_by, exit.survivors, exit.left) == (0, "exit", (), ())
    assert not exit.log_full
    assert exit.wall_s > 0
    assert b"".join(seen) == b"one\ntwo\n" == bench.log.read_bytes()
    bench.assert_nothing_left()


def test_output_comes_while_the_command_runs_and_stderr_is_in_the_log(bench: Bench) -> None:
    seen: list[bytes] = []

    def answer(new: bytes) -> None:
        seen.append(new)
        (bench.folder / "answer").touch()

    exit = bench.run(
        "print('ask', file=sys.stderr, flush=True)\nwhile not Path('answer').exists(): time.sleep(0.01)",
        on_output=answer,
    )
    assert exit.ended_by == "exit"
    assert b"".join(seen) == b"ask\n"


def test_the_log_is_appended_to_and_only_new_bytes_are_handed_over(bench: Bench) -> None:
    bench.log.write_bytes(b"earlier\n")
    seen: list[bytes] = []
    bench.run("print('later')", on_output=seen.append)
    assert bench.log.read_bytes() == b"earlier\nlater\n"
    assert b"".join(seen) == b"later\n"


def test_a_flood_of_output_arrives_whole(bench: Bench) -> None:
    sizes: list[int] = []
    bench.run("for _ in range(640): os.write(1, b'x' * 65536)", on_output=lambda new: sizes.append(len(new)))
    assert sum(sizes) == bench.log.stat().st_size == 640 * 65536


@pytest.mark.parametrize(
    ("body", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_the_exit_code_is_the_commands_own(bench: Bench, body: str, code: int) -> None:
    exit = bench.run(body)
    assert (exit.returncode, exit.ended_by) == (code, "exit")


def test_it_gets_its_own_session_no_input_and_exactly_the_environment_given(bench: Bench) -> None:
    mark = new_mark("test")
    given = {**marked_environment(mark), "R1PERF_TEST_NOTES": "unused", "ONLY": "this"}
    bench.run("print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), sorted(os.environ))", env=given, mark=mark)
    names = sorted([*given, "LC_CTYPE"])  # the interpreter itself adds LC_CTYPE in the C locale (PEP 538)
    assert bench.log.read_text() == f"True '' {names}\n"


def test_timeout_ends_also_what_ignores_sigterm(bench: Bench) -> None:
    exit = bench.run("signal.signal(15, signal.SIG_IGN); note('main'); time.sleep(600)", timeout_s=2)
    assert (exit.ended_by, exit.returncode) == ("timeout", -signal.SIGKILL)
    bench.assert_nothing_left()


def test_a_command_that_cleans_up_on_sigterm_may(bench: Bench) -> None:
    exit = bench.run(
        "signal.signal(15, lambda *_: sys.exit(7))\nnote('main')\nprint('up', flush=True)\ntime.sleep(600)",
        poll=lambda: Poll.END if noted(bench.notes) else Poll.GO_ON,
        grace_s=60,
    )
    assert (exit.ended_by, exit.returncode) == ("lingering", 7)


def test_lingering_is_ended_when_poll_says_so(bench: Bench) -> None:
    exit = bench.run(TREE + "time.sleep(600)", poll=lambda: Poll.END if "main" in noted(bench.notes) else Poll.GO_ON)
    assert exit.ended_by == "lingering"
    assert set(noted(bench.notes)) == TREE_ROLES
    bench.assert_nothing_left()


def test_survivors_of_the_first_process_are_ended_and_reported(bench: Bench) -> None:
    exit = bench.run(TREE)
    assert (exit.returncode, exit.ended_by, exit.left) == (0, "exit", ())
    left_behind = {process for role, process in noted(bench.notes).items() if role != "main"}
    assert {(victim.pid, victim.start) for victim in exit.survivors} == left_behind
    bench.assert_nothing_left()


def test_helpers_that_end_by_themselves_are_no_survivors(bench: Bench) -> None:
    exit = bench.run("if os.fork() == 0: time.sleep(0.1)")
    assert exit.survivors == ()


def test_a_wiped_environment_is_found_by_the_session(bench: Bench) -> None:
    sleeper = script("note('wiped'); time.sleep(600)")
    exit = bench.run(f"subprocess.Popen({[*sleeper, str(bench.notes)]!r}, env={{}}); wait_for('wiped')")
    assert len(exit.survivors) == 1
    bench.assert_nothing_left()


def test_processes_that_fork_when_they_are_told_to_end(bench: Bench) -> None:
    body = """
def hydra(generation):
    def again(*_):
        if generation < 5 and os.fork() == 0:
            os.setsid()
            hydra(generation + 1)
        os._exit(0)
    signal.signal(signal.SIGTERM, again)
    note(f"head{generation}")
    time.sleep(600)
hydra(1)
"""
    exit = bench.run(body, poll=lambda: Poll.END if "head1" in noted(bench.notes) else Poll.GO_ON, grace_s=1.0)
    assert exit.ended_by == "lingering"
    assert "head2" in noted(bench.notes)
    bench.assert_nothing_left()


def test_processes_that_fork_while_they_are_killed(bench: Bench) -> None:
    # Five that replace themselves for as long as a file is there, each generation in a new session.
    body = """
(Path("go")).touch()
for line in range(5):
    if os.fork() == 0:
        while Path("go").exists():
            if os.fork():
                os._exit(0)
            os.setsid()
            note(f"line{line}")
            time.sleep(0.1)
        os._exit(0)
time.sleep(600)
"""
    bench.run(body, poll=lambda: Poll.END if len(noted(bench.notes)) == 5 else Poll.GO_ON, grace_s=0.0)
    size = bench.notes.stat().st_size
    bench.assert_nothing_left()
    assert bench.notes.stat().st_size == size


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_an_exception_in_a_callback_ends_the_run_first(bench: Bench, error: type[BaseException]) -> None:
    def fail(_: bytes) -> None:
        raise error

    with pytest.raises(error):
        bench.run(TREE + "time.sleep(600)", on_output=fail)
    assert set(noted(bench.notes)) == TREE_ROLES
    bench.assert_nothing_left()


def test_it_works_outside_the_main_thread(bench: Bench) -> None:
    exits: list[Exit] = []
    thread = threading.Thread(target=lambda: exits.append(bench.run("print('hi')")))
    thread.start()
    thread.join()
    assert [exit.returncode for exit in exits] == [0]


# -- a pytest of our own to interrupt and kill
# ---------------------------------------------------------------------

OWNER = """
from pytest_r1perf.launch.mark import marked_environment, new_mark, parse
from pytest_r1perf.launch.process import run
from pytest_r1perf import devices
{before}
folder = Path(NOTES).parent
mark = new_mark("owner")
note("owner")
try:
    env = {{**os.environ, **marked_environment(mark)}}
    exit = run([sys.executable, "-c", {inner!r}], env=env, cwd=folder, log_path=folder / "log", timeout_s=300,
               mark=mark, state_dir=folder / "state", grace_s={grace})
    print(exit.returncode, flush=True)
except BaseException as error:
    print(type(error).__name__, flush=True)
    raise
"""


def owner(body: str, before: str = "", grace: float = 0.3) -> str:
    return OWNER.format(before=before, inner=PRELUDE + body, grace=grace)


def lease(directory: Path) -> devices.Lease:
    return devices.acquire(["gpu"], directory=directory, share_host=False, timeout_s=0, waiting=lambda _: None)


def guards_of(pid: int) -> list[int]:
    """By the mark among its arguments: it is nobody's child."""
    return [
        stat.pid
        for stat in proc.own_processes()
        for line in [proc.command_line(stat.pid)]
        if any(part.endswith("guard.py") for part in line)
        and any(mark is not None and mark.owner_pid == pid for mark in map(parse, line))
    ]


def test_ctrl_c_again_and_again_leaves_nothing(bench: Bench) -> None:
    # The stubborn process makes the clean-up last: the others come in the middle of it.
    with started(owner(TREE + "time.sleep(600)", grace=2.0), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the tree")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not running(noted(bench.notes)["child"]), "the start of the clean-up")
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        output, _ = process.communicate()
    assert output == b"KeyboardInterrupt\n"
    bench.assert_nothing_left()


def test_ctrl_c_while_survivors_are_ended_is_not_lost(bench: Bench) -> None:
    with started(owner(TREE, grace=2.0), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the tree")
        wait_until(lambda: not running(noted(bench.notes)["child"]), "the start of the clean-up")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert output == b"KeyboardInterrupt\n"
    bench.assert_nothing_left()


def test_a_handler_that_raises_as_pytest_timeouts_does(bench: Bench) -> None:
    before = """
def expire(number, frame):
    raise TimeoutError
signal.signal(signal.SIGALRM, expire)
"""
    with started(owner(TREE + "time.sleep(600)", before), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the tree")
        process.send_signal(signal.SIGALRM)
        output, _ = process.communicate()
    assert output == b"TimeoutError\n"
    bench.assert_nothing_left()


def test_a_handler_that_returns_does_not_end_the_run(bench: Bench) -> None:
    before = "signal.signal(signal.SIGALRM, lambda *_: note('handled'))"
    with started(owner("note('main'); wait_for('handled')", before), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the command")
        process.send_signal(signal.SIGALRM)
        output, _ = process.communicate()
    assert output == b"0\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_pytest_is_killed_the_guard_ends_everything(bench: Bench, number: signal.Signals) -> None:
    before = """
lease = devices.acquire(["gpu"], directory=Path(NOTES).parent, share_host=False, timeout_s=0, waiting=print)
"""
    with started(owner(TREE + "time.sleep(600)", before), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the tree")
        (guard,) = map(identity, guards_of(process.pid))
        with pytest.raises(devices.LeaseError):
            lease(bench.folder)
        process.send_signal(number)
        process.wait()
        roles = noted(bench.notes)
        assert set(roles) == {*TREE_ROLES, "owner"}
        wait_until(lambda: not any(map(running, roles.values())), "the end of the tree")
        wait_until(lambda: not running(guard), "the end of the guard")
    bench.assert_nothing_left()
    lease(bench.folder).release()


def test_a_forked_copy_of_pytest_does_not_keep_the_guard_waiting(bench: Bench) -> None:
    # multiprocessing's fork method copies the guard's line into a process that outlives pytest.
    inner = TREE + "time.sleep(600)"
    before = """
import threading
def fork_later():
    wait_for("main")
    if os.fork() == 0:
        note("copy")
        time.sleep(600)
threading.Thread(target=fork_later, daemon=True).start()
"""
    with started(owner(inner, before), bench.notes) as process:
        wait_until(lambda: "copy" in noted(bench.notes), "the copy")
        process.kill()
        process.wait()
        roles = noted(bench.notes)
        copy = roles.pop("copy")
        try:
            wait_until(lambda: not any(map(running, roles.values())), "the end of the tree")
            assert running(copy), "it carries no mark and is not ours to end"
        finally:
            os.kill(copy[0], signal.SIGKILL)


def test_the_guard_holds_nothing_of_pytests_and_ignores_signals(bench: Bench) -> None:
    before = """
lease = devices.acquire(["gpu"], directory=Path(NOTES).parent, share_host=False, timeout_s=0, waiting=print)
"""
    with started(owner("note('main'); time.sleep(600)", before), bench.notes) as process:
        wait_until(lambda: "main" in noted(bench.notes), "the command")
        (guard,) = map(identity, guards_of(process.pid))
        files = [str(entry.readlink()) for entry in Path(f"/proc/{guard[0]}/fd").iterdir()]
        assert [name for name in files if not name.startswith(("/dev/null", "socket:", "anon_inode:"))] == []
        assert len([name for name in files if name.startswith("socket:")]) == 1
        assert Path(f"/proc/{guard[0]}/cwd").readlink() == Path("/")
        assert os.getsid(guard[0]) not in (os.getsid(process.pid), os.getsid(0))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(guard[0], number)
        assert running(guard)
        process.kill()
        process.wait()
        wait_until(lambda: not running(noted(bench.notes)["main"]), "the end of the command")
        wait_until(lambda: not running(guard), "the end of the guard")


def test_the_guard_goes_with_its_run(bench: Bench) -> None:
    seen: list[tuple[int, int]] = []

    def look() -> Poll:
        seen.extend(map(identity, guards_of(os.getpid())))
        return Poll.END

    bench.run("time.sleep(600)", poll=look)
    assert seen
    wait_until(lambda: not any(map(running, seen)), "the end of the guard")


def test_the_exit_code_is_unknown_when_somebody_else_took_it(bench: Bench) -> None:
    before = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with started(owner("sys.exit(5)", before), bench.notes) as process:
        output, _ = process.communicate()
    assert output == b"None\n"


# -- what cannot be started
# ----------------------------------------------------------------------------------------


def refused(bench: Bench, argv: list[str], **changes: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        bench.argv(argv, **changes)
    assert isinstance(caught.value, R1PerfError)
    assert bench.records() == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_program_that_is_not_there(bench: Bench) -> None:
    assert "'no-such-program': no such program" in refused(bench, ["no-such-program"])


def test_a_program_that_is_not_executable(bench: Bench) -> None:
    program = bench.folder / "program"
    program.write_text("#!/bin/sh\n")
    assert "chmod +x" in refused(bench, [str(program)])


def test_a_program_that_is_no_program(bench: Bench) -> None:
    program = bench.folder / "program"
    program.write_text("no magic")
    program.chmod(0o755)
    assert "Exec format error" in refused(bench, [str(program)])


def test_too_many_arguments(bench: Bench) -> None:
    assert "Argument list too long (1000 arguments" in refused(bench, ["true", *["x" * 100_000] * 999])


def test_a_nul_byte(bench: Bench) -> None:
    assert "null byte" in refused(bench, ["true", "a\0b"])


def test_a_working_directory_that_is_not_there(bench: Bench) -> None:
    assert "working directory" in refused(bench, ["true"], cwd=bench.folder / "none")


@pytest.mark.parametrize("name", ["none/log", "file/log", "."])
def test_a_log_that_cannot_be_written(bench: Bench, name: str) -> None:
    (bench.folder / "file").touch()
    assert "cannot write the log" in refused(bench, ["true"], log_path=bench.folder / name)


def test_a_state_directory_that_cannot_be_written(bench: Bench) -> None:
    (bench.folder / "file").touch()
    assert "cannot record the launch" in refused(bench, ["true"], state_dir=bench.folder / "file")


def test_a_watcher_that_cannot_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "the watcher for 'true' did not start" in refused(bench, ["true"])


@pytest.mark.parametrize("env", [{}, {"R1PERF_RUN_ID": "another"}])
def test_an_environment_without_the_mark_is_a_mistake(bench: Bench, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="marked_environment"):
        bench.argv(["true"], env=env)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount does not work here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_log_on_a_full_disk(bench: Bench, small_disk: Path) -> None:
    log = small_disk / "log"
    log.touch()
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler"], capture_output=True, check=False)
    assert "free some space" in refused(bench, ["true"], log_path=log)
    assert log.read_bytes() == b""


def test_a_disk_that_fills_up_meanwhile_is_reported(bench: Bench, small_disk: Path) -> None:
    exit = bench.run("while True: os.write(1, b'x' * 4096)", log_path=small_disk / "log")
    assert exit.returncode in (1, 120)  # 120: Python could not flush its output at the end
    assert exit.log_full
