"""Latency percentiles with bounds, how misses cluster, and the test that ends a hopeless window.

A *miss* is a request slower than a percentile (its window's own, or the bound). Misses come in runs, so n
requests say as much as n/D independent ones: D = (1 + c)/(1 - c) with c the lag-1 correlation of misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jouletune.errors import MeasurementError
from jouletune.quantiles import misses_allowed, misses_condemning

_MISSES_BEFORE_KNOWN = 20
_DESIGN_MAX = 10.0
_DIVISOR_BEFORE_KNOWN = 2.0
_STOP_AT = 20.0
_ALTERNATIVES = 10


@dataclass(frozen=True, slots=True)
class Clustering:
    """Counts pooled over a job. `followed` of the `followable` misses (not last in a window) precede one."""

    requests: int = 0
    misses: int = 0
    followable: int = 0
    followed: int = 0

    def add(self, latency_s: NDArray[np.float64], percentile: float) -> Clustering:
        """With one more window's latencies, shape (n_requests,), in order of completion."""
        if latency_s.size == 0:
            return self
        missed = latency_s > np.percentile(latency_s, percentile, method="inverted_cdf")
        return Clustering(
            requests=self.requests + int(missed.size),
            misses=self.misses + int(missed.sum()),
            followable=self.followable + int(missed[:-1].sum()),
            followed=self.followed + int((missed[:-1] & missed[1:]).sum()),
        )

    @property
    def known(self) -> bool:
        return self.misses >= _MISSES_BEFORE_KNOWN and self.followable > 0

    @property
    def design(self) -> float:
        """D: one until 20 misses were seen, within 1..10."""
        if not self.known:
            return 1.0
        share = self.misses / self.requests
        correlation = (self.followed / self.followable - share) / (1.0 - share)
        if correlation >= 1.0:
            return _DESIGN_MAX
        return min(max((1.0 + correlation) / (1.0 - correlation), 1.0), _DESIGN_MAX)

    @property
    def divisor(self) -> float:
        """What the running test divides its evidence by: D, or 2 before D is known."""
        return self.design if self.known else _DIVISOR_BEFORE_KNOWN


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
