"""One reason each: invalid, infeasible; records that come back as they were."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from jouletune.errors import MeasurementError
from jouletune.measurement import Measurement, SensorProblem
from jouletune.space import Candidate, PowerMode, Variant
from jouletune.trial import (
    ClockSamples,
    Evidence,
    Infeasible,
    Invalid,
    Limits,
    Purpose,
    Repeats,
    Trial,
    judge_feasibility,
    judge_validity,
)

GOOD = Measurement(
    rail="VDD_IN",
    start_s=100.0,
    duration_s=20.0,
    requests=600,
    inferences=600,
    energy_j=0.5,
    repeat_se_j=0.001,
    repeat_dof=9.0,
    sensor_se_j=0.002,
    between_se_j=0.0025,
    between_dof=8.0,
    trend_ratio=0.001,
    power_w=15.0,
    throughput_hz=30.0,
    latency_percentile=95.0,
    latency_s=0.028,
    latency_lower_s=0.027,
    latency_upper_s=0.029,
    latency_se_s=0.0006,
    latency_samples=600,
    latency_design=1.0,
    over_bound=7,
)
TABLE_HZ = (306e6, 408e6, 510e6, 612e6)


def clock(*seen_hz: float, locked: bool) -> ClockSamples:
    return ClockSamples("gpu", 408e6, TABLE_HZ, seen_hz, locked)


def test_a_good_window_is_valid_and_feasible() -> None:
    assert judge_feasibility(GOOD, Limits(0.030, 20.0, 30.0)) is None
    assert judge_validity(Evidence(), GOOD, None) is None


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(bound_s=0.0285), Infeasible.LATENCY),
        (Limits(bound_s=0.0200), Infeasible.LATENCY),
        (Limits(max_power_w=14.9), Infeasible.MAX_POWER),
        (Limits(rate_hz=31.0), Infeasible.RATE_NOT_REACHED),
        (Limits(bound_s=0.0290, max_power_w=15.0, rate_hz=30.2), None),
        (Limits(), None),
    ],
)
def test_each_limit_makes_infeasible_for_its_own_reason(limits: Limits, reason: Infeasible | None) -> None:
    assert judge_feasibility(GOOD, limits) is reason


def test_rate_is_counted_in_requests_not_in_inferences() -> None:
    batches = replace(GOOD, inferences=2400, throughput_hz=120.0)
    assert judge_feasibility(batches, Limits(rate_hz=60.0)) is Infeasible.RATE_NOT_REACHED


def test_a_slow_mode_is_infeasible_and_not_too_few() -> None:
    slow = replace(GOOD, requests=5, inferences=5, latency_lower_s=2.0, latency_upper_s=math.inf)
    infeasible = judge_feasibility(slow, Limits(bound_s=0.03))
    assert infeasible is Infeasible.LATENCY
    assert judge_validity(Evidence(), slow, infeasible) is None


def test_a_mode_too_slow_to_bound_its_percentile_is_not_feasible() -> None:
    assert (
        judge_feasibility(replace(GOOD, requests=40, latency_upper_s=math.inf), Limits(bound_s=0.03))
        is Infeasible.LATENCY
    )


@pytest.mark.parametrize("few", [replace(GOOD, inferences=19, requests=19), replace(GOOD, requests=7)])
def test_fewer_than_twenty_inferences_say_nothing(few: Measurement) -> None:
    few = replace(few, latency_upper_s=math.inf)
    assert judge_feasibility(few, Limits(bound_s=0.03)) is None
    assert judge_validity(Evidence(), few, None) is Invalid.TOO_FEW_INFERENCES
    assert judge_validity(Evidence(), None, None) is Invalid.TOO_FEW_INFERENCES


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (Evidence(mismatches=("gpu max_freq: wanted 408 MHz, got 510 MHz",)), Invalid.MODE_CHANGED),
        (Evidence(throttling=("cpu-throttle-alert",)), Invalid.THROTTLED),
        (Evidence(over_current=1, over_current_s=22.5), Invalid.THROTTLED),
        (Evidence(clocks=(clock(408e6, 510e6, locked=False),)), Invalid.CLOCKS_MOVED),
        (Evidence(sensor=SensorProblem.GAP), Invalid.SENSOR_GAP),
        (Evidence(sensor=SensorProblem.STALLED), Invalid.SENSOR_STALLED),
        (Evidence(sensor=SensorProblem.ZERO), Invalid.SENSOR_ZERO),
        (Evidence(strangers=("firefox",)), Invalid.GPU_BUSY),
    ],
)
def test_each_disturbance_makes_invalid_for_its_own_reason(evidence: Evidence, reason: Invalid) -> None:
    assert judge_validity(evidence, GOOD, None) is reason
    assert judge_validity(evidence, GOOD, Infeasible.LATENCY) is reason


def test_over_current_events_that_are_normal_on_a_board_do_not_disturb() -> None:
    assert (
        judge_validity(Evidence(over_current=260, over_current_s=22.5), GOOD, None, normal_over_current_hz=10) is None
    )
    assert (
        judge_validity(Evidence(over_current=320, over_current_s=22.5), GOOD, None, normal_over_current_hz=10)
        is Invalid.THROTTLED
    )


def test_a_window_whose_energy_drifts_is_unsteady_unless_noise_explains_it() -> None:
    assert judge_validity(Evidence(), replace(GOOD, trend_ratio=0.031), None) is Invalid.UNSTEADY
    assert judge_validity(Evidence(), replace(GOOD, trend_ratio=-0.031), None) is Invalid.UNSTEADY
    assert judge_validity(Evidence(), replace(GOOD, trend_ratio=0.031, repeat_se_j=0.005), None) is None


@pytest.mark.parametrize(
    ("seen_hz", "locked", "moved"),
    [
        ((408e6,) * 100, True, False),
        ((408e6,) * 90 + (510e6,) * 10, True, False),
        ((408e6,) * 98 + (612e6,) * 2, True, False),
        ((408e6,) * 97 + (612e6,) * 3, True, True),
        ((408e6,) * 97 + (204e6,) * 3, True, True),
        ((204e6,) * 100, False, False),
        ((408.2e6,) * 100, False, False),
        ((408e6,) * 99 + (510e6,), False, True),
        ((), True, False),
        ((), False, False),
    ],
)
def test_clocks_have_moved(seen_hz: tuple[float, ...], locked: bool, moved: bool) -> None:
    assert clock(*seen_hz, locked=locked).moved is moved


def test_repeats_are_two_per_trial_and_three_per_reason() -> None:
    repeats = Repeats()
    assert repeats.allows(Invalid.THROTTLED, 0)
    assert repeats.allows(Invalid.THROTTLED, 1)
    assert not repeats.allows(Invalid.THROTTLED, 2)
    for _ in range(3):
        repeats = repeats.spend(Invalid.THROTTLED)
    assert not repeats.allows(Invalid.THROTTLED, 0)
    assert repeats.allows(Invalid.SENSOR_GAP, 0)


def trial(measurement: Measurement | None = None) -> Trial:
    return Trial(
        number=3,
        attempt=1,
        purpose=Purpose.SEARCH,
        index=17,
        candidate=Candidate(PowerMode(None, 729600000, 408000000, 2133000000), Variant("a.plan", 4, 2)),
        policy="capped",
        t_s=61.5,
        duration_s=42.0,
        measurement=measurement,
    )


@pytest.mark.parametrize(
    "one",
    [
        trial(GOOD),
        trial(replace(GOOD, latency_upper_s=math.inf, repeat_se_j=math.inf)),
        replace(trial(), invalid=Invalid.SENSOR_GAP, detail="a hole of 3.1 s"),
        replace(trial(), infeasible=Infeasible.LATENCY, cut=True),
    ],
)
def test_a_trial_comes_back_from_json_as_it_was(one: Trial) -> None:
    text = json.dumps(one.to_dict(), allow_nan=False)
    assert Trial.from_dict(json.loads(text)) == one


def test_a_trial_is_feasible_only_with_valid_numbers() -> None:
    assert trial(GOOD).feasible
    assert not trial().feasible
    assert not replace(trial(GOOD), invalid=Invalid.UNSTEADY).feasible
    assert not replace(trial(GOOD), infeasible=Infeasible.MAX_POWER).feasible


@pytest.mark.parametrize(
    "damage", [{"colour": 1}, {"purpose": "play"}, {"candidate": {}}, {"measurement": {"rail": "x"}}]
)
def test_a_damaged_record_is_an_error(damage: dict[str, object]) -> None:
    with pytest.raises(MeasurementError, match="trial from a record"):
        Trial.from_dict({**trial(GOOD).to_dict(), **damage})
