"""Stands in for nvidia-ml-py: the names that jouled uses, as the real ones answer, about a GPU that is made up.

`test_nvml_names.py` holds every public name here against the real binding. Only the private ones are our own: `_gpu`
says what the GPU does; a process that cannot set it may be given its fields as JSON in NVML_STANDIN.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83
NVML_FI_DEV_POWER_INSTANT = 186
NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_VALUE_TYPE_UNSIGNED_INT = 1
NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
nvmlClocksEventReasonSwPowerCap = 0x04
nvmlClocksEventReasonHwSlowdown = 0x08
nvmlClocksEventReasonSwThermalSlowdown = 0x20
nvmlClocksEventReasonHwThermalSlowdown = 0x40
nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80
nvmlClocksThrottleReasonSwPowerCap = 0x04
nvmlClocksThrottleReasonHwSlowdown = 0x08
nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80

_TEXTS = {
    NVML_ERROR_UNINITIALIZED: "Uninitialized",
    NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
}


class NVMLError(Exception):
    """As the real one: made from a code, it becomes the class of that code."""

    def __new__(cls, value: int = 999) -> NVMLError:
        made: type[NVMLError] = _CLASSES.get(value, cls) if cls is NVMLError else cls
        error: NVMLError = Exception.__new__(made)
        error.value = value if cls is NVMLError else made.value
        return error

    value = 999

    def __str__(self) -> str:
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


class NVMLError_NotSupported(NVMLError):
    value = NVML_ERROR_NOT_SUPPORTED


class NVMLError_FunctionNotFound(NVMLError):
    value = NVML_ERROR_FUNCTION_NOT_FOUND


class NVMLError_GpuIsLost(NVMLError):
    value = NVML_ERROR_GPU_IS_LOST


class NVMLError_LibraryNotFound(NVMLError):
    value = NVML_ERROR_LIBRARY_NOT_FOUND


class NVMLLibraryMismatchError(Exception):
    """The driver's library lacks a function that has no version in its name here."""


_CLASSES: dict[int, type[NVMLError]] = {kind.value: kind for kind in NVMLError.__subclasses__()}


def _constant_w(_: float) -> float:
    return 300.0


def _constant_j(t_s: float) -> float:
    return 300.0 * t_s


@dataclass
class _Gpu:
    """What the GPU does. `power_w(t)` and its integral `energy_j(t)`; the counter moves each `step_s` (+ `phase_s`).

    `absent`: what it answers "not supported" to, by the function's name or the field's number; `unknown`: functions
    that the driver's library lacks; `hang_after`, `lost_after`: the call, counted from 1, that never returns, and the
    one from which on the GPU is lost.
    """

    now: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    power_w: Callable[[float], float] = _constant_w
    energy_j: Callable[[float], float] = _constant_j
    step_s: float = 0.1
    phase_s: float = 0.037
    call_s: float = 0.0
    count: int = 1
    temperature_c: int = 50
    load: int = 0
    reasons: int = 0
    pids: list[int] = field(default_factory=list)
    absent: list[Any] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    no_library: bool = False
    is_lost: bool = False
    hang_after: int | None = None
    lost_after: int | None = None
    calls: int = 0

    def enter(self, name: str) -> None:
        self.calls += 1
        if self.hang_after is not None and self.calls >= self.hang_after:
            while True:
                self.rest(1.0)
        self.rest(self.call_s)
        if name in self.unknown:
            raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
        if self.is_lost or (self.lost_after is not None and self.calls >= self.lost_after):
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        if name in self.absent:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)

    def counted_mj(self) -> int:
        steps = math.floor((self.now() - self.phase_s) / self.step_s)
        return int(1000 * self.energy_j(self.phase_s + steps * self.step_s))


_gpu = _Gpu(**json.loads(os.environ.get("NVML_STANDIN", "{}")))


def nvmlInit() -> None:
    if _gpu.no_library:
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)
    _gpu.enter("nvmlInit")


def nvmlDeviceGetCount() -> int:
    return _gpu.count


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if not 0 <= index < _gpu.count:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return index


def nvmlSystemGetDriverVersion() -> str:
    return "590.44.01"


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA Stand-in"


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{handle:012d}"


def nvmlDeviceGetPciInfo(handle: int) -> Any:
    return SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0".encode())


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> int:
    _gpu.enter("nvmlDeviceGetEnforcedPowerLimit")
    return 700_000


def nvmlDeviceGetFieldValues(handle: int, fieldIds: list[int]) -> list[Any]:
    _gpu.enter("nvmlDeviceGetFieldValues")
    known = {
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: (NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", _gpu.counted_mj()),
        NVML_FI_DEV_POWER_INSTANT: (NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", round(1000 * _gpu.power_w(_gpu.now()))),
    }
    values = []
    for number in fieldIds:
        kind, name, value = known[number]
        code = NVML_ERROR_NOT_SUPPORTED if number in _gpu.absent else NVML_SUCCESS
        # The real one leaves a value that it does not have at 0.
        held = SimpleNamespace(**{name: 0 if code else value})
        values.append(SimpleNamespace(fieldId=number, nvmlReturn=code, valueType=0 if code else kind, value=held))
    return values


def nvmlDeviceGetTotalEnergyConsumption(handle: int) -> int:
    _gpu.enter("nvmlDeviceGetTotalEnergyConsumption")
    return _gpu.counted_mj()


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    _gpu.enter("nvmlDeviceGetPowerUsage")
    return round(1000 * (_gpu.energy_j(_gpu.now()) - _gpu.energy_j(_gpu.now() - 1.0)))


def nvmlDeviceGetTemperatureV(handle: int, sensor: int) -> int:
    _gpu.enter("nvmlDeviceGetTemperatureV")
    return _gpu.temperature_c


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    _gpu.enter("nvmlDeviceGetTemperature")
    return _gpu.temperature_c


def nvmlDeviceGetClockInfo(handle: int, type: int) -> int:
    _gpu.enter("nvmlDeviceGetClockInfo")
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[type]


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    _gpu.enter("nvmlDeviceGetUtilizationRates")
    return SimpleNamespace(gpu=_gpu.load, memory=7)


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    _gpu.enter("nvmlDeviceGetCurrentClocksEventReasons")
    return _gpu.reasons


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> int:
    _gpu.enter("nvmlDeviceGetCurrentClocksThrottleReasons")
    return _gpu.reasons


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
    _gpu.enter("nvmlDeviceGetComputeRunningProcesses")
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in _gpu.pids]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> list[Any]:
    _gpu.enter("nvmlDeviceGetGraphicsRunningProcesses")
    return []
