"""One candidate applied, verified, settled, measured and judged: valid or one reason, feasible or one reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any

from jouletune.errors import MeasurementError
from jouletune.measurement import Measurement, SensorProblem
from jouletune.space import Candidate, PowerMode, Variant

_LEAST_INFERENCES = 20
_LEAST_REQUESTS = 8
_CLOCK_SHARE = 0.02
_RATE_TOLERANCE = 0.01
_TREND_RATIO = 0.03
_REPEATS_PER_TRIAL = 2
_REPEATS_PER_REASON = 3
_MOST = 1e15  # of any number in its SI unit


class Invalid(str, Enum):
    """Why a window is no evidence about its candidate."""

    APPLY_FAILED = "apply_failed"
    CLOCKS_MOVED = "clocks_moved"
    MODE_CHANGED = "mode_changed"
    THROTTLED = "throttled"
    SENSOR_GAP = "sensor_gap"
    SENSOR_STALLED = "sensor_stalled"
    SENSOR_ZERO = "sensor_zero"
    WORKLOAD_DIED = "workload_died"
    WORKLOAD_HUNG = "workload_hung"
    GPU_BUSY = "gpu_busy"
    TOO_FEW_INFERENCES = "too_few_inferences"
    UNSTEADY = "unsteady"


class Infeasible(str, Enum):
    """Which limit a candidate breaks."""

    LATENCY = "latency"
    MAX_POWER = "max_power"
    RATE_NOT_REACHED = "rate_not_reached"
    MEMORY = "memory"


class Purpose(str, Enum):
    """What a window is taken for. Only `search` windows and the first two enter the search."""

    REFERENCE = "reference"
    INCUMBENT = "incumbent"
    SEARCH = "search"
    FINALS = "finals"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a feasible candidate keeps; None: no such limit. `rate_hz`: requests a second that arrive."""

    bound_s: float | None = None
    max_power_w: float | None = None
    rate_hz: float | None = None


@dataclass(frozen=True, slots=True)
class ClockSamples:
    """A domain's clock as seen over a window, against the cap that was applied and the domain's table."""

    domain: str
    wanted_hz: float
    table_hz: Sequence[float]
    seen_hz: Sequence[float]
    locked: bool

    @property
    def moved(self) -> bool:
        """Locked: more than one table step off in > 2 % of samples. Capped: above the cap by more than rounding."""
        if not self.seen_hz:
            return False
        if not self.locked:
            return max(self.seen_hz) > 1.001 * self.wanted_hz
        below = max((hz for hz in self.table_hz if hz < self.wanted_hz), default=self.wanted_hz)
        above = min((hz for hz in self.table_hz if hz > self.wanted_hz), default=self.wanted_hz)
        off = sum(not 0.999 * below <= hz <= 1.001 * above for hz in self.seen_hz)
        return off > _CLOCK_SHARE * len(self.seen_hz)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen before, during and after a window besides power and completions.

    `mismatches`: sentences of the verify after the window. `throttling`: cooling devices that were active, alarms
    and temperatures beyond their limit. `over_current`: events counted in `over_current_s` seconds, read 2.5 s
    after the window. `strangers`: GPU clients that were not there at the reference.
    """

    mismatches: tuple[str, ...] = ()
    throttling: tuple[str, ...] = ()
    over_current: int = 0
    over_current_s: float = 0.0
    clocks: tuple[ClockSamples, ...] = ()
    strangers: tuple[str, ...] = ()
    sensor: SensorProblem | None = None


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats of invalid trials in a job: two per trial, three per reason."""

    spent: Mapping[Invalid, int] = field(default_factory=dict)

    def allows(self, reason: Invalid, attempt: int) -> bool:
        """Whether a trial whose `attempt` (0 is the first) was invalid for `reason` may be tried again."""
        return attempt < _REPEATS_PER_TRIAL and self.spent.get(reason, 0) < _REPEATS_PER_REASON

    def spend(self, reason: Invalid) -> Repeats:
        """With one more repeat for `reason`."""
        return Repeats({**self.spent, reason: self.spent.get(reason, 0) + 1})


