"""`GET /v1/events`: what happens, as server-sent events.

Each has `id:` (JOB:SEQ of a job's event, else a number of this stream), `event:` (its kind) and `data:` (one JSON
object, the same line as everywhere). A comment goes out at once and every 10 s, so that both ends notice when the
other has gone. A stream begins with what happens next; a client that was away reads `/v1/jobs/ID`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from aiohttp import web

from jouled.control.connections import connection_of
from jouled.control.problems import Problem
from jouled.state import Face

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
MOST_STREAMS = 32
_SLOWEST_S = 10.0
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
_UNSAFE = re.compile(rb"[\r\n]+")


def message(event: Mapping[str, Any], count: int) -> bytes:
    """One event on the wire. `count`: its number in this stream."""
    job, seq = event.get("job"), event.get("seq")
    mark = f"{job}:{seq}" if job is not None and seq is not None else str(count)
    kind = str(event.get("event", "message"))
    head = [_UNSAFE.sub(b" ", line.encode()) for line in (f"id: {mark}", f"event: {kind}")]
    return b"\n".join([*head, b"data: " + msgspec.json.encode(event), b"", b""])


class Streams:
    """The open streams; all of them end when the server does."""

    def __init__(self, face: Face, *, most: int = MOST_STREAMS, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._face = face
        self._most = most
        self._heartbeat_s = heartbeat_s
        self._stopping: asyncio.Event = asyncio.Event()
        self._open = 0

    def stop(self) -> None:
        """End them all."""
        self._stopping.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Stream until the client goes, reads too slowly, or the server stops. Raises Problem."""
        if self._open >= self._most:
            raise Problem("too-many-streams", f"wanted at most {self._most} event streams, got one more", exit_code=12)
        self._open += 1
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        try:
            async with self._face.subscribe() as events:
                await response.prepare(request)
                await self._pump(response, events)
        except ConnectionError:
            log.debug("a listener has gone")
        except asyncio.TimeoutError:
            log.info("a listener that did not read was dropped")
            connection_of(request).abort()
        finally:
            self._open -= 1
        return response

    async def _pump(self, response: web.StreamResponse, events: AsyncIterator[Mapping[str, Any]]) -> None:
        await _send(response, b": jouled\n\n")
        stopping = asyncio.ensure_future(self._stopping.wait())
        coming = asyncio.ensure_future(_next(events))
        count = 0
        try:
            while True:
                waited: tuple[asyncio.Future[Any], ...] = (stopping, coming)
                await asyncio.wait(waited, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    return
                if not coming.done():
                    await _send(response, b": alive\n\n")
                    continue
                event = coming.result()
                if event is None:
                    return
                count += 1
                await _send(response, message(event, count))
                coming = asyncio.ensure_future(_next(events))
        finally:
            await _drop(stopping, coming)


async def _next(events: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None


async def _drop(*futures: asyncio.Future[Any]) -> None:
    for future in futures:
        future.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await future


async def _send(response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionError, TimeoutError where the client does not read."""
    await asyncio.wait_for(response.write(data), _SLOWEST_S)
