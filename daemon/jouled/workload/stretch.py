"""One run of a program that tells all of its times at its end (trtexec)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from jouled.board.process import Spawned
from jouled.errors import WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.workload.arrival import Share
from jouled.workload.child import Limits
from jouled.workload.frames import Times
from jouled.workload.lines import LineReader
from jouled.workload.listener import Listener

STARTS = b"Starting inference"
ENDS = b"Timing trace has"
_FAULT = b"[E]"
_KEPT_LINES = 400
_SHOWN_LINES = 6
_BEAT_S = 1.0


class StretchChild:
    """A run of `stretch_s`. `read(began_ns, ended_ns)` reads what it has left; `beat` is called in each wait."""

    def __init__(
        self,
        spawned: Spawned,
        *,
        name: str,
        limits: Limits,
        stretch_s: float,
        read: Callable[[int, int], Times],
        beat: Callable[[], None],
    ) -> None:
        self.pid = spawned.pid
        self._limits = limits
        self._stretch_s = stretch_s
        self._read = read
        self._beat = beat
        self._lines = LineReader()
        self._kept: list[bytes] = []
        self._began_ns: int | None = None
        self._ended_ns: int | None = None
        self._is_stopping = False
        self._times: list[Times] = []
        self._listener = Listener(
            spawned,
            who=f"{name} (pid {spawned.pid})",
            on_data=self._on_data,
            silence_s=None,
            end_s=limits.end_s,
            pending=self._faults,
        )
        self._changed = self._listener.changed
        self._listener.start()

    @property
    def said(self) -> str:
        """All that it has said."""
        with self._changed:
            return b"\n".join(self._kept).decode("utf-8", "replace")

    def wait_for_start(self, beat: Callable[[], None]) -> None:
        """Wait until its inferences begin. Raises WorkloadDiedError, WorkloadHungError, what `beat` raises."""
        self._wait(lambda: self._began_ns is not None, self._limits.load_s, beat)
        if self._began_ns is None:
            self._raise_ended()

    def begin(self, share: Share, at_ns: int) -> None:
        """It has begun by itself."""

    def taken(self) -> list[Times]:
        """Nothing before it is over and was waited for; WorkloadDiedError where it is over too soon."""
        with self._changed:
            is_over, times = self._listener.has_ended, self._times
            self._times = []
        if is_over and not self._is_stopping:
            self._raise_ended()
        return times

    def ask_to_stop(self) -> None:
        """It cannot be asked; it ends by itself."""
        self._is_stopping = True

    def stopped(self) -> None:
        """Wait for its end and read what it has left. Raises WorkloadDiedError, WorkloadHungError."""
        self._is_stopping = True
        self._wait(lambda: False, self._stretch_s + self._limits.stop_s, self._beat)
        began_ns, ended_ns = self._began_ns, self._ended_ns
        if began_ns is None or ended_ns is None:
            self._raise_ended()
        else:
            self._times.append(self._read(began_ns, ended_ns))

    def ask_to_end(self) -> None:
        """It has nothing to put in order."""
        self._listener.end_by(signal.SIGKILL)

    def close(self) -> None:
        """End it; idempotent. Raises StuckError."""
        self._listener.end_by(signal.SIGKILL)
        self._listener.close()

    def _wait(self, is_done: Callable[[], bool], timeout_s: float, beat: Callable[[], None]) -> None:
        until_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: is_done() or self._listener.has_ended, _BEAT_S)
                if is_done() or self._listener.has_ended:
                    return
            if time.monotonic() >= until_s:
                self._listener.fail(WorkloadHungError(f"{self._listener.who} did not end within {timeout_s:g} s"))
                self._listener.check()
            beat()

    def _raise_ended(self) -> None:
        """Raise why it is over without what was waited for."""
        if self._ended_ns is not None and not self._is_stopping:
            raise WorkloadDiedError(
                f"{self._listener.who}: its run of {self._stretch_s:g} s was over before the window was",
                code="too_short",
            )
        self._listener.check()
        raise WorkloadError(f"{self._listener.who} ended without having run anything")

    def _faults(self) -> str:
        """Its own lines of severity error, for the message."""
        told = [line for line in self._kept if _FAULT in line][-_SHOWN_LINES:]
        return "".join(f" | {line.decode('utf-8', 'replace')}" for line in told)

    def _on_data(self, _: int, data: bytes, now_ns: int) -> None:
        for line in self._lines.feed(data):
            self._kept = [*self._kept[-_KEPT_LINES:], line]
            if self._began_ns is None and STARTS in line:
                self._began_ns = now_ns
            if self._ended_ns is None and ENDS in line:
                self._ended_ns = now_ns
            self._changed.notify_all()
