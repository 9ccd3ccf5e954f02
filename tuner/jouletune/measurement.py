"""From a window's raw samples to numbers with standard errors.

Energy per inference is the ratio estimator R = sum(J)/sum(N) over batches of the window, cut at completions.
Its error has three parts: what the batches show (`repeat_se_j`), what the sensor's steps hide however often
one repeats (`sensor_se_j`), and the spread between windows of one mode that no single one shows
(`between_se_j`). The shunt's own tolerance is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jouletune.errors import MeasurementError
from jouletune.latency import Clustering, percentile_bounds
from jouletune.quantiles import combined_dof, requests_needed, student_quantile
from jouletune.trace import (
    Completions,
    Floats,
    PowerTrace,
    RailTrace,
    SensorProblem,
    joules_at,
    mean_power_w,
    sensor_error_w,
    sensor_problem,
)

__all__ = [
    "Between",
    "Completions",
    "Floats",
    "Measurement",
    "Pilot",
    "PowerTrace",
    "RailTrace",
    "Replicate",
    "SensorProblem",
    "between_spread",
    "mean_power_w",
    "measure",
    "pilot",
    "sensor_problem",
    "window_length_s",
]

_BATCH_AVERAGINGS = 4.0
_BATCH_LEAST_S = 0.5
_BATCHES_MOST = 20
_PILOT_BATCHES = 5
_LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Between:
    """Spread between windows of one mode, relative to their energy, and how much is known of it."""

    ratio: float = 0.005
    dof: float = 8.0


@dataclass(frozen=True, slots=True)
class Replicate:
    """One window of a mode measured more than once: ln(energy_j) and its relative repeat standard error."""

    log_energy: float
    se_ratio: float


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a short stretch before the window says of it. `se_ratio` is None with fewer than 5 batches."""

    duration_s: float
    requests: int
    rate_hz: float
    batches: int
    se_ratio: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One window's numbers; energies in joules per inference on `rail`, latencies in seconds per request.

    `latency_upper_s` is infinite where the window held too few requests. `over_bound` counts requests slower
    than the bound (0 without one). `latency_design` is the D that the latency bounds were made with. `trend_ratio`:
    the second half's energy over the first half's, less one (a middle batch is left out).
    """

    rail: str
    start_s: float
    duration_s: float
    requests: int
    inferences: int
    energy_j: float
    repeat_se_j: float
    repeat_dof: float
    sensor_se_j: float
    between_se_j: float
    between_dof: float
    trend_ratio: float
    power_w: float
    throughput_hz: float
    latency_percentile: float
    latency_s: float
    latency_lower_s: float
    latency_upper_s: float
    latency_se_s: float
    latency_samples: int
    latency_design: float
    over_bound: int

    @property
    def energy_se_j(self) -> float:
        """All three parts of the energy's standard error together."""
        return math.sqrt(self.repeat_se_j**2 + self.sensor_se_j**2 + self.between_se_j**2)

    @property
    def dof(self) -> float:
        """Degrees of freedom of `energy_se_j`."""
        return combined_dof(
            (self.repeat_se_j**2, self.repeat_dof),
            (self.sensor_se_j**2, math.inf),
            (self.between_se_j**2, self.between_dof),
        )

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Two-sided interval of the mode's joules per inference."""
        half_j = student_quantile(0.5 + 0.5 * level, self.dof) * self.energy_se_j
        return self.energy_j - half_j, self.energy_j + half_j


@dataclass(frozen=True, slots=True)
class _Energy:
    """Joules and requests of a stretch; from first to last completion, or of whole periods of the arrival."""

    first_s: float
    last_s: float
    requests: int
    joules: float
    batches: int
    se_ratio: float
    trend_ratio: float
    dof: float


def _batch_s(averaging_s: float) -> float:
    return max(_BATCH_AVERAGINGS * averaging_s, _BATCH_LEAST_S)


def _energy(trace: PowerTrace, end_s: Floats) -> _Energy:
    """Ratio estimator over completions `end_s` (n >= 3, sorted)."""
    first_s, last_s = float(end_s[0]), float(end_s[-1])
    fit = int((last_s - first_s) / _batch_s(trace.averaging_s))
    edges_s = _edges(end_s, min(max(fit, 1), _BATCHES_MOST))
    joules = np.diff(joules_at(trace, edges_s))
    requests = np.diff(np.searchsorted(end_s, edges_s, side="right"))
    total_j, total = float(joules.sum()), int(requests.sum())
    batches = len(joules)
    if total < 1:
        raise MeasurementError("energy per inference: wanted requests ending at different times, got one time")
    residual = joules - total_j / total * requests
    se_ratio = (
        math.sqrt(float((residual**2).sum()) / (batches * (batches - 1))) / (total_j / batches)
        if batches > 1 and total_j > 0.0
        else math.inf
    )
    return _Energy(
        first_s, last_s, total, total_j, batches, se_ratio, _trend(joules, requests), max(batches - 1.0, 1.0)
    )


