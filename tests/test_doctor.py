"""The doctor's checks on hosts by hand and on this one, its text, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.doctor import Check, Status, node_checks
from pytest_r1perf.doctor.data import NotShareGpt, conversations, dataset_checks, disk_checks, is_usable, lease_check
from pytest_r1perf.doctor.network import meeting_checks
from pytest_r1perf.doctor.ports import port_checks
from pytest_r1perf.doctor.processes import our_processes, session_checks
from pytest_r1perf.doctor.sglang import environment_check, model_check
from pytest_r1perf.launch.mark import RunMark, marked_environment, new_mark
from pytest_r1perf.nodeinfo import Gpu, GpuProcess, Listening, NodeInfo, Segment, SglangProcess, Shm
from pytest_r1perf.platform import Platform
from pytest_r1perf.report.doctor import doctor_text
from tests.hosts import ib, node
from tests.project import Project, make_environment, sharegpt

CPU = load_catalog().platform("cpu")
H200 = load_catalog().platform("h200x8")
PAIR = load_catalog().platform("h200x16")


def gpu(index: int = 0, **more: Any) -> Gpu:
    given: dict[str, Any] = {
        "driver": "580.159.04",
        "memory_total_mib": 143771.0,
        "memory_used_mib": 4.0,
        "sm_clock_mhz": 345.0,
        "sm_clock_max_mhz": 1980.0,
        "app_clock_mhz": 1980.0,
        "app_clock_default_mhz": 1980.0,
        "clock_reasons": "0x0000000000000001",
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "persistence": "Enabled",
        "mig": "Disabled",
        "ecc": "Enabled",
        "ecc_uncorrected": 0,
        "processes": (),
        **more,
    }
    return Gpu(index, f"GPU-{index:04d}", given.pop("name", "NVIDIA H200"), **given)


def gpu_node(count: int = 8, first: dict[str, Any] | None = None, **more: Any) -> NodeInfo:
    gpus = [gpu(0, **(first or {})), *(gpu(index) for index in range(1, count))]
    return node("cn01", {"eth0": "10.0.0.1/24"}, gpus=tuple(gpus), **more)


def asked(seen: NodeInfo, platform: Platform = H200, **more: Any) -> dict[str, Check]:
    checks = node_checks(seen, platform, **{"env": {}, **more})
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert bool(check.mend) == (check.status in (Status.WARN, Status.FAIL)), check
        assert "\n" not in check.text
    return {check.name: check for check in checks}


def test_a_sound_host_has_nothing_to_mend() -> None:
    adapters = tuple(ib(f"mlx5_{number}") for number in range(8))
    found = asked(gpu_node(ib_ports=adapters), PAIR)
    assert {check.status for check in found.values()} == {Status.OK}
    assert found["GPUs"].text == "8 x NVIDIA H200"
    assert found["adapters"].text.startswith("8 x InfiniBand 400 Gb/sec (4X NDR): mlx5_0:1")


def test_gpu_checks_are_skipped_with_the_reason_on_the_cpu_platform() -> None:
    found = asked(node("here", {"eth0": "10.0.0.1/24"}), CPU)
    assert (found["GPUs"].status, found["GPUs"].text) == (Status.SKIP, "platform 'cpu' uses no GPU")
    assert not {"driver", "GPU memory", "MIG"} & set(found)


GPU_CASES: list[tuple[dict[str, Any], str, Status, str]] = [
    ({"memory_used_mib": 5000.0}, "GPU memory", Status.FAIL, "no process is shown"),
    (
        {"memory_used_mib": 900.0, "processes": (GpuProcess(77, "sglang::scheduler", 880, "eve"),)},
        "GPU memory",
        Status.FAIL,
        "pid 77 of eve (sglang::scheduler, 880 MiB)",
    ),
    ({"memory_used_mib": 900.0}, "GPU memory", Status.OK, "all 8 idle"),
    ({"clock_reasons": "0x0000000000000040"}, "GPU clocks", Status.FAIL, "GPU 0 by hardware thermal throttling"),
    ({"clock_reasons": "0x0000000000000080"}, "GPU clocks", Status.FAIL, "the power brake"),
    ({"clock_reasons": "0x0000000000000004"}, "GPU clocks", Status.OK, "1980 MHz"),
    ({"clock_reasons": "0x0000000000000002"}, "GPU clocks", Status.WARN, "applications clocks setting"),
    ({"app_clock_mhz": 1500.0}, "GPU clocks", Status.WARN, "GPU 0 1500 of 1980 MHz"),
    ({"sm_clock_max_mhz": 1830.0}, "GPU clocks", Status.WARN, "1830 to 1980"),
    ({"power_limit_w": 600.0}, "GPU power", Status.WARN, "GPU 0 600 of 700 W"),
    ({"power_limit_w": None}, "GPU power", Status.SKIP, "does not tell"),
    ({"persistence": "Disabled"}, "persistence", Status.WARN, "GPU 0"),
    ({"mig": "Enabled"}, "MIG", Status.FAIL, "GPU 0"),
    ({"ecc_uncorrected": 3}, "ECC", Status.FAIL, "GPU 0"),
    ({"name": "NVIDIA H100 80GB HBM3"}, "GPUs", Status.FAIL, "NVIDIA H100 80GB HBM3, 7 x NVIDIA H200"),
]


@pytest.mark.parametrize(("first", "name", "status", "text"), GPU_CASES)
def test_one_gpu_that_is_not_as_it_should_be(first: dict[str, Any], name: str, status: Status, text: str) -> None:
    found = asked(gpu_node(first=first))
    assert found[name].status is status
    assert text in found[name].text
    others = {check.status for key, check in found.items() if key not in (name, "adapters")}
    assert others == {Status.OK}, "one trouble is one finding"


def test_the_number_of_gpus_both_ways_and_as_visible() -> None:
    assert asked(gpu_node(6))["GPUs"].status is Status.FAIL
    assert asked(gpu_node(10))["GPUs"].status is Status.WARN
    first_eight = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(7))) + ",GPU-0007"}
    assert asked(gpu_node(10, first={"mig": "Enabled"}), env=first_eight)["MIG"].status is Status.FAIL
    assert asked(gpu_node(10), env=first_eight)["GPUs"].status is Status.OK
    assert asked(gpu_node(10), env={"CUDA_VISIBLE_DEVICES": "1,2"})["GPUs"].status is Status.FAIL
    assert asked(gpu_node(8), env={"CUDA_VISIBLE_DEVICES": "-1"})["GPUs"].status is Status.FAIL
    assert asked(replace(gpu_node(), gpus=None))["GPUs"].status is Status.FAIL


def test_values_that_a_driver_does_not_tell_are_no_trouble() -> None:
    bare = Gpu(0, "GPU-0000", "NVIDIA H200")
    found = asked(replace(gpu_node(), gpus=(bare,) * 8))
    assert not [check for check in found.values() if check.status in (Status.WARN, Status.FAIL)]


LEAKED = Segment("psm_1", 5 << 20, "eve", False)
HOST_CASES: list[tuple[dict[str, Any], str, Status, str]] = [
    ({"shm": Shm(64 << 20, 64 << 20)}, "/dev/shm", Status.FAIL, "it is too small"),
    ({"shm": Shm(32 << 30, 1 << 30)}, "/dev/shm", Status.FAIL, "when the segments below are gone"),
    ({"shm": None}, "/dev/shm", Status.SKIP, "cn01"),
    (
        {
            "shm": Shm(
                1 << 39, 1 << 39, (Segment("psm_1", 5 << 20, "eve", False), Segment("psm_2", 1 << 20, "eve", True))
            )
        },
        "leaked segments",
        Status.WARN,
        "5 MiB in /dev/shm that no process has open: psm_1 (5 MiB, eve)",
    ),
    ({"shm": Shm(1 << 39, 1 << 39, (Segment("psm_1", 5 << 20, "eve", None),))}, "leaked segments", Status.OK, "none"),
    ({"memory_available": 1 << 30}, "memory", Status.WARN, "1.0 GiB of 1024.0 GiB available"),
    ({"nofile": (1024, 4096)}, "open files", Status.WARN, "65535"),
    ({"nofile": (1024, -1)}, "open files", Status.OK, "unlimited"),
    ({"numa_nodes": 2, "numa_balancing": 1}, "processors", Status.WARN, "NUMA balancing is on"),
    ({"numa_nodes": 1, "numa_balancing": 1}, "processors", Status.OK, "NUMA nodes: 1"),
    ({"memlock": (65536, 65536)}, "locked memory", Status.OK, "no adapter needs more"),
    (
        {"sglang_processes": (SglangProcess(9, 1, "eve", "sglang::scheduler_TP0"),)},
        "other SGLang",
        Status.WARN,
        "pid 9 of eve (sglang::scheduler_TP0); 1 of them lost their parent",
    ),
    ({"listening": (Listening(30000, "eve"),)}, "HTTP port", Status.WARN, "30000 (listened on by eve)"),
    ({"listening": (Listening(30236, "eve"),)}, "rendezvous ports", Status.WARN, "30236 (listened on by eve)"),
    ({"free_families": ()}, "free families", Status.WARN, "no 6 consecutive free ports"),
]


@pytest.mark.parametrize(("more", "name", "status", "text"), HOST_CASES)
def test_one_thing_of_a_host(more: dict[str, Any], name: str, status: Status, text: str) -> None:
    found = asked(gpu_node(**more))
    assert found[name].status is status
    assert text in found[name].text
    worse = {key for key, check in found.items() if check.status in (Status.WARN, Status.FAIL)}
    assert worse == ({name} if status in (Status.WARN, Status.FAIL) else set())


def test_processes_of_our_own_sessions_are_not_others() -> None:
    seen = gpu_node(sglang_processes=(SglangProcess(9, 1, "me", "sglang::scheduler_TP0"),))
    assert asked(seen, our_pids=[9])["other SGLang"].status is Status.OK


def test_ports_that_were_asked_for() -> None:
    seen = gpu_node(listening=(Listening(5003, "eve"),))
    found = {check.name: check for check in port_checks(seen, http_port=40000, dist_port=5000)}
    assert found["HTTP port"].status is Status.WARN, "clients' ports begin at 32768"
    assert "5003" in found["rendezvous ports"].text
    assert "20000" in found["rendezvous ports"].mend, "a family that is free"
    assert [check.status for check in port_checks(replace(seen, listening=None))] == [Status.SKIP]


def test_adapters_of_a_cluster() -> None:
    none = asked(gpu_node(), PAIR)["adapters"]
    assert (none.status, "TCP sockets" in none.text) == (Status.WARN, True)
    assert asked(gpu_node(), H200)["adapters"].status is Status.SKIP
    down = asked(gpu_node(ib_ports=(ib("mlx5_0", state="DOWN"),)), PAIR)["adapters"]
    assert (down.status, "mlx5_0:1 DOWN" in down.text) == (Status.FAIL, True)
    few = asked(gpu_node(ib_ports=(ib("mlx5_0"), ib("mlx5_1", state="INIT"))), PAIR)["adapters"]
    assert (few.status, "fewer than the 8 GPUs" in few.text, "mlx5_1:1 INIT" in few.text) == (Status.WARN, True, True)
    locked = asked(gpu_node(ib_ports=(ib("mlx5_0"),), memlock=(8 << 20, 8 << 20)))["locked memory"]
    assert (locked.status, "8 MiB" in locked.text) == (Status.WARN, True)


def test_network_variables() -> None:
    seen = gpu_node(ib_ports=(ib("mlx5_0"), ib("mlx5_1")))
    wrong = asked(seen, env={"NCCL_IB_HCA": "mlx5_0:1,ml5_1:1", "GLOO_SOCKET_IFNAME": ""})["network variables"]
    assert wrong.status is Status.FAIL
    assert "did you mean 'mlx5_1:1'?" in wrong.text
    assert "GLOO_SOCKET_IFNAME is empty" in wrong.text
    assert asked(seen, env={"NCCL_ALGO": " "})["network variables"].text == "NCCL_ALGO is set to nothing"
    right = asked(seen, env={"NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Ring", "PATH": "/bin"})["network variables"]
    assert (right.status, right.text) == (Status.OK, "NCCL_ALGO=Ring NCCL_IB_HCA=mlx5")
    on_cpu = asked(seen, CPU, env={"NCCL_IB_HCA": "nothing"})["network variables"]
    assert on_cpu.status is Status.WARN, "no GPU, no NCCL"


def test_nodes_that_meet() -> None:
    head, worker = node("cn01", {"eth0": "10.0.0.1/24"}, time=100.0), node("cn02", {"eth0": "10.0.0.2/24"}, time=200.0)
    found = {check.name: check for check in meeting_checks([head, worker], {})}
    assert found["rendezvous"].status is Status.OK
    assert "cn01 at 10.0.0.1; GLOO_SOCKET_IFNAME=eth0" in found["rendezvous"].text
    assert (found["host clocks"].status, "100 s apart" in found["host clocks"].text) == (Status.WARN, True)
    (alone,) = meeting_checks([head, head], {})
    assert alone.status is Status.SKIP
    (lost,) = meeting_checks([head, node("cn02", {}, route=None)], {})
    assert (lost.status, "cn02" in lost.text) == (Status.FAIL, True)


# --- processes of ours, real ones


@pytest.fixture
def marked() -> Iterator[Callable[[RunMark], int]]:
    """Starts a sleeper that carries a mark."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: RunMark) -> int:
        started.append(subprocess.Popen(["/bin/sleep", "120"], env={**os.environ, **marked_environment(mark)}))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_leftovers_of_a_dead_session_are_named_and_left_alone(marked: Callable[[RunMark], int]) -> None:
    owner = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    live_pid = marked(new_mark("doctorlive"))
    for _ in range(5):
        dead_pid = marked(replace(new_mark("doctordead"), owner_pid=int(owner.stdout), owner_start=1))
        dead, live = our_processes()
        if dead_pid in {victim.pid for victim in dead}:
            break  # else a session of another test, which runs beside us, has ended it as it should
    assert dead_pid in {victim.pid for victim in dead}
    assert dead_pid not in {victim.pid for victim in live}
    assert live_pid in {victim.pid for victim in live}
    assert live_pid not in {victim.pid for victim in dead}
    found = {check.name: check for check in session_checks(dead, live)}
    assert found["leftovers"].status is Status.WARN
    assert str(dead_pid) in found["leftovers"].text or len(dead) > 3
    assert "doctorlive" in found["sessions"].text
    assert [check.status for check in session_checks([], [])] == [Status.OK]


