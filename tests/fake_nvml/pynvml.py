# ruff: noqa: N802, N816  (the names are NVIDIA's)
"""Stands for the module `pynvml` of nvidia-ml-py on a host whose GPUs are described by a JSON file.

The file is named by R1PERF_FAKE_NVML and read again at every call:

    {"init_error": null,                         text of the error that nvmlInit raises
     "absent": ["nvmlDeviceGetTemperatureV"],    functions that this version of the module lacks
     "gpus": [{"uuid": "GPU-..", "name": "NVIDIA H200", "sm_mhz": 1980, "reasons": 4, "total": .., "free": ..,
               "reserved": .., "processes": [[pid, bytes or null]], "mig": false,
               "errors": {"nvmlDeviceGetPowerUsage": "Not Supported"},  functions that fail for this GPU
               "hangs": false}]}         whether calls wait until this is false again; the first makes FILE.hung

A value that is a list of numbers gives one of them a call, and the last one from then on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

nvmlMemory_v2 = 0x02000028

_calls: dict[tuple[str, str], int] = {}


class NVMLError(Exception):
    """As in the real module, an ordinary exception."""


class NVMLLibraryMismatchError(Exception):
    """As in the real module, not an NVMLError."""


def _control() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(Path(os.environ["R1PERF_FAKE_NVML"]).read_text()))


def _find(handle: object) -> dict[str, Any]:
    for gpu in _control()["gpus"]:
        if gpu["uuid"] == handle:
            return dict(gpu)
    raise NVMLError("GPU is lost")


def _gpu(handle: object, function: str) -> dict[str, Any]:
    gpu = _find(handle)
    if function in gpu.get("errors", {}):
        raise NVMLError(gpu["errors"][function])
    while gpu.get("hangs"):
        Path(os.environ["R1PERF_FAKE_NVML"] + ".hung").touch()
        time.sleep(0.01)
        gpu = _find(handle)
    return gpu


def _value(handle: object, function: str, key: str, default: Any = 0) -> Any:
    value = _gpu(handle, function).get(key, default)
    if isinstance(value, list):
        turn = _calls.get((str(handle), key), 0)
        _calls[str(handle), key] = turn + 1
        return value[min(turn, len(value) - 1)]
    return value


def nvmlInit() -> None:
    error = _control().get("init_error")
    if error:
        raise NVMLError(error)


def nvmlDeviceGetCount() -> int:
    return len(_control()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    return str(_control()["gpus"][index]["uuid"])


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if all(gpu["uuid"] != uuid for gpu in _control()["gpus"]):
        raise NVMLError("Not Found")
    return uuid


def nvmlDeviceGetUUID(handle: str) -> str:
    return str(_gpu(handle, "nvmlDeviceGetUUID")["uuid"])


def nvmlDeviceGetName(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetName", "name", "NVIDIA H200")


def nvmlDeviceGetIndex(handle: str) -> int:
    return [gpu["uuid"] for gpu in _control()["gpus"]].index(handle)


def nvmlDeviceGetPersistenceMode(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetPersistenceMode", "persistence", 1)


def nvmlDeviceGetMigMode(handle: str) -> list[int]:
    return [int(_value(handle, "nvmlDeviceGetMigMode", "mig", 0))] * 2


def nvmlDeviceGetEnforcedPowerLimit(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetEnforcedPowerLimit", "power_limit_mw", 700_000)


def nvmlDeviceGetMaxClockInfo(handle: str, kind: int) -> Any:
    key, default = ("max_sm_mhz", 1980) if kind == 1 else ("max_mem_mhz", 3201)
    return _value(handle, "nvmlDeviceGetMaxClockInfo", key, default)


def nvmlDeviceGetClockInfo(handle: str, kind: int) -> Any:
    key, default = ("sm_mhz", 1980) if kind == 1 else ("mem_mhz", 3201)
    return _value(handle, "nvmlDeviceGetClockInfo", key, default)


def nvmlDeviceGetPowerUsage(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetPowerUsage", "power_mw", 412_500)


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> Any:
    return _value(handle, f"nvmlDeviceGetTemperature:{sensor}", "temperature_c", 55)


def nvmlDeviceGetTemperatureV(handle: str, sensor: int) -> Any:
    return _value(handle, f"nvmlDeviceGetTemperatureV:{sensor}", "temperature_c", 55)


def nvmlDeviceGetUtilizationRates(handle: str) -> SimpleNamespace:
    return SimpleNamespace(gpu=_value(handle, "nvmlDeviceGetUtilizationRates", "utilization_pct", 97), memory=40)


def nvmlDeviceGetCurrentClocksEventReasons(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetCurrentClocksEventReasons", "reasons")


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> Any:
    return _value(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", "reasons")


def nvmlDeviceGetMemoryInfo(handle: str, version: int | None = None) -> SimpleNamespace:
    function = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo"
    total = int(_value(handle, function, "total", 143771 << 20))
    reserved = int(_value(handle, function, "reserved", 600 << 20))
    free = int(_value(handle, function, "free", (143771 - 600) << 20))
    if version:
        return SimpleNamespace(version=version, total=total, reserved=reserved, free=free, used=total - free - reserved)
    return SimpleNamespace(total=total, free=free, used=total - free)


def nvmlDeviceGetComputeRunningProcesses(handle: str) -> list[SimpleNamespace]:
    if "nvmlDeviceGetComputeRunningProcesses_v3" in _gpu(handle, "").get("errors", {}):
        raise NVMLLibraryMismatchError("Unversioned function called")
    return nvmlDeviceGetComputeRunningProcesses_v2(handle)


def nvmlDeviceGetComputeRunningProcesses_v2(handle: str) -> list[SimpleNamespace]:
    gpu = _gpu(handle, "nvmlDeviceGetComputeRunningProcesses_v2")
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.get("processes", [])]


def _leave_out(names: list[str], functions: dict[str, Callable[..., Any]]) -> None:
    for name in names:
        del functions[name]


_leave_out(_control().get("absent", []), globals())
