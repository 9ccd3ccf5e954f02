"""What a sampler is worth in whole jobs: on the virtual AGX Orin, with real windows, errors, finals and decision.

    python -m bench.search_virtual [--samplers joule,tpe,descent,grid] [--seeds 200] [--ratio 1.2] [--rate-hz 30]
                                   [--json FILE]

Each job is the product's own with its default configuration and a bound of ratio x the board's own mode, on a fresh
virtual board whose noise has the job's seed. Judged by the plant's long run: attainable is the saving of the least
energy among the grid's modes within the bound; kept is what share of it the mode in force at the end saves (0 where
the board's own mode stayed); slow counts winners over 1.005 x bound. `grid` tries modes in order, the slowest first:
with the default budget it would find nothing, so it gets a budget and a time for the whole grid, and a twentieth of
the seeds; `tpe` and `descent` get three quarters of them. The board's programs run in this process. A FILE that is
there is added to: samplers that were not asked for stay in it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded, as in bench.search

from jouled.board.board import discover
from jouled.board.grid import board_space
from jouled.config import Config, load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.space import PowerMode

WHOLE = "grid"
WHOLE_KEYS: Mapping[str, object] = {"job.budget": 130, "job.max_duration_s": 20_000.0}
SHARES = {"joule": 1.0, "tpe": 0.75, "descent": 0.75, WHOLE: 0.05}  # of the seeds: all in a quarter of an hour
VIOLATED = 1.005
PERCENTILE = 95.0
_RUN_OF_NUMBERS = re.compile(r"\[\s+[^\[\]{}]*\]")  # a job a line
_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class Setting:
    """On which board, with which work and bound."""

    board: str = "agx-orin-64gb"
    workload: str = "yolov8s-640"
    ratio: float = 1.2
    rate_hz: float | None = None
    modes: int = 96

    @property
    def arrival(self) -> Arrival:
        return Arrival() if self.rate_hz is None else Arrival("rate", self.rate_hz)

    def config(self, keys: Mapping[str, object]) -> Config:
        return load(None, {"target.latency_bound_ratio": self.ratio, "grid.size": self.modes, **keys})

    def machine(self, folder: Path, seed: int) -> VirtualMachine:
        return VirtualMachine(
            folder / "board", board=self.board, workload=self.workload, programs="in_process", seed=seed
        )


@dataclass(frozen=True)
class Plan:
    """What the plant's long run says of each mode of the grid: (joules, latency at the percentile)."""

    modes: Mapping[PowerMode, tuple[float, float]]
    reference: PowerMode
    bound_s: float

    @property
    def attainable(self) -> float:
        return max(self.saving(mode) for mode, (_, latency_s) in self.modes.items() if latency_s <= self.bound_s)

    def saving(self, mode: PowerMode) -> float:
        """Of the reference's energy."""
        return 1.0 - self.modes[mode][0] / self.modes[self.reference][0]


@dataclass(frozen=True)
class Job:
    """One job and what it was worth."""

    sampler: str
    seed: int
    outcome: str
    kept: float
    latency_ratio: float
    windows: int
    disturbed_s: float
    took_s: float


def truth(setting: Setting) -> Plan:
    """Of every mode that a job may choose."""
    with TemporaryDirectory(dir=_PLACE) as folder:
        machine = setting.machine(Path(folder), 0)
        space = board_space(discover(machine.host(Path(folder))), setting.config({}).grid)
        modes = {}
        for candidate in space.candidates:
            found = machine.truth(candidate.mode, "capped", setting.arrival)
            modes[candidate.mode] = found.energy_j, found.latency_s(PERCENTILE)
    reference = space.candidates[space.reference].mode
    return Plan(modes, reference, setting.ratio * modes[reference][1])


def in_force(result: JobResult, plan: Plan) -> PowerMode:
    """The winner's mode; the reference's without one, and where it was rolled back."""
    if result.winner is None or not result.applied:
        return plan.reference
    return result.winner.candidate.mode


def run(setting: Setting, plan: Plan, sampler: str, seed: int) -> Job:
    """One whole job on a fresh board."""
    began_s = time.process_time()
    keys = {"job.sampler": sampler, **(WHOLE_KEYS if sampler == WHOLE else {})}
    config = setting.config(keys)
    with TemporaryDirectory(dir=_PLACE) as name:
        folder = Path(name)
        machine = setting.machine(folder, seed)
        request = Request(
            config, f"virtual:{setting.workload}", lambda board: board_space(board, config.grid), seed=seed
        )
        runner = VirtualRunner(machine, setting.arrival)
        result = run_job(machine.host(folder), request, runner, cancellation=Cancellation())
    mode = in_force(result, plan)
    return Job(
        sampler,
        seed,
        result.outcome,
        kept=plan.saving(mode) / plan.attainable,
        latency_ratio=plan.modes[mode][1] / plan.bound_s,
        windows=result.measurements,
        disturbed_s=result.disturbed_s,
        took_s=time.process_time() - began_s,
    )


