"""What one GPU tells by NVML: only in the process that reads it (nvml_child), where a call may hang.

Every field is asked for by itself, and one that this GPU, driver or binding does not have is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The names have changed with driver 530; the old ones go with CUDA 14.
_REASONS = {
    "hw_slowdown": "HwSlowdown",
    "hw_thermal_slowdown": "HwThermalSlowdown",
    "sw_thermal_slowdown": "SwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "sw_power_cap": "SwPowerCap",
}
_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML_VALUE_TYPE_*


class Unusable(Exception):
    """This GPU cannot be measured here; `code` for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Reading:
    """One read of both fields between two times; None: this GPU does not tell."""

    begin_s: float
    end_s: float
    energy_j: float | None
    power_w: float | None


class Device:
    """One GPU by its index among NVML's, which are in the order of the PCI bus. Raises Unusable."""

    def __init__(self, nvml: Any, index: int, now: Callable[[], float]) -> None:
        self._nvml = nvml
        self._now = now
        self._absent = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            if not 0 <= index < count:
                raise Unusable("no_device", f"wanted GPU {index}, NVML has {count}")
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            raise Unusable("no_nvml", f"NVML does not answer: {error}") from error
        self._index = index
        self._has_fields = any(value is not None for value in self._fields())
        self.power = self._power_source()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer of one call, None where this GPU, driver or binding has none. Raises NVMLError otherwise."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._absent:
                return None
            raise
        except self._nvml.NVMLLibraryMismatchError:
            return None

    def _fields(self) -> tuple[float | None, float | None]:
        """mJ and mW, as fields."""
        nvml = self._nvml
        wanted = [nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, nvml.NVML_FI_DEV_POWER_INSTANT]
        values = self._ask("nvmlDeviceGetFieldValues", wanted)
        if values is None:
            return None, None
        energy, power = (self._field(value) for value in values)
        return energy, power

    def _field(self, value: Any) -> float | None:
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return float(getattr(value.value, _VALUE_NAMES[value.valueType]))

    def _power_source(self) -> str | None:
        if self._fields()[1] is not None:
            return "instant"
        return None if self._ask("nvmlDeviceGetPowerUsage") is None else "average"

    def read(self) -> Reading:
        """Energy and power, now. Raises NVMLError."""
        begin_s = self._now()
        energy_mj, power_mw = self._fields() if self._has_fields else (None, None)
        if energy_mj is None:
            energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        end_s = self._now()
        if power_mw is None and self.power == "average":
            power_mw = self._ask("nvmlDeviceGetPowerUsage")
        return Reading(begin_s, end_s, _thousandth(energy_mj), _thousandth(power_mw))

    def about(self) -> dict[str, Any]:
        """What GPU it is; what it does not tell is null."""
        nvml = self._nvml
        pci = self._ask("nvmlDeviceGetPciInfo")
        return {
            "index": self._index,
            "name": _text(self._ask("nvmlDeviceGetName")),
            "uuid": _text(self._ask("nvmlDeviceGetUUID")),
            "pci_bus_id": None if pci is None else _text(pci.busId),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": _thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            "power": self.power,
        }

    def look(self) -> dict[str, Any]:
        """All that is seen beside power; a field that this GPU does not tell is null. Raises NVMLError."""
        nvml = self._nvml
        temperature_c = self._ask("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)
        if temperature_c is None:
            temperature_c = self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return {
            "temperature_c": temperature_c,
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "load": None if rates is None else rates.gpu / 100,
            "reasons": self._reasons(),
            "pids": self._pids(),
        }

    def _reasons(self) -> list[str] | None:
        for word in ("Event", "Throttle"):
            bits = self._ask(f"nvmlDeviceGetCurrentClocks{word}Reasons")
            if bits is not None:
                named = {name: getattr(self._nvml, f"nvmlClocks{word}Reason{end}") for name, end in _REASONS.items()}
                return [name for name, bit in named.items() if bits & bit]
        return None

    def _pids(self) -> list[int] | None:
        lists = [self._ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
        known = [found for found in lists if found is not None]
        return sorted({process.pid for found in known for process in found}) if known else None


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
