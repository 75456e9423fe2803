"""What of a host must be as it was for rounds of two halves of a session to be pooled (``--perf-resume``)."""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence

from pytest_r1perf.nodeinfo import NodeInfo, inspect_here

_OF_A_GPU = ("driver", "sm_clock_max_mhz", "app_clock_mhz", "power_limit_w", "persistence", "mig", "ecc")
"""Set by an administrator or a job before this one (locked clocks, a power cap), not by the load."""


def host_state(infos: Sequence[NodeInfo], devices: Sequence[str]) -> dict[str, object]:
    """Names, kernels and the settings of the GPUs (UUIDs of ``devices``); ``infos`` is empty for this host.

    Raises :class:`R1PerfError` when this host's GPUs cannot be looked at.
    """
    if not infos and devices == ("cpu",):  # a process less to start
        return {"hostname": socket.gethostname(), "kernel": platform.release()}
    state: dict[str, object] = {}
    for number, info in enumerate(infos or (inspect_here(),)):
        suffix = f" {number}" if number else ""
        state[f"hostname{suffix}"] = info.hostname
        state[f"kernel{suffix}"] = info.kernel
        used = [gpu for gpu in info.gpus or () if gpu.uuid in devices or infos]
        for name in _OF_A_GPU:
            values = sorted({str(getattr(gpu, name)) for gpu in used})
            if used:
                state[f"gpu {name}{suffix}"] = ", ".join(values)
    return state
