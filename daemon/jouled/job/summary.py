"""A job's result filled in: what was asked, what it stands on, each candidate's numbers over all its windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jouled import __version__
from jouled.board.apply import ClocksPolicy
from jouled.config import Config
from jouled.config.kinds import toml
from jouled.job.account import Account
from jouled.job.blocks import Arm
from jouled.job.ground import Ground
from jouled.job.lastround import Finding
from jouled.job.request import Request
from jouled.job.result import JobResult, Side
from jouled.job.trials import Trials
from jouled.workload.runner import Arrival
from jouletune.latency import percentile_bounds
from jouletune.measurement import Measurement
from jouletune.objective import Objective
from jouletune.quantiles import combined_dof, student_quantile
from jouletune.trial import Purpose, Trial


def counted(trials: Sequence[Trial]) -> list[Measurement]:
    """The windows of one candidate that energy and power are taken from: the finals' where there are any.

    The search's own are biased, since the least of many noisy values was chosen.
    """
    measured = [trial for trial in trials if trial.measurement is not None]
    finals = [trial for trial in measured if trial.purpose is Purpose.FINALS]
    return [trial.measurement for trial in finals or measured if trial.measurement is not None]


def mean_energy_j(windows: Sequence[Measurement]) -> float:
    """Of one candidate: the geometric mean, as the decision compares ratios."""
    return math.exp(fmean(math.log(window.energy_j) for window in windows))


def side_of(
    trials: Sequence[Trial], latencies_s: Sequence[NDArray[np.float64]], *, percentile: float, design: float
) -> Side | None:
    """The numbers of one candidate under one policy from its valid `trials`; None where there are none.

    Energy and power come from the windows that are `counted`. `latencies_s` are those of all its windows; the
    percentile is the pooled one.
    """
    measured = [trial for trial in trials if trial.measurement is not None]
    if not measured:
        return None
    windows = counted(measured)
    energy_j = mean_energy_j(windows)
    se_ratio, interval = energy_error(windows)
    bounds = percentile_bounds(np.concatenate(latencies_s), percentile, design)
    return Side(
        candidate=measured[0].candidate,
        policy=measured[0].policy,
        energy_j=energy_j,
        energy_se_j=se_ratio * energy_j,
        energy_interval_j=(energy_j * (1 - interval), energy_j * (1 + interval)),
        latency_s=bounds.latency_s,
        latency_upper_s=bounds.upper_s,
        latency_samples=bounds.samples,
        power_w=fmean(window.power_w for window in windows),
        throughput_hz=fmean(window.throughput_hz for window in windows),
        windows=len(measured),
    )


def error_parts(windows: Sequence[Measurement]) -> tuple[float, float, float]:
    """Relative variances of the mean by their source (repeat, between windows, sensor); the sensor's stays whole."""
    count = len(windows)
    repeat = fmean((window.repeat_se_j / window.energy_j) ** 2 for window in windows) / count
    between = fmean((window.between_se_j / window.energy_j) ** 2 for window in windows) / count
    sensor = fmean((window.sensor_se_j / window.energy_j) ** 2 for window in windows)
    return repeat, between, sensor


def energy_error(windows: Sequence[Measurement]) -> tuple[float, float]:
    """Relative standard error of the mean and half width of its 95 % interval."""
    repeat, between, sensor = error_parts(windows)
    dof = combined_dof(
        (repeat, sum(window.repeat_dof for window in windows)),
        (between, windows[-1].between_dof),
        (sensor, math.inf),
    )
    se_ratio = math.sqrt(repeat + between + sensor)
    return se_ratio, student_quantile(0.975, dof) * se_ratio


def describe_request(result: JobResult, request: Request, arrival: Arrival) -> None:
    """What was asked for."""
    config = request.config
    result.workload = request.workload
    result.arrival = str(arrival)
    result.clocks = config.grid.clocks
    result.latency_percentile = config.target.latency_percentile
    result.objective = request.objective.value
    result.max_power_w = config.target.max_power_w
    result.risk = config.job.risk
    result.seed = request.seed
    result.versions = {"jouled": __version__, **{name: version(name) for name in ("optuna", "numpy", "scipy")}}


def describe_ground(result: JobResult, ground: Ground) -> None:
    """What the job stands on."""
    result.board = ground.name
    result.base_mode = ground.base_mode
    result.rail = ground.meter.rail
    result.rail_coverage = ground.meter.coverage
    result.grid_size = len(ground.space)
    result.versions |= ground.versions


def settings_given(config: Config) -> list[list[str]]:
    """Key, value as TOML and origin of all that a job follows and that is no default, for whoever does it again."""
    tables = ("target.", "workload.", "board.", "grid.", "job.", f"workloads.{config.workload.default}.")
    given = [(key, value) for key, value in config.values.items() if config.origin(key) != "default"]
    return [[key, toml(value), config.origin(key)] for key, value in given if key.startswith(tables)]


def announcement(request: Request, ground: Ground, arrival: str | None, wall_s: float) -> dict[str, Any]:
    """What is said before the first knob is touched."""
    job = request.config.job
    return {
        "board": ground.name,
        "base_mode": ground.base_mode,
        "rail": ground.meter.rail,
        "rail_coverage": ground.meter.coverage,
        "meter_why": ground.meter_why,
        "grid_size": len(ground.space),
        "axes": {axis.name: axis.values for axis in ground.space.axes},
        "workload": request.workload,
        "arrival": arrival,
        "objective": request.objective.value,
        "sampler": job.sampler,
        "budget": job.budget,
        "expected_s": request.expected_s(len(ground.space)),
        "wall_s": wall_s,
        "seed": request.seed,
    }


def _side(trials: Trials, arm: Arm) -> Side | None:
    account = trials.account
    key = (arm.index, arm.policy.value)
    return side_of(
        account.valid(*key),
        account.latencies_s.get(key, []),
        percentile=trials.percentile,
        design=account.clustering.design,
    )


def fill_reference(result: JobResult, trials: Trials) -> None:
    """The reference, as far as it was measured."""
    result.reference = _side(trials, Arm(trials.space.reference, ClocksPolicy.CAPPED))
    result.latency_bound_s = trials.limits.bound_s


def fill_sides(result: JobResult, trials: Trials, finding: Finding) -> None:
    """All sides of the decision, and what was decided on."""
    decision = finding.decision
    result.incumbent = _side(trials, finding.incumbent)
    result.winner = None if decision.winner is None else _side(trials, finding.arms[decision.winner])
    best = finding.best_seen if decision.best is None else finding.arms[decision.best]
    result.best_seen = None if best is None else _side(trials, best)
    result.saving_ratio = decision.saving_ratio
    result.saving_interval = decision.saving_interval
    result.gain_ratio = decision.gain_ratio
    result.gain_interval = decision.gain_interval


def fill_best(result: JobResult, trials: Trials) -> None:
    """Where no decision was reached: the feasible candidate of least cost so far."""
    found = {(trial.index, trial.policy): trial for trial in trials.account.valid() if trial.infeasible is None}
    sides = [_side(trials, Arm(index, ClocksPolicy(policy))) for index, policy in found]
    known = [side for side in sides if side is not None]
    objective = Objective(result.objective or Objective.ENERGY)
    result.best_seen = min(known, key=lambda side: side.cost(objective), default=None)


def fill_counts(result: JobResult, account: Account) -> None:
    """How much was measured, and how much of it was thrown away."""
    result.trials = len({(trial.index, trial.policy) for trial in account.trials})
    result.measurements = len(account.trials)
    result.invalid = dict(account.invalid)
    result.disturbed_s = account.disturbed_s
