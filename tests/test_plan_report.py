"""The plan: history of earlier sessions, and the text that a person reads and copies from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf import records
from pytest_r1perf.antipatterns import RuleKind
from pytest_r1perf.memory import GIB, Fit, MemoryEstimate
from pytest_r1perf.plan import MatchedRule, PlannedCommand, PlannedTest, expected, histories, history_s
from pytest_r1perf.preflight import Finding, Severity
from pytest_r1perf.records import SessionFolder
from pytest_r1perf.report.plan import fit_sentence, render

MEMORY = MemoryEstimate(
    gpu_bytes=140 * GIB,
    mem_fraction_static=0.87,
    weights_bytes_per_gpu=80 * GIB,
    kv_bytes_per_token_per_gpu=70272,
    graph_bytes=5 * GIB,
    free_for_kv=40 * GIB,
    max_tokens=611173,
    pools=1,
    assumed=("max_total_tokens=611173 is below what would fit",),
)
COMMAND = PlannedCommand(0, "node-a", ("python", "-m", "some.bench", "--tp-size", "8", "--quiet", "--name", "a b"), {})
PLAN = PlannedTest(
    nodeid="tests/test_tp8.py::test_champion",
    cell="tp8 tp8-champion n=7000",
    key="h200x8/tp8-champion/sharegpt/n7000/offline",
    commands=(COMMAND,),
    notes=("enable_piecewise_cuda_graph is left out: this SGLang has it on by itself",),
    gpus_used=8,
    gpus_allocated=8,
    memory=MEMORY,
    fits="all 7,000 requests at once",
    rounds=(5, 5),
    expected_s=600.0,
    expected_from="median of 12 processes in .r1perf",
    antipatterns=(),
    findings=(),
    baseline=Path("baselines/8x-nvidia-h200/tp8.yaml"),
)


def with_findings(*severities: Severity) -> PlannedTest:
    found = tuple(Finding(f"rule-{n}", severity, f"sentence {n}", "a source") for n, severity in enumerate(severities))
    return replace(PLAN, findings=found)


def block(text: str, title: str) -> str:
    """The text of a titled row, folded lines joined."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"  {title} "))
    rest = []
    for line in lines[start + 1 :]:
        if not line.startswith(" " * 16):
            break
        rest.append(line.strip())
    return " ".join([lines[start][16:].strip(), *rest])


# --- history --------------------------------------------------------------------------------------------------------


def session(out: Path, name: str, *lines: Mapping[str, Any]) -> SessionFolder:
    folder = SessionFolder(out / name)
    records.begin(folder, "main")
    for line in lines:
        records.append(folder, "main", line)
    return folder


def sample(fingerprint: str, wall_s: float) -> dict[str, Any]:
    return {"kind": "sample", "fingerprint": fingerprint, "wall_s": wall_s}


def test_history_is_the_median_over_all_sessions(tmp_path: Path) -> None:
    session(tmp_path, "20260101.000000.aaaa", sample("f", 10.0), sample("f", 30.0), sample("other", 999.0))
    session(tmp_path, "20260102.000000.bbbb", sample("f", 14.0), {"kind": "problem", "fingerprint": "f", "wall_s": 1.0})
    assert history_s(tmp_path, "f") == (14.0, 3)
    assert history_s(tmp_path, "other") == (999.0, 1)
    assert history_s(tmp_path, "never") is None
    assert histories(tmp_path) == {"f": (10.0, 30.0, 14.0), "other": (999.0,)}


def test_history_without_an_output_directory(tmp_path: Path) -> None:
    assert history_s(tmp_path / "none", "f") is None


