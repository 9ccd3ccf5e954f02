from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jouletune.earlier import Earlier
from jouletune.errors import ProtocolError, SearchError, SpaceError
from jouletune.objective import Objective
from jouletune.search import SAMPLERS, Failed, Infeasible
from jouletune.space import Candidate, PowerMode, Space
from jouletune.suggest import Choice, Problem, Suggester, Told, Window, converse, parse_problem, parse_tell

NAMES = sorted(SAMPLERS)
Answer = Callable[[int], Told]
ROWS = [{"gpu_hz": gpu, "emc_hz": emc} for gpu in (300, 600, 900) for emc in (10, 20)]
FIRST = {"candidates": ROWS, "reference": 5, "latency_bound_ratio": 1.5}


def grid(places: list[tuple[int, int, int]]) -> Space:
    candidates = [Candidate(PowerMode(cpu_hz=c + 1, gpu_hz=g + 1, emc_hz=e + 1)) for c, g, e in places]
    return Space.of(candidates, max(candidates))


def full(cpu: int, gpu: int, emc: int) -> Space:
    return grid([(c, g, e) for c in range(cpu) for g in range(gpu) for e in range(emc)])


def bowl(space: Space) -> Answer:
    def answer(index: int) -> Window:
        parts = [at / (len(a.values) - 1) for at, a in zip(space.coordinates(index), space.axes, strict=True)]
        energy_j = 10.0 * math.exp(sum((part - 0.6) ** 2 for part in parts))
        latency_s = 1.0 + 0.25 * sum(1.0 - part for part in parts)
        return Window(energy_j, 0.01 * energy_j, latency_s, 0.005 * latency_s)

    return answer


def talk(suggester: Suggester, answer: Answer) -> tuple[list[int], Choice]:
    """Every index asked, and the choice."""
    asked: list[int] = []
    while not isinstance(said := suggester.ask(), Choice):
        assert suggester.ask() == said, "the same until it is told"
        asked.append(said)
        assert len(asked) <= suggester.problem.budget
        suggester.tell(said, answer(said))
    return asked, said


def said(*lines: Mapping[str, Any] | str) -> list[dict[str, Any]]:
    """What this side says to these lines."""
    answers: list[str] = []
    converse([line if isinstance(line, str) else json.dumps(line) for line in lines], answers.append)
    return [json.loads(answer) for answer in answers]


def window(index: int, energy_j: float = 2.0, latency_s: float = 0.1) -> dict[str, Any]:
    numbers = {"energy_j": energy_j, "energy_se_j": 0.01 * energy_j, "latency_s": latency_s}
    return {"tell": {"index": index, **numbers, "latency_se_s": 0.005 * latency_s}}


@pytest.mark.parametrize("sampler", NAMES)
@given(
    places=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30, unique=True),
    kind=st.sampled_from(["noise", "constant", "too slow", "infeasible", "invalid", "mixed", "slow reference"]),
    ratio=st.sampled_from([None, 0.5, 1.25]),
    budget=st.integers(1, 14),
    seed=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_any_table_gives_legal_proposals_and_an_end(
    sampler: str, places: list[tuple[int, int, int]], kind: str, *, ratio: float | None, budget: int, seed: int
) -> None:
    space = grid(places)
    draw = random.Random(seed)

    def answer(index: int) -> Told:
        what = draw.choice(["noise", "too slow", "infeasible", "invalid"]) if kind == "mixed" else kind
        if what == "infeasible":
            return Infeasible()
        if what == "invalid":
            return Failed("throttled")
        slow = what == "too slow" or (what == "slow reference" and index == space.reference)
        energy_j = 1.0 if what == "constant" else draw.lognormvariate(0.0, 0.5)
        return Window(energy_j, 0.01 * energy_j, 9.0 if slow else 1.0, 0.0)

    bound_s = 1.5 if ratio is None else None
    problem = Problem(space, bound_s=bound_s, bound_ratio=ratio, budget=budget, seed=seed, sampler=sampler)
    suggester = Suggester(problem)
    asked, choice = talk(suggester, answer)
    assert suggester.measurements == len(asked) <= budget
    assert all(0 <= index < len(space) for index in (*asked, choice.index))
    assert asked[0] == space.reference
    if kind in ("invalid", "infeasible", "too slow") and ratio is None:
        assert choice.index == space.reference
    for share in (choice.expected_gain, choice.probability_feasible, choice.probability_better_exists):
        assert share is None or 0.0 <= share <= 1.0