def _periodic_energy(trace: PowerTrace, ended_s: Floats, start_s: float, end_s: float, period_s: float) -> _Energy:
    """Of the whole periods in start_s..end_s, at least two.

    In each the same requests come, so that their number has no error and a pause at an edge is not left out. The error
    is that of the joules at one place of the period from one period to the next.
    """
    unit_s = period_unit_s(period_s, trace.averaging_s)
    units = int((end_s - start_s) / unit_s + 1e-6)
    if units < 2:
        text = f"wanted two periods of the arrival ({unit_s:g} s each), got {end_s - start_s:.1f} s"
        raise MeasurementError(f"energy per inference: {text}")
    parts = max(1, int(unit_s / _batch_s(trace.averaging_s)))
    edges_s: Floats = start_s + np.arange(units * parts + 1, dtype=np.float64) * (unit_s / parts)
    joules = np.diff(joules_at(trace, edges_s)).reshape(units, parts)
    requests = np.diff(np.searchsorted(ended_s, edges_s[::parts], side="right"))
    total, total_j = int(requests.sum()), float(joules.sum())
    if total < 1:
        raise MeasurementError("energy per inference: wanted requests in whole periods of the arrival, got none")
    squares = float(((joules - joules.mean(axis=0)) ** 2).sum())
    se_ratio = math.sqrt(units / (units - 1) * squares) / total_j if total_j > 0.0 else math.inf
    trend = _trend(joules.sum(axis=1), requests)
    dof = float(parts * (units - 1))
    return _Energy(start_s, float(edges_s[-1]), total, total_j, units * parts, se_ratio, trend, dof)


def period_unit_s(period_s: float, averaging_s: float) -> float:
    """As many periods as a batch of a sensor with this averaging time needs."""
    return period_s * math.ceil(_batch_s(averaging_s) / period_s - 1e-9)


def whole_periods_s(window_s: float, unit_s: float, *, longest_s: float = _LONGEST_S) -> float:
    """`window_s` made whole units, at least two: longer where that fits into `longest_s`, else shorter."""
    units = max(2, math.ceil(window_s / unit_s - 1e-9))
    most = max(2, int(longest_s / unit_s + 1e-9))
    return min(units, most) * unit_s


def _trend(joules: Floats, requests: NDArray[np.int64]) -> float:
    half = len(joules) // 2
    if half == 0:
        return 0.0
    first_count, second_count = int(requests[:half].sum()), int(requests[-half:].sum())
    if first_count == 0 or second_count == 0:
        return math.inf
    first, second = float(joules[:half].sum()) / first_count, float(joules[-half:].sum()) / second_count
    return second / first - 1.0 if first > 0.0 else 0.0


def _edges(end_s: Floats, batches: int) -> Floats:
    """Completions nearest to equal parts of the window: where its batches begin and end."""
    wanted_s = np.linspace(end_s[0], end_s[-1], batches + 1)
    right = np.clip(np.searchsorted(end_s, wanted_s), 1, len(end_s) - 1)
    nearer_left = wanted_s - end_s[right - 1] < end_s[right] - wanted_s
    edges_s: Floats = np.unique(end_s[np.where(nearer_left, right - 1, right)])
    return edges_s


def _ended_within(completions: Completions, start_s: float, end_s: float) -> NDArray[np.bool_]:
    return (completions.end_s >= start_s) & (completions.end_s <= end_s)


def pilot(trace: PowerTrace, completions: Completions, start_s: float, end_s: float) -> Pilot:
    """Rate and relative standard error of a stretch; its numbers enter no result."""
    ended_s = completions.end_s[_ended_within(completions, start_s, end_s)]
    duration_s = end_s - start_s
    requests, rate_hz = int(ended_s.size), ended_s.size / duration_s
    if requests < _PILOT_BATCHES or ended_s[-1] <= ended_s[0]:
        return Pilot(duration_s, requests, rate_hz, 0, None)
    energy = _energy(trace, ended_s)
    known = energy.batches >= _PILOT_BATCHES
    return Pilot(duration_s, requests, rate_hz, energy.batches, energy.se_ratio if known else None)


