"""The sampler that this project is for: what to measure next, what to choose, when to stop, and how sure that is.

What one more window is worth is said in `jouletune.worth`; the candidate of most worth is proposed. A candidate that is
known well moves little, so replicates and new candidates are weighed by one rule.

The choice is the measured candidate of least mean energy whose latency passes the bound with a margin that follows
its standard error. The search stops when the expected gain of one more window was twice running under a tenth of the
least gain that would be applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial

from jouletune.earlier import Earlier
from jouletune.mixture import Combined, Mixture
from jouletune.objective import cost_sum, power_sum
from jouletune.sampler import Belief, CandidateSampler, Outlook, Question
from jouletune.space import Space
from jouletune.standing import Standing, Standings, standings_of
from jouletune.surrogate import ENERGY, LATENCY, Reading, Surrogate
from jouletune.worth import MARGIN, better, chance, fallback, gain_of_bound, gains, margin, would_pass

Array = NDArray[np.float64]

_CLEARLY = 0.01  # less energy by so much is clearly better
_STOP_SHARE = 0.1
_LEAST_GAIN = 1e-4
_HOPELESS = 0.005  # the search for anything feasible ends below this probability
_MOST_WINDOWS = 6  # of one candidate in a search
_OFTEN = 3  # windows judged infeasible
_NOTHING = 1e-6
_ERRORS = (0.005, 0.01)  # latency and energy of a window, until one was seen


@dataclass(frozen=True)
class View:
    """All that follows from the windows told so far."""

    mixture: Mixture
    bound: float | None
    ranked: tuple[int, ...]  # the measured candidates that pass, best first
    gain: Array  # of one more window, by candidate; where nothing passes yet, the probability that it would
    ahead: Array  # the same where more windows follow: over what the best of the other candidates would bring for sure
    doubtful: tuple[int, ...]  # measured once, not believed, and the best of all if it were true
    feasible: Array  # probability, by candidate
    within: Array  # probability of a latency within the bound alone, which is what a risk is of
    better: float

    @property
    def choice(self) -> int | None:
        return self.ranked[0] if self.ranked else None


class JouleSampler(CandidateSampler):
    """See the module."""

    has_model = True

    def __init__(self, space: Space, question: Question) -> None:
        super().__init__(space, question)
        self._surrogate = Surrogate(space, seed=self.seed)
        self._earlier = [_earlier(window) for window in question.earlier]
        self._views: dict[int, View] = {}  # by number of windows told: what is in the study decides, this saves time
        self._seen: list[tuple[int, dict[str, Any]]] = []

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        """As the base says, and measured ones again."""
        view = self._view(study)
        allowed = self._allowed(seen, view) & self._safe(view)
        if not allowed.any():
            return None
        if self._has_ended(view, allowed):
            return next((index for index in view.doubtful if allowed[index]), None)
        is_last = self.question.budget is not None and len(self._seen) + 1 >= self.question.budget
        return int(np.argmax(np.where(allowed, view.gain if is_last else view.ahead, -1.0)))

    def _has_ended(self, view: View, allowed: NDArray[np.bool_]) -> bool:
        most = float(view.gain[allowed].max())
        if view.choice is None:
            return most < _HOPELESS
        if most < _NOTHING:
            return True
        before = self._views.get(len(self._seen) - 1) or self._judge(self._seen[:-1])
        self._views[len(self._seen) - 1] = before
        least = max(_STOP_SHARE * self.question.min_gain, _LEAST_GAIN)
        return most < least and before.choice is not None and float(before.gain[allowed].max()) < least

    def _allowed(self, seen: Standings, view: View) -> NDArray[np.bool_]:
        """What may be started: nothing that failed or was cut; measured ones only where something passes."""
        allowed = np.ones(len(self.space), dtype=bool)
        for index, standing in seen.items():
            is_known = bool(standing.measured) and not standing.cut and not standing.failed
            allowed[index] = is_known and view.choice is not None and len(standing.measured) < _MOST_WINDOWS
        return allowed

    def _safe(self, view: View) -> NDArray[np.bool_]:
        """What may be started as far as the risk goes."""
        safe = view.within >= 1.0 - (1.0 if self.question.risk is None else self.question.risk)
        safe[list(self.start)] = True
        return safe

    def best(self, study: Study, n: int) -> list[int]:
        """Those that pass by mean cost, then the others that were measured as feasible; none that is too risky."""
        seen = standings_of(self._told(study))
        if not any(standing.measured for standing in seen.values()):
            return []
        view = self._view(study)
        rest = [index for index, standing in seen.items() if standing.feasible and index not in view.ranked]
        rest.sort(key=lambda index: seen[index].cost(self.question.objective))
        safe = self._safe(view)
        return [index for index in (*view.ranked, *rest) if safe[index]][:n]

    def outlook(self, study: Study) -> Outlook | None:
        view = self._view(study)
        tried = standings_of(self._seen)
        open_, safe = self._allowed(tried, view), self._safe(view)
        allowed = open_ & safe
        gain = float(view.gain[allowed].max()) if allowed.any() and view.choice is not None else 0.0
        barred = {int(i): float(view.within[i]) for i in np.flatnonzero(open_ & ~safe) if i not in tried}
        return Outlook(gain, view.better, dict(enumerate(map(float, view.feasible))), barred)

    def beliefs(self, study: Study) -> Mapping[int, Belief] | None:
        mixture = self._view(study).mixture
        energy = np.exp(mixture.quantiles(ENERGY, (0.05, 0.5, 0.95)))
        latency = np.exp(mixture.quantiles(LATENCY, (0.05, 0.5, 0.95)))
        return {
            index: Belief(
                float(energy[1, index]),
                (float(energy[0, index]), float(energy[2, index])),
                float(latency[1, index]),
                (float(latency[0, index]), float(latency[2, index])),
            )
            for index in range(len(self.space))
        }

    def _told(self, study: Study) -> list[tuple[int, dict[str, Any]]]:
        now = list(self.windows(study))
        if now[: len(self._seen)] != self._seen:
            self._views.clear()  # another study
        self._seen = now
        return now

    def _view(self, study: Study) -> View:
        windows = self._told(study)
        if len(windows) not in self._views:
            self._views[len(windows)] = self._judge(windows)
        return self._views[len(windows)]

    def _judge(self, windows: Sequence[tuple[int, dict[str, Any]]]) -> View:
        bound = None if self.bound_s is None else math.log(self.bound_s)
        readings = [reading for at, (index, what) in enumerate(windows) for reading in _readings(at, index, what)]
        mixture = Mixture(self._surrogate.fit([*self._earlier, *readings], bound=bound))
        return judge(mixture, standings_of(windows), self.question, _errors(readings))


def _readings(at: int, index: int, what: Mapping[str, Any]) -> list[Reading]:
    if what["kind"] == "infeasible":
        return [Reading(index, None, 0.0, None, 0.0)]
    if what["kind"] != "measured":
        return []
    energy_j, latency_s = what["energy_j"], what["latency_s"]
    return [
        Reading(
            index,
            math.log(latency_s),
            what["latency_se_s"] / latency_s,
            math.log(energy_j),
            what["energy_se_j"] / energy_j,
            window=float(at),
        )
    ]


def _earlier(window: Earlier) -> Reading:
    return Reading(
        window.index,
        math.log(window.latency_s),
        window.latency_se_s / window.latency_s,
        math.log(window.energy_j),
        window.energy_se_j / window.energy_j,
        earlier=True,
        age_s=window.age_s,
    )


def _errors(readings: Sequence[Reading]) -> tuple[float, float]:
    """What the next window's relative errors will be, of latency and energy."""
    whole = [reading for reading in readings if reading.latency is not None]
    if not whole:
        return _ERRORS
    return median(r.latency_se for r in whole), median(r.energy_se for r in whole)


