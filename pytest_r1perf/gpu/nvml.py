"""NVML, as far as we need it: read only, typed, and never an exception because there is none.

    nvml = open_nvml()
    if isinstance(nvml, NvmlAbsent):
        print(nvml.reason)

The library is the extra ``gpu`` (nvidia-ml-py, module ``pynvml``) and is imported when first needed. NVML
doesn't heed CUDA_VISIBLE_DEVICES: it shows every GPU that the process may open, so we always ask by UUID.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pytest_r1perf.errors import R1PerfError

T = TypeVar("T")

ANSWER_S = 60.0
"""How long one question may take. Without persistence mode the first one starts the GPUs: seconds each."""

# nvml.h: nvmlClockType_t, nvmlTemperatureSensors_t, and "not available" as the greatest number of its type.
_CLOCK_SM = 1
_CLOCK_MEM = 2
_SENSOR_GPU = 0
_UNKNOWN_BYTES = 2**64 - 1


class NvmlError(R1PerfError):
    """NVML did not answer: the GPU is not there, is lost, or the driver cannot tell."""


class NvmlHangs(NvmlError):
    """NVML did not answer in time; the thread that asked is left behind, so don't ask again and again."""


@dataclass(frozen=True, slots=True)
class NvmlAbsent:
    """Why there is no NVML here, in words that end a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """What does not change while a benchmark runs; ``None`` where the driver doesn't tell.

    ``index`` is NVML's, the one ``nvidia-smi`` shows. With ``mig`` the GPU is cut into instances.
    """

    uuid: str
    name: str = "GPU"
    index: int | None = None
    max_sm_mhz: int | None = None
    max_mem_mhz: int | None = None
    power_limit_w: float | None = None
    persistence: bool | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory in bytes. ``reserved`` by driver and firmware; 0 where the driver does not tell it apart."""

    total: int
    free: int
    reserved: int = 0

    @property
    def allocated(self) -> int:
        """What somebody holds.

        Not NVML's own ``used``, which holds the reserved part in version 1 and, by NVIDIA's own pages, does
        and doesn't in version 2.
        """
        return max(0, self.total - self.free - self.reserved)


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a compute context. ``pid`` may be of another PID namespace; ``used`` in bytes, if known."""

    pid: int
    used: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one GPU; ``None`` where the driver doesn't tell.

    ``utilization_pct`` is the share of the driver's last period (1/6 to 1 s) in which a kernel ran;
    ``memory_bytes`` is allocated; ``reasons`` is the bit mask of :mod:`pytest_r1perf.gpu.reasons`.
    """

    sm_mhz: int | None = None
    mem_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    memory_bytes: int | None = None
    reasons: int | None = None


class Nvml(Protocol):
    """The questions we ask. Each raises :class:`NvmlError`, and may be slow: see :func:`within`."""

    def uuids(self) -> tuple[str, ...]:
        """All GPUs that this process may open, in NVML's order (by PCI bus)."""
        ...

    def describe(self, uuid: str) -> Gpu:
        """What stays as it is."""
        ...

    def read(self, uuid: str) -> Reading:
        """What changes; an error only when nothing at all can be read."""
        ...

    def memory(self, uuid: str) -> Memory:
        """How much is taken."""
        ...

    def processes(self, uuid: str) -> tuple[Process, ...]:
        """Who computes there, of any user."""
        ...


def open_nvml() -> Nvml | NvmlAbsent:
    """NVML, or why there is none. It is not shut down again: that the driver stays up is what we want."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old package of the same module name warns of itself
            module = importlib.import_module("pynvml")
    except ImportError:
        return NvmlAbsent("the Python package nvidia-ml-py is not installed (pip install 'pytest-r1perf[gpu]')")
    except Exception as error:
        return NvmlAbsent(f"the Python module pynvml cannot be imported ({error or type(error).__name__})")
    library = _Library(module)
    try:
        within(lambda: library.ask("nvmlInit"))
        if not within(library.uuids):
            return NvmlAbsent("the NVIDIA driver shows no GPU to this process")
    except NvmlError as error:
        return NvmlAbsent(f"the NVIDIA driver does not answer ({error})")
    return library


def within(call: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
    """The answer of ``call``, which runs in a thread of its own: a driver that hangs can't be interrupted.

    Raises :class:`NvmlHangs` after ``timeout_s``, and whatever ``call`` raises.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="r1perf-nvml", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the user's limit of threads is reached
        raise NvmlError(f"no thread could be started to ask it ({error})") from None
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not answers:
        raise NvmlHangs(f"no answer within {timeout_s:g} s")
    return answers[0]


