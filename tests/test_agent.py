"""`launch.agent`: what runs on another node, and what ends it there. Real processes, no network."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.launch import proc, wire
from pytest_r1perf.launch.bundle import agent_argv, payload
from pytest_r1perf.launch.launcher import Closer, Node, RankCommand
from pytest_r1perf.launch.mark import mark_of, marked_environment, new_mark, parse
from pytest_r1perf.launch.process import Exit, Poll, supervise
from pytest_r1perf.launch.ranks import Told, clients_for, told
from tests.elsewhere import Elsewhere
from tests.processes import TREE, TREE_ROLES, Process, identity, noted, running, script, wait_until

FOREVER = "time.sleep(600)"


@dataclass(frozen=True)
class Login(Elsewhere):
    """A node whose login sets variables, and may print a greeting to standard output."""

    variables: Mapping[str, str] = field(default_factory=dict)
    greeting: str = ""

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        python, relay, *there = super().connect(node, argv)
        shell = ("/bin/sh", "-c", 'test -z "$1" || echo "$1"; shift; exec "$@"', "sh", self.greeting)
        variables = (f"{name}={value}" for name, value in self.variables.items())
        return (python, relay, "/usr/bin/env", *variables, *shell, *there)


class Far:
    """Folders here and there, and the agent's doings."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.here = folder / "here"
        self.there = folder / "there"
        self.state = folder / "state"
        self.temporary = folder / "tmp"
        for made in (self.here, self.there, self.temporary):
            made.mkdir()

    def command(self, argv: Sequence[str], **changes: Any) -> RankCommand:
        settings = {"env": {"R1PERF_TEST_NOTES": str(self.notes)}, "cwd": str(self.there)}
        return RankCommand(0, tuple(argv), **(settings | changes))

    def run(
        self,
        command: RankCommand,
        *,
        poll: Any = None,
        timeout_s: float = 300,
        gpu_wait_s: float = 0.0,
        elsewhere: Elsewhere | None = None,
        **allocation: Any,
    ) -> tuple[Exit, Told]:
        mark = new_mark("test")
        clients = clients_for(
            elsewhere or Elsewhere(1, **allocation),
            [command],
            python=sys.executable,
            session="test",
            mark=mark,
            folder=self.here,
            timeout_s=timeout_s,
            state_dir=str(self.state),
            grace_s=0.3,
            gpu_wait_s=gpu_wait_s,
        )
        exit = supervise(clients, timeout_s=timeout_s, mark=mark, state_dir=self.here / "state", poll=poll, grace_s=0.3)
        return exit, told(self.here / "launch-rank0.txt", self.here)

    def spec(self, body: str, **changes: Any) -> dict[str, Any]:
        command = self.command(script(body), **changes)
        return {
            "kind": "run",
            "command": wire.pack_command(command),
            "session": "test",
            "timeout_s": 300,
            "grace_s": 0.3,
            "state_dir": wire.packed(str(self.state)),
        }

    def begin(self, spec: dict[str, Any], *, relayed: bool = True) -> subprocess.Popen[bytes]:
        """The agent on its own, its payload written and its lifeline open."""
        argv = Elsewhere().connect(Elsewhere().nodes[0], agent_argv(sys.executable))
        process = subprocess.Popen(
            argv if relayed else agent_argv(sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.here / "errors").open("wb"),
        )
        assert process.stdin is not None
        process.stdin.write(payload(spec))
        process.stdin.flush()
        return process

    def events(self) -> list[dict[str, Any]]:
        return wire.sifted((self.here / "errors").read_text())[0]

    def agent(self) -> Process:
        wait_until(lambda: any(event["event"] == "started" for event in self.events()), "the agent")
        (pid,) = (event["pid"] for event in self.events() if event["event"] == "started")
        return identity(pid)

    def guards(self, pid: int) -> list[int]:
        return [
            stat.pid
            for stat in proc.own_processes()
            if (line := proc.command_line(stat.pid))
            and any(part.endswith("guard.py") for part in line)
            and any(mark is not None and mark.owner_pid == pid for mark in map(parse, line))
        ]

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not any(map(running, noted(self.notes).values())), "the end of the command")
        wait_until(lambda: not list(self.state.glob("launches-*/*")), "the end of the records")
        wait_until(lambda: not list(self.temporary.iterdir()), "the end of the agent's folder")


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    far = Far(tmp_path)
    monkeypatch.setenv("TMPDIR", str(far.temporary))
    return far


def finish(process: subprocess.Popen[bytes]) -> int:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    try:
        return process.wait(60)
    finally:
        process.kill()
        process.wait()


# -- what travels
# --------------------------------------------------------------------------------------------------

