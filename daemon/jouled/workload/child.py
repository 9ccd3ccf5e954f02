"""One runner as its parent sees it: a process that speaks frames, and may fail at any time.

loading ──R──▶ ready ──start──▶ running ──stop, D──▶ ready … ──end──▶ gone
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jouled.board.process import Spawned
from jouled.errors import FrameError, WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.workload.arrival import Share, TimeCheck
from jouled.workload.frames import (
    BEAT,
    COMPLETIONS,
    DONE,
    ERROR,
    INSPECTED,
    LOG,
    READY,
    Frame,
    FrameReader,
    Times,
    control_line,
)
from jouled.workload.listener import Listener

log = logging.getLogger(__name__)

_KEPT_LINES = 200
_BEAT_S = 1.0
_SHOWN_LINES = 6
# What is to be done about what a runner says, by its own word.
_HINTS = {
    "plan_unreadable": "jouled check-config tries every file as whoever runs it",
    "plan_invalid": "a plan fits the TensorRT version and the GPU that it was built with, and no other: build it here; "
    "a model in ONNX goes in workloads.NAME.onnx",
    "shape_outside_profile": "set workloads.NAME.batch or shapes to what the engine was built for",
    "inputs_invalid": "workloads.NAME.inputs: numpy.savez(FILE, NAME=array) with one array for each input by its name",
    "output_mismatch": "is it the right engine, with the inputs that workloads.NAME.outputs belongs to? tolerance "
    "allows more",
    "build_failed": "trtexec --onnx=MODEL says more about why",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a runner may be silent, may load, may take to finish its last request, and may take to end."""

    silence_s: float = 5.0
    load_s: float = 120.0
    stop_s: float = 60.0
    end_s: float = 5.0


class RunnerChild:
    """A runner process. `name` stands before its pid in every message."""

    def __init__(self, spawned: Spawned, *, name: str, limits: Limits) -> None:
        self.pid = spawned.pid
        self._limits = limits
        self._reader = FrameReader()
        self._awaited = ""
        self._answer: dict[str, Any] | None = None
        self._check: TimeCheck | None = None
        self._times: list[Times] = []
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._has_begun = False
        self._listener = Listener(
            spawned,
            who=f"{name} (pid {spawned.pid})",
            on_data=self._on_data,
            silence_s=limits.silence_s,
            end_s=limits.end_s,
            pending=lambda: " in the middle of a frame" if self._reader.pending else "",
        )
        self._changed = self._listener.changed
        self._listener.start()

    @property
    def log_lines(self) -> tuple[str, ...]:
        """What it has logged of itself, the last 200 lines."""
        with self._changed:
            return tuple(self._lines)

    # --- what is asked of it ----------------------------------------------------------------------------

    def ask(self, message: Mapping[str, Any], answer: str, *, timeout_s: float) -> dict[str, Any]:
        """Say `message` and wait for the frame `answer`. Raises WorkloadError, WorkloadDiedError, WorkloadHungError."""
        self.say(message, answer)
        return self.answer(timeout_s=timeout_s)

    def say(self, message: Mapping[str, Any], answer: str = "") -> None:
        """Say `message`; `answer` is the frame that `answer()` will wait for. Raises as `ask`."""
        with self._changed:
            self._awaited, self._answer = answer, None
        self._listener.write(control_line(message), within_s=self._limits.silence_s)

    def answer(self, *, timeout_s: float, beat: Callable[[], None] | None = None) -> dict[str, Any]:
        """The answer to what was said last. Raises as `ask`, and what `beat` raises, called each second of waiting."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0.0:
            with self._changed:
                self._changed.wait_for(self._is_answered, min(left_s, _BEAT_S))
                found, self._answer = self._answer, None
            if found is not None:
                return found
            self.check()
            if beat is not None:
                beat()
        self._listener.fail(
            WorkloadHungError(f"{self._listener.who} lives, and has not done what it was asked to in {timeout_s:g} s")
        )
        self.check()
        raise AssertionError("a failed child passed its check")

    def begin(self, share: Share, at_ns: int) -> None:
        """Requests from `at_ns` on. Raises WorkloadDiedError, WorkloadHungError."""
        self.check()
        with self._changed:
            self._times.clear()
            self._check = TimeCheck(share, at_ns)
            self._has_begun = True
        self.say({"do": "start", "arrival": share.message(), "at_ns": at_ns})

    def taken(self) -> list[Times]:
        """What has come since the last call. Raises WorkloadDiedError, WorkloadHungError."""
        self.check()
        with self._changed:
            times, self._times = self._times, []
        return times

    def ask_to_stop(self) -> None:
        """No more requests; `stopped` waits for the last one."""
        self.say({"do": "stop"}, DONE)

    def stopped(self) -> None:
        """Wait for the request in flight. Raises WorkloadDiedError, WorkloadHungError."""
        sent = self.answer(timeout_s=self._limits.stop_s).get("sent")
        with self._changed:
            counted, self._check = (0 if self._check is None else self._check.count), None
        if sent != counted:
            text = f"{self._listener.who} says that {sent} requests ended, {counted} came"
            self._listener.fail(WorkloadDiedError(text, code="wrong_times"))
            self.check()

    def check(self) -> None:
        """Raise what went wrong with it, if anything did; it is dead by then. Raises StuckError."""
        self._listener.check()

    def ask_to_end(self) -> None:
        """It is to free what it holds and end; `close` waits for that."""
        with contextlib.suppress(WorkloadError):
            self.say({"do": "end"})
        self._listener.end_by()

    def end_at_once(self) -> None:
        """SIGKILL, without a wait for it; `close` still has to be called."""
        self._listener.end_by(signal.SIGKILL)

    def close(self) -> None:
        """End it, by SIGKILL where it does not end by itself; idempotent. Raises StuckError."""
        self._listener.close()

    def _is_answered(self) -> bool:
        return self._answer is not None or self._listener.has_ended

    # --- what is heard of it, in the listener's thread --------------------------------------------------

    def _on_data(self, _: int, data: bytes, now_ns: int) -> None:
        for frame in self._reader.feed(data):
            self._hear(frame, now_ns)

    def _hear(self, frame: Frame, now_ns: int) -> None:
        if frame.kind == COMPLETIONS:
            if self._check is None:
                raise FrameError("sends times of requests while no load runs")
            times = frame.times()
            self._check.add(times, now_ns)
            self._times.append(times)
        elif frame.kind == LOG:
            self._lines.append(str(frame.document().get("text", "")))
            log.debug("%s: %s", self._listener.who, self._lines[-1])
        elif frame.kind == ERROR:
            self._listener.blame(self._told(frame.document()))
        elif frame.kind in (READY, INSPECTED, DONE):
            if frame.kind != self._awaited:
                raise FrameError(f"answers {frame.kind!r} where {self._awaited or 'nothing'!r} was asked for")
            self._awaited, self._answer = "", frame.document()
            self._changed.notify_all()
        else:
            assert frame.kind == BEAT

    def _told(self, document: Mapping[str, Any]) -> WorkloadError:
        """What the runner itself says went wrong, with the last lines of the library that it uses."""
        told = document.get("log")
        lines = [str(line) for line in told] if isinstance(told, list) else []
        text = " | ".join((str(document.get("text", "")), *lines[-_SHOWN_LINES:]))
        kind, code = WorkloadDiedError if self._has_begun else WorkloadError, str(document.get("code", ""))
        return kind(f"{self._listener.who}: {text}", code=code, hint=_HINTS.get(code, ""))
