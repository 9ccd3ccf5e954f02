"""Energy per inference and its error, by closed form and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouletune.errors import MeasurementError
from jouletune.latency import Clustering
from jouletune.measurement import (
    Between,
    Completions,
    Floats,
    Measurement,
    Pilot,
    PowerTrace,
    RailTrace,
    Replicate,
    SensorProblem,
    between_spread,
    mean_power_w,
    measure,
    period_unit_s,
    pilot,
    sensor_problem,
    whole_periods_s,
    window_length_s,
)
from jouletune.quantiles import student_quantile
from jouletune.trace import hidden_current_a, sensor_error_w

AVERAGING_S = 0.43
PERIOD_S = 0.2
EXACT = Between(ratio=0.0, dof=8.0)


def ticks(end_s: float, period_s: float = PERIOD_S) -> Floats:
    return np.arange(0.0, end_s, period_s, dtype=np.float64)


def trace_of(power_w: Floats, *, steps: tuple[float, float] = (0.0, 0.0), external_w: float = 0.0) -> PowerTrace:
    """A rail of 5 V sampled at 5 Hz from time 0."""
    volts = np.full(power_w.size, 5.0)
    rail = RailTrace("VDD_IN", volts, power_w / 5.0, *steps)
    return PowerTrace(ticks(power_w.size * PERIOD_S - 0.1), (rail,), AVERAGING_S, PERIOD_S, external_w)


def steady(end_s: float, period_s: float, *, latency_s: float = 0.02, batch: int = 1) -> Completions:
    ends_s = ticks(end_s, period_s) + 0.001
    return Completions(ends_s - latency_s, ends_s - latency_s, ends_s, batch)


def taken(trace: PowerTrace, completions: Completions, start_s: float = 1.0, end_s: float = 21.0) -> Measurement:
    return measure(
        trace, completions, start_s, end_s, percentile=95.0, clustering=Clustering(), between=EXACT, bound_s=0.03
    )


def slack(rate: float, runs: int) -> float:
    """Three binomial standard errors."""
    return 3.0 * math.sqrt(rate * (1.0 - rate) / runs)


@given(power_w=st.floats(1.0, 60.0), period_s=st.floats(0.01, 1.5), batch=st.integers(1, 16))
def test_constant_power_over_a_steady_rate_gives_their_ratio(power_w: float, period_s: float, batch: int) -> None:
    """Also where a window holds 15 requests and its ends lie between two: it is cut at completions."""
    measured = taken(trace_of(np.full(120, power_w)), steady(23.0, period_s, batch=batch))
    assert measured.energy_j == pytest.approx(power_w * period_s / batch, rel=1e-9)
    assert measured.throughput_hz == pytest.approx(batch / period_s, rel=1e-9)
    assert measured.power_w == pytest.approx(power_w, rel=1e-9)
    assert measured.inferences == measured.requests * batch
    assert measured.latency_s == pytest.approx(0.02)


def test_a_ramp_is_integrated_exactly_with_edges_between_samples() -> None:
    trace = trace_of(10.0 + ticks(24.0))
    assert mean_power_w(trace, 3.07, 9.31) == pytest.approx(10.0 + 0.5 * (3.07 + 9.31), rel=1e-12)


def test_external_watts_are_part_of_the_energy() -> None:
    inner, outer = (taken(trace_of(np.full(120, 10.0), external_w=w), steady(23.0, 0.04)) for w in (0.0, 3.0))
    assert outer.energy_j == pytest.approx(1.3 * inner.energy_j)


def test_requests_over_the_bound_are_counted() -> None:
    assert taken(trace_of(np.full(120, 10.0)), steady(23.0, 0.04)).over_bound == 0
    slow = taken(trace_of(np.full(120, 10.0)), steady(23.0, 0.04, latency_s=0.05))
    assert slow.over_bound == slow.latency_samples > 490
    assert slow.latency_lower_s > 0.03


def test_a_window_with_two_requests_gives_no_number() -> None:
    with pytest.raises(MeasurementError, match="wanted 3 requests ended in it, got 2"):
        taken(trace_of(np.full(120, 10.0)), steady(23.0, 9.0))


def test_samples_that_end_within_the_window_give_no_number() -> None:
    with pytest.raises(MeasurementError, match="start the sampler before the window"):
        taken(trace_of(np.full(60, 10.0)), steady(23.0, 0.04))


def test_power_that_rises_over_the_window_shows_as_trend() -> None:
    measured = taken(trace_of(10.0 + 0.1 * ticks(24.0)), steady(23.0, 0.04))
    assert measured.trend_ratio == pytest.approx(1.0 / (10.0 + 0.1 * 11.0), rel=0.2)
    assert taken(trace_of(np.full(120, 10.0)), steady(23.0, 0.04)).trend_ratio == pytest.approx(0.0, abs=1e-9)


def rippling(rng: np.random.Generator, end_s: float, ripple: float) -> PowerTrace:
    """20 W whose 430 ms means scatter by `ripple`, read at 5 Hz by a sensor of fine steps."""
    t_s = ticks(end_s)
    conversion = ((t_s + rng.uniform(0.0, AVERAGING_S)) / AVERAGING_S).astype(int)
    return trace_of(20.0 * (1.0 + ripple * rng.standard_normal(conversion[-1] + 1))[conversion])


@pytest.mark.parametrize("length_s", [16.0, 40.0])
def test_the_repeat_interval_covers_95_percent_of_rippling_windows(length_s: float) -> None:
    """With 8 batches 1.96 instead of Student's t would cover 89 %."""
    rng = np.random.default_rng(1)
    runs, covered, normal = 1500, 0, 0
    completions = steady(length_s + 2.0, 0.03)
    for _ in range(runs):
        measured = taken(rippling(rng, length_s + 2.5, 0.03), completions, 1.0, 1.0 + length_s)
        low_j, high_j = measured.interval()
        covered += low_j <= 0.6 <= high_j
        normal += abs(measured.energy_j - 0.6) <= 1.96 * measured.repeat_se_j
    assert 0.95 - 0.01 - slack(0.05, runs) <= covered / runs <= 0.95 + 0.01 + slack(0.05, runs)
    assert normal < covered


