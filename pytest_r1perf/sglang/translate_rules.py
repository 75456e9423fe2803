"""The table of rules: which flags are said how. A new rename is one more row in ``RENAMES``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.translate_backends import BACKEND_RULES
from pytest_r1perf.sglang.translate_graphs import GRAPH_RULES
from pytest_r1perf.sglang.translate_layout import LAYOUT_RULES
from pytest_r1perf.sglang.translate_nouns import Apply, Draft, Rule, as_it_is, option_of


@dataclass(frozen=True, slots=True)
class Rename:
    """One meaning under several names. ``flags`` are the logical ones, ``options`` the spellings, newest first."""

    flags: tuple[str, ...]
    options: tuple[str, ...]
    source: str


RENAMES: tuple[Rename, ...] = (
    Rename(
        ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
        ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
        "0.5.14 (the old one an alias up to 0.5.19, then ambiguous)",
    ),
    Rename(
        ("cuda_graph_bs", "cuda_graph_bs_decode"),
        ("--cuda-graph-bs-decode", "--cuda-graph-bs"),
        "0.5.14, as cuda_graph_max_bs",
    ),
    Rename(
        ("piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs_prefill"),
        ("--cuda-graph-max-bs-prefill", "--piecewise-cuda-graph-max-tokens"),
        "0.5.14 (the old one an alias up to 0.5.19); first in 0.5.3.post3",
    ),
    Rename(
        ("piecewise_cuda_graph_compiler", "cuda_graph_tc_compiler"),
        ("--cuda-graph-tc-compiler", "--piecewise-cuda-graph-compiler"),
        "0.5.14 (the old one an alias up to 0.5.19)",
    ),
    Rename(
        ("pp_max_micro_batch_size", "max_micro_batch_size"),
        ("--pp-max-micro-batch-size", "--max-micro-batch-size"),
        "0.5.3.post3 (0.5.3 has the old one, there is no alias)",
    ),
)


def _renamed(options: tuple[str, ...]) -> Apply:
    def apply(draft: Draft, flag: str, value: FlagValue) -> None:
        option = next((name for name in options if draft.table.usable(name) is not None), None)
        if option is None:
            as_it_is(draft, flag, value)
            return
        draft.emit(flag, option, value)
        if option != option_of(flag):
            draft.changed(flag, f"said as {option}")

    return apply


_ALL: tuple[Rule, ...] = (
    *LAYOUT_RULES,
    *GRAPH_RULES,
    *BACKEND_RULES,
    *(Rule(row.flags, _renamed(row.options), row.source) for row in RENAMES),
)

RULES: Mapping[str, Rule] = {flag: rule for rule in _ALL for flag in rule.flags}
"""The rule of every logical flag that needs one; all others are :func:`as_it_is`."""
