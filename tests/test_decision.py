"""Who meets whom in the finals, when they end, and what is decided from them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from jouletune.decision import (
    Decision,
    Finals,
    FinalsWindow,
    Loss,
    Objective,
    Outcome,
    ReasonCode,
    decide,
    stopped,
)
from jouletune.errors import DecisionError
from jouletune.trial import Infeasible, Invalid

REFERENCE = 0


def window(log_energy: float, *, sensor: float = 0.001, over_bound: int = 0, loss: Loss | None = None) -> FinalsWindow:
    return FinalsWindow(log_energy, 0.002, sensor, requests=500, over_bound=over_bound, loss=loss)


def play(
    finals: Finals,
    energies: Mapping[int, float],
    *,
    noise: float = 0.0,
    seed: int = 1,
    sensor: float = 0.001,
    over_bound: Mapping[int, int] | None = None,
    drift: float = 0.0,
) -> Decision:
    rng, order = np.random.default_rng(seed), random.Random(seed)
    taken = 0
    while block := finals.next_block(order):
        for arm in block:
            taken += 1
            log_energy = math.log(energies[arm]) + rng.normal(0.0, noise) + drift * finals.blocks
            finals.add(arm, window(log_energy, sensor=sensor, over_bound=(over_bound or {}).get(arm, 0)))
    assert taken <= finals.max_windows
    return decide(finals, ended=ReasonCode.CONVERGED)


def test_a_clear_saving_is_tuned_after_three_blocks() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    decision = play(finals, {0: 1.0, 1: 0.90, 2: 0.93}, noise=0.003)
    assert (decision.outcome, decision.winner, decision.code) == (Outcome.TUNED, 1, ReasonCode.CONVERGED)
    assert finals.blocks == 3
    assert decision.saving_ratio == pytest.approx(0.10, abs=0.01)
    assert decision.saving_interval is not None
    assert decision.saving_interval[0] < 0.10 < decision.saving_interval[1]


def test_a_saving_of_less_than_min_gain_stays_with_the_incumbent() -> None:
    decision = play(Finals([1, 2], reference=0, incumbent=0), {0: 1.0, 1: 0.99, 2: 0.995}, noise=0.003)
    assert (decision.outcome, decision.winner, decision.best) == (Outcome.NO_GAIN, None, 1)
    assert decision.saving_ratio == pytest.approx(0.01, abs=0.006)


def test_drift_between_blocks_falls_out() -> None:
    decision = play(Finals([1], reference=0, incumbent=0), {0: 1.0, 1: 0.92}, drift=0.05)
    assert decision.outcome is Outcome.TUNED
    assert decision.saving_ratio == pytest.approx(0.08, abs=1e-9)


def test_the_interval_is_the_pooled_one_with_both_sensors() -> None:
    """Closed form for two arms and six blocks without any scatter but the prior's."""
    finals = Finals([1], reference=0, incumbent=0, min_gain=0.2)
    order = random.Random(1)
    for _ in range(3):
        for arm in finals.next_block(order):
            finals.add(arm, window(0.1 * arm, sensor=0.003))
    compared = finals.compare(1, 0, 0.01)
    assert compared is not None
    repeat = 2.0 * (8 * (0.005**2 + 0.002**2)) / 10 / 3
    sensor = 2.0 * 0.003**2
    dof = (repeat + sensor) ** 2 / (repeat**2 / 10)
    half = stats.t.ppf(0.99, dof) * math.sqrt(repeat + sensor)
    assert compared.upper == pytest.approx(math.exp(0.1 + half))
    assert compared.lower == pytest.approx(math.exp(0.1 - half))
    assert compared.sensor_ratio == pytest.approx(0.003 * math.sqrt(2.0))


def test_scatter_beyond_what_was_expected_rules_alone() -> None:
    """Log-ratios of 3, 0 and -3 % leave a variance of 4.5e-4 a window on two degrees of freedom."""
    finals = Finals([1], reference=0, incumbent=0)
    order = random.Random(1)
    for shift in (0.03, 0.0, -0.03):
        for arm in finals.next_block(order):
            finals.add(arm, window(shift * arm, sensor=0.0))
    compared = finals.compare(1, 0, 0.01)
    assert compared is not None
    half = stats.t.ppf(0.99, 2) * math.sqrt(2.0 * 4.5e-4 / 3)
    assert compared.upper == pytest.approx(math.exp(half))


