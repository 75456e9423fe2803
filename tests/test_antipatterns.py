"""The anti-pattern rules against the seeds' table and lists, and the rules' own format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_r1perf.antipatterns import Rule, RuleKind, load_rule, matching
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import Cell, cell_of, reference_of
from pytest_r1perf.datafile import parse_yaml
from pytest_r1perf.errors import DataError, R1PerfError
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.pins import pins_for
from pytest_r1perf.topology import Topology
from tests.tools.releases import table


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def cell(
    catalog: Catalog,
    topology: str = "tp8",
    platform: str = "h200x16",
    n: int = 7000,
    layout: Topology | None = None,
    flags: Mapping[str, FlagValue] = MappingProxyType({}),
) -> Cell:
    made = cell_of(PerfSpec(topology, n, flags=tuple(flags.items())), catalog.platform(platform), catalog)
    return made if layout is None else replace(made, topology=layout)


def hits(catalog: Catalog, made: Cell, version: str | None = "0.5.9") -> set[str]:
    return {rule.id for rule in matching(catalog.rules.values(), made, version)}


# Guide, "What not to do", and notes, "What didn't work" and "Memory tuning": typed by hand.
TABLE = {
    "fp4-kv-cache": ("slower", -0.78),
    "speculative-saturated": ("slower", -0.69),
    "flashinfer-on-pp2": ("slower", -0.185),
    "expert-parallel-single-node": ("slower", -0.34),
    "manual-pp-micro-batch": ("slower", -0.9),
    "chunked-prefill-off": ("slower", None),
    "pure-dp-does-not-fit": ("oom", None),
    "dp-attention-with-dp-1": ("rejected", None),
    "dp-attention-ignored": ("advisory", None),
    "max-running-requests-high": ("advisory", None),
    "memory-pair-moved-alone": ("advisory", None),
    "radix-off-low-load": ("advisory", None),
    "low-load-only": ("advisory", None),
    "cpu-few-running-requests": ("slower", -0.52),
}


def test_the_seeds_lists_are_all_there(catalog: Catalog) -> None:
    assert {name: (rule.kind.value, rule.impact) for name, rule in catalog.rules.items()} == TABLE
    assert all(rule.source and rule.instead and rule.title for rule in catalog.rules.values())


def test_a_plain_cell_matches_nothing(catalog: Catalog) -> None:
    for topology in ("tp8", "pp2", "tp16"):
        assert hits(catalog, cell(catalog, topology)) == set()
        assert hits(catalog, cell(catalog, topology, platform="h100x16")) == set()
    assert hits(catalog, cell(catalog, "tp1", platform="cpu", n=50)) == set()


@pytest.mark.parametrize(
    ("rule", "topology", "n", "flags"),
    [
        ("fp4-kv-cache", "tp8", 7000, {"kv_cache_dtype": "fp4_e2m1"}),
        ("fp4-kv-cache", "pp2", 100, {"kv_cache_dtype": "nvfp4"}),
        ("speculative-saturated", "tp8", 5000, {"speculative_algorithm": "EAGLE"}),
        ("flashinfer-on-pp2", "pp2", 7000, {"attention_backend": "flashinfer"}),
        ("flashinfer-on-pp2", "pp2", 7000, {"decode_attention_backend": "flashinfer"}),
        ("flashinfer-on-pp2", "pp2", 7000, {"prefill_attention_backend": "flashinfer"}),
        ("expert-parallel-single-node", "tp8-ep8", 7000, {}),
        ("expert-parallel-single-node", "tp8", 7000, {"moe_a2a_backend": "deepep"}),
        ("expert-parallel-single-node", "tp8", 7000, {"moe_a2a_backend": "megamoe"}),
        ("expert-parallel-single-node", "tp8", 7000, {"enable_ep_moe": True}),
        ("manual-pp-micro-batch", "pp2", 7000, {"pp_max_micro_batch_size": 8}),
        ("chunked-prefill-off", "tp8", 7000, {"chunked_prefill_size": -1}),
        ("max-running-requests-high", "tp8", 7000, {"max_running_requests": 100000}),
        ("radix-off-low-load", "tp8", 1000, {}),  # the champion itself, at N = 1000
        ("low-load-only", "tp16", 1000, {}),
    ],
)
def test_matches(catalog: Catalog, rule: str, topology: str, n: int, flags: dict[str, FlagValue]) -> None:
    assert rule in hits(catalog, cell(catalog, topology, n=n, flags=flags))


@pytest.mark.parametrize(
    ("rule", "topology", "n", "flags"),
    [
        ("fp4-kv-cache", "tp8", 7000, {"kv_cache_dtype": "fp8_e4m3"}),
        ("speculative-saturated", "tp8", 4999, {"speculative_algorithm": "EAGLE"}),
        ("flashinfer-on-pp2", "tp8", 7000, {"attention_backend": "flashinfer"}),
        ("flashinfer-on-pp2", "pp2", 7000, {"attention_backend": "fa3"}),
        ("expert-parallel-single-node", "tp8", 7000, {"moe_a2a_backend": "none"}),
        ("expert-parallel-single-node", "tp16", 7000, {"moe_a2a_backend": "deepep"}),  # two nodes
        ("manual-pp-micro-batch", "tp8", 7000, {"pp_max_micro_batch_size": 8}),
        ("manual-pp-micro-batch", "pp2", 7000, {"pp_max_micro_batch_size": 1024}),  # not small
        ("chunked-prefill-off", "tp8", 7000, {"chunked_prefill_size": 8192}),
        ("chunked-prefill-off", "tp8", 1000, {"chunked_prefill_size": -1}),
        ("max-running-requests-high", "tp8", 7000, {"max_running_requests": 4096}),
        ("memory-pair-moved-alone", "tp8", 7000, {"cuda_graph_max_bs": 4096}),  # the champion states both
        ("radix-off-low-load", "tp8", 5000, {}),
        ("radix-off-low-load", "tp16", 1000, {}),  # radix cache on
        ("low-load-only", "tp8", 5000, {}),
    ],
)
def test_does_not_match(catalog: Catalog, rule: str, topology: str, n: int, flags: dict[str, FlagValue]) -> None:
    assert rule not in hits(catalog, cell(catalog, topology, n=n, flags=flags))


def test_memory_pair(catalog: Catalog) -> None:
    alone = cell(catalog, "tp8", platform="h200x1", flags={"cuda_graph_max_bs": 256})
    assert "memory-pair-moved-alone" in hits(catalog, alone)
    # The stated fraction is no answer to it: that one is for the stated graph size.
    plain = cell(catalog, "tp8", platform="h200x1")
    stated = [pins_for(one.flags, is_cpu=False, table=table("0.5.20")).flags for one in (alone, plain)]
    assert stated[0]["mem_fraction_static"] == stated[1]["mem_fraction_static"]
    assert "the mem_fraction_static that is stated" in catalog.rules["memory-pair-moved-alone"].instead
    both = cell(catalog, "tp8", platform="h200x1", flags={"cuda_graph_max_bs": 256, "mem_fraction_static": 0.85})
    assert "memory-pair-moved-alone" not in hits(catalog, both)


@pytest.mark.parametrize(
    ("platform", "layout", "expected"),
    [
        ("h100x16", Topology("t", tp_size=8, dp_size=2), True),
        ("h100x16", Topology("t", tp_size=4, dp_size=2), True),
        ("h200x16", Topology("t", tp_size=8, dp_size=2), False),  # notes: viable on H200
        ("h100x16", Topology("t", tp_size=8, dp_size=8, enable_dp_attention=True), False),
        ("h100x16", Topology("t", tp_size=16), False),
    ],
)
def test_pure_dp(catalog: Catalog, platform: str, layout: Topology, expected: bool) -> None:
    made = cell(catalog, "tp8", platform=platform, layout=layout)
    assert ("pure-dp-does-not-fit" in hits(catalog, made)) is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        # sglang-compat.md: forced dp = tp in 0.4.3, AssertionError 0.4.6.post5 to 0.5.1.post3, ignored from 0.5.2.
        ("0.4.3.post2", set()),
        ("0.4.6.post5", {"dp-attention-with-dp-1"}),
        ("0.5.1.post3", {"dp-attention-with-dp-1"}),
        ("0.5.2", {"dp-attention-ignored"}),
        ("0.5.20", {"dp-attention-ignored"}),
        ("0.5.9+cu129.gabc", {"dp-attention-ignored"}),
        ("0.5.2rc1", set()),
        ("0.5.9rc1", {"dp-attention-ignored"}),
        (None, {"dp-attention-with-dp-1", "dp-attention-ignored"}),
        ("unknown", {"dp-attention-with-dp-1", "dp-attention-ignored"}),
    ],
)
def test_dp_attention_with_dp_1(catalog: Catalog, version: str | None, expected: set[str]) -> None:
    made = cell(catalog, "tp8", layout=Topology("t", tp_size=8, enable_dp_attention=True))
    assert hits(catalog, made, version) == expected
    real = cell(catalog, "tp8", layout=Topology("t", tp_size=8, dp_size=8, enable_dp_attention=True))
    assert hits(catalog, real, version) == set()


def test_fp4_only_where_sglang_has_it(catalog: Catalog) -> None:
    made = cell(catalog, "tp8", flags={"kv_cache_dtype": "fp4_e2m1"})
    assert hits(catalog, made, "0.5.3") == set()
    assert hits(catalog, made, "0.5.4.post3") == {"fp4-kv-cache"}


@pytest.mark.parametrize(("requests", "n", "expected"), [(8, 50, True), (9, 50, False), (8, 39, False)])
def test_cpu_rule(catalog: Catalog, requests: int, n: int, expected: bool) -> None:
    made = cell(catalog, "tp1", platform="cpu", n=n, flags={"max_running_requests": requests})
    assert ("cpu-few-running-requests" in hits(catalog, made)) is expected
    gpu = cell(catalog, "tp1", platform="h200x1", n=7000, flags={"max_running_requests": requests})
    assert "cpu-few-running-requests" not in hits(catalog, gpu)


# -- the reference ------------------------------------------------------------------------------------------


def test_the_reference_is_the_same_cell_without_the_flag(catalog: Catalog) -> None:
    risky = cell(catalog, "pp2", flags={"pp_max_micro_batch_size": 8})
    reference = reference_of(risky, catalog, "a-rule")
    assert reference.recipe.name == risky.recipe.name == "pp2-champion"
    assert reference.num_prompts == 7000
    assert {**reference.flags, "pp_max_micro_batch_size": 8} == risky.flags
    assert reference.timeout_s == risky.timeout_s


def test_expert_parallelism_is_measured_against_tp8_and_differs_in_nothing_else(catalog: Catalog) -> None:
    risky = cell(catalog, "tp8-ep8")
    reference = reference_of(risky, catalog, "a-rule")
    assert reference.topology.name == "tp8"
    assert risky.recipe == reference.recipe
    assert {**reference.flags, "ep_size": 8} == risky.flags


def test_a_reference_that_is_the_anti_pattern_itself(catalog: Catalog) -> None:
    with pytest.raises(
        R1PerfError, match=r"matches the anti-pattern a-rule, and so does its reference.*platform 'h200x16'"
    ):
        reference_of(cell(catalog, "tp8"), catalog, "a-rule")


# -- the format ---------------------------------------------------------------------------------------------

FORMAT = """\
rule:
  kind: slower
  title: a title
  when:
    - {flag: x, equals: 1}
  instead: something
  source: somewhere