@dataclass(frozen=True, slots=True)
class Trial:
    """One window of a job, good or not. `t_s` and `duration_s`: its start since the job's, and its length.

    `cut`: ended early as clearly infeasible; `measurement` is then None. `detail` says in words what was seen.
    """

    number: int
    attempt: int
    purpose: Purpose
    index: int
    candidate: Candidate
    policy: str
    t_s: float
    duration_s: float
    measurement: Measurement | None = None
    invalid: Invalid | None = None
    infeasible: Infeasible | None = None
    cut: bool = False
    detail: str = ""

    @property
    def feasible(self) -> bool:
        """Whether the window is evidence, and evidence of a candidate within all limits."""
        return self.measurement is not None and self.invalid is None and self.infeasible is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite number becomes null."""
        plain = asdict(self)
        plain["candidate"] = asdict(self.candidate)
        for name in ("purpose", "invalid", "infeasible"):
            plain[name] = None if plain[name] is None else plain[name].value
        if self.measurement is not None:
            plain["measurement"] = {k: _finite(v) for k, v in asdict(self.measurement).items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Trial:
        """The trial that `to_dict` made `plain` of. Raises MeasurementError where a key is missing or unknown."""
        try:
            values = dict(plain)
            mode, variant = values["candidate"]["mode"], values["candidate"]["variant"]
            values["candidate"] = Candidate(PowerMode(**mode), Variant(**variant))
            values["purpose"] = Purpose(values["purpose"])
            values["invalid"] = None if values["invalid"] is None else Invalid(values["invalid"])
            values["infeasible"] = None if values["infeasible"] is None else Infeasible(values["infeasible"])
            values["measurement"] = _measurement(values["measurement"])
            _number("index", values["index"])
            _number("t_s", values["t_s"])
            hash(values["candidate"])
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise MeasurementError(
                f"trial from a record: wanted the fields of Trial, got {plain!r}: {error}"
            ) from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and math.isinf(value) else value


def _measurement(plain: Mapping[str, Any] | None) -> Measurement | None:
    if plain is None:
        return None
    known = {one.name for one in fields(Measurement)}
    if set(plain) != known:
        raise KeyError(f"measurement: {sorted(known ^ set(plain))}")
    values: dict[str, Any] = {name: math.inf if value is None else value for name, value in plain.items()}
    for name in values.keys() - {"rail"}:
        _number(name, values[name])
    return Measurement(**values)


def _number(name: str, value: Any) -> None:
    """What another version or hand wrote may be anything; squares of what passes are still numbers."""
    if not isinstance(value, int | float) or not (abs(value) <= _MOST or value == math.inf):
        raise TypeError(f"{name}: wanted a number, at most {_MOST:g} in size, got {str(value)[:40]!r}")


def judge_feasibility(measurement: Measurement, limits: Limits) -> Infeasible | None:
    """The limit that the candidate breaks, if any; for a window that is valid as far as its evidence goes."""
    if limits.bound_s is not None and measurement.latency_lower_s > limits.bound_s:
        return Infeasible.LATENCY
    if is_too_short(measurement):
        return None
    if limits.rate_hz is not None:
        rate_hz = measurement.requests / measurement.duration_s
        if rate_hz < (1.0 - _RATE_TOLERANCE) * limits.rate_hz:
            return Infeasible.RATE_NOT_REACHED
    if limits.bound_s is not None and measurement.latency_upper_s > limits.bound_s:
        return Infeasible.LATENCY
    if limits.max_power_w is not None and measurement.power_w > limits.max_power_w:
        return Infeasible.MAX_POWER
    return None


def is_too_short(measurement: Measurement) -> bool:
    """Whether so little ended in the window that its numbers say nothing."""
    return measurement.inferences < _LEAST_INFERENCES or measurement.requests < _LEAST_REQUESTS


def judge_validity(
    evidence: Evidence,
    measurement: Measurement | None,
    infeasible: Infeasible | None,
    *,
    normal_over_current_hz: float = 0.0,
) -> Invalid | None:
    """The reason that the window is no evidence, if any. `measurement` None: too little ended for numbers.

    A board that was disturbed says nothing about feasibility either; a slow mode is infeasible, not invalid.
    `normal_over_current_hz`: the rate of events at the reference, on boards where they are normal.
    """
    disturbed = _disturbance(evidence, normal_over_current_hz)
    if disturbed is not None or infeasible is not None:
        return disturbed
    if measurement is None or is_too_short(measurement):
        return Invalid.TOO_FEW_INFERENCES
    return Invalid.UNSTEADY if _is_unsteady(measurement) else None


def _disturbance(evidence: Evidence, normal_over_current_hz: float) -> Invalid | None:
    expected = normal_over_current_hz * evidence.over_current_s
    if evidence.mismatches:
        return Invalid.MODE_CHANGED
    if evidence.throttling or evidence.over_current > expected + 4.0 * math.sqrt(expected):
        return Invalid.THROTTLED
    if any(clock.moved for clock in evidence.clocks):
        return Invalid.CLOCKS_MOVED
    if evidence.sensor is not None:
        return Invalid(evidence.sensor.value)
    return Invalid.GPU_BUSY if evidence.strangers else None


def _is_unsteady(measurement: Measurement) -> bool:
    noise = 4.0 * measurement.repeat_se_j / measurement.energy_j
    return abs(measurement.trend_ratio) > max(_TREND_RATIO, noise)
