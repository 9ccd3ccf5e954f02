"""Latency percentiles with bounds, how misses cluster, and the test that ends a hopeless window.

A *miss* is a request slower than a percentile (its window's own, or the bound). Misses come in runs, so n
requests say as much as n/D independent ones; D is (1 + c)/(1 - c), c the lag-1 correlation, were misses a Markov chain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from jouletune.errors import MeasurementError
from jouletune.quantiles import misses_allowed, misses_condemning

_MISSES_BEFORE_KNOWN = 20
_DESIGN_MAX = 10.0
_LAGS = 32
_CORRELATION_MOST = 0.9
_EXCESS_RAISED = 4.0
_DIVISOR_BEFORE_KNOWN = 2.0
_STOP_AT = 20.0
_ALTERNATIVES = 10


@dataclass(frozen=True, slots=True)
class Clustering:
    """Counts pooled over a job: after `followable[k]` misses the request k + 1 later was seen, `followed[k]` miss.

    The lag-1 formula alone falls short where latencies wander slowly or a slow state misses only now and then (D of
    2.3 for 5.9), and misses that a window's own percentile defines look less clustered than those beyond a bound. So
    D is the larger of it and one plus twice the correlations up to where they vanish, its excess over one raised by
    4/sqrt(misses), which also covers that it is an estimate.
    """

    requests: int = 0
    misses: int = 0
    followable: tuple[int, ...] = (0,) * _LAGS
    followed: tuple[int, ...] = (0,) * _LAGS

    def add(self, latency_s: NDArray[np.float64], percentile: float) -> Clustering:
        """With one more window's latencies, shape (n_requests,), in order of completion."""
        if latency_s.size == 0:
            return self
        missed = latency_s > np.percentile(latency_s, percentile, method="inverted_cdf")
        lags = [lag for lag in range(1, _LAGS + 1) if lag < missed.size]
        seen = [int(missed[:-lag].sum()) for lag in lags]
        again = [int((missed[:-lag] & missed[lag:]).sum()) for lag in lags]
        return Clustering(
            requests=self.requests + int(missed.size),
            misses=self.misses + int(missed.sum()),
            followable=_added(self.followable, seen),
            followed=_added(self.followed, again),
        )

    @property
    def known(self) -> bool:
        return self.misses >= _MISSES_BEFORE_KNOWN and self.followable[0] > 0

    @property
    def design(self) -> float:
        """D: one until 20 misses were seen, within 1..10."""
        if not self.known:
            return 1.0
        correlations = self._correlations()
        first = min(correlations[0], _CORRELATION_MOST)
        total = 1.0 + 2.0 * sum(takewhile(lambda one: one > self.requests**-0.5, correlations))
        excess = max((1.0 + first) / (1.0 - first), total) - 1.0
        return min(max(1.0 + excess * (1.0 + _EXCESS_RAISED / math.sqrt(self.misses)), 1.0), _DESIGN_MAX)

    def _correlations(self) -> list[float]:
        share = self.misses / self.requests
        pairs = zip(self.followed, self.followable, strict=True)
        return [(again / seen - share) / (1.0 - share) for again, seen in pairs if seen > 0]

    @property
    def divisor(self) -> float:
        """What the running test divides its evidence by: D, or 2 before D is known."""
        return self.design if self.known else _DIVISOR_BEFORE_KNOWN


def _added(counts: tuple[int, ...], more: list[int]) -> tuple[int, ...]:
    return tuple(count + one for count, one in zip(counts, more + [0] * (len(counts) - len(more)), strict=True))


@dataclass(frozen=True, slots=True)
class PercentileBounds:
    """A latency percentile and its one-sided 95 % bounds (lower 0 or upper infinite: too few requests)."""

    latency_s: float
    lower_s: float
    upper_s: float
    samples: int

    @property
    def se_s(self) -> float:
        """Standard error as a model wants it, from the bounds' distance."""
        z = 1.645
        if math.isinf(self.upper_s):
            return max(self.latency_s - self.lower_s, 0.0) / z
        return (self.upper_s - self.lower_s) / (2.0 * z)


def percentile_bounds(latency_s: NDArray[np.float64], percentile: float, design: float) -> PercentileBounds:
    """Order-statistic bounds of `latency_s`, shape (n_requests,). Raises MeasurementError when empty."""
    if latency_s.size == 0:
        raise MeasurementError(f"p{percentile:g} of the latency: no request has ended in the window")
    ordered = np.sort(latency_s)
    count = int(ordered.size)
    allowed = misses_allowed(count, percentile, design)
    condemning = misses_condemning(count, percentile, design)
    # A latency with `condemning - 1` slower ones lies above the true percentile in 5 % of windows only.
    lower_rank = count - condemning
    return PercentileBounds(
        latency_s=float(np.percentile(ordered, percentile, method="inverted_cdf")),
        lower_s=float(ordered[lower_rank]) if lower_rank >= 0 else 0.0,
        upper_s=math.inf if allowed is None else float(ordered[count - 1 - allowed]),
        samples=count,
    )


def is_beyond(latency_s: NDArray[np.float64], bound_s: float, percentile: float, design: float) -> bool:
    """Whether even few requests show (one-sided 95 %) the percentile to be slower than the bound."""
    misses = int((latency_s > bound_s).sum())
    return misses >= misses_condemning(int(latency_s.size), percentile, design)


class ExceedanceTest:
    """Running evidence that more requests than the percentile allows are slower than the bound.

    A mixture e-process: of modes within the bound at most 1 in 20 ever reaches an evidence of 20, however
    often one looks. Each log-likelihood ratio is divided by D, because misses cluster.
    """

    def __init__(self, bound_s: float, percentile: float, clustering: Clustering) -> None:
        if not 0.0 < percentile < 100.0:
            raise MeasurementError(f"percentile of the exceedance test: wanted 0..100, got {percentile}")
        allowed = 1.0 - percentile / 100.0
        alternatives = np.geomspace(min(1.5 * allowed, 0.9), 0.98, _ALTERNATIVES)
        self._bound_s = bound_s
        self._divisor = clustering.divisor
        self._gain_miss = np.log(alternatives / allowed)
        self._gain_hit = np.log((1.0 - alternatives) / (1.0 - allowed))
        self._log_ratio = np.zeros(_ALTERNATIVES)
        self._evidence = 1.0
        self._exceeded = False

    @property
    def evidence(self) -> float:
        """The e-process after the last request."""
        return self._evidence

    @property
    def exceeded(self) -> bool:
        """Whether the evidence has ever reached 20: the mode is infeasible and the window may be cut."""
        return self._exceeded

    def add(self, latency_s: NDArray[np.float64]) -> bool:
        """Take the latencies, shape (n_requests,), of further requests in order; returns `exceeded`."""
        if latency_s.size == 0:
            return self._exceeded
        missed = (latency_s > self._bound_s)[:, np.newaxis]
        path = self._log_ratio + np.cumsum(np.where(missed, self._gain_miss, self._gain_hit), axis=0)
        evidence = np.exp(np.minimum(path / self._divisor, 700.0)).mean(axis=1)
        self._log_ratio = path[-1]
        self._evidence = float(evidence[-1])
        self._exceeded = self._exceeded or bool((evidence >= _STOP_AT).any())
        return self._exceeded
