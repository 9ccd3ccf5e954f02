"""How honest are intervals and decisions on an array-level model of three INA3221 rails? No board, no driver.

`python bench/decisions_model.py [--runs N] [--seed N]` prints coverage, half-width and decision rates at 12 W and
25 W. The same questions, asked of the virtual board through the real driver, are in bench/decisions.py.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jouletune.decision import Decision, Finals, FinalsWindow, Outcome, ReasonCode, decide
from jouletune.latency import Clustering
from jouletune.measurement import (
    Between,
    Completions,
    Floats,
    Measurement,
    PowerTrace,
    RailTrace,
    Replicate,
    between_spread,
    measure,
    pilot,
    window_length_s,
)

AVERAGING_S = 0.43
PERIOD_S = 0.2
CURRENT_STEP_A = 0.02
VOLTAGE_STEP_V = 0.008
PILOT_S = 10.0


@dataclass(frozen=True, slots=True)
class Board:
    """Bus voltage of the two supply-side rails, and what the model's windows scatter by."""

    supply_v: float
    between_ratio: float
    rate_hz: float = 30.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One power mode: true mean watts of VDD_GPU_SOC, VDD_CPU_CV and VIN_SYS_5V0, and their ripple ratios."""

    rails_w: tuple[float, float, float]
    ripple_ratios: tuple[float, float, float]

    @property
    def power_w(self) -> float:
        return sum(self.rails_w)


def draw_board(rng: np.random.Generator, *, supply_v: float | None = None, between_ratio: float | None = None) -> Board:
    """A supply of 8 to 20 V and a window-to-window spread of 0.2 to 0.8 %, unless given."""
    volts = rng.uniform(8.0, 20.0) if supply_v is None else supply_v
    return Board(volts, rng.uniform(0.002, 0.008) if between_ratio is None else between_ratio)


def draw_arm(rng: np.random.Generator, power_w: float) -> Arm:
    """Random split (GPU 30 to 55 %, 5 V rail 20 to 35 %), each rail's ripple 0 to 3 % at the scale of 430 ms."""
    gpu, system = rng.uniform(0.30, 0.55), rng.uniform(0.20, 0.35)
    shares = (gpu, 1.0 - gpu - system, system)
    ripple = rng.uniform(0.0, 0.03, 3)
    return Arm(
        (power_w * shares[0], power_w * shares[1], power_w * shares[2]),
        (float(ripple[0]), float(ripple[1]), float(ripple[2])),
    )


def record(
    rng: np.random.Generator, board: Board, arm: Arm, length_s: float, *, factor: float = 1.0
) -> tuple[PowerTrace, Completions]:
    """Samples and completions of `length_s` seconds plus a second beyond either edge; time starts at 0."""
    t_s: Floats = np.arange(0.0, length_s + 2.0, PERIOD_S, dtype=np.float64) + rng.uniform(0.0, 0.01)
    conversion = ((t_s + rng.uniform(0.0, AVERAGING_S)) / AVERAGING_S).astype(int)
    rails = []
    for name, watts, ripple, volts in zip(
        ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
        arm.rails_w,
        arm.ripple_ratios,
        (board.supply_v, board.supply_v, 4.968),
        strict=True,
    ):
        true_a = watts * factor / volts * (1.0 + ripple * _rippling(rng, int(conversion[-1]) + 1))
        seen_a = np.round(true_a[conversion] / CURRENT_STEP_A) * CURRENT_STEP_A
        seen_v = np.full(t_s.size, round(volts / VOLTAGE_STEP_V) * VOLTAGE_STEP_V)
        rails.append(RailTrace(name, seen_v, seen_a, VOLTAGE_STEP_V, CURRENT_STEP_A))
    ends_s: Floats = np.arange(0.0, length_s + 2.0, 1.0 / board.rate_hz, dtype=np.float64)
    begin_s: Floats = ends_s - 0.02
    return PowerTrace(t_s, tuple(rails), AVERAGING_S, PERIOD_S), Completions(begin_s, begin_s, ends_s)


def _rippling(rng: np.random.Generator, count: int) -> Floats:
    """Unit ripple of successive sensor averages; neighbours correlate by 0.3, as on the virtual board."""
    shocks = rng.standard_normal(count)
    ripple: Floats = np.empty(count, dtype=np.float64)
    last = shocks[0]
    for position in range(count):
        last = 0.3 * last + math.sqrt(1.0 - 0.3**2) * shocks[position] if position else last
        ripple[position] = last
    return ripple


