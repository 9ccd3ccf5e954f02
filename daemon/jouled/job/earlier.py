"""What earlier jobs have measured on this board with this workload: the prior of the next search.

"This" is all that a winner holds for (ARCHITECTURE 7) but the bound: the board's fingerprint, what measured it, the
workload with its marks, arrival, percentile and runtime, and the clocks policy. Jobs that differ in any of it are left
out, and how many and why is said. Who discounts what age has made of the rest is the surrogate.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jouled.board.host import Host
from jouled.board.winner import is_stale, read_winner
from jouled.job.ground import Ground
from jouled.job.request import Request
from jouled.ledger import Ledger, marked, rotated
from jouled.workload.marks import RUNTIME, differing
from jouletune.earlier import Earlier, encode_earlier
from jouletune.errors import MeasurementError
from jouletune.search import SAMPLERS
from jouletune.space import Candidate, Space
from jouletune.trial import Trial

log = logging.getLogger(__name__)

MOST = 200  # windows; a surrogate makes one mean of those of a row
MOST_JOBS = 20
MOST_ROWS = 60  # of them, candidates: a fit costs the cube, and takes seconds where many of 200 contradict
_SAME_BOUND = 0.02
_LEAST = 1e-12  # joules and seconds; what is less was never measured, and has no relative error
_WRONG_CLOCK_S = 30 * 86_400.0  # the age of what seems to lie in the future: a clock without a battery was not set
_COMPARED = ("versions", "rail", "rail_coverage", "workload", "arrival", "latency_percentile", "runtime")

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a job's numbers hold for, as its `job_started` tells it; `runtime` is known once the workload is loaded."""

    fingerprint: Mapping[str, str] | None
    marks: Mapping[str, str]
    others: Mapping[str, Any]

    def difference(self, then: Identity) -> str | None:
        """What sets an earlier job apart, in two or three words; None: nothing."""
        if self.fingerprint is None or then.fingerprint is None:
            return "without a fingerprint"
        for name in dict.fromkeys((*self.fingerprint, *then.fingerprint)):
            if self.fingerprint.get(name) != then.fingerprint.get(name):
                return f"another {name}"
        for name in _COMPARED:
            if self.others.get(name) != then.others.get(name):
                return f"another {name}"
        return None if dict(self.marks) == dict(then.marks) else "another workload"


def identity_of(started: Record, runtime: str | None) -> Identity:
    """Of a job, by its first event; one of an older version has no fingerprint."""
    marks = {str(name): str(text) for name, text in _table(started, "workload_marks").items()}
    marks.pop(RUNTIME, None)
    others = {name: started.get(name) for name in _COMPARED} | {"runtime": runtime}
    return Identity(_table(started, "fingerprint") or None, marks, others)


def _table(started: Record, name: str) -> Mapping[str, Any]:
    """Another version may have written anything."""
    value = started.get(name)
    return value if isinstance(value, Mapping) else {}


def identity_record(request: Request, ground: Ground) -> dict[str, Any]:
    """What `job_started` tells of it besides what it tells anyway."""
    percentile = request.config.target.latency_percentile
    board = {"fingerprint": dict(ground.fingerprint), "versions": dict(ground.versions)}
    return {**board, "latency_percentile": percentile}