STRANGE = [
    "",
    " ",
    "a b",
    "-c",
    "it's",
    'say "hi"',
    "$HOME `id` $(id)",
    "a\\nb\\",
    "two\nlines\r",
    "*?[a]~",
    "#!x;|&<>",
]
STRANGE += ["é 漢 🙂", os.fsdecode(b"\xff\xfe broken")]

SHOW = """
import json, os, sys
print(json.dumps([[os.fsencode(item).hex() for item in sys.argv[1:]],
                  os.environb[b"STRANGE"].hex(), os.getcwdb().hex(), "PYTHONPATH" in os.environ,
                  os.environ.get("FROM_LOGIN")]))
"""


def test_any_character_survives_in_arguments_environment_and_directory(far: Far) -> None:
    value = "".join(STRANGE)
    cwd = str(far.there / "".join(STRANGE).replace("/", ""))
    exit, _ = far.run(RankCommand(0, (sys.executable, "-c", SHOW, *STRANGE), {"STRANGE": value}, cwd))
    assert exit.returncode == 0
    shown = json.loads((far.here / "log.txt").read_text())
    assert shown == [
        [os.fsencode(item).hex() for item in STRANGE],
        os.fsencode(value).hex(),
        os.fsencode(cwd).hex(),
        False,
        "yes",
    ]
    assert not Path(cwd).exists(), "made there, so removed there"


path_text = st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))


@given(
    argv=st.lists(path_text, max_size=3),
    env=st.dictionaries(path_text, path_text, max_size=2),
    cwd=path_text,
    gone=st.text(),
    gpus=st.lists(st.uuids().map(lambda uuid: f"GPU-{uuid}"), max_size=2).map(tuple),
)
def test_a_command_survives_json(
    argv: list[str], env: dict[str, str], cwd: str, gone: str, gpus: tuple[str, ...]
) -> None:
    command = RankCommand(1, tuple(argv), env, cwd, tuple(argv), (Closer(tuple(argv), env, gone),), gpus)
    assert wire.unpack_command(json.loads(json.dumps(wire.pack_command(command)))) == command


def test_only_a_harmless_constant_is_on_the_command_line(far: Far) -> None:
    argv = agent_argv("/opt/a b/python")
    assert argv[0] == "/opt/a b/python"
    assert not set("'$`\\!\n") & set("".join(argv))
    assert argv == agent_argv(argv[0])
    spec = far.spec("print('through a shell')")
    line = shlex.join(agent_argv(sys.executable))
    done = subprocess.run(["sh", "-c", line], input=payload(spec), capture_output=True, check=False, timeout=60)
    # Its standard input ended at once, so it may have been ended before it printed.
    (ended,) = (event for event in wire.sifted(done.stderr.decode())[0] if event["event"] == "ended")
    assert ended["ended_by"] in ("lifeline", "exit")


def test_all_that_is_sent_fits_into_a_pipe(far: Far) -> None:
    """MPICH's mpiexec gives up on a program that does not read at once; random text does not pack."""
    spec = far.spec("pass", env={f"V{number}": os.urandom(20).hex() for number in range(100)})
    assert len(payload(spec)) < 1 << 16


def test_the_environment_that_counts_is_told(far: Far) -> None:
    """What a login there sets as well as what we give; secrets are hidden."""
    variables = {"NCCL_ALGO": "Ring", "HF_TOKEN": "hf_secret", "SGLANG_ODD": os.fsdecode(b"\xff"), "OTHER": "1"}
    _, said = far.run(
        far.command(["true"], env=variables), elsewhere=Login(variables={"NCCL_PROTO": "LL", "NCCL_ALGO": "Tree"})
    )
    assert said.env == {
        "HF_TOKEN": "***",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "LL",
        "SGLANG_ODD": os.fsdecode(b"\xff"),
    }


def test_it_needs_no_site_packages(far: Far) -> None:
    exit, said = far.run(far.command(["echo", "hi"]), python_options=("-S",))
    assert (exit.returncode, said.returncode, said.text) == (0, 0, "")


def test_an_old_python_is_refused_in_one_sentence() -> None:
    # The bootstrap itself, on an interpreter that says to be older.
    code = f"import sys; sys.version_info = (3, 8, 18); exec({agent_argv('')[-1]!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    ((event), _) = wire.sifted(done.stderr)
    assert "is 3.8, and 3.10 or later is needed" in event[0]["sentence"]


def test_output_is_the_commands_and_errors_are_the_agents(far: Far) -> None:
    body = "print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)"
    exit, said = far.run(far.command(script(body)))
    assert (far.here / "log.txt").read_text() == "out\nerr\n"
    assert (exit.returncode, exit.ended_by) == (7, "exit")
    assert (said.returncode, said.ended_by, said.text, said.problems) == (7, "exit", "", ())
    assert said.host
    assert said.started


def test_a_flood_of_output_arrives_whole(far: Far) -> None:
    far.run(far.command(script("for _ in range(160): os.write(1, b'x' * 65536)")))
    assert (far.here / "log.txt").stat().st_size == 160 * 65536


