"""The daemon's side of the worker's protocol: a door to a worker, and one conversation from hello to finished.

The worker speaks first. A connection that ends before that is tried again after 0.2 s, then 1 … 60 s; one that says
nothing for 10 s is not there. With systemd the door is a socket that starts the worker; without, it is a child of ours
that serves one command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jouled.board.process import Beside, start_with_socket
from jouled.errors import BusyError, ConfigError, JouledError, ProcessError, UsageError
from jouled.service.told import Event, Greeting, check
from jouled.state import Conflict, Failed, Refused, Unavailable
from jouled.worker.protocol import FIRST_LINE_S, PROTOCOL, LineReader, ProtocolError, encode

log = logging.getLogger(__name__)

SILENCE_S = 15.0  # a job says something every 5 s
LONGEST_S = 180.0  # any other command, and the end of a job: units may have to be started again
_REAP_S = 20.0
_ARRIVING = "waiting"  # it has not heard yet what its last peer wants, or that it has gone
_ARRIVES_S = 3.5
_READ_BYTES = 64 << 10
_PAUSES_S = (0.2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


class WorkerBusy(BusyError):
    """A worker answers, and serves somebody else."""

    def __init__(self, pid: int, verb: str) -> None:
        super().__init__(f"pid {pid} (jouled {verb}) holds the board", hint="wait until it ends, or cancel it")
        self.pid = pid
        self.verb = verb


class WorkerDied(Unavailable):
    """The worker ended, or was ended, before it had finished what it was told."""


class WorkerSilent(WorkerDied):
    """The worker said nothing for longer than one that works may."""


class WorkerGarbled(WorkerDied):
    """What the worker said is not of this protocol: it is hung up on."""


# --- doors --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Line:
    """A connection; `end` sees to it that nothing of it is left, `kill` ends a worker that is ours and hangs."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    child: Beside | None = None

    async def end(self) -> None:
        """Close it; a child is waited for, and killed where it does not end."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
        if self.child is not None:
            await _reap(self.child)

    def kill(self) -> None:
        """End a child of ours and all that it has started in its session."""
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)


async def _ended(child: Beside, timeout_s: float) -> bool:
    """Wait without a thread: the kernel makes a pidfd readable when the process ends."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    descriptor = os.pidfd_open(child.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout_s)
    except asyncio.TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    child.wait()
    return True


async def _reap(child: Beside) -> None:
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        if number:
            log.warning("the worker (pid %d) does not end by itself: signal %d", child.pid, number)
            child.send_signal(number)
        if await _ended(child, _REAP_S):
            return
    log.error("the worker (pid %d) does not end on SIGKILL: it hangs in the kernel", child.pid)


class Door(Protocol):
    """How a worker is reached. `silence_s`: after so long without a word a job's worker is hung, and ours to kill."""

    @property
    def silence_s(self) -> float | None: ...

    async def open(self) -> Line:
        """A fresh connection. Raises OSError, ProcessError."""


@dataclass(frozen=True, slots=True)
class SocketDoor:
    """The worker's socket; systemd starts it, and ends it where it hangs."""

    path: Path
    silence_s: float | None = None

    async def open(self) -> Line:
        return Line(*await asyncio.open_unix_connection(self.path))


@dataclass(frozen=True, slots=True)
class ChildDoor:
    """A child of ours for each command. `make_argv` takes the number of its descriptor."""

    make_argv: Callable[[int], Sequence[str]]
    silence_s: float | None = SILENCE_S

    async def open(self) -> Line:
        ours, theirs = socket.socketpair()
        try:
            child = start_with_socket(self.make_argv(theirs.fileno()), theirs.fileno())
        except ProcessError:
            ours.close()
            raise
        finally:
            theirs.close()
        return Line(*await asyncio.open_unix_connection(sock=ours), child)


# --- a conversation -----------------------------------------------------------------------------------------


_SAME: Mapping[str, type[JouledError]] = {
    "ConfigError": ConfigError,
    "UsageError": UsageError,
    "BusyError": Conflict,
    "NotPermittedError": Refused,
}


def error_of(told: Mapping[str, Any]) -> JouledError:
    """The worker's error as one of ours."""
    kind, text, hint = told.get("kind", ""), told.get("text", ""), told.get("hint", "")
    same = _SAME.get(kind)
    if same is not None:
        return same(text, hint=hint)
    return Failed(text, kind=kind, exit_code=told.get("exit_code", 1), hint=hint)


