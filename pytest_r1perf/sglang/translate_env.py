"""Environment variables that SGLang releases name differently, or that need a layout. No release lists its own."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_r1perf.sglang.translate_nouns import Draft


@dataclass(frozen=True, slots=True)
class Twins:
    """An old and a new name of one variable; both are set, since no release says which of them it reads."""

    old: str
    new: str
    source: str


TWINS: tuple[Twins, ...] = (
    Twins(
        "SGL_DG_CACHE_DIR",
        "SGLANG_DG_CACHE_DIR",
        "old 0.4.6.post5 to 0.5.3.post3, new from 0.5.5.post3; 0.5.3.post3 declares the new and reads the old",
    ),
    Twins("SGL_ENABLE_JIT_DEEPGEMM", "SGLANG_ENABLE_JIT_DEEPGEMM", "old 0.4.6 to 0.5.1, new from 0.5.3"),
    Twins(
        "SGL_JIT_DEEPGEMM_PRECOMPILE",
        "SGLANG_JIT_DEEPGEMM_PRECOMPILE",
        "old 0.4.6 to 0.5.3 (compile_utils.py), new by 0.5.3.post3 (environ.py:190)",
    ),
    Twins(
        "SGL_JIT_DEEPGEMM_COMPILE_WORKERS",
        "SGLANG_JIT_DEEPGEMM_COMPILE_WORKERS",
        "old 0.4.6 to 0.5.3 (compile_utils.py), new in 0.5.5.post3 (environ.py)",
    ),
    Twins(
        "SGL_DG_USE_NVRTC",
        "SGLANG_DG_USE_NVRTC",
        "0.4.6.post5 to 0.5.20 read the old (compile_utils.py); 0.5.3 to 0.5.20 declare the new (environ.py)",
    ),
)

PP_PARTITION = "SGLANG_PP_LAYER_PARTITION"


def set_variables(draft: Draft) -> None:
    """Every variable that was asked for, into the draft."""
    for name, value in draft.env.items():
        draft.variables[name] = value
        twins = next((row for row in TWINS if name in (row.old, row.new)), None)
        if twins is not None:
            _set_twin(draft, name, value, twins.new if name == twins.old else twins.old)
        elif name == PP_PARTITION:
            _check_partition(draft, value)
        elif name == "SGLANG_CACHE_DIR" and draft.table.before("0.5.3"):
            draft.dropped(name, "not read by this release (first in 0.5.3.post3)")


def _set_twin(draft: Draft, name: str, value: str, other: str) -> None:
    if draft.env.get(other, value) != value:
        draft.cannot(name, value, f"{other} is its other name and is {draft.env[other]!r}", "give one of them")
    if other not in draft.env:
        draft.variables[other] = value
        draft.changed(name, f"{other} set, too: its name in other releases")


def _check_partition(draft: Draft, value: str) -> None:
    """One number of layers a pipeline stage (SGLang srt/distributed/utils.py, every release)."""
    stages = draft.size("pp_size")
    layers = value.split(",")
    if stages == 1:
        draft.cannot(PP_PARTITION, value, "it splits the layers of a pipeline and pp_size is 1", "give a pp_size")
    if len(layers) != stages or not all(part.strip().isdecimal() and int(part) > 0 for part in layers):
        draft.cannot(
            PP_PARTITION, value, f"pp_size is {stages}", f"give {stages} numbers of layers, e.g. '32,29' for 2"
        )
