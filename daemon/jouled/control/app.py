"""The application: which path does what, for whom, with which answers (ARCHITECTURE section 8)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

from jouled import __version__
from jouled.config import Config
from jouled.control.connections import connection_of
from jouled.control.events import Streams
from jouled.control.peers import Peers
from jouled.control.problems import Problem, problem_of, too_large
from jouled.control.schema import (
    LARGEST_BODY_BYTES,
    ApplyRequest,
    EmptyRequest,
    ForgetRequest,
    PauseRequest,
    RetuneRequest,
    apply_target,
    decode,
    forget_what,
    history_limit,
    retune_request,
)
from jouled.errors import JouledError, UsageError
from jouled.state import Face, Peer

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Struct)
Handler = Callable[[web.Request, Peer], Awaitable[web.StreamResponse]]
SCHEMA = 1
MOST_CHANGES = 8
_NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `body` None: it takes none. `is_change`: only for those who may change things."""

    method: str
    path: str
    handler: str
    status: int = 200
    body: type[Struct] | None = None
    is_change: bool = False


ROUTES = (
    Route("GET", "/v1/health", "health"),
    Route("GET", "/v1/status", "status"),
    Route("GET", "/v1/decision", "decision"),
    Route("GET", "/v1/modes", "modes"),
    Route("GET", "/v1/history", "history"),
    Route("GET", "/v1/jobs/{id}", "job"),
    Route("GET", "/v1/jobs/{id}/trials", "trials"),
    Route("GET", "/v1/jobs/{id}/events", "job_events"),
    Route("GET", "/v1/events", "events"),
    Route("POST", "/v1/retune", "retune", status=202, body=RetuneRequest, is_change=True),
    Route("POST", "/v1/jobs/{id}/cancel", "cancel", status=202, body=EmptyRequest, is_change=True),
    Route("POST", "/v1/apply", "apply", body=ApplyRequest, is_change=True),
    Route("POST", "/v1/verify", "verify", body=EmptyRequest),
    Route("POST", "/v1/rollback", "rollback", body=EmptyRequest, is_change=True),
    Route("POST", "/v1/pause", "pause", body=PauseRequest, is_change=True),
    Route("POST", "/v1/forget", "forget", body=ForgetRequest, is_change=True),
)


def answer(content: Mapping[str, Any], status: int = 200) -> web.Response:
    """JSON with the number of its schema; floats that are no number become null."""
    body = msgspec.json.encode({"schema": SCHEMA, **content}, enc_hook=str)
    return web.Response(status=status, body=body, content_type="application/json", headers=_NO_STORE)


async def read_body(request: web.Request, shape: type[S]) -> S:
    """The request's body, as its shape has it. Raises Problem."""
    if (request.content_length or 0) > LARGEST_BODY_BYTES:
        raise too_large()
    try:
        body = await request.read()
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Problem("bad-http", f"the body: {str(error)[:200]}", exit_code=2) from error
    connection_of(request).begin()
    return decode(body, shape)