def measure_arm(rng: np.random.Generator, board: Board, arm: Arm, between: Between) -> Measurement:
    """One window as the driver takes it: pilot, length, window; the mode's windows scatter by the board's spread."""
    factor = float(np.exp(rng.normal(0.0, board.between_ratio)))
    first = pilot(*record(rng, board, arm, PILOT_S, factor=factor), 1.0, 1.0 + PILOT_S)
    length_s = window_length_s(
        first, error_target=0.005, min_s=16.0, max_s=60.0, percentile=95.0, clustering=Clustering()
    )
    trace, completions = record(rng, board, arm, length_s, factor=factor)
    return measure(
        trace, completions, 1.0, 1.0 + length_s, percentile=95.0, clustering=Clustering(), between=between, bound_s=0.03
    )


def final_window(measurement: Measurement) -> FinalsWindow:
    return FinalsWindow(
        log_energy=float(np.log(measurement.energy_j)),
        se_ratio=measurement.repeat_se_j / measurement.energy_j,
        sensor_ratio=measurement.sensor_se_j / measurement.energy_j,
        requests=measurement.latency_samples,
        over_bound=measurement.over_bound,
        design=measurement.latency_design,
    )


def interval_run(rng: np.random.Generator, board: Board, arm: Arm) -> tuple[bool, float]:
    """Whether a search window's 95 % interval holds the truth, and its half-width relative to it."""
    measurement = measure_arm(rng, board, arm, Between())
    low_j, high_j = measurement.interval()
    true_j = arm.power_w / board.rate_hz
    return low_j <= true_j <= high_j, (high_j - low_j) / 2.0 / true_j


def finals_run(rng: np.random.Generator, board: Board, savings: tuple[float, ...], power_w: float) -> Decision:
    """Reference, contenders with the given true savings; the job before gave three windows of the reference."""
    reference = draw_arm(rng, power_w)
    arms = {0: reference}
    for index, saving in enumerate(savings, start=1):
        arms[index] = draw_arm(rng, power_w * (1.0 - saving))
    replicates = [measure_arm(rng, board, reference, Between()) for _ in range(3)]
    between = between_spread([[Replicate(float(np.log(m.energy_j)), m.repeat_se_j / m.energy_j) for m in replicates]])
    finals = Finals(range(1, len(arms)), reference=0, incumbent=0, between_ratio=between.ratio, between_dof=between.dof)
    order = random.Random(int(rng.integers(2**31)))
    while block := finals.next_block(order):
        for arm in block:
            finals.add(arm, final_window(measure_arm(rng, board, arms[arm], between)))
    return decide(finals, ended=ReasonCode.BUDGET)


def interval_rates(rng: np.random.Generator, boards: Sequence[Board], power_w: float) -> tuple[float, float]:
    """Share of intervals that hold the truth, and their mean relative half-width."""
    results = [interval_run(rng, board, draw_arm(rng, power_w)) for board in boards]
    return float(np.mean([hit for hit, _ in results])), float(np.mean([half for _, half in results]))


def finals_rates(
    rng: np.random.Generator, boards: Sequence[Board], savings: tuple[float, ...], power_w: float
) -> tuple[float, float]:
    """Share of finals that end in `tuned`, and whose interval of the best contender's energy holds the truth."""
    decisions = [finals_run(rng, board, savings, power_w) for board in boards]
    tuned = [decision.outcome is Outcome.TUNED for decision in decisions]
    return float(np.mean(tuned)), float(np.mean([_holds(decision, savings) for decision in decisions]))


def _holds(decision: Decision, savings: tuple[float, ...]) -> bool:
    if decision.gain is None or decision.best is None:
        return True
    return decision.gain.lower <= 1.0 - savings[decision.best - 1] <= decision.gain.upper


def report(runs: int, seed: int, supply_v: float | None, between_ratio: float | None) -> None:
    for power_w in (12.0, 25.0):
        rng = np.random.default_rng((seed, int(power_w)))
        boards = [draw_board(rng, supply_v=supply_v, between_ratio=between_ratio) for _ in range(runs)]
        held, half = interval_rates(rng, boards, power_w)
        print(f"{power_w:g} W: interval holds the truth in {100 * held:.1f} %, mean half-width {100 * half:.2f} %")
        for savings in ((0.02, 0.02), (0.02, 0.0), (0.06, 0.04), (0.06, 0.06)):
            tuned, held = finals_rates(rng, boards, savings, power_w)
            print(f"  true savings {savings}: tuned in {100 * tuned:.1f} %, interval holds in {100 * held:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--supply-v", type=float, help="fix the bus voltage of the two supply-side rails")
    parser.add_argument("--between-ratio", type=float, help="fix the true spread between windows of one mode")
    given = parser.parse_args()
    report(given.runs, given.seed, given.supply_v, given.between_ratio)


if __name__ == "__main__":
    main()