def test_batches_number_eight_at_16_s_and_their_dof_enters_the_interval() -> None:
    rng = np.random.default_rng(2)
    measured = taken(rippling(rng, 19.0, 0.02), steady(18.0, 0.03), 1.0, 17.0)
    assert measured.repeat_dof in (7.0, 8.0)
    half_j = student_quantile(0.975, measured.repeat_dof) * measured.repeat_se_j
    assert measured.interval() == pytest.approx((measured.energy_j - half_j, measured.energy_j + half_j))


def test_the_repeat_error_is_the_ratio_estimators_over_its_batches() -> None:
    """Closed form: eight batches of 2 s on a ramp of 0.1 W/s; squares of -3.5 .. 3.5 sum to 42."""
    ramp = trace_of(10.0 + 0.1 * ticks(19.0))
    slower = PowerTrace(ramp.t_s, ramp.rails, 0.49, PERIOD_S)
    measured = taken(slower, steady(18.0, 0.04), 1.0, 17.01)
    assert measured.repeat_dof == 7.0
    mean_w = 10.0 + 0.1 * 9.001
    expected = 0.1 * 2.0 * math.sqrt(42.0 / (8.0 * 7.0)) / mean_w
    assert measured.repeat_se_j / measured.energy_j == pytest.approx(expected, rel=1e-6)


def test_the_three_parts_add_in_squares() -> None:
    rng = np.random.default_rng(3)
    trace = rippling(rng, 23.0, 0.001)
    coarse = PowerTrace(
        trace.t_s, (RailTrace("VDD_IN", np.full(115, 5.0), np.full(115, 4.0), 0.008, 0.02),), AVERAGING_S, PERIOD_S
    )
    measured = measure(
        coarse, steady(22.0, 0.03), 1.0, 21.0, percentile=95.0, clustering=Clustering(), between=Between(0.005, 8.0)
    )
    assert measured.between_se_j == pytest.approx(0.005 * measured.energy_j)
    assert measured.sensor_se_j / measured.energy_j == pytest.approx(math.hypot(0.1, 4.0 * 0.008) / 12**0.5 / 20.0)
    parts = (measured.repeat_se_j, measured.sensor_se_j, measured.between_se_j)
    assert measured.energy_se_j == pytest.approx(math.hypot(*parts))
    assert measured.dof > 8.0


def rail_at_20_v(current_a: Floats) -> PowerTrace:
    rail = RailTrace("VDD_GPU_SOC", np.full(current_a.size, 20.0), current_a, 0.008, 0.02)
    return PowerTrace(ticks(current_a.size * PERIOD_S - 0.1), (rail,), AVERAGING_S, PERIOD_S)


def test_one_code_of_20_ma_at_20_v_hides_115_mw() -> None:
    error_w = sensor_error_w(rail_at_20_v(np.full(100, 0.26)), 0.0, 20.0)
    assert error_w == pytest.approx(math.hypot(0.4, 0.26 * 0.008) / math.sqrt(12.0))