# --- data, model, environment


def dataset_check(path: Path, n: int, *, default: str = "sharegpt") -> Check:
    (check,) = dataset_checks(replace(CPU, datasets={"sharegpt": str(path)}), default, n, path.parent)
    return check


def test_a_data_set_that_is_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(sharegpt(30))
    assert dataset_check(path, 30).status is Status.OK
    short = dataset_check(path, 31)
    assert (short.status, "30 usable conversations of 30, and N = 31" in short.text) == (Status.FAIL, True)
    assert dataset_check(path, 31, default="another").status is Status.WARN, "another one is the workload's"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("{}", "it is no JSON list"),
        ("version https://git-lfs.github.com/spec/v1\n", "it is no JSON list"),
        (sharegpt(9)[:-30], "not complete JSON"),
        ('[{"prompt": "x"}]', "no 'conversations'"),
        ('[{"conversations": ["hello", "you"]}]', "no 'conversations'"),
        ("[]", "0 usable conversations of 0"),
    ],
)
def test_a_data_set_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    check = dataset_check(path, 9)
    assert (check.status, said in check.text) == (Status.FAIL, True), check
    assert dataset_check(tmp_path / "absent.json", 1).status is Status.FAIL


def test_a_broken_end_does_not_matter_to_who_needs_less(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(sharegpt(9)[:-30])
    assert dataset_check(path, 5).status is Status.OK


def test_an_entry_longer_than_a_piece_of_the_file(tmp_path: Path) -> None:
    rows = json.loads(sharegpt(3))
    rows[1]["conversations"][1]["value"] = "ä\n" * (2 << 20)
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    assert list(conversations(path)) == rows


_turn = st.fixed_dictionaries({"value": st.text(max_size=5)}, optional={"from": st.just("gpt")})


@settings(max_examples=60)
@given(st.lists(st.fixed_dictionaries({"conversations": st.lists(_turn, max_size=3)}), max_size=8), st.booleans())
def test_entries_are_those_of_the_whole_file(rows: list[Any], pretty: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(json.dumps(rows, indent=2 if pretty else None), encoding="utf-8")
        assert list(conversations(path)) == rows
        usable = [row for row in rows if len(row["conversations"]) >= 2]
        usable = [row for row in usable if all(len(turn["value"]) >= 2 for turn in row["conversations"][:2])]
        assert [row for row in rows if is_usable(row)] == usable


def test_a_file_that_ends_anywhere_never_hangs(tmp_path: Path) -> None:
    text = sharegpt(2)
    path = tmp_path / "data.json"
    for end in range(0, len(text), 7):
        path.write_text(text[:end])
        with pytest.raises(NotShareGpt):
            list(conversations(path))


def write_model(folder: Path) -> Platform:
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}')
    (folder / "tokenizer.json").write_text("{}")
    return replace(H200, model_path=str(folder), flags={})


def test_a_model_with_and_without_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    platform = write_model(folder)
    assert "no *.safetensors" in model_check(platform, tmp_path).text
    dummy = replace(platform, flags={"load_format": "dummy"})
    assert model_check(dummy, tmp_path).status is Status.OK
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    )
    (folder / "model-1.safetensors").write_text("x")
    (folder / "model-2.safetensors").write_text("")
    assert "1 files of the weights' index are missing, as model-2.safetensors" in model_check(platform, tmp_path).text
    (folder / "model-2.safetensors").write_text("x")
    assert model_check(platform, tmp_path).status is Status.OK
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer" in model_check(dummy, tmp_path).text
    (folder / "config.json").write_text("<html>")
    assert model_check(dummy, tmp_path).status is Status.FAIL
    assert model_check(replace(platform, model_path=str(tmp_path / "nope")), tmp_path).status is Status.FAIL


