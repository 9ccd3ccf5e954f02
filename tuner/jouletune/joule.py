"""The sampler that this project is for: what to measure next, what to choose, when to stop, and how sure that is.

One more window is worth what it would change. For each candidate, in each part of the belief: how far would its
energy's mean move (a candidate that is known well moves little, so a replicate is weighed by the same rule as a new
one), how likely would it then pass the latency bound with the margin that a choice needs, and how much would then be
saved against the present choice. The present choice itself is worth measuring again where another could take its
place. The sum over the parts is the expected gain; the largest is proposed.

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
from scipy.special import ndtr

from jouletune.earlier import Earlier
from jouletune.mixture import Combined, Mixture
from jouletune.objective import cost_sum, power_sum
from jouletune.sampler import Belief, CandidateSampler, Outlook, Question
from jouletune.space import Space
from jouletune.standing import Standing, Standings, standings_of
from jouletune.surrogate import ENERGY, LATENCY, Reading, Surrogate

Array = NDArray[np.float64]

_CLEARLY = 0.01  # less energy by so much is clearly better
_STOP_SHARE = 0.1
_LEAST_GAIN = 1e-4
_HOPELESS = 0.005  # the search for anything feasible ends below this probability
_MARGIN = 1.7  # standard errors of a candidate's own latency
_MARGIN_WITH_BOUND = 1.5  # of its latency and the bound's together
_MOST_WINDOWS = 6  # of one candidate in a search
_LEAST_SD = 1e-6
_NOTHING = 1e-6
_ERRORS = (0.005, 0.01)  # latency and energy of a window, until one was seen


@dataclass(frozen=True)
class View:
    """All that follows from the windows told so far."""

    mixture: Mixture
    bound: float | None
    ranked: tuple[int, ...]  # the measured candidates that pass, best first
    gain: Array  # of one more window, by candidate; where nothing passes yet, the probability that it would
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
        return int(np.argmax(np.where(allowed, view.gain, -1.0)))

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
        and (power is None or power.middle()[index] + _MARGIN * power.spread()[index] <= 0.0)
    ]
    ranked = tuple(sorted(passing, key=lambda index: cost.middle()[index]))
    latency = (mixture.latency, mixture.latency_sd)
    passes: Array = np.ones_like(mixture.latency)
    within: Array = np.ones_like(mixture.latency)
    if bound is not None:
        within = _chance(*latency, bound, bound_se)
        passes = _would_pass(*latency, bound, bound_se, error=errors[LATENCY])
    draws: Array = np.ones_like(mixture.latency)
    if power is not None:
        draws = _chance(power.mean, power.sd, 0.0, 0.0)
        passes *= _would_pass(power.mean, power.sd, 0.0, 0.0, error=errors[ENERGY])
    feasible = within * draws
    for index, standing in seen.items():
        if standing.cut:
            within[:, index] = 0.0
        if standing.cut or _is_barred(standing, question):
            passes[:, index] = feasible[:, index] = 0.0
    if not ranked:
        gain = passes.mean(axis=0)
        better = float(feasible.mean(axis=0).max())
        return View(mixture, bound, ranked, gain, (), feasible.mean(axis=0), within.mean(axis=0), better)
    gain = _gain(cost, ranked, passes, question.objective.se_ratio(errors[ENERGY], errors[LATENCY]))
    if bound is not None and bound_se > 0.0:
        home, kept = mixture.reference, draws.mean(axis=0)
        known = {i: float(kept[i]) for i, one in seen.items() if one.measured and not _is_barred(one, question)}
        again = _gain_of_bound(cost, known, ranked[0], (bound, bound_se), errors[LATENCY])
        gain[home] = max(gain[home], again)
    return View(
        mixture,
        bound,
        ranked,
        gain,
        _doubtful(cost, seen, question, ranked[0]),
        feasible.mean(axis=0),
        within.mean(axis=0),
        _better(cost, ranked[0], feasible, _CLEARLY),
    )


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


def _gain_of_bound(
    cost: Combined, measured: Mapping[int, float], choice: int, bound: tuple[float, float], error: float
) -> float:
    """Expected saving by measuring the reference, and so the bound, again: who would pass then?

    `measured`: of each candidate, the probability that it keeps the limit of power.
    """
    bound_log, bound_se = bound
    mean, sd = cost.mixture.latencies()
    middle = cost.middle()
    whole = math.hypot(bound_se, error)
    left, moved = bound_se * error / whole, bound_se**2 / whole
    gains = [
        kept
        * float(middle[choice] - middle[index])
        * float(ndtr((bound_log - margin(sd[index], left) - mean[index]) / moved))
        for index, kept in measured.items()
        if middle[index] < middle[choice] and mean[index] + margin(sd[index], bound_se) > bound_log
    ]
    return max(gains, default=0.0)


def margin(sd: float, bound_se: float) -> float:
    """How far below the log of the bound a mean has to be."""
    return max(_MARGIN * sd, _MARGIN_WITH_BOUND * math.hypot(sd, bound_se))


def _is_barred(standing: Standing, question: Question) -> bool:
    """Was it mostly infeasible for a reason that the model knows nothing of (the rate was not reached)?"""
    bound_s, limit_w = question.bound_s or math.inf, question.max_power_w or 0.0
    other = [w for w in standing.measured if not w.feasible and w.latency_upper_s <= bound_s]
    other = [w for w in other if w.power_w <= limit_w or not limit_w]
    return 2 * len(other) >= len(standing.measured) > 0


def _chance(mean: Array, sd: Array, bound: float, bound_se: float) -> Array:
    """Probability that each is within the bound, by part."""
    return np.asarray(ndtr((bound - mean) / np.hypot(sd, bound_se)))


def _would_pass(mean: Array, sd: Array, bound: float, bound_se: float, *, error: float) -> Array:
    """Probability that each candidate passes once it was measured (again), by part."""
    whole = np.hypot(sd, error)
    left = sd * error / whole
    needed = np.maximum(_MARGIN * left, _MARGIN_WITH_BOUND * np.hypot(left, bound_se))
    return np.asarray(ndtr((bound - needed - mean) / np.maximum(sd**2 / whole, _LEAST_SD)))


def _gain(cost: Combined, ranked: Sequence[int], passes: Array, error: float) -> Array:
    """Expected saving by one more window of each candidate."""
    choice = ranked[0]
    shared = cost.shared(choice)
    variance = cost.sd**2
    whole = np.sqrt(variance + error**2)
    moved = np.maximum((variance - shared) / whole, _LEAST_SD)
    mean = cost.middle()
    # The choice's own uncertainty is not resolved by measuring another: its mean is what counts.
    less = mean[choice] - cost.mean
    gain = (_expected_excess(less, moved) * passes).mean(axis=0)
    gain[choice] = 0.0
    if len(ranked) > 1:
        second = ranked[1]
        own = np.maximum((variance - shared[:, [second]]) / whole, _LEAST_SD)[:, choice]
        # With the choice's mean moved up, the second takes its place.
        gain[choice] = float(_expected_excess(cost.mean[:, choice] - mean[second], own).mean())
    return np.asarray(gain)


def _expected_excess(mean: Array, sd: Array) -> Array:
    """E[max(0, x)] of a Gaussian."""
    z = mean / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)))


def _better(cost: Combined, choice: int, feasible: Array, by: float) -> float:
    """Probability that some feasible candidate costs less by more than `by`; rows taken as independent in a part."""
    spread = cost.sd**2 + cost.sd[:, [choice]] ** 2 - 2.0 * cost.shared(choice)
    less = cost.mean[:, [choice]] - by - cost.mean
    each = feasible * ndtr(less / np.sqrt(np.maximum(spread, _LEAST_SD**2)))
    each[:, choice] = 0.0
    return float(1.0 - np.prod(1.0 - each, axis=1).mean())
