"""One job out of the ledger, and what follows from it, as the report needs it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jouled.errors import StateError, UsageError
from jouled.job.ground import MOST_SCORED
from jouled.job.result import JobResult
from jouled.job.studies import space_of
from jouled.job.summary import counted, energy_error, error_parts, mean_energy_j
from jouled.ledger import marked, rotated
from jouled.report.command import command_of, keeping, settings_of, simulated_by
from jouled.report.traces import traces_of
from jouletune.earlier import Earlier, decode_earlier
from jouletune.errors import JouletuneError
from jouletune.front import Front, front_of
from jouletune.measurement import Measurement
from jouletune.report.facts import SIDES, Job, Point, Spread, Window, candidate_of
from jouletune.space import Space
from jouletune.trial import Infeasible, Trial

log = logging.getLogger(__name__)

_LEAST_WINDOWS, _LEAST_CANDIDATES = 4, 3  # before the model says anything of the rest

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ledgered:
    """All that is written of one job; `folder`: the state folder it lies in."""

    job: str
    events: tuple[Event, ...]
    folder: Path

    def first(self, kind: str) -> Event:
        """The first event of a kind; {} where there is none."""
        return next((event for event in self.events if event.get("event") == kind), {})

    def phase(self, phase: str) -> Event:
        """The event that says that a phase begins; {} where none does."""
        return next((event for event in self.events if event.get("phase") == phase), {})

    def last(self, kind: str) -> Event:
        """The last one."""
        return next((event for event in reversed(self.events) if event.get("event") == kind), {})

    @property
    def wall_s(self) -> float:
        """When it began; 0 where that is not known."""
        wall_s = self.first("job_started").get("wall_s")
        return float(wall_s) if isinstance(wall_s, int | float) else 0.0


# --- finding it ---------------------------------------------------------------------------------------------


def find(folders: Sequence[Path], job: str) -> Ledgered:
    """The job `job`, or "latest", in the ledgers of `folders`. Raises UsageError, StateError, NotPermittedError."""
    found = [one for folder in folders for one in _latest_of(folder, job)]
    if found:
        return max(found, key=lambda one: (one.wall_s, one.job))
    where = ", ".join(str(folder / "ledger.jsonl") for folder in folders)
    if job == "latest":
        raise UsageError(f"report: there is no job yet in {where}", hint="jouled tune makes one")
    raise UsageError(
        f"report: no job {job!r} in {where}",
        hint="jouled report latest; or name one: jouled tune --json and jouled history say the ids",
    )


def _latest_of(folder: Path, job: str) -> Iterator[Ledgered]:
    """The youngest file that has it decides; a job never goes over two unless its ledger was rotated between."""
    parts: list[Event] = []
    name = None if job == "latest" else job
    ledger = folder / "ledger.jsonl"
    for path in (ledger, *reversed(rotated(ledger))):
        name = _youngest(path) if name is None else name
        mark = f'"job":"{name}"'.encode()
        parts = [*(event for event in marked(path, mark) if event.get("job") == name), *parts]
        if any(event.get("event") == "job_started" for event in parts):
            break
    if name is not None and parts:
        yield Ledgered(name, tuple(parts), folder)


def _youngest(path: Path) -> str | None:
    """The job that was said last to have begun or ended."""
    named = [event.get("job") for event in marked(path, b'"event":"job_started"', b'"event":"finished"')]
    return next((name for name in reversed(named) if isinstance(name, str)), None)


# --- what follows -------------------------------------------------------------------------------------------


def collect(found: Ledgered, options: Mapping[str, str]) -> Job:
    """The job as the report shows it. `options`: key of the configuration → option of `jouled tune`.

    Raises StateError where the ledger was written by a version whose trials are unknown here.
    """
    started = found.first("job_started")
    result, has_ended = _result(found)
    space = _space(started)
    windows = _windows(found)
    trials = [window.trial for window in windows]
    points = tuple(_points(trials, result, space))
    settings = settings_of(started.get("settings") or (), options)
    simulated = simulated_by(result)
    command = command_of(result, started, settings, simulated=simulated)
    job = Job(
        result=result,
        has_ended=has_ended,
        began_utc=_utc(found.wall_s),
        simulated=simulated,
        sampler=str(started.get("sampler") or ""),
        budget=started.get("budget"),
        meter_why=str(started.get("meter_why") or ""),
        space=space,
        windows=tuple(windows),
        points=points,
        front=_front(space, trials, result, found.phase("known").get("earlier") or ()),
        settings=settings,
        marks=dict(started.get("workload_marks") or {}),
        command=command,
        keep_command=keeping(command),
        ended_phase=str(found.last("phase").get("phase") or ""),
    )
    return traces_of(job, found.events, found.folder)


def _utc(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(wall_s)) if 0.0 < wall_s < 1e11 else ""


def _space(started: Event) -> Space | None:
    try:
        return space_of(started["space"])
    except (JouletuneError, KeyError, TypeError, ValueError):
        return None


def _windows(found: Ledgered) -> list[Window]:
    try:
        return [
            Window(Trial.from_dict(event["trial"]), event.get("temperature_c"))
            for event in found.events
            if event.get("event") == "trial"
        ]
    except JouletuneError as error:
        text = f"job {found.job}: its windows were written by another version of jouled: {str(error)[:160]}"
        raise StateError(text, hint="make its report with the version that ran it") from error


def _result(found: Ledgered) -> tuple[dict[str, Any], bool]:
    """As `tune --json` printed it; where there is no end, what is known so far under the same keys."""
    told = found.last("finished").get("result")
    if isinstance(told, dict):
        return told, True
    started, trials = found.first("job_started"), [event["trial"] for event in found.events if "trial" in event]
    blank = JobResult(job=found.job)
    for name in ("board", "base_mode", "rail", "rail_coverage", "workload", "arrival", "grid_size", "seed"):
        setattr(blank, name, started.get(name))
    blank.latency_bound_s = found.phase("search").get("bound_s")
    blank.reason_text = "the ledger holds no end of this job"
    blank.trials = len({(trial["index"], trial["policy"]) for trial in trials})
    blank.measurements = len(trials)
    blank.invalid = dict(Counter(trial["invalid"] for trial in trials if trial["invalid"] is not None))
    blank.disturbed_s = sum(trial["duration_s"] for trial in trials)
    windows = [trial["measurement"] for trial in trials if trial["measurement"] is not None]
    blank.latency_percentile = windows[0]["latency_percentile"] if windows else None
    return blank.as_json(), False


def _points(trials: Sequence[Trial], result: Mapping[str, Any], space: Space | None) -> Iterator[Point]:
    """Each candidate that was tried, by index and policy; those that gave no evidence are none."""
    grouped: dict[tuple[int, str], list[Trial]] = {}
    for trial in trials:
        if trial.invalid is None:
            grouped.setdefault((trial.index, trial.policy), []).append(trial)
    for (index, policy), same in sorted(grouped.items()):
        yield _point(index, policy, same, _side_at(result, space, index, policy))


def _side_at(result: Mapping[str, Any], space: Space | None, index: int, policy: str) -> Mapping[str, Any] | None:
    """The side of the result that stands there: its numbers are pooled over windows, and are the ones decided on."""
    if space is None or index >= len(space):
        return None
    for name in SIDES:
        side: Mapping[str, Any] | None = result.get(name)
        if side is not None and side["policy"] == policy and candidate_of(side) == space.candidates[index]:
            return side
    return None


def _point(index: int, policy: str, same: Sequence[Trial], side: Mapping[str, Any] | None) -> Point:
    broke = [trial.infeasible for trial in same if trial.infeasible is not None]
    feasible, why_not = 2 * len(broke) < len(same), broke[0].value if broke else ""
    windows = counted(same)
    if not windows:
        return Point(index, policy, None, 0.0, None, None, feasible, why_not, len(same), None)
    energy_j = mean_energy_j(windows) if side is None else float(side["energy_j"])
    _, half_ratio = energy_error(windows)
    repeat, between, sensor = (variance**0.5 for variance in error_parts(windows))
    measured = [trial.measurement for trial in same if trial.measurement is not None]
    latency_s = fmean(window.latency_s for window in measured) if side is None else side["latency_s"]
    upper_s = fmean(window.latency_upper_s for window in measured) if side is None else side["latency_upper_s"]
    return Point(
        index=index,
        policy=policy,
        energy_j=energy_j,
        half_j=half_ratio * energy_j,
        latency_s=latency_s,
        latency_upper_s=upper_s if upper_s is not None and upper_s < float("inf") else None,
        feasible=feasible,
        why_not=why_not,
        windows=len(same),
        spread=Spread(repeat, between, sensor),
    )


def _front(
    space: Space | None, trials: Sequence[Trial], result: Mapping[str, Any], known: Sequence[Event]
) -> Front | None:
    """What the model makes of all valid windows under the policy that was searched, and of those `known` from earlier
    jobs; None: too few for it."""
    if space is None or not 1 < len(space) <= MOST_SCORED:
        return None
    policy = "locked" if result.get("clocks") == "locked" else "capped"
    told = [trial for trial in trials if trial.invalid is None and trial.policy == policy]
    windows = [_window(trial.index, trial.measurement) for trial in told if trial.measurement is not None]
    if len(windows) < _LEAST_WINDOWS or len({trial.index for trial in told}) < _LEAST_CANDIDATES:
        return None
    cut = [trial.index for trial in told if trial.cut and trial.infeasible is Infeasible.LATENCY]
    bound_s, seed = result.get("latency_bound_s"), int(result.get("seed") or 0)
    try:
        earlier = decode_earlier(known, len(space))
        return front_of(space, windows, earlier=earlier, seed=seed, cut=cut, bound_s=bound_s)
    except (JouletuneError, ArithmeticError, ValueError) as error:  # a prediction is no part that a page needs
        log.warning("the model says nothing of this job: %s", error)
        return None


def _window(index: int, measurement: Measurement) -> Earlier:
    return Earlier(
        index=index,
        energy_j=measurement.energy_j,
        energy_se_j=measurement.energy_se_j,
        latency_s=measurement.latency_s,
        latency_se_s=measurement.latency_se_s,
        age_s=0.0,
    )