def test_history_passes_over_what_it_cannot_read(tmp_path: Path) -> None:
    """A newer session's format, half a line of a killed writer, and lines that lack what is asked for."""
    newer = session(tmp_path, "20260101.000000.aaaa", sample("f", 1.0))
    with (newer.path / "samples-main.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"format": records.FORMAT + 1, **sample("f", 2.0)}) + "\n")
    killed = session(
        tmp_path, "20260102.000000.bbbb", sample("f", 5.0), {"kind": "sample"}, {"kind": "sample", "wall_s": "?"}
    )
    with (killed.path / "samples-main.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "sample", "fingerprint": "f", "wall_s": 7')
    assert history_s(tmp_path, "f") == (5.0, 1)


@pytest.mark.parametrize(
    ("history", "processes", "answer"),
    [
        (None, 5, (None, "unknown: never run here")),
        ((60.0, 12), 5, (300.0, "median of 12 processes in .r1perf")),
        ((60.0, 1), 1, (60.0, "median of 1 process in .r1perf")),
    ],
)
def test_expected(history: tuple[float, int] | None, processes: int, answer: tuple[float | None, str]) -> None:
    assert expected(history, processes, ".r1perf") == answer


# --- one test -------------------------------------------------------------------------------------------------------


def test_a_plan_reads_like_this() -> None:
    text = render([replace(PLAN, findings=with_findings(Severity.NOTE).findings)], 100)
    assert text == (
        "tests/test_tp8.py::test_champion\n"
        "  cell          tp8 tp8-champion n=7000\n"
        "  key           h200x8/tp8-champion/sharegpt/n7000/offline\n"
        "  command       on node-a\n"
        "    python -m some.bench \\\n"
        "    --tp-size 8 \\\n"
        "    --quiet \\\n"
        "    --name 'a b'\n"
        "  translated    enable_piecewise_cuda_graph is left out: this SGLang has it on by itself\n"
        "  GPUs          8 used of 8 allocated\n"
        "  memory        a GPU        140.0 GiB\n"
        "                weights       80.0 GiB\n"
        "                KV cache      40.0 GiB  611,173 tokens, 70,272 bytes each on a GPU\n"
        "                left over     18.0 GiB  for activations and about 5.0 GiB of graphs\n"
        "                max_total_tokens=611173 is below what would fit\n"
        "  fit           all 7,000 requests at once\n"
        "  rounds        5 processes\n"
        "  time          10 min (median of 12 processes in .r1perf)\n"
        "  baseline      baselines/8x-nvidia-h200/tp8.yaml\n"
        "  NOTE          rule-0: sentence 0\n"
        "\n"
        "total\n"
        "  tests         1 test, 1 would run\n"
        "  processes     5\n"
        "  time          10 min\n"
        "  warnings      0\n"
    )


def test_the_first_memory_row_is_what_the_numbers_add_up_to() -> None:
    """140 GiB less 1.3 of context, at 0.87: 120.7 for weights and KV, 18.0 outside."""
    assert MEMORY.static_bytes / GIB == pytest.approx(120.67, abs=0.01)
    assert MEMORY.outside_bytes / GIB == pytest.approx(18.03, abs=0.01)


@settings(deadline=None, max_examples=20)  # each starts a shell and a Python
@given(
    words=st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\0")), max_size=4),
    value=st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\0")),
)
def test_a_command_pasted_into_a_shell_is_the_command(words: list[str], value: str) -> None:
    """A real shell reads the printed lines back: argv and variable arrive as they were."""
    show = "import os, sys, json; print(json.dumps([os.environ['R1_VALUE'], sys.argv[1:]]))"
    argv = (sys.executable, "-c", show, "--flag", *words, "--switch")
    text = render([replace(PLAN, commands=(PlannedCommand(0, "here", argv, {"R1_VALUE": value}),))], 100)
    shown = text[text.index("on here\n") + len("on here\n") : text.index("\n  translated")]
    done = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [value, ["--flag", *words, "--switch"]]


def test_every_node_has_its_own_command() -> None:
    ranks = tuple(
        PlannedCommand(rank, host, ("bench", "--node-rank", str(rank)), {"GLOO_SOCKET_IFNAME": f"eth{rank}"})
        for rank, host in enumerate(["node-a", "node-b"])
    )
    text = render([replace(PLAN, commands=ranks)], 100)
    assert "  command       rank 0 on node-a\n    GLOO_SOCKET_IFNAME=eth0 \\\n    bench \\\n    --node-rank 0\n" in text
    assert "  command       rank 1 on node-b\n    GLOO_SOCKET_IFNAME=eth1 \\\n    bench \\\n    --node-rank 1\n" in text


def test_a_redacted_value_is_explained() -> None:
    hidden = replace(COMMAND, env=MappingProxyType({"HF_TOKEN": "***"}))
    assert "*** stands for a secret" in render([replace(PLAN, commands=(hidden,))], 100)
    assert "***" not in render([PLAN], 100)


def test_what_is_not_known_is_said() -> None:
    bare = replace(
        PLAN, memory=None, expected_s=None, expected_from="unknown: never run here", baseline=None, gpus_allocated=None
    )
    text = render([bare], 100)
    assert block(text, "memory").startswith("not estimated: it takes the model's config.json")
    assert block(text, "time") == "unknown: never run here"
    assert block(text, "baseline") == "none stored"
    assert block(text, "GPUs") == "8 used"
    assert text.endswith("  time          unknown\n  warnings      0\n")


def test_the_kv_pools_of_dp_attention_are_counted() -> None:
    text = render([replace(PLAN, memory=replace(MEMORY, pools=8))], 100)
    assert "611,173 tokens in each of 8 pools" in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (RuleKind.SLOWER, "fp4-kv-cache, slower, expected to lose (xfail): FP4 KV cache"),
        (RuleKind.OOM, "expected to run out of memory (xfail)"),
        (RuleKind.REJECTED, "SGLang refuses it"),
        (RuleKind.ADVISORY, "advice"),
    ],
)
def test_antipatterns_say_what_they_mean_for_the_test(kind: RuleKind, words: str) -> None:
    text = render([replace(PLAN, antipatterns=(MatchedRule("fp4-kv-cache", kind, "FP4 KV cache"),))], 100)
    assert words in block(text, "anti-pattern")


