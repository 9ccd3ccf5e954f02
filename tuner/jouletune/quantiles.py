"""Student and binomial probabilities in plain Python: the daemon needs no scipy to read a decision."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from jouletune.errors import MeasurementError

_CONFIDENCE = 0.95
_TINY = 1e-300


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b); a and b are positive reals (Abramowitz & Stegun 26.5.8)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1.0 / _away_from_zero(1.0 + term * lower)
        upper = _away_from_zero(1.0 + term / upper)
        value *= upper * lower
        if abs(upper * lower - 1.0) < 1e-14:
            return value
    raise MeasurementError(f"incomplete beta of x={x}, a={a}, b={b} does not converge")


def _away_from_zero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY


def student_tail(t: float, dof: float) -> float:
    """P(T > t) for Student's T with `dof` > 0 (may be infinite) degrees of freedom."""
    if math.isinf(dof):
        return NormalDist().cdf(-t)
    square = t * t / (dof + t * t)
    # Near t = 0 the tail is a half less a little, and the little must not be lost.
    if square < 0.5:
        tail = 0.5 - 0.5 * incomplete_beta(square, 0.5, dof / 2.0)
    else:
        tail = 0.5 * incomplete_beta(dof / (dof + t * t), dof / 2.0, 0.5)
    return tail if t >= 0.0 else 1.0 - tail


@lru_cache(maxsize=4096)
def student_quantile(probability: float, dof: float) -> float:
    """The t with P(T <= t) = probability. Raises MeasurementError outside 0 < probability < 1 or dof <= 0."""
    if not (0.0 < probability < 1.0 and dof > 0.0):
        raise MeasurementError(f"Student quantile: wanted 0 < probability < 1 and dof > 0, got {probability} and {dof}")
    if probability < 0.5:
        return -student_quantile(1.0 - probability, dof)
    if math.isinf(dof):
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1.0
    while student_tail(high, dof) > 1.0 - probability:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_tail(middle, dof) > 1.0 - probability else (low, middle)
    return 0.5 * (low + high)


def combined_dof(*parts: tuple[float, float]) -> float:
    """Welch-Satterthwaite degrees of freedom of a sum of independent (variance, dof) parts."""
    total = sum(variance for variance, _ in parts)
    weight = sum(variance * variance / dof for variance, dof in parts)
    return total * total / weight if weight > 0.0 else math.inf


def miss_probability(misses: float, requests: float, percentile: float, design: float) -> float:
    """P(at most `misses` of `requests` miss) when exactly 1 - percentile/100 of all do.

    `design` is D of the clustering: requests count as requests/D independent ones, misses as misses/D.
    """
    if misses >= requests:
        return 1.0
    return incomplete_beta(percentile / 100.0, (requests - misses) / design, misses / design + 1.0)


def misses_allowed(requests: int, percentile: float, design: float) -> int | None:
    """Most misses with which `requests` show (one-sided 95 %) the percentile to be within; None: too few."""
    return _last_at_most(requests, percentile, design, 1.0 - _CONFIDENCE)


def misses_condemning(requests: int, percentile: float, design: float) -> int:
    """Fewest misses with which `requests` show (one-sided 95 %) the percentile to be beyond."""
    last = _last_at_most(requests, percentile, design, _CONFIDENCE)
    return 1 if last is None else last + 2


def _last_at_most(requests: int, percentile: float, design: float, limit: float) -> int | None:
    if requests < 1 or miss_probability(0, requests, percentile, design) > limit:
        return None
    low, high = 0, requests
    while high - low > 1:
        middle = (low + high) // 2
        within = miss_probability(middle, requests, percentile, design) <= limit
        low, high = (middle, high) if within else (low, middle)
    return low


def requests_needed(percentile: float, design: float = 1.0) -> int:
    """Least requests that can bound the percentile, one-sided 95 %: 59 D for p95, 299 D for p99."""
    return math.ceil(math.ceil(math.log(1.0 - _CONFIDENCE) / math.log(percentile / 100.0)) * design)


def reachable_percentile(rate_hz: float, longest_s: float, design: float = 1.0) -> float | None:
    """Highest percentile (in steps of 0.1) that `longest_s` at `rate_hz` can bound; None below p50."""
    independent = rate_hz * longest_s / design
    if independent < requests_needed(50.0):
        return None
    highest: float = (1.0 - _CONFIDENCE) ** (1.0 / math.floor(independent))
    return math.floor(1000.0 * highest) / 10.0