def test_missing_weights_where_the_default_recipes_load_random_ones(tmp_path: Path) -> None:
    """The platform h200x8 says nothing of weights, and its champion recipe says dummy."""
    platform = write_model(tmp_path / "model")
    recipes = {name: load_catalog().recipe(name) for name in platform.default_recipes.values()}
    assert [recipe.protocol["load_format"] for recipe in recipes.values()] == ["dummy"]
    (champion,) = recipes.values()
    found = model_check(platform, tmp_path, [champion])
    assert (found.status, "random weights, none are read" in found.text) == (Status.OK, True), found
    real = replace(champion, protocol={})
    assert model_check(platform, tmp_path, [champion, real]).status is Status.FAIL
    assert model_check(platform, tmp_path, [replace(real, flags={"load_format": "dummy"})]).status is Status.OK
    assert model_check(platform, tmp_path).status is Status.WARN  # a test's recipe decides
    stated = replace(platform, flags={"load_format": "auto"})
    assert model_check(stated, tmp_path).status is Status.FAIL
    assert model_check(stated, tmp_path, [champion]).status is Status.OK


def test_an_unset_variable_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MODEL", raising=False)
    check = model_check(H200, tmp_path)
    assert "the environment variable MODEL is not set" in check.text
    assert check.mend.startswith("export it")