def test_sensor_errors_do_not_average_away() -> None:
    narrow, wide = Finals([1], reference=0, incumbent=0), Finals([1], reference=0, incumbent=0)
    energies = {0: 1.0, 1: 0.94}
    assert play(narrow, energies, sensor=0.001).outcome is Outcome.TUNED
    decision = play(wide, energies, sensor=0.015)
    assert decision.outcome is Outcome.NO_GAIN
    assert "steps of the sensor alone hide 4.2 %" in decision.text


@pytest.mark.parametrize(
    ("finalists", "incumbent", "arms", "alpha"),
    [
        ([1, 2], 0, {0, 1, 2}, 0.0125),
        ([1], 0, {0, 1}, 0.025),
        ([1, 2], 5, {0, 1, 2, 5}, 0.0125),
        ([0, 5], 5, {0, 5}, 0.025),
    ],
)
def test_arms_and_the_error_to_be_spent(finalists: list[int], incumbent: int, arms: set[int], alpha: float) -> None:
    finals = Finals(finalists, reference=0, incumbent=incumbent)
    assert set(finals.next_block(random.Random(1))) == set(finals.arms) == arms
    assert finals.alpha() == pytest.approx(alpha)


def test_error_is_spent_at_block_three_and_the_rest_at_the_last() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    spent = []
    rng, order = np.random.default_rng(3), random.Random(3)
    while block := finals.next_block(order):
        for arm in block:
            finals.add(arm, window(rng.normal(0.0, 0.004) + (-0.033 if arm else 0.0), sensor=0.0))
        spent.append(finals.alpha())
    assert len(spent) == 4
    assert finals.alpha() == pytest.approx((0.025 - 0.005) / 2)


def test_four_arms_meet_three_times_and_spend_all_at_once() -> None:
    finals = Finals([1, 2], reference=0, incumbent=5)
    decision = play(finals, {0: 1.0, 1: 0.90, 2: 0.901, 5: 0.95}, noise=0.004)
    assert finals.blocks == 3
    assert finals.alpha() == pytest.approx(0.0125)
    assert decision.outcome is Outcome.TUNED
    assert decision.saving_ratio == pytest.approx(0.10, abs=0.01)
    assert decision.gain is not None
    assert decision.gain.ratio == pytest.approx(0.90 / 0.95, abs=0.01)


def test_a_beaten_arm_leaves_and_buys_blocks_for_the_others() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    play(finals, {0: 1.0, 1: 0.971, 2: 1.10}, noise=0.006, sensor=0.0, seed=5)
    assert len(finals.windows(2)) == 2
    assert len(finals.windows(1)) == 5


def test_the_searchs_favourite_leaves_as_well_when_it_is_beaten() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    play(finals, {0: 1.0, 1: 1.10, 2: 0.971}, noise=0.006, sensor=0.0, seed=5)
    assert (len(finals.windows(1)), len(finals.windows(2))) == (2, 5)


def test_two_arms_meet_six_times_at_most() -> None:
    finals = Finals([1], reference=0, incumbent=0)
    play(finals, {0: 1.0, 1: 0.971}, noise=0.006, sensor=0.0)
    assert finals.blocks == 6


def test_where_the_sensor_rules_no_block_is_bought() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    play(finals, {0: 1.0, 1: 0.96, 2: 0.962}, noise=0.002, sensor=0.015)
    assert finals.blocks == 3
    assert finals.alpha() == pytest.approx(0.0125)


def test_hopeless_finals_end_after_block_three() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    assert play(finals, {0: 1.0, 1: 1.05, 2: 1.05}, noise=0.003, sensor=0.0).outcome is Outcome.NO_GAIN
    assert finals.blocks == 3


def test_an_infeasible_contender_leaves_and_cannot_win() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    decision = play(finals, {0: 1.0, 1: 0.85, 2: 0.90}, noise=0.003, over_bound={1: 60})
    assert len(finals.windows(1)) == 1
    assert finals.loss(1) is Loss.LATENCY
    assert (decision.outcome, decision.winner) == (Outcome.TUNED, 2)


def test_a_contender_that_is_not_shown_feasible_cannot_win() -> None:
    """4.4 % over the bound do not show that p95 is within it, nor that it is beyond."""
    finals = Finals([1], reference=0, incumbent=0)
    decision = play(finals, {0: 1.0, 1: 0.85}, noise=0.003, over_bound={1: 22})
    assert len(finals.windows(1)) >= 3
    assert (decision.outcome, decision.winner) == (Outcome.NO_GAIN, None)


