"""The listening end: the control socket, handed over by systemd or bound here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from aiohttp import web

from jouled.config import Config
from jouled.control.app import Control
from jouled.control.connections import MOST_CONNECTIONS, PATIENCE_S, Gate
from jouled.control.peers import Peers
from jouled.errors import BusyError, StateError
from jouled.state import Face

log = logging.getLogger(__name__)

_FIRST_FD = 3
BACKLOG = 128
_SHUTDOWN_S = 2.0


class Server:
    """One application behind one listening socket, in the running loop."""

    def __init__(self, app: web.Application, *, most: int = MOST_CONNECTIONS, patience_s: float = PATIENCE_S) -> None:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._most = most
        self._patience_s = patience_s
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve what comes by `listening`, which is owned from now on."""
        await self._runner.setup()
        assert self._runner.server is not None
        gate = Gate(self._runner.server, most=self._most, patience_s=self._patience_s)
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        make = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
        self._server = await make(gate, sock=listening, backlog=BACKLOG)

    async def stop(self) -> None:
        """Accept no more, end the streams, let answers under way go out."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        self._server = None


def control_server(face: Face, config: Config, *, peers: Peers | None = None) -> Server:
    """The server of the control socket."""
    return Server(Control(face, config, peers).app())


def inherited_socket(environ: MutableMapping[str, str] | None = None) -> socket.socket | None:
    """The listening UNIX socket that systemd hands over (sd_listen_fds), once; None where there is none.

    Raises StateError where what was handed over is something else.
    """
    environ = os.environ if environ is None else environ
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) < 1:
        return None
    found = socket.socket(fileno=_FIRST_FD)
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM:
        raise StateError("descriptor 3: wanted a listening UNIX stream socket, got another", hint="see jouled.socket")
    os.set_inheritable(_FIRST_FD, False)
    return found


def bound_socket(path: Path, mode: int = 0o660) -> socket.socket:
    """A listening UNIX socket at `path`; one that a dead daemon left is replaced.

    Raises BusyError where a daemon answers there, StateError where it cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            _clear(path)
            before = os.umask(0o777 & ~mode)
            try:
                listening.bind(str(path))
            finally:
                os.umask(before)
            listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = "the path is too long for a socket" if error.errno is None else str(error.strerror)
        raise StateError(f"{path}: no socket could be made there: {why}", hint="name another with --socket") from error
    except BusyError:
        listening.close()
        raise
    return listening


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Of daemons that start at once one makes its socket after the other, or they would clear away each other's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises BusyError, OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "something else lies there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise BusyError(f"{path}: another daemon answers there", hint="stop it, or name another with --socket")
