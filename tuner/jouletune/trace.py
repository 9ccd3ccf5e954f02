"""Raw samples of a window: the total rail's power over time, and what the sensor itself may be wrong by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from jouletune.errors import MeasurementError

Floats = NDArray[np.float64]

_GAP_PERIODS = 5.0
_LOST_SHARE = 0.02
_STALL_AVERAGINGS = 20.0
_CODE_SHARE = 0.02
_TWO_CODES_LEAST = 1.0 / 3.0


@dataclass(frozen=True, slots=True)
class RailTrace:
    """One rail of the total over time, arrays (n_samples,). `*_step_*`: the sensor's step (0: none known).

    A sensor that gives watts alone is a rail of exactly 1 V.
    """

    name: str
    voltage_v: Floats
    current_a: Floats
    voltage_step_v: float
    current_step_a: float


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A counter of the total's joules at its own edges: arrays (n_edges,), rising in time.

    Such a counter moves in steps of time (some 0.1 s) and stands still between two of them, so a read at any other
    moment is wrong by up to a step's energy. `t_s` is the middle of the two reads between which it moved, `width_s`
    apart, and `joules` what it moved to; less than before only where it was reset.
    """

    t_s: Floats
    joules: Floats
    width_s: Floats


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """The total rail over time: `t_s` (n_samples,) monotonic, rising; every rail sampled at each of them.

    `averaging_s`: what one reading of the sensor averages over. `period_s`: the wanted sampling period.
    `external_w`: the operator's constant outside the rail, part of the total. `lost`: reads that failed.
    `counter`: where the sensor counts energy, that is what energies are taken from, and its power only beside it.
    """

    t_s: Floats
    rails: tuple[RailTrace, ...]
    averaging_s: float
    period_s: float
    external_w: float = 0.0
    lost: int = 0
    counter: EnergyCounter | None = None


@dataclass(frozen=True, slots=True)
class Completions:
    """Requests that have ended, in order of their end: monotonic seconds, arrays (n_requests,).

    A request is one batch of `batch` inferences; its latency counts from its arrival.
    """

    arrival_s: Floats
    start_s: Floats
    end_s: Floats
    batch: int = 1


class SensorProblem(str, Enum):
    """Why a trace is no evidence; the values are validity reasons of MEASUREMENT."""

    GAP = "sensor_gap"
    STALLED = "sensor_stalled"
    ZERO = "sensor_zero"


def total_power_w(trace: PowerTrace) -> Floats:
    """Total over the rails and `external_w`, shape (n_samples,)."""
    rails = [rail.voltage_v * rail.current_a for rail in trace.rails]
    return np.asarray(np.sum(rails, axis=0) + trace.external_w, dtype=np.float64)


def mean_power_w(trace: PowerTrace, start_s: float, end_s: float) -> float:
    """Mean total between two times, such as of an idle board. Raises MeasurementError outside the trace."""
    joules = joules_at(trace, np.array([start_s, end_s]))
    return float(joules[1] - joules[0]) / (end_s - start_s)


def sensor_problem(
    trace: PowerTrace, start_s: float, end_s: float, *, before: PowerTrace | None = None
) -> SensorProblem | None:
    """What makes the samples of start_s..end_s no evidence, if anything.

    `before`: the trace of the last window in *another* power mode: a still sensor is suspect across a change
    only.
    """
    inside = (trace.t_s >= start_s) & (trace.t_s <= end_s)
    if not trace.rails or not inside.any():
        return SensorProblem.ZERO
    own_w = total_power_w(trace)[inside] - trace.external_w
    if not np.isfinite(own_w).all() or (own_w <= 0.0).any():
        return SensorProblem.ZERO
    steps_s = np.diff(np.concatenate(([start_s], trace.t_s[inside], [end_s])))
    lost_share = trace.lost / (trace.lost + trace.t_s.size)
    if steps_s.max() > _GAP_PERIODS * trace.period_s or lost_share > _LOST_SHARE:
        return SensorProblem.GAP
    if trace.counter is not None and _falls(trace.counter, start_s, end_s):
        return SensorProblem.GAP
    if trace.counter is not None and _stands_still(trace.counter, start_s, end_s, _GAP_PERIODS * trace.period_s):
        return SensorProblem.STALLED
    if before is not None and _is_stalled(before, trace):
        return SensorProblem.STALLED
    return None


def _stands_still(counter: EnergyCounter, start_s: float, end_s: float, most_s: float) -> bool:
    """Whether a counter did not move for longer than `most_s`, though power was read all the while."""
    inside_s = counter.t_s[(counter.t_s >= start_s) & (counter.t_s <= end_s)]
    return bool(np.diff(np.concatenate(([start_s], inside_s, [end_s]))).max() > most_s)


def _falls(counter: EnergyCounter, start_s: float, end_s: float) -> bool:
    """Whether a counter was reset, or has wrapped: what it had counted by then is lost, and the rest looks like it."""
    first, last = np.searchsorted(counter.t_s, [start_s, end_s])
    return bool((np.diff(counter.joules[max(0, first - 1) : last + 1]) < 0.0).any())


def _is_stalled(before: PowerTrace, after: PowerTrace) -> bool:
    last, first = _readings(before), _readings(after)
    if last.shape[1] != first.shape[1] or last.size == 0 or first.size == 0:
        return False
    tail = _still_s(before.t_s[::-1], last[::-1], last[-1])
    head = _still_s(after.t_s, first, last[-1])
    longest_s = _STALL_AVERAGINGS * max(after.averaging_s, after.period_s)
    return tail > 0.0 and head > 0.0 and tail + head > longest_s and head > 0.5 * longest_s


