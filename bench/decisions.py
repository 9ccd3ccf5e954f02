"""Are the intervals honest, and the decisions? Asked of the virtual board through the product's own driver.

    python bench/decisions.py [--runs 1000] [--seed 0] [--jobs 2] [--json] [--check]

Each run draws a board (the bus voltage of the two supply-side rails from 8 to 20 V, the split of the power over three
INA3221 rails, ripple of 0 to 3 % and a window-to-window spread of 0.2 to 0.8 %) with a scripted plant whose joules per
inference are known exactly, and lets the product apply, settle, pilot, measure and play finals on it: real sysfs files,
8 mV and 20 mA steps, 430 ms averages, the latency bound and the e-process on.

Four questions, each at 12 W and at 25 W: does the 95 % interval hold the truth, and how wide is it; how often is
`tuned` said where both finalists save exactly min_gain; how often where the better one saves 6 % and the other 4 %.
Beside them the same at 19.8 V alone, where one step of a rail is 0.4 W: there the sensor's steps hide more.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import discover
from jouled.board.knobs import read_knobs
from jouled.board.rails import find_meter
from jouled.job.blocks import Arm, run_blocks
from jouled.job.cancel import Cancellation
from jouled.job.measuring import Measurer, MeasuringSettings
from jouled.job.modes import BoardModes
from jouled.job.trials import Trials
from jouled.virtual.fixed import FixedMode, FixedPlant
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.operation import Noise
from jouled.virtual.specs import Channel, board_spec, rewired
from jouled.workload.runner import Arrival
from jouletune.decision import Outcome, ReasonCode, decide
from jouletune.finals import Finals
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.trial import Limits, Purpose

GPU_HZ = (1300500000, 1020000000, 816000000)
CPU_HZ, EMC_HZ = 2201600000, 3199000000
LATENCY_S = 0.02
MIN_GAIN = 0.02
SUPPLY_V = 19.832


@dataclass(frozen=True)
class Task:
    """One run: what is asked, the board's watts, and the true savings of the finalists over the reference."""

    question: str
    power_w: float
    seed: int
    savings: tuple[float, ...]
    supply_v: float | None = None


@dataclass(frozen=True)
class Answer:
    """What came of it. Interval and half width for a measurement, `tuned` for finals."""

    question: str
    power_w: float
    fixed_supply: bool
    holds: bool | None = None
    half_width: float | None = None
    outcome: str | None = None
    windows: int = 0


def machine_of(task: Task, folder: Path) -> VirtualMachine:
    """A board drawn by the task's seed; its first mode is the reference."""
    draw = random.Random(f"{task.seed} {task.power_w}")
    gpu, system = draw.uniform(0.30, 0.55), draw.uniform(0.20, 0.35)
    supply_v = draw.uniform(8.0, 20.0) if task.supply_v is None else task.supply_v
    channels = (
        Channel("VDD_GPU_SOC", supply_v),
        Channel("VDD_CPU_CV", supply_v - 0.016),
        Channel("VIN_SYS_5V0", 4.968, droop_ohm=0.002),
    )
    spread = draw.uniform(0.002, 0.008)
    noise = Noise(ripple_sd=draw.uniform(0.0, 0.03), energy_between_sd=spread, latency_between_sd=0.002)
    energy_j = task.power_w * LATENCY_S
    levels = (1.0, *(1.0 - saving for saving in task.savings))
    modes = {
        (CPU_HZ, gpu_hz, EMC_HZ): FixedMode(energy_j * level, LATENCY_S)
        for gpu_hz, level in zip(GPU_HZ, levels, strict=False)
    }
    rails = tuple(channel.label for channel in channels)
    plant = FixedPlant(modes, rails, (gpu, 1.0 - gpu - system, system), 0.5 * task.power_w, noise)
    spec = rewired(board_spec("agx-orin-64gb"), channels)
    return VirtualMachine(folder / "board", board=spec, seed=task.seed, plant=plant, programs="in_process")


def trials_of(machine: VirtualMachine, folder: Path) -> Trials:
    """The product's own driver on that board."""
    host = machine.host(folder)
    board = discover(host)
    runner = machine.runner(Arrival())
    meter = find_meter(host.sysfs, machine.spec.total_rails)
    space = Space.of([Candidate(PowerMode(12, CPU_HZ, gpu_hz, EMC_HZ), Variant()) for gpu_hz in GPU_HZ], 0)
    measurer = Measurer(
        host,
        board.domains,
        meter,
        runner,
        MeasuringSettings(),
        cancellation=Cancellation(),
        progress=lambda phase, now_s, duration_s, seen={}: None,
    )
    trials = Trials(
        host,
        space,
        BoardModes(Actuator(host, board, read_knobs(host.sysfs, board.domains), Method.NVPMODEL), {}),
        measurer,
        runner,
        percentile=95.0,
        record=lambda trial, taken: None,
        on_applied=lambda index, policy: None,
    )
    trials.limits = Limits(bound_s=1.4 * LATENCY_S)
    return trials


def run(task: Task) -> Answer:
    """One run in a folder of its own."""
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        machine = machine_of(task, Path(name))
        trials = trials_of(machine, Path(name))
        blank = Answer(task.question, task.power_w, task.supply_v is not None)
        if task.question == "interval":
            return measured(blank, trials, truth_j=task.power_w * LATENCY_S)
        return decided(blank, trials, task.seed)