def jobs(setting: Setting, plan: Plan, samplers: Sequence[str], seeds: int) -> Iterator[Job]:
    """All of one sampler, then the next."""
    for sampler in samplers:
        for seed in range(math.ceil(SHARES.get(sampler, 1.0) * seeds)):
            yield run(setting, plan, sampler, seed)


HEADER = (
    "sampler   jobs  tuned  saving kept, %: median   p10  worst  disturbed_s: median    p90  windows  slow"
    "  processor s a job"
)


def tenth(values: Sequence[float], share: float = 0.1) -> float:
    """The value below which this share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def summary(done: Sequence[Job]) -> dict[str, float]:
    """The figures of one sampler."""
    kept, disturbed_s = [one.kept for one in done], [one.disturbed_s for one in done]
    return {
        "jobs": len(done),
        "tuned": sum(one.outcome == "tuned" for one in done),
        "kept_median": statistics.median(kept),
        "kept_p10": tenth(kept),
        "kept_worst": min(kept),
        "disturbed_median_s": statistics.median(disturbed_s),
        "disturbed_p90_s": tenth(disturbed_s, 0.9),
        "windows_mean": statistics.mean(one.windows for one in done),
        "slow": sum(one.latency_ratio > VIOLATED for one in done),
        "took_mean_s": statistics.mean(one.took_s for one in done),
    }


def line(sampler: str, done: Sequence[Job]) -> str:
    """One line of the result."""
    found = summary(done)
    return (
        f"{sampler:8} {found['jobs']:5.0f} {found['tuned']:6.0f} {100 * found['kept_median']:23.1f}"
        f" {100 * found['kept_p10']:5.1f}  {100 * found['kept_worst']:5.1f} {found['disturbed_median_s']:20.0f}"
        f"  {found['disturbed_p90_s']:5.0f}  {found['windows_mean']:7.1f}  {found['slow']:4.0f}"
        f"  {found['took_mean_s']:17.2f}"
    )


def keep(path: Path, setting: Setting, plan: Plan, by_sampler: Mapping[str, Sequence[Job]]) -> None:
    """Write the file, with what it has of other samplers. Raises ValueError where it is of another setting."""
    samplers: dict[str, object] = {}
    if path.exists():
        before = json.loads(path.read_text())
        if before["setting"] != asdict(setting):
            raise ValueError(f"{path}: holds {before['setting']}, wanted {asdict(setting)}")
        samplers |= before["samplers"]
    marks = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "optuna")},
    }
    for name, done in by_sampler.items():
        each = [[one.seed, one.outcome, round(one.kept, 4), round(one.latency_ratio, 4), one.windows] for one in done]
        rows = [[*row, round(one.disturbed_s, 1)] for row, one in zip(each, done, strict=True)]
        samplers[name] = {**marks, "summary": summary(done), "jobs": rows}
    found = {
        "schema": "jouled.search_virtual/1",
        "setting": asdict(setting),
        "attainable_saving": plan.attainable,
        "columns": ["seed", "outcome", "kept", "latency_ratio", "windows", "disturbed_s"],
        "samplers": samplers,
    }
    path.write_text(_RUN_OF_NUMBERS.sub(lambda run: " ".join(run[0].split()), json.dumps(found, indent=1)) + "\n")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samplers", default="joule,tpe,descent,grid")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--ratio", type=float, default=1.2)
    parser.add_argument("--rate-hz", type=float, help="requests a second; without it back to back")
    parser.add_argument("--board", default="agx-orin-64gb")
    parser.add_argument("--workload", default="yolov8s-640")
    parser.add_argument("--modes", type=int, default=96, help="size of the grid")
    parser.add_argument("--json", type=Path, help="write every job there")
    options = parser.parse_args(arguments)
    setting = Setting(options.board, options.workload, options.ratio, options.rate_hz, options.modes)
    plan = truth(setting)
    how = "back to back" if setting.rate_hz is None else f"at {setting.rate_hz:g} requests a second"
    print(
        f"{setting.board}, {setting.workload} {how}, {len(plan.modes)} modes, bound {setting.ratio:g} x the board's "
        f"own: {100 * plan.attainable:.2f} % can be saved"
    )
    print(HEADER, flush=True)
    by_sampler: dict[str, list[Job]] = {}
    every = jobs(setting, plan, options.samplers.split(","), options.seeds)
    for sampler, group in groupby(every, lambda one: one.sampler):
        by_sampler[sampler] = list(group)
        print(line(sampler, by_sampler[sampler]), flush=True)
    if options.json:
        keep(options.json, setting, plan, by_sampler)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
