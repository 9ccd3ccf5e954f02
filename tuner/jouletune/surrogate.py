"""What is believed of every candidate's latency and energy, from a handful of noisy windows.

Theory. In logarithms, for one physical model m of many (`jouletune.physics`), row x and window t,

    latency = m_L(x) + s_L(x) + r_L(x) + d_L(t) + error
    energy  = m_E(x) + s_L(x) + s_P(x) + r_L(x) + r_P(x) + d_L(t) + d_P(t) + error

where the s are smooth Gaussian processes over the axes (what the models miss; an additive and a product part), the r
row roughness (single rows of real tables are off by more than their errors), the d random walks over the windows.
What surprises in the latency so moves the energy, and power has residuals of its own. How large s and r are is not
known: all combinations of a few sizes are carried, weighted together with the models by their marginal likelihood.
What results is a mixture of Gaussians; nothing in it is monotone by assumption.

A reading may be grossly wrong, by a factor and not by a percent; each has a small prior probability of that. Which
ones are is decided by evidence summed over all models and sizes, one after the other; hypotheses that cannot be told
apart yet stay in the mixture together, so that measuring again is worth something.

A window that was cut short says only that its latency is over the bound, with the error rate of the cut.

Readings of an earlier job may be off from this one's as a whole, smoothly over the axes, and row by row; they too come
in two sizes, the same board a week later and a board that was changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.special import logsumexp, ndtr

from jouletune.kernel import Kernel
from jouletune.physics import Models
from jouletune.space import Space

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LATENCY, ENERGY = 0, 1

# Standard deviations of logarithms. Physics cannot say how rough tables are: each size is tried and weighed.
_SMOOTH = (0.03, 0.09, 0.27)
_ROUGH = (0.003, 0.01, 0.03)
_LEVEL = 1.0  # of all rows together: the reference's own latency and power, which no model knows
_DRIFT_LATENCY, _DRIFT_POWER = 0.0005, 0.0015  # per window: a die that warms by some degrees leaks a few per mille more
_LEAST_ERROR = 0.002
_WRONG = 0.02  # prior probability that a reading is grossly wrong, and by how much then
_WRONG_BY = 1.0
_CUT_WRONG = 0.04  # cuts that were false, at most (MEASUREMENT)
_MOST_WRONG = 6
_ABREAST, _KEPT = 3, 4  # hypotheses that are followed, and that stay
_UNDECIDED = 3.0  # log-odds within which hypotheses are kept side by side
# Of an earlier job: as a whole, smoothly, by row. The same board a week later (1.5 % median), or a changed one.
_EARLIER = ((0.02, 0.01, 0.01), (0.1, 0.08, 0.05))
# Models are weighed at a cost of models x sizes x readings squared: fewer of them when there is much to fit.
_MODELS = 6000
_WORK = 1.2e8
PARTS = 160


@dataclass(frozen=True, slots=True)
class Reading:
    """One window of one candidate, in logarithms. `latency` and `energy` None: it was cut short as too slow."""

    index: int
    latency: float | None
    latency_se: float
    energy: float | None
    energy_se: float
    window: float = 0.0
    earlier: bool = False
    age_s: float = 0.0  # of an earlier one


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the unknown parts are."""

    smooth: float
    rough_latency: float
    rough_power: float
    earlier: tuple[float, float, float]

    def variance(self, of: int) -> float:
        """Of one row, before anything is known of it."""
        latency = _LEVEL**2 + self.smooth**2 + self.rough_latency**2
        power = _LEVEL**2 + self.smooth**2 + self.rough_power**2
        return latency if of == LATENCY else latency + power

    def shared(self, alike: Array, same: Array) -> tuple[Array, Array]:
        """(covariance of latencies, of powers) from the correlation over the axes and the identity of rows."""
        both = _LEVEL**2 + self.smooth**2 * alike
        return both + self.rough_latency**2 * same, both + self.rough_power**2 * same


@dataclass(frozen=True, slots=True)
class Case:
    """One hypothesis of which readings are wrong, with one combination of sizes: `inverse` of the covariance."""

    sizes: Sizes
    inverse: Array
    log: Array  # marginal likelihood x prior of each model


