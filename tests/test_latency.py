"""Percentile bounds and the running test, also when misses come in runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from jouletune.errors import MeasurementError
from jouletune.latency import Clustering, ExceedanceTest, is_beyond, percentile_bounds

Floats = NDArray[np.float64]

INDEPENDENT = Clustering(2000, 100, (100,) * 32, (5,) * 32)
SLOW_STATE_P95_S = 1.0001


def latencies(rng: np.random.Generator, count: int, miss_share: float, correlation: float) -> Floats:
    """Latencies whose share above 1.0 s is `miss_share`; misses are a Markov chain of this lag-1 correlation."""
    after_miss = miss_share + correlation * (1.0 - miss_share)
    after_hit = miss_share * (1.0 - correlation)
    draws = rng.random(count)
    missed = np.empty(count, dtype=bool)
    state = bool(rng.random() < miss_share)
    for position in range(count):
        missed[position] = state
        state = bool(draws[position] < (after_miss if state else after_hit))
    return np.where(missed, 1.0 + 0.2 * rng.random(count), 1.0 - 0.2 * rng.random(count))


def slow_state(rng: np.random.Generator, count: int, correlation: float) -> Floats:
    """A tenth of the time, in runs, latencies lie around 1.0 s with spread 0.1, else around 0.8 s; p95 is 1.0001."""
    slow = latencies(rng, count, 0.1, correlation) > 1.0
    return np.asarray(np.where(slow, rng.normal(1.0, 0.1, count), rng.normal(0.8, 0.05, count)), dtype=np.float64)


def slack(rate: float, runs: int) -> float:
    """Three binomial standard errors."""
    return 3.0 * math.sqrt(rate * (1.0 - rate) / runs)


def test_clustering_is_one_until_twenty_misses_were_seen() -> None:
    rng = np.random.default_rng(1)
    few = Clustering().add(latencies(rng, 300, 0.05, 0.6), 95.0)
    assert few.misses < 20
    assert (few.design, few.divisor) == (1.0, 2.0)
    more = few.add(latencies(rng, 300, 0.05, 0.6), 95.0)
    assert more.misses >= 20
    assert more.divisor == more.design > 1.0


@pytest.mark.parametrize(("correlation", "design"), [(0.0, 1.0), (0.3, 13 / 7), (0.6, 4.0)])
def test_clustering_finds_the_design_of_a_markov_chain(correlation: float, design: float) -> None:
    rng = np.random.default_rng(2)
    clustering = Clustering()
    for _ in range(20):
        clustering = clustering.add(latencies(rng, 2000, 0.05, correlation), 95.0)
    assert clustering.design == pytest.approx(design, rel=0.15)


def test_clustering_sees_a_slow_state_that_misses_only_now_and_then() -> None:
    """Lag 1 alone says 2.3 where counts of misses vary 5.9-fold."""
    rng = np.random.default_rng(12)
    clustering = Clustering()
    for _ in range(20):
        clustering = clustering.add(slow_state(rng, 1000, 0.85), 95.0)
    assert 5.0 <= clustering.design <= 8.0


def test_clustering_of_one_long_run_is_clipped_to_ten() -> None:
    window = np.concatenate((np.full(950, 0.9), 1.0 + 0.001 * np.arange(50)))
    assert Clustering().add(window, 95.0).design == 10.0


def test_clustering_counts_no_ties_as_misses() -> None:
    assert Clustering().add(np.full(1000, 0.02), 95.0).misses == 0
    assert Clustering().add(np.empty(0), 95.0) == Clustering()


@pytest.mark.parametrize("percentile", [95.0, 99.0])
def test_upper_bound_of_independent_latencies_holds_in_95_percent(percentile: float) -> None:
    rng = np.random.default_rng(3)
    runs, true_s = 2000, -math.log(1.0 - percentile / 100.0)
    bounds = [
        percentile_bounds(np.asarray(rng.exponential(1.0, 480), dtype=np.float64), percentile, 1.0) for _ in range(runs)
    ]
    above = np.mean([bound.upper_s >= true_s for bound in bounds])
    below = np.mean([bound.lower_s <= true_s for bound in bounds])
    assert above >= 0.95 - slack(0.05, runs)
    assert below >= 0.95 - slack(0.05, runs)
    assert above <= 0.99


def test_upper_bound_holds_for_clustered_misses_only_with_their_design() -> None:
    rng = np.random.default_rng(4)
    runs, miss_share, correlation = 400, 0.05, 0.6
    held, naive = 0, 0
    for _ in range(runs):
        window = latencies(rng, 900, miss_share, correlation)
        held += percentile_bounds(window, 95.0, 4.0).upper_s >= 1.0
        naive += percentile_bounds(window, 95.0, 1.0).upper_s >= 1.0
    assert held / runs >= 0.95 - slack(0.05, runs)
    assert naive / runs < 0.90


def test_too_few_requests_leave_the_upper_bound_open() -> None:
    window = np.linspace(0.010, 0.020, 58, dtype=np.float64)
    bound = percentile_bounds(window, 95.0, 1.0)
    assert math.isinf(bound.upper_s)
    assert math.isfinite(bound.se_s)
    assert percentile_bounds(np.linspace(0.010, 0.020, 59, dtype=np.float64), 95.0, 1.0).upper_s == 0.020


def test_no_request_at_all_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="no request has ended"):
        percentile_bounds(np.empty(0), 95.0, 1.0)


def test_a_slow_mode_is_beyond_after_two_requests() -> None:
    assert is_beyond(np.array([3.0, 3.1]), 0.03, 95.0, 1.0)
    assert not is_beyond(np.array([0.02, 3.1]), 0.03, 95.0, 1.0)
    assert not is_beyond(np.empty(0), 0.03, 95.0, 1.0)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_a_mode_exactly_at_the_bound_is_cut_in_4_percent_at_most(correlation: float) -> None:
    """D comes from two earlier windows of the job, so it is itself an estimate."""
    rng = np.random.default_rng(5)
    runs, cut, undivided = 400, 0, 0
    for _ in range(runs):
        clustering = Clustering()
        for _ in range(2):
            clustering = clustering.add(latencies(rng, 600, 0.05, correlation), 95.0)
        window = latencies(rng, 900, 0.05, correlation)
        cut += ExceedanceTest(1.0, 95.0, clustering).add(window)
        undivided += ExceedanceTest(1.0, 95.0, INDEPENDENT).add(window)
    assert cut / runs <= 0.04 + slack(0.04, runs)
    if correlation == 0.6:
        assert undivided / runs > 0.15


def test_a_slow_state_exactly_at_the_bound_is_cut_in_4_percent_at_most() -> None:
    rng = np.random.default_rng(8)
    runs, cut, held = 400, 0, 0
    for _ in range(runs):
        clustering = Clustering()
        for _ in range(2):
            clustering = clustering.add(slow_state(rng, 600, 0.85), 95.0)
        window = slow_state(rng, 900, 0.85)
        cut += ExceedanceTest(SLOW_STATE_P95_S, 95.0, clustering).add(window)
        held += percentile_bounds(window, 95.0, clustering.design).upper_s >= SLOW_STATE_P95_S
    assert cut / runs <= 0.04 + slack(0.04, runs)
    assert held / runs >= 0.95 - slack(0.05, runs)


def test_the_test_is_the_same_in_pieces_as_at_once() -> None:
    rng = np.random.default_rng(6)
    window = latencies(rng, 400, 0.07, 0.0)
    whole, pieces = ExceedanceTest(1.0, 95.0, Clustering()), ExceedanceTest(1.0, 95.0, Clustering())
    whole.add(window)
    for piece in np.split(window, 8):
        pieces.add(piece)
    assert pieces.evidence == pytest.approx(whole.evidence)
    assert pieces.exceeded == whole.exceeded
    assert pieces.add(np.empty(0)) == whole.exceeded


def test_a_hopeless_mode_is_cut_after_a_few_requests() -> None:
    running = ExceedanceTest(1.0, 95.0, Clustering())
    cut_at = next(count for count in range(1, 60) if running.add(np.array([2.0])))
    assert cut_at <= 5


def test_a_mode_twice_beyond_the_bound_is_mostly_cut_within_a_window() -> None:
    rng = np.random.default_rng(7)
    cut = sum(ExceedanceTest(1.0, 95.0, INDEPENDENT).add(latencies(rng, 600, 0.12, 0.0)) for _ in range(100))
    assert cut >= 90
