"""What is known now, gathered: the board, the state files, the history. Makes the keeper's facts and the status."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jouled import __version__
from jouled.board.applied import Applied
from jouled.board.modename import mode_name
from jouled.config import Config
from jouled.job.site import Site
from jouled.service.configfile import ConfigFile
from jouled.service.files import Files, Known, living_holder, switched_off
from jouled.service.history import History, JobEntry
from jouled.service.holds import staleness
from jouled.service.keeper import Facts, Memory, Verdict, decide
from jouled.service.requests import Requests
from jouled.service.view import Look, View
from jouled.state import InForce, Next, Readings, RunningJob, Side, Source, State, Status, Winner
from jouled.workload.marks import FileWatch

log = logging.getLogger(__name__)

SENSE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class FullVerify:
    """What the worker saw, which may read every knob, at its last look."""

    wall_s: float
    mismatches: tuple[str, ...] = ()


def local_seconds(wall_s: float) -> float:
    """Seconds since local midnight."""
    at = time.localtime(wall_s)
    return at.tm_hour * 3600.0 + at.tm_min * 60.0 + at.tm_sec


class Outlook:
    """Looks when told to; in between everything is as it was seen last."""

    def __init__(self, site: Site, *, journal_fields: bool) -> None:
        self._site = site
        self._host = site.host
        self.config: Config = site.config
        self._files = Files(self._host.state_dir)
        self.view = View(self._host, self.config)
        self._engines = FileWatch()
        self._marks: Mapping[str, str] | None = None
        self.requests = Requests(self._host.state_dir)
        self.history = History(self._host.state_dir / "ledger.jsonl", self.requests.path)
        self.memory = Memory()
        self.known = Known()
        self.full: FullVerify | None = None
        self.reapplies = 0
        self.warnings: tuple[str, ...] = ()
        self._look: Look | None = None
        self._looked_wall_s: float | None = None
        self._readings: Readings | None = None
        self._sensed_s = 0.0
        self._standing: dict[str, str] = {}
        self.switched_off = ""
        self.holder = ""
        self._is_busy = False
        self._journal_fields = journal_fields
        self._started_wall_s = self._host.clock.wall_s()
        self._state, self._since_wall_s = State.IDLE, self._started_wall_s
        self._were_open: set[str] = set()
        self.verdict = Verdict(State.IDLE)
        self.config_file = ConfigFile(None)

    # --- looking ------------------------------------------------------------------------------------------

    def look(self, *, is_board_ours: bool) -> None:
        """See how everything is. While a worker turns knobs for us the board is left out."""
        self.history.follow()
        self._were_open = {entry.job for entry in self.history.open_jobs()}
        self.known = self._files.read()
        self.switched_off = switched_off(self._host)
        self.holder = "" if is_board_ours else living_holder(self._host)
        if not is_board_ours:
            self.view.refresh()
        self._is_busy = is_board_ours or bool(self.holder)
        if not self._is_busy:
            self._looked_wall_s = self._host.clock.wall_s()
        if not self._is_busy or self._look is None:
            self._look = self.view.look(self._in_force(), source=self._source(), compares=not self._is_busy)
        self._sense(with_caps=True)
        self._marks = self._workload_marks()
        self.say("config", self.config_file.difference())

    def sense(self) -> None:
        """Have readings that are not older than a second. No knob is read, and nothing decided."""
        if self._readings is not None and self._host.clock.monotonic_s() - self._sensed_s >= SENSE_EVERY_S:
            self._sense(with_caps=False)

    def _sense(self, *, with_caps: bool) -> None:
        self._readings = self.view.readings(self._host.clock.wall_s(), with_caps=with_caps)
        self._sensed_s = self._host.clock.monotonic_s()

    def say(self, what: str, text: str) -> None:
        """A trouble that stands until it is said to be over: "" as the text."""
        self._standing = {name: told for name, told in (self._standing | {what: text}).items() if told}

    def _workload_marks(self) -> Mapping[str, str] | None:
        """Of the workload that the winner was found with, as its files are now; None where it has none to look at."""
        winner = self.known.applied or self.known.winner
        entry = None if winner is None else self.config.workloads.get(winner.workload)
        if winner is None or entry is None or not winner.workload_marks:
            return None
        return self._engines.marks(entry, winner.workload_marks)

    def _in_force(self) -> Applied | None:
        """What this boot has in force; what was found for another base mode went when the operator changed that."""
        applied = self.known.applied
        if applied is None or applied.boot_id != self.view.boot_id:
            return None
        stale = staleness(
            applied, self.config, fingerprint=self.view.marks, workload=applied.workload, asked={"clocks": "both"}
        )
        return None if stale is not None and stale.kind == "fingerprint" else applied

    def _source(self) -> Source:
        applied, winner = self._in_force(), self.known.winner
        if applied is None:
            return Source.REFERENCE
        is_winner = bool(applied.workload) if winner is None else winner.decision_id == applied.decision_id
        return Source.WINNER if is_winner else Source.OTHER

    @property
    def mismatches(self) -> tuple[str, ...]:
        """All knobs that are wrong, as far as is known; what only root may read as at the worker's last look."""
        mine = () if self._look is None else self._look.mismatches
        told = () if self.full is None else tuple(text for text in self.full.mismatches if text not in mine)
        return mine + told

    @property
    def is_winner_right(self) -> bool:
        """Is something else than the reference in force, and every knob as it should be?"""
        return self._in_force() is not None and not self.mismatches

    def left_open(self) -> list[JobEntry]:
        """Jobs without an end that were there before it was seen that nobody holds the board, and have none since."""
        self.history.follow()
        return [entry for entry in self.history.open_jobs() if entry.job in self._were_open]

    # --- deciding -----------------------------------------------------------------------------------------

    def facts(self, *, job_phase: str | None) -> Facts:
        """For the keeper."""
        clock, known = self._host.clock, self.known
        wall_s = clock.wall_s()
        winner = known.applied or known.winner
        return Facts(
            now_s=clock.monotonic_s(),
            wall_s=wall_s,
            boottime_s=clock.boottime_s(),
            local_s=local_seconds(wall_s),
            boot_id=self.view.boot_id,
            workload=self._site.workload,
            fingerprint=self.view.marks,
            applied=known.applied,
            winner=known.winner,
            pending=known.pending,
            quarantine=known.quarantine,
            has_snapshot=known.has_snapshot or "pending" in known.damaged,
            holder=self.holder,
            switched_off=self.switched_off or self._unreadable(),
            pause=known.pause,
            asked=self._asked(winner),
            stood_aside="stop" if "applied" in known.damaged else self.history.stood_aside,
            mismatches=self.mismatches,
            untuned=self._is_untuned(),
            hottest_c=self._hottest_c(),
            job_phase=job_phase,
            memory=self.memory,
            workload_marks=self._marks,
        )

    def _unreadable(self) -> str:
        """Without the list of modes that took the board down none may be applied."""
        if "quarantine" not in self.known.damaged:
            return ""
        path = self._host.state_dir / "quarantine.json"
        return f"{path} is damaged, so no mode may be applied: look at it, then move it away"

    def _asked(self, winner: Applied | None) -> Mapping[str, Any]:
        entry = None if winner is None else self.history.entry(winner.decision_id)
        return {} if entry is None or entry.request is None else entry.request

    def _is_untuned(self) -> bool:
        decided, board = self.history.decided, self.view.board
        if self.known.winner is not None or self.known.applied is not None:
            return False
        if decided is None or board is None:
            return True
        return (decided.get("workload"), decided.get("base_mode")) != (self._site.workload, board.base_mode.name)

    def _hottest_c(self) -> float | None:
        found = self._readings.temperature_c if self._readings is not None else {}
        for name in ("tj-thermal", "tj-therm"):
            if name in found:
                return found[name]
        return max(found.values(), default=None)

    def decide(self, *, job_phase: str | None) -> Verdict:
        """What is to be done; a change of state is remembered with its time and logged."""
        self.verdict = decide(self.facts(job_phase=job_phase), self.config)
        if self.verdict.state is not self._state:
            now = self.verdict
            why = f": {now.to_do}" if now.to_do else ""
            fields = {"JOULED_STATE": now.state.value}
            log.info("state %s -> %s%s", self._state.value, now.state.value, why, extra=fields)
            self._state, self._since_wall_s = now.state, self._host.clock.wall_s()
        return self.verdict

    # --- showing ------------------------------------------------------------------------------------------

    def status(self, job: RunningJob | None) -> Status:
        """All of it, as a value."""
        known, verdict = self.known, self.verdict
        quarantined = 0 if self.view.marks is None else len(known.quarantine.quarantined(self.view.marks))
        damaged = self.history.damaged
        lines = (f"{damaged} damaged lines in the ledger were passed over",) if damaged else ()
        trouble = (f"the board cannot be read: {self.view.trouble}",) if self.view.trouble else ()
        told = self.view.board.warnings if self.view.board is not None else ()
        return Status(
            state=self._state,
            since_wall_s=self._since_wall_s,
            wall_s=self._host.clock.wall_s(),
            board=self.view.info(),
            in_force=self._shown_in_force(),
            winner=self._shown_winner(),
            mismatches=self.mismatches,
            job=job,
            last_job=self.history.last_job(),
            next=Next() if job is not None else verdict.next,
            to_do=verdict.to_do,
            paused_until_wall_s=self._paused_until_wall_s(),
            quarantined=quarantined,
            counters=self.history.counters(reapplies=self.reapplies),
            readings=self._readings,
            warnings=(*self.warnings, *self._standing.values(), *trouble, *known.troubles, *lines, *told),
            versions={"jouled": __version__},
            journal_fields=self._journal_fields,
            started_wall_s=self._started_wall_s,
        )

    def line(self, job: str | None) -> str:
        """In one, for `systemctl status`; `job`: which one runs."""
        state, found = self._state.value, self._shown_in_force()
        if job is not None:
            return f"{state}: job {job}"
        if found is None:
            return f"{state}: the board cannot be read"
        right = "verified" if found.verified else f"{len(self.mismatches)} knobs differ"
        return f"{state}: {mode_name(found.mode)} ({found.source.value}), {right}"

    def _paused_until_wall_s(self) -> float | None:
        pause = self.known.pause
        return pause.until_wall_s if pause is not None and self._state is State.PAUSED else None

    def _shown_in_force(self) -> InForce | None:
        look, applied = self._look, self._in_force()
        if look is None:
            return None
        is_right = not self.mismatches
        change = self.history.last_change
        since_wall_s = None if change is None else change.get("wall_s")
        if applied is not None:
            since_wall_s = self.known.applied_wall_s
        return InForce(
            source=look.source,
            mode=look.mode,
            policy=look.policy,
            since_wall_s=since_wall_s,
            verified=is_right and not self._is_busy,
            last_verify_wall_s=self._looked_wall_s,
            last_full_verify_wall_s=None if self.full is None else self.full.wall_s,
            unknown=look.unknown,
        )

    def _shown_winner(self) -> Winner | None:
        winner = self.known.winner or self.known.applied
        if winner is None or not winner.workload:  # a mode applied by hand is nobody's winner
            return None
        tuned = self.history.tuned
        result: Mapping[str, Any] = tuned if tuned is not None and tuned.get("job") == winner.decision_id else {}
        interval = result.get("saving_interval")
        return Winner(
            mode=winner.candidate.mode,
            policy=winner.policy,
            workload=winner.workload,
            job=winner.decision_id,
            decided_wall_s=winner.wall_s,
            latency_bound_s=winner.latency_bound_s,
            latency_percentile=winner.latency_percentile,
            inference_name=result.get("inference_name") or "inference",
            rail=result.get("rail"),
            saving_ratio=result.get("saving_ratio"),
            saving_interval=None if interval is None else (interval[0], interval[1]),
            reference=_side(result.get("reference")),
            applied=_side(result.get("winner")),
            stale=self.verdict.stale,
        )


def _side(found: Mapping[str, Any] | None) -> Side | None:
    if found is None:
        return None
    return Side(found["energy_j"], found.get("latency_s"), found.get("latency_upper_s"), found.get("power_w"))
