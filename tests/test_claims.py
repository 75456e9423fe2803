"""Claims of the documents, held against the parsers of 41 releases; what is so in a release is written by hand."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.version import Version

from pytest_r1perf.claims.claim import Claim, Kind, load_claims
from pytest_r1perf.claims.commands import claims_command
from pytest_r1perf.errors import DataError
from tests.tools.releases import RELEASES, RefusedError, parse, table

CLAIMS = {claim.id: claim for claim in load_claims()}

# The guide's playbook A, word for word (its model path filled in; --num-prompts is the benchmark's own).
CHAMPION = shlex.split(
    "--model-path m --tp 8 --mem-fraction-static 0.87 --schedule-policy lof --moe-runner-backend cutlass "
    "--enable-piecewise-cuda-graph --decode-attention-backend flashinfer --enable-flashinfer-allreduce-fusion "
    "--chunked-prefill-size 32768 --cuda-graph-max-bs 2048 --disable-radix-cache"
)


@pytest.mark.parametrize("release", RELEASES)
def test_every_releases_own_parser_agrees(release: str) -> None:
    found = [line for claim in CLAIMS.values() for line in claim.contradictions(table(release))]
    assert found == []


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS.values() if claim.shown], ids=lambda claim: claim.id)
def test_evidence_that_were_wrong_would_be_seen(claim: Claim) -> None:
    """Each piece of evidence, turned round, is contradicted by every release."""
    for shown in claim.shown:
        named = shown.option.lstrip("-").replace("-", "_")
        turned = replace(shown, option=f"--no-such-{named}")
        contradicted = [release for release in RELEASES if turned.contradicted_by(table(release))]
        assert contradicted == [r for r in RELEASES if shown.sglang.contains(Version(r), prereleases=True)]
        assert contradicted


def accepted(argv: list[str], release: str) -> bool:
    try:
        parse(release, argv)
    except RefusedError:
        return False
    return True


def test_the_champion_command_as_published() -> None:
    """What four claims come to together: the published line works as meant in 0.5.3.post3 to 0.5.9 only."""
    works = [release for release in RELEASES if accepted(CHAMPION, release)]
    assert works[0] == "0.5.3.post3"
    assert works[-1] == "0.5.9"
    parts = ("lof-policy", "moe-runner-cutlass", "piecewise-graph-flag", "decode-backend-flag", "graph-size-flag")
    for release in RELEASES:
        facts = [CLAIMS[name].fact(release) for name in parts]
        assert all(fact is not None and fact.holds for fact in facts) is (release in works), release


@pytest.mark.parametrize(
    ("argv", "claim"),
    [
        (["--pp", "2"], "pp-abbreviated"),
        (["--load-balance-method", "minimum_tokens"], "load-balance-names"),
        (["--cuda-graph-max-bs", "256"], "graph-size-flag"),
        (["--moe-a2a-backend", "deepep"], "moe-a2a-flag"),
        (["--schedule-policy", "lof"], "lof-policy"),
    ],
)
def test_a_flag_is_accepted_where_its_claim_holds(argv: list[str], claim: str) -> None:
    for release in RELEASES:
        fact = CLAIMS[claim].fact(release)
        assert fact is not None, release
        assert accepted(["--model-path", "m", *argv], release) is fact.holds, release


@pytest.mark.parametrize(
    ("claim", "release", "holds", "words"),
    [
        ("attention-default", "0.4.3.post2", False, "triton"),
        ("attention-default", "0.5.20", False, "fa3"),
        ("dp-one-asserts", "0.5.1.post3", True, "AssertionError"),
        ("dp-one-asserts", "0.5.9", False, "without a word"),
        ("fp4-kv", "0.5.20", True, "fp4_e2m1"),
        ("fp4-kv", "0.5.21", True, "fp4_e2m1 is refused"),
        ("one-batch-output-rate", "0.4.3.post2", True, "whole latency"),
        ("one-batch-output-rate", "0.5.9", False, "higher for the same run"),
        ("offline-module", "0.5.20", True, "forwards"),
        ("offline-module", "0.5.21", False, "gone"),
    ],
)
def test_what_is_so_in_a_release(claim: str, release: str, holds: bool, words: str) -> None:
    fact = CLAIMS[claim].fact(release)
    assert fact is not None
    assert fact.holds is holds
    assert words in fact.text


def test_no_release_has_two_facts() -> None:
    for claim in CLAIMS.values():
        for release in RELEASES:
            covering = [fact for fact in claim.facts if fact.sglang.contains(Version(release), prereleases=True)]
            assert len(covering) <= 1, (claim.id, release)


def test_the_marketing_figures_are_listed_with_a_reason() -> None:
    untestable = {name for name, claim in CLAIMS.items() if claim.kind is Kind.UNTESTABLE}
    assert {"throughput-7x", "memory-3.8x", "xgrammar-10x", "grpo-300", "humaneval-86.3"} <= untestable
    assert all(CLAIMS[name].why and not CLAIMS[name].facts for name in untestable)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(claims_command, arguments)
    return result.exit_code, result.output


def test_all_of_them() -> None:
    status, out = run()
    assert status == 0
    for claim in CLAIMS:
        assert f"  {claim}: " in out
    assert out.index("stale: so in some releases only") < out.index("wrong: so in none") < out.index("cannot be tested")


def test_only_what_is_so_in_a_release() -> None:
    status, out = run("--sglang", "0.5.20")
    assert status == 0
    assert "SGLang 0.5.20" in out
    assert "does not hold: refused as ambiguous: --cuda-graph-max-bs-decode" in out
    assert "throughput-7x" not in out
    assert "8 more cannot be tested here" in out
    _, old = run("--sglang", "0.4.5.post3")
    assert "not established for 0.4.5.post3: attention-default" in old
    assert "SGLang 0.4.5" in old


@pytest.mark.parametrize("release", ["0.4.2", "0.5.24", "0.6.0rc1", "1.0"])
def test_nothing_is_said_of_a_release_that_nobody_looked_at(release: str) -> None:
    status, out = run("lof-policy", "--sglang", release)
    assert status == 0
    assert f"not established for {release}: lof-policy" in out
    assert "holds" not in out


def test_a_later_build_of_the_last_release_is_covered() -> None:
    assert "holds: longest output first" in run("lof-policy", "--sglang", "0.5.23.post1")[1]


def test_an_environments_own_parser_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.project import make_environment

    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    control = tmp_path / "control.json"
    control.write_text('{"default": {}, "cells": {}}')
    status, out = run("--sglang", str(make_environment(tmp_path / "good", control=control, version="0.5.9")))
    assert status == 0
    assert "SGLang 0.5.9" in out
    bad = make_environment(tmp_path / "bad", control=control, version="0.5.9")
    options = bad / "site" / "options.json"
    options.write_text(options.read_text().replace('"lof"', '"lofty"'))
    status, out = run("lof-policy", "--sglang", str(bad))
    assert status == 1
    assert "lof-policy: SGLang 0.5.9's own parser shows another thing than --schedule-policy lof, >=0.5.1" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "claim 'nonsense' is not known"),
        (["--sglang", "latest"], "--sglang latest: is neither a version like 0.5.20 nor an environment's path"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(claims_command, arguments)
    assert sentence in str(result.exception)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("kind: stalest", "kind 'stalest' is not known; did you mean 'stale'?"),
        ("versions: [{sglang: 'x', holds: true, is: y}]", "is no version specifier"),
        ("kind: wrong\n    versions: [{sglang: '>=0.4', holds: true, is: y}]", "is wrong, yet some release has it so"),
        ("kind: untestable", "what cannot be tested says why"),
        ("kind: stale\n    versions: []", "must say of at least one release what is so"),
    ],
)
def test_a_bad_file_is_refused(change: str, sentence: str, tmp_path: Path) -> None:
    entry = {"kind": "kind: stale", "versions": "versions: [{sglang: '>=0.4', holds: false, is: y}]"}
    for line in change.split("\n    "):
        entry[line.partition(":")[0].strip()] = line
    lines = "\n    ".join(["document: d", "says: s", "evidence: e", *entry.values()])
    path = tmp_path / "claims.yaml"
    path.write_text(f"claims:\n  a:\n    {lines}\n")
    with pytest.raises(DataError, match=r"claims\.yaml:") as refused:
        load_claims(path)
    assert sentence in str(refused.value)
