"""What systemd is told: readiness, a line of status, the watchdog's pulse, the log. Without systemd nothing is sent.

systemd-python sends it where it is installed; else a datagram does the same (sd_notify(3)). The journal's fields need
systemd-python; without it the lines on stderr still say their priority (sd-daemon(3)).
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from jouled.worker.sdnotify import send

log = logging.getLogger(__name__)

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_OWN = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def _installed(name: str) -> Any | None:
    """A module of systemd-python, which is optional."""
    try:
        return importlib.import_module(f"systemd.{name}")
    except ImportError:
        return None


def _by_systemd(daemon: Any, address: str) -> Callable[[str], None]:
    """systemd-python reads the address from the environment, where children would find it: it is put there only for
    the call."""

    def send(text: str) -> None:
        os.environ["NOTIFY_SOCKET"] = address
        try:
            daemon.notify(text)
        finally:
            del os.environ["NOTIFY_SOCKET"]

    return send


class Notifier:
    """Takes the variables out of `environ`, so that no child inherits them, and sends what changes."""

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address, usec, pid = (environ.pop(name, "") for name in _OWN)
        self.has_watchdog = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        self._status = ""
        self._send: Callable[[str], None] | None = None
        if address:
            daemon = _installed("daemon")
            self._send = partial(send, address) if daemon is None else _by_systemd(daemon, address)

    def tell(self, text: str) -> None:
        """Send `text`; a socket that is full or gone is no reason to stop working."""
        if self._send is None:
            return
        try:
            self._send(text)
        except OSError as error:
            log.debug("systemd was not told %r: %s", text, error)

    def ready(self) -> None:
        """The daemon serves."""
        self.tell("READY=1")

    def alive(self) -> None:
        """The loop turns."""
        if self.has_watchdog:
            self.tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; the same line is not sent twice."""
        if text != self._status:
            self._status = text
            self.tell(f"STATUS={text}")

    def stopping(self) -> None:
        """The daemon ends."""
        self.tell("STOPPING=1")

    def extend(self, duration_s: float) -> None:
        """The end takes `duration_s` more from now."""
        self.tell(f"EXTEND_TIMEOUT_USEC={round(duration_s * 1e6)}")


def is_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Is it what systemd connected to the journal (JOURNAL_STREAM of systemd.exec(5)), and not redirected since?"""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def journal_handler(identifier: str = "jouled") -> logging.Handler | None:
    """Sends log records with their fields (`extra={"JOULED_…": …}`) to the journal; None without systemd-python."""
    journal = _installed("journal")
    if journal is None:
        return None
    handler: logging.Handler = journal.JournalHandler(SYSLOG_IDENTIFIER=identifier)
    return handler


class PriorityFormatter(logging.Formatter):
    """`<6>logger: message`: systemd takes the number off and keeps it as the line's priority. For lines on stderr."""

    def format(self, record: logging.LogRecord) -> str:
        least = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        lines = f"{record.name}: {super().format(record)}".splitlines()
        return "\n".join(f"<{least}>{line}" for line in lines)
