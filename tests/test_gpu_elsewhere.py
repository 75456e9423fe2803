"""GPUs of other hosts: free before, watched beside, judged after.

The agent, the command and `nvidia-smi` are real processes; that `nvidia-smi` says what one of two H200s (driver 580)
said, and takes no other options.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.elsewhere import load, watch_of
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.gpu.occupancy import IDLE_BYTES, IDLE_SHARE
from pytest_r1perf.launch import proc
from pytest_r1perf.launch.process import Exit, Poll
from pytest_r1perf.launch.ranks import Told
from pytest_r1perf.launch.smi import Idle, Smi, not_free
from pytest_r1perf.sglang.log import Phase, read_log
from tests.processes import noted, running, script, wait_until
from tests.test_agent import FOREVER, Far, Login, finish

RECORDED = Path(__file__).with_name("recorded")
GPU_A = "GPU-0b70262b-4584-216d-173c-c007ebf5dbca"
GPU_B = "GPU-de67c1a6-4020-c891-f8a1-6c11341b94f1"
HOST_PIDS = proc.pid_namespace() == "pid:[4026531836]"
HW_THERMAL = "0x0000000000000048"
GONE = 2**22 + 1
"""A pid that no Linux gives."""

H200 = {
    "name": "NVIDIA H200",
    "index": "0",
    "clocks.max.sm": "1980",
    "clocks.max.mem": "3201",
    "enforced.power.limit": "700.00",
    "persistence_mode": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.total": "143771",
    "memory.free": "143156",
    "memory.reserved": "616",
    "memory.used": "0",
    "clocks.sm": "1980",
    "clocks.mem": "3201",
    "power.draw": "137.60",
    "temperature.gpu": "41",
    "utilization.gpu": "98",
    "clocks_event_reasons.active": "0x0000000000000000",
    "clocks_throttle_reasons.active": "0x0000000000000000",
}

NVIDIA_SMI = f"""#!{sys.executable} -IS
import json, os, sys, time
from pathlib import Path
here = Path(sys.argv[0]).parent
OPTIONS = ("-l", "1", "--format=csv,noheader,nounits")
def state():
    return json.loads((here / "state.json").read_text())
for item in sys.argv[1:]:
    if not item.startswith(("--query-gpu=", "--query-compute-apps=", "--id=GPU-")) and item not in OPTIONS:
        print(f"ERROR: Option {{item}} is not recognized. Please run 'nvidia-smi -h' for help.")
        sys.exit(6)
options = dict(item.split("=", 1) for item in sys.argv[1:] if "=" in item)
if state()["broken"]:
    print(state()["broken"])
    sys.exit(9)
if "--query-compute-apps" in options:
    print(state()["apps"])
    sys.exit()
fields = options["--query-gpu"].split(",")
wanted = options["--id"].split(",")
for name in fields:
    if name in state()["unknown"]:
        print(f'Field "{{name}}" is not a valid field to query.\\n')
        sys.exit(2)
looped = "-l" in sys.argv
if looped:
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (here / "loop").write_text(f"loop {{os.getpid()}} {{start}}\\n")
count = 0
while True:
    gpus = state()["gpus"]
    for uuid in wanted:
        if uuid in gpus:
            print(", ".join(uuid if name == "uuid" else gpus[uuid][name] for name in fields), flush=True)
    if not looped:
        break
    count += 1
    (here / "count.new").write_text(str(count))
    (here / "count.new").rename(here / "count")
    if count == state()["dies_after"]:
        print("Unable to determine the device handle for GPU0000:06:00.0: GPU is lost.", flush=True)
        sys.exit(15)
    time.sleep(0.05)
"""

# The command: rows(n) waits until nvidia-smi has looked n times more.
BENCH = """
import json
SMI = Path(os.environ["SMI"])
def looks():
    return int((SMI / "count").read_text()) if (SMI / "count").exists() else 0
def rows(more):
    until = looks() + more
    while looks() < until:
        time.sleep(0.01)
def change(**values):
    state = json.loads((SMI / "state.json").read_text())
    state["gpus"][UUID].update(values)
    (SMI / "state.new").write_text(json.dumps(state))
    (SMI / "state.new").rename(SMI / "state.json")