@pytest.mark.parametrize("sampler", NAMES)
def test_same_seed_holds_the_same_conversation(sampler: str) -> None:
    space = full(4, 6, 3)
    problem = Problem(space, bound_ratio=1.3, budget=11, seed=3, sampler=sampler)
    assert talk(Suggester(problem), bowl(space)) == talk(Suggester(problem), bowl(space))


@pytest.mark.parametrize("sampler", NAMES)
def test_each_window_counts_and_the_budget_ends_it(sampler: str) -> None:
    space = full(4, 6, 3)
    suggester = Suggester(Problem(space, bound_ratio=1.3, budget=5, sampler=sampler))
    asked, _ = talk(suggester, lambda i: Failed("throttled") if i % 7 == 3 else bowl(space)(i))
    assert len(asked) <= suggester.measurements == 5


def test_bound_is_the_ratio_times_the_reference_as_measured() -> None:
    space = full(1, 3, 2)
    suggester = Suggester(Problem(space, bound_ratio=1.5))
    assert suggester.ask() == space.reference
    suggester.tell(space.reference, Window(1.0, 0.01, 2.0, 0.04))
    assert suggester.search is not None
    assert suggester.search.bound_s == pytest.approx(3.0)


@pytest.mark.parametrize(("latency_s", "chosen"), [(2.90, 0), (2.95, 5)])
def test_feasible_counts_the_errors_of_the_window_and_of_the_bound(latency_s: float, chosen: int) -> None:
    space = full(1, 3, 2)
    suggester = Suggester(Problem(space, bound_ratio=1.5, budget=2))
    suggester.tell(space.reference, Window(2.0, 0.0, 2.0, 0.02))
    # Both are known to 1 %: the upper limit is 1.645 x sqrt(2) % higher.
    suggester.tell(0, Window(1.0, 0.0, latency_s, 0.01 * latency_s))
    answer = suggester.ask()
    assert isinstance(answer, Choice)
    assert answer.index == chosen


def test_windows_told_before_the_reference_count_once_the_bound_is_known() -> None:
    space = full(1, 3, 2)
    suggester = Suggester(Problem(space, bound_ratio=1.5, budget=2, sampler="descent"))
    suggester.tell(0, Window(1.0, 0.0, 1.0, 0.0))
    assert suggester.ask() == space.reference
    suggester.tell(space.reference, Window(2.0, 0.0, 1.0, 0.0))
    assert suggester.ask() == Choice(0, None, None, None)


def test_reference_that_fails_is_asked_for_until_the_budget_is_spent() -> None:
    space = full(1, 3, 2)
    asked, choice = talk(Suggester(Problem(space, bound_ratio=1.5, budget=6)), lambda _: Failed("throttled"))
    assert asked == [space.reference] * 6
    assert choice.index == space.reference


def test_reference_cut_short_leaves_a_ratio_without_a_bound_and_ends() -> None:
    space = full(1, 3, 2)
    asked, choice = talk(Suggester(Problem(space, bound_ratio=0.5, budget=6)), lambda _: Infeasible())
    assert (asked, choice.index) == ([space.reference], space.reference)


