"""What `watch` hears from the daemon, by two threads: its events, and its status now and again.

A daemon that goes is waited for. A job that began before us is asked for once, and then followed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from jouled.cli.client import Client, Stream
from jouled.errors import JouledError, UnreachableError

STATUS_EVERY_S = 2.0
_AGAIN_S = 1.0
_ENDS_S = 2.0


@dataclass(frozen=True, slots=True)
class News:
    """One thing heard: a status, an event, or that (and why) the daemon cannot be reached."""

    status: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    away: str = ""


class Feed:
    """Puts news into a queue and calls `wake`. `begin` and `end` from one thread."""

    def __init__(self, client: Client, wake: Callable[[], None], *, every_s: float = STATUS_EVERY_S) -> None:
        self._client = client
        self._wake = wake
        self._every_s = every_s
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._ask = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._threads = [
            threading.Thread(target=each, name=each.__name__, daemon=True) for each in (self._statuses, self._events)
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """A thread that waits for an answer just now is left to the end of the process."""
        self._stop.set()
        self._ask.set()
        with self._lock:
            if self._stream is not None:
                self._stream.stop()
        for thread in self._threads:
            thread.join(_ENDS_S)

    def heard(self) -> list[News]:
        """All since the last call."""
        found: list[News] = []
        with suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def ask(self) -> None:
        """Ask for the status now."""
        self._ask.set()

    def _tell(self, news: News) -> None:
        self._news.put(news)
        self._wake()

    def _statuses(self) -> None:
        while not self._stop.is_set():
            self._ask.clear()
            try:
                self._tell(News(status=self._client.get("/v1/status")))
            except JouledError as error:
                self._tell(News(away=str(error)))
            self._ask.wait(self._every_s)

    def _events(self) -> None:
        while not self._stop.is_set():
            with suppress(JouledError), self._client.events() as stream, self._stoppable(stream):
                self._tell_earlier()
                for event in stream:
                    self._tell(News(event=event))
                    if event.get("event") != "progress":
                        self.ask()
            self.ask()
            self._stop.wait(_AGAIN_S)

    @contextmanager
    def _stoppable(self, stream: Stream) -> Iterator[None]:
        with self._lock:
            self._stream = stream
        if self._stop.is_set():
            stream.stop()
        try:
            yield
        finally:
            with self._lock:
                self._stream = None

    def _tell_earlier(self) -> None:
        """What a job that runs has said before; a daemon of before this was asked has only what comes."""
        job = self._client.get("/v1/status")["job"]
        if job is None:
            return
        with suppress(UnreachableError):
            for event in self._client.get(f"/v1/jobs/{job['id']}/events")["events"]:
                self._tell(News(event=event))
