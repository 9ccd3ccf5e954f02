"""The job that runs, as its events tell it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jouled.errors import JouledError
from jouled.service.workers import Conversation, WorkerDied
from jouled.state import RunningJob

log = logging.getLogger(__name__)

_REFUSED = {8: "not_supported", 9: "workload_failed", 10: "board_fault", 12: "board_busy", 13: "cancelled"}


class Job:
    """One job from its request to its last event, `finished`; `trouble`: why there is none."""

    def __init__(self, job: str, who: str, conversation: Conversation, wall_s: float) -> None:
        self.id = job
        self.who = who
        self.phase = "starting"
        self._tried: set[tuple[Any, Any]] = set()
        self.started_wall_s = wall_s
        self.expected_s: float | None = None
        self.finished: Mapping[str, Any] | None = None
        self.trouble = ""
        self._conversation = conversation

    @property
    def trials(self) -> int:
        """Candidates that were tried so far, however many windows each took."""
        return len(self._tried)

    def shown(self) -> RunningJob:
        """As the status shows it."""
        eta_wall_s = None if self.expected_s is None else self.started_wall_s + self.expected_s
        return RunningJob(self.id, self.who, self.phase, self.trials, self.started_wall_s, eta_wall_s)

    def take(self, event: Mapping[str, Any]) -> None:
        """One event."""
        kind = event.get("event")
        if kind == "job_started":
            self.expected_s = event.get("expected_s")
        elif kind == "phase":
            self.phase = event.get("phase") or self.phase
        elif kind == "trial":
            trial = event.get("trial") or {}
            self._tried.add((trial.get("index"), trial.get("policy")))
        elif kind == "finished":
            self.finished = event

    def end(self, wall_s: float) -> dict[str, Any]:
        """What its last event says, for the requests. An outcome of None: a dry run."""
        finished = self.finished or {}
        result, error = finished.get("result"), finished.get("error") or {}
        outcome = _REFUSED.get(error.get("exit_code", 1), "interrupted") if result is None else result.get("outcome")
        reason = {"code": None, "text": str(error.get("text", ""))} if result is None else result.get("reason")
        return {"job": self.id, "wall_s": wall_s, "outcome": outcome, "reason": reason, "result": result}

    async def follow(self, publish: Callable[[Mapping[str, Any]], None]) -> None:
        """Hear it out; `finished` is not published yet. Raises nothing: `trouble` says why there is none."""
        try:
            async for event in self._conversation.events():
                self.take(event)
                if self.finished is None:
                    publish(event)
        except JouledError as error:
            self.trouble = str(error)
            log.error("job %s: %s", self.id, error)
        finally:
            await self._conversation.close()

    async def cancel(self, reason: str) -> None:
        """Ask it to stop. Raises WorkerDied."""
        await self._conversation.send({"command": "cancel", "reason": reason})

    async def give_up(self, reason: str) -> None:
        """As `cancel`; one that hears nothing any more is ending already."""
        with suppress(WorkerDied):
            await self.cancel(reason)