note("main")
"""
PLAIN = "print('loading'); print('Benchmark...', flush=True); rows(25); print('result')"


@dataclass
class Node(Far):
    """A node with this `nvidia-smi` on its PATH."""

    folder: Path
    state: Path = field(init=False)
    gpus: dict[str, dict[str, str]] = field(default_factory=lambda: {uuid: dict(H200) for uuid in (GPU_A, GPU_B)})
    apps: str = ""
    unknown: tuple[str, ...] = ()
    broken: str = ""
    dies_after: int = 0
    installed: bool = True

    def __post_init__(self) -> None:
        super().__init__(self.folder)
        self.smi = self.folder / "smi"
        self.smi.mkdir()

    def write(self) -> None:
        names = ("gpus", "apps", "unknown", "broken", "dies_after")
        scratch = self.smi / "state.test"
        scratch.write_text(json.dumps({name: getattr(self, name) for name in names}))
        scratch.replace(self.smi / "state.json")

    def install(self) -> str:
        """Its PATH."""
        self.write()
        if self.installed:
            program = self.smi / "nvidia-smi"
            program.write_text(NVIDIA_SMI)
            program.chmod(0o755)
        return f"{self.smi}:/usr/bin:/bin"

    def bench(self, body: str = PLAIN, *, gpus: Sequence[str] = (GPU_A, GPU_B), greeting: str = "", **more: Any) -> Any:
        login = Login(variables={"PATH": self.install()}, greeting=greeting)
        env = {"R1PERF_TEST_NOTES": str(self.notes), "SMI": str(self.smi)}
        command = self.command(script(f"UUID = {GPU_A!r}\n" + BENCH + body), env=env, gpus=tuple(gpus))
        return self.run(command, elsewhere=login, **more)

    def watched(self, seconds: float = 0.5, gpus: Mapping[int, Sequence[str]] | None = None) -> Watched:
        marks = read_log(self.here / "log.txt").phases
        (line,) = (mark.line_no for mark in marks if mark.phase is Phase.BENCHMARK)
        return watch_of(self.here, gpus or {0: (GPU_A, GPU_B)}, line, seconds)

    def loop(self) -> tuple[int, int]:
        """The `nvidia-smi` that looks again and again."""
        return noted(self.smi / "loop")["loop"]

    def assert_none_left(self) -> None:
        self.assert_nothing_left()
        if (self.smi / "loop").exists():
            wait_until(lambda: not running(self.loop()), "the end of nvidia-smi")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    monkeypatch.setenv("TMPDIR", str(node.temporary))
    return node


def host() -> str:
    return os.uname().nodename


# -- beside the command
# --------------------------------------------------------------------------------------------


def test_free_gpus_are_used_and_watched(node: Node) -> None:
    exit: Exit
    exit, said = node.bench()
    assert (exit.returncode, said.returncode, said.problems, said.survivors) == (0, 0, (), ())
    assert said.files == (node.here / "telemetry-rank0.jsonl",)
    watched = node.watched()
    assert (watched.throttled, watched.remarks) == ((), ())
    gpus: Any = watched.record["gpus"]
    assert set(gpus) == {GPU_A, GPU_B}
    assert gpus[GPU_A]["samples"] > 0
    assert gpus[GPU_A]["sm_mhz"] == {"min": 1980, "median": 1980, "max": 1980}
    assert gpus[GPU_A]["power_w"]["max"] == 137.6
    assert gpus[GPU_A]["max_sm_mhz"] == 1980
    assert gpus[GPU_A]["persistence"] is True
    assert watched.record["window_s"] == 0.5
    node.assert_none_left()


THROTTLED = f"change(**{{'clocks.sm': '990', 'clocks_event_reasons.active': {HW_THERMAL!r}}}); rows(5)"
RESTORED = "change(**{'clocks.sm': '1980', 'clocks_event_reasons.active': '0x0000000000000000'}); rows(10)"
OPEN = "print('Benchmark...', flush=True); rows(25)"


def test_throttling_in_the_window_is_no_measurement(node: Node) -> None:
    node.bench("\n".join(["print('loading', flush=True)", THROTTLED, OPEN, RESTORED]))
    (sentence,) = node.watched().throttled
    assert f"{host()}: NVIDIA H200 {GPU_A} was slowed down by hardware thermal throttling" in sentence
    assert "SM clock down to 990 of 1980 MHz" in sentence


def test_throttling_before_or_after_the_window_is_none_of_it(node: Node) -> None:
    node.bench("\n".join(["print('loading', flush=True)", THROTTLED, RESTORED, OPEN, THROTTLED]))
    assert node.watched(0.05).throttled == ()
    assert node.watched(600).throttled != (), "it is in the file"


def test_what_a_login_prints_first_does_not_move_the_window(node: Node) -> None:
    """With so long a greeting any place in the log would be beyond the command's own output."""
    node.bench("\n".join(["print('loading', flush=True)", THROTTLED, RESTORED, OPEN]), greeting="welcome " * 100)
    assert (node.here / "log.txt").read_text().startswith("welcome")
    watched = node.watched()
    assert (watched.throttled, watched.remarks) == ((), ())
    assert watched.record["overall"] != {"samples": 0}


