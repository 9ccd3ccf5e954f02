"""The daemon's socket from the other end: HTTP over AF_UNIX, with the standard library alone.

A GET that is reset, or finds the queue full, is asked again for 2 s: systemd may just be starting the daemon. A POST
is sent once; only the connection to it is tried again.
"""

from __future__ import annotations

import grp
import http.client
import json
import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from jouled.errors import JouledError, NotPermittedError, UnreachableError

SOCKET = Path("/run/jouled/control.sock")
GET_S = 10.0
_AGAIN_S = 2.0
_PAUSE_S = 0.05
_SILENCE_S = 25.0  # the daemon says every 10 s that a stream is alive
_LARGEST_LINE = 1 << 20

Record = dict[str, Any]
T = TypeVar("T")


class AnsweredError(JouledError):
    """The daemon has refused, or failed: `problem` is its answer (RFC 9457)."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title")), hint=str(problem.get("hint", "")))
        self.problem = problem
        self.kind = str(problem.get("type", "")).rpartition(":")[2] or type(self).__name__
        code = problem.get("exit_code")
        self.exit_code = code if isinstance(code, int) else 1


class _Connection(http.client.HTTPConnection):
    """http.client on a UNIX socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("jouled", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.kept = self.sock  # http.client lets go of it once an answer has begun
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


class Stream:
    """Events as they come."""

    def __init__(self, sock: socket.socket, events: Iterator[Record]) -> None:
        self._sock = sock
        self._events = events

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        return next(self._events)

    def stop(self) -> None:
        """End it, from another thread: whoever waits for the next event waits no more."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


class Client:
    """Asks the daemon. Everything raises UnreachableError, NotPermittedError, AnsweredError."""

    def __init__(
        self,
        path: Path = SOCKET,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._sleep = sleep
        self._now_s = now_s

    def get(self, path: str, *, timeout_s: float = GET_S) -> Record:
        """The answer of a read."""

        def ask() -> Record:
            connection = self._connect(timeout_s)
            try:
                return self._ask(connection, "GET", path, None)
            finally:
                connection.close()

        return self._again(ask, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = GET_S) -> Record:
        """The answer to a request that may change something."""
        connection = self._connect(timeout_s)
        try:
            return self._ask(connection, "POST", path, json.dumps(body or {}).encode())
        except (ConnectionError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"{self.path}: the daemon went away before it answered",
                hint="jouled history tells whether it was done",
            ) from error
        finally:
            connection.close()

    @contextmanager
    def events(self) -> Iterator[Stream]:
        """What happens from now on. The stream ends when the daemon ends it, or goes."""
        connection = self._again(
            self._open_stream, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected
        )
        try:
            yield Stream(connection[0].kept, _events(connection[1]))
        finally:
            connection[1].close()
            connection[0].close()

    def _open_stream(self) -> tuple[_Connection, http.client.HTTPResponse]:
        connection = self._connect(_SILENCE_S)
        try:
            connection.request("GET", "/v1/events")
            response = connection.getresponse()
            if response.status != 200:
                raise _answered(response.status, response.read())
            response.readline(_LARGEST_LINE)  # the first comment: from now on nothing is missed
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _connect(self, timeout_s: float) -> _Connection:
        def connect() -> _Connection:
            connection = _Connection(self.path, timeout_s)
            connection.connect()
            return connection

        try:
            return self._again(connect, BlockingIOError)
        except OSError as error:
            raise _no_connection(self.path, error) from error

    def _ask(self, connection: _Connection, method: str, path: str, body: bytes | None) -> Record:
        headers = {"Connection": "close"} | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except TimeoutError as error:
            raise UnreachableError(
                f"{self.path}: no answer within {connection.timeout:g} s", hint="systemctl status jouled"
            ) from error
        if response.status >= 300:
            raise _answered(response.status, data)
        return _decoded(data)

    def _again(self, do: Callable[[], T], *passing: type[BaseException]) -> T:
        """`do`, and once more while it ends in one of `passing`, for 2 s."""
        end_s = self._now_s() + _AGAIN_S
        while True:
            try:
                return do()
            except passing as error:
                if self._now_s() >= end_s:
                    raise UnreachableError(
                        f"{self.path}: the daemon closes the connection without an answer: {error}",
                        hint="journalctl -u jouled -e",
                    ) from error
            self._sleep(_PAUSE_S)


def _decoded(data: bytes) -> Record:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise JouledError(f"wanted a JSON object from the daemon, got {data[:60]!r}", hint="is it of this version?")
    return found


def _answered(status: int, data: bytes) -> AnsweredError:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    return AnsweredError(found if isinstance(found, dict) else {"detail": f"the daemon answered {status}"})


def _no_connection(path: Path, error: OSError) -> JouledError:
    """Why there was no connection, with what to type."""
    if isinstance(error, PermissionError):
        group = _group_of(path)
        return NotPermittedError(
            f"{path}: {_user()} may not connect to the daemon: not a member of group {group}",
            hint=f"sudo usermod -aG {group} {_user()}, then log in again; or use sudo",
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(f"{path}: the daemon does not accept", hint="sudo systemctl restart jouled")
    how = "sudo systemctl start jouled.socket jouled" if path == SOCKET else f"jouled run --socket {path} …"
    hint = f"{how}   (not installed yet: sudo jouled install)" if path == SOCKET else how
    return UnreachableError(f"{path}: the daemon is not reachable: {error.strerror or error}", hint=hint)


def _group_of(path: Path) -> str:
    """The group that may connect; where the socket may not even be looked at, the one that it has when installed."""
    try:
        group = os.stat(path).st_gid
        return grp.getgrgid(group).gr_name if group else "jouled"
    except (OSError, KeyError):
        return "jouled"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _events(response: http.client.HTTPResponse) -> Iterator[Record]:
    """The `data:` of each event until the stream ends, for whatever reason."""
    while True:
        try:
            line = response.readline(_LARGEST_LINE)
        except (OSError, http.client.HTTPException):
            return
        if not line:
            return
        if line.startswith(b"data:"):
            yield _decoded(line[5:])
