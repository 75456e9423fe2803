"""Asking an environment greedily: the driver as a real process against a small engine, and what may go wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.errors import DataError
from pytest_r1perf.gpu.nvml import NvmlAbsent
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Problem
from pytest_r1perf.outputs import ask as greedy
from pytest_r1perf.outputs.agreement import Answers, NotAsked, OutputsVerdict, judge_outputs
from pytest_r1perf.outputs.ask import PromptSet, ask, load_prompts
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.greedy import DRIVER, BadAnswers, read_answers
from pytest_r1perf.site import Session, Site
from pytest_r1perf.verdict import Verdict
from tests.tools.releases import entries

CATALOG = load_catalog()
PROMPTS = PromptSet(("one", "two words", "three words here"), 4, "abc")

SERVER_ARGS = """
import dataclasses, json
from pathlib import Path
CONTROL = json.loads(Path(__file__).with_name("control.json").read_text())
@dataclasses.dataclass
class ServerArgs:
    model_path: str
    load_format: str = "auto"
    dtype: str = "auto"
    log_level: str = "info"
    @staticmethod
    def add_cli_args(parser):
        for name in ("model-path", "load-format", "dtype", "log-level", "device", "max-total-tokens", "random-seed",
                     "attention-backend", "schedule-policy", "tensor-parallel-size", "tp-size"):
            parser.add_argument("--" + name)
    @classmethod
    def from_cli_args(cls, args):
        given = {field.name: getattr(args, field.name) for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})
if CONTROL["release"] == "record":
    ServerArgs.resolve_once = lambda self: None
"""

ENGINE = """
import os, signal, time, types
from sglang.srt.server_args import CONTROL, ServerArgs
class Tokenizer:
    def encode(self, text):
        return [len(word) for word in text.split()]
    def decode(self, ids):
        return f"<{ids[0]}>"
class Engine:
    def __init__(self, **given):
        record = given.pop("server_args", None)
        assert (record is not None) == (CONTROL["release"] == "record")
        self.args = record or ServerArgs(**given)
        dtype = {"auto": "torch.bfloat16"}.get(self.args.dtype, "torch." + self.args.dtype)
        model = types.SimpleNamespace(dtype=dtype, quantization=CONTROL.get("quantization"))
        tokenizer = None if CONTROL.get("no_tokenizer") else Tokenizer()
        self.tokenizer_manager = types.SimpleNamespace(tokenizer=tokenizer, model_config=model)
        self.calls = self.refused = 0
        self.flushed = True
    def generate(self, prompt=None, sampling_params=None, input_ids=None, return_logprob=False):
        assert sampling_params["temperature"] == 0 and sampling_params["ignore_eos"]
        assert self.flushed, "the cache was not flushed"
        self.calls, self.flushed = self.calls + 1, False
        if CONTROL.get("does") == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if CONTROL.get("does") == "hang":
            time.sleep(600)
        if CONTROL.get("does") == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        count = sampling_params["max_new_tokens"] - (CONTROL.get("does") == "short")
        answers = []
        for one in prompt or input_ids:
            seed = sum(map(ord, one)) if prompt else sum(one)
            wavers = CONTROL.get("does") == "waver" and self.calls == 2
            ids = [CONTROL.get("shift", 0) + seed * 10 + place + 500 * wavers for place in range(count)]
            if CONTROL["release"] != "bare":
                answers.append({"text": "", "output_ids": ids})
            else:
                logged = {"output_token_logprobs": [(-0.1, token, None) for token in ids]}
                answers.append({"text": "", "meta_info": logged if return_logprob else {}})
        return answers
    def flush_cache(self):
        if not self.calls:
            raise SystemExit("flushed before the first request: 0.5.9 waits for ever")
        self.refused += 1
        self.flushed = self.refused > CONTROL.get("refusals", 0)
        return None if CONTROL["release"] == "bare" else types.SimpleNamespace(success=self.flushed)
    def shutdown(self):
        if CONTROL.get("does") == "linger":
            time.sleep(600)
