"""What to do next, decided from what is known. No file, no clock, no board: facts in, a verdict out.

The order of the questions is the order of their weight: may any knob be written at all · has a crash left something
· is the board held, paused · is there a winner, does it hold, may it be applied · is it in force, has somebody else
changed it · should a job begin by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from jouled.board.applied import Applied
from jouled.board.modename import mode_name
from jouled.board.pending import HELD_FOR_S, Pending, Quarantine, Standing
from jouled.config import Config
from jouled.service.holds import Stale, staleness
from jouled.service.schedule import is_open, opens_in_s
from jouled.state import Next, State

SUSPECT_DELAYS = 5  # a suspect winner waits so many boot delays
REAPPLIES = 3
REAPPLIES_WITHIN_S = 600.0
STUCK_EVERY_S = 60.0
WINNER_COMES_BACK = {"pause": "pause", "stop": "boot"}
"""Why the reference stands in the winner's place → why the winner is then applied again; not in here: it is not."""


class Do(Enum):
    """What the worker is asked for."""

    NOTHING = "nothing"
    RESTORE = "restore"
    APPLY_WINNER = "apply winner"
    APPLY_REFERENCE = "apply reference"
    RETUNE = "retune"


@dataclass(frozen=True, slots=True)
class Pause:
    """Somebody wants the reference for a while; `until_wall_s` None: until further notice.

    `mode`: the name of what was in force by hand before it, and comes back after it; "": a winner does, or nothing.
    """

    until_wall_s: float | None
    who: str
    mode: str = ""

    def is_over(self, wall_s: float) -> bool:
        """Has it ended by itself?"""
        return self.until_wall_s is not None and wall_s >= self.until_wall_s


