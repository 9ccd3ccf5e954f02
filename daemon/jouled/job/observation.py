"""What a search is told of a trial."""

from __future__ import annotations

import math

from jouletune.search import Failed, Infeasible, Measured, Observation
from jouletune.trial import Trial


def observation_of(trial: Trial, bound_s: float | None) -> Observation:
    """A trial as the search takes it; a failed one is never a number."""
    if trial.invalid is not None:
        return Failed(trial.invalid.value)
    window = trial.measurement
    if window is None or (math.isinf(window.latency_upper_s) and bound_s is not None):
        return Infeasible()
    upper_s = window.latency_upper_s if math.isfinite(window.latency_upper_s) else window.latency_s
    return Measured(
        energy_j=window.energy_j,
        energy_se_j=window.energy_se_j,
        latency_s=window.latency_s,
        latency_upper_s=upper_s,
        latency_se_s=window.latency_se_s,
        power_w=window.power_w,
        feasible=trial.infeasible is None,
    )
