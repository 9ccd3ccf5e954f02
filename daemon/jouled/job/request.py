"""What one job is asked to do, and what it will take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jouled.board.apply import ClocksPolicy
from jouled.board.board import Board
from jouled.board.meter import BoardMeters, Chosen, choose_meter
from jouled.board.process import Processes
from jouled.config import Config
from jouled.errors import ConfigError
from jouled.job.blocks import Arm
from jouled.job.measuring import COUNTERS_S, MeasuringSettings
from jouled.workload.runner import Arrival
from jouletune.objective import Objective
from jouletune.space import Space, Variant

REFERENCE_EVERY = 6
LONGEST_WINDOW_S = 300.0
BUILD_S = 45 * 60.0  # all that a job builds before its first window
_SPARE_S = 60.0


ChooseMeter = Callable[[Processes, str, BoardMeters | None], Chosen]
"""(processes, board.meter, how to find the board's own: None on a machine that is no Jetson) → the meter."""
Beat = Callable[[], None]
"""Called each second of a wait: it may raise Cancelled."""


def _no_marks() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Request:
    """One tuning run. `make_space` gives the candidates; `total_rails` () means those of the board's file.

    `fixed`: no knob is touched and the candidates are `variants` alone. `has_idle`: what is measured draws something
    while nothing runs, too. `prepare(beat)` makes what the runner needs and takes long, and returns warnings; `look`
    raises WorkloadError for a file that cannot be used, at once and with nothing started. `workload_marks` is what a
    winner holds for besides the board.
    """

    config: Config
    workload: str
    make_space: Callable[[Board], Space]
    seed: int = 0
    total_rails: tuple[str, ...] = ()
    dry_run: bool = False
    fixed: bool = False
    has_idle: bool = True
    variants: tuple[Variant, ...] = (Variant(),)
    prepare: Callable[[Beat], Sequence[str]] | None = None
    look: Callable[[], None] = lambda: None
    workload_marks: Callable[[], Mapping[str, str]] = _no_marks
    choose_meter: ChooseMeter = choose_meter

    def check(self) -> None:
        """Raises ConfigError for a key that this version does not act on, rather than ignoring it."""
        target, job = self.config.target, self.config.job
        if not target.has_bound():
            raise ConfigError(
                "no bound: wanted one of --latency-bound-s, --latency-bound-ratio, --no-latency-bound, got none",
                hint="for example --latency-bound-ratio 1.2: at most 1.2 x the latency of the board's own mode",
            )
        if job.guard:
            raise ConfigError(f"job.guard: not in this version yet, got {job.guard!r}", hint="leave job.guard out")
        if self.fixed:
            self._check_fixed()

    def check_arrival(self, arrival: Arrival) -> None:
        """Raises ConfigError where requests come in a way that leaves nothing to choose."""
        if self.objective is Objective.THROUGHPUT and arrival.mean_rate_hz is not None:
            raise ConfigError(
                f"target.objective = 'throughput': wanted requests back to back, got {arrival}: every mode that keeps "
                "up has the same throughput",
                hint='set arrival = "back_to_back" (leave --rate-hz out), or another objective',
            )

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return Objective(self.config.target.objective)

    def _check_fixed(self) -> None:
        """What writes to the board, or could not be undone without a snapshot, does not go with fixed mode."""
        clocks, units = self.config.grid.clocks, self.config.job.stop_units
        if clocks != ClocksPolicy.CAPPED.value:
            raise ConfigError(f"--fixed-mode touches no clock, got grid.clocks = {clocks!r}", hint="leave it out")
        if units:
            raise ConfigError(
                f"--fixed-mode stops no unit, since after a crash nothing would start it again; got {', '.join(units)}",
                hint=f"stop it by hand: sudo systemctl stop {units[0]}; and leave job.stop_units out",
            )

    def settings(self) -> MeasuringSettings:
        """How windows are taken."""
        job = self.config.job
        return MeasuringSettings(
            percentile=self.config.target.latency_percentile,
            settle_min_s=job.settle_min_s,
            settle_max_s=job.settle_max_s,
            pilot_s=job.pilot_s,
            window_min_s=job.window_min_s,
            window_max_s=job.window_max_s,
            error_target=job.energy_error_target,
            sample_rate_hz=job.sample_rate_hz,
            max_temp_c=self.config.board.max_temp_c,
            external_w=self.config.board.external_w,
            is_bounded=not self.config.target.no_latency_bound,
        )

    @property
    def searched_policy(self) -> ClocksPolicy:
        """Under which candidates are tried; where both are asked for, the other one only in the finals."""
        return ClocksPolicy.LOCKED if self.config.grid.clocks == "locked" else ClocksPolicy.CAPPED

    def searched_incumbent(self, incumbent: Arm) -> int | None:
        """Where the search may start from besides the reference: what is in force, if under the policy searched."""
        return incumbent.index if incumbent.policy is self.searched_policy else None

    def reserve_s(self, mean_trial_s: float) -> float:
        """What must be left of `max_duration_s` before a window of the search: the finals and all that follows."""
        job = self.config.job
        return job.finals_windows * (mean_trial_s - job.pilot_s) + self.after_s()

    def after_s(self) -> float:
        """What follows the finals: the watch, and some to spare."""
        return self.config.job.watch_s + _SPARE_S

    def expected_s(self, grid_size: int) -> float:
        """A guess before anything was measured, at windows half way between the shortest and the longest."""
        job = self.config.job
        window_s = (job.window_min_s + job.window_max_s) / 2
        trial_s = job.settle_min_s + job.pilot_s + window_s + COUNTERS_S
        search = min(job.budget, grid_size + grid_size // REFERENCE_EVERY)
        finals_s = job.finals_windows * (trial_s - job.pilot_s)
        return min(search * trial_s + finals_s + job.watch_s, job.max_duration_s)
