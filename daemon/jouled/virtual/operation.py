"""What passes between a machine and the plant that it drives: a setting in, times and watts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jouletune.space import Variant

REFERENCE_C = 45.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What the board's knobs say. `emc_lock_hz`: the pinned memory clock, None when it follows the load."""

    cores: int
    cpu_cap_hz: int
    cpu_min_hz: int
    gpu_cap_hz: int
    gpu_min_hz: int
    emc_cap_hz: int
    emc_lock_hz: int | None = None
    idle_states: bool = True
    railgate: bool = True
    tpcs: int = 8


@dataclass(frozen=True, slots=True)
class Power:
    """Watts per rail (in the plant's order) at 45 °C, and what each gains per degree by leakage."""

    w: tuple[float, ...]
    w_per_c: tuple[float, ...]

    def mixed(self, other: Power, share: float) -> Power:
        """`share` of the time this, else `other`."""
        return Power(
            tuple(share * a + (1 - share) * b for a, b in zip(self.w, other.w, strict=True)),
            tuple(share * a + (1 - share) * b for a, b in zip(self.w_per_c, other.w_per_c, strict=True)),
        )

    def scaled(self, factor: float) -> Power:
        """`factor` times this."""
        return Power(tuple(factor * w for w in self.w), tuple(factor * w for w in self.w_per_c))


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks at which the domains run."""

    cpu_hz: int
    gpu_hz: int
    emc_hz: int


@dataclass(frozen=True, slots=True)
class Operation:
    """How one workload runs in one setting: a request's typical service time, power in it and between two of them.

    `host_s` is the part of `service_s` in which another instance may have the GPU; `busy` is the power when all
    `instances` are.
    """

    service_s: float
    busy: Power
    between: Power
    busy_clocks: Clocks
    between_clocks: Clocks
    host_s: float = 0.0
    instances: int = 1

    @property
    def gpu_s(self) -> float:
        """The part in which the GPU is the request's alone."""
        return self.service_s - self.host_s

    @property
    def cycle_s(self) -> float:
        """From one end to the next when all instances are busy: the GPU's time, or that of a whole round."""
        if self.instances == 1:
            return self.service_s
        return max(self.gpu_s, self.service_s / self.instances)


@dataclass(frozen=True, slots=True)
class Noise:
    """What a repeated measurement sees [assumed sizes: MEASUREMENT "Known sizes"]; all are relative unless named.

    `slow_*`: so many requests take `slow_factor` times as long; `slow_clustering` is P[slow | slow] beyond chance.
    `ripple_*`: power of one rail between two averages of its sensor (standard deviation, correlation of neighbours).
    `*_between_sd`: from one start of the load, or change of the setting, to the next. `drift_*`: all rails, slowly.
    """

    request_sd: float = 0.005
    slow_ratio: float = 0.01
    slow_factor: float = 1.25
    slow_clustering: float = 0.0
    ripple_sd: float = 0.012
    ripple_correlation: float = 0.3
    energy_between_sd: float = 0.004
    latency_between_sd: float = 0.002
    drift_sd: float = 0.0015
    drift_time_s: float = 600.0
    voltage_sd_v: float = 0.002

    @property
    def mean_request(self) -> float:
        """Mean time of a request over its typical time."""
        return 1.0 + self.slow_ratio * (self.slow_factor - 1.0)


@dataclass(frozen=True, slots=True)
class Thermal:
    """One time constant between the dissipated power and the air."""

    ambient_c: float = 27.0
    c_per_w: float = 0.55
    time_s: float = 15.0


class Plant(Protocol):
    """A board's silicon with a workload."""

    @property
    def rails(self) -> tuple[str, ...]:
        """All measured rails, by their labels on the board."""

    @property
    def total(self) -> tuple[str, ...]:
        """Those whose sum is the module."""

    @property
    def noise(self) -> Noise:
        """What a repeated measurement sees."""

    @property
    def thermal(self) -> Thermal:
        """How power becomes temperature."""

    @property
    def workload(self) -> str:
        """The workload's name."""

    @property
    def inference_name(self) -> str:
        """What one inference is called."""

    def operate(self, setting: Setting, variant: Variant) -> Operation:
        """The workload in `setting`. Raises WorkloadError where it cannot run so."""

    def rest(self, setting: Setting) -> tuple[Power, Clocks]:
        """The board with no load at all."""