def test_the_environment(tmp_path: Path) -> None:
    good = make_environment(tmp_path / "env", control=tmp_path / "control.json", version="0.5.9")
    check = environment_check(CPU, str(good), tmp_path)
    assert (check.status, "sglang 0.5.9" in check.text) == (Status.OK, True), check
    bare = make_environment(tmp_path / "bare", control=tmp_path / "control.json", version=None)
    check = environment_check(CPU, str(bare), tmp_path)
    assert (check.status, "has no sglang" in check.text) == (Status.FAIL, True)
    assert environment_check(CPU, str(tmp_path / "absent"), tmp_path).status is Status.FAIL
    assert environment_check(H200, None, tmp_path).status is Status.FAIL
    in_container = replace(H200.launch, container=replace(H200.launch.container, image="lmsysorg/sglang:v0.5.20"))
    assert environment_check(replace(H200, launch=in_container), None, tmp_path).status is Status.SKIP
    # As a run does: the container before the platform's own environment, and --sglang before both.
    both = replace(H200, launch=in_container, sglang=str(tmp_path / "absent"))
    assert environment_check(both, None, tmp_path).status is Status.SKIP
    assert environment_check(both, str(good), tmp_path).status is Status.OK
    assert environment_check(H200, "image:lmsysorg/sglang:v0.5.20", tmp_path).status is Status.SKIP