class Conversation:
    """One connection after the hello. `pid` is the worker's."""

    def __init__(self, line: Line, reader: LineReader, pid: int, silence_s: float | None) -> None:
        self._line = line
        self._reader = reader
        self._silence_s = silence_s
        self._is_patient = True
        self._left: list[dict[str, Any]] = []
        self.pid = pid

    async def send(self, message: Mapping[str, Any]) -> None:
        """Say it. Raises WorkerDied."""
        self._is_patient = message.get("command") != "tune"
        try:
            self._line.writer.write(encode(message))
            await self._line.writer.drain()
        except OSError as error:
            raise WorkerDied(f"the worker (pid {self.pid}) is gone: {error.strerror or error}") from error

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """All that it says; the last is `finished`. Raises WorkerDied."""
        while True:
            message = await self._next()
            if message.get("event") in ("decision", "restored") or message.get("phase") in ("apply", "restore"):
                self._is_patient = True  # units and services may take their time to start again
            yield message
            if message.get("event") == "finished":
                return

    async def _next(self) -> dict[str, Any]:
        while not self._left:
            self._left = await _read(self._line, self._reader, self._timeout_s(), f"the worker (pid {self.pid})")
        message = self._left.pop(0)
        _check(message, Event, f"the worker (pid {self.pid})")
        return message

    def _timeout_s(self) -> float | None:
        if self._silence_s is None:
            return None
        return LONGEST_S if self._is_patient else self._silence_s

    async def close(self) -> None:
        """Hang up."""
        await self._line.end()


async def _read(line: Line, reader: LineReader, timeout_s: float | None, who: str) -> list[dict[str, Any]]:
    try:
        data = await asyncio.wait_for(line.reader.read(_READ_BYTES), timeout_s)
    except asyncio.TimeoutError:
        line.kill()
        raise WorkerSilent(f"{who} has said nothing for {timeout_s:g} s") from None
    except OSError as error:
        raise WorkerDied(f"{who} is gone: {error.strerror}") from error
    if not data:
        raise WorkerDied(f"{who} ended before it had finished")
    try:
        return reader.feed(data)
    except ProtocolError as error:
        raise WorkerGarbled(f"{who} does not speak the protocol: {error}") from error


def _check(message: Mapping[str, Any], shape: type[Event | Greeting], who: str) -> None:
    try:
        check(message, shape)
    except ValueError as error:
        raise WorkerGarbled(f"{who} does not speak the protocol: {error}") from error


async def _greet(line: Line, silence_s: float | None) -> Conversation:
    reader = LineReader()
    messages: list[dict[str, Any]] = []
    while not messages:
        messages = await _read(line, reader, FIRST_LINE_S, "the worker")
    _check(messages[0], Greeting, "the worker")
    told = messages[0].get("busy")
    if told is not None:
        raise WorkerBusy(told.get("pid", 0), told.get("verb", ""))
    told = messages[0].get("hello") or {}
    if told.get("protocol") != PROTOCOL:
        raise WorkerGarbled(
            f"wanted the hello of a worker with protocol {PROTOCOL}, got {messages[0]!r:.60}",
            hint="after an upgrade: systemctl restart jouled",
        )
    return Conversation(line, reader, told.get("pid", 0), silence_s)


async def converse(door: Door, *, patience_s: float) -> Conversation:
    """A worker that has said hello. Raises WorkerBusy, Unavailable where none answers for `patience_s`."""
    waited_s = 0.0
    for pause_s in (*_PAUSES_S, float("inf")):
        try:
            return await _try(door)
        except WorkerBusy as error:
            if error.verb != _ARRIVING or waited_s + pause_s > max(patience_s, _ARRIVES_S):
                raise
        except (WorkerDied, ProcessError, OSError) as error:
            if isinstance(error, WorkerSilent | WorkerGarbled) or waited_s + pause_s > patience_s:
                hint = getattr(error, "hint", "") or "see: systemctl status jouled-worker.socket jouled-worker"
                raise Unavailable(f"no worker answers: {error}", hint=hint) from error
            log.debug("no worker yet (%s): again in %g s", error, pause_s)
        await asyncio.sleep(pause_s)
        waited_s += pause_s
    raise AssertionError("not reached")


async def _try(door: Door) -> Conversation:
    line = await door.open()
    try:
        return await _greet(line, door.silence_s)
    except BaseException:
        await line.end()
        raise


async def ask(door: Door, command: Mapping[str, Any], *, patience_s: float) -> Mapping[str, Any]:
    """A short command's result. Raises WorkerBusy, Unavailable, and what the worker says went wrong."""
    conversation = await converse(door, patience_s=patience_s)
    try:
        await conversation.send(command)
        last: dict[str, Any] = {}
        async for message in conversation.events():
            last = message
    finally:
        await conversation.close()
    if not last.get("ok"):
        raise error_of(last.get("error") or {})
    return last.get("result") or {}
