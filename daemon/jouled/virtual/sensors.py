"""The attributes that a running machine computes: power sensors, temperatures, clocks, load, over-current counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from jouled.virtual.chips import converted, live
from jouled.virtual.clock import SimClock
from jouled.virtual.faults import matches
from jouled.virtual.kernel import CPU, DEBUG, EMC, Kernel
from jouled.virtual.operation import Clocks, Plant
from jouled.virtual.specs import BoardSpec
from jouled.virtual.supply import Supply

OVER_CURRENT_PUBLISH_S = 2.0
_THERMAL = "/sys/devices/virtual/thermal"
_OFFSETS_C = {"cpu": 0.4, "gpu": 0.8, "soc0": -0.6, "soc1": -0.9, "soc2": -0.7, "tj": 0.9}


class Machine(Protocol):
    """What the sensors see of the machine."""

    spec: BoardSpec
    plant: Plant
    kernel: Kernel
    clock: SimClock
    supply: Supply

    def clocks(self) -> Clocks:
        """At which clocks the domains run now."""

    def gpu_load(self) -> float:
        """The share of time in which the GPU is busy."""

    def check_alive(self) -> None:
        """Raises where the board has reset."""


class Sensors:
    """Answers reads of live attributes by their path, however it is spelt."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._table: dict[str, Callable[[], int]] = {}
        self._known: dict[str, Callable[[], int] | None] = {}
        self._block = -1
        self._codes: dict[str, dict[str, int]] = {}
        self._dark: frozenset[str] = frozenset()

    def renew(self) -> None:
        """After a boot: devices have other numbers."""
        machine = self._machine
        self._known, self._table, self._block = {}, {}, -1
        for chip in machine.spec.chips:
            for found in live(machine.kernel.root, machine.spec, chip):
                if found.label in machine.plant.rails:
                    self._table[found.path] = self._quantity(found.label, found.quantity)
        for cluster in machine.spec.clusters:
            self._table[f"{CPU}/cpufreq/policy{cluster[0]}/scaling_cur_freq"] = lambda: machine.clocks().cpu_hz // 1000
        layout = machine.kernel.layout
        self._table[f"{layout.devfreq}/cur_freq"] = lambda: machine.clocks().gpu_hz
        self._table[f"{layout.gpu}/load"] = lambda: round(1000 * machine.gpu_load())
        self._table[f"{EMC}/rate"] = lambda: machine.clocks().emc_hz
        self._add_thermal()
        folder = self._hwmon("/sys/devices/platform/soctherm-oc-event")
        for name in ("oc1", "oc2", "oc3"):
            self._table[f"{folder}/{name}_event_cnt"] = self._over_current(name)

    def _hwmon(self, device: str) -> str:
        name = os.listdir(f"{self._machine.kernel.root}{device}/hwmon")[0]
        return f"{device}/hwmon/{name}"

    def _add_thermal(self) -> None:
        kernel = self._machine.kernel
        places = {kind: place for place, kind in kernel.layout.zones}
        for name in os.listdir(kernel.root + _THERMAL):
            place = places.get(kernel.load(f"{_THERMAL}/{name}/type"))
            if name.startswith("thermal_zone") and place in _OFFSETS_C:
                self._table[f"{_THERMAL}/{name}/temp"] = self._temperature(_OFFSETS_C[place])

    # --- values

    def _temperature(self, offset_c: float) -> Callable[[], int]:
        machine = self._machine
        return lambda: round((machine.supply.temperature_c(machine.clock.monotonic_s()) + offset_c) * 32) * 1000 // 32

    def _over_current(self, name: str) -> Callable[[], int]:
        def count() -> int:
            faults = self._machine.kernel.faults
            rate_hz: float = faults.get("oc_rate_hz", {}).get(name, 0.0)
            extra: int = faults.get("oc_count", {}).get(name, 0)
            published_s = self._machine.clock.monotonic_s() // OVER_CURRENT_PUBLISH_S * OVER_CURRENT_PUBLISH_S
            return int(rate_hz * published_s) + extra

        return count

    def _quantity(self, label: str, quantity: str) -> Callable[[], int]:
        return lambda: self._converted()[label][quantity]

    def _converted(self) -> dict[str, dict[str, int]]:
        """Per rail what its chip tells of the last average that is complete, rounded after averaging."""
        machine = self._machine
        block = machine.supply.block(machine.clock.monotonic_s()) - 1
        if block != self._block:
            watts, volts = machine.supply.seen(block)
            index = {rail: number for number, rail in enumerate(machine.plant.rails)}
            self._codes = {
                channel.label: converted(chip, channel, watts[index[channel.label]], volts[index[channel.label]])
                for chip in machine.spec.chips
                for channel in chip.channels
                if channel is not None and channel.label in index
            }
            self._block = block
        return self._codes

    # --- reading

    def follow_switches(self) -> None:
        """Which channels are switched off."""
        kernel = self._machine.kernel
        self._known = {}
        self._dark = frozenset(
            path for path in self._table if path.endswith("_input") and "/hwmon/" in path and _is_off(kernel, path)
        )

    def read(self, path: str) -> bytes | None:
        """The text of a live attribute, None for every other path."""
        self._machine.check_alive()
        try:
            value = self._known[path]
        except KeyError:
            canonical = self._machine.kernel.canonical(path)
            value = None if canonical in self._dark else self._table.get(canonical)
            if "/cpu" not in path and canonical not in self._dark:
                self._known[path] = value
        if value is None or self._is_overruled(path):
            return None
        return b"%d\n" % value()

    def _is_overruled(self, path: str) -> bool:
        kernel = self._machine.kernel
        faults = kernel.faults.all()
        if not faults:
            return False
        patterns = [*faults.get("values", ()), *faults.get("read_errors", ()), *faults.get("hidden", ())]
        hidden = path.startswith(DEBUG) and faults.get("user") is not None
        return hidden or any(matches(path, pattern) for pattern in patterns)

    def publish(self) -> None:
        """Write all live values into their files, for readers outside this process."""
        kernel = self._machine.kernel
        for path, value in self._table.items():
            if os.path.exists(kernel.root + path) and path not in self._dark:
                kernel.store(path, str(value()))


def _is_off(kernel: Kernel, path: str) -> bool:
    """Only an INA3221 has switches."""
    folder, _, name = path.rpartition("/")
    switch = f"{folder}/in{name.removesuffix('_input')[-1]}_enable"
    return os.path.exists(kernel.root + switch) and kernel.load(switch) == "0"
