"""The belief as it is used: a mixture of equally weighted Gaussians over all candidates, drawn from a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from jouletune.objective import LogSum
from jouletune.surrogate import ENERGY, LATENCY, PARTS, Case, Fit

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST = 1e-5


@dataclass(frozen=True)
class _Group:
    """The parts that share a case: how their rows hang together. Latency first, then energy."""

    case: Case
    parts: Ints
    to: tuple[Array, Array]
    pull: tuple[Array, Array]  # to @ inverse


@dataclass(frozen=True)
class Combined:
    """A sum of log-energies and log-latencies: mean and standard deviation by part and row."""

    mixture: Mixture
    weights: tuple[float, float]  # latency, energy
    mean: Array
    sd: Array

    def shared(self, index: int) -> Array:
        """The covariance of every row with that of `index`, `(n_parts, n_rows)`."""
        return self.mixture.shared(index, self.weights)

    def middle(self) -> Array:
        """The mean of each row."""
        return np.asarray(self.mean.mean(axis=0))

    def spread(self) -> Array:
        """The standard deviation of each row."""
        return _pooled(self.mean, self.sd)[1]


class Mixture:
    """Log-latency and log-energy of every candidate: means and standard deviations `(n_parts, n_rows)`."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self.space = fit.surrogate.space
        self.reference = self.space.reference
        self.trusted = fit.trusted()
        n = len(self.space)
        shape = (PARTS, n)
        self.latency, self.latency_sd = np.empty(shape), np.empty(shape)
        self.energy, self.energy_sd = np.empty(shape), np.empty(shape)
        self._both = np.empty(shape)  # the covariance of a row's latency and energy
        cases, models = self._draw()
        few, place = np.unique(models, return_inverse=True)
        mean = fit.surrogate.models.at(range(n), few)
        self._groups = [
            self._fill(fit.cases[case], np.flatnonzero(cases == case), models, mean, place) for case in np.unique(cases)
        ]

    def _draw(self) -> tuple[Ints, Ints]:
        """The case and the model of each part, evenly over the weights."""
        logs = np.concatenate([case.log for case in self._fit.cases])
        shares = np.cumsum(np.exp(logs - logsumexp(logs)))
        at = (np.arange(PARTS) + 0.5) / PARTS
        picks = np.minimum(np.searchsorted(shares, at), len(logs) - 1)
        return picks // self._fit.n_models, picks % self._fit.n_models

    def _fill(self, case: Case, parts: Ints, models: Ints, mean: tuple[Array, Array], place: Ints) -> _Group:
        fit, rows = self._fit, np.arange(len(self.space))
        alike = fit.surrogate.kernel.among(rows, fit.rows)
        latency, power = case.sizes.shared(alike, (rows[:, None] == fit.rows[None, :]).astype(float))
        to_latency = np.concatenate([latency, latency], axis=1)
        to_energy = np.concatenate([latency, latency + power], axis=1)
        known = case.inverse @ fit.residuals[:, models[parts]]
        pull_latency, pull = to_latency @ case.inverse, to_energy @ case.inverse
        at = place[parts]
        self.latency[parts] = fit.middle[LATENCY] + mean[LATENCY][at] + (to_latency @ known).T
        self.energy[parts] = fit.middle[ENERGY] + mean[ENERGY][at] + (to_energy @ known).T
        left = case.sizes.variance(LATENCY) - (pull_latency * to_latency).sum(axis=1)
        self.latency_sd[parts] = np.sqrt(np.maximum(left, _LEAST**2))
        left = case.sizes.variance(ENERGY) - (pull * to_energy).sum(axis=1)
        self.energy_sd[parts] = np.sqrt(np.maximum(left, _LEAST**2))
        self._both[parts] = case.sizes.variance(LATENCY) - (pull * to_latency).sum(axis=1)
        return _Group(case, parts, (to_latency, to_energy), (pull_latency, pull))

    def combined(self, sums: Sequence[LogSum]) -> Combined:
        """The sum of each row, which all weigh energy and latency alike."""
        of_energy, of_latency = sums[0].energy, sums[0].latency
        offsets = np.array([each.offset for each in sums])
        mean = of_energy * self.energy + of_latency * self.latency + offsets
        variance = sums[0].variance(self.energy_sd**2, self.latency_sd**2, self._both)
        return Combined(self, (of_latency, of_energy), mean, np.sqrt(np.maximum(variance, _LEAST**2)))

    def shared_energy(self, index: int) -> Array:
        """The covariance of every energy with that of `index`, `(n_parts, n_rows)`."""
        return self.shared(index, (0.0, 1.0))

    def shared(self, index: int, weights: tuple[float, float]) -> Array:
        """The same of a sum of latency and energy, so weighted."""
        of_latency, of_energy = weights
        rows = np.arange(len(self.space))
        alike = self._fit.surrogate.kernel.among(rows, [index])[:, 0]
        result = np.empty_like(self.energy)
        for group in self._groups:
            latency, power = group.case.sizes.shared(alike, (rows == index).astype(float))
            prior = (of_latency + of_energy) ** 2 * latency + of_energy**2 * power
            pull, to = (of_latency * a + of_energy * b for a, b in (group.pull, group.to))
            result[group.parts] = prior - pull @ to[index]
        return result

    def latencies(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each row."""
        return _pooled(self.latency, self.latency_sd)

    def energies(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each row."""
        return _pooled(self.energy, self.energy_sd)

    def quantiles(self, of: int, at: Sequence[float]) -> Array:
        """`(n_at, n_rows)` of latency or energy, by bisection over the mixture."""
        mean, sd = (self.latency, self.latency_sd) if of == LATENCY else (self.energy, self.energy_sd)
        return _quantiles(mean, sd, at)

    def energies_over(self, index: int, at: Sequence[float]) -> Array:
        """As `quantiles`, of each energy over that of `index`: what both have in common is in no interval."""
        spread = self.energy_sd**2 + self.energy_sd[:, [index]] ** 2 - 2.0 * self.shared_energy(index)
        return _quantiles(self.energy - self.energy[:, [index]], np.sqrt(np.maximum(spread, _LEAST**2)), at)


def _quantiles(mean: Array, sd: Array, at: Sequence[float]) -> Array:
    wanted = np.array(at)[:, None]
    low = np.repeat((mean - 6.0 * sd).min(axis=0)[None, :], len(at), axis=0)
    high = np.repeat((mean + 6.0 * sd).max(axis=0)[None, :], len(at), axis=0)
    for _ in range(40):
        middle = (low + high) / 2.0
        below = ndtr((middle[:, None, :] - mean[None]) / sd[None]).mean(axis=1) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    result: Array = (low + high) / 2.0
    return result


def _pooled(mean: Array, sd: Array) -> tuple[Array, Array]:
    middle = mean.mean(axis=0)
    return middle, np.sqrt((sd**2 + (mean - middle) ** 2).mean(axis=0))
