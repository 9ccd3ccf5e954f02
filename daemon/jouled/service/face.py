"""What people may ask the daemon for: `jouled.state.Face`, on the loop's own means.

What changes anything is refused where no knob may be written, kept in requests.jsonl, and then carried out; it is
answered when it is done. Who may ask was settled before.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Any

from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import Standing
from jouled.control.schema import LONGEST_PAUSE_S
from jouled.errors import JouledError, UsageError
from jouled.service.keeper import Do, Pause
from jouled.service.loop import Loop, is_stuck
from jouled.service.requests import delete_pause, write_pause
from jouled.service.workers import WorkerBusy, WorkerDied
from jouled.state import Conflict, Failed, Peer, Refused, Source, State, Status, Unavailable

log = logging.getLogger(__name__)

_FORBIDS = {
    State.DISABLED: "no knob may be written",
    State.OBSERVE: 'mode = "observe": no knob is ever written',
    State.HELD: "the board is held after two unclean boots: no knob is written",
    State.STUCK: "a child of the worker hangs in the kernel: nobody may write",
}
Work = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Does what was asked, for whom, and tells what came of it."""


class Service(Loop):
    """The daemon with its face."""

    # --- reads --------------------------------------------------------------------------------------------

    def status(self) -> Status:
        self.outlook.sense()
        return self.outlook.status(None if self.running is None else self.running.shown())

    def decision(self) -> Mapping[str, Any] | None:
        return self.outlook.history.decided

    def history(self, limit: int) -> Sequence[Mapping[str, Any]]:
        self.outlook.history.follow()
        return self.outlook.history.entries(limit)

    def job(self, job: str) -> Mapping[str, Any] | None:
        """Everything about one job."""
        history = self.outlook.history
        history.follow()
        entry = history.entry(job)
        if entry is None:
            return None
        results = history.of_job(job, "finished")
        running = self.running if self.running is not None and self.running.id == job else None
        return {
            **entry.as_json(),
            "is_running": running is not None,
            "running": None if running is None else asdict(running.shown()),
            "result": results[-1].get("result") if results else entry.result,
        }

    def trials(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        history = self.outlook.history
        history.follow()
        if history.entry(job) is None:
            return None
        return [record["trial"] for record in history.of_job(job, "trial") if isinstance(record.get("trial"), dict)]

    def job_events(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        history = self.outlook.history
        history.follow()
        return None if history.entry(job) is None else history.of_job(job)

    def modes(self) -> Mapping[str, Any]:
        self.outlook.view.refresh()
        board, marks = self.outlook.view.board, self.outlook.view.marks
        if board is None or marks is None:
            raise Unavailable(f"the board cannot be read: {self.outlook.view.trouble}", hint="journalctl -u jouled -e")
        space, known = self.site.make_space(board), self.outlook.known
        applied = (
            known.applied if known.applied is not None and known.applied.boot_id == self.outlook.view.boot_id else None
        )
        in_force = space.candidates[space.reference] if applied is None else applied.candidate
        rows = []
        for index, candidate in enumerate(space.candidates):
            standing = known.quarantine.standing(candidate.mode, marks)
            states = (
                ("reference", index == space.reference),
                ("in force", candidate == in_force),
                ("suspect", standing is Standing.SUSPECT),
                ("quarantined", standing is Standing.QUARANTINED),
            )
            rows.append(
                {
                    "name": mode_name(candidate.mode),
                    "mode": asdict(candidate.mode),
                    "variant": asdict(candidate.variant),
                    "state": [name for name, holds in states if holds],
                    "measured": self.outlook.history.measured(candidate),
                }
            )
        named = {"board": board.file.name, "base_mode": board.base_mode.name}
        return {"schema": 1, **named, "grid_size": len(rows), "modes": rows}

    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        return self.fanout.subscribe()

    # --- what is refused ----------------------------------------------------------------------------------

    def _require_quiet(self) -> None:
        """Raise Conflict while a job runs or somebody else holds the board, Unavailable at the end."""
        if self._stop.is_set():
            raise Unavailable("the daemon is ending", hint="ask again once it has started anew")
        if self.running is not None:
            raise Conflict(
                f"job {self.running.id} runs", job=self.running.id, hint=f"wait, or: jouled cancel {self.running.id}"
            )
        if self.outlook.holder:
            raise Conflict(f"{self.outlook.holder} holds the board", hint="wait until it ends, or end it")

    def _require_writable(self) -> None:
        """Raise Refused where no knob may be written, and as `_require_quiet`."""
        self.look()
        self._require_quiet()
        verdict = self.outlook.verdict
        if verdict.state in _FORBIDS:
            raise Refused(_FORBIDS[verdict.state], hint=verdict.to_do)
        if verdict.do is Do.RESTORE or self.outlook.known.has_snapshot:
            trouble = self.outlook.memory.trouble or "what a crash left is being put back"
            raise Conflict(trouble, hint="ask again in a moment")

    def _require_no_pause(self) -> None:
        if self.outlook.verdict.state is State.PAUSED:
            raise Refused("jouled is paused", hint="end the pause first: jouled pause --end")

    # --- changes ------------------------------------------------------------------------------------------

    async def retune(self, request: Mapping[str, Any], peer: Peer) -> str:
        self._check({name: value for name, value in request.items() if name != "dry_run"})
        async with self.lock:
            self._require_writable()
            self._require_no_pause()
            try:
                return await self.begin_job(request, str(peer))
            except WorkerBusy as error:
                raise Conflict(str(error), hint=error.hint) from error

    async def cancel(self, job: str, peer: Peer) -> None:
        running = self.running
        if running is None or running.id != job:
            raise UsageError(f"job {job[:40]} does not run", hint="jouled status")
        self.keep_request("cancel", str(peer), of_job=job)
        try:
            await running.cancel("user")
        except WorkerDied as error:
            raise UsageError(f"job {job[:40]} is ending already: {error}", hint="jouled status") from error

    async def apply(self, target: str, peer: Peer) -> Mapping[str, Any]:
        if target not in ("winner", "reference"):
            target = mode_name(parse_mode_name(target))
        async with self.lock:
            self._require_writable()
            self._require_no_pause()
            if target == "winner":
                self._require_winner()
            return await self._change("apply", peer, lambda who: self.put(target, "user", who), target=target)

    def _require_winner(self) -> None:
        if self.outlook.known.winner is None and self.outlook.known.applied is None:
            raise UsageError("there is no winner to apply", hint="jouled retune finds one")
        if self.outlook.verdict.stale:
            raise Refused(f"the winner no longer holds: {self.outlook.verdict.stale}", hint="jouled retune")

    async def rollback(self, peer: Peer) -> Mapping[str, Any]:
        async with self.lock:
            self._require_writable()
            return await self._change("rollback", peer, lambda who: self.ask({"command": "rollback", "who": who}))

    async def _change(self, verb: str, peer: Peer, work: Work, **named: Any) -> Mapping[str, Any]:
        """Keep the request, do it, look. Raises as `ask`."""
        self.keep_request(verb, str(peer), **named)
        try:
            result = await work(str(peer))
        except WorkerBusy as error:
            raise Conflict(str(error), hint=error.hint) from error
        except Failed as error:
            if is_stuck(error):
                self._note_failure(verb, error)
            raise
        finally:
            self.forgive()
            self.wake()
        self.look()
        self.fanout.publish({"v": 1, "event": verb, "who": str(peer), "result": result})
        return result

    async def verify(self, peer: Peer) -> Mapping[str, Any]:
        log.info("verify asked by %s", peer, extra={"JOULED_VERB": "verify", "JOULED_WHO": str(peer)})
        if self.running is not None or self.lock.locked():
            return {**self._seen(), "busy": True, "holder": "" if self.running is None else f"job {self.running.id}"}
        async with self.lock:
            self.look()
            if self.outlook.holder:
                return {**self._seen(), "busy": True, "holder": self.outlook.holder}
            try:
                found = await self.verify_fully()
            except WorkerBusy as error:
                return {**self._seen(), "busy": True, "holder": str(error)}
            except Unavailable as error:
                return {**self._seen(), "warnings": [f"only root's knobs were not looked at: {error}"]}
            self.look()
            return {**self._seen(), **found, "full": True}

    def _seen(self) -> dict[str, Any]:
        """What the daemon itself saw last."""
        in_force = self.outlook.status(None).in_force
        return {
            "full": False,
            "busy": False,
            "holder": "",
            "mode": None if in_force is None else mode_name(in_force.mode),
            "policy": None if in_force is None else in_force.policy,
            "source": None if in_force is None else in_force.source.value,
            "mismatches": list(self.outlook.mismatches),
            "unknown": [],
            "warnings": [],
            "to_do": self.outlook.verdict.to_do,
        }

    async def pause(self, for_s: float | None, peer: Peer) -> Mapping[str, Any]:
        if for_s is not None and not 0 <= for_s <= LONGEST_PAUSE_S:
            raise UsageError(f"pause: wanted 0 to {LONGEST_PAUSE_S} s, got {for_s:g}", hint="0 ends a pause")
        async with self.lock:
            self._require_quiet()
            self.keep_request("pause", str(peer), for_s=for_s)
            mode, state_dir = self._aside(), self.site.host.state_dir
            if for_s == 0 and not mode:
                delete_pause(state_dir)
            else:  # one that has ended stays for the mode that comes back
                until_wall_s = None if for_s is None else self._clock.wall_s() + for_s if for_s else 0.0
                write_pause(state_dir, Pause(until_wall_s, str(peer), mode))
            self.forgive()
            verdict = self.look()
            if verdict.do in (Do.APPLY_REFERENCE, Do.APPLY_WINNER):
                try:
                    await self._carry_out(verdict)
                except JouledError as error:  # the pause stands, and what it asks for is tried again by itself
                    self._note_failure(verdict.do.value, error)
                self.look()
        status = self.status()
        return {
            "paused": status.state is State.PAUSED,
            "until_wall_s": status.paused_until_wall_s,
            "state": status.state.value,
            "to_do": status.to_do,
        }

    def _aside(self) -> str:
        """The mode that was applied by hand and that a pause puts, or has put, aside."""
        self.outlook.look(is_board_ours=False)
        in_force = self.outlook.status(None).in_force
        if in_force is not None and in_force.source is Source.OTHER:
            return mode_name(in_force.mode)
        return self.outlook.facts(job_phase=None).comes_back()

    async def forget(self, mode: str | None, held: bool, peer: Peer) -> Mapping[str, Any]:
        if (mode is None) == (not held):
            raise UsageError("forget: wanted a mode or held, got both or neither", hint="jouled forget MODE | --held")
        async with self.lock:
            self._require_quiet()
            named = {"held": True} if mode is None else {"mode": mode_name(parse_mode_name(mode))}
            command = {"command": "forget", **named}
            return await self._change("forget", peer, lambda who: self.ask({**command, "who": who}), **named)
