"""A search as a conversation: the other side owns the truth, the noise and the count, this side says what to measure.

`Suggester` is one search from the first question to the choice; `converse` is the same over lines of JSON, so that any
language can drive a search and anyone can score it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jouletune.earlier import FIELDS as EARLIER_FIELDS
from jouletune.earlier import Earlier
from jouletune.errors import ProtocolError
from jouletune.objective import Objective
from jouletune.search import DEFAULT_SAMPLER, SAMPLERS, Failed, Infeasible, Measured, Search
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.standing import window_of

BUDGET = 15
_REPEATS_PER_TRIAL = 2
_REPEATS_PER_REASON = 3
_LEAST, _MOST = 1e-12, 1e12  # of any number in its SI unit
_MOST_INTEGER = 2**63 - 1
_MODE = ("cores", "cpu_hz", "gpu_hz", "emc_hz")
_VARIANT = ("engine", "batch", "instances")
_BOUNDS = ("latency_bound_ratio", "latency_bound_s")
_AIMS = ("objective", "max_power_w", "risk")
_PROBLEM = ("candidates", "reference", *_BOUNDS, "budget", "seed", "sampler", "earlier", "incumbent", *_AIMS)
_NUMBERS = ("energy_j", "energy_se_j", "latency_s", "latency_se_s")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be found. `bound_ratio`: times the reference as it is measured; it and `bound_s` None: no bound.

    Of a retune: `earlier` windows on the same board, and the `incumbent`, which is measured after the reference.
    Load is back to back; `objective`, `max_power_w` and `risk` as in `Question`.
    """

    space: Space
    bound_s: float | None = None
    bound_ratio: float | None = None
    budget: int = BUDGET
    seed: int = 0
    sampler: str = DEFAULT_SAMPLER
    earlier: tuple[Earlier, ...] = ()
    incumbent: int | None = None
    objective: Objective = Objective.ENERGY
    max_power_w: float | None = None
    risk: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A valid window with its standard errors. `energy_j` per item, `latency_s` of the whole batch."""

    energy_j: float
    energy_se_j: float
    latency_s: float
    latency_se_s: float


Told = Window | Infeasible | Failed


@dataclass(frozen=True, slots=True)
class Choice:
    """How a search ends. None: the sampler has no model to say so.

    `index` is the reference where nothing was found that keeps the bound.
    """

    index: int
    expected_gain: float | None
    probability_feasible: float | None
    probability_better_exists: float | None


class Suggester:
    """One search: `ask` and `tell` until `ask` gives a Choice. Each window told counts, failed ones too.

    A ratio needs the reference's latency, so the reference is asked for until a window of it is valid. A candidate
    that failed is asked for again as in a job: twice each, three times for one reason.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.measurements = 0
        self.search: Search | None = None
        self._early: list[tuple[int, Told]] = []
        self._bound_error = 0.0
        self._stopped = False
        self._repeats: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()
        if problem.bound_ratio is None:
            self._open(problem.bound_s, 0.0)

    def ask(self) -> int | Choice:
        """The candidate to measure next, the same until it is told, or the end."""
        if self._stopped or self.measurements >= self.problem.budget:
            return self._choose()
        if self.search is None:
            return self.problem.space.reference
        index = self.search.ask()
        return self._choose() if index is None else index

    def tell(self, index: int, told: Told) -> None:
        """What came of a window on `index`, asked for or not. Raises ProtocolError or SearchError."""
        if not 0 <= index < len(self.problem.space):
            raise ProtocolError(f"tell: wanted an index below {len(self.problem.space)}, got {index}")
        self.measurements += 1
        if self.search is not None:
            self._note(index, told)
            return
        self._early.append((index, told))
        if index != self.problem.space.reference:
            return
        if isinstance(told, Window):
            ratio = self.problem.bound_ratio or 1.0
            self._open(ratio * told.latency_s, ratio * told.latency_se_s)
        # Without the reference's latency there is no bound: nothing else could be judged.
        self._stopped = isinstance(told, Infeasible)

    def _open(self, bound_s: float | None, bound_se_s: float) -> None:
        problem = self.problem
        self._bound_error = 0.0 if bound_s is None else bound_se_s / bound_s
        self.search = Search(
            problem.space,
            sampler=problem.sampler,
            bound_s=bound_s,
            bound_se_s=bound_se_s,
            budget=problem.budget,
            min_gain=0.0,  # the protocol names none: the budget is there to be spent where it may help
            seed=problem.seed,
            earlier=problem.earlier,
            incumbent=problem.incumbent,
            objective=problem.objective,
            max_power_w=problem.max_power_w,
            risk=problem.risk,
        )
        for index, told in self._early:
            self._note(index, told)

    def _note(self, index: int, told: Told) -> None:
        assert self.search is not None
        self.search.tell(index, self._measured(index, told) if isinstance(told, Window) else told)
        if isinstance(told, Failed) and self._may_repeat(index, told.reason):
            self.search.retry(index)

    def _measured(self, index: int, window: Window) -> Measured:
        assert self.search is not None
        return window_of(
            window.energy_j,
            window.energy_se_j,
            window.latency_s,
            window.latency_se_s,
            items=self.problem.space.candidates[index].variant.items,
            bound_s=self.search.bound_s,
            bound_error=self._bound_error,
            max_power_w=self.problem.max_power_w,
        )

    def _may_repeat(self, index: int, reason: str) -> bool:
        if self._repeats[index] >= _REPEATS_PER_TRIAL or self._reasons[reason] >= _REPEATS_PER_REASON:
            return False
        self._repeats[index] += 1
        self._reasons[reason] += 1
        return True

    def _choose(self) -> Choice:
        reference = self.problem.space.reference
        if self.search is None:
            return Choice(reference, None, None, None)
        index = next(iter(self.search.best(1)), reference)
        outlook = self.search.outlook()
        if outlook is None:
            return Choice(index, self.search.expected_gain(), None, None)
        feasible = outlook.probability_feasible.get(index)
        return Choice(index, outlook.expected_gain, feasible, outlook.probability_better_exists)