class Control:
    """Handlers, each a few lines between HTTP and the face."""

    def __init__(self, face: Face, config: Config, peers: Peers | None = None) -> None:
        self.face = face
        self.config = config
        self.peers = peers or Peers(config.control.change_group)
        self.streams = Streams(face)
        self._changing = 0

    def app(self) -> web.Application:
        """The application, for one server."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._handler(route))
        app.on_shutdown.append(self._stop_streams)
        return app

    async def _stop_streams(self, _: web.Application) -> None:
        self.streams.stop()

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        handle: Handler = getattr(self, f"_{route.handler}")

        async def handler(request: web.Request) -> web.StreamResponse:
            peer = self._peer(request)
            try:
                self._check_right(route, request, peer)
                if route.body is None:
                    connection_of(request).begin()
                with self._counted(route):
                    done = await handle(request, peer)
            except Problem as problem:
                return _refused(route, request, peer, problem)
            except JouledError as error:
                return _refused(route, request, peer, problem_of(error))
            if route.is_change:
                log.info("%s by %s, pid %d: done", _where(request), peer, peer.pid)
            return done

        return handler

    @contextmanager
    def _counted(self, route: Route) -> Iterator[None]:
        """Changes wait for one another, those too whose client has gone; so not too many of them. Raises Problem."""
        if not route.is_change or route.handler == "cancel":
            yield
            return
        if self._changing >= MOST_CHANGES:
            raise Problem(
                "conflict", f"{MOST_CHANGES} changes wait already", hint="ask again later", exit_code=12, job=None
            )
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1

    def _peer(self, request: web.Request) -> Peer:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        return self.peers.of(transport.get_extra_info("socket"))

    def _check_right(self, route: Route, request: web.Request, peer: Peer) -> None:
        if route.is_change and not peer.may_change:
            text = f"{_where(request)}: wanted root or a member of control.change_group, got {peer}"
            raise Problem("not-permitted", text, hint=self.peers.advice(peer.name), exit_code=6)

    # --- reads ----------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request, peer: Peer) -> web.Response:
        status = self.face.status()
        return answer({"status": "ok", "state": status.state.value, "version": __version__})

    async def _status(self, request: web.Request, peer: Peer) -> web.Response:
        return answer(self.face.status().as_json())

    async def _decision(self, request: web.Request, peer: Peer) -> web.Response:
        return answer({"decision": self.face.decision()})

    async def _modes(self, request: web.Request, peer: Peer) -> web.Response:
        return answer(self.face.modes())

    async def _history(self, request: web.Request, peer: Peer) -> web.Response:
        return answer({"history": self.face.history(history_limit(dict(request.query)))})

    async def _job(self, request: web.Request, peer: Peer) -> web.Response:
        found = self.face.job(_job_id(request))
        if found is None:
            raise _no_such_job(request)
        return answer(found)

    async def _trials(self, request: web.Request, peer: Peer) -> web.Response:
        job = _job_id(request)
        found = self.face.trials(job)
        if found is None:
            raise _no_such_job(request)
        return answer({"job": job, "trials": found})

    async def _job_events(self, request: web.Request, peer: Peer) -> web.Response:
        job = _job_id(request)
        found = self.face.job_events(job)
        if found is None:
            raise _no_such_job(request)
        return answer({"job": job, "events": found})

    async def _events(self, request: web.Request, peer: Peer) -> web.StreamResponse:
        return await self.streams.serve(request)

    # --- changes --------------------------------------------------------------------------------------------

    async def _retune(self, request: web.Request, peer: Peer) -> web.Response:
        wanted = retune_request(await read_body(request, RetuneRequest), self.config)
        return answer({"job": await self.face.retune(wanted, peer)}, 202)

    async def _cancel(self, request: web.Request, peer: Peer) -> web.Response:
        await read_body(request, EmptyRequest)
        job = _job_id(request)
        if self.face.job(job) is None:
            raise _no_such_job(request)
        try:
            await self.face.cancel(job, peer)
        except UsageError as error:
            raise Problem("conflict", str(error), hint=error.hint, exit_code=error.exit_code, job=None) from error
        return answer({"job": job}, 202)

    async def _apply(self, request: web.Request, peer: Peer) -> web.Response:
        target = apply_target(await read_body(request, ApplyRequest))
        return answer(await self.face.apply(target, peer))

    async def _rollback(self, request: web.Request, peer: Peer) -> web.Response:
        await read_body(request, EmptyRequest)
        return answer(await self.face.rollback(peer))

    async def _verify(self, request: web.Request, peer: Peer) -> web.Response:
        await read_body(request, EmptyRequest)
        return answer(await self.face.verify(peer))

    async def _pause(self, request: web.Request, peer: Peer) -> web.Response:
        wanted = await read_body(request, PauseRequest)
        return answer(await self.face.pause(wanted.for_s, peer))

    async def _forget(self, request: web.Request, peer: Peer) -> web.Response:
        mode, is_held = forget_what(await read_body(request, ForgetRequest))
        return answer(await self.face.forget(mode, is_held, peer))


def _refused(route: Route, request: web.Request, peer: Peer, problem: Problem) -> web.Response:
    if route.is_change or problem.status >= 500:
        level = logging.INFO if problem.status in (403, 409) else logging.DEBUG
        level = logging.WARNING if problem.status >= 500 else level
        text = problem.detail.replace("\n", "; ")[:300]
        log.log(level, "%s by %s, pid %d: %d %s", _where(request), peer, peer.pid, problem.status, text)
    return problem.response(_NO_STORE)


def _job_id(request: web.Request) -> str:
    job = request.match_info["id"]
    if not 1 <= len(job) <= 32 or not job.isalnum() or not job.isascii():
        raise _no_such_job(request)
    return job


def _no_such_job(request: web.Request) -> Problem:
    job = request.match_info["id"][:40]
    return Problem("no-such-job", f"there is no job {job!r}", hint="jouled history lists them", exit_code=2)


def _where(request: web.Request) -> str:
    """The path as it came, still escaped, so that it cannot break a line of the log."""
    return request.raw_path[:80]
