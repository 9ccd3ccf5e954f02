"""A retune begins with what earlier jobs on the same board with the same workload have measured, and with no more."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from optuna.study import get_all_study_names, load_study

from jouled.board.grid import board_space
from jouled.board.winner import read_winner
from jouled.cli.progress import Progress
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.earlier import MOST, MOST_JOBS, MOST_ROWS, Known, Old, find_known, identity_of
from jouled.job.events import Event, encode
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.job.studies import rebuild_missing, space_of, space_record, study_name
from jouled.ledger import Ledger
from jouled.study import open_storage, study_path
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.worker.protocol import MAX_LINE_BYTES
from jouled.workload.runner import Arrival
from jouletune.earlier import Earlier, decode_earlier, encode_earlier
from jouletune.errors import SearchError
from jouletune.search import Measured, Search
from jouletune.space import Candidate, PowerMode, Space
from jouletune.standing import told

Record = dict[str, Any]
DAY_S = 86_400.0


@dataclass(frozen=True)
class Job:
    """What came of one, and what it said."""

    folder: Path
    settings: Record
    result: JobResult
    events: list[Record]

    def known(self) -> Record:
        return next(event for event in self.events if event.get("phase") == "known")

    def trials(self) -> list[Record]:
        return [event["trial"] for event in self.events if event["event"] == "trial"]

    def study(self) -> Record:
        return {"storage": f"sqlite:///{study_path(self.folder)}", "study_name": study_name(self.result.job)}


def tune(machine: VirtualMachine, folder: Path, **keys: Any) -> Job:
    """One on a virtual board of 20 modes."""
    brief = {"job.settle_min_s": 0.0, "job.settle_max_s": 1.0, "job.pilot_s": 4.0, "job.watch_s": 1.0}
    values = {**brief, "job.sampler": "joule", "grid.shape": "2x5x2"}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    config = load(None, values)
    request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
    events: list[Event] = []
    runner, sinks = VirtualRunner(machine, Arrival()), (events.append,)
    result = run_job(machine.host(folder), request, runner, cancellation=Cancellation(), sinks=sinks)
    return Job(folder, values, result, [dict(event) for event in events if event["event"] != "progress"])


@pytest.fixture(scope="module", name="course")
def _course(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """A job, one with another bound and, after a boot each, two more."""
    folder = tmp_path_factory.mktemp("earlier")
    machine = VirtualMachine(folder / "board", programs="in_process")
    jobs = [tune(machine, folder, target__latency_bound_ratio=1.6, job__budget=5)]
    jobs.append(tune(machine, folder, target__latency_bound_ratio=1.9, job__budget=3))
    for fresh in (False, True):
        machine.reboot()
        more = {"job__sampler": "grid", "job__fresh": fresh}
        jobs.append(tune(machine, folder, target__latency_bound_ratio=1.6, job__budget=2, **more))
    return jobs


@pytest.fixture(scope="module", name="first")
def _first(course: list[Job]) -> list[Record]:
    """The events of the first job, which found a winner."""
    assert course[0].result.outcome == "tuned"
    return course[0].events


@pytest.fixture(scope="module", name="second")
def _second(course: list[Job]) -> Job:
    return course[1]


@pytest.fixture(scope="module", name="booted")
def _booted(course: list[Job]) -> list[Job]:
    return course[2:]


@pytest.fixture(name="ledger")
def _ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def keep(ledger: Ledger, events: list[Record], job: str, *, age_s: float = 0.0, **changes: Any) -> None:
    """Write the events as those of another job, with other words in its first."""
    for event in events:
        started = event["event"] == "job_started"
        more = {**changes, "wall_s": event["wall_s"] - age_s} if started else {}
        ledger.append({**event, "job": job, **more})


def found(ledger: Ledger, first: list[Record], *, policy: str = "capped", now_s: float | None = None) -> Known:
    """What a job that begins now, as the first did, is told."""
    started = first[0]
    own = identity_of(started, None)
    now_s = started["wall_s"] + DAY_S if now_s is None else now_s
    return find_known(ledger, "now", own, space_of(started["space"]), policy=policy, now_s=now_s)


def valid(events: list[Record]) -> list[Record]:
    trials = [event["trial"] for event in events if event["event"] == "trial"]
    return [trial for trial in trials if trial["invalid"] is None and trial["measurement"] is not None]


# --- whole jobs ---------------------------------------------------------------------------------------------


def test_a_retune_with_another_bound_begins_with_all_that_was_measured_and_ends_with_the_old_winner(
    second: Job, first: list[Record]
) -> None:
    known, measured = second.known(), valid(first)
    assert known["jobs"] == 1
    assert known["not_used"] == {}
    assert second.result.as_json()["earlier_measurements"] == len(known["earlier"]) == len(measured) > 6
    assert [one["energy_j"] for one in known["earlier"]] == [trial["measurement"]["energy_j"] for trial in measured]
    assert [one["index"] for one in known["earlier"]] == [trial["index"] for trial in measured]
    assert all(0.0 < one["age_s"] < 2 * 3600.0 for one in known["earlier"])
    winner = next(event for event in first if event["event"] == "finished")["result"]["winner"]
    before = [trial for trial in second.trials() if trial["purpose"] != "finals"]
    assert len(before) == second.settings["job.budget"]
    assert [trial["purpose"] for trial in before][:2] == ["reference", "search"]
    assert winner["mode"] in [trial["candidate"]["mode"] for trial in before]  # the decision is against it


@pytest.mark.parametrize(
    ("known", "then_s", "now_s", "first"),
    [
        (True, 0.020, 0.0202, True),
        (True, 0.020, 0.025, False),
        (True, None, None, True),
        (True, None, 0.025, False),
        (False, 0.020, 0.025, True),
    ],
)
def test_the_old_winner_comes_first_unless_it_is_known_and_the_bound_another(
    known: bool, then_s: float | None, now_s: float | None, first: bool
) -> None:
    windows = EARLIER if known else ()
    assert Old(4, then_s).comes_first(Known(windows, 1), now_s) is first
    assert Old(5, then_s).comes_first(Known(windows, 1), now_s)


def test_people_are_told_how_much_is_known(course: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    for job in course[:2]:
        Progress()({**job.known(), "t_s": 0.0})
    count = course[1].result.earlier_measurements
    assert capsys.readouterr().err == f"  0:00  {count} windows of 1 earlier job are known\n"


def test_its_study_has_them_and_is_made_anew_with_them(second: Job) -> None:
    kept = Search(space_of(second.events[0]["space"]), bound_s=1.0, **second.study())
    assert encode_earlier(kept.earlier) == second.known()["earlier"]
    study_path(second.folder).unlink()
    with open_storage(second.folder) as storage:
        rebuild_missing(storage, Ledger(second.folder).read().events)
    anew = Search(kept.space, bound_s=1.0, **second.study())
    assert anew.earlier == kept.earlier
    before, after = list(told(kept.study)), list(told(anew.study))
    assert len(before) >= 3
    assert after == before


def test_of_a_trial_that_was_repeated_a_study_made_anew_has_the_last_try(tmp_path: Path, first: list[Record]) -> None:
    at = next(n for n, event in enumerate(first) if event["event"] == "trial" and event["trial"]["purpose"] == "search")
    trial = first[at]["trial"]
    thrown_away = {**first[at], "trial": {**trial, "invalid": "throttled", "attempt": 0}}
    events = [*first[:at], thrown_away, {**first[at], "trial": {**trial, "attempt": 1}}, *first[at + 1 :]]
    studies = []
    for name, record in (("plain", first), ("repeated", events)):
        with open_storage(tmp_path / name) as storage:
            assert rebuild_missing(storage, record) == 1
            (study,) = get_all_study_names(storage)
            studies.append(list(told(load_study(study_name=study, storage=storage))))
    assert studies[0] == studies[1]


def test_the_winner_of_an_earlier_boot_is_tried_right_after_the_reference(booted: list[Job]) -> None:
    usual, fresh = booted
    winner = read_winner(usual.folder)
    assert winner is not None
    assert [trial["purpose"] for trial in usual.trials()][:2] == ["reference", "search"]
    modes = [trial["candidate"]["mode"] for trial in usual.trials()]
    assert modes[1] == asdict(winner.candidate.mode)
    assert fresh.trials()[1]["index"] == 0  # the grid's first


def test_nothing_is_used_where_that_is_not_wanted_or_of_no_use(booted: list[Job]) -> None:
    for job in booted:  # a sampler without a model, and a fresh start
        assert job.result.earlier_measurements == 0
        assert (job.known()["earlier"], job.known()["not_used"]) == ([], {})


# --- what is found in a ledger ------------------------------------------------------------------------------


def test_windows_of_several_jobs_come_the_youngest_first_with_their_ages(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, first, "old", age_s=9 * DAY_S)
    keep(ledger, first, "young", age_s=2 * DAY_S)
    known = found(ledger, first, now_s=first[0]["wall_s"] + DAY_S / 2)
    count = len(valid(first))
    assert known.jobs == 2
    assert [math.floor(window.age_s / DAY_S) for window in known.windows] == [2] * count + [9] * count
    assert known.sentence() == f"{2 * count} windows of 2 earlier jobs are the prior of this search"


def test_a_job_later_in_the_ledger_and_the_job_itself_are_not_earlier(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, first, "before")
    keep(ledger, first, "now")
    keep(ledger, first, "after")
    assert found(ledger, first).jobs == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": {"module": "x"}}, "another module"),
        ({"fingerprint": None}, "without a fingerprint"),
        ({"rail": "VDD_IN"}, "another rail"),
        ({"workload": "classifier"}, "another workload"),
        ({"arrival": "rate 30 Hz"}, "another arrival"),
        ({"workload_marks": {"/opt/app/detector.plan": "00ff"}}, "another workload"),
        ({"versions": {"l4t": "36.5"}}, "another versions"),
        ({"latency_percentile": 99.0}, "another latency_percentile"),
    ],
)
def test_what_holds_for_something_else_is_left_out_and_said(
    ledger: Ledger, first: list[Record], change: Record, why: str
) -> None:
    keep(ledger, first, "other", **change)
    known = found(ledger, first)
    assert known == Known(not_used={why: 1})
    assert known.sentence() == f"earlier jobs not used: 1 {why}"


def test_another_runtime_and_another_base_mode_are_other_identities(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, first, "other", fingerprint={**first[0]["fingerprint"], "base_mode": "15W"})
    for event in first:
        told = {"runtime": "tensorrt 10.3"} if event.get("phase") == "known" else {}
        ledger.append({**event, "job": "new runtime", **told})
    assert found(ledger, first).not_used == {"another runtime": 1, "another base_mode": 1}


@pytest.mark.parametrize(
    "change",
    [{"invalid": "throttled"}, {"measurement": None, "cut": True, "infeasible": "latency"}, {"policy": "locked"}],
)
def test_windows_that_are_no_evidence_or_of_another_policy_are_not_used(
    ledger: Ledger, first: list[Record], change: Record
) -> None:
    keep(ledger, [{**one, "trial": one["trial"] | change} if "trial" in one else one for one in first], "before")
    assert found(ledger, first) == Known(not_used={"without a valid window of this grid and policy": 1})


def test_candidates_that_this_grid_does_not_have_are_passed_over(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, first, "before")
    smaller = copy.deepcopy(first)
    gone = next(trial["index"] for trial in valid(first) if trial["purpose"] == "search")
    space = smaller[0]["space"]
    del space["candidates"][gone]
    space["reference"] -= space["reference"] > gone
    whole, part = found(ledger, first), found(ledger, smaller)
    kept = [window for window in whole.windows if window.index != gone]
    assert [window.energy_j for window in part.windows] == [window.energy_j for window in kept]
    assert [window.index for window in part.windows] == [one.index - (one.index > gone) for one in kept]


def test_trials_of_another_version_cost_nothing_but_themselves(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, [{**one, "trial": {"number": 1}} if "trial" in one else one for one in first], "odd")
    keep(ledger, first, "before")
    assert found(ledger, first).jobs == 1


@pytest.mark.parametrize("absurd", [{}, [], "x", 1e308, -1e308])
def test_numbers_that_are_none_cost_nothing_but_themselves(ledger: Ledger, first: list[Record], absurd: Any) -> None:
    odd = copy.deepcopy(first)
    for event in odd:
        if "trial" in event and event["trial"]["measurement"] is not None:
            event["trial"]["measurement"]["latency_se_s"] = absurd
    keep(ledger, odd, "odd")
    keep(ledger, first, "other", fingerprint=absurd, workload_marks=absurd)
    keep(ledger, first, "before")
    assert found(ledger, first).jobs == 1


def test_of_very_many_candidates_those_measured_last_are_known(ledger: Ledger, first: list[Record]) -> None:
    """A fit of 200 candidates of which some contradict takes 6 s: with two in a row a worker would seem hung."""
    wide = copy.deepcopy(first)
    wide[0]["space"] = space_record(line(MOST_ROWS + 20))
    trial = next(event for event in wide if "trial" in event and event["trial"]["measurement"] is not None)
    for number, candidate in enumerate(line(MOST_ROWS + 20).candidates):
        one = copy.deepcopy(trial)
        one["trial"]["candidate"] = asdict(candidate)
        keep(ledger, [wide[0], one], f"job {number // 5}")
    known = found(ledger, wide)
    assert len({window.index for window in known.windows}) == MOST_ROWS


def test_a_clock_that_was_not_set_makes_no_reading_young(ledger: Ledger, first: list[Record]) -> None:
    keep(ledger, first, "before")
    known = found(ledger, first, now_s=1000.0)
    assert {window.age_s for window in known.windows} == {30 * DAY_S}


def test_a_ledger_that_began_anew_is_looked_at_too_and_only_until_there_is_enough(
    ledger: Ledger, first: list[Record]
) -> None:
    count = len(valid(first))
    for number in range(3):
        keep(ledger, first, f"first {number}")
    ledger.mend(rotate_above_bytes=10)
    keep(ledger, first, "second")
    assert found(ledger, first).jobs == 4
    for number in range(max(MOST_JOBS, MOST // count)):
        keep(ledger, first, f"third {number}")
    known = found(ledger, first)
    assert known.jobs == min(MOST_JOBS, math.ceil(MOST / count))
    assert len(known.windows) == min(MOST_JOBS * count, MOST)


# --- the search that is told of it --------------------------------------------------------------------------


def line(size: int) -> Space:
    return Space.of([Candidate(PowerMode(gpu_hz=100_000_000 * (1 + n))) for n in range(size)], size - 1)


EARLIER = tuple(Earlier(n, 1.0 + abs(n - 4) / 10, 0.01, 1.0 / (1 + n), 0.001, DAY_S) for n in (2, 4, 6, 7))


def measured(index: int) -> Measured:
    latency_s = 1.0 / (1 + index)
    return Measured(1.0 + abs(index - 4) / 10, 0.01, latency_s, 1.01 * latency_s, 0.001, 5.0, feasible=True)


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Callable[[tuple[Earlier, ...]], Search]:
    storage = f"sqlite:///{tmp_path / 'study.db'}"

    def make(earlier: tuple[Earlier, ...]) -> Search:
        return Search(line(8), sampler="joule", bound_s=0.5, seed=3, earlier=earlier, storage=storage, study_name="one")

    return make


def test_a_killed_search_goes_on_with_the_earlier_windows_that_it_began_with(
    make: Callable[[tuple[Earlier, ...]], Search],
) -> None:
    search = make(EARLIER)
    search.tell(7, measured(7))
    wanted, beliefs = search.ask(), search.beliefs()
    again = make(())  # who resumes it need not know them; their ages would be others by now
    assert again.earlier == EARLIER
    assert again.ask() == wanted
    assert again.beliefs() == beliefs


def test_earlier_windows_lead_to_the_best_mode_at_once() -> None:
    search = Search(line(8), sampler="joule", bound_s=0.5, seed=3, earlier=EARLIER)
    search.tell(7, measured(7))
    assert search.ask() == 4
    assert Search(line(8), sampler="joule", bound_s=0.5, seed=3).earlier == ()


@pytest.mark.parametrize("change", [{"index": 8}, {"energy_j": 0.0}, {"latency_s": math.nan}, {"age_s": -1.0}])
def test_earlier_windows_that_are_none_are_refused(change: Record) -> None:
    plain = encode_earlier(EARLIER[:1])[0] | change
    with pytest.raises(SearchError):
        decode_earlier([plain], 8)
    with pytest.raises(SearchError):
        Search(line(8), sampler="joule", bound_s=0.5, earlier=[Earlier(**plain)])


def test_earlier_windows_survive_json() -> None:
    assert decode_earlier(encode_earlier(EARLIER), 8) == EARLIER
    with pytest.raises(SearchError, match="earlier: wanted index"):
        decode_earlier([{"index": 1}], 8)


def test_the_most_that_can_be_known_fits_into_a_line_of_the_workers_protocol() -> None:
    window = Earlier(
        1999, 0.13393198849096885, 0.0008391688114213357, 0.004247654625475193, 4.82548931444603e-07, 1e7 / 3
    )
    why = {f"another latency_percentile of job {number}": number for number in range(20)}
    known = Known((window,) * MOST, MOST_JOBS, why)
    assert len(encode({"event": "phase", "phase": "known", **known.as_fields()})) < 0.75 * MAX_LINE_BYTES
