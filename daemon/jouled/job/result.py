"""What a job came to: the JSON object that others build on (ARCHITECTURE section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jouletune.objective import Objective
from jouletune.space import Candidate

SCHEMA = 1

EXIT_CODES: Mapping[str, int] = {
    "tuned": 0,
    "no_gain": 0,
    "no_feasible": 3,
    "not_supported": 8,
    "workload_failed": 9,
    "board_fault": 10,
    "unstable": 11,
    "interrupted": 11,
    "rolled_back": 11,
    "board_busy": 12,
    "cancelled": 13,
}


@dataclass(frozen=True, slots=True)
class Side:
    """One candidate's numbers, over all its windows of the job."""

    candidate: Candidate
    policy: str
    energy_j: float
    energy_se_j: float
    energy_interval_j: tuple[float, float]
    latency_s: float
    latency_upper_s: float
    latency_samples: int
    power_w: float
    throughput_hz: float
    windows: int

    def cost(self, objective: Objective) -> float:
        """What is minimised."""
        return objective.cost(self.energy_j, self.latency_s, self.throughput_hz)

    def as_json(self) -> dict[str, Any]:
        """The object of the contract."""
        mode, variant = self.candidate.mode, self.candidate.variant
        return {
            "mode": {
                "cores": mode.cores,
                "cpu_hz": mode.cpu_hz,
                "gpu_hz": mode.gpu_hz,
                "emc_hz": mode.emc_hz,
            },
            "variant": {"engine": variant.engine, "batch": variant.batch, "instances": variant.instances},
            "policy": self.policy,
            "energy_j": self.energy_j,
            "energy_se_j": self.energy_se_j,
            "latency_s": self.latency_s,
            "latency_upper_s": self.latency_upper_s,
            "latency_samples": self.latency_samples,
            "power_w": self.power_w,
            "throughput_hz": self.throughput_hz,
            "windows": self.windows,
        }


@dataclass(slots=True)
class JobResult:
    """Filled as the job goes on; every key of the JSON is there from the start.

    `signal_number`, `plan` and `samples` (the folder that the raw samples lie in) are for this process alone.
    """

    job: str
    outcome: str = "interrupted"
    reason_code: str | None = None
    reason_text: str = ""
    hint: str = ""
    board: str | None = None
    base_mode: str | None = None
    rail: str | None = None
    rail_coverage: str | None = None
    workload: str | None = None
    inference_name: str = "inference"
    arrival: str | None = None
    clocks: str | None = None
    method: str | None = None
    grid_size: int | None = None
    trials: int = 0
    measurements: int = 0
    earlier_measurements: int = 0
    invalid: dict[str, int] = field(default_factory=dict)
    duration_s: float = 0.0
    disturbed_s: float = 0.0
    idle_power_w: float | None = None
    latency_percentile: float | None = None
    latency_bound_s: float | None = None
    objective: str | None = None
    max_power_w: float | None = None
    risk: float | None = None
    applied: bool = False
    reference: Side | None = None
    incumbent: Side | None = None
    winner: Side | None = None
    best_seen: Side | None = None
    saving_ratio: float | None = None
    saving_interval: tuple[float, float] | None = None
    gain_ratio: float | None = None
    gain_interval: tuple[float, float] | None = None
    seed: int | None = None
    warnings: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    signal_number: int | None = None
    plan: dict[str, Any] | None = None
    samples: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `tune --json` prints: null for what is not known, never a missing key."""
        sides = ("reference", "incumbent", "winner", "best_seen")
        found = {name: getattr(self, name) for name in sides}
        return {
            "schema": SCHEMA,
            "job": self.job,
            "outcome": self.outcome,
            "reason": {"code": self.reason_code, "text": self.reason_text},
            "board": self.board,
            "base_mode": self.base_mode,
            "rail": self.rail,
            "rail_coverage": self.rail_coverage,
            "workload": self.workload,
            "inference_name": self.inference_name,
            "arrival": self.arrival,
            "clocks": self.clocks,
            "method": self.method,
            "grid_size": self.grid_size,
            "trials": self.trials,
            "measurements": self.measurements,
            "earlier_measurements": self.earlier_measurements,
            "invalid": self.invalid,
            "duration_s": self.duration_s,
            "disturbed_s": self.disturbed_s,
            "idle_power_w": self.idle_power_w,
            "latency_percentile": self.latency_percentile,
            "latency_bound_s": self.latency_bound_s,
            "objective": self.objective,
            "max_power_w": self.max_power_w,
            "risk": self.risk,
            "applied": self.applied,
            **{name: None if side is None else side.as_json() for name, side in found.items()},
            "saving_ratio": self.saving_ratio,
            "saving_interval": None if self.saving_interval is None else list(self.saving_interval),
            "gain_ratio": self.gain_ratio,
            "gain_interval": None if self.gain_interval is None else list(self.gain_interval),
            "seed": self.seed,
            "warnings": self.warnings,
            "versions": self.versions,
        }

    def forget_decision(self) -> None:
        """What was decided could not be put in force: no winner, and no saving, stand."""
        self.winner = None
        self.saving_ratio = self.saving_interval = None
        self.gain_ratio = self.gain_interval = None

    def exit_code(self, *, fail_on_no_gain: bool) -> int:
        """What the process ends with."""
        if self.signal_number is not None:
            return 128 + self.signal_number
        if self.outcome == "no_gain" and fail_on_no_gain:
            return 4
        return EXIT_CODES[self.outcome]