def test_failed_candidate_is_asked_for_twice_more_and_three_times_for_one_reason() -> None:
    space = full(1, 4, 1)
    suggester = Suggester(Problem(space, bound_s=9.0, sampler="grid", budget=20))
    asked, _ = talk(suggester, lambda i: bowl(space)(i) if i == space.reference else Failed("unsteady"))
    assert asked == [3, 0, 0, 0, 1, 1, 2]


def test_conversation_is_as_in_the_search_paper() -> None:
    first = {**FIRST, "budget": 3, "seed": 3, "sampler": "descent"}
    ask, second, third, choose = said(
        first, window(5), {"tell": {"index": 3, "invalid": "throttled"}}, {"tell": {"index": 3, "infeasible": True}}
    )
    assert ask == {"ask": 5}
    assert [list(second), list(third)] == [["ask"], ["ask"]]
    assert choose == {
        "choose": 5,
        "expected_gain": None,
        "probability_feasible": None,
        "probability_better_exists": None,
    }


def test_nothing_said_ends_quietly() -> None:
    assert said() == []
    assert said(FIRST) == [{"ask": 5}]
    assert said("", json.dumps(FIRST), " ", json.dumps(window(5)))[0] == {"ask": 5}


def test_absent_fields_are_axes_that_do_not_vary() -> None:
    problem = parse_problem({"candidates": [{"gpu_hz": 3e8}, {"gpu_hz": 6e8, "emc_hz": None}], "reference": 1})
    assert [axis.name for axis in problem.space.axes] == ["gpu_hz"]
    assert problem.space.candidates[0] == Candidate(PowerMode(gpu_hz=300_000_000))
    assert (problem.bound_s, problem.bound_ratio, problem.budget, problem.seed) == (None, None, 15, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": []}, "candidates: wanted a list of at least one candidate"),
        ({"candidates": [3]}, r"candidates\[0\]: wanted a JSON object, got '3'"),
        ({"candidates": [{"gpu": 3}]}, r"candidates\[0\]: wanted only cores, .*, got gpu"),
        ({"candidates": [{"gpu_hz": 1.5}]}, "gpu_hz: wanted a whole number of at least 1, got 1.5"),
        ({"candidates": [{"gpu_hz": True}]}, "gpu_hz: wanted a whole number of at least 1, got True"),
        ({"candidates": [{"gpu_hz": 10**400}]}, "gpu_hz: wanted a whole number of at least 1, got 1000"),
        ({"candidates": [{"engine": 3}]}, r"candidates\[0\]: engine: wanted a name, got 3"),
        ({"candidates": [{"gpu_hz": 3}] * 2, "reference": 0}, "candidates: wanted each once"),
        ({"reference": 6}, "reference: wanted an index below 6"),
        ({"reference": None}, "reference: wanted a whole number of at least 0, got None"),
        ({"latency_bound_s": 0.1}, "wanted one of them, got both"),
        ({"latency_bound_ratio": -1}, "latency_bound_ratio: wanted a number of at least 1e-12, got -1"),
        ({"latency_bound_ratio": math.nan}, "latency_bound_ratio: wanted a number, at most 1e12 in size, got nan"),
        ({"budget": 0}, "budget: wanted a whole number of at least 1, got 0"),
        ({"sampler": "bayes"}, "sampler: wanted one of .*, got 'bayes'"),
        ({"sampler": []}, r"sampler: wanted one of .*, got \[\]"),
        ({"bound": 3}, "the first line: wanted only .*, got bound"),
    ],
)
def test_first_line_that_is_wrong_is_refused_with_what_was_wanted(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ProtocolError, SpaceError), match=message):
        parse_problem({**FIRST, **change})


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        (3, "tell: wanted a JSON object, got '3'"),
        ({"index": -1, "infeasible": True}, "index: wanted a whole number of at least 0, got -1"),
        ({"index": 1, "invalid": 3}, "invalid: wanted a reason, got 3"),
        ({"index": 1, "infeasible": "yes"}, "infeasible: wanted true or false, got 'yes'"),
        ({"index": 1, "energy_j": 1.0}, "latency_s: wanted a number, got none; or say invalid or infeasible"),
        ({"index": 1, "energy_j": 0, "latency_s": 1}, "energy_j: wanted a number of at least 1e-12, got 0"),
        ({"index": 1, "energy_j": 1, "latency_s": 1, "energy_se_j": -1}, "energy_se_j: wanted at least 0"),
        ({"index": 1, "energy_j": 10**400, "latency_s": 1}, "energy_j: wanted a number, at most 1e12"),
        ({"index": 1, "latency": 1}, "tell: wanted only .*, got latency"),
    ],
)
def test_later_line_that_is_wrong_is_refused_with_what_was_wanted(tell: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse_tell({"tell": tell})


@pytest.mark.parametrize("line", ["{", "3", "[]", "[" * 100_000, '"a"', '{"tell": {"index": 7, "infeasible": true}}'])
def test_line_that_is_none_of_the_protocol_is_an_error(line: str) -> None:
    with pytest.raises(ProtocolError):
        said(FIRST, line)


KEYS = st.sampled_from(["index", "tell", "candidates", "gpu_hz", "reference", "sampler", "budget", "energy_j", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(ANYTHING)
@settings(max_examples=100, deadline=None)
def test_any_json_is_an_answer_or_an_error_of_ours(value: Any) -> None:
    for lines in ([json.dumps(value)], [json.dumps(FIRST), json.dumps({"tell": value})]):
        with suppress(ProtocolError, SpaceError, SearchError):
            said(*lines)


def spoken(*lines: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    argv = [sys.executable, "-m", "jouletune", "suggest", "--stdio"]
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_program_holds_the_conversation_over_its_standard_streams() -> None:
    done = spoken({**FIRST, "budget": 2}, window(5), window(3, 1.0))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [next(iter(answer)) for answer in answers] == ["ask", "ask", "choose"]
    assert answers[-1]["choose"] == 3


def test_program_says_what_was_wrong_to_both_sides() -> None:
    done = spoken({**FIRST, "budget": 2}, {"told": 3})
    assert done.returncode == 2
    assert json.loads(done.stdout.splitlines()[-1]) == {"error": "a later line: wanted only tell, got told"}
    assert done.stderr == "jouletune: a later line: wanted only tell, got told\n"


def test_program_answers_each_line_before_it_reads_the_next() -> None:
    argv = [sys.executable, "-m", "jouletune", "suggest", "--stdio"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line, key in ((FIRST, "ask"), (window(5), "ask")):
            child.stdin.write(json.dumps(line) + "\n")
            child.stdin.flush()
            assert key in json.loads(child.stdout.readline())
        child.stdin.close()
        assert child.wait(timeout=60) == 0


EARLIER = {"index": 1, "energy_j": 2.0, "energy_se_j": 0.02, "latency_s": 0.1, "latency_se_s": 0.001, "age_s": 86400.0}


def test_earlier_windows_and_the_incumbent_are_part_of_the_problem() -> None:
    line = {"candidates": [{"gpu_hz": 1}, {"gpu_hz": 2}], "reference": 1, "incumbent": 0}
    problem = parse_problem({**line, "earlier": [EARLIER, {"index": 0, "energy_j": 1, "latency_s": 0.2}]})
    assert problem.earlier == (Earlier(1, 2.0, 0.02, 0.1, 0.001, 86400.0), Earlier(0, 1.0, 0.0, 0.2, 0.0, 0.0))
    suggester = Suggester(problem)
    assert suggester.ask() == 1
    suggester.tell(1, Window(2.0, 0.02, 0.1, 0.001))
    assert suggester.ask() == 0


@pytest.mark.parametrize(
    ("earlier", "message"),
    [
        ({}, "earlier: wanted a list of windows"),
        ([3], r"earlier\[0\]: wanted a JSON object"),
        ([EARLIER, EARLIER | {"index": 2}], "index: wanted an index below 2, got 2"),
        ([EARLIER | {"latency_s": None}], "latency_s: wanted a number, got none"),
        ([EARLIER | {"age_s": -1}], "age_s: wanted at least 0"),
        ([EARLIER | {"job": 1}], "wanted only index, energy_j"),
    ],
)
def test_earlier_windows_that_are_none_are_refused(earlier: Any, message: str) -> None:
    line = {"candidates": [{"gpu_hz": 1}, {"gpu_hz": 2}], "reference": 1}
    with pytest.raises(ProtocolError, match=message):
        parse_problem({**line, "earlier": earlier})


def test_objective_limit_of_power_and_risk_are_part_of_the_problem() -> None:
    aims = {"objective": "throughput", "max_power_w": 12, "risk": 0.05, "sampler": "joule"}
    problem = parse_problem({**FIRST, **aims})
    assert (problem.objective, problem.max_power_w, problem.risk) == (Objective.THROUGHPUT, 12.0, 0.05)
    plain = parse_problem(FIRST)
    assert (plain.objective, plain.max_power_w, plain.risk) == (Objective.ENERGY, None, None)


@pytest.mark.parametrize(
    ("aims", "message"),
    [
        ({"objective": "power"}, "objective: wanted .*energy_delay.* got 'power'"),
        ({"objective": "throughput"}, "max_power_w: wanted a limit"),
        ({"max_power_w": -1}, "max_power_w: wanted a number"),
        ({"risk": 1, "sampler": "joule"}, "risk: wanted a probability below 1"),
        ({"risk": 0.1, "sampler": "descent"}, "risk: wanted a sampler with a model beside it, got 'descent'"),
    ],
)
def test_aims_that_are_none_are_refused(aims: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse_problem({**FIRST, **aims})


@pytest.mark.parametrize("sampler", NAMES)
def test_each_sampler_minimises_the_objective_below_the_limit_of_power(sampler: str) -> None:
    """Five clocks: energy grows with the clock, time falls, and the power of the highest two is over the limit."""
    space = grid([(0, gpu, 0) for gpu in range(5)])

    def answer(index: int) -> Window:
        latency_s, power_w = 0.1 / (index + 1), 5.0 + 2.0 * index
        return Window(power_w * latency_s, 1e-4, latency_s, 1e-5)

    def chosen(objective: Objective, max_power_w: float | None) -> int:
        problem = Problem(space, budget=14, sampler=sampler, objective=objective, max_power_w=max_power_w)
        return talk(Suggester(problem), answer)[1].index

    # joules fall along 0.5 0.35 0.3 0.275 0.26; the limit of 10 W leaves the first three
    assert chosen(Objective.THROUGHPUT, 10.0) == 2
    assert chosen(Objective.ENERGY_DELAY, 8.0) == 1


def test_where_every_row_is_too_risky_the_reference_is_chosen_at_once() -> None:
    space = full(1, 5, 1)
    problem = Problem(space, bound_s=1.001, budget=12, sampler="joule", risk=0.001)
    suggester = Suggester(problem)
    asked, choice = talk(suggester, steep(space, 1.0))
    assert (asked, choice.index) == ([space.reference], space.reference)
    assert suggester.search is not None
    outlook = suggester.search.outlook()
    assert outlook is not None
    assert outlook.barred.keys() == set(range(4))


def steep(space: Space, by: float) -> Callable[[int], Window]:
    """Latency 1 s at the reference, growing by `by` along each axis and as much again in the corner."""

    def answer(index: int) -> Window:
        ranks = [1.0 - at / (len(a.values) - 1) for at, a in zip(space.coordinates(index), space.axes, strict=True)]
        latency_s = 1.0 + by * (sum(ranks) + math.prod(ranks))
        energy_j = math.exp(-0.2 * sum(ranks))
        return Window(energy_j, 0.01 * energy_j, latency_s, 0.005 * latency_s)

    return answer
