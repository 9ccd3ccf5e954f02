"""The finals: the best candidates against the reference and the incumbent, in paired interleaved blocks.

Each block measures every arm once in random order, so that drift between blocks falls out of the log-ratios.
What an arm's windows scatter is pooled over the arms and, unless it is more than these led to expect, with the
job's replicates. The steps of the sensor are an error of each arm that no number of blocks averages away; both
arms' are in every interval.

One-sided 2.5 % may be spent in all: 0.5 % at the look after block 3 and the rest at the last, or all of it after
block 3 where no further block fits or none would narrow the interval; halved where two contenders may win.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from jouletune.errors import DecisionError
from jouletune.objective import Objective
from jouletune.quantiles import combined_dof, miss_probability, student_quantile

_ALPHA = 0.025
_ALPHA_FIRST = 0.005
_FIRST_LOOK = 3
_FIRST_BEATEN = 2
_LEAVE_ALPHA = 0.05
_MAX_WINDOWS = 12
_LEAST_PAIRS = 2


class Loss(str, Enum):
    """Which limit an arm breaks; the values are those of trial.Infeasible."""

    LATENCY = "latency"
    MAX_POWER = "max_power"
    RATE_NOT_REACHED = "rate_not_reached"


@dataclass(frozen=True, slots=True)
class FinalsWindow:
    """One valid window of an arm: ln(energy_j), its relative repeat and sensor standard errors, and feasibility.

    `log_latency` with its relative standard error, and `log_throughput`, are for the objectives that need them.
    `requests` and `over_bound` count all requests and those slower than the bound, `design` is the clustering's D.
    `loss`: a limit other than latency that this window broke.
    """

    log_energy: float
    se_ratio: float
    sensor_ratio: float
    requests: int = 0
    over_bound: int = 0
    design: float = 1.0
    loss: Loss | None = None
    log_latency: float = 0.0
    latency_se_ratio: float = 0.0
    log_throughput: float = 0.0

    def log_cost(self, objective: Objective) -> float:
        """ln of what is minimised."""
        if objective is Objective.THROUGHPUT:
            return -self.log_throughput
        return self.log_energy if objective is Objective.ENERGY else self.log_energy + self.log_latency


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost of one arm over another's: ratio, and one-sided limits at `alpha` on either side.

    `sensor_ratio`: the standard error that comes from the sensor's steps, which further blocks would not lessen.
    """

    ratio: float
    lower: float
    upper: float
    alpha: float
    blocks: int
    sensor_ratio: float


