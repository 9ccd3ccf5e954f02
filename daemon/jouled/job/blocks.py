"""The finals on the board: blocks of windows, each arm once a block, until jouletune's Finals has seen enough."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jouled.board.apply import ClocksPolicy
from jouled.job.trials import Trials
from jouletune.finals import Finals, FinalsWindow, Loss
from jouletune.trial import Infeasible, Purpose, Trial


@dataclass(frozen=True, slots=True)
class Arm:
    """What one arm of the finals applies and runs, and how long its windows are (None: a pilot decides)."""

    index: int
    policy: ClocksPolicy
    window_s: float | None = None


def run_blocks(
    trials: Trials,
    finals: Finals,
    arms: Mapping[int, Arm],
    draw: random.Random,
    has_time: Callable[[Arm], bool],
) -> bool:
    """Run the finals to their end; False: the time was up before. Raises what Trials.run raises."""
    while block := finals.next_block(draw):
        for number in block:
            arm = arms[number]
            if not has_time(arm):
                return False
            is_yardstick = number in (finals.reference, finals.incumbent)
            trial = trials.run(arm.index, Purpose.FINALS, arm.policy, window_s=arm.window_s, may_cut=not is_yardstick)
            _tell(finals, number, trial)
    return True


def _tell(finals: Finals, number: int, trial: Trial) -> None:
    if trial.invalid is not None:
        finals.add_invalid(number, trial.invalid.value)
        return
    window = trial.measurement
    if window is None:
        finals.add_infeasible(number)
        return
    other = trial.infeasible if trial.infeasible is not Infeasible.LATENCY else None
    finals.add(
        number,
        FinalsWindow(
            log_energy=math.log(window.energy_j),
            se_ratio=window.repeat_se_j / window.energy_j,
            sensor_ratio=window.sensor_se_j / window.energy_j,
            requests=window.latency_samples,
            over_bound=window.over_bound,
            design=window.latency_design,
            loss=None if other is None else Loss(other.value),
            log_latency=math.log(window.latency_s),
            latency_se_ratio=window.latency_se_s / window.latency_s,
            log_throughput=math.log(window.throughput_hz),
        ),
    )
