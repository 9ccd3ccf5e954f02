"""A job as its events tell it so far: what a display shows of it, as values. Whoever comes late hears them in order."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from jouled.board.modename import mode_name
from jouled.cli.output import FIXED, VARIANT_AXES, short_names, variant_name
from jouletune.errors import JouletuneError
from jouletune.objective import Objective
from jouletune.space import PowerMode, Variant

log = logging.getLogger(__name__)

_MOST_NOTICES = 20
_COURSE = {
    "known": "what is known from before",
    "reference": "measuring the board's own mode",
    "incumbent": "measuring what is in force",
    "search": "search",
    "finals": "finals",
    "apply": "applying",
    "watching": "watching what was applied",
}
_STRETCHES = {
    "idle": "the board at rest",
    "load": "loading the workload",
    "settle": "settling",
    "pilot": "pilot",
    "window": "window",
    "watching": "watching",
    "cool_down": "cooling down",
    "retry": "trying again",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One trial. `cost` (what the objective minimises) and what follows are None where there was no whole window;
    `verdict` says why, or what is wrong with it; `counts`: are its numbers evidence for a mode that keeps the limits?
    """

    number: int
    key: tuple[int, str]
    name: str
    purpose: str
    policy: str
    cost: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    latency_upper_s: float | None = None
    temperature_c: float | None = None
    verdict: str = ""
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Best:
    """The feasible candidate of least cost so far (what the objective minimises); `saves`: 1 − its/the reference's."""

    row: Row
    energy_j: float
    saves: float


