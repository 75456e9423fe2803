"""Greedy answers of two real SGLangs: token for token the same in float32, and not after an injected change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.childenv import compose
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.outputs.agreement import Answers, OutputsVerdict, agreement_with_itself, judge_outputs
from pytest_r1perf.outputs.ask import ask, load_prompts
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.report.outputs import outputs_lines
from pytest_r1perf.sglang.environment import probe
from pytest_r1perf.site import Session, Site

pytestmark = pytest.mark.rig

Ask = Callable[..., Answers]
FLOAT32: dict[str, FlagValue] = {"dtype": "float32"}


@pytest.fixture(scope="module")
def answer(weighted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask an interpreter's SGLang; each question once."""
    folder = tmp_path_factory.mktemp("greedy")
    given: dict[tuple[object, ...], Answers] = {}

    def answered(python: Path, **flags: FlagValue) -> Answers:
        key = (python, *sorted(flags.items()))
        if key not in given:
            catalog = load_catalog()
            platform = catalog.platform("cpu")
            cell = replace(cell_of(PerfSpec(topology="tp1", n=8), platform, catalog), timeout_s=280)
            assert cell.flags["load_format"] == "dummy"
            environment = probe(LocalPlace(str(python), "rig"), compose(platform.env), cache=folder / "probes")
            with LocalLauncher().allocate(1, print) as allocation:
                cpu = Hardware("Some CPU", 2, ("cpu",), is_cpu=True)
                site = Site(platform, allocation, cpu, (), Session("s", folder / "state", folder))
                found = ask(cell, environment, site, folder, flags={**FLOAT32, **flags}, model_path=str(weighted_model))
            assert isinstance(found, Answers), found
            given[key] = found
        return given[key]

    return answered


def test_two_releases_answer_token_for_token(rig_python: Path, older_rig_python: Path, answer: Ask) -> None:
    old, new = answer(older_rig_python), answer(rig_python)
    asked = load_prompts()
    assert (old.versions["sglang"], new.versions["sglang"]) == ("0.5.9", "0.5.20")
    for side in (old, new):
        assert (side.dtype, side.load_format, side.quantization) == ("float32", "auto", None)
        assert {len(tokens) for tokens in (*side.first, *side.second)} == {asked.max_new_tokens}
        assert agreement_with_itself(side).share_equal == 1
    result = judge_outputs(old, new, 1.0)
    assert (result.verdict, result.between and result.between.equal_prompts) == (OutputsVerdict.SAME, 16)
    assert result.repeating < 4  # real weights: the answers depend on the prompts
    assert old.first == new.first


def test_a_change_in_the_computation_is_found(rig_python: Path, answer: Ask) -> None:
    """The experts' output times 2.4 instead of 2.5: what a wrong constant in a fused kernel would do."""
    right = answer(rig_python)
    wrong = answer(rig_python, json_model_override_args='{"routed_scaling_factor": 2.4}')
    result = judge_outputs(right, wrong, 0.95)
    assert result.verdict is OutputsVerdict.CHANGED
    text = "\n".join(outputs_lines(result))
    assert "OUTPUTS CHANGED" in text
    assert "first in prompt" in text
