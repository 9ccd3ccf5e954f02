"""One instance of a program of the user's own: it says a line for each inference, and is told when to make one.

Back to back it makes them by itself: between two loads it stands still (SIGSTOP). At a rate or by a trace it gets a
line "go" on its standard input when a request is due, and answers with a line when that inference has ended.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from jouled.board.process import Spawned
from jouled.errors import FrameError, StuckError, WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.workload.arrival import Share, TimeCheck
from jouled.workload.child import Limits
from jouled.workload.frames import Times
from jouled.workload.lines import Line, LineReader, parse_line
from jouled.workload.listener import Listener

# Where memory is short the kernel is to end it first, and not the daemon or the user's own services; and it ends when
# we do, though it stands still and would see no end of its standard input.
_ENDS_WITH_US = "setpriv --pdeathsig KILL"
FIRST_TO_GO = (
    *("/bin/sh", "-c"),
    "echo 1000 2>/dev/null >/proc/self/oom_score_adj; "
    f'{_ENDS_WITH_US} true 2>/dev/null && command -v -- "$1" >/dev/null && exec {_ENDS_WITH_US} -- "$@"; exec "$@"',
    "sh",
)
GO = b"go\n"
DEPTH = 4  # so many requests are with the program at most; more wait here
_BEAT_S = 1.0
_AHEAD = 256
_BURST_LINES = 16
_BURST_NS = 50_000_000
_Row = tuple[int, int, int]


class ProgramChild:
    """A program that is paced by us, or by itself. `name` stands before its pid in every message.

    A request of it is `batch` inferences.
    """

    def __init__(
        self,
        spawned: Spawned,
        *,
        name: str,
        limits: Limits,
        is_paced: bool,
        batch: int = 1,
        inbox: socket.socket | None = None,
    ) -> None:
        self.pid = spawned.pid
        self._limits = limits
        self._is_paced = is_paced
        self._batch = batch
        self._inbox = inbox
        self._reader = LineReader()
        self._by_datagram = False
        self._lines = 0
        self._last_ns: int | None = None  # when the last inference of this load ended
        self._at_ns = 0
        self._check: TimeCheck | None = None
        self._runs = False
        self._rows: list[_Row] = []  # arrival, start and end of each that nobody has taken yet
        self._due_ns: deque[int] = deque()  # of the requests that are with the program
        self._since_s = 0.0  # when the program was last seen to work
        self._pacer: threading.Thread | None = None
        self._is_pacing = False
        self._listener = Listener(
            spawned,
            who=f"{name} (pid {spawned.pid})",
            on_data=self._on_data,
            silence_s=None,
            end_s=limits.end_s,
            extra=() if inbox is None else (inbox.fileno(),),
        )
        self._changed = self._listener.changed
        self._listener.start()

    def ask_for_first(self) -> None:
        """Let it make its first inference."""
        if self._is_paced:
            self._listener.write(GO, within_s=self._limits.silence_s)

    def wait_for_first(self, beat: Callable[[], None]) -> None:
        """Wait until it has made its first inference; then it stands still. Raises as `check`, and what `beat` does."""
        until_s = time.monotonic() + self._limits.load_s
        while not self._is_up() and time.monotonic() < until_s:
            with self._changed:
                self._changed.wait_for(self._is_up, _BEAT_S)
            beat()
        if not self._is_up():
            text = f"{self._listener.who} has written no line within {self._limits.load_s:g} s"
            hint = "it writes one line for each inference and flushes it (docs/workloads.md)"
            self._listener.fail(WorkloadHungError(text, hint=hint))
        self.check()
        if not self._is_paced:
            self._listener.spawned.signal(signal.SIGSTOP)

    def _is_up(self) -> bool:
        return self._lines > 0 or self._listener.has_ended

    def begin(self, share: Share, at_ns: int) -> None:
        """Requests from `at_ns` on. Raises as `check`."""
        self.check()
        with self._changed:
            self._rows.clear()
            self._check, self._at_ns, self._last_ns, self._runs = TimeCheck(share, at_ns), at_ns, None, True
        if self._is_paced:
            self._is_pacing = True
            self._pacer = threading.Thread(target=self._pace, args=(share, at_ns), daemon=True)
            self._pacer.start()
        else:
            self._listener.allow_silence(self._limits.silence_s)
            self._listener.spawned.signal(signal.SIGCONT)

    def taken(self) -> list[Times]:
        """What has come since the last call. Raises as `check`."""
        self.check()
        with self._changed:
            rows, self._rows = self._rows, []
            times = np.array(rows, dtype=np.int64).reshape(-1, 3)
            try:
                if self._check is not None:
                    self._check.add(times, time.monotonic_ns())
            except WorkloadDiedError as error:
                self._listener.fail(WorkloadDiedError(f"{self._listener.who}: {error}", code=error.code))
        self.check()
        return [times]

    def ask_to_stop(self) -> None:
        """No more requests. Raises as `check`."""
        if not self._is_paced:
            self._listener.spawned.signal(signal.SIGSTOP)
            self._listener.allow_silence(None)
        self._end_pacer()

    def stopped(self) -> None:
        """Wait for what is in flight. Raises as `check`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due_ns or self._listener.has_ended, self._limits.silence_s)
            is_late = bool(self._due_ns) and not self._listener.has_ended
        if is_late:
            self._fail_silent()
        self.check()
        with self._changed:
            self._runs = False

    def check(self) -> None:
        """Raise what went wrong with it, if anything did: WorkloadDiedError, WorkloadHungError, StuckError."""
        with self._changed:
            is_late = bool(self._due_ns) and time.monotonic() - self._since_s > self._limits.silence_s
        if is_late:
            self._fail_silent()
        self._listener.check()

    def ask_to_end(self) -> None:
        """Its standard input ends and it gets a SIGTERM; `close` waits for it."""
        self._end_pacer()
        self._listener.end_by(signal.SIGTERM, signal.SIGCONT)

    def close(self) -> None:
        """End it, by SIGKILL where it does not end by itself; idempotent. Raises StuckError."""
        self._end_pacer()
        try:
            self._listener.close()
        finally:
            if self._inbox is not None:
                self._inbox.close()

    def _fail_silent(self) -> None:
        text = f"{self._listener.who} has not answered for {self._limits.silence_s:g} s and was killed"
        self._listener.fail(WorkloadHungError(text))

    # --- pacing, in a thread of its own -----------------------------------------------------------------

    def _end_pacer(self) -> None:
        with self._changed:
            self._is_pacing = False
            self._changed.notify_all()
        if self._pacer is not None:
            self._pacer.join()
            self._pacer = None

    def _pace(self, share: Share, at_ns: int) -> None:
        first = 0
        try:
            while True:
                for due_ns in share.due_ns(at_ns, first, _AHEAD).tolist():
                    if not self._go(due_ns):
                        return
                first += _AHEAD
        except (WorkloadError, StuckError):
            return  # whoever asks next is told of it

    def _go(self, due_ns: int) -> bool:
        """Let a request that is due then be made; False: there are to be no more."""
        with self._changed:
            while self._is_pacing and not self._listener.has_ended:
                wait_s = (due_ns - time.monotonic_ns()) / 1e9
                if wait_s <= 0.0 and len(self._due_ns) < DEPTH:
                    break
                self._changed.wait(wait_s if wait_s > 0.0 else None)
            if not self._is_pacing or self._listener.has_ended:
                return False
            if not self._due_ns:
                self._since_s = time.monotonic()
            self._due_ns.append(due_ns)
        self._listener.write(GO, within_s=self._limits.silence_s)
        return True

    # --- what it says, in the listener's thread ---------------------------------------------------------

    def _on_data(self, descriptor: int, data: bytes, now_ns: int) -> None:
        if self._inbox is not None and descriptor == self._inbox.fileno():
            self._by_datagram = True
            lines = [data]
        else:
            lines = self._reader.feed(data)
            if self._by_datagram:
                return  # where inferences come by datagram, what it prints is text
        self._refuse_burst(len(lines), now_ns)
        for text in lines:
            self._hear(parse_line(text), now_ns)
        if lines:
            self._lines += len(lines)
            self._since_s = now_ns / 1e9
            self._changed.notify_all()

    def _refuse_burst(self, count: int, now_ns: int) -> None:
        """Lines that a library has kept back say nothing of when their inferences ended."""
        if self._runs and count >= _BURST_LINES and self._last_ns is not None:
            waited_ns = now_ns - self._last_ns
            if waited_ns > _BURST_NS:
                raise WorkloadDiedError(
                    f"wrote {count} lines at once, after {waited_ns / 1e9:.2f} s without one: they were buffered",
                    hint="flush after each line: flush=True in Python, std::endl or fflush in C++",
                )

    def _hear(self, line: Line, now_ns: int) -> None:
        if not self._runs:
            self._last_ns = now_ns
            return
        rows = self._answered(line, now_ns) if self._is_paced else self._by_itself(line, now_ns)
        self._rows += rows
        self._last_ns = rows[-1][2] if rows else now_ns

    def _answered(self, line: Line, now_ns: int) -> list[_Row]:
        if self._requests(line) != 1 or not self._due_ns:
            raise FrameError(
                "writes more lines than it was asked for: at a rate each line on its standard input is one request",
                hint='read a line, make one inference, write a line; or set arrival = "back_to_back"',
            )
        due_ns = self._due_ns.popleft()
        start_ns = max(due_ns, self._last_ns or 0) if line.start_ns is None else line.start_ns
        return [(due_ns, start_ns, _end_of(line, now_ns))]

    def _requests(self, line: Line) -> int:
        """How many a line stands for: what it counts are inferences. Raises FrameError for part of a request."""
        if line.items is None:
            return 1
        requests, rest = divmod(line.items, self._batch)
        if rest or not requests:
            raise FrameError(
                f"tells of {line.items} items, and a request has {self._batch} (JOULED_BATCH)",
                hint="items counts inferences, so it is a multiple of the batch; or leave it out: one line a request",
            )
        return requests

    def _by_itself(self, line: Line, now_ns: int) -> list[_Row]:
        if line.start_ns is not None:
            arrival_ns = line.start_ns if line.arrival_ns is None else line.arrival_ns
            if self._requests(line) != 1:
                raise FrameError("tells the times of several items at once: one line for each, or no times")
            if arrival_ns < self._at_ns:  # begun before this load: SIGSTOP has held it up
                return []
            return [(arrival_ns, line.start_ns, _end_of(line, now_ns))]
        if self._last_ns is None:
            return []  # the first one says when the second began
        requests = self._requests(line)
        if requests == 1:
            return [(self._last_ns, self._last_ns, now_ns)]
        edges: list[int] = np.linspace(self._last_ns, now_ns, requests + 1).round().astype(np.int64).tolist()
        return [(start_ns, start_ns, end_ns) for start_ns, end_ns in pairwise(edges)]


def _end_of(line: Line, now_ns: int) -> int:
    """Raises WorkloadDiedError for one that has not come yet."""
    if line.end_ns is None:
        return now_ns
    if line.end_ns > now_ns:
        off_ms = (line.end_ns - now_ns) / 1e6
        raise WorkloadDiedError(f"lies about time: a request ends {off_ms:.3f} ms in the future", code="wrong_times")
    return line.end_ns