@dataclass(slots=True)
class Finals:
    """Who meets whom, in which order, and when it is over. Contenders are the finalists less the incumbent.

    What they are compared by is the cost of `objective`. `percentile` None: no latency bound. `between_ratio`,
    `between_dof`: measurement.Between of the job so far.
    """

    finalists: Sequence[int]
    reference: int
    incumbent: int
    min_gain: float = 0.02
    percentile: float | None = 95.0
    between_ratio: float = 0.005
    between_dof: float = 8.0
    max_windows: int = _MAX_WINDOWS
    objective: Objective = Objective.ENERGY
    _windows: dict[int, dict[int, FinalsWindow]] = field(default_factory=dict)
    _out: dict[int, Loss | None] = field(default_factory=dict)
    _invalid: list[str] = field(default_factory=list)
    _block: int = 0
    _due: set[int] = field(default_factory=set)
    _used: int = 0
    _looked: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_gain < 1.0:
            raise DecisionError(f"finals: min_gain wanted within 0..1, got {self.min_gain}")
        if len(self.contenders) > 2:
            raise DecisionError(f"finals: wanted two finalists at most, got {list(self.finalists)}")

    @property
    def contenders(self) -> tuple[int, ...]:
        """Who may replace the incumbent, best by the search first."""
        return tuple(dict.fromkeys(arm for arm in self.finalists if arm != self.incumbent))

    @property
    def arms(self) -> tuple[int, ...]:
        """All arms of the first block."""
        return tuple(dict.fromkeys((*self.contenders, self.incumbent, self.reference)))

    @property
    def blocks(self) -> int:
        """Blocks begun."""
        return self._block

    @property
    def invalid(self) -> tuple[str, ...]:
        """Reasons of the windows that are missing."""
        return tuple(self._invalid)

    def next_block(self, rng: random.Random) -> tuple[int, ...]:
        """Arms of the next block in the order to measure them; empty when the finals are over.

        Raises DecisionError while an arm of the block before is still to be told.
        """
        if self._due:
            raise DecisionError(f"finals: block {self._block} still waits for arms {sorted(self._due)}")
        if self._block:
            self._drop_beaten()
        order = list(self._active())
        if not self._contending() or self._used + len(order) > self.max_windows or self._is_settled():
            return ()
        self._block += 1
        self._due = set(order)
        self._used += len(order)
        rng.shuffle(order)
        return tuple(order)

    def add(self, arm: int, window: FinalsWindow) -> None:
        """Tell a valid window of the running block. Raises DecisionError for an arm that is not due."""
        self._settle_due(arm)
        numbers = (window.log_energy, window.log_cost(self.objective))
        if not (all(map(math.isfinite, numbers)) and window.se_ratio >= 0.0 and window.sensor_ratio >= 0.0):
            raise DecisionError(f"finals: arm {arm} wanted finite numbers, got {window}")
        self._windows.setdefault(arm, {})[self._block] = window

    def add_invalid(self, arm: int, reason: str) -> None:
        """Tell that this arm's window of the running block stays missing, for a validity reason."""
        self._settle_due(arm)
        self._invalid.append(reason)

    def add_infeasible(self, arm: int, loss: Loss = Loss.LATENCY) -> None:
        """Tell that the arm's window was cut short as clearly infeasible; a contender leaves."""
        self._settle_due(arm)
        self._out.setdefault(arm, loss)

    def _settle_due(self, arm: int) -> None:
        if arm not in self._due:
            raise DecisionError(f"finals: block {self._block} wanted one of {sorted(self._due)}, got arm {arm}")
        self._due.remove(arm)

    def _active(self) -> tuple[int, ...]:
        keep = {self.reference, self.incumbent}
        return tuple(arm for arm in self.arms if arm in keep or arm not in self._out)

    def _contending(self) -> tuple[int, ...]:
        return tuple(arm for arm in self.contenders if arm not in self._out)

    def windows(self, arm: int) -> tuple[FinalsWindow, ...]:
        """Valid windows of an arm, oldest first."""
        return tuple(self._windows.get(arm, {}).values())

    def loss(self, arm: int) -> Loss | None:
        """The limit that the arm's windows together break, if any (one-sided 95 % for the latency)."""
        if self._out.get(arm) is not None:
            return self._out[arm]
        windows = self.windows(arm)
        broken = [window.loss for window in windows if window.loss is not None]
        if 2 * len(broken) > len(windows):
            return broken[0]
        requests, over_bound, design = self._counts(arm)
        if self.percentile is None or requests == 0:
            return None
        within = miss_probability(over_bound, requests, self.percentile, design) <= 0.05
        return None if within else Loss.LATENCY

    def alpha(self) -> float:
        """One-sided error to spend at the present look, on each contender."""
        if not self._looked:
            spend = _ALPHA
        elif self._block == _FIRST_LOOK:
            spend = _ALPHA_FIRST
        else:
            spend = _ALPHA - _ALPHA_FIRST
        return spend / max(len(self.contenders), 1)

    def compare(self, arm: int, other: int, alpha: float | None = None) -> Comparison | None:
        """Cost of `arm` over `other`'s from the blocks that hold both; None with fewer than two."""
        common = self._common(arm, other)
        if len(common) < _LEAST_PAIRS:
            return None
        level = self.alpha() if alpha is None else alpha
        mine, theirs = self._windows[arm], self._windows[other]
        log_ratio = sum(self._cost(mine[block]) - self._cost(theirs[block]) for block in common) / len(common)
        half = self._half_width(arm, other, level, len(common))
        ratio, lower, upper = (math.exp(log_ratio + shift) for shift in (0.0, -half, half))
        sensor_ratio = math.hypot(self._sensor(arm), self._sensor(other))
        return Comparison(ratio, lower, upper, level, len(common), sensor_ratio)

    def compare_energy(self, arm: int, other: int) -> Comparison | None:
        """As `compare`, by energy whatever the objective."""
        return replace(self, objective=Objective.ENERGY).compare(arm, other)

    def _cost(self, window: FinalsWindow) -> float:
        return window.log_cost(self.objective)

    def _common(self, arm: int, other: int) -> list[int]:
        return sorted(self._windows.get(arm, {}).keys() & self._windows.get(other, {}).keys())

    def _half_width(self, arm: int, other: int, alpha: float, blocks: int) -> float:
        """Of the log-ratio's one-sided limits, were there so many common blocks."""
        spread, spread_dof = self._spread()
        repeat = 2.0 * spread / blocks
        sensor = self._sensor(arm) ** 2 + self._sensor(other) ** 2
        dof = combined_dof((repeat, spread_dof), (sensor, math.inf))
        return student_quantile(1.0 - alpha, dof) * math.sqrt(repeat + sensor)

    def _sensor(self, arm: int) -> float:
        windows = self.windows(arm)
        return sum(self.objective.sensor_ratio(window.sensor_ratio) for window in windows) / len(windows)

    def _spread(self) -> tuple[float, float]:
        """Variance of one window's log cost within its block, pooled with the job's, and its degrees of freedom."""
        windows = [window for arm in self._windows.values() for window in arm.values()]
        own = sum(self.objective.se_ratio(w.se_ratio, w.latency_se_ratio) ** 2 for w in windows) / len(windows)
        _, squares, dof = self._fit()
        prior = self.between_ratio**2 + own
        if dof and squares / dof > prior:
            # A board that scatters more than the job expected is not talked down by what was expected.
            return squares / dof, float(dof)
        return (self.between_dof * prior + squares) / (self.between_dof + dof), self.between_dof + dof

    def _drop_beaten(self) -> None:
        for arm in self._contending():
            if self._is_beyond(arm):
                self._out[arm] = Loss.LATENCY
        rivals = self._contending()
        if not rivals:
            self._readmit_beaten()
            return
        if len(rivals) != 2 or self._block < _FIRST_BEATEN:
            return
        comparison = self.compare(rivals[0], rivals[1], _LEAVE_ALPHA)
        if comparison is None:
            return
        # Who beats another must keep the limits itself.
        if comparison.lower > 1.0 and self.loss(rivals[1]) is None:
            self._out[rivals[0]] = None
        elif comparison.upper < 1.0 and self.loss(rivals[0]) is None:
            self._out[rivals[1]] = None

    def _readmit_beaten(self) -> None:
        """A rival that beat another and then broke a limit has beaten nobody."""
        for arm in [arm for arm in self.contenders if arm in self._out and self._out[arm] is None]:
            if not self._is_beyond(arm):
                del self._out[arm]

    @property
    def windows_left(self) -> int:
        """How many windows may still be taken, whoever they are of."""
        return self.max_windows - self._used

    @property
    def all_contenders_lost(self) -> bool:
        """Whether there were contenders, and each has broken a limit: others may be tried instead."""
        return bool(self.contenders) and all(self.loss(arm) is not None for arm in self.contenders)

    def is_incumbent_lost(self) -> bool:
        """Whether the incumbent is *shown* to break a limit; one that merely might is to be beaten."""
        arm = self.incumbent
        return self._is_beyond(arm) or self.loss(arm) not in (None, Loss.LATENCY)

    def _is_beyond(self, arm: int) -> bool:
        """Whether the arm's latency is beyond the bound, one-sided 95 %."""
        if self._out.get(arm) is Loss.LATENCY:
            return True
        requests, over_bound, design = self._counts(arm)
        if self.percentile is None or over_bound == 0:
            return False
        return miss_probability(over_bound - 1, requests, self.percentile, design) > 0.95

    def _counts(self, arm: int) -> tuple[int, int, float]:
        windows = self.windows(arm)
        requests, over_bound = sum(w.requests for w in windows), sum(w.over_bound for w in windows)
        return requests, over_bound, max((w.design for w in windows), default=1.0)

    def _is_settled(self) -> bool:
        """The look after block 3, while another block fits: is a winner found, or none to be hoped for?"""
        if self._block != _FIRST_LOOK or self.is_incumbent_lost():
            return False
        if not any(self._would_narrow(arm) for arm in self._contending()):
            return True
        self._looked = True
        return self.winner() is not None or all(self._is_futile(arm) for arm in self._contending())

    def _would_narrow(self, arm: int) -> bool:
        """Whether the last look that fits is to be narrower than spending all the error now.

        Where the sensor's steps rule it is not. The answer depends on spreads only, not on who is ahead.
        """
        common = len(self._common(arm, self.incumbent))
        if common < _LEAST_PAIRS:
            return True
        share = 1.0 / len(self.contenders)
        more = (self.max_windows - self._used) // len(self._active())
        now = self._half_width(arm, self.incumbent, _ALPHA * share, common)
        return self._half_width(arm, self.incumbent, (_ALPHA - _ALPHA_FIRST) * share, common + more) < now

    def _is_futile(self, arm: int) -> bool:
        comparison = self.compare(arm, self.incumbent, _LEAVE_ALPHA)
        return comparison is not None and comparison.lower > 1.0 - self.min_gain

    def level(self, arm: int) -> float:
        """ln of the arm's cost with the blocks' drift taken out. Raises DecisionError for one never measured."""
        levels, _, _ = self._fit()
        if arm not in levels:
            raise DecisionError(f"finals: arm {arm} has no valid window, measured are {sorted(levels)}")
        return levels[arm]

    def winner(self) -> int | None:
        """The feasible contender that beats the incumbent by min_gain at the present look; least cost first."""
        beating: list[tuple[float, int]] = []
        for arm in self._contending():
            comparison = self.compare(arm, self.incumbent)
            if comparison is not None and comparison.upper < 1.0 - self.min_gain and self.loss(arm) is None:
                beating.append((comparison.ratio, arm))
        return min(beating)[1] if beating else None

    def _fit(self) -> tuple[dict[int, float], float, int]:
        return _fit({(arm, at): self._cost(w) for arm, blocks in self._windows.items() for at, w in blocks.items()})


def _fit(cells: Mapping[tuple[int, int], float]) -> tuple[dict[int, float], float, int]:
    """Least squares of log cost = arm + block, cells may be missing: arm levels, sum of squares, its dof."""
    arms, blocks = sorted({arm for arm, _ in cells}), sorted({block for _, block in cells})
    arm_level = dict.fromkeys(arms, 0.0)
    block_level = dict.fromkeys(blocks, 0.0)
    for _ in range(200):
        before = dict(arm_level)
        for arm in arms:
            rest = [value - block_level[b] for (a, b), value in cells.items() if a == arm]
            arm_level[arm] = sum(rest) / len(rest)
        for block in blocks:
            rest = [value - arm_level[a] for (a, b), value in cells.items() if b == block]
            block_level[block] = sum(rest) / len(rest)
        if all(abs(arm_level[arm] - before[arm]) < 1e-13 for arm in arms):
            break
    squares = sum((value - arm_level[a] - block_level[b]) ** 2 for (a, b), value in cells.items())
    return arm_level, squares, max(len(cells) - len(arms) - len(blocks) + 1, 0)