def window_length_s(
    pilot: Pilot,
    *,
    error_target: float,
    min_s: float,
    max_s: float,
    percentile: float,
    clustering: Clustering,
    longest_s: float = _LONGEST_S,
) -> float:
    """Length of the window, fixed once: T0 (t SE0 / (1.96 target))^2 in min_s..max_s, and what p needs."""
    if pilot.requests < _PILOT_BATCHES or pilot.se_ratio is None:
        energy_s = max_s
    else:
        t = student_quantile(0.975, pilot.batches - 1)
        energy_s = pilot.duration_s * (t * pilot.se_ratio / (1.96 * error_target)) ** 2
    if pilot.rate_hz <= 0.0:
        return min(max(max_s, min_s), longest_s)
    # Three requests more: the window's edges cut some off.
    latency_s = (requests_needed(percentile, clustering.design) + 3) / pilot.rate_hz
    return max(min(max(energy_s, min_s), max_s), min(latency_s, longest_s))


def _window_energy(trace: PowerTrace, ended_s: Floats, start_s: float, end_s: float, period_s: float | None) -> _Energy:
    where = f"window of {end_s - start_s:.1f} s"
    if ended_s.size < 3:
        raise MeasurementError(f"{where}: wanted 3 requests ended in it, got {ended_s.size}")
    energy = _energy(trace, ended_s) if period_s is None else _periodic_energy(trace, ended_s, start_s, end_s, period_s)
    if energy.joules <= 0.0:
        raise MeasurementError(f"{where}: wanted energy above 0 J, got {energy.joules:.3g} J")
    return energy


def measure(
    trace: PowerTrace,
    completions: Completions,
    start_s: float,
    end_s: float,
    *,
    percentile: float,
    clustering: Clustering,
    between: Between,
    bound_s: float | None = None,
    period_s: float | None = None,
) -> Measurement:
    """Numbers of the window start_s..end_s, of its whole periods where arrival has a `period_s`.

    Raises MeasurementError with fewer than three requests or no energy.
    """
    ended = _ended_within(completions, start_s, end_s)
    ended_s = completions.end_s[ended]
    energy = _window_energy(trace, ended_s, start_s, end_s, period_s)
    latencies_s = ended_s - completions.arrival_s[ended]
    bounds = percentile_bounds(latencies_s, percentile, clustering.design)
    duration_s = energy.last_s - energy.first_s
    inferences = energy.requests * completions.batch
    energy_j, power_w = energy.joules / inferences, energy.joules / duration_s
    return Measurement(
        rail="+".join(rail.name for rail in trace.rails),
        start_s=energy.first_s,
        duration_s=duration_s,
        requests=energy.requests,
        inferences=inferences,
        energy_j=energy_j,
        repeat_se_j=energy.se_ratio * energy_j,
        repeat_dof=energy.dof,
        sensor_se_j=sensor_error_w(trace, energy.first_s, energy.last_s) / power_w * energy_j,
        between_se_j=between.ratio * energy_j,
        between_dof=between.dof,
        trend_ratio=energy.trend_ratio,
        power_w=power_w,
        throughput_hz=inferences / duration_s,
        latency_percentile=percentile,
        latency_s=bounds.latency_s,
        latency_lower_s=bounds.lower_s,
        latency_upper_s=bounds.upper_s,
        latency_se_s=bounds.se_s,
        latency_samples=bounds.samples,
        latency_design=clustering.design,
        over_bound=0 if bound_s is None else int((latencies_s > bound_s).sum()),
    )


def between_spread(groups: Sequence[Sequence[Replicate]], *, prior: Between | None = None) -> Between:
    """Spread between windows beyond their own errors, from `groups` of windows of one mode each.

    The prior (0.5 %, 8 degrees of freedom) is shrunk towards what the replicates show: an unbiased pooled
    variance, never under a tenth of the prior's ratio.
    """
    start = prior or Between()
    dof, excess = start.dof, start.dof * start.ratio**2
    for group in groups:
        if len(group) < 2:
            continue
        values = np.array([replicate.log_energy for replicate in group])
        own = np.array([replicate.se_ratio for replicate in group])
        dof += len(group) - 1
        excess += float(((values - values.mean()) ** 2).sum()) - (len(group) - 1) * float((own**2).mean())
    return Between(math.sqrt(max(excess / dof, (0.1 * start.ratio) ** 2)), dof)
