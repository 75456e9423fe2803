"""The CPU rig's parts that need no rig: files made twice, interrupted installs, refusals."""

from __future__ import annotations

import gc
import hashlib
import importlib
import inspect
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import types
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.errors import EnvironmentBroken, R1PerfError
from pytest_r1perf.rig import install as installing
from pytest_r1perf.rig.commands import dataset_group, model_group, rig_group
from pytest_r1perf.rig.dataset import make_dataset
from pytest_r1perf.rig.home import home, interpreter, rig_dir
from pytest_r1perf.rig.install import check_host, copy_standins, forget_half_installed, install, rig_state
from pytest_r1perf.rig.model import make_model
from pytest_r1perf.rig.pins import known_versions, load_pins
from pytest_r1perf.rig.record import claim
from pytest_r1perf.rig.standins import collector, mla_dispatch
from pytest_r1perf.rig.standins.finder import AbsentFinder, AbsentPackage, AdditionFinder
from pytest_r1perf.rig.standins.sgl_kernel import make as make_absent
from pytest_r1perf.rig.standins.triton import LACKS
from pytest_r1perf.rig.standins.triton import make as make_triton
from pytest_r1perf.rig.steps import STATE_FOLDER, Step, StepRunner
from pytest_r1perf.rig.tokenizer import train

# The default model and data set are part of what a stored CPU baseline means: a change here is a new workload.
MODEL_DIGEST = "5ce6584839cde3ee"
DATASET_DIGEST = "6e6cfd39b3604c43"


