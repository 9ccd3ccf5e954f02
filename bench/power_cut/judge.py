"""Is a boot after a power cut right? What was heard before it, held against what is there after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.power_cut.machine import Line

ACTIVE_WITHIN_S = 60.0
BASE_MODE = "MODE_50W"


@dataclass(frozen=True, slots=True)
class Memory:
    """What was heard before the cut: jobs that were acknowledged, of all boots, and the mode last seen applied."""

    plan: str = ""
    jobs: frozenset[str] = frozenset()
    is_in_a_trial: bool = False

    def after(self, plan: str, heard: Sequence[Line]) -> Memory:
        """With what one more boot, now cut, has said."""
        told = [line for line in heard if line["event"] == "answered" and line["path"] == "/v1/retune"]
        jobs = {str(line["answer"]["job"]) for line in told if line["code"] == 202}
        course = [str(line["of"]) for line in heard if line["event"] == "seen"]
        ends = ("restored", "finished", "decision")
        last = next((name for name in reversed(course) if name == "mode_applied" or name in ends), "")
        return Memory(plan, self.jobs | jobs, is_in_a_trial=last == "mode_applied")


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot after a cut. `plan`: what went on when the power went; `wrong`: sentences, none when all is right."""

    number: int
    plan: str
    wrong: tuple[str, ...] = ()
    pending: str = ""
    standing: str = ""
    snapshot: bool = False
    torn: int = 0
    acknowledged: int = 0
    active_s: float | None = None
    state: str = ""

    def line(self) -> str:
        what = (
            f"{self.pending} pending: {self.standing or 'nothing held against it'}" if self.pending else "none pending"
        )
        active = "not active" if self.active_s is None else f"active at {self.active_s:.0f} s"
        end = "; ".join(self.wrong) or "right"
        return f"{self.number:3d}  {self.plan:8s} {what:42s} {self.state:9s} {active:15s} {end}"


def judge(number: int, memory: Memory, heard: Sequence[Line]) -> Boot:
    """Of the boot that was `heard`, after what is in `memory`."""
    said = {line["event"]: line for line in reversed(heard)}
    found, up, judged = said.get("found"), said.get("up"), said.get("judged")
    if found is None or up is None or judged is None:
        missing = [name for name in ("found", "up", "judged") if name not in said]
        text = f"not heard: {', '.join(missing)}; {said.get('absent', {}).get('journal', '')[-600:]}"
        return Boot(number, memory.plan, wrong=(text,))
    pending = found["pending"]
    return Boot(
        number=number,
        plan=memory.plan,
        wrong=tuple(_wrong(memory, found, up, judged)),
        pending="" if pending is None else str(pending.get("why", "torn")),
        standing=_standing(pending, judged["quarantine"]),
        snapshot=found["snapshot"] is not None,
        torn=len(found["ledger"]["damaged"]),
        acknowledged=len(memory.jobs),
        active_s=float(up["uptime_s"]),
        state=str(judged["status"]["state"]),
    )


def _wrong(memory: Memory, found: Line, up: Line, judged: Line) -> Iterator[str]:
    if found["differing"]:
        yield f"the board did not come up in the operator's mode: {', '.join(found['differing'][:4])}"
    if BASE_MODE not in found["nvpmodel"]:
        yield f"nvpmodel -q says {found['nvpmodel']!r}"
    if up["uptime_s"] > ACTIVE_WITHIN_S:
        yield f"the service was active only {up['uptime_s']:.0f} s after power on"
    yield from _damaged(found)
    known = {str(entry.get("job")) for entry in judged["history"]["history"]}
    if lost := memory.jobs - known:
        yield f"acknowledged and lost: {', '.join(sorted(lost))}"
    if memory.is_in_a_trial and found["pending"] is None:
        yield "a mode was seen to be applied by a job, but nothing was pending"
    yield from _guard(found, judged)


def _damaged(found: Line) -> Iterator[str]:
    """A cut may tear the line that is being written, which nobody was told is kept: the last one, and no other."""
    damaged = found["ledger"]["damaged"]
    if len(damaged) > 1 or any("torn" not in why for why in damaged):
        yield f"the ledger is damaged: {damaged}"
    for name in ("pending", "quarantine", "applied", "snapshot", "winner"):
        if isinstance(found[name], dict) and "torn" in found[name]:
            yield f"{name}.json is torn: {found[name]['torn'][:60]!r}"


def _guard(found: Line, judged: Line) -> Iterator[str]:
    """What was in force at the cut has a strike, once, and nothing else has one."""
    before, after = _strikes(found["quarantine"]), _strikes(judged["quarantine"])
    pending = found["pending"]
    new = {boot for boot in after if boot not in before}
    if pending is None:
        if new:
            yield f"nothing was pending, but there is a strike of boot {', '.join(new)}"
        return
    if new != {pending["boot_id"]}:
        yield f"{pending['why']} was pending, but the new strikes are {sorted(new)}"
    standing, want = _standing(pending, judged["quarantine"]), _wanted(pending, found["quarantine"])
    if standing not in want:
        yield f"{pending['why']} was pending: wanted {' or '.join(map(repr, want))}, it is {standing!r}"
    old = judged["pending"]
    if old is not None and old["boot_id"] == pending["boot_id"]:
        yield "pending.json of the boot before is still there"


def _strikes(quarantine: Any) -> set[str]:
    return set() if quarantine is None else {str(strike["boot_id"]) for strike in quarantine["unclean"]}


def _entry(mode: Any, quarantine: Any) -> Any:
    entries = [] if quarantine is None else quarantine["entries"]
    return next((entry for entry in entries if entry["mode"] == mode), None)


def _standing(pending: Any, quarantine: Any) -> str:
    """What is held against the pending mode; "" for nothing."""
    entry = None if pending is None else _entry(pending.get("mode"), quarantine)
    return "" if entry is None else str(entry["standing"])


def _wanted(pending: Any, before: Any) -> tuple[str, ...]:
    """ARCHITECTURE, section 4: a trial's mode at the first strike, a winner at the second, the reference never."""
    entry = _entry(pending["mode"], before)
    if pending["why"] == "reference":
        return ("",) if entry is None else (str(entry["standing"]),)
    if pending["why"] == "trial" or entry is not None:
        return ("quarantined",)
    return ("suspect",)