def judge(mixture: Mixture, seen: Standings, question: Question, errors: tuple[float, float]) -> View:
    """The view from a belief: what passes, and what one more window of each candidate is worth."""
    mean, sd = mixture.latencies()
    cost = mixture.combined([cost_sum(question.objective, one.variant) for one in mixture.space.candidates])
    power = _power(mixture, seen, question)
    bound, bound_se = _bound(mixture, seen, question)
    passing = [
        index
        for index, standing in seen.items()
        if standing.measured
        and not _is_barred(standing, question)
        and index in mixture.trusted
        and (bound is None or mean[index] + margin(sd[index], bound_se) <= bound)
        and (power is None or power.middle()[index] + MARGIN * power.spread()[index] <= 0.0)
    ]
    ranked = tuple(sorted(passing, key=lambda index: cost.middle()[index]))
    passes, within, draws = _kept(mixture, power, (bound, bound_se), errors)
    feasible = within * draws
    for index, standing in seen.items():
        if standing.cut:
            within[:, index] = 0.0
        if standing.cut or _is_barred(standing, question):
            passes[:, index] = feasible[:, index] = 0.0
    if not ranked:
        gain = passes.mean(axis=0)
        most = float(feasible.mean(axis=0).max())
        return View(mixture, bound, ranked, gain, gain, (), feasible.mean(axis=0), within.mean(axis=0), most)
    error = question.objective.se_ratio(errors[ENERGY], errors[LATENCY])
    lead = fallback(cost, ranked[0], passes)
    gain, ahead = gains(cost, ranked, passes, error, (np.zeros_like(lead), lead))
    if bound is not None and bound_se > 0.0:
        home, kept = mixture.reference, draws.mean(axis=0)
        known = {i: float(kept[i]) for i, one in seen.items() if one.measured and not _is_barred(one, question)}
        again = gain_of_bound(cost, known, ranked[0], (bound, bound_se), errors[LATENCY])
        gain[home], ahead[home] = max(gain[home], again), max(ahead[home], again - lead[home])
    return View(
        mixture,
        bound,
        ranked,
        gain,
        ahead,
        _doubtful(cost, seen, question, ranked[0]),
        feasible.mean(axis=0),
        within.mean(axis=0),
        better(cost, ranked[0], feasible, _CLEARLY),
    )


