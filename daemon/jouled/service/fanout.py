"""Events for whoever listens now. Nobody is waited for: who falls behind is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

Event = Mapping[str, Any]

MOST_WAITING = 256
_END: Event = {}


class Fanout:
    """Hands each event to every listener's queue."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._queues: set[asyncio.Queue[Event]] = set()

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._queues)

    def publish(self, event: Event) -> None:
        """Give it to all; a listener whose queue is full gets what waits there, and then the end."""
        for queue in tuple(self._queues):
            if queue.qsize() >= self._most_waiting:
                self._end(queue)
            else:
                queue.put_nowait(event)

    def _end(self, queue: asyncio.Queue[Event]) -> None:
        self._queues.discard(queue)
        queue.put_nowait(_END)

    def close(self) -> None:
        """End all."""
        for queue in tuple(self._queues):
            self._end(queue)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Event]]:
        """Events from now on."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield self._events(queue)
        finally:
            self._queues.discard(queue)

    async def _events(self, queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
        while (event := await queue.get()) is not _END:
            yield event
