"""A counter of energy that stands still between its steps: what it says at its edges, and what elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jouletune.errors import MeasurementError
from jouletune.latency import Clustering
from jouletune.measurement import (
    Between,
    Completions,
    PowerTrace,
    RailTrace,
    SensorProblem,
    measure,
    pilot,
    sensor_problem,
)
from jouletune.trace import EnergyCounter, Floats, counter_ratio, joules_at, mean_power_w, sensor_error_w, total_power_w

STEP_S = 0.1
PERIOD_S = 0.125


def span(start_s: float, end_s: float, step_s: float) -> Floats:
    return np.arange(start_s, end_s, step_s, dtype=np.float64)


def wave_w(t_s: Floats) -> Floats:
    """A load of 300 W that breathes by a third every 2 s."""
    return 300.0 + 100.0 * np.sin(np.pi * t_s)


def wave_j(t_s: Floats) -> Floats:
    """Its integral from 0, in closed form."""
    return np.asarray(300.0 * t_s + 100.0 / np.pi * (1.0 - np.cos(np.pi * t_s)))


def counted(
    end_s: float, *, phase_s: float = 0.037, width_s: float = 0.0, gain: float = 1.0, external_w: float = 0.0
) -> PowerTrace:
    """What a perfect reader has of it: power each 50 ms, and all edges of a counter that moves each 100 ms."""
    t_s = span(0.0, end_s, 0.05)
    edges_s = span(phase_s, end_s, STEP_S)
    rail = RailTrace("nvml:GPU0", np.ones(t_s.size), wave_w(t_s), 0.0, 0.001)
    counter = EnergyCounter(edges_s, 1e6 + gain * wave_j(edges_s), np.full(edges_s.size, width_s))
    return PowerTrace(t_s, (rail,), PERIOD_S, PERIOD_S, external_w, counter=counter)


def read_j(at_s: Floats, phase_s: float) -> Floats:
    """What a read at just any moment gets: the value of the last step."""
    return wave_j(phase_s + np.floor((at_s - phase_s) / STEP_S) * STEP_S)


@settings(max_examples=60, deadline=None)
@given(st.floats(1.0, 2.0), st.floats(0.4, 10.0), st.floats(0.0, 0.099))
def test_energy_between_edges_is_the_closed_forms_at_any_moment(
    start_s: float, length_s: float, phase_s: float
) -> None:
    at_s = np.array([start_s, start_s + length_s])
    got_j = np.diff(joules_at(counted(13.0, phase_s=phase_s), at_s))[0]
    # Within one step the line is off by no more than slope * step^2 / 8, at either end.
    most_j = 2 * 100.0 * np.pi * STEP_S**2 / 8
    assert got_j == pytest.approx(np.diff(wave_j(at_s))[0], abs=most_j)


def test_reads_at_just_any_moment_would_be_wrong_by_up_to_a_step() -> None:
    starts_s = span(1.0, 1.1, 0.001)
    true_j = wave_j(starts_s + 1.05) - wave_j(starts_s)
    naive = np.abs((read_j(starts_s + 1.05, 0.037) - read_j(starts_s, 0.037)) / true_j - 1.0)
    trace = counted(4.0)
    edges = np.array([np.diff(joules_at(trace, np.array([t_s, t_s + 1.05])))[0] for t_s in starts_s])
    assert naive.max() > 0.04
    assert np.abs(edges / true_j - 1.0).max() < 0.003


def test_a_window_of_whole_edges_is_exact() -> None:
    trace = counted(8.0)
    assert trace.counter is not None
    at_s = trace.counter.t_s[[10, 60]]
    assert np.diff(joules_at(trace, at_s))[0] == pytest.approx(np.diff(wave_j(at_s))[0], rel=1e-9)


def test_the_counter_rules_where_power_says_something_else() -> None:
    trace = counted(8.0, gain=1.1)
    assert mean_power_w(trace, 2.0, 6.0) == pytest.approx(1.1 * 300.0, rel=1e-3)


def test_beyond_the_first_and_last_edge_the_power_goes_on() -> None:
    whole = counted(8.0)
    assert whole.counter is not None
    kept = slice(20, 50)
    few = replace(
        whole,
        counter=EnergyCounter(whole.counter.t_s[kept], whole.counter.joules[kept], whole.counter.width_s[kept]),
    )
    at_s = np.array([0.5, 7.5])
    assert np.diff(joules_at(few, at_s))[0] == pytest.approx(np.diff(wave_j(at_s))[0], rel=1e-3)


def test_external_watts_are_added_to_what_is_counted() -> None:
    at_s = np.array([0.01, 3.21, 7.9])
    plain, more = (np.diff(joules_at(counted(8.0, external_w=watts), at_s)) for watts in (0.0, 12.0))
    assert more - plain == pytest.approx(12.0 * np.diff(at_s))


def test_samples_that_end_before_the_window_give_no_number_with_a_counter_either() -> None:
    with pytest.raises(MeasurementError, match="start the sampler before the window"):
        joules_at(counted(8.0), np.array([2.0, 9.0]))


@pytest.mark.parametrize("gain", [0.97, 1.0, 1.03])
def test_the_ratio_tells_how_far_counter_and_power_are_apart(gain: float) -> None:
    ratio = counter_ratio(counted(12.0, gain=gain, external_w=50.0), 1.0, 11.0)
    assert ratio == pytest.approx(gain, rel=1e-3)


def test_there_is_no_ratio_without_a_counter_or_without_two_edges() -> None:
    trace = counted(8.0)
    assert counter_ratio(replace(trace, counter=None), 1.0, 7.0) is None
    assert counter_ratio(trace, 1.0, 1.1) is None


def test_a_counter_that_stands_still_while_power_is_drawn_is_stalled() -> None:
    trace = counted(12.0)
    assert sensor_problem(trace, 2.0, 10.0) is None
    assert trace.counter is not None
    kept = (trace.counter.t_s < 4.0) | (trace.counter.t_s > 5.0)
    held = EnergyCounter(trace.counter.t_s[kept], trace.counter.joules[kept], trace.counter.width_s[kept])
    assert sensor_problem(replace(trace, counter=held), 2.0, 10.0) is SensorProblem.STALLED
    never = EnergyCounter(*(np.empty(0) for _ in range(3)))
    assert sensor_problem(replace(trace, counter=never), 2.0, 10.0) is SensorProblem.STALLED


@pytest.mark.parametrize("before_j", [1e6, 1000.0])
@pytest.mark.parametrize(("reset_s", "problem"), [(2.0, None), (10.0, SensorProblem.GAP), (19.0, None)])
def test_a_counter_that_is_reset_in_the_window_is_a_gap(
    before_j: float, reset_s: float, problem: SensorProblem | None
) -> None:
    trace = counted(20.0)
    assert trace.counter is not None
    edges_s = trace.counter.t_s
    reset_j = np.where(edges_s < reset_s, before_j + wave_j(edges_s), wave_j(edges_s) - wave_j(np.array([reset_s])))
    counter = replace(trace.counter, joules=reset_j)
    assert sensor_problem(replace(trace, counter=counter), 3.0, 17.0) is problem


def test_the_sensors_error_is_what_its_two_end_edges_hide() -> None:
    # Each end lies anywhere within 12 ms: 12 ms / sqrt(12), twice in squares, of 300 W over 4 s.
    expected_w = 300.0 * 0.012 / np.sqrt(12.0) * np.sqrt(2.0) / 4.0
    assert sensor_error_w(counted(8.0, width_s=0.012), 2.0, 6.0) == pytest.approx(expected_w, rel=1e-3)


def test_watts_alone_are_a_rail_of_one_volt() -> None:
    trace = counted(8.0)
    assert total_power_w(trace) == pytest.approx(wave_w(trace.t_s))


def test_batches_of_a_counter_are_half_a_second() -> None:
    ends_s = span(0.5, 7.5, 0.01)
    completions = Completions(ends_s - 0.008, ends_s - 0.008, ends_s)
    looked = pilot(counted(8.0), completions, 1.0, 5.0)
    assert looked.batches == 7  # of 4 s less one request, at least 0.5 s each
    window = measure(counted(8.0), completions, 1.0, 7.0, percentile=95.0, clustering=Clustering(), between=Between())
    assert window.energy_j == pytest.approx(300.0 * 0.01, rel=2e-3)
    assert window.rail == "nvml:GPU0"
