"""A scripted plant whose truth is known exactly, for judging measurements and decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jouled.virtual.operation import Clocks, Noise, Operation, Power, Setting, Thermal
from jouletune.space import Variant


def _distance(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class FixedMode:
    """A mode of a scripted plant: exact joules per inference on the total, and seconds a request."""

    energy_j: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class FixedPlant:
    """A scripted plant, its truth exactly known: per (CPU, GPU, EMC cap in Hz) a `FixedMode`.

    `shares` splits the total over the rails; temperature changes nothing; a setting that is not named (one passes
    through some on the way from mode to mode) runs like the nearest that is.
    """

    modes: dict[tuple[int, int, int], FixedMode]
    rails: tuple[str, ...]
    shares: tuple[float, ...]
    rest_w: float = 8.0
    noise: Noise = field(default_factory=Noise)
    thermal: Thermal = field(default_factory=Thermal)
    workload: str = "fixed"
    inference_name: str = "inference"

    @property
    def total(self) -> tuple[str, ...]:
        """Every rail counts."""
        return self.rails

    def _power(self, total_w: float) -> Power:
        return Power(tuple(total_w * share for share in self.shares), (0.0,) * len(self.rails))

    def operate(self, setting: Setting, variant: Variant) -> Operation:
        """What the table says."""
        caps = (setting.cpu_cap_hz, setting.gpu_cap_hz, setting.emc_cap_hz)
        mode = self.modes[min(self.modes, key=lambda named: _distance(named, caps))]
        # a request's mean time is a little over its typical one; energy_j is exact on the mean
        busy_w = mode.energy_j * variant.batch / (mode.latency_s * self.noise.mean_request)
        clocks = Clocks(setting.cpu_cap_hz, setting.gpu_cap_hz, setting.emc_cap_hz)
        return Operation(mode.latency_s, self._power(busy_w), self._power(self.rest_w), clocks, clocks)

    def rest(self, setting: Setting) -> tuple[Power, Clocks]:
        """Idle: `rest_w`."""
        clocks = Clocks(setting.cpu_min_hz, setting.gpu_min_hz, setting.emc_cap_hz)
        return self._power(self.rest_w), clocks
