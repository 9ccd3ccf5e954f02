"""From a window's raw samples to numbers with standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RailTrace:
    """One rail of the total over time; arrays (n_samples,). `*_step_*` is the sensor's own step (0: none known)."""

    name: str
    voltage_v: Floats
    current_a: Floats
    voltage_step_v: float
    current_step_a: float


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """The total rail over time: `t_s` (n_samples,) monotonic, strictly rising; every rail sampled at each of them.

    `averaging_s`: what one reading of the sensor averages over. `period_s`: the wanted sampling period.
    `external_w`: the operator's constant outside the rail, part of the total. `lost`: reads that failed.
    """

    t_s: Floats
    rails: tuple[RailTrace, ...]
    averaging_s: float
    period_s: float
    external_w: float = 0.0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Completions:
    """Requests that have ended, in order of their end: monotonic seconds, arrays (n_requests,).

    A request is one batch of `batch` inferences; its latency counts from its arrival.
    """

    arrival_s: Floats
    start_s: Floats
    end_s: Floats
    batch: int = 1
