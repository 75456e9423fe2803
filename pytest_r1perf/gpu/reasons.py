"""Why a GPU's clocks are below their maximum, and which of those reasons spoil a measurement.

Source of bits and meanings: NVML's reference, "Clocks event reasons" (called throttle reasons before driver
535). Which of them are INVALID is the design's: hardware slow-down, thermal and power-brake throttling; a
software power cap is normal under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Effect(Enum):
    """What a reason does to a sample."""

    NONE = "none"
    RECORDED = "recorded"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Reason:
    """One bit. ``key`` is for records, ``words`` end "was slowed down by", ``mend`` says what to do."""

    bit: int
    key: str
    words: str
    effect: Effect
    mend: str = ""


_COOLING = "look at the cooling of the node (fans, inlet temperature, neighbours)"

IDLE = Reason(0x1, "gpu_idle", "having nothing to do", Effect.NONE)
HW_SLOWDOWN = Reason(
    0x8,
    "hw_slowdown",
    "a hardware slow-down",
    Effect.INVALID,
    "look for power or temperature alarms of the node (nvidia-smi -q -d PERFORMANCE)",
)
REASONS = (
    IDLE,
    Reason(0x2, "applications_clocks_setting", "its applications clocks setting", Effect.RECORDED),
    Reason(0x4, "sw_power_cap", "its software power cap", Effect.RECORDED),
    HW_SLOWDOWN,
    Reason(0x10, "sync_boost", "its sync boost group", Effect.RECORDED),
    Reason(0x20, "sw_thermal_slowdown", "software thermal throttling", Effect.INVALID, _COOLING),
    Reason(0x40, "hw_thermal_slowdown", "hardware thermal throttling", Effect.INVALID, _COOLING),
    Reason(
        0x80,
        "hw_power_brake_slowdown",
        "the power brake",
        Effect.INVALID,
        "look at the node's power supplies and power limit",
    ),
    Reason(0x100, "display_clock_setting", "its display clock setting", Effect.RECORDED),
    Reason(0x200, "board_limit", "its board limit", Effect.RECORDED),
    Reason(0x400, "reliability", "its reliability (voltage) limit", Effect.RECORDED),
)

BY_KEY = {reason.key: reason for reason in REASONS}

# Hardware thermal and power-brake slow-down are the causes that NVML knows of the general bit.
_CAUSES_OF_HW_SLOWDOWN = 0x40 | 0x80


def reasons_in(mask: int) -> Iterator[Reason]:
    """The reasons in a bit mask: the general hardware slow-down only when no bit says its cause.

    A bit that is not known here is recorded by its number.
    """
    if mask & _CAUSES_OF_HW_SLOWDOWN:
        mask &= ~HW_SLOWDOWN.bit
    known = 0
    for reason in REASONS:
        known |= reason.bit
        if mask & reason.bit:
            yield reason
    for place in range(64):
        if mask & ~known & (1 << place):
            yield reason_of(f"bit_{1 << place:#x}")


def reason_of(key: str) -> Reason:
    """The reason of a record's key; one that is not known here is recorded."""
    return BY_KEY.get(key) or Reason(0, key, f"{key}, a reason that this version does not know", Effect.RECORDED)