class Screen:
    """Collects what an install says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str, *, nl: bool = True) -> None:  # noqa: ARG002
        self.lines.append(message)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


# home


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("R1PERF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "cache" / "pytest-r1perf"
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "own"))
    assert interpreter(rig_dir("0.5.9")) == tmp_path / "own" / "rig" / "sglang-0.5.9" / "bin" / "python"


# the model and the data set


def test_the_model_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    made = [make_model(tmp_path / name) for name in ("one", "two")]
    first, second = ({path.name: path.read_bytes() for path in sorted(folder.iterdir())} for folder in made)
    assert first == second
    assert _digest(*sorted(made[0].iterdir())) == MODEL_DIGEST
    config = json.loads(first["config.json"])
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["rope_scaling"]["type"] == "yarn"
    assert config["vocab_size"] == len(json.loads(first["tokenizer.json"])["model"]["vocab"])


def test_weights_without_a_rig_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match="r1perf rig install"):
        make_model(tmp_path, weights=True)
    with pytest.raises(EnvironmentBroken, match="could not write the weights"):
        make_model(tmp_path, weights=True, python=Path("/bin/false"))


def test_the_data_set_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    make_dataset(tmp_path / "one.json")
    make_dataset(tmp_path / "two.json")
    assert _digest(tmp_path / "one.json") == _digest(tmp_path / "two.json") == DATASET_DIGEST


@settings(max_examples=15, deadline=None)
@given(mean_in=st.floats(2, 300), mean_out=st.floats(2, 300), sigma=st.floats(0, 1.5), seed=st.integers(0, 2**32))
def test_the_stated_statistics_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, mean_in: float, mean_out: float, sigma: float, seed: int
) -> None:
    path = tmp_path_factory.mktemp("data") / "d.json"
    stated = make_dataset(
        path,
        num_conversations=40,
        mean_input_tokens=mean_in,
        mean_output_tokens=mean_out,
        sigma=sigma,
        max_tokens=400,
        seed=seed,
    )
    conversations = [entry["conversations"] for entry in json.loads(path.read_text())]
    assert [[turn["from"] for turn in turns] for turns in conversations] == [["human", "gpt"]] * 40
    lengths = [[train().count(turn["value"]) for turn in turns] for turns in conversations]
    assert min(min(pair) for pair in lengths) >= 2
    inputs, outputs = zip(*lengths, strict=True)
    assert stated.mean_input_tokens == statistics.fmean(inputs)
    assert stated.median_output_tokens == statistics.median(outputs)
    assert (stated.max_input_tokens, stated.max_output_tokens) == (max(inputs), max(outputs))
    assert max(inputs) <= 400


def test_the_default_data_set_has_the_means_it_states(tmp_path: Path) -> None:
    stated = make_dataset(tmp_path / "d.json")
    assert stated.mean_input_tokens == pytest.approx(90, rel=0.05)
    assert stated.mean_output_tokens == pytest.approx(66, rel=0.05)
    sharegpt = make_dataset(tmp_path / "s.json", mean_input_tokens=220, mean_output_tokens=200, max_tokens=4000)
    assert sharegpt.mean_input_tokens == pytest.approx(220, rel=0.05)


@pytest.mark.parametrize(("name", "value"), [("num_conversations", 0), ("mean_input_tokens", 1), ("sigma", -1)])
def test_an_impossible_data_set_is_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(R1PerfError, match=f"{name} is {value}"):
        make_dataset(tmp_path / "d.json", **{name: value})


# pins and the host


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(R1PerfError, match=r"'0\.5\.21' has no CPU rig; did you mean '0\.5\.20'\?.*0\.5\.9"):
        load_pins("0.5.21")


@pytest.mark.parametrize("version", known_versions())
def test_every_version_pins_sglang_torch_and_transformers(version: str) -> None:
    pins = load_pins(version)
    assert pins.without_dependencies[0] == f"sglang=={version}"
    assert {"torch", "transformers"} <= {requirement.partition("==")[0] for requirement in pins.requirements}
    assert pins.environment["SGLANG_USE_CPU_ENGINE"] == "1"


def test_a_full_disk_is_seen_before_the_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: Screen
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**12, 10**12, 10**9))
    with pytest.raises(R1PerfError, match=r"1000 MB free, but the rig needs \d+ MB.*R1PERF_HOME"):
        install("0.5.20", tmp_path / "rig", echo=screen)
    assert not (tmp_path / "rig").exists()


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_another_host_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: Screen, system: str, machine: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(R1PerfError, match=f"this is {system} on {machine}"):
        check_host(load_pins("0.5.20"), tmp_path, sys.executable, echo=screen)


def test_another_python_is_refused_or_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: Screen) -> None:
    monkeypatch.setattr(installing, "_python_version", lambda _python: (3, 9))
    with pytest.raises(R1PerfError, match=r"needs Python 3\.10 to 3\.13, but .* is 3\.9"):
        check_host(load_pins("0.5.20"), tmp_path, sys.executable, echo=screen)
    monkeypatch.setattr(installing, "_python_version", lambda _python: (3, 12))
    check_host(load_pins("0.5.20"), tmp_path, sys.executable, echo=screen)
    assert screen.lines == ["note: the pins were verified with Python 3.11, not with 3.12"]


def test_a_directory_of_something_else_is_refused(tmp_path: Path, screen: Screen) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(R1PerfError, match="not a rig"):
        check_host(load_pins("0.5.20"), tmp_path, sys.executable, echo=screen)
    (tmp_path / "thesis.tex").unlink()
    claim(tmp_path, "0.5.9")
    with pytest.raises(R1PerfError, match=r"holds SGLang 0\.5\.9, not 0\.5\.20"):
        check_host(load_pins("0.5.20"), tmp_path, sys.executable, echo=screen)


# steps


def _steps(directory: Path, *, second: str = "pass") -> list[Step]:
    note = f"open({str(directory / 'ran.txt')!r}, 'a').write"
    return [
        Step("one", "first step", "a", [sys.executable, "-c", f"{note}('one ')"]),
        Step("two", "second step", second, [sys.executable, "-c", f"{second}\n{note}('two ')"]),
    ]


def test_finished_steps_are_not_run_again(tmp_path: Path, screen: Screen) -> None:
    for _ in range(2):
        StepRunner(tmp_path, echo=screen).run(_steps(tmp_path))
    assert (tmp_path / "ran.txt").read_text() == "one two "
    assert screen.lines[-2:] == ["[1/2] first step: done before", "[2/2] second step: done before"]


def test_a_changed_step_is_run_again_with_those_after_it(tmp_path: Path, screen: Screen) -> None:
    first, second = _steps(tmp_path)
    StepRunner(tmp_path, echo=screen).run([first, second])
    changed = Step(first.name, first.says, "b", first.command)
    StepRunner(tmp_path, echo=screen).run([changed, second])
    assert (tmp_path / "ran.txt").read_text() == "one two one two "


def test_a_failed_step_is_one_sentence_with_the_log_and_its_last_line(tmp_path: Path, screen: Screen) -> None:
    with pytest.raises(R1PerfError) as caught:
        StepRunner(tmp_path, echo=screen).run(_steps(tmp_path, second="raise SystemExit('no such wheel')"))
    assert "second step failed with exit code 1: 'no such wheel'" in str(caught.value)
    assert str(tmp_path / STATE_FOLDER / "install.log") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_killed_install_goes_on_after_a_repair(tmp_path: Path, screen: Screen) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from pytest_r1perf.rig.steps import Step, StepRunner\n"
        f"root = Path({str(tmp_path)!r})\n"
        "def note(text):\n    (root / 'ran.txt').open('a').write(text)\n"
        "slow = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "StepRunner(root, echo=lambda *a, **k: None).run([\n"
        "    Step('one', 'first', 'a', action=lambda: note('one ')),\n"
        "    Step('two', 'second', 'b', slow, action=lambda: note('two-begun ')),\n"
        "])\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.monotonic() + 30
    log = tmp_path / STATE_FOLDER / "install.log"
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    def note(text: str) -> None:
        with (tmp_path / "ran.txt").open("a") as file:
            file.write(text)

    StepRunner(tmp_path, echo=screen).run(
        [
            Step("one", "first", "a", action=lambda: note("one-again ")),
            Step("two", "second", "b", action=lambda: note("two "), repair=lambda: note("repaired ")),
        ]
    )
    assert (tmp_path / "ran.txt").read_text() == "one two-begun repaired two "


def test_half_installed_packages_are_forgotten(tmp_path: Path) -> None:
    for name, files in (("whole-1", ("METADATA", "INSTALLER", "RECORD")), ("half-1", ("METADATA",))):
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        for file in files:
            (folder / file).touch()
    forget_half_installed(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["whole-1.dist-info"]


# A python that answers as venv, pip, compileall and the import check do: install's own logic, in a second.
FAKE_PYTHON = """#!{python}
import sys, os
from pathlib import Path
args = sys.argv[1:]
root = Path({root!r})
with (root / "calls.txt").open("a") as calls:
    calls.write(" ".join(args[:3]) + "\\n")