def test_windows_of_an_arm_are_judged_together() -> None:
    """18 of 500 over the bound show nothing in one window; 54 of 1,500 show p95 within it."""
    finals = Finals([1], reference=0, incumbent=0)
    for arm in finals.next_block(random.Random(1)):
        finals.add(arm, window(-0.2 * arm, over_bound=18 * arm))
    assert finals.loss(1) is Loss.LATENCY
    assert play(finals, {0: 1.0, 1: 0.85}, over_bound={1: 18}).outcome is Outcome.TUNED


def test_a_cut_window_takes_its_arm_out() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    for arm in finals.next_block(random.Random(1)):
        if arm == 1:
            finals.add_infeasible(1)
        else:
            finals.add(arm, window(0.0 if arm == 0 else -0.1))
    assert set(finals.next_block(random.Random(1))) == {0, 2}


def test_an_arm_over_max_power_cannot_win() -> None:
    finals = Finals([1], reference=0, incumbent=0)
    while block := finals.next_block(random.Random(1)):
        for arm in block:
            finals.add(arm, window(-0.1 * arm, loss=Loss.MAX_POWER if arm else None))
    assert finals.loss(1) is Loss.MAX_POWER
    assert decide(finals, ended=ReasonCode.BUDGET).outcome is Outcome.NO_GAIN


def test_an_infeasible_incumbent_is_replaced_even_at_a_loss() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    decision = play(finals, {0: 1.0, 1: 1.08, 2: 1.05}, noise=0.002, over_bound={0: 100})
    assert (decision.outcome, decision.winner) == (Outcome.TUNED, 2)
    assert decision.saving_ratio == pytest.approx(-0.05, abs=0.01)


def test_an_infeasible_earlier_winner_may_give_way_to_the_reference() -> None:
    finals = Finals([1], reference=0, incumbent=5)
    decision = play(finals, {0: 1.0, 1: 1.1, 5: 0.8}, noise=0.002, over_bound={5: 100})
    assert (decision.outcome, decision.winner, decision.saving_ratio) == (Outcome.TUNED, 0, 0.0)


@pytest.mark.parametrize(("incumbent", "use_reference"), [(0, False), (5, True)])
def test_nobody_feasible_is_no_feasible(incumbent: int, use_reference: bool) -> None:
    finals = Finals([1], reference=0, incumbent=incumbent)
    decision = play(finals, {0: 1.0, 1: 0.9, 5: 0.8}, over_bound={0: 100, 1: 100, 5: 100})
    assert (decision.outcome, decision.winner, decision.use_reference) == (Outcome.NO_FEASIBLE, None, use_reference)


def test_nobody_within_max_power_is_no_feasible_for_that_reason() -> None:
    finals = Finals([1], reference=0, incumbent=0, percentile=None)
    while block := finals.next_block(random.Random(1)):
        for arm in block:
            finals.add(arm, window(0.0, loss=Loss.MAX_POWER))
    decision = decide(finals, ended=ReasonCode.BUDGET)
    assert (decision.outcome, decision.code) == (Outcome.NO_FEASIBLE, ReasonCode.MAX_POWER)


def test_an_incumbent_right_at_the_bound_must_still_be_beaten() -> None:
    """5 % over the bound is what a bound at the reference's own p95 gives: nothing shows it infeasible."""
    finals = Finals([1], reference=0, incumbent=0)
    assert play(finals, {0: 1.0, 1: 1.02}, over_bound={0: 25}).outcome is Outcome.NO_GAIN


def test_missing_windows_leave_the_other_pairs_standing() -> None:
    finals, order = Finals([1, 2], reference=0, incumbent=0), random.Random(1)
    missing = {(1, 0), (2, 1)}
    energies = {0: 1.0, 1: 0.88, 2: 0.90}
    while block := finals.next_block(order):
        for arm in block:
            if (finals.blocks, arm) in missing:
                finals.add_invalid(arm, "throttled")
            else:
                finals.add(arm, window(math.log(energies[arm]) + 0.1 * finals.blocks))
    decision = decide(finals, ended=ReasonCode.BUDGET)
    assert finals.invalid == ("throttled", "throttled")
    assert (decision.outcome, decision.winner) == (Outcome.TUNED, 1)
    assert decision.saving_ratio == pytest.approx(0.12, abs=1e-9)