def converse(lines: Iterable[str], say: Callable[[str], None]) -> None:
    """Hold one conversation; an end of `lines` ends it. Raises ProtocolError, SpaceError, SearchError."""
    left = _objects(lines)
    first = next(left, None)
    if first is None:
        return
    suggester = Suggester(parse_problem(first))
    while True:
        answer = suggester.ask()
        if isinstance(answer, Choice):
            say(json.dumps(_choose_line(answer), allow_nan=False))
            return
        say(json.dumps({"ask": answer}))
        told = next(left, None)
        if told is None:
            return
        suggester.tell(*parse_tell(told))


def _choose_line(choice: Choice) -> dict[str, float | None]:
    return {
        "choose": choice.index,
        "expected_gain": choice.expected_gain,
        "probability_feasible": choice.probability_feasible,
        "probability_better_exists": choice.probability_better_exists,
    }


def _objects(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"line {number}: wanted one JSON object: {error}") from error
        yield _object(value, f"line {number}")


def parse_problem(line: Mapping[str, Any]) -> Problem:
    """The first line. Raises ProtocolError, or SpaceError where the candidates are no grid."""
    _only(line, _PROBLEM, "the first line")
    rows = line.get("candidates")
    if not isinstance(rows, list) or not rows:
        raise ProtocolError("candidates: wanted a list of at least one candidate")
    candidates = [_candidate(row, f"candidates[{index}]") for index, row in enumerate(rows)]
    ratio, bound_s = (_positive(line, name) for name in _BOUNDS)
    if ratio is not None and bound_s is not None:
        raise ProtocolError("latency_bound_ratio, latency_bound_s: wanted one of them, got both")
    sampler = line.get("sampler", DEFAULT_SAMPLER)
    if not isinstance(sampler, str) or sampler not in SAMPLERS:
        raise ProtocolError(f"sampler: wanted one of {', '.join(SAMPLERS)}, got {sampler!r}")
    space = Space.of(candidates, _integer(line, "reference"))
    objective, max_power_w = _objective(line), _positive(line, "max_power_w")
    if objective is Objective.THROUGHPUT and max_power_w is None:
        raise ProtocolError("max_power_w: wanted a limit in watts beside objective = throughput, got none")
    return Problem(
        space=space,
        bound_s=bound_s,
        bound_ratio=ratio,
        budget=_integer(line, "budget", BUDGET, least=1),
        seed=_integer(line, "seed", 0),
        sampler=sampler,
        earlier=_earlier(line.get("earlier"), len(space)),
        incumbent=None if line.get("incumbent") is None else _index(line, "incumbent", len(space)),
        objective=objective,
        max_power_w=max_power_w,
        risk=_risk(line, sampler),
    )


def _objective(line: Mapping[str, Any]) -> Objective:
    name = line.get("objective")
    try:
        return Objective.ENERGY if name is None else Objective(name)
    except ValueError:
        raise ProtocolError(f"objective: wanted {' | '.join(Objective)}, got {str(name)[:80]!r}") from None


