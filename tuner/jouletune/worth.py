"""What a window is worth, and how far below a limit a choice has to be.

A window is worth what it would change: how far a candidate's mean cost would move, how likely it would then pass with
the margin that a choice needs, how much it would then save. Far from a good choice nearly everything saves much, and
the surest candidate would be taken before the best; so where more windows follow, what counts is the saving beyond
what another candidate is expected to bring without a surprise: that one can still be had next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from jouletune.mixture import Combined

Array = NDArray[np.float64]

MARGIN = 1.7  # standard errors of a candidate's own latency
_MARGIN_WITH_BOUND = 1.5  # of its latency and the bound's together
_LEAST_SD = 1e-6


def margin(sd: float, bound_se: float) -> float:
    """How far below the log of the bound a mean has to be."""
    return max(MARGIN * sd, _MARGIN_WITH_BOUND * math.hypot(sd, bound_se))


def chance(mean: Array, sd: Array, bound: float, bound_se: float) -> Array:
    """Probability that each is within the bound, by part."""
    return np.asarray(ndtr((bound - mean) / np.hypot(sd, bound_se)))


def would_pass(mean: Array, sd: Array, bound: float, bound_se: float, *, error: float) -> Array:
    """Probability that each candidate passes once it was measured (again), by part."""
    whole = np.hypot(sd, error)
    left = sd * error / whole
    needed = np.maximum(MARGIN * left, _MARGIN_WITH_BOUND * np.hypot(left, bound_se))
    return np.asarray(ndtr((bound - needed - mean) / np.maximum(sd**2 / whole, _LEAST_SD)))


def fallback(cost: Combined, choice: int, passes: Array) -> Array:
    """What the best other candidate is expected to save without a surprise, by candidate: it can be had next.

    Far from a good choice nearly anything saves much, and the surest would be taken before the best.
    """
    mean = cost.middle()
    sure = np.maximum((mean[choice] - mean) * passes.mean(axis=0), 0.0)
    first = int(np.argmax(sure))
    lead = np.full(len(sure), sure[first])
    lead[first] = np.delete(sure, first).max(initial=0.0)
    return lead


def gains(cost: Combined, ranked: Sequence[int], passes: Array, error: float, leads: Sequence[Array]) -> list[Array]:
    """Expected saving by one more window of each candidate, over each of `leads`."""
    choice = ranked[0]
    shared = cost.shared(choice)
    variance = cost.sd**2
    whole = np.sqrt(variance + error**2)
    moved = np.maximum((variance - shared) / whole, _LEAST_SD)
    mean = cost.middle()
    # With the choice's mean moved up, the second takes its place.
    second = ranked[1] if len(ranked) > 1 else None
    own = None if second is None else np.maximum((variance - shared[:, [second]]) / whole, _LEAST_SD)[:, choice]
    found = []
    for lead in leads:
        # The choice's own uncertainty is not resolved by measuring another: its mean is what counts.
        gain = (_expected_excess(mean[choice] - lead - cost.mean, moved) * passes).mean(axis=0)
        gain[choice] = 0.0
        if second is not None and own is not None:
            gain[choice] = float(_expected_excess(cost.mean[:, choice] - lead[choice] - mean[second], own).mean())
        found.append(np.asarray(gain))
    return found


def gain_of_bound(
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


def _expected_excess(mean: Array, sd: Array) -> Array:
    """E[max(0, x)] of a Gaussian."""
    z = mean / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)))


def better(cost: Combined, choice: int, feasible: Array, by: float) -> float:
    """Probability that some feasible candidate costs less by more than `by`; rows taken as independent in a part."""
    spread = cost.sd**2 + cost.sd[:, [choice]] ** 2 - 2.0 * cost.shared(choice)
    less = cost.mean[:, [choice]] - by - cost.mean
    each = feasible * ndtr(less / np.sqrt(np.maximum(spread, _LEAST_SD**2)))
    each[:, choice] = 0.0
    return float(1.0 - np.prod(1.0 - each, axis=1).mean())