@dataclass(frozen=True, slots=True)
class Known:
    """Windows of `jobs` earlier jobs, the youngest first. `not_used`: what sets others apart → how many."""

    windows: tuple[Earlier, ...] = ()
    jobs: int = 0
    not_used: Mapping[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """For the log; "" where there is nothing to say."""
        used = f"{len(self.windows)} windows of {self.jobs} earlier jobs are the prior of this search"
        others = ", ".join(f"{count} {why}" for why, count in self.not_used.items())
        parts = [used if self.windows else "", f"earlier jobs not used: {others}" if others else ""]
        return "; ".join(filter(None, parts))

    def as_fields(self) -> dict[str, Any]:
        """For the event that keeps it: a study that is lost is made anew with the same prior."""
        return {"earlier": encode_earlier(self.windows), "jobs": self.jobs, "not_used": dict(self.not_used)}


def find_known(ledger: Ledger, job: str, own: Identity, space: Space, *, policy: str, now_s: float) -> Known:
    """What jobs before `job` have measured, the youngest first, until there is enough. Raises StateError."""
    places = {candidate: index for index, candidate in enumerate(space.candidates)}
    windows: list[Earlier] = []
    not_used: Counter[str] = Counter()
    jobs = 0
    for path in (ledger.path, *reversed(rotated(ledger.path))):
        if len(windows) >= MOST or jobs >= MOST_JOBS:
            break
        for started, trials in _jobs(path, job, own, not_used):
            if len(windows) >= MOST or jobs >= MOST_JOBS:
                break
            taken = list(_windows(started, trials, places, policy, now_s))
            if trials and not taken:
                not_used["without a valid window of this grid and policy"] += 1
            jobs += bool(taken)
            windows += taken
    rows = set(list(dict.fromkeys(window.index for window in windows))[:MOST_ROWS])
    few = [window for window in windows[:MOST] if window.index in rows]
    return Known(tuple(few), jobs, dict(not_used))


def _jobs(path: Path, job: str, own: Identity, not_used: Counter[str]) -> Iterator[tuple[Record, list[Record]]]:
    """The jobs before `job` in this file that are of the same identity, the youngest first, with their trials."""
    started: dict[str, Record] = {}
    runtimes: dict[str, str | None] = {}
    for event in marked(path, b'"event":"job_started"', b'"phase":"known"'):
        name = str(event.get("job"))
        if event.get("event") == "job_started":
            started[name] = event
        elif event.get("phase") == "known":
            runtimes[name] = event.get("runtime")
    names = list(started)
    before = names[: names.index(job)] if job in started else names
    same: dict[str, list[Record]] = {}
    differences: dict[str, str] = {}
    for name in reversed(before):
        why = own.difference(identity_of(started[name], runtimes.get(name)))
        if why is None and len(same) < MOST_JOBS:
            same[name] = []
        elif why is not None:
            differences[name] = why
    measured: set[str] = set()
    for event in marked(path, b'"event":"trial"'):
        name = str(event.get("job"))
        measured.add(name)
        if name in same:
            same[name].append(event)
    not_used.update(why for name, why in differences.items() if name in measured)
    yield from ((started[name], trials) for name, trials in same.items())


def _windows(
    started: Record, trials: Sequence[Record], places: Mapping[Candidate, int], policy: str, now_s: float
) -> Iterator[Earlier]:
    """The valid ones of candidates that this job may choose from."""
    for event in trials:
        try:
            trial = Trial.from_dict(event["trial"])
            taken_s = float(started["wall_s"]) + trial.t_s
        except (KeyError, TypeError, ValueError, MeasurementError) as error:  # written by another version
            log.debug("a trial of job %s is passed over: %s", started.get("job"), error)
            continue
        index = places.get(trial.candidate)
        if index is not None and trial.policy == policy:
            yield from window_of(trial, index, age_s=now_s - taken_s if taken_s <= now_s else _WRONG_CLOCK_S)


def window_of(trial: Trial, index: int, *, age_s: float) -> Iterator[Earlier]:
    """One that is valid and has numbers, else none."""
    window = trial.measurement
    if window is None or trial.invalid is not None:
        return
    numbers = (window.energy_j, window.energy_se_j, window.latency_s, window.latency_se_s)
    if all(map(math.isfinite, numbers)) and min(window.energy_j, window.latency_s) >= _LEAST:
        yield Earlier(index, *numbers, age_s=age_s)


def known_before(host: Host, ground: Ground, request: Request, job: str, own: Identity) -> Known:
    """The prior of a job's search, as it was asked for. Raises StateError."""
    is_wanted = SAMPLERS[request.config.job.sampler].has_model and not request.config.job.fresh
    known = Known()
    if is_wanted:
        policy, now_s = request.searched_policy.value, host.clock.wall_s()
        known = find_known(Ledger(host.state_dir), job, own, ground.space, policy=policy, now_s=now_s)
    log.info("%s", known.sentence() or "no earlier measurement is used")
    return known


@dataclass(frozen=True, slots=True)
class Old:
    """The winner before this job: in force, or only standing. `bound_s`: what it was found with."""

    index: int
    bound_s: float | None

    def comes_first(self, known: Known, bound_s: float | None) -> bool:
        """It is tested right after the reference, but with another bound what is known decides what is."""
        is_known = any(window.index == self.index for window in known.windows)
        return not is_known or _is_same(self.bound_s, bound_s)


def _is_same(then_s: float | None, now_s: float | None) -> bool:
    """A ratio's bound differs a little from job to job."""
    if then_s is None or now_s is None:
        return then_s == now_s
    return abs(now_s / then_s - 1.0) < _SAME_BOUND


def find_old(host: Host, ground: Ground, request: Request, marks: Mapping[str, str]) -> Old | None:
    """The winner in force, else the one that stands; None: none that this search may try. Raises StateError."""
    if ground.incumbent.index != ground.space.reference and ground.applied is not None:
        first = request.searched_incumbent(ground.incumbent)
        return None if first is None else Old(first, ground.applied.latency_bound_s)
    return None if request.config.job.fresh else _old_winner(host, ground, request, marks)


def _old_winner(host: Host, ground: Ground, request: Request, marks: Mapping[str, str]) -> Old | None:
    """The winner that stands though it is not in force.

    One of another board, base mode, workload or policy, or one that is quarantined, is none.
    """
    winner = read_winner(host.state_dir)
    if winner is None or is_stale(winner, ground.fingerprint) or winner.workload != request.workload:
        return None
    if winner.policy != request.searched_policy.value or any(differing(winner.workload_marks, marks)):
        return None
    index = ground.space.index_of(winner.candidate)
    return None if index is None else Old(index, winner.latency_bound_s)
