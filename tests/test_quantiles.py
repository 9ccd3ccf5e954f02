"""Student and binomial numbers against scipy and by closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from jouletune.errors import MeasurementError
from jouletune.quantiles import (
    combined_dof,
    misses_allowed,
    misses_condemning,
    reachable_percentile,
    requests_needed,
    student_quantile,
    student_tail,
)


@given(st.floats(0.001, 0.999), st.floats(0.5, 300.0))
@example(0.5000000000000001, 1.0)
@example(0.5, 1.0)
@settings(max_examples=500)
def test_student_quantile_agrees_with_scipy(probability: float, dof: float) -> None:
    assert student_quantile(probability, dof) == pytest.approx(stats.t.ppf(probability, dof), rel=1e-8, abs=1e-8)


@given(st.floats(-40.0, 40.0), st.floats(0.5, 1e5))
def test_student_tail_agrees_with_scipy(t: float, dof: float) -> None:
    assert student_tail(t, dof) == pytest.approx(stats.t.sf(t, dof), rel=1e-7, abs=1e-13)


def test_student_with_infinite_dof_is_normal() -> None:
    assert student_quantile(0.975, math.inf) == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize(("probability", "dof"), [(0.0, 5.0), (1.0, 5.0), (0.9, 0.0), (0.9, -1.0)])
def test_student_quantile_refuses_what_has_no_answer(probability: float, dof: float) -> None:
    with pytest.raises(MeasurementError, match="wanted 0 < probability < 1"):
        student_quantile(probability, dof)


def test_combined_dof_of_equal_parts_adds_up() -> None:
    assert combined_dof((1.0, 7.0), (1.0, 7.0)) == pytest.approx(14.0)
    assert combined_dof((1.0, 7.0), (0.0, math.inf)) == pytest.approx(7.0)
    assert combined_dof((0.0, 7.0), (4.0, math.inf)) == math.inf


@given(st.integers(1, 3000), st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9]))
def test_misses_allowed_and_condemning_are_the_binomial_ones(requests: int, percentile: float) -> None:
    share = 1.0 - percentile / 100.0
    allowed = misses_allowed(requests, percentile, 1.0)
    if allowed is None:
        assert stats.binom.cdf(0, requests, share) > 0.05 - 1e-9
    else:
        assert stats.binom.cdf(allowed, requests, share) <= 0.05 + 1e-9
        assert stats.binom.cdf(allowed + 1, requests, share) > 0.05 - 1e-9
    condemning = misses_condemning(requests, percentile, 1.0)
    assert stats.binom.sf(condemning - 1, requests, share) <= 0.05 + 1e-9
    assert stats.binom.sf(condemning - 2, requests, share) > 0.05 - 1e-9 or condemning == 1


@pytest.mark.parametrize(("percentile", "wanted"), [(95.0, 59), (99.0, 299), (50.0, 5), (99.9, 2995)])
def test_requests_needed_is_the_least_that_can_bound(percentile: float, wanted: int) -> None:
    assert requests_needed(percentile) == wanted
    assert misses_allowed(wanted, percentile, 1.0) == 0
    assert misses_allowed(wanted - 1, percentile, 1.0) is None


def test_clustered_misses_need_as_many_more_requests() -> None:
    assert requests_needed(95.0, 4.0) == 4 * 59
    assert misses_allowed(4 * 59, 95.0, 4.0) == 0
    assert misses_allowed(4 * 58, 95.0, 4.0) is None


def test_reachable_percentile_names_the_highest_that_the_rate_can_bound() -> None:
    assert reachable_percentile(1.0, 300.0, 1.0) == 99.0
    assert reachable_percentile(0.2, 300.0, 1.0) == 95.1
    assert reachable_percentile(0.2, 300.0, 2.0) == 90.4
    assert reachable_percentile(0.01, 300.0, 1.0) is None


@given(st.floats(0.02, 200.0), st.floats(1.0, 10.0))
def test_a_reachable_percentile_is_reached_in_the_longest_window(rate_hz: float, design: float) -> None:
    percentile = reachable_percentile(rate_hz, 300.0, design)
    if percentile is not None:
        assert requests_needed(percentile) <= rate_hz * 300.0 / design
