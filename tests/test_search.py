from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from jouletune.errors import SearchError
from jouletune.search import SAMPLERS, Failed, Infeasible, Measured, Observation, Search
from jouletune.space import Candidate, PowerMode, Space

NAMES = sorted(SAMPLERS)
Answer = Callable[[int], Observation]


def grid(places: list[tuple[int, int, int]]) -> Space:
    candidates = [Candidate(PowerMode(cpu_hz=c + 1, gpu_hz=g + 1, emc_hz=e + 1)) for c, g, e in places]
    return Space.of(candidates, max(candidates))


def full(cpu: int, gpu: int, emc: int) -> Space:
    return grid([(c, g, e) for c in range(cpu) for g in range(gpu) for e in range(emc)])


def measured(energy_j: float, latency_s: float = 1.0, *, bound_s: float = 1.5, power_ok: bool = True) -> Measured:
    feasible = latency_s <= bound_s and power_ok
    return Measured(energy_j, 0.0, latency_s, latency_s, 0.0, energy_j / latency_s, feasible)


def bowl(space: Space, *, least: float = 0.6) -> Answer:
    """Energy with its least value at `least` of each axis; latency rises away from the top."""

    def answer(index: int) -> Measured:
        parts = [at / (len(a.values) - 1) for at, a in zip(space.coordinates(index), space.axes, strict=True)]
        energy_j = 10.0 * math.exp(sum((part - least) ** 2 for part in parts))
        return measured(energy_j, 1.0 + 0.25 * sum(1.0 - part for part in parts))

    return answer


def proposals(search: Search, answer: Answer, limit: int = 200) -> list[int]:
    asked: list[int] = []
    while len(asked) < limit and (index := search.ask()) is not None:
        asked.append(index)
        search.tell(index, answer(index))
    return asked


@pytest.fixture(name="storage")
def _storage(tmp_path: Path) -> Iterator[Callable[[], RDBStorage]]:
    opened: list[RDBStorage] = []

    def open_again() -> RDBStorage:
        opened.append(RDBStorage(f"sqlite:///{tmp_path / 'study.db'}"))
        return opened[-1]

    yield open_again
    for one in opened:
        one.remove_session()
        one.engine.dispose()


@pytest.mark.parametrize("sampler", NAMES)
def test_reference_is_asked_first_then_incumbent(sampler: str) -> None:
    space = full(3, 4, 2)
    search = Search(space, sampler=sampler, bound_s=1.5, incumbent=7)
    assert proposals(search, bowl(space), limit=2) == [space.reference, 7]


@pytest.mark.parametrize("sampler", NAMES)
def test_reference_told_unasked_is_not_asked(sampler: str) -> None:
    space = full(3, 4, 2)
    search = Search(space, sampler=sampler, bound_s=1.5)
    search.tell(space.reference, bowl(space)(space.reference))
    assert search.ask() != space.reference