def _readings(trace: PowerTrace) -> Floats:
    columns = [column for rail in trace.rails for column in (rail.voltage_v, rail.current_a)]
    return np.column_stack(columns) if columns else np.empty((0, 0))


def _still_s(t_s: Floats, readings: Floats, wanted: Floats) -> float:
    moved = np.flatnonzero((readings != wanted).any(axis=1))
    still = int(moved[0]) if moved.size else len(t_s)
    return abs(float(t_s[still - 1] - t_s[0])) if still else 0.0


def joules_at(trace: PowerTrace, at_s: Floats) -> Floats:
    """Joules since a moment of the trace at each of `at_s`, `external_w` included.

    From the counter where there is one, interpolated between its edges; else, and beyond its first and last edge,
    by the trapezoid over the samples with power interpolated at `at_s`. Raises MeasurementError outside the trace.
    """
    t_s = trace.t_s
    if t_s.size < 2 or at_s.min() < t_s[0] - trace.period_s or at_s.max() > t_s[-1] + trace.period_s:
        span = f"{t_s[0]:.3f}..{t_s[-1]:.3f} s" if t_s.size else "nothing"
        raise MeasurementError(
            f"energy over {at_s.min():.3f}..{at_s.max():.3f} s: wanted samples around it, got {span}; "
            "start the sampler before the window and stop it after"
        )
    counter = trace.counter
    if counter is None or counter.t_s.size < 2:
        return _integrated_j(trace, at_s)
    counted_s = np.clip(at_s, counter.t_s[0], counter.t_s[-1])
    counted_j = np.interp(counted_s, counter.t_s, counter.joules - counter.joules[0]) + trace.external_w * counted_s
    beyond_j = _integrated_j(trace, at_s) - _integrated_j(trace, counted_s)
    return np.asarray(counted_j + beyond_j, dtype=np.float64)


def _integrated_j(trace: PowerTrace, at_s: Floats) -> Floats:
    t_s, power_w = trace.t_s, total_power_w(trace)
    joules = np.concatenate(([0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(t_s))))
    left = np.clip(np.searchsorted(t_s, at_s, side="right") - 1, 0, t_s.size - 2)
    since_s = at_s - t_s[left]
    edge_w = np.interp(at_s, t_s, power_w)
    return np.asarray(joules[left] + 0.5 * (power_w[left] + edge_w) * since_s, dtype=np.float64)


def counter_ratio(trace: PowerTrace, start_s: float, end_s: float) -> float | None:
    """Counted joules over those of the integrated power, between the first and the last edge within start_s..end_s.

    None without a counter, with fewer than two edges there, or where no power was drawn.
    """
    counter = trace.counter
    if counter is None or trace.t_s.size < 2:
        return None
    inside = np.flatnonzero((counter.t_s >= start_s) & (counter.t_s <= end_s))
    if inside.size < 2:
        return None
    ends = inside[[0, -1]]
    integrated_j = _integrated_j(trace, counter.t_s[ends])
    own_j = float(integrated_j[1] - integrated_j[0] - trace.external_w * np.diff(counter.t_s[ends])[0])
    return float(np.diff(counter.joules[ends])[0]) / own_j if own_j > 0.0 else None


def sensor_error_w(trace: PowerTrace, start_s: float, end_s: float) -> float:
    """Standard error of the mean total from the steps of the sensor, which no repeat averages away.

    Of a counter: that either end of the stretch is known to no better than the reads around its nearest edge.
    """
    inside = (trace.t_s >= start_s) & (trace.t_s <= end_s)
    counter = trace.counter
    if counter is not None and counter.t_s.size >= 2:
        ends = np.clip(np.searchsorted(counter.t_s, [start_s, end_s]), 0, counter.t_s.size - 1)
        hidden_s = float(np.hypot(*counter.width_s[ends])) / math.sqrt(12.0)
        return mean_power_w(trace, start_s, end_s) * hidden_s / (end_s - start_s)
    return math.sqrt(sum(_rail_error_w(rail, inside) ** 2 for rail in trace.rails))


def _rail_error_w(rail: RailTrace, inside: NDArray[np.bool_]) -> float:
    voltage_v, current_a = rail.voltage_v[inside], rail.current_a[inside]
    hidden_a = hidden_current_a(current_a, rail.current_step_a)
    hidden_v = rail.voltage_step_v / math.sqrt(12.0)
    return math.hypot(float(voltage_v.mean()) * hidden_a, float(current_a.mean()) * hidden_v)


def hidden_current_a(current_a: Floats, step_a: float) -> float:
    """Standard error that rounding to `step_a` leaves in a mean current, from the codes that were visited.

    A current that stays on one code hides anywhere within it: step/sqrt(12). Ripple over three codes or more dithers
    the rounding away. Of two neighbours visited in shares p and 1 - p, the mean of codes lies beside the border
    by (p - 1/2) steps and the truth, for ripple of one hump, between the two: the error falls with |2p - 1|, to no
    less than a third because ripple may have two humps. A code of less than 2 % is a spike and dithers nothing; codes
    apart are stuck each for itself.
    """
    if step_a <= 0.0 or current_a.size == 0:
        return 0.0
    codes, counts = np.unique(np.round(current_a / step_a), return_counts=True)
    common = counts >= _CODE_SHARE * current_a.size
    codes, share = codes[common], counts[common] / counts[common].sum()
    if codes.size >= 3:
        return 0.0
    if codes.size == 2 and codes[1] - codes[0] == 1.0:
        hidden = math.hypot(_TWO_CODES_LEAST, math.sqrt(1.0 - _TWO_CODES_LEAST**2) * (share[1] - share[0]))
    else:
        hidden = math.sqrt(float((share**2).sum()))
    return hidden * step_a / math.sqrt(12.0)
