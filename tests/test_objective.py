"""Costs and power as sums of logarithms."""

from __future__ import annotations

import math

import pytest

from jouletune.objective import LogSum, Objective, cost_sum, power_sum
from jouletune.space import Variant

E_J, L_S = 0.25, 0.016
VARIANT = Variant(batch=4, instances=2)
BACK_TO_BACK_HZ = 8 / L_S  # two instances, four items in each request


@pytest.mark.parametrize("objective", list(Objective))
def test_the_sum_of_logarithms_is_the_cost_of_a_window(objective: Objective) -> None:
    cost = objective.cost(E_J, L_S, BACK_TO_BACK_HZ)
    assert math.exp(cost_sum(objective, VARIANT).at(math.log(E_J), math.log(L_S))) == pytest.approx(cost)


def test_costs_are_joules_joule_seconds_and_seconds() -> None:
    costs = [objective.cost(E_J, L_S, BACK_TO_BACK_HZ) for objective in Objective]
    assert costs == pytest.approx([0.25, 0.004, 0.002])
    assert [objective.unit for objective in Objective] == ["J", "J s", "s"]


def test_power_is_energy_times_inferences_a_second_whatever_the_arrival() -> None:
    logs = math.log(E_J), math.log(L_S)
    assert math.exp(power_sum(VARIANT, None).at(*logs)) == pytest.approx(E_J * BACK_TO_BACK_HZ)
    assert math.exp(power_sum(VARIANT, 30.0).at(*logs)) == pytest.approx(E_J * 30.0 * 4)


def test_the_variance_of_a_sum_counts_what_both_parts_share() -> None:
    # energy = latency + power with independent variances 1 and 2: power = energy - latency has variance 2
    assert LogSum(1.0, -1.0).variance(3.0, 1.0, 1.0) == pytest.approx(2.0)
    assert LogSum(1.0, 1.0).variance(3.0, 1.0, 1.0) == pytest.approx(6.0)


def test_errors_of_a_window_are_those_of_what_its_cost_is_made_of() -> None:
    assert [o.se_ratio(0.03, 0.04) for o in Objective] == pytest.approx([0.03, 0.05, 0.0])
    assert [o.sensor_ratio(0.01) for o in Objective] == [0.01, 0.01, 0.0]