def test_an_older_driver_is_asked_by_older_names(node: Node) -> None:
    node.unknown = ("clocks_event_reasons.active", "enforced.power.limit", "memory.reserved")
    node.gpus[GPU_A] |= {"clocks_throttle_reasons.active": HW_THERMAL, "power.limit": "650.00"}
    node.gpus[GPU_B]["power.limit"] = "650.00"
    exit, _ = node.bench()
    assert exit.returncode == 0
    watched = node.watched()
    assert len(watched.throttled) == 1
    gpus: Any = watched.record["gpus"]
    assert gpus[GPU_B]["power_limit_w"] == 650


def test_without_nvidia_smi_it_runs_and_says_so(node: Node) -> None:
    node.installed = False
    exit, said = node.bench("print('Benchmark...', flush=True)")
    assert (exit.returncode, said.problems) == (0, ())
    assert node.watched().remarks == (
        f"telemetry: none of {host()}, since there is no nvidia-smi on the PATH there: throttling would not be seen",
    )


def test_an_nvidia_smi_that_fails_is_a_remark(node: Node) -> None:
    node.broken = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit, said = node.bench("print('Benchmark...', flush=True)")
    assert (exit.returncode, said.problems) == (0, ())
    (remark,) = node.watched().remarks
    assert f"none of {host()}" in remark
    assert "couldn't communicate" in remark


def test_one_that_dies_meanwhile_leaves_a_gap(node: Node) -> None:
    node.dies_after = 3
    exit, _ = node.bench("while looks() < 3: time.sleep(0.01)\ntime.sleep(0.3); print('Benchmark...', flush=True)")
    assert exit.returncode == 0
    watched = node.watched(30)
    assert watched.throttled == ()
    assert len(watched.remarks) == 2
    for remark in watched.remarks:
        assert "no reading of GPU-" in remark
        assert "nvidia-smi there ended" in remark
        assert "GPU is lost" in remark


def test_what_was_seen_until_the_end_came_is_there(node: Node) -> None:
    """The connection is given up here, as at a timeout."""

    def poll() -> Poll:
        return Poll.END if "Benchmark" in (node.here / "log.txt").read_text() else Poll.GO_ON

    _, said = node.bench(f"rows(5); print('Benchmark...', flush=True); {FOREVER}", poll=poll)
    assert said.ended_by == "lifeline"
    assert load(node.here / "telemetry-rank0.jsonl").readings
    node.assert_none_left()


def test_when_the_agent_is_killed_nvidia_smi_ends_too(node: Node) -> None:
    node.install()
    spec = node.spec("note('main'); " + FOREVER, gpus=(GPU_A,))
    spec["idle"] = {"wait_s": 0, "bytes": IDLE_BYTES, "share": IDLE_SHARE}
    os.environ["PATH"], before = f"{node.smi}:{os.environ['PATH']}", os.environ["PATH"]
    try:
        process = node.begin(spec, relayed=False)
    finally:
        os.environ["PATH"] = before
    try:
        wait_until(lambda: (node.smi / "count").exists() and "main" in noted(node.notes), "nvidia-smi")
        assert running(node.loop())
        os.kill(node.agent()[0], signal.SIGKILL)
        node.assert_none_left()
    finally:
        finish(process)


# -- before the command
# --------------------------------------------------------------------------------------------


def not_started(node: Node, said: Told) -> str:
    (problem,) = said.problems
    assert problem.startswith(f"{host()}: ")
    assert (said.started, said.returncode, said.files) == (False, None, ())
    assert noted(node.notes) == {}
    node.assert_none_left()
    return problem


