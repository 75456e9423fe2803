"""The GPUs: are they the platform's, idle, at full clocks and power, whole and sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytest_r1perf.doctor.check import Check, fail, ok, skip, warn
from pytest_r1perf.gpu.reasons import Effect, reasons_in
from pytest_r1perf.nodeinfo import Gpu, NodeInfo
from pytest_r1perf.platform import Platform

IDLE_MIB = 1024
IDLE_SHARE = 0.02
"""A GPU without processes is idle up to the greater of the two, as before a launch (``gpu/occupancy.py``)."""


def gpu_checks(node: NodeInfo, platform: Platform, visible: str | None = None) -> list[Check]:
    """All checks of the GPUs that ``visible`` (a CUDA_VISIBLE_DEVICES) leaves; skipped on a platform without."""
    if platform.is_cpu:
        return [skip("GPUs", f"platform {platform.name!r} uses no GPU")]
    if not node.gpus:
        return [
            fail(
                "GPUs",
                f"nvidia-smi shows none on {node.hostname}, and platform {platform.name!r} needs "
                f"{platform.gpus_per_node} x {platform.accelerator}",
                "run nvidia-smi there; in a container give it the GPUs (docker run --gpus all); or name another "
                "platform with --platform",
            )
        ]
    gpus = [gpu for gpu in node.gpus if _is_visible(gpu, visible)]
    if not gpus:
        return [
            fail("GPUs", f"CUDA_VISIBLE_DEVICES is {visible!r} and leaves none", "unset it, or name GPUs that exist")
        ]
    checks = (_driver, _memory, _clocks, _power, _persistence, _mig, _ecc)
    return [_kind(gpus, platform), *(check(gpus) for check in checks)]


def _is_visible(gpu: Gpu, visible: str | None) -> bool:
    if visible is None:
        return True
    entries = [entry.strip() for entry in visible.split(",")]
    return any(
        entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry)) for entry in entries
    )


def _kind(gpus: Sequence[Gpu], platform: Platform) -> Check:
    wanted = platform.gpus_per_node or 0
    here = _counted(gpu.name for gpu in gpus)
    fitting = [gpu for gpu in gpus if gpu.name == platform.accelerator]
    if len(fitting) < wanted:
        return fail(
            "GPUs",
            f"{here}; platform {platform.name!r} needs {wanted} x {platform.accelerator} a node",
            "name a platform of these GPUs with --platform, or give one its own entry in your r1perf.yaml",
        )
    if len(gpus) > wanted:
        return warn(
            "GPUs",
            f"{here}; platform {platform.name!r} uses {wanted}: the others stay idle, or are somebody else's load",
            "choose with CUDA_VISIBLE_DEVICES, or state gpus_per_node in your r1perf.yaml",
        )
    return ok("GPUs", here)


def _driver(gpus: Sequence[Gpu]) -> Check:
    return ok("driver", f"NVIDIA {_counted(gpu.driver or 'unknown' for gpu in gpus[:1])}")


def _memory(gpus: Sequence[Gpu]) -> Check:
    name = "GPU memory"
    held = []
    for gpu in gpus:
        used, total = gpu.memory_used_mib or 0.0, gpu.memory_total_mib or 0.0
        who = [
            f"pid {one.pid} of {one.user or 'an unknown user (another container?)'} ({one.name}"
            + (f", {one.used_mib} MiB)" if one.used_mib is not None else ")")
            for one in gpu.processes or ()
        ]
        if who or used > max(IDLE_MIB, IDLE_SHARE * total):
            held.append(f"GPU {gpu.index} {used:.0f} of {total:.0f} MiB: {', '.join(who) or 'no process is shown'}")
    if held:
        return fail(
            name,
            "; ".join(held),
            "ask its user to end the process or wait for it; after a kill the memory of an H200 can take two minutes "
            "to come back; with no process shown, look on the host itself (another container, or a driver to reset)",
        )
    return ok(name, f"all {len(gpus)} idle, {min(gpu.memory_total_mib or 0.0 for gpu in gpus):.0f} MiB each")


def _clocks(gpus: Sequence[Gpu]) -> Check:
    name = "GPU clocks"
    spoilt, lowered = [], []
    for gpu in gpus:
        mask = _mask(gpu.clock_reasons)
        spoilt += [f"GPU {gpu.index} by {one.words}" for one in reasons_in(mask) if one.effect is Effect.INVALID]
        if gpu.app_clock_mhz is not None and gpu.app_clock_mhz < (gpu.app_clock_default_mhz or 0.0):
            lowered.append(f"GPU {gpu.index} {gpu.app_clock_mhz:.0f} of {gpu.app_clock_default_mhz:.0f} MHz")
        elif mask & 0x2:
            lowered.append(f"GPU {gpu.index} is held by its applications clocks setting")
    if spoilt:
        return fail(
            name,
            f"slowed down now: {', '.join(spoilt)}",
            "look at cooling and power (nvidia-smi -q -d PERFORMANCE); samples taken so are INVALID",
        )
    if lowered:
        return warn(
            name,
            f"an applications clock below the default was left: {', '.join(lowered)}",
            "nvidia-smi -rac and -rgc (as root) take it back; or keep it for all runs, baselines included",
        )
    different = sorted({gpu.sm_clock_max_mhz or 0.0 for gpu in gpus})
    if len(different) > 1:
        return warn(
            name,
            f"the GPUs' highest SM clocks differ: {different[0]:.0f} to {different[-1]:.0f} MHz",
            "the slowest sets the pace of tensor parallelism: look for a GPU with another VBIOS",
        )
    return ok(name, f"up to {gpus[0].sm_clock_max_mhz or 0:.0f} MHz (a lock by nvidia-smi -lgc shows only under load)")


def _power(gpus: Sequence[Gpu]) -> Check:
    name = "GPU power"
    low = [
        f"GPU {gpu.index} {gpu.power_limit_w:.0f} of {gpu.power_default_w:.0f} W"
        for gpu in gpus
        if gpu.power_limit_w is not None and gpu.power_default_w is not None
        if gpu.power_limit_w < gpu.power_default_w
    ]
    if low:
        return warn(
            name,
            f"the limit is below the default: {', '.join(low)}",
            f"nvidia-smi -pl {gpus[0].power_default_w:.0f} (as root), or keep it for all runs, baselines included",
        )
    if gpus[0].power_limit_w is None:
        return skip(name, "this driver does not tell the power limit")
    return ok(name, f"limit {gpus[0].power_limit_w:.0f} W, the default")


def _persistence(gpus: Sequence[Gpu]) -> Check:
    return _each(
        "persistence",
        gpus,
        lambda gpu: gpu.persistence == "Disabled",
        "off: the driver starts anew for every process",
        "start nvidia-persistenced, or nvidia-smi -pm 1 (as root)",
        warn,
    )


def _mig(gpus: Sequence[Gpu]) -> Check:
    return _each(
        "MIG",
        gpus,
        lambda gpu: gpu.mig == "Enabled",
        "on: a slice is not the GPU that the platform's numbers are of",
        "ask the host's admin for whole GPUs",
        fail,
    )


def _ecc(gpus: Sequence[Gpu]) -> Check:
    return _each(
        "ECC",
        gpus,
        lambda gpu: bool(gpu.ecc_uncorrected),
        "uncorrected memory errors since the driver started",
        "drain the node and have the GPU reset or replaced (nvidia-smi -q -d ECC)",
        fail,
    )


def _each(
    name: str,
    gpus: Sequence[Gpu],
    bad: Callable[[Gpu], bool],
    text: str,
    mend: str,
    status: Callable[[str, str, str], Check],
) -> Check:
    found = [gpu.index for gpu in gpus if bad(gpu)]
    if found:
        return status(name, f"GPU {', '.join(map(str, found))}: {text}", mend)
    return ok(name, "nothing wrong")


def _mask(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0


def _counted(names: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in sorted(counts.items()))
