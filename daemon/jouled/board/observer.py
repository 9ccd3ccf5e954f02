"""What is seen beside power and completions: heat, what throttles, clocks, and who else uses the GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from jouled.board.clocks import ClockReading, read_clocks
from jouled.board.gpuload import GpuClient, read_gpu_clients, read_gpu_load
from jouled.board.thermal import IGNORED_COOLING, ThermalSensors, ThermalState

if TYPE_CHECKING:
    from jouled.board.domains import Domains
    from jouled.board.sysfs import Sysfs


class Observer(Protocol):
    """One source of what is seen. Each of these may raise SensorError where the source itself is gone."""

    @property
    def by_design(self) -> frozenset[str]:
        """What slows a clock down because the operator has set it so: no disturbance."""

    @property
    def counts_over_current(self) -> bool:
        """Are there event counters, which the kernel publishes every 2 s?"""

    def thermal(self) -> ThermalState:
        """Heat and what throttles, since the last call."""

    def clocks(self) -> ClockReading:
        """The clocks, now."""

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        """Processes with GPU memory that are not among the pids `own`, as far as this source tells."""

    def load(self) -> float | None:
        """How busy the GPU is, 0 to 1; None: not told."""


class SysfsObserver:
    """What the kernel of a Jetson shows."""

    by_design: frozenset[str] = frozenset()
    counts_over_current = True

    def __init__(self, sysfs: Sysfs, domains: Domains, *, ignored_cooling: Sequence[str] = IGNORED_COOLING) -> None:
        self._sysfs = sysfs
        self._domains = domains
        self._sensors = ThermalSensors(sysfs, ignored_cooling=ignored_cooling)

    def thermal(self) -> ThermalState:
        return self._sensors.read()

    def clocks(self) -> ClockReading:
        return read_clocks(self._sysfs, self._domains)

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        return tuple(client for client in read_gpu_clients(self._sysfs) if client.pid not in own)

    def load(self) -> float | None:
        return None if self._domains.gpu is None else read_gpu_load(self._sysfs, self._domains.gpu)


class Together:
    """Two sources of one machine: a Jetson's own, and NVML where it answers there. Clocks are the first one's."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second
        self.by_design = first.by_design | second.by_design
        self.counts_over_current = first.counts_over_current or second.counts_over_current

    def thermal(self) -> ThermalState:
        first, second = self._first.thermal(), self._second.thermal()
        return ThermalState(
            zones_c={**second.zones_c, **first.zones_c},
            cooling={**second.cooling, **first.cooling},
            over_current={**second.over_current, **first.over_current},
            alarms=first.alarms + second.alarms,
        )

    def clocks(self) -> ClockReading:
        return self._first.clocks()

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        return tuple(sorted({*self._first.others(own), *self._second.others(own)}))

    def load(self) -> float | None:
        load = self._first.load()
        return self._second.load() if load is None else load
