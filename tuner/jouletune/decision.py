"""What becomes of a job: its outcome, the reason, and who is in force afterwards (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jouletune.finals import Comparison, Finals, FinalsWindow, Loss
from jouletune.objective import Objective

__all__ = [
    "Comparison",
    "Decision",
    "Finals",
    "FinalsWindow",
    "Loss",
    "Objective",
    "Outcome",
    "ReasonCode",
    "Words",
    "decide",
    "stopped",
]


Ratio = float | None
Interval = tuple[float, float] | None


class Outcome(str, Enum):
    """How a job ends; closed list. Only `tuned` changes what is in force."""

    TUNED = "tuned"
    NO_GAIN = "no_gain"
    NO_FEASIBLE = "no_feasible"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ROLLED_BACK = "rolled_back"
    WORKLOAD_FAILED = "workload_failed"
    BOARD_BUSY = "board_busy"
    BOARD_FAULT = "board_fault"
    NOT_SUPPORTED = "not_supported"
    UNSTABLE = "unstable"


class ReasonCode(str, Enum):
    """Why; closed list: a validity reason of a window, or one of the job's own."""

    APPLY_FAILED = "apply_failed"
    CLOCKS_MOVED = "clocks_moved"
    MODE_CHANGED = "mode_changed"
    THROTTLED = "throttled"
    SENSOR_GAP = "sensor_gap"
    SENSOR_STALLED = "sensor_stalled"
    SENSOR_ZERO = "sensor_zero"
    WORKLOAD_DIED = "workload_died"
    WORKLOAD_HUNG = "workload_hung"
    GPU_BUSY = "gpu_busy"
    TOO_FEW_INFERENCES = "too_few_inferences"
    UNSTEADY = "unsteady"
    TIME = "time"
    BUDGET = "budget"
    CONVERGED = "converged"
    PERCENTILE_UNREACHABLE = "percentile_unreachable"
    LATENCY = "latency"
    MAX_POWER = "max_power"
    RATE_NOT_REACHED = "rate_not_reached"
    MEMORY = "memory"
    PROMPT = "prompt"
    CHROOT = "chroot"
    MASK_DIFFERS = "mask_differs"
    TOOL_ABSENT = "tool_absent"
    LOCK_HELD = "lock_held"
    BOOT_CHANGED = "boot_changed"
    DAEMON_GONE = "daemon_gone"
    WORKER_GONE = "worker_gone"
    TEMPERATURE = "temperature"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Decision:
    """`winner`: candidate index to put in force (`tuned`), else None.

    `gain` compares the winner (or the best contender) with the incumbent, and is what was decided on; `gain_ratio` and
    `gain_interval` compare its cost with the reference's, 1 - cost/cost, and `saving_ratio` and `saving_interval` its
    energy, 1 - energy/energy. `use_reference`: the incumbent, an
    earlier winner, is infeasible and nothing replaces it, so the reference is put back.
    """

    outcome: Outcome
    code: ReasonCode | None
    text: str
    winner: int | None = None
    best: int | None = None
    gain: Comparison | None = None
    saving_ratio: float | None = None
    saving_interval: tuple[float, float] | None = None
    gain_ratio: float | None = None
    gain_interval: tuple[float, float] | None = None
    use_reference: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What the text calls things: the incumbent, an arm, and what costs are counted by."""

    incumbent: str = "what is in force"
    arm: str = "power mode"
    inference: str = "inference"


def stopped(outcome: Outcome, code: ReasonCode | None, text: str) -> Decision:
    """The decision of a job that ended without finals."""
    return Decision(outcome, code, text)


def decide(finals: Finals, *, ended: ReasonCode, words: Words | None = None) -> Decision:
    """Decide on whatever the finals hold; `ended` says why the search before them ended."""
    words = words or Words()
    if finals.is_incumbent_lost():
        return _replace_infeasible(finals, finals.loss(finals.incumbent) or Loss.LATENCY, ended, words)
    if finals.blocks and not finals.windows(finals.incumbent):
        if not finals.invalid:
            text = f"the finals ended before {words.incumbent} was measured: it stays"
            return Decision(Outcome.NO_GAIN, ended, text)
        return _unmeasured(finals, f"{words.incumbent} could not be measured in the finals: it stays")
    winner = finals.winner()
    if winner is not None:
        return _tuned(finals, winner, ended, words)
    return _no_gain(finals, ended, words)


def _tuned(finals: Finals, winner: int, ended: ReasonCode, words: Words) -> Decision:
    gain = finals.compare(winner, finals.incumbent)
    assert gain is not None
    text = (
        f"takes {100 * (1 - gain.ratio):.1f} % less {finals.objective.noun} per {words.inference} "
        f"than {words.incumbent} "
        f"({100 * (1 - gain.upper):.1f} to {100 * (1 - gain.lower):.1f} %, {gain.blocks} paired blocks), "
        f"more than the {100 * finals.min_gain:g} % asked for"
    )
    return Decision(Outcome.TUNED, ended, text, winner, winner, gain, *_saving(finals, winner))


def _unmeasured(finals: Finals, text: str) -> Decision:
    """Windows were lost, so nothing is known to be right: the commonest reason says what failed."""
    reason = max(set(finals.invalid), key=finals.invalid.count)
    outcome = Outcome.UNSTABLE
    if reason.startswith("workload_"):
        outcome = Outcome.WORKLOAD_FAILED
    elif reason == ReasonCode.APPLY_FAILED.value:
        outcome = Outcome.BOARD_FAULT
    return Decision(outcome, ReasonCode(reason), f"{text} ({finals.invalid.count(reason)} x {reason})")


def _no_gain(finals: Finals, ended: ReasonCode, words: Words) -> Decision:
    best = _cheapest(finals, finals.contenders)
    if best is None:
        return Decision(Outcome.NO_GAIN, ended, "no other feasible candidate reached the end of the finals")
    gain = finals.compare(best, finals.incumbent)
    if gain is None and finals.invalid:
        return _unmeasured(finals, "too few valid pairs of windows in the finals")
    if gain is None:
        return Decision(Outcome.NO_GAIN, ended, "too few pairs of windows in the finals", None, best)
    change = 100 * abs(1 - gain.ratio)
    noun = "" if finals.objective is Objective.ENERGY else f"{finals.objective.noun} "
    text = (
        f"the best other {words.arm} takes {change:.1f} % {'less' if gain.ratio <= 1 else 'more'} {noun}than "
        f"{words.incumbent} "
        f"(saving {100 * (1 - gain.upper):.1f} to {100 * (1 - gain.lower):.1f} %, {gain.blocks} paired blocks); "
        f"that does not show a saving of more than {100 * finals.min_gain:g} %"
    )
    if gain.sensor_ratio > 0.0:
        text += f" (the steps of the sensor alone hide {100 * 1.96 * gain.sensor_ratio:.1f} %)"
    return Decision(Outcome.NO_GAIN, ended, text, None, best, gain, *_saving(finals, best))


def _replace_infeasible(finals: Finals, loss: Loss, ended: ReasonCode, words: Words) -> Decision:
    """An infeasible incumbent need not be beaten: the feasible arm of least cost replaces it."""
    best = _cheapest(finals, (*finals.contenders, finals.reference))
    if best is not None:
        least = f"the feasible candidate of least {finals.objective.noun}"
        text = f"{words.incumbent} is infeasible ({loss.value}): {least} replaces it"
        gain = finals.compare(best, finals.incumbent)
        return Decision(Outcome.TUNED, ended, text, best, best, gain, *_saving(finals, best))
    codes = {Loss.MAX_POWER: ReasonCode.MAX_POWER, Loss.RATE_NOT_REACHED: ReasonCode.RATE_NOT_REACHED}
    return Decision(
        Outcome.NO_FEASIBLE,
        codes.get(loss, ended),
        f"neither {words.incumbent} ({loss.value}) nor any finalist is feasible",
        use_reference=finals.incumbent != finals.reference,
    )


def _cheapest(finals: Finals, arms: tuple[int, ...]) -> int | None:
    """The feasible arm of least cost among those measured, if any."""
    measured = [arm for arm in dict.fromkeys(arms) if finals.windows(arm) and finals.loss(arm) is None]
    if not measured:
        return None
    return min(measured, key=finals.level)


def _saving(finals: Finals, arm: int) -> tuple[Ratio, Interval, Ratio, Interval]:
    """Of energy, then of the cost, each with its interval."""
    if arm == finals.reference:
        return 0.0, (0.0, 0.0), 0.0, (0.0, 0.0)
    energy, cost = (compare(arm, finals.reference) for compare in (finals.compare_energy, finals.compare))
    return *_less(energy), *_less(cost)


def _less(against: Comparison | None) -> tuple[Ratio, Interval]:
    if against is None:
        return None, None
    return 1.0 - against.ratio, (1.0 - against.upper, 1.0 - against.lower)