def _kept(
    mixture: Mixture, power: Combined | None, bound: tuple[float | None, float], errors: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """Probabilities by part: to pass once it was measured, to keep the bound, to keep the limit of power."""
    latency, (at, se) = (mixture.latency, mixture.latency_sd), bound
    within: Array = np.ones_like(mixture.latency)
    passes, draws = within, within
    if at is not None:
        within = chance(*latency, at, se)
        passes = would_pass(*latency, at, se, error=errors[LATENCY])
    if power is not None:
        draws = chance(power.mean, power.sd, 0.0, 0.0)
        passes = passes * would_pass(power.mean, power.sd, 0.0, 0.0, error=errors[ENERGY])
    return passes.copy(), within.copy(), draws


def _power(mixture: Mixture, seen: Standings, question: Question) -> Combined | None:
    """Log of the mean power over its limit; None: no limit.

    What it is off by, since the latency is a percentile, is taken from the windows seen.
    """
    if question.max_power_w is None:
        return None
    sums = [power_sum(candidate.variant, question.rate_hz) for candidate in mixture.space.candidates]
    off = [
        math.log(window.power_w) - sums[index].at(math.log(window.energy_j), math.log(window.latency_s))
        for index, standing in seen.items()
        for window in standing.measured
    ]
    shift = median(off) if off else 0.0
    return mixture.combined([replace(one, offset=one.offset + shift - math.log(question.max_power_w)) for one in sums])


def _doubtful(cost: Combined, seen: Standings, question: Question, choice: int) -> tuple[int, ...]:
    """Feasible candidates measured once whose reading is not believed and would beat the choice."""
    mean = cost.middle()
    return tuple(
        index
        for index, standing in seen.items()
        if index not in cost.mixture.trusted
        and len(standing.measured) == 1
        and standing.feasible
        and math.log(standing.cost(question.objective)) < mean[choice]
    )


def _bound(mixture: Mixture, seen: Standings, question: Question) -> tuple[float | None, float]:
    """Log of the bound and its standard error; a ratio's bound moves with what is believed of the reference."""
    if question.bound_s is None:
        return None, 0.0
    bound = math.log(question.bound_s)
    home = seen.get(mixture.reference)
    if question.bound_se_s == 0.0 or home is None or not home.measured:
        return bound, question.bound_se_s / question.bound_s
    mean, sd = mixture.latencies()
    moved = float(mean[mixture.reference]) - math.log(home.measured[0].latency_s)
    return bound + moved, float(sd[mixture.reference])


def _is_barred(standing: Standing, question: Question) -> bool:
    """Was it mostly infeasible for a reason that the model knows nothing of (the rate was not reached)?

    Or thrice, whatever the model says: who judges the windows would judge so again, and nothing would come of it. (A
    bound with an error of its own becomes better known, and what was judged by it before does not count.)
    """
    if question.bound_se_s == 0.0 and len(standing.measured) >= _OFTEN and not standing.feasible:
        return True
    bound_s, limit_w = question.bound_s or math.inf, question.max_power_w or 0.0
    other = [w for w in standing.measured if not w.feasible and w.latency_upper_s <= bound_s]
    other = [w for w in other if w.power_w <= limit_w or not limit_w]
    return 2 * len(other) >= len(standing.measured) > 0