def test_output_comes_while_the_command_runs(far: Far) -> None:
    answer = far.there / "answer"
    body = f"print('ask', flush=True)\nwhile not Path({str(answer)!r}).exists(): time.sleep(0.01)"

    def poll() -> Poll:
        if (far.here / "log.txt").read_text() == "ask\n":
            answer.touch()
        return Poll.GO_ON

    exit, _ = far.run(far.command(script(body)), poll=poll)
    assert exit.ended_by == "exit"


def test_a_signal_is_told_as_such(far: Far) -> None:
    exit, said = far.run(far.command(script("os.kill(os.getpid(), signal.SIGSEGV)")))
    assert (exit.returncode, said.returncode) == (128 + signal.SIGSEGV, -signal.SIGSEGV)


def test_a_program_that_is_not_there(far: Far) -> None:
    exit, said = far.run(far.command(["no-such-program"]))
    assert exit.returncode == 125
    (problem,) = said.problems
    assert "no-such-program" in problem
    assert said.returncode is None
    assert list(far.state.glob("launches-*/*")) == []


# -- files
# ---------------------------------------------------------------------------------------------------------

WRITE = "Path('result.jsonl').write_bytes(bytes(range(256)) * 300); Path('big').touch(); os.truncate('big', 65 << 20)"


def test_files_are_brought_here_and_the_directory_goes(far: Far) -> None:
    cwd = far.there / "a" / "b"
    exit, said = far.run(far.command(script(WRITE), cwd=str(cwd), fetch=("result.jsonl", "none", "big")))
    assert exit.returncode == 0
    assert said.files == (far.here / "result.jsonl",)
    assert said.files[0].read_bytes() == bytes(range(256)) * 300
    (problem,) = said.problems
    assert "big is no file of at most 64 MiB" in problem
    assert not (far.there / "a").exists()
    # For people: what was fetched is not in the text a second time.
    assert (far.here / "launch-rank0.txt").stat().st_size < 2000
    assert told(far.here / "launch-rank0.txt", far.here).returncode == 0


def test_a_directory_that_was_there_stays(far: Far) -> None:
    far.run(far.command(script("Path('mine').touch()")))
    assert (far.there / "mine").exists()


def test_a_made_directory_is_private(far: Far) -> None:
    body = "print(oct(os.stat('.').st_mode & 0o777))"
    far.run(far.command(script(body), cwd=str(far.there / "new")))
    assert (far.here / "log.txt").read_text() == "0o700\n"


@pytest.mark.parametrize("name", ["/etc/passwd.r1perf", "../above"])
def test_a_file_name_that_leads_out_is_not_written(tmp_path: Path, name: str) -> None:
    errors = tmp_path / "errors"
    errors.write_bytes(wire.frame("file", name=name, size=1, base64="eA=="))
    said = told(errors, tmp_path / "here")
    assert said.files == ()
    assert "leads out" in said.problems[0]
    assert not (tmp_path / "above").exists()