def test_a_gpu_that_somebody_uses_is_named_and_nothing_is_started(node: Node) -> None:
    node.apps = (RECORDED / "nvidia_smi_apps_h200x2.csv").read_text().strip()
    node.gpus[GPU_A]["memory.free"] = "141513"
    exit, said = node.bench()
    assert exit.returncode == 125
    problem = not_started(node, said)
    assert f"1 GPU is not free after 0 s: {GPU_A} has 1642 of 143771 MiB taken: pid 610" in problem
    assert "(python3) with 1634 MiB" in problem
    assert GPU_B not in problem


def test_a_process_of_another_gpu_does_not_count(node: Node) -> None:
    node.apps = (RECORDED / "nvidia_smi_apps_h200x2.csv").read_text().strip()
    node.gpus[GPU_A]["memory.free"] = "141513"
    exit, said = node.bench(gpus=(GPU_B,))
    assert (exit.returncode, said.problems) == (0, ())


@pytest.mark.skipif(not HOST_PIDS, reason="nvidia-smi's pids are the host's, which are not shown here")
def test_the_owner_is_named(node: Node) -> None:
    node.apps = f"{GPU_A}, {os.getpid()}, [Not Found], 1634"
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert f"pid {os.getpid()} of {user} (" in not_started(node, node.bench()[1])


def test_pids_of_another_namespace_are_not_taken_for_ours(node: Node) -> None:
    node.apps = f"{GPU_A}, {GONE}, [Not Found], [N/A]"
    assert f"pid {GONE} (no name) with an unknown amount" in not_started(node, node.bench()[1])


def test_a_gpu_in_mig_mode_is_refused_at_once(node: Node) -> None:
    node.gpus[GPU_B]["mig.mode.current"] = "Enabled"
    _, said = node.bench(gpu_wait_s=600)
    assert f"NVIDIA H200 {GPU_B} is in MIG mode" in not_started(node, said)


def test_a_gpu_that_is_not_there_is_refused(node: Node) -> None:
    del node.gpus[GPU_B]
    assert f"{GPU_B} is not shown by nvidia-smi there" in not_started(node, node.bench()[1])


def test_memory_that_comes_back_is_waited_for(node: Node) -> None:
    node.gpus[GPU_A]["memory.free"] = "20000"

    def poll() -> Poll:
        text = (node.here / "launch-rank0.txt").read_text()
        if "waiting" in text and f"{GPU_A} has 123155 of 143771 MiB" in text:
            node.gpus[GPU_A]["memory.free"] = "143156"
            node.write()
        return Poll.GO_ON

    exit, said = node.bench(poll=poll, gpu_wait_s=600)
    assert (exit.returncode, said.problems) == (0, ())
    assert "main" in noted(node.notes)


def test_the_end_of_the_run_ends_the_wait(node: Node) -> None:
    node.gpus[GPU_A]["memory.free"] = "20000"

    def poll() -> Poll:
        return Poll.END if "waiting" in (node.here / "launch-rank0.txt").read_text() else Poll.GO_ON

    _, said = node.bench(poll=poll, gpu_wait_s=600)
    assert (said.ended_by, said.returncode, said.problems) == ("lifeline", None, ())
    assert noted(node.notes) == {}
    node.assert_none_left()


@pytest.mark.parametrize(
    ("total", "taken", "free"),
    [(143771, 2875, True), (143771, 2876, False), (16384, 1024, True), (16384, 1025, False)],
    ids=["below 2 %", "above 2 %", "1 GiB", "above 1 GiB"],
)
def test_a_rest_without_a_process_may_be_as_small_as_here(node: Node, total: int, taken: int, free: bool) -> None:
    node.gpus[GPU_A] |= {"memory.total": str(total), "memory.free": str(total - taken - 616)}
    smi = Smi((GPU_A,), {**os.environ, "PATH": node.install()}, lambda: True)
    sentence = not_free(smi, Idle(0, IDLE_BYTES, IDLE_SHARE), waiting=lambda _: None)
    assert (sentence is None) == free
    assert free or "no process that the driver shows" in str(sentence)


# -- from the files alone
# --------------------------------------------------------------------------------------------

LOG = "loading\nBenchmark...\nresult\n"