@dataclass(frozen=True, slots=True)
class Memory:
    """What the daemon remembers since its start; times are monotonic.

    `applies_s`: when it applied a mode by itself; `retry_s`: before that the worker is asked for nothing, since it
    last failed with `trouble`; `tried`: causes for which a job was begun by itself.
    """

    applies_s: tuple[float, ...] = ()
    contested: bool = False
    stuck: bool = False
    retry_s: float = 0.0
    trouble: str = ""
    tried: frozenset[str] = frozenset()

    def recent(self, now_s: float) -> tuple[float, ...]:
        """The applies that still count."""
        return tuple(at_s for at_s in self.applies_s if now_s - at_s < REAPPLIES_WITHIN_S)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a decision rests on.

    `fingerprint` None: the board cannot be read. `asked`: what the request of the winner's job named. `stood_aside`:
    why the reference was put in the winner's place ("" where it was not). `holder`: another process that holds the
    board. `untuned`: no job has ever decided for this workload. `local_s`: seconds since local midnight.
    """

    now_s: float
    wall_s: float
    boottime_s: float
    local_s: float
    boot_id: str
    workload: str
    fingerprint: Mapping[str, str] | None
    applied: Applied | None = None
    winner: Applied | None = None
    pending: Pending | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    has_snapshot: bool = False
    holder: str = ""
    switched_off: str = ""
    pause: Pause | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    stood_aside: str = ""
    mismatches: tuple[str, ...] = ()
    untuned: bool = False
    hottest_c: float | None = None
    job_phase: str | None = None
    memory: Memory = Memory()
    workload_marks: Mapping[str, str] | None = None

    def in_force(self) -> Applied | None:
        """The winner that this boot has in force."""
        return self.applied if self.applied is not None and self.applied.boot_id == self.boot_id else None

    def wanted(self) -> Applied | None:
        """The winner that should be in force: applied.json's, or the one that only stood aside."""
        if self.applied is not None:
            return self.applied
        return self.winner if self.stood_aside in WINNER_COMES_BACK else None

    def comes_back(self) -> str:
        """The mode, applied by hand, that a pause has put aside; "" where nothing has and once something else is so."""
        is_aside = self.applied is None and self.stood_aside == "pause"
        return self.pause.mode if self.pause is not None and is_aside else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is done and shown. `cause` names an automatic job, `stale` why the winner holds no longer.

    `target`: what is applied, where that is a mode by its name; "": the winner, or what is in force already.
    """

    state: State
    do: Do = Do.NOTHING
    why: str = ""
    next: Next = field(default_factory=Next)
    to_do: str = ""
    cause: str = ""
    stale: str = ""
    contested: bool = False
    target: str = ""


def decide(facts: Facts, config: Config) -> Verdict:
    """The verdict. An action that failed is not repeated before its time."""
    verdict = _decide(facts, config)
    if verdict.do is Do.NOTHING or facts.now_s >= facts.memory.retry_s:
        return verdict
    due_wall_s = facts.wall_s + facts.memory.retry_s - facts.now_s
    again = Next(f"try again: {verdict.next.text or verdict.do.value}", due_wall_s)
    return replace(verdict, do=Do.NOTHING, next=again, to_do=verdict.to_do or facts.memory.trouble)


def _decide(facts: Facts, config: Config) -> Verdict:
    if facts.job_phase is not None:
        return Verdict(State.WATCHING if facts.job_phase == "watching" else State.TUNING)
    if facts.switched_off:
        return Verdict(State.DISABLED, to_do=facts.switched_off, stale=_stale_text(facts, config))
    if config.mode == "observe":
        left = "a job left the board in a mode of its own: jouled restore, or reboot" if facts.has_snapshot else ""
        return Verdict(State.OBSERVE, to_do=left, stale=_stale_text(facts, config))
    if facts.holder:
        return Verdict(State.WAITING, next=Next(f"wait until {facts.holder} lets the board go"))
    if facts.memory.stuck:
        to_do = facts.memory.trouble or "look at dmesg; a reboot returns the board to its operator's mode"
        return Verdict(State.STUCK, Do.RESTORE, "stuck", Next("restore again"), to_do)
    if facts.has_snapshot or _went_down(facts):
        return Verdict(State.WAITING, Do.RESTORE, "crash", Next("put back what a crash left"))
    if facts.quarantine.is_held(facts.wall_s):
        return _held(facts, config)
    if facts.pause is not None and not facts.pause.is_over(facts.wall_s):
        return _paused(facts, facts.pause, config)
    return _keep(facts, config)


def _went_down(facts: Facts) -> bool:
    return facts.pending is not None and facts.pending.boot_id != facts.boot_id


def _held(facts: Facts, config: Config) -> Verdict:
    ends_wall_s = facts.quarantine.unclean[-1].wall_s + HELD_FOR_S
    return Verdict(
        State.HELD,
        next=Next("knobs may be written again", ends_wall_s),
        to_do="the board went down twice within 30 min: find out why; then: jouled forget --held",
        stale=_stale_text(facts, config),
    )


def _paused(facts: Facts, pause: Pause, config: Config) -> Verdict:
    in_force = facts.in_force()
    return Verdict(
        State.PAUSED,
        Do.NOTHING if in_force is None else Do.APPLY_REFERENCE,
        "pause",
        Next("the pause ends" if pause.until_wall_s is not None else "", pause.until_wall_s),
        to_do="" if pause.until_wall_s is not None else "to end the pause: jouled pause --end",
        stale=_stale_text(facts, config),
    )


# --- a winner, if any ---------------------------------------------------------------------------------------


def _stale(facts: Facts, config: Config) -> Stale | None:
    winner = facts.wanted() or facts.winner
    if winner is None:
        return None
    return staleness(
        winner,
        config,
        fingerprint=facts.fingerprint,
        workload=facts.workload,
        asked=facts.asked,
        marks=facts.workload_marks,
    )


def _stale_text(facts: Facts, config: Config) -> str:
    stale = _stale(facts, config)
    return "" if stale is None else stale.text


def _keep(facts: Facts, config: Config) -> Verdict:
    winner, stale = facts.wanted(), _stale(facts, config)
    if facts.fingerprint is None:
        return Verdict(State.IDLE, to_do="the board cannot be read: jouled status --json says why")
    if facts.comes_back():
        return _apply_after_pause(facts, config, facts.comes_back())
    if stale is not None and winner is not None:
        return _outlived(facts, config, stale)
    if winner is None:
        verdict = _untuned(facts, config)
        return verdict if stale is None else replace(verdict, stale=stale.text)
    if facts.in_force() is None:
        return _apply_when_due(facts, config, winner)
    return _in_force(facts, config, winner)


def _outlived(facts: Facts, config: Config, stale: Stale) -> Verdict:
    """Shown, not applied; what to do about it is the configuration's."""
    wish = {"fingerprint": config.when.on_fingerprint_change, "engine": config.when.on_engine_change}
    if wish.get(stale.kind) == "retune":
        return replace(_begin_job(facts, config, f"{stale.kind}: {stale.text}"), stale=stale.text)
    return Verdict(State.IDLE, to_do=f"the winner no longer holds: {stale.text}; {_retune(config)}", stale=stale.text)


