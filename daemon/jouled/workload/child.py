"""One runner as its parent sees it: a process that speaks frames, is heard by a thread, and may fail at any time.

    loading ──R──▶ ready ──start──▶ running ──stop, D──▶ ready … ──end──▶ gone
Whatever the runner does wrong (silence, a broken frame, an impossible time, an early end) ends it by SIGKILL at once,
so that the GPU is free, and is raised to whoever asks next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
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

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024
_KEPT_LINES = 200
_BEAT_S = 1.0
_READ_BYTES = 1 << 16
_SHOWN_LINES = 6


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
        self._spawned = spawned
        self._limits = limits
        self._who = f"{name} (pid {spawned.pid})"
        self._changed = threading.Condition()
        self._reader = FrameReader()
        self._awaited = ""
        self._answer: dict[str, Any] | None = None
        self._check: TimeCheck | None = None
        self._times: list[Times] = []
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stderr = bytearray()
        self._problem: WorkloadError | None = None
        self._has_begun = False
        self._is_ending = False
        self._has_ended = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for descriptor in (spawned.stdin, spawned.stdout, spawned.stderr):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._listen, name=f"jouled-runner-{spawned.pid}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._spawned.pid

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
        """Say `message`; `answer` is the frame that `answer()` will wait for."""
        with self._changed:
            self._awaited, self._answer = answer, None
        self._write(control_line(message))

    def answer(self, *, timeout_s: float, beat: Callable[[], None] | None = None) -> dict[str, Any]:
        """The answer to what was said last. Raises as `ask`, and what `beat` raises, called each second of waiting."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0.0:
            with self._changed:
                self._changed.wait_for(lambda: self._answer is not None or self._has_ended, min(left_s, _BEAT_S))
                found, self._answer = self._answer, None
            if found is not None:
                return found
            self.check()
            if beat is not None:
                beat()
        self._fail(WorkloadHungError(f"{self._who} lives, and has not done what it was asked to in {timeout_s:g} s"))
        raise self._raised()

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
        done = self.answer(timeout_s=self._limits.stop_s)
        with self._changed:
            counted, self._check = (0 if self._check is None else self._check.count), None
        if done.get("sent") != counted:
            self._fail(WorkloadDiedError(f"{self._who} says that {done.get('sent')} requests ended, {counted} came"))
            raise self._raised()

    def check(self) -> None:
        """Raise what went wrong with it, if anything did; it is dead by then."""
        with self._changed:
            if self._problem is None and not self._has_ended:
                return
            self._changed.wait_for(lambda: self._has_ended, self._limits.end_s)
        self._spawned.kill()  # StuckError before anything else: nobody may write beside it
        raise self._raised()

    def ask_to_end(self) -> None:
        """It is to free what it holds and end; `close` waits for that."""
        with self._changed:
            self._is_ending = True
        with contextlib.suppress(WorkloadError):
            self.say({"do": "end"})
        self._spawned.close_stdin()

    def end_at_once(self) -> None:
        """SIGKILL, without a wait for it; `close` still has to be called."""
        with self._changed:
            self._is_ending = True
        self._spawned.signal(signal.SIGKILL)
        self._spawned.close_stdin()

    def close(self) -> None:
        """End it, by SIGKILL where it does not end by itself; idempotent. Raises StuckError."""
        if not self._is_ending:
            self.ask_to_end()
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, self._limits.end_s)
        try:
            self._spawned.kill()
        finally:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)
            self._thread.join()
            self._spawned.release()
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _write(self, data: bytes) -> None:
        until_s = time.monotonic() + self._limits.silence_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._spawned.stdin, selectors.EVENT_WRITE)
            left = memoryview(data)
            while left:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    self._fail(WorkloadHungError(f"{self._who} does not read what it is told"))
                    raise self._raised()
                try:
                    left = left[os.write(self._spawned.stdin, left) :]
                except BrokenPipeError:
                    with self._changed:
                        self._changed.wait_for(lambda: self._has_ended, self._limits.end_s)
                    self._fail(WorkloadDiedError(f"{self._who} does not read what it is told any more"))
                    raise self._raised() from None

    # --- what is heard of it, in a thread of its own ----------------------------------------------------

    def _listen(self) -> None:
        spawned = self._spawned
        with selectors.DefaultSelector() as selector:
            for descriptor in (spawned.stdout, spawned.stderr, spawned.exited, self._wake):
                selector.register(descriptor, selectors.EVENT_READ)
            heard_s = time.monotonic()
            while True:
                left_s = None if self._problem else max(0.0, heard_s + self._limits.silence_s - time.monotonic())
                ready = {key.fd for key, _ in selector.select(left_s)}
                if self._wake in ready:
                    return
                if spawned.stderr in ready and not self._read_text():
                    selector.unregister(spawned.stderr)
                if spawned.stdout in ready:
                    heard_s = time.monotonic()
                    if not self._read_frames():
                        selector.unregister(spawned.stdout)
                if spawned.exited in ready:
                    self._end()
                    return
                if not ready and self._problem is None:
                    silence_s = self._limits.silence_s
                    self._fail(WorkloadHungError(f"{self._who} was silent for {silence_s:g} s and was killed"))

    def _read_text(self) -> bool:
        """Some of its standard error; False: there will be no more."""
        data = _read(self._spawned.stderr)
        if data:
            with self._changed:
                self._stderr += data
                del self._stderr[:-KEPT_BYTES]
        return data != b""

    def _read_frames(self) -> bool:
        data = _read(self._spawned.stdout)
        if not data:
            return data is None
        now_ns = time.monotonic_ns()
        try:
            for frame in self._reader.feed(data):
                with self._changed:
                    self._hear(frame, now_ns)
        except (FrameError, WorkloadDiedError) as error:
            self._fail(WorkloadDiedError(f"{self._who}: {error}", hint=error.hint, code=error.code))
            return False
        return True

    def _hear(self, frame: Frame, now_ns: int) -> None:
        if frame.kind == COMPLETIONS:
            if self._check is None:
                raise FrameError("sends times of requests while no load runs")
            times = frame.times()
            self._check.add(times, now_ns)
            self._times.append(times)
        elif frame.kind == LOG:
            self._lines.append(str(frame.document().get("text", "")))
            log.debug("%s: %s", self._who, self._lines[-1])
        elif frame.kind == ERROR:
            self._problem = self._problem or self._told(frame.document())
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
        kind = WorkloadDiedError if self._has_begun else WorkloadError
        return kind(f"{self._who}: {text}", code=str(document.get("code", "")))

    def _end(self) -> None:
        """It is dead: what is left in the pipes, then its exit code."""
        code = self._spawned.wait(self._limits.end_s)
        while self._problem is None and self._read_frames():
            if _is_empty(self._spawned.stdout):
                break
        self._read_text()
        with self._changed:
            if self._problem is None and not self._is_ending:
                self._problem = WorkloadDiedError(f"{self._who} {self._how(code)}", hint=_hint(code))
            self._has_ended = True
            self._changed.notify_all()

    def _how(self, code: int | None) -> str:
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        if self._reader.pending:
            how += " in the middle of a frame"
        return " | ".join((how, *self._last_words()))

    def _last_words(self) -> Iterator[str]:
        text = bytes(self._stderr[-4096:]).decode("utf-8", "replace")
        yield from [line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]

    def _fail(self, error: WorkloadError) -> None:
        """The first thing that goes wrong ends it."""
        with self._changed:
            self._problem = self._problem or error
        self._spawned.signal(signal.SIGKILL)

    def _raised(self) -> WorkloadError:
        with self._changed:
            found = self._problem or WorkloadDiedError(f"{self._who} has been ended")
        return type(found)(str(found), hint=found.hint, code=found.code)


def _hint(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "look at dmesg: where memory is short the kernel ends the runner first"
    return ""


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None where there is nothing now."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None


def _is_empty(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return not selector.select(0.0)
