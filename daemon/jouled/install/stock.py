"""The board's own mode, put in force by a worker: the last thing that is asked of one before it is removed."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jouled.board.clock import Clock
from jouled.errors import BoardError, BusyError, NotSupportedError
from jouled.worker.protocol import MAX_LINE_BYTES, decode, encode

log = logging.getLogger(__name__)

WORKER_SOCKET = Path("/run/jouled/worker.sock")
_ANSWER_S = 120.0
_PATIENCE_S = 120.0
_AGAIN_S = 0.5
_REQUEST = {"command": "apply", "target": "reference", "why": "uninstall", "who": "uid 0 (root)"}


class _NotNow(Exception):
    """A worker that is busy, or that ended before it spoke."""


def apply_reference(clock: Clock, path: Path = WORKER_SOCKET) -> None:
    """Have a worker put the reference in force, and wait. A board that is none needs nothing.

    Raises BusyError when no worker has time within two minutes, BoardError when the board does not obey.
    """
    until_s = clock.monotonic_s() + _PATIENCE_S
    while True:
        try:
            return _judge(_ask(path))
        except _NotNow as error:
            if clock.monotonic_s() > until_s:
                raise BusyError(
                    f"no worker takes the request: {error}", hint="see: systemctl status jouled-worker"
                ) from error
        clock.sleep(_AGAIN_S)


def _ask(path: Path) -> dict[str, Any]:
    """The `finished` event. Raises _NotNow, BoardError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(str(path))
            with peer.makefile("rb") as lines:
                return _converse(peer, lambda: lines.readline(MAX_LINE_BYTES))
        except TimeoutError as error:
            raise BoardError(f"{path}: the worker is silent", hint="see: journalctl -u jouled-worker") from error
        except OSError as error:
            raise _NotNow(f"{path}: {error.strerror}") from error


def _converse(peer: socket.socket, read: Callable[[], bytes]) -> dict[str, Any]:
    first = _parse(read())
    if "busy" in first:
        raise _NotNow(f"pid {first['busy'].get('pid')} (jouled {first['busy'].get('verb')}) holds the board")
    peer.sendall(encode(_REQUEST))
    while True:
        event = _parse(read())
        if event.get("event") == "finished":
            return event


def _parse(line: bytes) -> dict[str, Any]:
    if not line:
        raise _NotNow("the worker ended")
    return decode(line)


def _judge(finished: dict[str, Any]) -> None:
    error = finished.get("error")
    if finished.get("ok") or not error:
        return
    if error.get("exit_code") == NotSupportedError.exit_code:
        log.warning("nothing to put back: %s", error.get("text"))
        return
    raise BoardError(
        f"the board's own mode could not be put in force: {error.get('text')}",
        hint="a reboot returns the board to it in any case; to remove jouled now: jouled uninstall --leave-board",
    )