if args[:2] == ["-m", "venv"]:
    target = Path(args[2])
    (target / "lib/python3.11/site-packages").mkdir(parents=True, exist_ok=True)
    (target / "bin").mkdir(exist_ok=True)
    if not (target / "bin/python").exists():
        (target / "bin/python").symlink_to(Path(__file__))
elif "--no-deps" in args and (root / "broken").exists():
    print("ERROR: No matching distribution found for sglang")
    sys.exit(1)
elif args[0].endswith("verify_rig.py"):
    Path(args[1]).write_text('{{"sglang": "0.5.20"}}')
elif args[0] == "-c":
    print(3, 11)
"""


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    path = tmp_path / "fake-python"
    path.write_text(FAKE_PYTHON.format(python=sys.executable, root=str(tmp_path)))
    path.chmod(0o755)
    return path


def test_install_stops_at_a_failure_goes_on_and_is_then_done(tmp_path: Path, fake_python: Path, screen: Screen) -> None:
    directory = tmp_path / "rig"
    (tmp_path / "broken").touch()
    with pytest.raises(R1PerfError, match="No matching distribution found for sglang"):
        install("0.5.20", directory, echo=screen, python=str(fake_python), pip_args=["--extra-index-url=file:///x"])
    assert rig_state(directory).startswith("incomplete, still to do: SGLang 0.5.20")
    assert "about" in screen.lines[0]
    assert "GB on disk" in screen.lines[0]
    (tmp_path / "broken").unlink()
    (tmp_path / "calls.txt").unlink()

    python = install("0.5.20", directory, echo=screen, python=str(fake_python))

    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert [call for call in calls if call.startswith("-m")] == ["-m pip install", "-m compileall -q"]
    assert python == directory / "bin" / "python"
    assert rig_state(directory) == "complete, sglang 0.5.20"
    (tmp_path / "calls.txt").unlink()
    install("0.5.20", directory, echo=screen, python=str(fake_python))
    assert not (tmp_path / "calls.txt").exists()
    assert "already installed" in screen.lines[-1]


def test_verbose_shows_the_commands(tmp_path: Path, fake_python: Path, screen: Screen) -> None:
    install("0.5.20", tmp_path / "rig", echo=screen, python=str(fake_python), pip_args=["--pre"], verbose=True)
    shown = [line for line in screen.lines if line.startswith("+ ")]
    assert any("-m venv" in line for line in shown)
    assert any("--pre torch==2.13.0" in line for line in shown)


# stand-ins


@pytest.fixture
def absent_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    packages = {
        "r1perf_absent": AbsentPackage(make_absent),
        "triton": AbsentPackage(make_triton, lacks=LACKS),
        "json": AbsentPackage(make_absent),
    }
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, AbsentFinder(packages)])
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in packages:
            del sys.modules[name]


@pytest.mark.usefixtures("absent_packages")
def test_an_absent_package_can_be_imported_and_not_called() -> None:
    module = importlib.import_module("r1perf_absent.kvcacheio")
    name = module.transfer

    class Derived(name.Base):  # type: ignore[name-defined, misc]
        pass

    assert not isinstance(3, name)
    assert Derived() is not None
    with pytest.raises(NotImplementedError, match=r"r1perf_absent\.kvcacheio\.transfer is a stand-in"):
        name(1, key=2)
    with pytest.raises(NotImplementedError, match=r"transfer\.deep"):
        name.deep()
    with pytest.raises(AttributeError):
        _ = module.__version__


@pytest.mark.usefixtures("absent_packages")
def test_a_real_package_wins() -> None:
    assert importlib.import_module("json") is json
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("json.r1perf_no_such_module")


@pytest.mark.usefixtures("absent_packages")
def test_triton_kernels_are_declared_and_not_launched() -> None:
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")

    def body(n: object) -> None:
        raise AssertionError(n)

    declared = triton.jit(do_not_specialize=["n"])(body)
    kernel = triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])(declared)

    with pytest.raises(NotImplementedError, match=r"Triton kernel .*body"):
        kernel[(1,)](3)
    with pytest.raises(NotImplementedError, match=r"triton\.language\.load"):
        language.load(0)
    assert language.constexpr(5).value == 5
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("triton.knobs")
    assert not hasattr(triton, "knobs")


def test_the_mla_dispatch_is_registered_once_and_only_if_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "r1perf_registry.py").write_text(
        "class AttentionBackendRegistry:\n"
        "    _handlers = {}\n"
        "    @classmethod\n"
        "    def register(cls, name, handler):\n"
        "        assert name not in cls._handlers\n"
        "        cls._handlers[name] = handler\n"
        "def _dispatch_mla_subtype(attn, batch):\n"
        "    return 'MLA'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finder = AdditionFinder({"r1perf_registry": mla_dispatch.registered})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    module = importlib.import_module("r1perf_registry")
    handlers = module.AttentionBackendRegistry._handlers
    assert handlers == {"torch_native": module._dispatch_mla_subtype}
    mla_dispatch.register(module)
    mla_dispatch.register(types.ModuleType("without_a_registry"))
    assert inspect.getsource(module._dispatch_mla_subtype).startswith("def")


def test_the_collector_is_back_after_an_import_even_one_that_fails() -> None:
    module = types.ModuleType(collector.LAST)
    seen = []

    def broken() -> None:
        with collector.paused(module):
            seen.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        broken()
    assert seen == [False]
    assert gc.isenabled()


def test_copied_stand_ins_start_with_python_and_stay_light(tmp_path: Path) -> None:
    copy_standins(tmp_path)
    code = (
        f"import site, sys; site.addsitedir({str(tmp_path)!r}); import sgl_kernel, datasets, triton;"
        "print(sgl_kernel.f, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "<stand-in sgl_kernel.f> False", done.stderr


# the command line


def test_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path))
    run = CliRunner().invoke
    assert "no rig in" in run(rig_group, ["status"]).output
    claim(tmp_path / "rig" / "sglang-0.5.9", "0.5.9")
    assert "incomplete" in run(rig_group, ["status"]).output
    assert run(model_group, ["make"]).exit_code == 0
    assert (tmp_path / "models" / "r1-tiny" / "config.json").is_file()
    assert "7 conversations" in run(dataset_group, ["make", "--num", "7"]).output
    assert (tmp_path / "datasets" / "sharegpt-like.json").is_file()
