"""Studies made anew from the ledger, where the database does not have them (it was lost, or damaged and set aside)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jouled.job.observation import observation_of
from jouled.job.request import Request
from jouled.study import rebuild_study
from jouletune.earlier import Earlier, decode_earlier
from jouletune.errors import JouletuneError
from jouletune.objective import Objective
from jouletune.search import Search
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.trial import Purpose, Trial

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

log = logging.getLogger(__name__)

MOST = 20  # the youngest jobs; each window told takes about 10 ms
_SEARCHED = (Purpose.REFERENCE, Purpose.INCUMBENT, Purpose.SEARCH)


def study_name(job: str) -> str:
    """What a job's study is called."""
    return f"job-{job}"


def space_record(space: Space) -> dict[str, Any]:
    """The candidates as a ledger keeps them, short: cores, CPU, GPU and EMC caps in Hz, engine, batch, instances."""
    rows = []
    for candidate in space.candidates:
        mode, variant = candidate.mode, candidate.variant
        caps = (mode.cores, mode.cpu_hz, mode.gpu_hz, mode.emc_hz)
        rows.append([*caps, variant.engine, variant.batch, variant.instances])
    return {"candidates": rows, "reference": space.reference}


def space_of(record: Mapping[str, Any]) -> Space:
    """The space that `space_record` made `record` of. Raises SpaceError, KeyError, TypeError, ValueError."""
    candidates = [Candidate(PowerMode(*row[:4]), Variant(*row[4:])) for row in record["candidates"]]
    return Space.of(candidates, int(record["reference"]))


def open_search(
    request: Request,
    space: Space,
    *,
    bound_s: float | None,
    rate_hz: float | None,
    incumbent: int | None,
    earlier: Sequence[Earlier],
    storage: RDBStorage,
    study_name: str,
) -> Search:
    """The search that `request` asks for. Raises SearchError."""
    target, job = request.config.target, request.config.job
    return Search(
        space,
        sampler=job.sampler,
        bound_s=bound_s,
        seed=request.seed,
        incumbent=incumbent,
        budget=job.budget,
        min_gain=target.min_gain,
        earlier=earlier,
        objective=request.objective,
        max_power_w=target.max_power_w,
        rate_hz=rate_hz,
        risk=job.risk,
        storage=storage,
        study_name=study_name,
    )


def rebuild_missing(storage: RDBStorage, events: Sequence[Mapping[str, Any]]) -> int:
    """Tell the studies of the youngest jobs again that `storage` lacks; how many there were."""
    from optuna.study import get_all_study_names

    known = set(get_all_study_names(storage))
    searched = {event.get("job") for event in events if event.get("phase") == "search"}  # others never had a study
    started = [event for event in events if event.get("event") == "job_started" and "space" in event]
    started = [event for event in started if event["job"] in searched]
    lost = [event for event in started if study_name(str(event["job"])) not in known][-MOST:]
    made = 0
    for event in lost:
        try:
            _rebuild(storage, event, [other for other in events if other.get("job") == event["job"]])
            made += 1
        except (JouletuneError, KeyError, TypeError, ValueError) as error:  # written by another version
            log.warning("the study of job %s stays lost: %s", event["job"], error)
    return made


def _rebuild(storage: RDBStorage, started: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
    space = space_of(started["space"])
    bound_s = next((event["bound_s"] for event in events if event.get("phase") == "search"), None)
    known = next((event for event in events if event.get("phase") == "known"), {})
    earlier = decode_earlier(known.get("earlier", ()), len(space))
    trials = [Trial.from_dict(event["trial"]) for event in events if event.get("event") == "trial"]
    told = [(trial.index, observation_of(trial, bound_s)) for trial in _told(trials, known.get("policy", "capped"))]

    def make_search(store: RDBStorage, name: str) -> Search:
        how: dict[str, Any] = {"sampler": started["sampler"], "seed": int(started["seed"]), "earlier": earlier}
        objective = Objective(started.get("objective", Objective.ENERGY))
        return Search(space, bound_s=bound_s, objective=objective, storage=store, study_name=name, **how)

    rebuild_study(storage, study_name(str(started["job"])), make_search, told)


def _told(trials: Sequence[Trial], policy: str) -> Iterator[Trial]:
    """Those that the search was told of: the last try of each, and an incumbent's under the policy that is searched."""
    for number, trial in enumerate(trials):
        is_repeated = number + 1 < len(trials) and trials[number + 1].attempt == trial.attempt + 1
        is_other = trial.purpose is Purpose.INCUMBENT and trial.policy != policy
        if trial.purpose in _SEARCHED and not is_repeated and not is_other:
            yield trial