@dataclass
class JobView:
    """Takes events; everything else reads. `now` is what the last `progress` saw."""

    job: str = ""
    started: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "starting"
    bound_s: float | None = None
    mode: str = ""
    policy: str = ""
    now: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    outcome: str = ""
    reason: str = ""
    is_restored: bool = False
    is_over: bool = False
    is_stopping: bool = False
    _seq: int = 0
    _began_s: float | None = None
    _last_s: float = 0.0
    _stretch: tuple[str, float, float] = ("", 0.0, 0.0)

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the job; one that was heard before is passed over."""
        seq = event.get("seq")
        if isinstance(seq, int):
            if seq <= self._seq:
                return
            self._seq = seq
        if "t_s" in event:
            self._last_s = float(event["t_s"])
            self._began_s = self._last_s if self._began_s is None else self._began_s
        self.job = str(event.get("job") or self.job)
        take = getattr(self, f"_take_{event.get('event')}", None)
        if take is None:
            return
        try:
            take(event)
        except (KeyError, TypeError, ValueError) as error:  # another version's; whoever shows a job does not end it
            log.debug("an event is passed over: %r: %s", error, event)

    def copy(self) -> JobView:
        """As it is now, for whoever draws while it goes on."""
        return replace(self, rows=list(self.rows), notices=list(self.notices))

    # --- events -----------------------------------------------------------------------------------------

    def _take_job_started(self, event: Mapping[str, Any]) -> None:
        self.started = event

    def _take_phase(self, event: Mapping[str, Any]) -> None:
        self.phase = str(event["phase"])
        self.now = {}
        if event.get("bound_s") is not None:
            self.bound_s = float(event["bound_s"])

    def _take_mode_applied(self, event: Mapping[str, Any]) -> None:
        row = self._candidate(event.get("index"))
        self.mode = "" if row is None else self._name(PowerMode(*row[:4]), Variant(*row[4:]))
        self.policy = str(event.get("policy", ""))
        self.now = {}

    def _take_progress(self, event: Mapping[str, Any]) -> None:
        name, since_s, most_s = self._stretch
        if event["phase"] != name:
            name, since_s, most_s = str(event["phase"]), self._last_s, 0.0
        self._stretch = (name, since_s, max(most_s, float(event["stretch_s"])))
        self.now = event

    def _take_trial(self, event: Mapping[str, Any]) -> None:
        trial = event["trial"]
        self.rows.append(self._row(trial, event.get("temperature_c")))
        self._stretch = ("", self._last_s, 0.0)

    def _take_warning(self, event: Mapping[str, Any]) -> None:
        self.notices = [*self.notices, str(event["text"])][-_MOST_NOTICES:]

    def _take_decision(self, event: Mapping[str, Any]) -> None:
        self.outcome = str(event["outcome"])
        self.reason = str((event.get("reason") or {}).get("text") or "")

    def _take_restored(self, event: Mapping[str, Any]) -> None:
        self.is_restored = True

    def _take_finished(self, event: Mapping[str, Any]) -> None:
        self.is_over = True
        result = event.get("result") or {}
        self.outcome = str(result.get("outcome") or self.outcome)
        self.reason = str((result.get("reason") or {}).get("text") or self.reason)

    # --- what is shown ----------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """From the first event to the last one."""
        return 0.0 if self._began_s is None else self._last_s - self._began_s

    @property
    def left_s(self) -> float | None:
        """What is left of what was announced; None: not known, or longer already."""
        expected_s = self.started.get("expected_s")
        left_s = None if expected_s is None else float(expected_s) - self.elapsed_s
        return left_s if left_s is not None and left_s > 0 else None

    @property
    def course(self) -> str:
        """What the job is about."""
        return _COURSE.get(self.phase, self.phase)

    def stretch(self) -> tuple[str, float, float] | None:
        """What is going on for how long already, and how long at most, in seconds."""
        name, since_s, most_s = self._stretch
        if not name or not self.now or self.is_over:
            return None
        return _STRETCHES.get(name, name), min(self._last_s - since_s, most_s), most_s

    @property
    def windows(self) -> int:
        """So many trials were measured."""
        return len(self.rows)

    @property
    def candidates_are(self) -> str:
        """What the job chooses among."""
        is_fixed = self.started.get("base_mode") == FIXED
        return "variant" if is_fixed or has_one_mode(self.started.get("axes")) else "power mode"

    @property
    def objective(self) -> Objective:
        """What is to be least; energy where nobody says."""
        told = self.started.get("objective")
        return Objective(told) if told in set(Objective) else Objective.ENERGY

    def reference_cost(self) -> float | None:
        """The mean of the reference's valid windows."""
        found = [row.cost for row in self.rows if row.purpose == "reference" and row.cost]
        return fmean(found) if found else None

    def best(self) -> Best | None:
        """Of all that count, each by the mean of its windows."""
        reference = self.reference_cost()
        if reference is None:
            return None
        windows: dict[tuple[int, str], list[Row]] = {}
        for row in self.rows:
            if row.counts:
                windows.setdefault(row.key, []).append(row)
        means = [(fmean(row.cost or math.inf for row in rows), rows) for rows in windows.values()]
        if not means:
            return None
        cost, rows = min(means, key=lambda each: each[0])
        energy_j = fmean(row.energy_j or math.inf for row in rows)
        return Best(rows[-1], energy_j, 1.0 - cost / reference)

    # --- rows -------------------------------------------------------------------------------------------

    def _candidate(self, index: Any) -> Sequence[Any] | None:
        rows = (self.started.get("space") or {}).get("candidates") or []
        return rows[index] if isinstance(index, int) and 0 <= index < len(rows) else None

    def _name(self, mode: PowerMode, variant: Variant) -> str:
        return candidate_name(mode, variant, self.started.get("axes"))

    def _cost(self, window: Mapping[str, Any]) -> float | None:
        """None where a number is missing, or is none."""
        names = ("energy_j", "latency_s", "throughput_hz")
        energy_j, latency_s, throughput_hz = (window.get(name) for name in names)
        if self.objective is Objective.ENERGY:
            return energy_j
        if not (energy_j and latency_s and throughput_hz):
            return None
        return self.objective.cost(energy_j, latency_s, throughput_hz)

    def _row(self, trial: Mapping[str, Any], temperature_c: float | None) -> Row:
        try:
            mode, variant = (
                PowerMode(**trial["candidate"]["mode"]),
                Variant(**trial["candidate"]["variant"]),
            )
            name = self._name(mode, variant)
        except (JouletuneError, KeyError, TypeError):  # told by another version
            name = "?"
        window = trial.get("measurement") or {}
        row = Row(
            number=int(trial["number"]) + 1,
            key=(int(trial["index"]), str(trial["policy"])),
            name=name,
            purpose=str(trial["purpose"]),
            policy=str(trial["policy"]),
            temperature_c=temperature_c,
        )
        if trial.get("invalid") is not None:
            return replace(row, verdict=f"thrown away: {trial['invalid']} {trial.get('detail') or ''}".rstrip())
        if trial.get("infeasible") == "memory":
            return replace(row, verdict=f"does not fit: {trial.get('detail') or ''}")
        if not window:
            return replace(row, verdict="too slow, cut short")
        reason = trial.get("infeasible")
        return replace(
            row,
            cost=self._cost(window),
            energy_j=window.get("energy_j"),
            power_w=window.get("power_w"),
            latency_upper_s=window.get("latency_upper_s"),
            verdict=str(reason).replace("_", " ") if reason else "",
            counts=reason is None and bool(self._cost(window)),
        )


def candidate_name(mode: PowerMode, variant: Variant, axes: Mapping[str, Sequence[Any]] | None) -> str:
    """What tells a candidate from the job's others, on whose `axes` they lie (None: not known)."""
    told = "" if mode == PowerMode() or has_one_mode(axes) else mode_name(mode)
    name = " ".join(filter(None, (told, *_varied(variant, axes))))
    return name or variant_name(variant) or "the workload as it is"


def has_one_mode(axes: Mapping[str, Sequence[Any]] | None) -> bool:
    """Variants alone tell the candidates apart: the power mode would be the same on each line."""
    return bool(axes and set(axes) <= set(VARIANT_AXES))


def _varied(variant: Variant, axes: Mapping[str, Sequence[Any]] | None) -> Iterator[str]:
    """What of a variant tells it from the job's others."""
    if axes is None:  # whoever came late has not heard what there is
        yield variant_name(variant)
        return
    if "engine" in axes:
        yield short_names(axes["engine"]).get(variant.engine or "", "")
    if "batch" in axes:
        yield f"b{variant.batch}"
    if "instances" in axes:
        yield f"x{variant.instances}"