class _Library:
    """The module ``pynvml``, of nvidia-ml-py 11.525 or newer and any driver's age."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._handles: dict[str, Any] = {}

    def ask(self, name: str, *arguments: object) -> Any:
        function = getattr(self._module, name, None)
        if function is None:
            raise NvmlError(f"{name}: not in this version of nvidia-ml-py")
        try:
            return function(*arguments)
        except Exception as error:  # NVMLError, and NVMLLibraryMismatchError, which is none
            raise NvmlError(f"{name}: {error or type(error).__name__}") from None

    def _first(self, *calls: tuple[object, ...]) -> Any:
        """The answer of the first call that has one: a function's new name, then its old one."""
        failed: NvmlError | None = None
        for name, *arguments in calls:
            try:
                return self.ask(str(name), *arguments)
            except NvmlError as error:
                failed = failed or error
        raise failed or NvmlError("nothing was asked")

    def _maybe(self, *calls: tuple[object, ...]) -> Any:
        try:
            return self._first(*calls)
        except NvmlError:
            return None

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self.ask("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def uuids(self) -> tuple[str, ...]:
        found = []
        for index in range(int(self.ask("nvmlDeviceGetCount"))):
            try:
                found.append(_text(self.ask("nvmlDeviceGetUUID", self.ask("nvmlDeviceGetHandleByIndex", index))))
            except NvmlError:
                continue  # one lost GPU does not hide the others
        return tuple(found)

    def describe(self, uuid: str) -> Gpu:
        handle = self._handle(uuid)
        limit = self._maybe(("nvmlDeviceGetEnforcedPowerLimit", handle), ("nvmlDeviceGetPowerManagementLimit", handle))
        persistence = self._maybe(("nvmlDeviceGetPersistenceMode", handle))
        mig = self._maybe(("nvmlDeviceGetMigMode", handle))
        return Gpu(
            uuid=uuid,
            name=_text(self._maybe(("nvmlDeviceGetName", handle)) or "GPU"),
            index=_whole(self._maybe(("nvmlDeviceGetIndex", handle))),
            max_sm_mhz=_whole(self._maybe(("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM))),
            max_mem_mhz=_whole(self._maybe(("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_MEM))),
            power_limit_w=None if limit is None else int(limit) / 1000,
            persistence=None if persistence is None else bool(persistence),
            mig=bool(mig and mig[0]),
        )

    def read(self, uuid: str) -> Reading:
        handle = self._handle(uuid)
        lost: NvmlError | None = None
        values: dict[str, Any] = {}
        questions: Mapping[str, Callable[[], Any]] = {
            "sm_mhz": lambda: int(self.ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM)),
            "mem_mhz": lambda: int(self.ask("nvmlDeviceGetClockInfo", handle, _CLOCK_MEM)),
            "power_w": lambda: int(self.ask("nvmlDeviceGetPowerUsage", handle)) / 1000,
            "temperature_c": lambda: self._temperature(handle),
            "utilization_pct": lambda: int(self.ask("nvmlDeviceGetUtilizationRates", handle).gpu),
            "memory_bytes": lambda: self.memory(uuid).allocated,
            "reasons": lambda: self._reasons(handle),
        }
        for key, question in questions.items():
            try:
                values[key] = question()
            except NvmlError as error:
                lost = lost or error
        if not values:
            raise lost or NvmlError(f"{uuid} tells nothing")
        return Reading(**values)

    def _temperature(self, handle: Any) -> int:
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        return int(self._first(*((name, handle, _SENSOR_GPU) for name in names)))

    def _reasons(self, handle: Any) -> int:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return int(self._first(*((name, handle) for name in names)))

    def memory(self, uuid: str) -> Memory:
        handle, version = self._handle(uuid), getattr(self._module, "nvmlMemory_v2", None)
        calls: list[tuple[object, ...]] = [("nvmlDeviceGetMemoryInfo", handle)]
        if version is not None:
            calls.insert(0, ("nvmlDeviceGetMemoryInfo", handle, version))
        info = self._first(*calls)
        return Memory(int(info.total), int(info.free), int(getattr(info, "reserved", 0)))

    def processes(self, uuid: str) -> tuple[Process, ...]:
        handle = self._handle(uuid)
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
        found = []
        for process in self._first(*((name, handle) for name in names)):
            used = process.usedGpuMemory
            found.append(Process(int(process.pid), None if used in (None, _UNKNOWN_BYTES) else int(used)))
        return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