class Surrogate:
    """Beliefs over the candidates of `space`; pure: they follow from the readings and the seed."""

    def __init__(self, space: Space, *, seed: int) -> None:
        self.space = space
        self.models = Models(space, _MODELS, seed=seed)
        self.kernel = Kernel(space)
        self._columns: dict[int, Array] = {}

    def column(self, index: int) -> Array:
        """Log-latency and log-energy of one candidate by every model: `(2, n_models)`."""
        if index not in self._columns:
            self._columns[index] = np.stack(self.models.at([index]))[:, :, 0]
        return self._columns[index]

    def fit(self, readings: Sequence[Reading], *, bound: float | None) -> Fit:
        """What the readings say. `bound`: log of the latency bound, which windows cut short are over."""
        return Fit(self, readings, bound=bound)


class Fit:
    """The readings, weighed."""

    def __init__(self, surrogate: Surrogate, readings: Sequence[Reading], *, bound: float | None) -> None:
        self.surrogate = surrogate
        whole = _merged([reading for reading in readings if reading.latency is not None])
        self.rows: Ints = np.array([reading.index for reading in whole], dtype=np.int64)
        self.wrong: frozenset[int] = frozenset()
        self._whole = whole
        self.middle = _middle(whole)
        self._noise = np.maximum([r.latency_se for r in whole] + [r.energy_se for r in whole], _LEAST_ERROR) ** 2
        self._alike = surrogate.kernel.among(self.rows, self.rows)
        self._same = (self.rows[:, None] == self.rows[None, :]).astype(float)
        self._sizes = self._all_sizes()
        self.n_models = self._affordable()
        self.residuals = self._residuals()
        self.cases = self._weigh()
        cuts = {reading.index for reading in readings if reading.latency is None}
        if bound is not None and cuts:
            self.cases = [self._after_cuts(case, sorted(cuts), bound) for case in self.cases]

    def _all_sizes(self) -> list[Sizes]:
        earlier = _EARLIER if any(reading.earlier for reading in self._whole) else _EARLIER[:1]
        return [Sizes(*sizes) for sizes in product(_SMOOTH, _ROUGH, _ROUGH, earlier)]

    def _affordable(self) -> int:
        most = _WORK / (len(self._sizes) * max(1, len(self._noise)) ** 2)
        return int(min(_MODELS, max(500, most)))

    def _residuals(self) -> Array:
        """Readings less each model: `(2 n_readings, n_models)`, latencies first."""
        if not self._whole:
            return np.zeros((0, self.n_models))
        columns = np.array([self.surrogate.column(int(i))[:, : self.n_models] for i in self.rows])
        read = np.array([[r.latency for r in self._whole], [r.energy for r in self._whole]], dtype=float)
        read = read - self.middle[:, None]
        result: Array = np.concatenate(
            [read[LATENCY][:, None] - columns[:, LATENCY], read[ENERGY][:, None] - columns[:, ENERGY]]
        )
        return result

    def _covariance(self, sizes: Sizes) -> Array:
        latency, power = sizes.shared(self._alike, self._same)
        window = np.array([reading.window for reading in self._whole])
        walk = np.minimum(window[:, None], window[None, :])
        old = np.array([reading.earlier for reading in self._whole], dtype=float)
        whole, smooth, row = sizes.earlier
        moved = np.outer(old, old) * (whole**2 + smooth**2 * self._alike + row**2 * self._same)
        latency = latency + _DRIFT_LATENCY**2 * walk + moved / 4.0  # clocks make latency; power also ages
        power = power + _DRIFT_POWER**2 * walk + moved
        return np.block([[latency, latency], [latency, latency + power]])

    def _weigh(self) -> list[Case]:
        """The cases of every hypothesis that is in the running: none wrong, then one more at a time, a few abreast."""
        kept: list[tuple[float, frozenset[int], list[Case]]] = []
        front = [frozenset[int]()]
        top = -math.inf
        while front:
            grown: dict[frozenset[int], float] = {}
            for wrong in front:
                cases = [self._case(sizes, wrong) for sizes in self._sizes]
                total = float(logsumexp(np.array([case.log for case in cases])))
                kept.append((total, wrong, cases))
                top = max(top, total)
                if len(wrong) < _MOST_WRONG:
                    more = self._if_wrong(cases, wrong)
                    grown.update({wrong | {int(i)}: float(more[i]) for i in np.argsort(-more)[:_ABREAST]})
            best = max([top, *grown.values()])
            ahead = sorted((one for one, log in grown.items() if log > best - _UNDECIDED), key=lambda one: -grown[one])
            front = ahead[:_ABREAST]
        kept.sort(key=lambda one: -one[0])
        self.wrong = kept[0][1]
        return [case for total, _, cases in kept[:_KEPT] if total > top - _UNDECIDED for case in cases]

    def _case(self, sizes: Sizes, wrong: frozenset[int]) -> Case:
        noise = self._noise.copy()
        for place in wrong:
            noise[place] += _WRONG_BY**2
        prior = len(wrong) * math.log(_WRONG / (1.0 - _WRONG))
        if not len(noise):
            return Case(sizes, np.zeros((0, 0)), np.zeros(self.n_models))
        lower = cholesky(self._covariance(sizes) + np.diag(noise), lower=True, check_finite=False)
        inverse = cho_solve((lower, True), np.eye(len(noise)), check_finite=False)
        fit = (self.residuals * (inverse @ self.residuals)).sum(axis=0)
        log = prior - 0.5 * fit - float(np.log(np.diag(lower)).sum())
        return Case(sizes, inverse, log)

    def _if_wrong(self, cases: Sequence[Case], wrong: frozenset[int]) -> Array:
        """Log-evidence where one more reading is wrong, by reading: a rank-one change of each covariance."""
        n = len(self._noise)
        if not n:
            return np.zeros(0)
        best = np.full(n, -np.inf)
        residuals = self.residuals.astype(np.float32)
        for case in cases:
            pulled = case.inverse.astype(np.float32) @ residuals
            spread = 1.0 + _WRONG_BY**2 * np.diag(case.inverse)[:, None]
            gained = case.log.astype(np.float32) + (0.5 * _WRONG_BY**2 / spread).astype(np.float32) * pulled**2
            top = gained.max(axis=1, keepdims=True)
            one = (top[:, 0] + np.log(np.exp(gained - top).sum(axis=1))).astype(float) - 0.5 * np.log(spread[:, 0])
            best = np.logaddexp(best, one)
        best += math.log(_WRONG / (1.0 - _WRONG))
        best[list(wrong)] = -np.inf
        return best

    def trusted(self) -> frozenset[int]:
        """The candidates with a reading of this job that is not thought wrong."""
        n = len(self._whole)
        good = [at for at in range(n) if at not in self.wrong and n + at not in self.wrong]
        return frozenset(self._whole[at].index for at in good if not self._whole[at].earlier)

    def _after_cuts(self, case: Case, cuts: Sequence[int], bound: float) -> Case:
        log = case.log.copy()
        for index in cuts:
            mean, sd = self.latency(case, index)
            log += np.log(_CUT_WRONG + (1.0 - _CUT_WRONG) * ndtr((mean - bound) / sd))
        return Case(case.sizes, case.inverse, log)

    def latency(self, case: Case, index: int) -> tuple[Array, float]:
        """Mean by model and standard deviation of one row's log-latency."""
        alike = self.surrogate.kernel.among([index], self.rows)[0]
        shared, _ = case.sizes.shared(alike, (self.rows == index).astype(float))
        to = np.concatenate([shared, shared]) @ case.inverse
        spread = case.sizes.variance(LATENCY) - float(to @ np.concatenate([shared, shared]))
        mean = self.middle[LATENCY] + self.surrogate.column(index)[LATENCY, : self.n_models] + to @ self.residuals
        return mean, math.sqrt(max(spread, _LEAST_ERROR**2 / 4))


def _middle(readings: Sequence[Reading]) -> Array:
    """Medians of latency and energy: what no model knows is centred there."""
    if not readings:
        return np.zeros(2)
    pairs = np.array([[reading.latency, reading.energy] for reading in readings], dtype=float)
    return np.asarray(np.median(pairs, axis=0))


def _merged(readings: Sequence[Reading]) -> list[Reading]:
    """All of this job; of an earlier one a mean for each row."""
    rows: dict[int, list[Reading]] = {}
    for reading in readings:
        if reading.earlier:
            rows.setdefault(reading.index, []).append(reading)
    return [*(_mean(same) for same in rows.values()), *(reading for reading in readings if not reading.earlier)]


def _mean(same: Sequence[Reading]) -> Reading:
    n = len(same)
    return Reading(
        same[0].index,
        sum(reading.latency or 0.0 for reading in same) / n,
        math.sqrt(sum(reading.latency_se**2 for reading in same)) / n,
        sum(reading.energy or 0.0 for reading in same) / n,
        math.sqrt(sum(reading.energy_se**2 for reading in same)) / n,
        earlier=True,
    )
