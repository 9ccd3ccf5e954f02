"""What latency buys on a board with a workload, from the ledger alone: one job and what jobs before it measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jouled.errors import StateError, UsageError
from jouled.job.earlier import Known, find_known, identity_of, window_of
from jouled.job.ground import MOST_SCORED
from jouled.job.studies import space_of
from jouled.ledger import Ledger, marked, rotated
from jouletune.earlier import Earlier
from jouletune.errors import JouletuneError
from jouletune.front import Front, front_of
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.trial import Infeasible, Trial

LATEST = "latest"
LEAST_CANDIDATES = 3

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ledgered:
    """A job with valid windows: its first event and what it measured. `cut`: candidates slower than `bound_s`."""

    job: str
    folder: Path
    started: Event
    runtime: str | None
    policy: str
    bound_s: float | None
    winner: Candidate | None
    space: Space
    windows: tuple[Earlier, ...]
    cut: tuple[int, ...]

    @property
    def wall_s(self) -> float:
        wall_s = self.started.get("wall_s")
        return float(wall_s) if isinstance(wall_s, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The front, and what it stands on."""

    of: Ledgered
    known: Known
    front: Front


def measured_front(folders: Sequence[Path], job: str) -> Measured:
    """The front by the job of this id, or by the latest that has valid windows, in the ledgers of `folders`.

    Raises UsageError where too little was measured, StateError, NotPermittedError.
    """
    found = [one for folder in folders for one in _youngest(folder, job)]
    if not found:
        raise _nothing(folders, job)
    of = max(found, key=lambda one: one.wall_s)
    identity = identity_of(of.started, of.runtime)
    known = find_known(Ledger(of.folder), of.job, identity, of.space, policy=of.policy, now_s=of.wall_s)
    _check(of, known)
    try:
        front = front_of(of.space, of.windows, earlier=known.windows, cut=of.cut, bound_s=of.bound_s)
    except (JouletuneError, ArithmeticError, TypeError, ValueError) as error:
        raise StateError(f"the measurements of job {of.job} make no front: {error}", hint="report it") from error
    return Measured(of, known, front)


def _nothing(folders: Sequence[Path], job: str) -> UsageError:
    where = ", ".join(str(Ledger(folder).path) for folder in folders)
    if job == LATEST:
        return UsageError(f"nothing was measured yet in {where}", hint="measure first: jouled tune")
    return UsageError(
        f"no job {job!r} with a valid window in {where}",
        hint="jouled front latest; or name one: jouled tune --json and jouled history say the ids",
    )


def _check(of: Ledgered, known: Known) -> None:
    """Raise UsageError where a front would be made up."""
    count = len({window.index for window in (*of.windows, *known.windows)})
    if count < min(LEAST_CANDIDATES, len(of.space)):
        raise UsageError(
            f"too little was measured for a front: wanted at least {LEAST_CANDIDATES} candidates, got {count}",
            hint="measure more: jouled tune",
        )
    if len(of.space) > MOST_SCORED:
        raise UsageError(
            f"a front is made of at most {MOST_SCORED} candidates, got {len(of.space)}",
            hint="tune with a smaller --grid",
        )


# --- the job ------------------------------------------------------------------------------------------------


def _youngest(folder: Path, job: str) -> Iterator[Ledgered]:
    path = Ledger(folder).path
    for file in (path, *reversed(rotated(path))):
        started = [event for event in marked(file, b'"event":"job_started"') if "space" in event]
        for event in reversed(started):
            if job in (LATEST, event.get("job")):
                found = _read(folder, file, event)
                if found is not None:
                    yield found
                    return


def _read(folder: Path, file: Path, started: Event) -> Ledgered | None:
    """None: it has no valid window, or was written by a version that is not known here."""
    job = str(started["job"])
    events = [event for event in marked(file, f'"job":"{job}"'.encode()) if event.get("job") == job]
    try:
        space = space_of(started["space"])
        trials = [Trial.from_dict(event["trial"]) for event in events if event.get("event") == "trial"]
        winner = _winner(events)
    except (JouletuneError, AttributeError, KeyError, TypeError, ValueError):
        return None
    policy = str(_first(events, "known", "policy") or "capped")
    own = [trial for trial in trials if trial.policy == policy and trial.index < len(space)]
    windows = tuple(window for trial in own for window in window_of(trial, trial.index, age_s=0.0))
    if not windows:
        return None
    return Ledgered(
        job=job,
        folder=folder,
        started=started,
        runtime=_first(events, "known", "runtime"),
        policy=policy,
        bound_s=_first(events, "search", "bound_s"),
        winner=winner,
        space=space,
        windows=windows,
        cut=tuple(trial.index for trial in own if trial.cut and trial.infeasible is Infeasible.LATENCY),
    )


def _first(events: Sequence[Event], phase: str, name: str) -> Any:
    """What the first event of a phase says; None: there is none, or it does not say."""
    return next((event.get(name) for event in events if event.get("phase") == phase), None)


def _winner(events: Sequence[Event]) -> Candidate | None:
    """Raises KeyError, TypeError."""
    result: Event = next((event["result"] for event in events if event.get("event") == "finished"), {})
    winner = result.get("winner")
    return None if winner is None else Candidate(PowerMode(**winner["mode"]), Variant(**winner["variant"]))
