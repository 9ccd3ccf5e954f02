"""Connections, bounded: how many there are, how long a client may take to ask, and how long to read the answer.

A client that is served or listens to events is left alone. One that is not (it has yet to send its request, or sits
idle) is dropped after 10 s, or at once when its place is needed: slow and silent clients never keep others out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from jouled.control.problems import Problem, http_problem

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
PATIENCE_S = 10.0
_LONGEST_LINE = 4096
_MOST_HEADERS = 64
_LINGERING_S = 2.0
_READ_BYTES = 16 << 10  # asyncio's own 256 KiB, allocated for each read, tear the heap to pieces: 6 MiB in 10,000


class Gate:
    """Makes a server's connections and knows them all."""

    def __init__(self, server: web.Server, *, most: int = MOST_CONNECTIONS, patience_s: float = PATIENCE_S) -> None:
        self.server = server
        self.most = most
        self.patience_s = patience_s
        self._open: dict[Connection, None] = {}

    def __call__(self) -> Connection:
        """asyncio's protocol factory."""
        return Connection(self)

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Make room for a new connection; False where all places are taken by clients that are being served."""
        if len(self._open) >= self.most:
            idle = next((one for one in self._open if not one.is_served), None)
            if idle is None:
                log.warning("a connection was refused: %d clients are being served", len(self._open))
                return False
            idle.abort()
            self.leave(idle)
        self._open[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        self._open.pop(connection, None)


class Connection(web.RequestHandler):
    """One client."""

    __slots__ = ("_gate", "_raw", "_timer", "is_served")

    def __init__(self, gate: Gate) -> None:
        super().__init__(
            gate.server,
            loop=asyncio.get_running_loop(),
            tcp_keepalive=False,
            access_log=None,  # type: ignore[arg-type]  # none is what AppRunner hands over, too
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            max_headers=_MOST_HEADERS,
            lingering_time=_LINGERING_S,
            auto_decompress=False,
        )
        self._gate = gate
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        if not self._gate.enter(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # who does not read what it has asked for gets no more made
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]  # all of asyncio's own have it
        self._wait()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has gone."""
        self._gate.leave(self)
        self._stop_waiting()
        self._raw = None
        super().connection_lost(exc)

    def abort(self) -> None:
        """End it now, whatever was still to be said."""
        if self._raw is not None:
            self._raw.abort()

    def begin(self) -> None:
        """The whole request is here: from now on it is our turn."""
        self.is_served = True
        self._stop_waiting()

    def _wait(self) -> None:
        """It is the client's turn, for as long as our patience lasts."""
        self.is_served = False
        self._stop_waiting()
        self._timer = self._loop.call_later(self._gate.patience_s, self.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, to a client that reads it in time."""
        if self._raw is not None:
            self._wait()
        if isinstance(resp, web.HTTPException):
            allow = resp.headers.get("Allow")
            resp = http_problem(resp).response({"Allow": allow} if allow else None)
        answered, is_lost = await super().finish_response(request, resp, start_time)
        if self._raw is not None:
            self._wait()
        return answered, is_lost

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is the client's doing, and so is its going away; all else is ours."""
        if isinstance(exc, ConnectionError):
            log.debug("a client went away in the middle of %s", request.path)
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionError("an answer had begun already")
        if status < 500:
            text = (message or "").strip().partition("\n")[0]
            log.debug("no HTTP: %s", text)
            problem = Problem("bad-http", text[:200] or "wanted HTTP/1.1, got something else", exit_code=2)
        else:
            log.error("a request of %s failed", request.path, exc_info=exc)
            problem = Problem("failed", "something went wrong in jouled itself", hint="journalctl -u jouled tells what")
        answer = problem.response()
        answer.force_close()
        return answer


def connection_of(request: web.Request) -> Connection:
    """The connection that a request came by."""
    protocol: Any = request.protocol
    assert isinstance(protocol, Connection)
    return protocol