def save(folder: Path, rank: int, uuid: str, *, host: str, began: float, bad: float | None = None, **head: Any) -> None:
    """10 s of readings from `began` on; the one at `bad` seconds throttled. `Benchmark...` came after 4 s."""
    told = {"format": 1, "host": host, "began": began, "period_s": 1, "note": "", "gpus": [{"uuid": uuid}], **head}
    marks = [{"at": began + 1, "output": 8}, {"at": began + 4, "output": 21}, {"at": began + 9, "output": 28}]
    rows = [{"at": began + at, "uuid": uuid, "sm_mhz": 1980, "reasons": 0x40 * (at == bad)} for at in range(11)]
    lines = [told, *marks, *([] if told["note"] else rows)]
    (folder / f"telemetry-rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text(LOG)


def two(folder: Path, **rank1: Any) -> Watched:
    save(folder, 0, GPU_A, host="n0", began=1000.0)
    save(folder, 1, GPU_B, **{"host": "n1", "began": 1000.4, **rank1})
    return watch_of(folder, {0: (GPU_A,), 1: (GPU_B,)}, 2, 5.0)


@pytest.mark.parametrize(("bad", "spoilt"), [(3, False), (4, True), (8, True), (10, False)])
def test_the_window_is_from_the_line_on(tmp_path: Path, bad: int, spoilt: bool) -> None:
    save(tmp_path, 0, GPU_A, host="n0", began=1000.0, bad=bad)
    watched = watch_of(tmp_path, {0: (GPU_A,)}, 2, 5.0)
    assert bool(watched.throttled) == spoilt
    assert watched.remarks == ()


def test_another_hosts_gpus_are_judged_too(tmp_path: Path) -> None:
    assert two(tmp_path) == two(tmp_path)
    assert (two(tmp_path).throttled, two(tmp_path).remarks) == ((), ())
    (sentence,) = two(tmp_path, bad=6).throttled
    assert sentence.startswith(f"n1: GPU {GPU_B} was slowed down")


@pytest.mark.parametrize(("bad", "spoilt"), [(2, False), (6, True), (10, False)])
def test_a_clock_that_is_an_hour_off_is_allowed_for(tmp_path: Path, bad: int, spoilt: bool) -> None:
    watched = two(tmp_path, began=4600.0, bad=bad)
    assert bool(watched.throttled) == spoilt
    (remark,) = watched.remarks
    assert "the clocks of n0 and n1 differ" in remark
    assert "moved by -3600.0 s" in remark


def test_two_ranks_of_one_host_have_one_clock(tmp_path: Path) -> None:
    """The second agent came up 6 s later, and its GPU was slow 1 s after that: 7 s in the first one's words."""
    watched = two(tmp_path, host="n0", began=1006.0, bad=1)
    assert len(watched.throttled) == 1
    assert not any("clocks of" in remark for remark in watched.remarks)


def test_a_node_without_readings_does_not_hide_another(tmp_path: Path) -> None:
    watched = two(tmp_path, note="there is no nvidia-smi on the PATH there")
    assert watched.remarks == (
        "telemetry: none of n1, since there is no nvidia-smi on the PATH there: throttling would not be seen",
    )
    assert set(watched.record["gpus"]) == {GPU_A}  # type: ignore[call-overload]


def test_a_file_that_did_not_come_is_a_remark(tmp_path: Path) -> None:
    save(tmp_path, 0, GPU_A, host="n0", began=1000.0, bad=6)
    watched = watch_of(tmp_path, {0: (GPU_A,), 1: (GPU_B,)}, 2, 5.0)
    assert len(watched.throttled) == 1
    (remark,) = watched.remarks
    assert "none of rank 1, since telemetry-rank1.jsonl did not come back" in remark


@pytest.mark.parametrize("line", [None, 2, 99])
def test_without_a_window_nothing_is_judged(tmp_path: Path, line: int | None) -> None:
    (tmp_path / "log.txt").write_text(LOG)
    watched = watch_of(tmp_path, {0: (GPU_A,)}, line, 5.0)
    assert (watched.record, watched.throttled) == ({}, ())
    assert len(watched.remarks) == 1


def test_on_a_cpu_nothing_is_said(tmp_path: Path) -> None:
    assert watch_of(tmp_path, {0: (), 1: ()}, 2, 5.0) == Watched()


@given(st.text())
def test_any_other_file_is_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "other.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(R1PerfError, match="is no telemetry"):
        load(path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 0, GPU_A, host="n0", began=1000.0, format=2)
    with pytest.raises(R1PerfError, match="newer pytest-r1perf"):
        load(tmp_path / "telemetry-rank0.jsonl")
