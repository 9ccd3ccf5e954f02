"""The display of `tune`: the same events as the lines of `progress.py`, drawn; at the end the lines are all that stays.

The job runs in the main thread and is not kept waiting: a thread of its own draws and reads keys. What is drawn costs
the board, which is being measured, its milliwatts: not more than once a second while nothing but time passes.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jouled.cli.jobview import JobView
from jouled.cli.progress import Progress
from jouled.cli.terminal import Terminal, following, is_drawable
from jouled.job.events import Event, Sink

_SOON_S = 0.25
_PASSING_S = 1.0
_ENDS_S = 5.0
_KEYS = (
    "q stops and puts the board back",
    "q stops",
)
_NO_KEYS = ("Ctrl-C stops and puts the board back", "Ctrl-C stops")
_STOPPING = (
    "stopping: the board is being put back; no key makes it faster",
    "stopping: the board is being put back",
    "stopping",
)


def is_wanted() -> bool:
    """Is standard error a terminal to draw on, and does no log go there line by line?"""
    return is_drawable(sys.stderr, os.environ) and not logging.getLogger().isEnabledFor(logging.INFO)


@contextmanager
def displayed(ask: Callable[[], None], is_stopping: Callable[[], bool]) -> Iterator[Sink]:
    """A sink whose events are drawn until the end. `ask` has the job stop. In the main thread only."""
    terminal = Terminal(sys.stderr, sys.stdin)
    display = Display(terminal, ask, is_stopping)
    kept = display.kept
    with _log_to(kept):
        terminal.open()
        drawing = threading.Thread(target=display.run, name="display", daemon=True)
        drawing.start()
        try:
            with following(terminal):
                yield display
        finally:
            display.stop()
            drawing.join(_ENDS_S)  # a terminal that is held (Ctrl-S) holds its drawer: not the job
            terminal.clear()
            terminal.close()
            print(kept.getvalue(), end="", file=sys.stderr, flush=True)


@contextmanager
def _log_to(stream: io.StringIO) -> Iterator[None]:
    """What the log says in the meantime comes with the lines, in their order."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [each.setStream(stream) for each in handlers if each.stream is sys.stderr]
    try:
        yield
    finally:
        for each, stream_before in zip(handlers, before, strict=False):
            each.setStream(stream_before or sys.stderr)


class Display:
    """A sink of events. `run` draws, in a thread, until `stop`."""

    def __init__(
        self,
        terminal: Terminal,
        ask: Callable[[], None],
        is_stopping: Callable[[], bool],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kept = io.StringIO()
        self._terminal = terminal
        self._ask = ask
        self._is_stopping = is_stopping
        self._now_s = now_s
        self._lines = Progress(self.kept)
        self._view = JobView()
        self._lock = threading.Lock()
        self._is_dirty = True
        self._is_over = False

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._view.take(event)
            self._lines(event)
        if event["event"] != "progress":
            self._is_dirty = True
            self._terminal.wake()

    def stop(self) -> None:
        """End `run`."""
        self._is_over = True
        self._terminal.wake()

    def run(self) -> None:
        """Draw and read keys."""
        from jouled.cli.jobpicture import job_picture
        from jouled.cli.paper import Paper

        size = self._terminal.size()
        drawn_s = -_PASSING_S
        while not self._is_over:
            is_due = self._is_dirty or self._terminal.is_stale or size != self._terminal.size()
            pause_s = _SOON_S if is_due else _PASSING_S
            left_s = drawn_s + pause_s - self._now_s()
            if left_s > 0:
                self._press(self._terminal.wait(left_s))
                continue
            self._is_dirty, size = False, self._terminal.size()
            with self._lock:
                view = self._view.copy()
            view.is_stopping = self._is_stopping()
            self._terminal.draw(job_picture(view, Paper(size, self._terminal.encoding), self._footer()))
            drawn_s = self._now_s()

    def _footer(self) -> tuple[str, ...]:
        if self._is_stopping():
            return _STOPPING
        return _KEYS if self._terminal.has_keys else _NO_KEYS

    def _press(self, keys: str) -> None:
        if "q" in keys.lower() and not self._is_stopping():
            self._ask()
            self._is_dirty = True
