"""The metrics' TCP port. Where it cannot be listened on all else works; that is said, and tried again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from aiohttp import web

from jouled.control.connections import connection_of
from jouled.control.server import BACKLOG, Server

log = logging.getLogger(__name__)

RETRY_S = 30.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_SCRAPERS = 16
_FRONT = '<!doctype html><title>jouled</title><h1>jouled</h1><p><a href="/metrics">Metrics</a></p>\n'


def metrics_app(render: Callable[[], bytes]) -> web.Application:
    """`/metrics` and a page that leads there."""

    async def metrics(request: web.Request) -> web.Response:
        connection_of(request).begin()
        return web.Response(body=render(), headers={"Content-Type": CONTENT_TYPE})

    async def front(request: web.Request) -> web.Response:
        connection_of(request).begin()
        return web.Response(text=_FRONT, content_type="text/html")

    app = web.Application(client_max_size=1024)
    app.router.add_route("GET", "/metrics", metrics)
    app.router.add_route("GET", "/", front)
    app.on_response_prepare.append(_tell_no_versions)
    return app


async def _tell_no_versions(_: web.Request, response: web.StreamResponse) -> None:
    """The port may be open to a network; aiohttp would name itself and Python."""
    response.headers["Server"] = "jouled"


class MetricsPort:
    """Serves `render` at HOST:PORT. `say` is told what is wrong, and "" when it is no more."""

    def __init__(
        self, render: Callable[[], bytes], listen: str, say: Callable[[str], None], *, retry_s: float = RETRY_S
    ) -> None:
        self._render = render
        self._listen = listen
        self._say = say
        self._retry_s = retry_s
        self._server: Server | None = None
        self._trying: asyncio.Task[None] | None = None
        self._trouble = ""

    @property
    def is_open(self) -> bool:
        """Does it answer?"""
        return self._server is not None

    async def start(self) -> None:
        """Answer from now on, or as soon as it can be listened on. Raises nothing."""
        await self._try()
        if self._server is None:
            self._trying = asyncio.get_running_loop().create_task(self._try_again())

    async def stop(self) -> None:
        """Answer no more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait({self._trying})
            self._trying = None
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def _try_again(self) -> None:
        while self._server is None:
            await asyncio.sleep(self._retry_s)
            await self._try()

    async def _try(self) -> None:
        try:
            listening = await _tcp_socket(self._listen)
        except OSError as error:
            text = f"metrics.listen {self._listen} cannot be listened on: {error.strerror or error}"
            self._tell(f"no metrics: {text}; all else works, and it is tried again each {self._retry_s:g} s")
            return
        server = Server(metrics_app(self._render), most=_MOST_SCRAPERS)
        await server.start(listening)
        self._server = server
        self._tell("")

    def _tell(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._say(trouble)
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("metrics.listen %s answers now", self._listen)


async def _tcp_socket(listen: str) -> socket.socket:
    """A listening socket at HOST:PORT. Raises OSError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: asked for in a thread, since the answer may take its time
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
