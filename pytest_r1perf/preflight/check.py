"""Every rule over one cell."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.cell import Cell
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.memory import GPU_BYTES, Load, estimate, load_of
from pytest_r1perf.modelshape import ModelShape, shape_of
from pytest_r1perf.preflight.finding import Finding, Severity, Situation, version_of
from pytest_r1perf.preflight.flags import FLAG_RULES
from pytest_r1perf.preflight.layout import LAYOUT_RULES
from pytest_r1perf.preflight.memory import MEMORY_RULES
from pytest_r1perf.workload import SampledWorkload

_ORDER = tuple(Severity)


def check(
    cell: Cell,
    *,
    sglang_version: str | None,
    shape: ModelShape | None,
    gpu_bytes: int | None,
    gpus_available: int | None,
    load: Load | None = None,
) -> tuple[Finding, ...]:
    """What the rules find, the worst first.

    ``gpu_bytes`` is the memory of one GPU, ``gpus_available`` the GPUs (on a CPU platform: cores) of one node.
    What is ``None`` is not known: rules that need it say nothing, and an unknown ``sglang_version`` rules no
    rule out, but a refusal that hangs on it is then only a warning.
    """
    situation = Situation(
        cell=cell,
        version=version_of(sglang_version),
        shape=shape,
        gpu_bytes=gpu_bytes,
        gpus_available=gpus_available,
        memory=estimate(shape, cell, gpu_bytes) if shape is not None and gpu_bytes is not None else None,
        load=load,
    )
    rules = (*LAYOUT_RULES, *MEMORY_RULES, *FLAG_RULES)
    found = [finding for rule in rules for finding in rule(situation)]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


def findings_of(
    cell: Cell,
    sglang_version: str | None,
    config: Mapping[str, object] | None,
    workload: SampledWorkload | None,
    gpus_available: int | None,
) -> tuple[Finding, ...]:
    """:func:`check` with what a measurement or a plan has at hand: the model's ``config.json`` and the workload."""
    try:
        shape = shape_of(config, "config.json") if config is not None else None
    except R1PerfError:
        shape = None  # not a model that can be estimated: SGLang decides
    return check(
        cell,
        sglang_version=sglang_version,
        shape=shape,
        gpu_bytes=GPU_BYTES.get(cell.platform.accelerator),
        gpus_available=gpus_available,
        load=load_of(workload),
    )