def measured(blank: Answer, trials: Trials, truth_j: float) -> Answer:
    """One measurement's 95 % interval against the plant's truth."""
    window = trials.run(0, Purpose.REFERENCE, ClocksPolicy.CAPPED).measurement
    assert window is not None
    low_j, high_j = window.interval()
    return replace(
        blank, holds=low_j <= truth_j <= high_j, half_width=(high_j - low_j) / 2 / window.energy_j, windows=1
    )


def decided(blank: Answer, trials: Trials, seed: int) -> Answer:
    """The reference and both finalists measured once, as a search would leave them, then the finals."""
    first = [trials.run(index, Purpose.SEARCH, ClocksPolicy.CAPPED).measurement for index in range(3)]
    arms = {
        index: Arm(index, ClocksPolicy.CAPPED, None if window is None else max(16.0, 1.02 * window.duration_s))
        for index, window in enumerate(first)
    }
    between = trials.account.between()
    finals = Finals(
        [1, 2],
        reference=0,
        incumbent=0,
        min_gain=MIN_GAIN,
        between_ratio=between.ratio,
        between_dof=between.dof,
    )
    run_blocks(trials, finals, arms, random.Random(seed), lambda arm: True)
    decision = decide(finals, ended=ReasonCode.CONVERGED)
    windows = sum(trial.purpose is Purpose.FINALS for trial in trials.account.trials)
    return replace(blank, outcome=decision.outcome.value, windows=windows)


# --- the tally ----------------------------------------------------------------------------------------------

QUESTIONS = {"interval": (), "exactly min_gain": (MIN_GAIN, MIN_GAIN), "6 %": (0.06, 0.04)}
# question -> (what may go wrong at most, in either direction)
LIMITS = {"interval": 0.93, "exactly min_gain": 0.025, "6 %": 0.85}
HALF_WIDTHS = {12.0: 0.035, 25.0: 0.02}


def tasks(runs: int, seed: int) -> list[Task]:
    """All runs, drawn supplies first."""
    return [
        Task(question, power_w, seed + number, savings, supply_v)
        for supply_v in (None, SUPPLY_V)
        for question, savings in QUESTIONS.items()
        for power_w in HALF_WIDTHS
        for number in range(runs if supply_v is None else max(runs // 4, 1))
    ]


def share_of(answers: list[Answer]) -> float:
    """Of intervals that hold, or of `tuned`."""
    good = [one.holds if one.holds is not None else one.outcome == Outcome.TUNED.value for one in answers]
    return sum(good) / len(good)


def groups(answers: list[Answer]) -> dict[tuple[bool, str, float], list[Answer]]:
    """By supply, question and power."""
    found: dict[tuple[bool, str, float], list[Answer]] = {}
    for one in answers:
        found.setdefault((one.fixed_supply, one.question, one.power_w), []).append(one)
    return found


def line(key: tuple[bool, str, float], answers: list[Answer]) -> str:
    """One question at one power."""
    is_fixed, question, power_w = key
    share, count = share_of(answers), len(answers)
    error = math.sqrt(max(share * (1 - share), 0.25 / count) / count)
    supply = f"{SUPPLY_V:.1f} V" if is_fixed else "8..20 V"
    text = f"{supply:8} {power_w:4.0f} W  {question:18} "
    if question == "interval":
        width = sum(one.half_width or 0.0 for one in answers) / count
        return (
            f"{text} holds the truth in {100 * share:5.1f} % (+-{100 * error:.1f}), mean half width {100 * width:.2f} %"
        )
    windows = sum(one.windows for one in answers) / count
    return f"{text} tuned in           {100 * share:5.1f} % (+-{100 * error:.1f}), {windows:.1f} windows"


def failures(found: dict[tuple[bool, str, float], list[Answer]]) -> list[str]:
    """What misses its limit, with 2.6 binomial errors granted to small numbers of runs (drawn supplies only)."""
    wrong = []
    for (is_fixed, question, power_w), answers in found.items():
        if is_fixed:
            continue
        limit, share = LIMITS[question], share_of(answers)
        slack = 2.6 * math.sqrt(limit * (1 - limit) / len(answers))
        if share > limit + slack if question == "exactly min_gain" else share < limit - slack:
            wrong.append(f"{question} at {power_w:g} W: {share:.3f}, limit {limit}")
        if question == "interval":
            width = sum(one.half_width or 0.0 for one in answers) / len(answers)
            if width > HALF_WIDTHS[power_w]:
                wrong.append(f"half width at {power_w:g} W: {width:.4f}, limit {HALF_WIDTHS[power_w]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="of each question, at each power")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="end with 1 where a limit is missed")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(run, tasks(arguments.runs, arguments.seed), chunksize=4))
    found = groups(answers)
    if arguments.json:
        print(json.dumps([asdict(one) for one in answers]))
    else:
        for key, mine in found.items():
            print(line(key, mine))
        print(f"{len(answers)} runs in {time.monotonic() - began_s:.0f} s on this machine")
    wrong = failures(found)
    for text in wrong:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if wrong and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
