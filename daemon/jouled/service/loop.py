"""The daemon's life: a tick each second, a look each `verify_interval_s`, one thing at a time asked of the worker.

Everything runs in one thread. What the worker is asked for by itself follows from the keeper's verdict; what people ask
for comes through the face (`face.py`). Both take the same lock, so that knobs are never wanted in two ways at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jouled.board.modename import mode_name
from jouled.board.pending import SURVIVED_S
from jouled.config import Config
from jouled.errors import JouledError, StateError
from jouled.job.site import Site
from jouled.service.fanout import Fanout
from jouled.service.jobs import Job
from jouled.service.keeper import STUCK_EVERY_S, Do, Verdict, on_stop
from jouled.service.notify import Notifier
from jouled.service.outlook import FullVerify, Outlook
from jouled.service.requests import ROTATE_ABOVE_BYTES
from jouled.service.workers import Door, WorkerBusy, ask, converse
from jouled.state import Conflict, Failed, Source
from jouletune.decision import ReasonCode

log = logging.getLogger(__name__)

TICK_S = 1.0
RESUMED_S = 1.0  # so far the two clocks move apart only in suspend
FULL_VERIFY_EVERY_S = 3600.0
_JUDGED_S = SURVIVED_S + 5.0  # by then the worker may clear pending.json
PATIENCE_S = 5.0
_BUSY_AGAIN_S = 2.0
_NOT_BEFORE_S = 1.0  # should an action not have had its effect, it is not begun again at once
_LONGEST_RETRY_S = 60.0
_EXTEND_S = 30.0
_STOP_S = 150.0
ITSELF = "jouled"

CheckRequest = Callable[[Mapping[str, Any]], Config]


def is_stuck(error: JouledError) -> bool:
    """Does the worker say that a child of its hangs in the kernel?"""
    return isinstance(error, Failed) and error.kind == "StuckError"


class Loop:
    """Looks, decides, acts. `door` leads to a worker, `check` makes a request's configuration (ConfigError)."""

    def __init__(
        self,
        site: Site,
        door: Door,
        check: CheckRequest,
        notifier: Notifier,
        *,
        journal_fields: bool = False,
        tick_s: float = TICK_S,
    ) -> None:
        self.site = site
        self.config = site.config
        self.outlook = Outlook(site, journal_fields=journal_fields)
        self.fanout = Fanout()
        self.running: Job | None = None
        self.lock = asyncio.Lock()
        self._door = door
        self._check = check
        self._notifier = notifier
        self._clock = site.host.clock
        self._tick_s = tick_s
        self._stop = asyncio.Event()
        self._is_dirty = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._action: asyncio.Task[None] | None = None
        self._failures = 0
        self._look_due_s = 0.0
        self._full_due_s = self._clock.monotonic_s() + FULL_VERIFY_EVERY_S
        self._apart_s = self._clock.boottime_s() - self._clock.monotonic_s()
        self._pending: tuple[object, float] | None = None
        self._deaths: dict[str, str] = {}
        self._mistake: BaseException | None = None

    # --- the whole ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop` or SIGTERM; the board is then as the configuration's `on_stop` says."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            self._begin()
            self._notifier.ready()
            while not self._stop.is_set():
                self._tick()
                timer = loop.call_later(self._tick_s, self._is_dirty.set)
                await self._is_dirty.wait()
                timer.cancel()
            await self._end()
            if self._mistake is not None:
                raise self._mistake
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            self.fanout.close()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """Look again now: something has changed."""
        self._look_due_s = 0.0
        self._is_dirty.set()

    def _begin(self) -> None:
        try:
            self.outlook.warnings += self.outlook.requests.mend(rotate_above_bytes=ROTATE_ABOVE_BYTES)
        except StateError as error:
            log.error("%s", error)
            self.outlook.warnings += (str(error),)
        self.look()
        if self.outlook.view.board is None:
            self._full_due_s = self._clock.monotonic_s()  # the worker may see, or make, what we cannot

    def _tick(self) -> None:
        self._notifier.alive()
        self._is_dirty.clear()
        now_s = self._clock.monotonic_s()
        apart_s = self._clock.boottime_s() - now_s
        if abs(apart_s - self._apart_s) > RESUMED_S:
            log.info("the board was suspended or has booted (%.0f s): verify now", apart_s - self._apart_s)
            self._look_due_s = 0.0
        self._apart_s = apart_s
        if self._is_acting():
            return
        is_due = now_s >= self._look_due_s or self._is_due()
        if is_due:
            self.look()
            if self.running is not None and self.outlook.switched_off:
                log.warning("job %s is cancelled: %s", self.running.id, self.outlook.switched_off)
                self._spawn(self.running.give_up("user"))
        if is_due or self.outlook.verdict.do is not Do.NOTHING:
            self._act()

    def _is_acting(self) -> bool:
        return self._action is not None or self.lock.locked()

    def _is_due(self) -> bool:
        due_wall_s = self.outlook.verdict.next.due_wall_s
        return due_wall_s is not None and self._clock.wall_s() >= due_wall_s

    def look(self) -> Verdict:
        """See how everything is and decide."""
        self.outlook.look(is_board_ours=self.running is not None)
        pause_s = self.config.keep.verify_interval_s
        if self.outlook.holder:
            pause_s = min(pause_s, _BUSY_AGAIN_S)
        self._look_due_s = self._clock.monotonic_s() + pause_s
        if self.outlook.memory.contested and self.outlook.is_winner_right:
            self._remember(contested=False, applies_s=())
        verdict = self.outlook.decide(job_phase=None if self.running is None else self.running.phase)
        self._notifier.status(self.outlook.line(None if self.running is None else self.running.id))
        return verdict

    # --- by itself ----------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Begin what the verdict says, if nothing is under way."""
        if self.running is not None:
            return
        verdict = self.outlook.verdict
        self._remember(contested=self.outlook.memory.contested or verdict.contested)
        if verdict.do is not Do.NOTHING:
            self._spawn_action(self._carry_out(verdict))
        elif self._is_idle() and self._wants_full_verify():
            self._spawn_action(self.verify_fully())
        elif self._is_idle():
            self.settle_jobs()

    def _is_idle(self) -> bool:
        facts = self.outlook.facts(job_phase=None)
        return not (facts.holder or facts.has_snapshot or facts.switched_off or facts.memory.stuck)

    def _spawn_action(self, work: Awaitable[object]) -> None:
        self._action = self._spawn(self._guarded(work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin it. What it does not expect ends the daemon: a fresh one begins by putting things right."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._mistake = task.exception()
                self.stop()

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _guarded(self, work: Awaitable[object]) -> None:
        try:
            async with self.lock:
                await work
            self._failures = 0
            again_s = self._clock.monotonic_s() + _NOT_BEFORE_S
            self._remember(stuck=False, retry_s=again_s, trouble="")
        except (WorkerBusy, Conflict) as error:
            trouble = self.outlook.memory.trouble if self.outlook.memory.stuck else str(error)
            self._remember(retry_s=self._clock.monotonic_s() + _BUSY_AGAIN_S, trouble=trouble)
        except JouledError as error:
            self._note_failure(self.outlook.verdict.do.value, error)
        finally:
            self._action = None
            self.wake()

    def _note_failure(self, what: str, error: JouledError) -> None:
        """Not again at once: after 1 … 60 s, or each 60 s where the worker hangs in the kernel."""
        log.error("%s: %s", what, error)
        pause_s = STUCK_EVERY_S if is_stuck(error) else min(_LONGEST_RETRY_S, 2.0**self._failures)
        self._failures += 1
        trouble = f"{error}; {error.hint}" if error.hint else str(error)
        self._remember(stuck=is_stuck(error), retry_s=self._clock.monotonic_s() + pause_s, trouble=trouble)

    def _remember(self, **changes: Any) -> None:
        self.outlook.memory = replace(self.outlook.memory, **changes)

    def forgive(self) -> None:
        """Somebody has asked for something: what failed may be tried again at once, but beside what hangs nothing."""
        self._remember(contested=False, applies_s=())
        if not self.outlook.memory.stuck:
            self._remember(retry_s=0.0)

    async def _carry_out(self, verdict: Verdict) -> None:
        if verdict.do is Do.RESTORE:
            await self.ask({"command": "restore", "who": ITSELF})
        elif verdict.do is Do.RETUNE:
            self._remember(tried=self.outlook.memory.tried | {verdict.cause})
            await self.begin_job({}, f"{ITSELF} ({verdict.cause})")
        elif verdict.do is Do.APPLY_REFERENCE:
            await self.put("reference", verdict.why, ITSELF)
        else:
            now_s = self._clock.monotonic_s()
            self._remember(applies_s=(*self.outlook.memory.recent(now_s), now_s))
            self.outlook.reapplies += verdict.why == "mismatch"
            await self.put(verdict.target or self._wanted_target(), verdict.why, ITSELF)

    def _wanted_target(self) -> str:
        """`winner`, or the name of a mode that was applied by hand and is wanted again."""
        wanted, winner = self.outlook.known.applied, self.outlook.known.winner
        if wanted is None or winner is None or wanted.decision_id == winner.decision_id:
            return Source.WINNER.value
        return mode_name(wanted.candidate.mode)

    def _wants_full_verify(self) -> bool:
        now_s = self._clock.monotonic_s()
        pending = self.outlook.known.pending
        if pending is None:
            self._pending = None
        elif self._pending is None or self._pending[0] != pending:
            self._pending = (pending, now_s + _JUDGED_S)
        if self._pending is not None and now_s >= self._pending[1]:
            self._pending = (pending, float("inf"))
            return True
        return now_s >= self._full_due_s

    async def verify_fully(self) -> Mapping[str, Any]:
        """The worker's look at every knob. Raises as `ask`."""
        self._full_due_s = self._clock.monotonic_s() + FULL_VERIFY_EVERY_S
        result = await self.ask({"command": "verify"})
        self.outlook.full = FullVerify(self._clock.wall_s(), tuple(map(str, result.get("mismatches", ()))))
        return result

    # --- the worker ---------------------------------------------------------------------------------------

    async def ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have a short command carried out. Raises WorkerBusy, Unavailable, Failed, and what `error_of` makes."""
        return await ask(self._door, command, patience_s=PATIENCE_S)

    async def put(self, target: str, why: str, who: str) -> Mapping[str, Any]:
        """Have `target` put in force; a verified apply is a full verify. Raises as `ask`."""
        result = await self.ask({"command": "apply", "target": target, "why": why, "who": who})
        self.outlook.full = FullVerify(self._clock.wall_s())
        self._full_due_s = self._clock.monotonic_s() + FULL_VERIFY_EVERY_S
        return result

    async def begin_job(self, request: Mapping[str, Any], who: str) -> str:
        """A worker that listens has the request, and it is on the disk; the job's id. Raises as `ask`, StateError."""
        conversation = await converse(self._door, patience_s=PATIENCE_S)
        job = uuid.uuid4().hex[:12]
        try:
            self.keep_request("retune", who, job=job, request=dict(request))
            await conversation.send({"command": "tune", "job": job, "who": who, "request": dict(request)})
        except JouledError:
            await conversation.close()
            raise
        self.running = Job(job, who, conversation, self._clock.wall_s())
        self.look()
        self._spawn(self._follow(self.running))
        self.wake()
        return job

    def keep_request(self, verb: str, who: str, **more: Any) -> None:
        """On the disk when it returns. Raises StateError: then nothing may be done."""
        line = {"event": "request", "verb": verb, "wall_s": self._clock.wall_s(), "who": who, **more}
        self.outlook.requests.append(line)
        log.info("%s asked by %s", verb, who, extra={"JOULED_VERB": verb, "JOULED_WHO": who})

    async def _follow(self, job: Job) -> None:
        await job.follow(self._publish)
        if job.finished is None:
            self._deaths[job.id] = job.trouble or "the worker ended"
        self.running = None
        self.outlook.full = None
        self._remember(contested=False, applies_s=(), retry_s=0.0)
        self._keep_end(job)
        self.look()
        self.wake()
        if job.finished is not None:  # who hears of the end finds it in the status, too
            self._publish(job.finished)

    def _keep_end(self, job: Job) -> None:
        """A dry run, and a job that was refused before it began, are not in the ledger: their end is kept by us."""
        self.outlook.history.follow()
        entry = self.outlook.history.entry(job.id)
        if job.finished is None or entry is None or entry.has_ended:
            return
        try:
            self.outlook.requests.append({"event": "ended", "presumed": False, **job.end(self._clock.wall_s())})
        except StateError as error:
            log.error("%s", error)

    def _publish(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "phase" and event.get("phase") == "watching":
            self.wake()
        self.fanout.publish(event)

    def settle_jobs(self) -> None:
        """Jobs that never said how they ended, and whose board is put back, were interrupted: write that down."""
        for entry in self.outlook.left_open():
            text = self._deaths.pop(entry.job, "")
            code = ReasonCode.WORKER_GONE if text else ReasonCode.DAEMON_GONE
            reason = {"code": code.value, "text": text or "the daemon went while it ran"}
            ended = {"job": entry.job, "wall_s": self._clock.wall_s(), "outcome": "interrupted", "reason": reason}
            try:
                self.outlook.requests.append({"event": "ended", **ended})
            except StateError as error:
                log.error("%s", error)
                return
            log.warning("job %s was interrupted: %s", entry.job, reason["text"])
            self.outlook.history.follow()
            error_text = {"kind": "Interrupted", "text": reason["text"], "hint": "jouled retune", "exit_code": 11}
            self.fanout.publish(
                {"v": 1, "event": "finished", "job": entry.job, "ok": False, "result": ended, "error": error_text}
            )

    # --- the end ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        self._notifier.stopping()
        ending = asyncio.get_running_loop().create_task(self._leave())
        while not ending.done():
            self._notifier.alive()
            self._notifier.extend(_EXTEND_S)
            await asyncio.wait({ending}, timeout=self._tick_s)
        ending.result()

    async def _quiet(self) -> None:
        """The job and what the worker was asked for, by whomever, are over."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        async with self.lock:
            pass

    async def _leave(self) -> None:
        """Cancel the job and hear it out; then the reference, where `on_stop` wants it."""
        if self.running is not None:
            await self.running.give_up("daemon_gone")
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quiet(), _STOP_S)
        self.running = None
        self.outlook.look(is_board_ours=False)
        is_wanted = on_stop(self.outlook.facts(job_phase=None), self.config) is Do.APPLY_REFERENCE
        if not is_wanted or self._mistake is not None:  # after a mistake the next daemon follows in 5 s
            return
        try:
            command = {"command": "apply", "target": "reference", "why": "stop", "who": ITSELF}
            await ask(self._door, command, patience_s=0.0)
        except JouledError as error:
            log.warning("the reference was not applied at the end (the system may be going down): %s", error)