"""

Asked = Callable[..., "Answers | NotAsked | Problem"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def _environment(folder: Path, control: dict[str, Any]) -> SglangEnvironment:
    """A Python whose sglang is the one above."""
    package = folder / "site" / "sglang" / "srt"
    (package / "entrypoints").mkdir(parents=True)
    for each in (package.parent, package, package / "entrypoints"):
        (each / "__init__.py").write_text("")
    (package / "server_args.py").write_text(SERVER_ARGS)
    (package / "control.json").write_text(json.dumps({"release": "record", **control}))
    (package / "entrypoints" / "engine.py").write_text(ENGINE)
    metadata = folder / "site" / "sglang-0.5.20.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.20\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{folder}/site" "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return SglangEnvironment(LocalPlace(str(python), "fake"), {"sglang": "0.5.20"}, (), tuple(entries("0.5.20")))


def a_cell(platform: str = "cpu", topology: str = "tp1", **changes: Any) -> Cell:
    cell = cell_of(PerfSpec(topology=topology, n=8), CATALOG.platform(platform), CATALOG)
    return replace(cell, timeout_s=changes.pop("timeout_s", 60.0), **changes)


def site_of(folder: Path) -> Site:
    with LocalLauncher().allocate(1, print) as allocation:
        cpu = Hardware("Some CPU", 2, ("cpu",), is_cpu=True)
        return Site(CATALOG.platform("cpu"), allocation, cpu, (), Session("s", folder / "state", folder))


@pytest.fixture
def asked(tmp_path: Path, model: Path) -> Asked:
    """Ask an environment whose engine is controlled by the keywords."""
    numbers = iter(range(100))

    def answer(cell: Cell | None = None, flags: dict[str, Any] | None = None, **control: Any) -> Any:
        folder = tmp_path / f"environment-{next(numbers)}"
        environment = _environment(folder, control)
        return ask(
            cell or a_cell(),
            environment,
            site_of(tmp_path),
            tmp_path / "runs",
            flags=flags,
            model_path=str(model),
            prompts=PROMPTS,
        )

    return answer


# -- the prompts -----------------------------------------------------------------------------------------------


def test_the_prompts_of_the_package() -> None:
    prompts = load_prompts()
    assert len(prompts.prompts) == len(set(prompts.prompts)) == 16
    assert prompts.max_new_tokens == 32
    assert min(map(len, prompts.prompts)) < 30 < 700 < max(map(len, prompts.prompts))
    assert any(any(ord(letter) > 0x3000 for letter in text) for text in prompts.prompts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digest: baa94b749cbd1c56\nmax_new_tokens: 32\nprompts: [one]", "digest: is 'baa94b749cbd1c56', but"),
        ("digest: x\nmax_new_tokens: 0\nprompts: [one]", "max_new_tokens: must be a whole number"),
        ("digest: x\nmax_new_tokens: 4\nprompts: []", "prompts: must have at least one"),
        ("digest: x\nmax_new_tokens: 4\nprompts: [1]", "prompts: must be a list of non-empty texts"),
        ("digest: x\nmax_new_tokens: 4\nprompts: [a]\nmore: 1", "more: key is not known"),
    ],
)
def test_an_edited_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "greedy.yaml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        load_prompts(path)
    assert words in str(caught.value)


# -- asking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["record", "fields", "bare"])
def test_answers_of_every_kind_of_release(asked: Asked, release: str) -> None:
    """``record``: from 0.5.19; ``fields``: before; ``bare``: tokens only beside their probabilities, a mute flush."""
    found = asked(release=release)
    assert isinstance(found, Answers), found
    assert found.input_ids == ((3,), (3, 5), (5, 5, 4))
    assert found.first == ((30, 31, 32, 33), (80, 81, 82, 83), (140, 141, 142, 143))
    assert found.second == found.first
    assert (found.dtype, found.load_format, found.prompts) == ("bfloat16", "dummy", "abc")
    assert found.versions == {"sglang": "0.5.20"}
    assert found.texts[141] == "<141>"
    assert found.wall_s > 0


def test_the_models_own_weights_are_preferred_to_dummy_ones(asked: Asked, model: Path) -> None:
    (model / "model.safetensors").write_text("")
    found = asked(flags={"dtype": "float32"})
    assert isinstance(found, Answers), found
    assert (found.load_format, found.dtype, found.exact) == ("auto", "float32", True)


def test_prompts_go_as_text_where_there_is_no_tokenizer(asked: Asked) -> None:
    found = asked(no_tokenizer=True)
    assert isinstance(found, Answers), found
    assert found.input_ids is None
    assert found.first[0] == tuple(sum(map(ord, "one")) * 10 + place for place in range(4))
    assert found.texts == {}


def test_passes_are_told_apart(asked: Asked) -> None:
    found = asked(does="waver")
    assert isinstance(found, Answers), found
    assert found.first[1] == (80, 81, 82, 83)
    assert found.second[1] == (580, 581, 582, 583)


def test_a_refused_flush_is_repeated(asked: Asked) -> None:
    assert isinstance(asked(refusals=2), Answers)


def test_the_command_can_be_pasted(asked: Asked, tmp_path: Path) -> None:
    asked()
    (path,) = tmp_path.glob("runs/*/command.txt")
    line = path.read_text()
    assert str(DRIVER) in line
    assert "SGLANG_USE_CPU_ENGINE=1" in line
    assert "--load-format dummy" in line
    assert line.count("\n") == 1


def test_an_injected_change_goes_through_to_the_verdict(asked: Asked) -> None:
    old, same = asked(flags={"dtype": "float32"}), asked(flags={"dtype": "float32"})
    new = asked(flags={"dtype": "float32"}, shift=1)
    assert isinstance(old, Answers)
    assert isinstance(same, Answers)
    assert isinstance(new, Answers)
    assert judge_outputs(old, same, 1.0).verdict is OutputsVerdict.SAME
    assert judge_outputs(old, new, 0.9).verdict is OutputsVerdict.CHANGED


def test_two_nodes_are_not_asked(tmp_path: Path) -> None:
    environment = SglangEnvironment(LocalPlace("/nowhere/python", "fake"), {}, (), ())
    found = ask(a_cell("h200x16", "pp2"), environment, site_of(tmp_path), tmp_path / "runs")
    assert isinstance(found, NotAsked)
    assert "topology pp2 spans 2 nodes" in found.reason
    assert not (tmp_path / "runs").exists()


# -- what may go wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "verdict", "words"),
    [
        ({"does": "kill"}, Verdict.CRASH, "SIGKILL"),
        ({"does": "oom"}, Verdict.OOM, "out of memory"),
        ({"does": "short"}, Verdict.INVALID, "prompt 1 in pass 1 has 3 tokens, and 4 were asked for"),
    ],
)
def test_a_broken_run_is_a_problem(asked: Asked, control: dict[str, Any], verdict: Verdict, words: str) -> None:
    found = asked(**control)
    assert isinstance(found, Problem), found
    assert found.verdict is verdict
    assert words.lower() in found.cause.lower()
    assert Path(found.log).exists()


def test_a_run_without_end_is_a_hang(asked: Asked) -> None:
    found = asked(a_cell(timeout_s=2.0), does="hang")
    assert isinstance(found, Problem), found
    assert found.verdict is Verdict.HANG


def test_an_engine_that_does_not_end_after_its_answers_is_ended(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "LINGER_S", 0.3)
    assert isinstance(asked(does="linger"), Answers)


def test_what_a_release_cannot_say_is_refused_before_it_starts(asked: Asked, tmp_path: Path) -> None:
    found = asked(flags={"schedule_policy": "no-such-policy"})
    assert isinstance(found, Problem), found
    assert found.verdict is Verdict.CONFIG
    assert "no-such-policy" in found.cause
    assert not (tmp_path / "runs").exists()


class Busy(GpuWatch):
    def not_free(self) -> str | None:
        return "GPU 0 holds 80 GiB of another process"


def test_gpus_that_are_not_free_are_waited_for_first(tmp_path: Path) -> None:
    found = ask(
        a_cell(),
        _environment(tmp_path / "environment", {}),
        site_of(tmp_path),
        tmp_path / "runs",
        model_path="m",
        prompts=PROMPTS,
        watch=lambda uuids: Busy(NvmlAbsent("no driver"), uuids, print),
    )
    assert found == Problem(Verdict.INFRA, "GPU 0 holds 80 GiB of another process")
    assert not list(tmp_path.glob("runs/*/log.txt"))


def test_an_interpreter_that_is_gone(tmp_path: Path) -> None:
    environment = replace(_environment(tmp_path / "environment", {}), place=LocalPlace("/nowhere/python", "fake"))
    found = ask(a_cell(), environment, site_of(tmp_path), tmp_path / "runs", model_path="m", prompts=PROMPTS)
    assert isinstance(found, Problem)
    assert found.verdict is Verdict.INFRA


# -- reading what the driver wrote -------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "prompts": "abc",
    "passes": [[[1, 2], [3, 4]], [[1, 2], [3, 5]]],
    "input_ids": [[7], [8, 9]],
    "tokens": {"1": "a"},
    "dtype": "bfloat16",
    "quantization": "fp8",
    "load_format": "auto",
    "versions": {"sglang": "0.5.20", "torch": None},
}


def read(path: Path, text: str) -> Answers | None:
    path.write_text(text)
    return read_answers(path, prompts=2, max_new_tokens=2, digest="abc")


def test_a_whole_result(tmp_path: Path) -> None:
    found = read(tmp_path / "r", json.dumps(GOOD) + "\n")
    assert found == Answers(
        prompts="abc",
        first=((1, 2), (3, 4)),
        second=((1, 2), (3, 5)),
        input_ids=((7,), (8, 9)),
        dtype="bfloat16",
        load_format="auto",
        quantization="fp8",
        versions={"sglang": "0.5.20"},
        texts={1: "a"},
    )


def test_no_result_is_none(tmp_path: Path) -> None:
    assert read(tmp_path / "r", "") is None
    assert read_answers(tmp_path / "other", prompts=2, max_new_tokens=2, digest="abc") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": "xyz"}, "'xyz', and 'abc' was asked"),
        ({"passes": [[[1, 2], [3, 4]]]}, "twice"),
        ({"passes": [[[1, 2]], [[1, 2], [3, 4]]]}, "pass 1: 1 sequences"),
        ({"passes": [[[1, 2], [3, 4]], [[1, 2], [3]]]}, "prompt 2 in pass 2 has 1 tokens"),
        ({"passes": [[[1, 2], [3, "4"]], [[1, 2], [3, 4]]]}, "not a list of token numbers"),
        ({"passes": [[[1, 2], [3, -1]], [[1, 2], [3, 4]]]}, "not a list of token numbers"),
        ({"passes": [[[1, 2], [3, True]], [[1, 2], [3, 4]]]}, "not a list of token numbers"),
        ({"passes": [[[1, 2], None], [[1, 2], [3, 4]]]}, "not a list of token numbers"),
        ({"passes": None}, "twice"),
        ({"input_ids": [[1]]}, "the prompts: 1 sequences"),
        ({"dtype": ""}, "dtype"),
        ({"load_format": None}, "load_format"),
        ({"versions": []}, "versions"),
        ({"tokens": 3}, "tokens"),
    ],
)
def test_a_result_that_is_none(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadAnswers) as caught:
        read(tmp_path / "r", json.dumps({**GOOD, **changes}))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(GOOD)[:-9], "cut short or no JSON"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD), "2 results"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "cut short or no JSON"),
    ],
)
def test_garbage(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadAnswers) as caught:
        read(tmp_path / "r", text)
    assert words in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=3))
def test_any_other_result_is_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, changes: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any-result"
    try:
        found = read(path, json.dumps({**GOOD, **changes}))
    except BadAnswers as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert found is not None
        assert {len(answer) for answer in (*found.first, *found.second)} == {2}