def test_an_incumbent_that_could_not_be_measured_is_unstable_for_its_reason() -> None:
    finals = Finals([1], reference=0, incumbent=0)
    while block := finals.next_block(random.Random(1)):
        for arm in block:
            if arm == 0:
                finals.add_invalid(arm, "sensor_gap")
            else:
                finals.add(arm, window(-0.1))
    decision = decide(finals, ended=ReasonCode.BUDGET)
    assert (decision.outcome, decision.code) == (Outcome.UNSTABLE, ReasonCode.SENSOR_GAP)


def test_finals_that_never_began_change_nothing() -> None:
    decision = decide(Finals([1], reference=0, incumbent=0), ended=ReasonCode.TIME)
    assert (decision.outcome, decision.code, decision.winner) == (Outcome.NO_GAIN, ReasonCode.TIME, None)


def test_no_contender_means_no_finals() -> None:
    finals = Finals([0], reference=0, incumbent=0)
    assert finals.next_block(random.Random(1)) == ()
    assert decide(finals, ended=ReasonCode.CONVERGED).outcome is Outcome.NO_GAIN


def test_one_pair_of_windows_decides_nothing() -> None:
    finals = Finals([1], reference=0, incumbent=0)
    for arm in finals.next_block(random.Random(1)):
        finals.add(arm, window(-0.5 * arm))
    assert decide(finals, ended=ReasonCode.TIME).outcome is Outcome.NO_GAIN


def test_a_block_is_told_whole_and_each_arm_once() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    first, *_ = finals.next_block(random.Random(1))
    finals.add(first, window(0.0))
    with pytest.raises(DecisionError, match="still waits for arms"):
        finals.next_block(random.Random(1))
    with pytest.raises(DecisionError, match=f"got arm {first}"):
        finals.add(first, window(0.0))
    with pytest.raises(DecisionError, match="got arm 9"):
        finals.add_invalid(9, "throttled")


@pytest.mark.parametrize(
    "bad", [FinalsWindow(math.nan, 0.0, 0.0), FinalsWindow(0.0, -1.0, 0.0), FinalsWindow(-math.inf, 0.1, 0.0)]
)
def test_a_window_that_is_no_number_is_refused(bad: FinalsWindow) -> None:
    finals = Finals([1], reference=0, incumbent=0)
    arm, *_ = finals.next_block(random.Random(1))
    with pytest.raises(DecisionError, match="wanted finite numbers"):
        finals.add(arm, bad)


def test_three_finalists_or_a_gain_of_all_are_refused() -> None:
    with pytest.raises(DecisionError, match="two finalists at most"):
        Finals([1, 2, 3], reference=0, incumbent=0)
    with pytest.raises(DecisionError, match=r"min_gain wanted within 0\.\.1"):
        Finals([1], reference=0, incumbent=0, min_gain=1.0)


def test_order_within_blocks_is_random_and_repeats_with_its_seed() -> None:
    def orders(seed: int) -> list[tuple[int, ...]]:
        finals, order, seen = Finals([1, 2], reference=0, incumbent=0), random.Random(seed), []
        while block := finals.next_block(order):
            seen.append(block)
            for arm in block:
                finals.add(arm, window(0.0))
        return seen

    assert orders(1) == orders(1)
    assert len({block for seed in range(20) for block in orders(seed)}) == 6


def test_every_reason_of_a_window_is_a_reason_of_a_job() -> None:
    codes = {code.value for code in ReasonCode}
    assert {reason.value for reason in Invalid} <= codes
    assert {reason.value for reason in Infeasible} <= codes
    measured = set(Infeasible) - {Infeasible.MEMORY}  # what does not fit is no arm of any finals
    assert {reason.value for reason in measured} == {loss.value for loss in Loss}


def test_a_job_without_finals_has_a_decision_too() -> None:
    decision = stopped(Outcome.NO_FEASIBLE, ReasonCode.PERCENTILE_UNREACHABLE, "p99 needs 299 requests")
    assert (decision.outcome, decision.winner, decision.saving_ratio) == (Outcome.NO_FEASIBLE, None, None)


@pytest.mark.parametrize("savings", [(0.02, 0.02), (0.02, 0.0)])
def test_a_saving_of_exactly_min_gain_is_rarely_called_tuned(savings: tuple[float, float]) -> None:
    """Repeat noise only, as the prior has it; sensors are in bench/decisions_model.py."""
    energies = {0: 1.0, 1: 1.0 - savings[0], 2: 1.0 - savings[1]}
    runs = 600
    tuned = sum(
        play(Finals([1, 2], reference=0, incumbent=0), energies, noise=0.0054, seed=seed, sensor=0.0).outcome
        is Outcome.TUNED
        for seed in range(runs)
    )
    assert tuned / runs <= 0.025 + 3.0 * math.sqrt(0.025 * 0.975 / runs)


