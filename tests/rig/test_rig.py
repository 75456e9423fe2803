"""The CPU rig as it is installed: what it computes is right, and its stand-ins are never called."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_r1perf.rig.tokenizer import SPECIAL, VOCAB_SIZE, train
from pytest_r1perf.rig.words import WORDS

RunInRig = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.rig

SCRIPTS = Path(__file__).parent / "scripts"
NUM_TOKENS = 16


def _prompts() -> str:
    draw = random.Random(7)
    return json.dumps([[draw.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(n)] for n in (5, 17, 64)])


def _tokens(stdout: str) -> list[list[int]]:
    line = next(line for line in stdout.splitlines() if line.startswith("TOKENS "))
    tokens: list[list[int]] = json.loads(line.removeprefix("TOKENS "))
    return tokens


def _benchmark(model: Path, dataset: Path, result: Path) -> list[object]:
    options = {
        "model-path": model,
        "dataset-path": dataset,
        "num-prompts": 8,
        "load-format": "dummy",
        "seed": 2025,
        "device": "cpu",
        "max-total-tokens": 16384,
        "result-filename": result,
    }
    return ["-m", "sglang.bench_offline_throughput", *(f"--{name}={value}" for name, value in options.items())]


def test_greedy_tokens_are_those_of_transformers(run_in_rig: RunInRig, weighted_model: Path) -> None:
    prompts = _prompts()
    ours = run_in_rig(SCRIPTS / "greedy_sglang.py", weighted_model, prompts, NUM_TOKENS)
    assert ours.returncode == 0, ours.stderr[-2000:]
    reference = run_in_rig(SCRIPTS / "greedy_transformers.py", weighted_model, prompts, NUM_TOKENS)
    assert reference.returncode == 0, reference.stderr[-2000:]
    assert [len(tokens) for tokens in _tokens(ours.stdout)] == [NUM_TOKENS] * 3
    assert _tokens(ours.stdout) == _tokens(reference.stdout)


def test_no_stand_in_is_needed_in_a_benchmark(run_in_rig: RunInRig, model: Path, dataset: Path, tmp_path: Path) -> None:
    # A call that SGLang swallows would not show in the exit code: every call is written down first.
    calls = tmp_path / "calls.txt"
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "from r1perf_standins.absent import Absent\n"
        "refuse = Absent.__call__\n"
        "def noted(self, *args, **kwargs):\n"
        f"    open({str(calls)!r}, 'a').write(repr(self) + '\\n')\n"
        "    refuse(self)\n"
        "Absent.__call__ = noted\n"
    )
    checked = run_in_rig("-c", "import sgl_kernel; sgl_kernel.rmsnorm(1)", extra_env={"PYTHONPATH": str(hook)})
    assert checked.returncode == 1
    assert calls.read_text() == "<stand-in sgl_kernel.rmsnorm>\n"
    calls.unlink()

    result = tmp_path / "result.jsonl"
    done = run_in_rig(*_benchmark(model, dataset, result), extra_env={"PYTHONPATH": str(hook)})

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(result.read_text())["successful_requests"] == 8
    # SGLang asks Triton for its device, takes the refusal as "none", and says "roll back to CPU".
    asked = {"<stand-in triton.runtime.driver.active.get_current_target>"}
    called = calls.read_text().splitlines() if calls.exists() else []  # none at all where Triton is real
    assert set(called) <= asked


def test_without_the_registered_dispatch_prefill_breaks(
    run_in_rig: RunInRig, model: Path, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import r1perf_standins as r\nfor name in r.mla_dispatch.REGISTRY_MODULES:\n    r.ADDITIONS.pop(name)\n"
    )
    result = tmp_path / "result.jsonl"
    done = run_in_rig(*_benchmark(model, dataset, result), extra_env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode != 0
    assert not result.exists()
    assert "Scheduler hit an exception" in done.stdout + done.stderr


def _torch_version(run_in_rig: RunInRig) -> str:
    return run_in_rig("-c", "import importlib.metadata as m; print(m.version('torch'))").stdout


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import sgl_kernel; sgl_kernel.rmsnorm(1)", "sgl_kernel.rmsnorm"),
        ("from sgl_kernel.kvcacheio import transfer_kv_all_layer as f; f()", "sgl_kernel.kvcacheio"),
        ("import datasets; datasets.load_dataset('x')", "datasets.load_dataset"),
        ("import triton\n@triton.jit\ndef kernel(x): ...\nkernel[(1,)](1)", "kernel"),
        (
            "import torch, torchvision; torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)",
            "torchvision::nms",
        ),
    ],
)
def test_a_called_stand_in_raises_with_its_name(run_in_rig: RunInRig, code: str, name: str) -> None:
    if name in ("kernel", "torchvision::nms") and "+cpu" not in _torch_version(run_in_rig):
        pytest.skip("this rig has PyPI's CUDA build of torch: Triton and torchvision's operators are real")
    done = run_in_rig("-c", code)
    last = done.stderr.strip()
    assert done.returncode == 1
    assert "NotImplementedError" in last
    assert name in last


def test_starting_python_imports_nothing_heavy(run_in_rig: RunInRig) -> None:
    done = run_in_rig("-c", "import sys; print('r1perf_standins' in sys.modules, 'torch' in sys.modules)")
    assert done.stdout.split() == ["True", "False"]


def test_our_tokenizer_counts_as_the_real_one(run_in_rig: RunInRig, model: Path) -> None:
    texts = [f"{WORDS[n].capitalize()} {' '.join(WORDS[n::7])}.\n\nNew 42" for n in range(7)]
    code = (
        "import sys, json; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "ids = [t.encode(text) for text in json.loads(sys.argv[2])];"
        "print(json.dumps([[len(i) for i in ids], [t.decode(i) for i in ids], t.bos_token_id, t.eos_token_id]))"
    )
    done = run_in_rig("-c", code, model, json.dumps(texts))
    assert done.returncode == 0, done.stderr[-2000:]
    counts, decoded, bos, eos = json.loads(done.stdout.splitlines()[-1])
    assert counts == [train().count(text) for text in texts]
    assert decoded == texts
    assert (bos, eos) == (0, 1)