@pytest.mark.parametrize("sampler", [name for name in NAMES if name != "joule"])  # it measures again
@given(
    places=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30, unique=True),
    kind=st.sampled_from(["noise", "constant", "infeasible", "cut", "failed", "mixed"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_any_space_and_any_answers_give_each_candidate_at_most_once(
    sampler: str, places: list[tuple[int, int, int]], kind: str, seed: int
) -> None:
    space = grid(places)
    draw = random.Random(seed)

    def answer(index: int) -> Observation:
        what = draw.choice(["noise", "infeasible", "cut", "failed"]) if kind == "mixed" else kind
        if what == "failed":
            return Failed("throttled")
        if what == "cut":
            return Infeasible()
        energy_j = 1.0 if what == "constant" else draw.lognormvariate(0.0, 0.5)
        return measured(energy_j, 9.0 if what == "infeasible" else 1.0)

    search = Search(space, sampler=sampler, bound_s=1.5, seed=seed)
    asked = proposals(search, answer)
    assert len(asked) == len(set(asked)) <= len(space)
    assert set(asked) <= set(range(len(space)))
    assert search.ask() is None
    if sampler != "descent":
        assert len(asked) == len(space)


@pytest.mark.parametrize("sampler", NAMES)
def test_same_seed_gives_same_proposals(sampler: str) -> None:
    space = full(4, 6, 3)
    runs = [proposals(Search(space, sampler=sampler, bound_s=1.5, seed=3), bowl(space), limit=15) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_another_seed_gives_other_proposals(sampler: str) -> None:
    space = full(4, 6, 3)
    runs = [proposals(Search(space, sampler=sampler, bound_s=1.5, seed=s), bowl(space), limit=15) for s in (1, 2)]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("sampler", NAMES)
@pytest.mark.parametrize("killed", ["between", "in_window"])
def test_search_reloaded_from_its_storage_goes_on_as_if_never_killed(
    sampler: str, killed: str, storage: Callable[[], RDBStorage]
) -> None:
    space = full(4, 6, 3)
    whole = proposals(Search(space, sampler=sampler, bound_s=1.5, seed=3), bowl(space), limit=11)
    first = Search(space, sampler=sampler, bound_s=1.5, seed=3, storage=storage(), study_name="job")
    assert proposals(first, bowl(space), limit=6) == whole[:6]
    if killed == "in_window":
        assert first.ask() == whole[6]
    second = Search(space, sampler=sampler, bound_s=1.5, seed=3, storage=storage(), study_name="job")
    assert proposals(second, bowl(space), limit=5) == whole[6:]


@pytest.mark.parametrize("sampler", NAMES)
def test_ledger_told_anew_gives_the_same_next_proposal(sampler: str) -> None:
    space = full(4, 6, 3)
    live = Search(space, sampler=sampler, bound_s=1.5, seed=3)
    asked = proposals(live, bowl(space), limit=8)
    rebuilt = Search(space, sampler=sampler, bound_s=1.5, seed=3)
    for index in asked:
        rebuilt.tell(index, bowl(space)(index))
    assert rebuilt.ask() == live.ask()


def test_half_told_trial_of_a_killed_process_does_not_count(storage: Callable[[], RDBStorage]) -> None:
    space = full(3, 4, 2)
    first = Search(space, sampler="descent", bound_s=1.5, storage=storage(), study_name="job")
    index = first.ask()
    assert index == space.reference
    trial = first.study.get_trials(deepcopy=False)[0]
    told = {"kind": "measured", "energy_j": 1.0, "energy_se_j": 0.0, "latency_s": 1.0}
    told |= {"latency_upper_s": 1.0, "latency_se_s": 0.0, "power_w": 1.0, "feasible": True}
    for key, value in (("observation", told), ("candidate", index)):
        first.study._storage.set_trial_user_attr(trial._trial_id, key, value)
    second = Search(space, sampler="descent", bound_s=1.5, storage=storage(), study_name="job")
    assert second.ask() == space.reference
    assert second.best(1) == []


def test_study_of_another_grid_is_refused(storage: Callable[[], RDBStorage]) -> None:
    Search(full(3, 4, 2), sampler="descent", bound_s=1.5, storage=storage(), study_name="job")
    with pytest.raises(SearchError, match="made for another grid"):
        Search(full(4, 4, 2), sampler="descent", bound_s=1.5, storage=storage(), study_name="job")


def test_ask_gives_the_same_candidate_until_it_is_told() -> None:
    space = full(3, 4, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    first = search.ask()
    assert first is not None
    assert search.ask() == first
    search.tell(first, bowl(space)(first))
    assert search.ask() != first


def test_reference_measured_again_leaves_the_asked_candidate_open() -> None:
    space = full(3, 4, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    proposals(search, bowl(space), limit=1)
    asked = search.ask()
    search.tell(space.reference, bowl(space)(space.reference))
    assert search.ask() == asked


@pytest.mark.parametrize("sampler", NAMES)
def test_failed_candidate_comes_back_only_by_retry(sampler: str) -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler=sampler, bound_s=1.5)
    asked = proposals(search, lambda i: Failed("sensor_gap") if i == 2 else bowl(space)(i))
    if 2 not in asked:
        search.tell(2, Failed("sensor_gap"))
    assert search.ask() is None
    search.retry(2)
    assert search.ask() == 2
    search.tell(2, Failed("sensor_gap"))
    assert search.ask() is None


def test_retry_of_what_did_not_fail_is_an_error() -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    proposals(search, bowl(space))
    with pytest.raises(SearchError, match="wanted one whose last trial failed"):
        search.retry(space.reference)


def test_failed_and_cut_trials_are_never_numbers_to_optuna() -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler="grid", bound_s=1.5)
    answers: list[Observation] = [Failed("unsteady"), Infeasible(), measured(3.0)]
    proposals(search, lambda _: answers.pop(0), limit=3)
    trials = search.study.get_trials()
    assert [t.state for t in trials] == [TrialState.FAIL, TrialState.PRUNED, TrialState.COMPLETE]
    assert [t.value for t in trials] == [None, None, 3.0]
    assert [sum(t.constraints.values()) > 0 for t in trials] == [False, True, False]
    json.dumps([t.user_attrs for t in trials], allow_nan=False)


def test_slow_measurement_breaks_the_constraint_by_its_excess() -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    search.tell(0, measured(3.0, 3.0))
    assert search.study.get_trials()[0].constraints == {"breach": pytest.approx(math.log(2.0))}


def test_study_says_what_its_ranks_mean_and_shows_numbers_by_themselves() -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    assert search.study.user_attrs["axes"] == {"gpu_hz": [1, 2, 3], "emc_hz": [1, 2]}
    search.ask()
    for index, observation in ((space.reference, measured(3.0, 3.0)), (0, Infeasible()), (1, Failed("throttled"))):
        search.tell(index, observation)
    shown = [{key: t.user_attrs.get(key) for key in ("latency_s", "breach")} for t in search.study.get_trials()]
    assert shown[0] == {"latency_s": 3.0, "breach": pytest.approx(math.log(2.0))}
    assert shown[1:] == [{"latency_s": None, "breach": 1.0}, {"latency_s": None, "breach": None}]


def test_best_is_the_feasible_of_least_mean_energy() -> None:
    space = full(1, 3, 2)
    search = Search(space, sampler="descent", bound_s=1.5)
    for index, window in [
        (0, measured(1.0, 2.0)),  # too slow
        (1, measured(4.0)),
        (2, measured(3.0)),
        (2, measured(6.0)),
        (3, measured(5.0)),
        (4, measured(0.5)),
    ]:
        search.tell(index, window)
    search.tell(4, Infeasible())
    assert search.best(2) == [1, 2]
    assert search.best(9) == [1, 2, 3]


@pytest.mark.parametrize("least", [0.35, 0.55, 0.77, 1.0])
def test_descent_finds_the_least_of_a_bowl_in_96_candidates(least: float) -> None:
    space = full(4, 8, 3)
    answer = bowl(space, least=least)
    search = Search(space, sampler="descent", bound_s=9.0)
    asked = proposals(search, answer, limit=15)
    energies = {i: obs.energy_j for i in range(len(space)) if isinstance(obs := answer(i), Measured)}
    assert energies[search.best(1)[0]] <= 1.02 * min(energies.values())
    assert len(asked) <= 15


def test_descent_begins_at_the_incumbent_when_it_is_better() -> None:
    space = full(1, 13, 1)
    search = Search(space, sampler="descent", bound_s=9.0, incumbent=2)
    asked = proposals(search, bowl(space, least=2 / 12))
    assert search.best(1) == [2]
    assert len(asked) < 8


def test_descent_leaves_out_what_is_slower_than_a_candidate_that_was_too_slow() -> None:
    space = full(1, 9, 5)
    search = Search(space, sampler="descent", bound_s=1.05)

    def answer(index: int) -> Observation:
        gpu, emc = space.coordinates(index)
        return measured(5.0 + gpu + emc, 1.0 + 0.1 * (8 - gpu) + 0.01 * (4 - emc), bound_s=1.05)

    asked = [space.coordinates(index) for index in proposals(search, answer)]
    slow = [place for place in asked if place[0] < 8]
    # The first step along the GPU is too slow; no later one goes below it.
    assert slow[0] == (5, 4)
    assert min(slow) == slow[0]
    assert search.best(1) == [space.at((8, 0))]


def test_descent_trades_one_axis_for_another_along_the_bound() -> None:
    space = full(1, 7, 4)

    def answer(index: int) -> Observation:
        gpu, emc = space.coordinates(index)
        return measured(10.0 + gpu + 3 * emc, 10.0 - gpu - emc, bound_s=4.0)

    search = Search(space, sampler="descent", bound_s=4.0)
    asked = [space.coordinates(index) for index in proposals(search, answer)]
    # Going down along the GPU first spends the whole bound; EMC comes down only while the GPU goes back up.
    assert asked.index((3, 3)) < asked.index((5, 1))
    assert search.best(1) == [space.at((6, 0))]


def test_descent_crosses_a_table_that_is_only_a_diagonal() -> None:
    space = grid([(k, k, k) for k in range(6)])
    search = Search(space, sampler="descent", bound_s=9.0)
    proposals(search, lambda i: measured(1.0 + abs(space.coordinates(i)[0] - 2), bound_s=9.0))
    assert search.best(1) == [2]


def test_descent_comes_down_from_a_reference_over_the_power_limit() -> None:
    space = full(1, 9, 1)
    search = Search(space, sampler="descent", bound_s=9.0)
    proposals(
        search,
        lambda i: measured(10.0 + space.coordinates(i)[0], bound_s=9.0, power_ok=space.coordinates(i)[0] < 4),
    )
    assert search.best(1) == [0]


def test_numbers_that_are_none_are_refused() -> None:
    search = Search(full(1, 3, 2), sampler="descent", bound_s=1.5)
    with pytest.raises(SearchError, match="wanted a finite energy_j above 0, got nan"):
        search.tell(0, measured(math.nan))


def test_unknown_sampler_is_refused_with_those_there_are() -> None:
    with pytest.raises(SearchError, match="wanted one of joule, descent, tpe, random, grid, got 'bayes'"):
        Search(full(1, 3, 2), bound_s=1.5, sampler="bayes")


def test_bound_of_zero_is_refused() -> None:
    with pytest.raises(SearchError, match="bound_s: wanted a latency above 0 s or None, got 0"):
        Search(full(1, 3, 2), sampler="descent", bound_s=0.0)