def _untuned(facts: Facts, config: Config) -> Verdict:
    if config.when.tune_on_start == "if_untuned" and facts.untuned:
        return _begin_job(facts, config, "untuned")
    return Verdict(State.IDLE, to_do=f"not tuned yet: {_retune(config)}" if facts.untuned else "")


def _retune(config: Config) -> str:
    """What is typed for a job; where the configuration names no bound, the request must."""
    return "jouled retune" + ("" if config.target.has_bound() else " --latency-bound-ratio 1.2")


def _apply_when_due(facts: Facts, config: Config, winner: Applied) -> Verdict:
    standing = facts.quarantine.standing(winner.candidate.mode, facts.fingerprint or {})
    name = mode_name(winner.candidate.mode)
    if standing is Standing.QUARANTINED:
        return Verdict(
            State.IDLE, to_do=f"the board went down twice in {name}: it is not applied again; jouled forget {name}"
        )
    delay_s = config.board.boot_delay_s * (SUSPECT_DELAYS if standing is Standing.SUSPECT else 1)
    text = f"apply the winner {name}" + (", under suspicion since the board went down in it" if standing else "")
    if facts.boottime_s < delay_s:
        return Verdict(State.WAITING, next=Next(text, facts.wall_s + delay_s - facts.boottime_s))
    if _is_contested(facts):
        return _contested(facts)
    why = WINNER_COMES_BACK.get(facts.stood_aside, "boot") if facts.applied is None else "boot"
    return Verdict(State.WAITING, Do.APPLY_WINNER, why, Next(text))


def _apply_after_pause(facts: Facts, config: Config, name: str) -> Verdict:
    text = f"apply {name} again, as before the pause"
    if facts.boottime_s < config.board.boot_delay_s:
        return Verdict(State.WAITING, next=Next(text, facts.wall_s + config.board.boot_delay_s - facts.boottime_s))
    to_do = f"{facts.memory.trouble}; to leave {name}: jouled apply reference" if facts.memory.trouble else ""
    return Verdict(State.WAITING, Do.APPLY_WINNER, "pause", Next(text), to_do, target=name)


def _is_contested(facts: Facts) -> bool:
    return facts.memory.contested or len(facts.memory.recent(facts.now_s)) >= REAPPLIES


def _contested(facts: Facts) -> Verdict:
    first = facts.mismatches[0] if facts.mismatches else facts.memory.trouble
    to_do = f"something else sets the knobs ({first}): stop it; then: jouled apply winner"
    return Verdict(State.CONTESTED, to_do=to_do, contested=True)


def _in_force(facts: Facts, config: Config, winner: Applied) -> Verdict:
    if not facts.mismatches:
        return Verdict(State.IDLE)
    if config.keep.on_mismatch == "report":
        return Verdict(State.IDLE, to_do=f"{facts.mismatches[0]}: jouled apply winner")
    if config.keep.on_mismatch == "retune":
        return _begin_job(facts, config, f"mismatch: {winner.decision_id}")
    if _is_contested(facts):
        return _contested(facts)
    return Verdict(State.WAITING, Do.APPLY_WINNER, "mismatch", Next("apply the winner again"))


# --- a job by itself ----------------------------------------------------------------------------------------


def _begin_job(facts: Facts, config: Config, cause: str) -> Verdict:
    """A job is due: now, when the window opens, when the board has cooled down, or not at all."""
    if cause in facts.memory.tried:
        return Verdict(State.IDLE, to_do="a job was begun by itself and has not helped: jouled history; jouled retune")
    text = f"tune ({cause.partition(':')[0]})"
    if not is_open(config.when.window, facts.local_s):
        return Verdict(State.WAITING, next=Next(text, facts.wall_s + opens_in_s(config.when.window, facts.local_s)))
    if facts.hottest_c is not None and facts.hottest_c > config.when.max_start_temp_c:
        cooler = f"{text} once {facts.hottest_c:.0f} °C have become {config.when.max_start_temp_c:.0f}"
        return Verdict(State.WAITING, next=Next(cooler))
    return Verdict(State.WAITING, Do.RETUNE, "schedule", Next(text), cause=cause)


# --- at the end of the daemon -------------------------------------------------------------------------------


def on_stop(facts: Facts, config: Config) -> Do:
    """What is done before the daemon ends (not when the whole system does)."""
    if config.keep.on_stop != "restore" or facts.in_force() is None or config.mode == "observe":
        return Do.NOTHING
    if facts.switched_off or facts.holder or facts.quarantine.is_held(facts.wall_s):
        return Do.NOTHING
    return Do.APPLY_REFERENCE