def test_long_text_is_folded_and_paths_are_not() -> None:
    long = Finding("rule", Severity.WARN, " ".join(["word"] * 60), "a source")
    path = Path("/".join(["a folder"] * 30))
    lines = render([replace(PLAN, findings=(long,), baseline=path)], 90).splitlines()
    assert f"  baseline      {path}" in lines
    assert all(len(line) <= 90 for line in lines if str(path) not in line)
    assert sum(line.count("word") for line in lines) == 60


def test_a_narrow_terminal_gets_eighty_columns() -> None:
    assert render([PLAN], 10) == render([PLAN], 80)


def test_the_unit_of_a_cpu_is_its_own() -> None:
    assert "  cores         2 used of 2 allocated\n" in render(
        [replace(PLAN, unit="cores", gpus_used=2, gpus_allocated=2)], 100
    )


@pytest.mark.parametrize(
    ("fit", "tokens", "words"),
    [
        (Fit(7000, 7000, True), 10**7, "all 7,000 requests at once"),
        (Fit(7000, 1500, True), 10**6, "about 1,500 of 7,000 requests at once, the others queue (normal)"),
        (Fit(7000, 0, False), 300, "no: the longest request does not fit into 300 tokens"),
        (Fit(7000, 0, False), 0, "no: by the estimate no room is left for a KV cache"),
        (Fit(7000, 0, False), -5, "no: by the estimate no room is left for a KV cache"),
        (None, 300, "not known"),
        (Fit(7000, 7000, True), None, "not known"),
    ],
)
def test_fit_sentence(fit: Fit | None, tokens: int | None, words: str) -> None:
    assert fit_sentence(fit, tokens).startswith(words)


# --- the total ------------------------------------------------------------------------------------------------------


def test_the_total_counts_what_would_run() -> None:
    plans = [
        PLAN,
        replace(PLAN, rounds=(3, 8), expected_s=None, expected_from="unknown: never run here"),
        with_findings(Severity.REFUSE, Severity.WARN),
        replace(PLAN, skip="topology 'tp16' needs 16 GPUs"),
        replace(with_findings(Severity.REFUSE), skip="is for platform 'h200x8'"),
    ]
    text = render(plans, 100)
    total = text[text.index("\ntotal\n") :]
    assert block(total, "tests") == "5 tests, 2 would run, 1 refused, 2 skipped"
    assert block(total, "processes") == "8 to 13"
    assert block(total, "time") == "10 min, and 1 never run here"
    assert block(total, "warnings") == "1"
    assert "  skipped       topology 'tp16' needs 16 GPUs\n" in text


def test_no_plan_is_a_total_of_nothing() -> None:
    assert render([], 100) == (
        "total\n  tests         0 tests, 0 would run\n  processes     0\n  time          unknown\n  warnings      0\n"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45.2, "45 s"), (89.4, "89 s"), (120.0, "2 min"), (3570.0, "1 h 0 min"), (12000.0, "3 h 20 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert block(render([replace(PLAN, expected_s=seconds)], 100), "time").startswith(f"{words} (")


@pytest.mark.parametrize("rule", ["weights-do-not-fit", "kv-below-longest-request"])
def test_an_estimate_refuses_no_test(rule: str) -> None:
    """A session runs it: the run itself says whether it fits."""
    plan = replace(PLAN, findings=(Finding(rule, Severity.REFUSE, "a sentence", "a source"),))
    assert (plan.refused, plan.runs) == (False, True)
    assert block(render([plan], 100), "tests") == "1 test, 1 would run"
    assert block(render([plan], 100), "REFUSE") == f"{rule}: a sentence"


def test_what_is_skipped_is_not_refused_too() -> None:
    assert not replace(with_findings(Severity.REFUSE), skip="is for platform 'h200x8'").refused


def test_only_a_refusal_stops_a_test() -> None:
    assert with_findings(Severity.WARN, Severity.NOTE).runs
    assert not with_findings(Severity.NOTE, Severity.REFUSE).runs
    assert not replace(PLAN, skip="no GPU").runs