def _risk(line: Mapping[str, Any], sampler: str) -> float | None:
    risk = _positive(line, "risk")
    if risk is None:
        return None
    if not risk < 1.0:
        raise ProtocolError(f"risk: wanted a probability below 1, got {risk}")
    if not SAMPLERS[sampler].has_model:
        raise ProtocolError(f"risk: wanted a sampler with a model beside it, got {sampler!r}")
    return risk


def _earlier(rows: Any, size: int) -> tuple[Earlier, ...]:
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise ProtocolError(f"earlier: wanted a list of windows, got {str(rows)[:80]!r}")
    return tuple(_earlier_window(row, f"earlier[{number}]", size) for number, row in enumerate(rows))


def _earlier_window(row: Any, where: str, size: int) -> Earlier:
    fields = _object(row, where)
    _only(fields, EARLIER_FIELDS, where)
    return Earlier(
        index=_index(fields, "index", size),
        energy_j=_needed(fields, "energy_j"),
        energy_se_j=_error(fields, "energy_se_j"),
        latency_s=_needed(fields, "latency_s"),
        latency_se_s=_error(fields, "latency_se_s"),
        age_s=_error(fields, "age_s"),
    )


def parse_tell(line: Mapping[str, Any]) -> tuple[int, Told]:
    """A later line: the candidate's index and what came of its window. Raises ProtocolError."""
    _only(line, ("tell",), "a later line")
    tell = _object(line.get("tell"), "tell")
    _only(tell, ("index", "invalid", "infeasible", *_NUMBERS), "tell")
    index = _integer(tell, "index")
    reason = tell.get("invalid")
    if reason is not None and not isinstance(reason, str):
        raise ProtocolError(f"invalid: wanted a reason, got {reason!r}")
    if reason is not None:
        return index, Failed(reason)
    if tell.get("infeasible", False) not in (True, False):
        raise ProtocolError(f"infeasible: wanted true or false, got {tell['infeasible']!r}")
    if tell.get("infeasible", False):
        return index, Infeasible()
    return index, Window(
        energy_j=_needed(tell, "energy_j"),
        energy_se_j=_error(tell, "energy_se_j"),
        latency_s=_needed(tell, "latency_s"),
        latency_se_s=_error(tell, "latency_se_s"),
    )


def _candidate(row: Any, where: str) -> Candidate:
    fields = _object(row, where)
    _only(fields, (*_MODE, *_VARIANT), where)
    given = {name for name in fields if fields[name] is not None}
    mode = PowerMode(**{name: _integer(fields, name, least=1) for name in _MODE if name in given})
    engine = fields.get("engine")
    if engine is not None and not isinstance(engine, str):
        raise ProtocolError(f"{where}: engine: wanted a name, got {engine!r}")
    counts = {name: _integer(fields, name, least=1) for name in ("batch", "instances") if name in given}
    return Candidate(mode, Variant(engine=engine, **counts))


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{where}: wanted a JSON object, got {str(value)[:80]!r}")
    return value


def _only(fields: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    if unknown := sorted(set(fields) - set(known)):
        raise ProtocolError(f"{where}: wanted only {', '.join(known)}, got {', '.join(unknown)}")


def _integer(fields: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 0) -> int:
    """1.3e9 is an integer to JSON as to everybody who writes it from an array of floats."""
    value = fields.get(name, default)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if value is None or isinstance(value, bool) or not whole or not least <= value <= _MOST_INTEGER:
        raise ProtocolError(f"{name}: wanted a whole number of at least {least}, got {value!r}")
    return int(value)


def _index(fields: Mapping[str, Any], name: str, size: int) -> int:
    index = _integer(fields, name)
    if index >= size:
        raise ProtocolError(f"{name}: wanted an index below {size}, got {index}")
    return index


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        raise ProtocolError(f"{name}: wanted a number, at most 1e12 in size, got {value!r}")
    return float(value)


def _positive(fields: Mapping[str, Any], name: str) -> float | None:
    value = _number(fields, name)
    if value is not None and value < _LEAST:
        raise ProtocolError(f"{name}: wanted a number of at least {_LEAST:g}, got {value}")
    return value


def _needed(fields: Mapping[str, Any], name: str) -> float:
    value = _positive(fields, name)
    if value is None:
        raise ProtocolError(f"{name}: wanted a number, got none; or say invalid or infeasible")
    return value


def _error(fields: Mapping[str, Any], name: str) -> float:
    value = _number(fields, name) or 0.0
    if value < 0.0:
        raise ProtocolError(f"{name}: wanted at least 0, got {value}")
    return value
