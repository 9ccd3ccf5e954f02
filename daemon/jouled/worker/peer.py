"""One client of the worker: what it says, what it is told, and that it goes."""

from __future__ import annotations

import logging
import os
import pwd
import socket
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from jouled.job.cancel import Cancellation
from jouled.worker.credentials import credentials
from jouled.worker.protocol import (
    FIRST_LINE_S,
    Cancel,
    Command,
    LineReader,
    Message,
    ProtocolError,
    encode,
    parse_command,
)

log = logging.getLogger(__name__)

DAEMON_USER = "jouled"
GONE = "daemon_gone"
_WHY = {"user": "cancelled", GONE: "the daemon was stopped while it ran"}
_SEND_S = 5.0
_CHUNK = 64 << 10
_LAST_CHUNKS = 16


def obeyed_uids() -> frozenset[int]:
    """Root, the daemon's user, and whoever this process is itself (a virtual board's needs no root)."""
    uids = {0, os.geteuid()}
    try:
        uids.add(pwd.getpwnam(DAEMON_USER).pw_uid)
    except KeyError:
        log.debug("there is no user %s", DAEMON_USER)
    return frozenset(uids)


class Peer:
    """A connection. `receive` is called by the thread that waits for all sockets, the rest by the one that works."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(_SEND_S)
        channel.set_inheritable(False)
        self.channel = channel
        self.pid, self.uid, _ = credentials(channel)
        self.cancellation = Cancellation()
        self._reader = LineReader()
        self._inbox: SimpleQueue[Command | ProtocolError | None] = SimpleQueue()
        self._has_command = False
        self._is_gone = False
        self.is_closed = False
        self._sending = threading.Lock()

    # --- what it is told --------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Tell it. One that does not read for 5 s, or is not there any more, counts as gone; nothing is raised for it.

        Raises ProtocolError for what is no line.
        """
        data = encode(message)
        with self._sending:
            if self._is_gone:
                return
            try:
                self.channel.sendall(data)
            except OSError as error:
                log.info("pid %d is not told any more: %s", self.pid, error)
                self._is_gone = True
        if self._is_gone:
            self.cancellation.ask(GONE, "the daemon does not listen any more")

    def close(self) -> None:
        """Nothing more is said; what was said still arrives: unread bytes would make it a reset."""
        self.is_closed = True
        self.channel.setblocking(False)
        with suppress(OSError):
            for _ in range(_LAST_CHUNKS):
                if not self.channel.recv(_CHUNK):
                    break
        self.channel.close()

    # --- what it says -----------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Take what has come; False: nothing more will."""
        try:
            data = self.channel.recv(_CHUNK)
        except OSError as error:
            log.debug("pid %d: %s", self.pid, error)
            data = b""
        if not data:
            self._end()
            return False
        try:
            for message in self._reader.feed(data):
                self._take(parse_command(message))
        except ProtocolError as error:
            log.warning("pid %d (uid %d) does not speak the protocol: %s", self.pid, self.uid, error)
            self._inbox.put(error)
            self.cancellation.ask(GONE, "the peer does not speak the protocol")
            return False
        return True

    def _take(self, command: Command) -> None:
        if isinstance(command, Cancel):
            if self._has_command:
                self.cancellation.ask(command.reason, _WHY.get(command.reason, f"cancelled: {command.reason}"))
            return
        if self._has_command:
            raise ProtocolError("wanted nothing but cancel while a command runs, got another command")
        self._has_command = True
        self._inbox.put(command)

    def _end(self) -> None:
        if not self._has_command:
            self._inbox.put(None)
        self.cancellation.ask(GONE, "the daemon has gone")

    def interrupt(self) -> None:
        """Wake whoever waits in `command` (from a signal handler too)."""
        self._inbox.put(None)

    def command(self) -> Command | None:
        """Its command; None: it has gone, or the wait was interrupted. Raises ProtocolError, also after 10 s."""
        try:
            said = self._inbox.get(timeout=FIRST_LINE_S)
        except Empty:
            raise ProtocolError(f"wanted a command within {FIRST_LINE_S:g} s, got none") from None
        if isinstance(said, ProtocolError):
            raise said
        return said