def test_words_of_the_connection_and_torn_frames_are_kept_apart(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    started = wire.frame("started", host="n1", pid=1, mark="m").decode()
    torn = wire.frame("file", name="x", size=9, base64="eHh4").decode()
    errors.write_text(f"Welcome to n1\nno newline: {started}r1perf-agent: {{torn\n{torn}srun: error: n1\n")
    said = told(errors, tmp_path)
    assert said.host == "n1"
    assert said.text == "Welcome to n1\nno newline: \nr1perf-agent: {torn\nsrun: error: n1"
    assert "3 of 9 bytes came" in said.problems[0]
    assert (said.returncode, said.files) == (None, ())


# -- how it ends
# ---------------------------------------------------------------------------------------------------


def test_the_end_of_the_run_here_ends_everything_there(far: Far) -> None:
    exit, said = far.run(
        far.command(script(TREE + FOREVER)), poll=lambda: Poll.END if "main" in noted(far.notes) else Poll.GO_ON
    )
    assert exit.ended_by == "lingering"
    assert (said.ended_by, said.returncode) == ("lifeline", -signal.SIGTERM)
    assert len(said.survivors) == len(TREE_ROLES) - 1
    assert set(noted(far.notes)) == TREE_ROLES
    far.assert_nothing_left()


def test_survivors_there_are_ended_and_told(far: Far) -> None:
    exit, said = far.run(far.command(script(TREE)))
    assert (exit.returncode, said.ended_by, said.returncode) == (0, "exit", 0)
    assert len(said.survivors) == len(TREE_ROLES) - 1
    far.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_when_the_client_is_killed_everything_there_ends(far: Far, number: signal.Signals) -> None:
    closed = far.here / "closed"
    closer = Closer(("/usr/bin/touch", str(closed)))
    process = far.begin(far.spec(TREE + FOREVER, closers=(closer,)))
    try:
        wait_until(lambda: "main" in noted(far.notes), "the tree")
        agent = far.agent()
        assert mark_of(noted(far.notes)["daemon"][0]) is not None
        process.send_signal(number)
        assert process.wait() == -number
        wait_until(lambda: not running(agent), "the end of the agent")
        assert closed.exists()
        far.assert_nothing_left()
    finally:
        finish(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_agent_that_is_signalled_ends_everything_and_says_so(far: Far, number: signal.Signals) -> None:
    process = far.begin(far.spec(TREE + FOREVER))
    try:
        wait_until(lambda: "main" in noted(far.notes), "the tree")
        os.kill(far.agent()[0], number)
        assert process.wait() == 128 + signal.SIGTERM
        assert far.events()[-1]["ended_by"] == number.name
        far.assert_nothing_left()
    finally:
        finish(process)


def test_when_nobody_reads_its_output_everything_ends(far: Far) -> None:
    process = far.begin(far.spec(TREE + FOREVER), relayed=False)
    try:
        wait_until(lambda: "main" in noted(far.notes), "the tree")
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
        assert far.events()[-1]["ended_by"] == "output closed"
        far.assert_nothing_left()
    finally:
        finish(process)


def test_when_the_agent_is_killed_its_guards_end_everything(far: Far) -> None:
    closed, cwd = far.here / "closed", far.there / "made"
    closer = Closer(("/usr/bin/touch", str(closed)))
    process = far.begin(far.spec(TREE + FOREVER, closers=(closer,), cwd=str(cwd)))
    try:
        wait_until(lambda: "main" in noted(far.notes), "the tree")
        assert cwd.is_dir()
        os.kill(far.agent()[0], signal.SIGKILL)
        far.assert_nothing_left()
        wait_until(closed.exists, "the closer")
        wait_until(lambda: not cwd.exists(), "the end of the directory")
    finally:
        finish(process)


def test_when_agent_and_guards_were_killed_the_next_agent_ends_everything(far: Far) -> None:
    closed, cwd = far.here / "closed", far.there / "made"
    closer = Closer(("/usr/bin/touch", str(closed)))
    process = far.begin(far.spec(TREE + FOREVER, closers=(closer,), cwd=str(cwd)))
    try:
        wait_until(lambda: "main" in noted(far.notes), "the tree")
        agent = far.agent()
        os.kill(agent[0], signal.SIGSTOP)
        guards = far.guards(agent[0])
        assert len(guards) == 2
        for pid in (*guards, agent[0]):
            os.kill(pid, signal.SIGKILL)
        finish(process)
        _, said = far.run(far.command(["true"]))
        assert said.returncode == 0
        assert any("pid " in sentence for sentence in said.reaped)
        assert any(str(closed) in sentence for sentence in said.reaped)
        assert closed.exists()
        assert not cwd.exists()
        far.assert_nothing_left()
    finally:
        finish(process)


def test_a_stopped_connection_stops_neither_the_command_nor_its_end(far: Far) -> None:
    # A pipe that nobody reads is full after 64 KiB.
    process = far.begin(far.spec("os.write(1, b'x' * 500_000); note('written'); " + FOREVER))
    try:
        wait_until(lambda: "written" in noted(far.notes), "the output")
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: not running(noted(far.notes)["written"]), "the end of the command")
    finally:
        finish(process)
    far.assert_nothing_left()


def test_the_timeout_holds_there_as_well(far: Far) -> None:
    spec = {**far.spec("note('main'); " + FOREVER), "timeout_s": 1.0}
    process = far.begin(spec)
    try:
        process.wait(60)
        assert far.events()[-1]["ended_by"] == "timeout"
        far.assert_nothing_left()
    finally:
        finish(process)


def test_a_mark_that_came_with_the_environment_is_not_passed_on(far: Far) -> None:
    # srun hands the whole environment over, the mark of the pytest side in it.
    inherited = new_mark("pytest")
    argv = agent_argv(sys.executable)
    body = "print(os.environ['R1PERF_RUN_ID'], flush=True)"
    closed = far.here / "closed"
    closer = Closer(("/bin/sh", "-c", f"echo ${{R1PERF_RUN_ID-none}} > '{closed}'"))
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **marked_environment(inherited)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(payload(far.spec(body, closers=(closer,))))
    process.stdin.flush()
    assert process.stdout.readline().decode().startswith("test-")
    finish(process)
    assert closed.read_text() == "none\n"


def test_a_broken_off_payload_starts_nothing(far: Far) -> None:
    data = payload(far.spec("note('main')"))
    done = subprocess.run(agent_argv(sys.executable), input=data[:-100], capture_output=True, check=False, timeout=60)
    assert done.returncode != 0
    assert noted(far.notes) == {}