def test_disk_and_leases(tmp_path: Path) -> None:
    results, caches = disk_checks(tmp_path / "not" / "yet" / "there", tmp_path)
    assert results.status is not Status.FAIL
    assert "free" in caches.text
    assert lease_check(tmp_path / "leases").status is Status.OK
    (tmp_path / "file").write_text("")
    unfit = lease_check(tmp_path / "file")
    assert (unfit.status, "no directory" in unfit.text) == (Status.FAIL, True)


# --- text and command


def test_the_text_says_how_to_mend_and_what_it_comes_to() -> None:
    checks = [
        Check("memory", Status.OK, "all of it"),
        Check("MIG", Status.FAIL, "GPU 0: on", "ask for whole GPUs"),
        Check("GPUs", Status.SKIP, "none"),
        Check("long", Status.WARN, "word " * 60, "do " * 60),
    ]
    text = doctor_text(checks, platform="h200x8", hosts=["cn01", "cn02"])
    lines = text.splitlines()
    assert lines[0] == "r1perf doctor: platform h200x8 on cn01, cn02"
    assert lines[2:4] == ["OK    memory  all of it", "FAIL  MIG     GPU 0: on"]
    assert lines[4:6] == [" " * 14 + "mend: ask for whole GPUs", "SKIP  GPUs    none"]
    assert lines[-1] == "1 OK, 1 WARN, 1 FAIL, 1 SKIP: mend what FAILs, a run would break or its numbers be wrong"
    assert max(map(len, lines)) <= 118
    assert sum(line.count("word") for line in lines) == 60
    assert doctor_text(checks[:1], platform="cpu", hosts=["x"]).endswith("1 OK: ready")
    assert "see the warnings" in doctor_text([checks[0], checks[3]], platform="cpu", hosts=["x"])


