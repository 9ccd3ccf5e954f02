"""What a search minimises: energy, energy x latency, or the time per inference under a limit of power (stdlib only).

Each is a positive number per inference, its *cost*; everything is compared by ratios of costs, so that `min_gain` and
a saving mean the same for all three. `latency_s` is the request's latency at the percentile that is asked for
(`target.latency_percentile`), the point estimate and not its upper limit, and of the whole batch.

In logarithms costs and power are sums of what the model knows, ln(energy_j) and ln(latency_s):

    back to back   inferences per second = batch x instances / latency
    at a rate      inferences per second = rate x batch
    always         power = energy per inference x inferences per second

The first holds for the mean latency; at a percentile it is off by a factor that is nearly the same for all
candidates, and that whoever uses it takes from the windows seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from jouletune.space import Variant


class Objective(str, Enum):
    """What is to be least. `throughput` needs a limit of power: without one the fastest mode is always the best."""

    ENERGY = "energy"
    ENERGY_DELAY = "energy_delay"
    THROUGHPUT = "throughput"

    @property
    def unit(self) -> str:
        """Of `cost`, per inference."""
        return _UNITS[self]

    @property
    def noun(self) -> str:
        """What there is to be less of, per inference."""
        return _NOUNS[self]

    def cost(self, energy_j: float, latency_s: float, throughput_hz: float) -> float:
        """The number to minimise, of one inference: joules, joule-seconds, or seconds (1 / throughput)."""
        if self is Objective.ENERGY:
            return energy_j
        return energy_j * latency_s if self is Objective.ENERGY_DELAY else 1.0 / throughput_hz

    def se_ratio(self, energy_ratio: float, latency_ratio: float) -> float:
        """Relative standard error of one window's cost, from those of its energy and its latency.

        A window counts its inferences exactly; what their number scatters shows between windows only.
        """
        if self is Objective.THROUGHPUT:
            return 0.0
        return energy_ratio if self is Objective.ENERGY else math.hypot(energy_ratio, latency_ratio)

    def sensor_ratio(self, energy_ratio: float) -> float:
        """The part of the cost's relative error that the power sensor's steps cause."""
        return 0.0 if self is Objective.THROUGHPUT else energy_ratio


_UNITS = {Objective.ENERGY: "J", Objective.ENERGY_DELAY: "J s", Objective.THROUGHPUT: "s"}
_NOUNS = {Objective.ENERGY: "energy", Objective.ENERGY_DELAY: "energy x latency", Objective.THROUGHPUT: "time"}


@dataclass(frozen=True, slots=True)
class LogSum:
    """ln(x) = energy x ln(energy_j) + latency x ln(latency_s) + offset."""

    energy: float
    latency: float
    offset: float = 0.0

    def at(self, log_energy: float, log_latency: float) -> float:
        """The sum: also of means."""
        return self.energy * log_energy + self.latency * log_latency + self.offset

    def variance(self, energy: Any, latency: Any, shared: Any) -> Any:
        """Of the sum, from the variances of ln(energy_j) and ln(latency_s) and their covariance: numbers or arrays."""
        return self.energy**2 * energy + self.latency**2 * latency + 2.0 * self.energy * self.latency * shared


def cost_sum(objective: Objective, variant: Variant) -> LogSum:
    """ln(cost) of a candidate that is run as `variant`. `throughput` is for load that is back to back."""
    if objective is Objective.ENERGY:
        return LogSum(1.0, 0.0)
    if objective is Objective.ENERGY_DELAY:
        return LogSum(1.0, 1.0)
    return LogSum(0.0, 1.0, -math.log(variant.items))


def power_sum(variant: Variant, rate_hz: float | None) -> LogSum:
    """ln(mean power) of a candidate; `rate_hz`: requests a second that arrive, None: back to back."""
    if rate_hz is None:
        return LogSum(1.0, -1.0, math.log(variant.items))
    return LogSum(1.0, 0.0, math.log(rate_hz * variant.batch))