def test_three_codes_leave_the_voltage_step_only() -> None:
    current_a = np.tile(np.array([0.24, 0.26, 0.26, 0.28]), 25)
    error_w = sensor_error_w(rail_at_20_v(current_a), 0.0, 20.0)
    assert error_w == pytest.approx(0.26 * 0.008 / math.sqrt(12.0))


@pytest.mark.parametrize(
    ("counts", "hidden"),
    [
        ({13: 100}, 1.0),
        ({13: 50, 14: 50}, 1 / 3),
        ({13: 90, 14: 10}, math.hypot(1 / 3, math.sqrt(8 / 9) * 0.8)),
        ({13: 99, 14: 1}, 1.0),
        ({12: 1, 13: 98, 14: 1}, 1.0),
        ({13: 50, 30: 50}, math.sqrt(0.5)),
        ({12: 10, 13: 80, 14: 10}, 0.0),
    ],
)
def test_what_rounding_hides_depends_on_the_codes_visited(counts: dict[int, int], hidden: float) -> None:
    codes = np.concatenate([np.full(count, 0.02 * code) for code, count in counts.items()])
    assert hidden_current_a(codes, 0.02) == pytest.approx(hidden * 0.02 / math.sqrt(12.0))
    assert hidden_current_a(codes, 0.0) == 0.0


RIPPLES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n) * math.sqrt(3.0),
    "sine": lambda rng, n: math.sqrt(2.0) * np.sin(rng.uniform(0.0, 7.0) + np.arange(n) * rng.uniform(0.05, 3.0)),
    "bursts": lambda rng, n: rng.exponential(1.0, n) - 1.0,
    "drift": lambda rng, n: np.linspace(-0.5, 0.5, n, dtype=np.float64) * math.sqrt(12.0),
    "spikes": lambda rng, n: np.where(rng.random(n) < 0.03, 3.0, 0.2) * rng.standard_normal(n),
}