def doctor(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from pytest_r1perf.doctor.commands import doctor_command; doctor_command()"
    argv = [sys.executable, "-c", code, "--lease-dir", "leases", *arguments]
    return subprocess.run(argv, cwd=project.root, capture_output=True, text=True, check=False, timeout=120)


def test_the_command_on_this_host(r1perf_project: Project) -> None:
    done = doctor(r1perf_project, "--n", "120")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"r1perf doctor: platform cpu on {os.uname().nodename}")
    rows = {line[6:].partition("  ")[0].strip(): line[:4].strip() for line in lines if line[:4].strip() in set(Status)}
    wanted = {
        "versions",
        "sglang",
        "model",
        "data set sharegpt",
        "leftovers",
        "memory",
        "/dev/shm",
        "leases",
        "results",
    }
    assert wanted <= set(rows)
    assert rows["GPUs"] == "SKIP"
    for name in ("versions", "sglang", "model", "data set sharegpt", "leases"):
        assert rows[name] == "OK", done.stdout
    assert done.returncode == (1 if "FAIL" in rows.values() else 0)


def test_the_command_fails_when_a_check_does(r1perf_project: Project) -> None:
    r1perf_project.dataset.unlink()
    done = doctor(r1perf_project, "--n", "5")
    assert done.returncode == 1
    assert "FAIL  data set sharegpt" in done.stdout
    assert "mend: give its path" in done.stdout


def test_a_platform_of_gpus_says_what_is_missing_here(r1perf_project: Project) -> None:
    done = doctor(r1perf_project, "--platform", "h200x8")
    assert done.returncode == 1
    assert "FAIL  GPUs" in done.stdout
    assert "FAIL  sglang" in done.stdout
    assert "Traceback" not in done.stderr
