"""The samplers in Optuna studies that are not jouled's own: any storage, optimize or ask and tell, trials by anyone."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import Trial, TrialState

from jouletune.errors import SearchError
from jouletune.joule import JouleSampler
from jouletune.sampler import CandidateSampler, Question, distributions, parameters
from jouletune.search import SAMPLERS, Search
from jouletune.space import Candidate, PowerMode, Space
from jouletune.standing import window_of

CPU, GPU = (0.8e9, 1.4e9, 2.0e9), (0.2e9, 0.4e9, 0.6e9, 0.8e9, 1.0e9, 1.2e9)
SPACE = Space.of([Candidate(PowerMode(cpu_hz=int(cpu), gpu_hz=int(gpu))) for cpu in CPU for gpu in GPU], 17)
DOCS = Path(__file__).resolve().parents[1] / "docs" / "search.md"


def truth(index: int) -> tuple[float, float]:
    """(energy, latency): host work and compute one after the other, a cubic of each clock above a base of 5 W."""
    mode = SPACE.candidates[index].mode
    gpu, cpu = (mode.gpu_hz or 0) / 1e9, (mode.cpu_hz or 0) / 1e9
    latency_s = 0.01 / gpu + 0.004 / cpu
    return (5.0 + 12.0 * gpu**3 + 1.0 * cpu**3) * latency_s, latency_s


BOUND_S = 1.45 * truth(17)[1]
BEST = min((i for i in range(len(SPACE)) if truth(i)[1] <= 0.99 * BOUND_S), key=lambda i: truth(i)[0])


def make(name: str = "joule", seed: int = 1) -> CandidateSampler:
    return SAMPLERS[name](SPACE, Question(bound_s=BOUND_S, seed=seed))


def measure(trial: Trial, sampler: CandidateSampler) -> float:
    index = SPACE.index_of(sampler.candidate(trial))
    assert index is not None
    energy_j, latency_s = truth(index)
    trial.set_user_attr("latency_s", latency_s)
    trial.set_user_attr("latency_se_s", 0.005 * latency_s)
    trial.set_user_attr("energy_se_j", 0.01 * energy_j)
    return energy_j


def asked(study: Study) -> list[int | None]:
    return [SPACE.at([trial.params[axis.name] for axis in SPACE.axes]) for trial in study.get_trials()]


def study_of(sampler: CandidateSampler, **keys: Any) -> Study:
    return optuna.create_study(sampler=sampler, direction="minimize", **keys)


@pytest.fixture(params=["memory", "sqlite", "journal"])
def open_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], BaseStorage]]:
    """Opens the same storage again and again."""
    memory, opened = InMemoryStorage(), []

    def again() -> BaseStorage:
        if request.param == "memory":
            return memory
        if request.param == "journal":
            return JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
        opened.append(RDBStorage(f"sqlite:///{tmp_path / 'study.db'}"))
        return opened[-1]

    yield again
    for one in opened:
        one.remove_session()
        one.engine.dispose()


@pytest.mark.parametrize("name", SAMPLERS)
def test_optimize_finds_the_best_and_ends_by_itself(name: str) -> None:
    sampler = make(name)
    study = study_of(sampler)
    study.optimize(lambda trial: measure(trial, sampler), n_trials=40, callbacks=[sampler.stop])
    assert asked(study)[0] == SPACE.reference
    assert sampler.best(study, 1) == [BEST]
    assert len(study.trials) <= (18 if name != "joule" else 30)


def test_a_study_goes_on_from_its_storage_with_the_same_proposals(open_storage: Callable[[], BaseStorage]) -> None:
    whole = make()
    expected = study_of(whole)
    expected.optimize(lambda trial: measure(trial, whole), n_trials=7)
    first, second = make(), make()
    study = study_of(first, storage=open_storage(), study_name="mine")
    study.optimize(lambda trial: measure(trial, first), n_trials=3)
    study.ask()  # and is killed
    study = optuna.load_study(study_name="mine", storage=open_storage(), sampler=second)
    for _ in range(4):
        trial = study.ask()
        study.tell(trial, measure(trial, second))
    done = study.get_trials(states=[TrialState.COMPLETE])
    assert [trial.params for trial in done] == [trial.params for trial in expected.trials]


def test_proposals_are_those_of_our_own_search() -> None:
    sampler = make()
    study = study_of(sampler)
    study.optimize(lambda trial: measure(trial, sampler), n_trials=6)
    search = Search(SPACE, sampler="joule", bound_s=BOUND_S, seed=1)
    for index in asked(study):
        assert index is not None
        assert search.ask() == index
        energy_j, latency_s = truth(index)
        window = window_of(energy_j, 0.01 * energy_j, latency_s, 0.005 * latency_s, items=1, bound_s=BOUND_S)
        search.tell(index, window)


def test_sampler_that_was_pickled_goes_on_the_same() -> None:
    sampler = make()
    study = study_of(sampler)
    study.optimize(lambda trial: measure(trial, sampler), n_trials=4)
    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own bytes
    assert again.propose(study, None) == sampler.propose(study, None)


def test_trials_of_another_sampler_and_those_added_by_hand_count() -> None:
    other = study_of(make("random", seed=5))
    other.sampler = RandomSampler(seed=5)
    axes = distributions(SPACE)
    for _ in range(4):
        trial = other.ask(axes)
        energy_j, latency_s = truth(asked(other)[-1] or 0)
        trial.set_user_attr("latency_s", latency_s)
        other.tell(trial, energy_j)
    ranks = dict(parameters(SPACE, SPACE.reference))
    energy_j, latency_s = truth(SPACE.reference)
    other.add_trial(
        optuna.create_trial(value=energy_j, params=ranks, distributions=axes, user_attrs={"latency_s": latency_s})
    )
    sampler = make()
    assert set(sampler.standings(other)) == set(asked(other))
    assert sampler.propose(other, None) not in (None, SPACE.reference)


def test_trials_of_other_axes_say_nothing() -> None:
    study = study_of(make())
    study.add_trial(optuna.create_trial(value=1.0))
    assert make().standings(study) == {}


def test_pruned_is_too_slow_and_failed_is_no_evidence() -> None:
    sampler = make()
    study = study_of(sampler)

    def objective(trial: Trial) -> float:
        energy_j = measure(trial, sampler)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise OSError("the meter was gone")
        return energy_j

    study.optimize(objective, n_trials=5, catch=OSError)
    pruned, failed = asked(study)[1:3]
    found = sampler.standings(study)
    assert (found[pruned or 0].cut, found[failed or 0].failed) == (1, True)
    assert asked(study)[3:].count(pruned) == asked(study)[3:].count(failed) == 0


@pytest.mark.parametrize("how", ["attribute", "constraint"])
def test_what_else_makes_a_candidate_infeasible_counts(how: str) -> None:
    sampler = make()
    study = study_of(sampler)
    trial = study.ask()
    energy_j = measure(trial, sampler)
    if how == "attribute":
        trial.set_user_attr("feasible", False)
    else:
        trial.set_constraint("over the power limit", 1.0)
    study.tell(trial, energy_j)
    assert not sampler.standings(study)[SPACE.reference].feasible
    assert sampler.best(study, 1) == []


@pytest.mark.parametrize(
    ("attributes", "value", "text"),
    [
        (
            {},
            1.0,
            'trial 0: latency_s: wanted a finite number above 0, got None; .*set_user_attr("latency_s", seconds)',
        ),
        ({"latency_s": "fast"}, 1.0, "latency_s: wanted a finite number above 0, got 'fast'"),
        ({"latency_s": 0.1}, math.inf, "value: wanted a finite number above 0, got inf"),
        ({"latency_s": 0.1}, -1.0, "value: wanted a finite number above 0, got -1.0"),
        ({"latency_s": 0.1, "energy_se_j": -1.0}, 1.0, "energy_se_j: wanted a finite number of at least 0, got -1.0"),
    ],
)
def test_a_trial_without_its_numbers_is_refused_with_what_to_type(
    attributes: dict[str, Any], value: float, text: str
) -> None:
    sampler = make()
    study = study_of(sampler)
    trial = study.ask()
    sampler.candidate(trial)
    for name, what in attributes.items():
        trial.set_user_attr(name, what)
    study.tell(trial, value)
    with pytest.raises(SearchError, match=text.replace("(", r"\(").replace(")", r"\)")):
        sampler.candidate(study.ask())


def test_a_study_that_maximizes_is_refused() -> None:
    study = optuna.create_study(sampler=make(), direction="maximize")
    with pytest.raises(SearchError, match="wanted one energy to minimize"):
        make().candidate(study.ask())


def test_a_hole_that_was_enqueued_is_refused() -> None:
    space = Space.of([c for i, c in enumerate(SPACE.candidates) if i != 3], 16)
    sampler = JouleSampler(space, Question(bound_s=None))
    study = study_of(sampler)
    study.enqueue_trial(dict(parameters(SPACE, 3)))
    with pytest.raises(SearchError, match="wanted the ranks of a candidate, got a hole"):
        sampler.candidate(study.ask())


def test_after_the_end_the_choice_is_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    sampler = make("grid")
    study = study_of(sampler)
    study.optimize(lambda trial: measure(trial, sampler), n_trials=len(SPACE) + 1)
    assert asked(study)[-1] == BEST
    assert "the search has ended" in caplog.text


def test_the_example_of_the_docs_runs_as_it_stands() -> None:
    code = re.search(r"## In a study of your own.*?```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert code is not None

    def seen(mode: PowerMode) -> SimpleNamespace:
        gpu, cpu = (mode.gpu_hz or 0) / 1e9, (mode.cpu_hz or 0) / 1e9
        latency_s = 0.01 / gpu + 0.004 / cpu
        energy_j = (5.0 + 12.0 * gpu**3 + cpu**3) * latency_s
        return SimpleNamespace(
            energy_j=energy_j, energy_se_j=0.01 * energy_j, latency_s=latency_s, latency_se_s=0.005 * latency_s
        )

    names: dict[str, Any] = {"GPU_HZ": [int(hz) for hz in GPU], "measure": seen}
    exec(compile(code[1], str(DOCS), "exec"), names)
    choice, found = names["choice"].mode, [seen(mode) for mode in names["modes"]]
    assert seen(choice).latency_s <= 0.020
    assert seen(choice).energy_j <= 1.02 * min(one.energy_j for one in found if one.latency_s <= 0.99 * 0.020)