def test_a_board_that_scatters_twice_as_much_as_expected_is_not_talked_down() -> None:
    energies = {0: 1.0, 1: 0.98, 2: 1.0}
    runs = 400
    tuned = sum(
        play(Finals([1, 2], reference=0, incumbent=0), energies, noise=0.010, seed=seed, sensor=0.0).outcome
        is Outcome.TUNED
        for seed in range(runs)
    )
    assert tuned / runs <= 0.025 + 3.0 * math.sqrt(0.025 * 0.975 / runs)


def play_with_cuts(finals: Finals, energy: dict[int, float], slow: dict[int, int]) -> list[tuple[int, ...]]:
    """Play to the end; `slow`: an arm is cut from this block on. The blocks that were asked for."""
    asked: list[tuple[int, ...]] = []
    while block := finals.next_block(random.Random(1)):
        asked.append(block)
        for arm in block:
            if arm in slow and len(asked) >= slow[arm]:
                finals.add_infeasible(arm)
            else:
                shift = 0.0005 * (len(asked) % 2)
                finals.add(arm, FinalsWindow(math.log(energy[arm]) + shift, 0.001, 0.0, requests=1000))
    return asked


def test_arm_beaten_by_one_that_then_breaks_the_bound_plays_on() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    asked = play_with_cuts(finals, {0: 1.0, 1: 0.80, 2: 0.85}, slow={1: 3})
    assert any(2 not in block for block in asked)
    decision = decide(finals, ended=ReasonCode.CONVERGED)
    assert (decision.outcome, decision.winner) == (Outcome.TUNED, 2)


def test_contenders_that_all_break_the_bound_are_known_as_lost() -> None:
    finals = Finals([1, 2], reference=0, incumbent=0)
    play_with_cuts(finals, {0: 1.0, 1: 0.80, 2: 0.85}, slow={1: 1, 2: 2})
    assert finals.all_contenders_lost
    assert finals.windows_left == 12 - 5


def measured(energy_j: float, latency_s: float, throughput_hz: float) -> FinalsWindow:
    latency, throughput = math.log(latency_s), math.log(throughput_hz)
    return FinalsWindow(math.log(energy_j), 0.001, 0.0, 500, log_latency=latency, log_throughput=throughput)


@pytest.mark.parametrize(
    ("objective", "winner", "gain", "saving", "said"),
    [
        (Objective.ENERGY, 1, 0.20, 0.20, "20.0 % less energy per inference"),
        (Objective.ENERGY_DELAY, 2, 0.145, 0.05, "14.5 % less energy x latency per inference"),
        (Objective.THROUGHPUT, 2, 1.0 - 1.0 / 1.1, 0.05, "9.1 % less time per inference"),
    ],
)
def test_what_is_minimised_decides_and_the_saving_stays_one_of_energy(
    objective: Objective, winner: int, gain: float, saving: float, said: str
) -> None:
    """Arm 1 takes least energy and is slow, arm 2 is a little better in all."""
    finals = Finals([1, 2], reference=0, incumbent=0, objective=objective)
    arms = {0: measured(1.0, 0.010, 100.0), 1: measured(0.8, 0.013, 80.0), 2: measured(0.95, 0.009, 110.0)}
    order = random.Random(1)
    while block := finals.next_block(order):
        for arm in block:
            finals.add(arm, arms[arm])
    decision = decide(finals, ended=ReasonCode.CONVERGED)
    assert (decision.outcome, decision.winner) == (Outcome.TUNED, winner)
    assert decision.gain_ratio == pytest.approx(gain)
    assert decision.saving_ratio == pytest.approx(saving)
    assert said in decision.text


def test_an_objective_without_sensor_has_no_error_of_its_steps() -> None:
    finals = Finals([1], reference=0, incumbent=0, objective=Objective.THROUGHPUT)
    order = random.Random(1)
    for _ in range(3):
        for arm in finals.next_block(order):
            finals.add(arm, FinalsWindow(0.0, 0.002, 0.05, log_throughput=0.001 * arm))
    comparison = finals.compare(1, 0)
    assert comparison is not None
    assert comparison.sensor_ratio == 0.0
    assert "steps of the sensor" not in decide(finals, ended=ReasonCode.BUDGET).text
