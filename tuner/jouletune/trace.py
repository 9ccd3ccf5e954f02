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
    """One rail of the total over time, arrays (n_samples,). `*_step_*`: the sensor's step (0: none known)."""

    name: str
    voltage_v: Floats
    current_a: Floats
    voltage_step_v: float
    current_step_a: float


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """The total rail over time: `t_s` (n_samples,) monotonic, rising; every rail sampled at each of them.

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
    if before is not None and _is_stalled(before, trace):
        return SensorProblem.STALLED
    return None


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
    """Joules since the first sample at each of `at_s`: trapezoid, power interpolated at the edges."""
    t_s = trace.t_s
    if t_s.size < 2 or at_s.min() < t_s[0] - trace.period_s or at_s.max() > t_s[-1] + trace.period_s:
        span = f"{t_s[0]:.3f}..{t_s[-1]:.3f} s" if t_s.size else "nothing"
        raise MeasurementError(
            f"energy over {at_s.min():.3f}..{at_s.max():.3f} s: wanted samples around it, got {span}; "
            "start the sampler before the window and stop it after"
        )
    power_w = total_power_w(trace)
    joules = np.concatenate(([0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(t_s))))
    left = np.clip(np.searchsorted(t_s, at_s, side="right") - 1, 0, t_s.size - 2)
    since_s = at_s - t_s[left]
    edge_w = np.interp(at_s, t_s, power_w)
    return np.asarray(joules[left] + 0.5 * (power_w[left] + edge_w) * since_s, dtype=np.float64)


def sensor_error_w(trace: PowerTrace, start_s: float, end_s: float) -> float:
    """Standard error of the mean total from the steps of the sensor, which no repeat averages away."""
    inside = (trace.t_s >= start_s) & (trace.t_s <= end_s)
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