@pytest.mark.parametrize("ripple_codes", [0.02, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("kind", RIPPLES)
def test_rounding_errs_no_more_than_said_whatever_the_ripple(kind: str, ripple_codes: float) -> None:
    """Over currents anywhere between two codes: the mean square of the error against that of what is claimed."""
    rng = np.random.default_rng(4)
    runs, errors, claims = 1000, [], []
    for _ in range(runs):
        current = rng.uniform(-0.5, 0.5) + ripple_codes * RIPPLES[kind](rng, 50)
        codes = np.asarray(np.round(current), dtype=np.float64)
        errors.append(float((codes - current).mean()))
        claims.append(hidden_current_a(codes, 1.0))
    assert np.mean(np.square(errors)) <= 1.1 * np.mean(np.square(claims))


def test_pilot_knows_its_error_from_five_batches() -> None:
    rng = np.random.default_rng(5)
    known = pilot(rippling(rng, 13.0, 0.02), steady(12.0, 0.03), 1.0, 11.0)
    assert known.batches == 5
    assert known.se_ratio is not None
    assert known.rate_hz == pytest.approx(33.3, rel=0.01)
    slow = pilot(rippling(rng, 13.0, 0.02), steady(12.0, 3.0), 1.0, 11.0)
    assert slow.se_ratio is None
    assert slow.requests == 3


def length_s(pilot: Pilot, clustering: Clustering | None = None, percentile: float = 95.0) -> float:
    return window_length_s(
        pilot,
        error_target=0.005,
        min_s=16.0,
        max_s=60.0,
        percentile=percentile,
        clustering=clustering or Clustering(),
    )


def test_window_length_grows_with_the_square_of_the_pilots_error() -> None:
    t = student_quantile(0.975, 4.0)
    se_ratio = 0.007
    assert length_s(Pilot(10.0, 300, 30.0, 5, se_ratio)) == pytest.approx(10.0 * (t * se_ratio / (1.96 * 0.005)) ** 2)
    assert length_s(Pilot(10.0, 300, 30.0, 5, 0.001)) == 16.0
    assert length_s(Pilot(10.0, 300, 30.0, 5, 0.05)) == 60.0


def test_window_is_longest_where_the_pilot_held_under_five_requests() -> None:
    assert length_s(Pilot(10.0, 4, 5.0, 0, None)) == 60.0
    assert length_s(Pilot(10.0, 0, 0.0, 0, None)) == 60.0


def test_window_covers_what_the_percentile_needs_up_to_300_s() -> None:
    assert length_s(Pilot(10.0, 10, 1.0, 5, 0.001)) == pytest.approx(62.0)
    assert length_s(Pilot(10.0, 50, 5.0, 5, 0.001), percentile=99.0) == pytest.approx(302 / 5.0)
    assert length_s(Pilot(10.0, 10, 0.1, 5, 0.001)) == 300.0
    runs = Clustering(1000, 50, (50,) * 32, (40,) + (0,) * 31)
    assert length_s(Pilot(10.0, 50, 5.0, 5, 0.001), runs) == pytest.approx((59 * runs.design + 3) / 5.0, rel=0.01)


def changing(rng: np.random.Generator, count: int = 150) -> PowerTrace:
    return rail_at_20_v(np.asarray(0.26 + 0.02 * rng.integers(-1, 2, count), dtype=np.float64))


def test_a_good_trace_has_no_sensor_problem() -> None:
    rng = np.random.default_rng(6)
    assert sensor_problem(changing(rng), 2.0, 28.0, before=changing(rng)) is None


def test_a_hole_of_more_than_five_periods_is_a_gap() -> None:
    rng = np.random.default_rng(7)
    whole = changing(rng)
    keep = (whole.t_s < 10.0) | (whole.t_s > 11.05)
    rail = whole.rails[0]
    holed = RailTrace(rail.name, rail.voltage_v[keep], rail.current_a[keep], 0.008, 0.02)
    trace = PowerTrace(whole.t_s[keep], (holed,), AVERAGING_S, PERIOD_S)
    assert sensor_problem(trace, 2.0, 28.0) is SensorProblem.GAP
    assert sensor_problem(trace, 12.0, 28.0) is None
    assert sensor_problem(whole, 2.0, 31.5) is SensorProblem.GAP


def test_more_than_two_percent_lost_reads_are_a_gap() -> None:
    rng = np.random.default_rng(8)
    trace = changing(rng)
    few, many = (PowerTrace(trace.t_s, trace.rails, AVERAGING_S, PERIOD_S, lost=lost) for lost in (3, 4))
    assert sensor_problem(few, 2.0, 28.0) is None
    assert sensor_problem(many, 2.0, 28.0) is SensorProblem.GAP


def test_a_total_of_zero_watts_is_no_evidence_but_one_rail_may_be_zero() -> None:
    rng = np.random.default_rng(9)
    trace = changing(rng)
    off = RailTrace("VDD_CPU_CV", np.full(150, 20.0), np.zeros(150), 0.008, 0.02)
    both = PowerTrace(trace.t_s, (trace.rails[0], off), AVERAGING_S, PERIOD_S, external_w=3.0)
    none = PowerTrace(trace.t_s, (off,), AVERAGING_S, PERIOD_S, external_w=3.0)
    assert sensor_problem(both, 2.0, 28.0) is None
    assert sensor_problem(none, 2.0, 28.0) is SensorProblem.ZERO
    assert sensor_problem(PowerTrace(trace.t_s, (), AVERAGING_S, PERIOD_S), 2.0, 28.0) is SensorProblem.ZERO
    assert sensor_problem(trace, 100.0, 120.0) is SensorProblem.ZERO


def test_a_sensor_is_stalled_only_when_still_across_a_change_of_mode() -> None:
    rng = np.random.default_rng(10)
    still, other = rail_at_20_v(np.full(150, 0.26)), rail_at_20_v(np.full(150, 0.28))
    assert sensor_problem(still, 2.0, 28.0) is None
    assert sensor_problem(still, 2.0, 28.0, before=other) is None
    assert sensor_problem(still, 2.0, 28.0, before=changing(rng)) is None
    assert sensor_problem(still, 2.0, 28.0, before=still) is SensorProblem.STALLED


def test_two_modes_that_share_a_code_for_a_while_are_no_stall() -> None:
    brief = np.full(150, 0.28)
    brief[:15] = 0.26
    assert sensor_problem(rail_at_20_v(brief), 2.0, 28.0, before=rail_at_20_v(np.full(150, 0.26))) is None


def test_between_spread_without_replicates_is_the_prior() -> None:
    assert between_spread([]) == Between(0.005, 8.0)
    assert between_spread([[Replicate(0.0, 0.002)]]) == Between(0.005, 8.0)


def test_between_spread_shrinks_from_the_prior_to_what_replicates_show() -> None:
    """Closed form: variance = (8 * 0.5 %^2 + squares - dof * own^2) / (8 + dof)."""
    found = between_spread([[Replicate(0.01, 0.002), Replicate(-0.01, 0.002)]])
    assert found.dof == 9.0
    assert found.ratio == pytest.approx(math.sqrt((8 * 0.005**2 + 0.0002 - 0.002**2) / 9.0))
    rng = np.random.default_rng(11)
    many = [[Replicate(float(rng.normal(0.0, math.hypot(0.013, 0.003))), 0.003) for _ in range(3)] for _ in range(400)]
    assert between_spread(many).ratio == pytest.approx(0.013, rel=0.05)


def test_between_spread_never_falls_to_nothing() -> None:
    same = [[Replicate(0.0, 0.01)] * 200]
    assert between_spread(same).ratio == pytest.approx(0.0005)


# --- arrival that repeats -----------------------------------------------------------------------------------


def bursts(end_s: float, *, period_s: float, count: int) -> Completions:
    """`count` requests in the first tenth of each period, then a pause."""
    starts_s = ticks(end_s, period_s)[:, None] + np.linspace(0.0, period_s / 10, count)[None, :]
    ends_s: Floats = starts_s.ravel() + 0.02
    return Completions(ends_s - 0.02, ends_s - 0.02, ends_s, 1)


def periodic(trace: PowerTrace, completions: Completions, start_s: float, end_s: float, period_s: float) -> Measurement:
    return measure(
        trace,
        completions,
        start_s,
        end_s,
        percentile=95.0,
        clustering=Clustering(),
        between=EXACT,
        period_s=period_s,
    )


@pytest.mark.parametrize("start_s", [1.0, 2.5, 6.9, 10.0])
def test_pause_of_a_repeated_arrival_counts_wherever_the_window_begins(start_s: float) -> None:
    """10 requests each 10 s, 20 W for the second in which they come, else 5 W: 65 J, 6.5 J each."""
    at_s = ticks(70.0)
    power_w = np.where(at_s % 10.0 < 1.0, 20.0, 5.0)
    trace, completions = trace_of(power_w), bursts(70.0, period_s=10.0, count=10)
    window = periodic(trace, completions, start_s, start_s + 40.0, 10.0)
    assert window.requests == 40
    assert window.duration_s == pytest.approx(40.0)
    assert window.energy_j == pytest.approx(6.5, rel=0.01)  # the samples do not lie on the edges of the bursts
    assert window.repeat_se_j < 0.001 * window.energy_j  # the same in each period: no error, however it varies in it
    assert window.trend_ratio == pytest.approx(0.0, abs=1e-9)


def test_error_of_a_repeated_arrival_is_the_spread_of_the_truth() -> None:
    rng = np.random.default_rng(5)
    at_s = ticks(70.0)
    found = []
    for _ in range(300):
        noise = np.repeat(rng.normal(0.0, 1.0, at_s.size // 5), 5)  # a second long: longer than the sensor's average
        power_w = np.where(at_s % 10.0 < 1.0, 20.0, 8.0) + noise
        found.append(periodic(trace_of(power_w), bursts(70.0, period_s=10.0, count=10), 1.0, 61.0, 10.0))
    spread_j = float(np.std([window.energy_j for window in found], ddof=1))
    claimed_j = math.sqrt(float(np.mean([window.repeat_se_j**2 for window in found])))
    assert claimed_j == pytest.approx(spread_j, rel=0.15)
    inside = [abs(w.energy_j - 9.2) <= student_quantile(0.975, w.repeat_dof) * w.repeat_se_j for w in found]
    assert 0.9 < sum(inside) / len(inside) < 0.99


def test_window_of_one_period_is_no_measurement() -> None:
    trace = trace_of(np.full(350, 10.0))
    with pytest.raises(MeasurementError, match="wanted two periods of the arrival"):
        periodic(trace, bursts(70.0, period_s=40.0, count=10), 0.0, 60.0, 40.0)


@pytest.mark.parametrize(
    ("window_s", "unit_s", "whole_s"),
    [(16.0, 10.0, 20.0), (60.0, 10.0, 60.0), (16.0, 40.0, 80.0), (250.0, 140.0, 280.0), (16.0, 150.0, 300.0)],
)
def test_window_is_made_of_whole_periods(window_s: float, unit_s: float, whole_s: float) -> None:
    assert whole_periods_s(window_s, unit_s) == pytest.approx(whole_s)


def test_short_periods_are_taken_together_until_the_sensor_can_follow() -> None:
    assert period_unit_s(0.5, AVERAGING_S) == pytest.approx(2.0)  # a batch takes 1.8 s
    assert period_unit_s(10.0, AVERAGING_S) == pytest.approx(10.0)