"""


def rule_of(text: str) -> Rule:
    return load_rule("rule", parse_yaml(text, Path("rules.yaml")).section("rule"))


def test_a_rule() -> None:
    rule = rule_of(FORMAT)
    assert rule.kind is RuleKind.SLOWER
    assert rule.impact is None
    assert len(rule.when) == 1


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("kind: slower", "kind: slow", r":2: rule.kind: kind 'slow' is not known; did you mean 'slower'"),
        ("{flag: x, equals: 1}", "{flag: x}", r":5: .*needs exactly one of"),
        ("{flag: x, equals: 1}", "{flag: x, equals: 1, given: true}", r":5: .*needs exactly one of"),
        ("{flag: x, equals: 1}", "{flg: x, equals: 1}", r":5: .*needs one of flag, topology, load, platform"),
        ("{flag: x, equals: 1}", "{flag: x, load: n, equals: 1}", r":5: .*load: key is not known"),
        ("{flag: x, equals: 1}", "{flag: x, at_leest: 1}", r":5: .*needs exactly one of"),
        ("{flag: x, equals: 1}", "{topology: tp_sise, equals: 1}", r":5: .*'tp_sise' is not known; .*'tp_size'"),
        ("{flag: x, equals: 1}", "{platform: gpu, equals: H200}", r":5: .*'gpu' is not known"),
        ("{flag: x, equals: 1}", "{load: m, at_least: 1}", r":5: .*'m' is not known"),
        ("{flag: x, equals: 1}", "{flag: x, in: abc}", r":5: .*in: a condition cannot compare with 'abc'"),
        ("{flag: x, equals: 1}", "{flag: x, in: []}", r":5: .*in: a condition cannot compare"),
        ("{flag: x, equals: 1}", "{flag: x, given: 1}", r":5: .*given: a condition cannot compare with 1"),
        ("{flag: x, equals: 1}", "{flag: x, below: many}", r":5: .*below: a condition cannot compare with 'many'"),
        ("{flag: x, equals: 1}", "{flag: x, at_least: true}", r":5: .*at_least: a condition cannot compare"),
        ("{flag: x, equals: 1}", "{flag: x, equals: .nan}", r":5: .*equals: a condition cannot compare"),
        ("{flag: x, equals: 1}", "x", r":4: rule.when: a condition must be a mapping, got 'x'"),
        ("{flag: x, equals: 1}", "[]", r":4: rule.when: an alternative without a condition"),
        ("\n    - {flag: x, equals: 1}", " []", r":4: rule.when: must be a list of conditions"),
        ("\n    - {flag: x, equals: 1}", " {flag: x, equals: 1}", r":4: rule.when: must be a list of conditions"),
        ("  source: somewhere\n", "", r":2: rule: key 'source' is missing"),
        ("title: a title", "title: a title\n  impact: 0.5", r":4: rule.impact: must be above -1 and below 0"),
        ("title: a title", "title: a title\n  impact: -1.5", r":4: rule.impact: must be above -1 and below 0"),
        ("title: a title", "title: a title\n  sglang: 0.5", r":4: rule.sglang: must be a non-empty text"),
        ("title: a title", "title: a title\n  sglang: newer", r":4: rule.sglang: is no version specifier"),
        ("title: a title", "title: a title\n  remark: x", r":4: rule.remark: key is not known"),
    ],
)
def test_refused(old: str, new: str, complaint: str) -> None:
    assert old in FORMAT
    with pytest.raises(DataError, match=rf"^rules.yaml{complaint}"):
        rule_of(FORMAT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("equals: 1", 1, True),
        ("equals: 1", 2, False),
        ("equals: a", "a", True),
        ("in: [a, b]", "b", True),
        ("in: [a, b]", "c", False),
        ("at_least: 2", 2, True),
        ("at_least: 2", 1, False),
        ("at_most: 2", 2, True),
        ("at_most: 2", 3, False),
        ("below: 2", 2, False),
        ("below: 2", 1, True),
        ("at_least: min_conclusive_n", 5000, True),
        ("at_least: min_conclusive_n", 4999, False),
        ("given: true", 1, True),
        ("given: false", 1, False),
        ("at_least: 2", "many", False),  # no order between a number and a text
    ],
)
def test_operators(catalog: Catalog, condition: str, value: FlagValue, expected: bool) -> None:
    rule = rule_of(FORMAT.replace("equals: 1", condition))
    assert rule.matches(cell(catalog, flags={"x": value}), None) is expected


@pytest.mark.parametrize(
    ("condition", "expected"), [("given: false", True), ("given: true", False), ("at_most: 9", False)]
)
def test_an_absent_flag(catalog: Catalog, condition: str, expected: bool) -> None:
    assert rule_of(FORMAT.replace("equals: 1", condition)).matches(cell(catalog), None) is expected


def test_alternatives(catalog: Catalog) -> None:
    text = FORMAT.replace(
        "- {flag: x, equals: 1}", "- [{flag: x, equals: 1}, {flag: y, equals: 1}]\n    - [{flag: z, equals: 1}]"
    )
    rule = rule_of(text)
    assert rule.matches(cell(catalog, flags={"x": 1, "y": 1}), None)
    assert rule.matches(cell(catalog, flags={"z": 1}), None)
    assert not rule.matches(cell(catalog, flags={"x": 1}), None)
