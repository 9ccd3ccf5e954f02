"""A terminal that is drawn on: its size, one frame after another, single keys, and all of it put back.

No alternate screen, and the cursor stays visible: what was drawn stays readable, and a client that is killed leaves
nothing behind but the input's mode, in which keys come one by one and without an echo. That is put back here, on
suspension too, and by a process beside us (`guard.py`) should we be killed. A frame goes to the top left corner and
overwrites the one before, so that a new size needs no arithmetic; lines are not wrapped while it is written.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

from jouled.board.process import Beside, reap, start_guard
from jouled.cli import guard
from jouled.errors import JouledError

_HOME, _BELOW, _TO_END = "\x1b[H", "\x1b[J", "\x1b[K"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_WHOLE = f"\x1b[0m{_WRAP}\x1b[?25h"
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
_GUARD_ENDS_S = 5.0
_DUMB = frozenset({"", "dumb", "unknown"})


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    rows: int


def size_of(descriptor: int, environ: Mapping[str, str]) -> Size:
    """COLUMNS and LINES overrule what the kernel says; 80 by 24 where nobody knows."""
    try:
        found = Size(*os.get_terminal_size(descriptor))
    except OSError:
        found = Size(0, 0)
    given = [_count(environ.get(name, "")) for name in ("COLUMNS", "LINES")]
    return Size(given[0] or found.columns or 80, given[1] or found.rows or 24)


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def is_drawable(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Can a picture be drawn on this stream? It is a terminal that can move its cursor, and we are not in the back."""
    if stream is None or stream.closed or not stream.isatty() or environ.get("TERM", "") in _DUMB:
        return False
    return _is_ours(stream.fileno())


def _is_ours(descriptor: int) -> bool:
    """Is our process group in front on this terminal? One that does not control us is written to by anybody."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


class Terminal:
    """Draws on `out`, reads keys from `keys` where that is a terminal in whose foreground we are."""

    def __init__(self, out: TextIO, keys: TextIO | None, environ: Mapping[str, str] = os.environ) -> None:
        self._out = out.fileno()
        self._in = keys.fileno() if keys is not None and is_drawable(keys, environ) else None
        self._environ = environ
        is_plain = environ.get("LC_ALL") in ("C", "POSIX")  # Python writes UTF-8 there, and the terminal need not
        self.encoding = "ascii" if is_plain else out.encoding or "ascii"
        self._guard: Beside | None = None
        self._before: list[Any] | None = None
        self._drawn: bytes | None = None
        self._is_gone = False
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    @property
    def has_keys(self) -> bool:
        """Do single keys come?"""
        return self._in is not None

    def size(self) -> Size:
        """As it is now."""
        return size_of(self._out, self._environ)

    @property
    def is_stale(self) -> bool:
        """Does nothing of ours stand there, or not for sure?"""
        return self._drawn is None

    # --- beginning and end ------------------------------------------------------------------------------

    def open(self) -> None:
        """Change the input's mode, with somebody to put it back if we cannot."""
        if self._in is not None:
            with suppress(OSError, termios.error):  # it went just now: there are no keys then
                self._before = termios.tcgetattr(self._in)
        self._guard = _start_guard(self._out, self._before)
        self._take_keys()

    def close(self) -> None:
        """Put everything back. What was drawn last stays, with the cursor below it."""
        self._give_keys()
        if self._guard is not None:
            _end_guard(self._guard)
            self._guard = None
        if self._drawn is not None:
            self._write(_WHOLE.encode())
        for descriptor in (self._awake, self._waker):
            os.close(descriptor)

    def _take_keys(self) -> None:
        if self._in is not None and self._before is not None and _is_ours(self._in):
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._in, termios.TCSANOW, key_by_key(self._before))

    def _give_keys(self) -> None:
        if self._in is not None and self._before is not None and _is_ours(self._in):
            with suppress(OSError, termios.error):
                termios.tcflush(self._in, termios.TCIFLUSH)  # what was pressed here is not for the shell
                termios.tcsetattr(self._in, termios.TCSANOW, self._before)

    def suspend(self) -> None:
        """Stop as Ctrl-Z stops a program, with the terminal whole; returns when we go on."""
        self._give_keys()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)

    def resume(self) -> None:
        """We go on, perhaps in the foreground again."""
        self._take_keys()
        self._drawn = None
        self.wake()

    # --- drawing ----------------------------------------------------------------------------------------

    def draw(self, lines: Sequence[str]) -> None:
        """Show `lines` instead of what was drawn before; at most a row less than there are. Nothing in the back."""
        if self._is_gone or not _is_ours(self._out):
            return
        text = "".join(f"{line}{_TO_END}\r\n" for line in lines)
        frame = f"{_NO_WRAP}{_HOME}{text}{_BELOW}{_WRAP}".encode(self.encoding, "replace")
        if frame == self._drawn:
            return
        if self._drawn is None:  # what stands on the screen goes up, where it can be scrolled back to
            self._write(b"\r\n" * (self.size().rows - 1))
        self._drawn = frame  # before it is written: who is stopped in the middle of it must draw again
        self._write(frame)

    def clear(self) -> None:
        """Take the picture away; whatever is printed next begins at the top."""
        if self._drawn is not None and _is_ours(self._out):
            rows = self.size().rows  # line by line: a screen that is cleared at once goes to the history of some
            self._write((_HOME + f"{_TO_END}\r\n" * (rows - 1) + _TO_END + _HOME).encode())

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except BlockingIOError:
            pass  # the next frame is whole again
        except OSError:
            self._is_gone = True

    # --- keys -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End a `wait` at once; from any thread or signal handler."""
        with suppress(OSError):  # full: awake already
            os.write(self._waker, b".")

    def wait(self, timeout_s: float) -> str:
        """The keys pressed within `timeout_s`, or none where it was ended by `wake`."""
        waited = [self._awake] if self._in is None else [self._awake, self._in]
        ready, _, _ = select.select(waited, [], [], max(0.0, timeout_s))
        if self._awake in ready:
            os.read(self._awake, 4096)
        if self._in is None or self._in not in ready:
            return ""
        try:
            pressed = os.read(self._in, 1024)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal is gone
            self._in = None
        return _SEQUENCE.sub(b"", pressed).decode("ascii", "ignore")


def key_by_key(attributes: list[Any]) -> list[Any]:
    """The same terminal with keys as they come, unseen; signals by key stay."""
    keys = list(attributes[6])
    keys[termios.VMIN], keys[termios.VTIME] = 1, 0
    local = attributes[3] & ~(termios.ICANON | termios.ECHO)
    return [*attributes[:3], local, *attributes[4:6], keys]


# --- beside us ------------------------------------------------------------------------------------------------


def _start_guard(out: int, before: list[Any] | None) -> Beside | None:
    """Without a guard the display is drawn all the same."""
    told = {
        "before": None if before is None else guard.plain(before),
        "ours": None if before is None else guard.plain(key_by_key(before)),
        "text": _WHOLE,
    }
    program = os.path.realpath(sys.executable)
    try:
        started = start_guard([program, "-I", "-S", "-c", Path(guard.__file__).read_text(encoding="utf-8")], out)
    except (JouledError, OSError):
        return None
    assert started.stdin is not None
    with suppress(OSError):
        started.stdin.write(json.dumps(told).encode() + b"\n")
    return started


def _end_guard(started: Beside) -> None:
    assert started.stdin is not None
    with suppress(OSError):
        started.stdin.write(b"\n")
    with suppress(OSError):
        started.stdin.close()
    reap(started, _GUARD_ENDS_S)


# --- signals --------------------------------------------------------------------------------------------------


@contextmanager
def following(terminal: Terminal) -> Iterator[None]:
    """A new size, Ctrl-Z and fg are followed. In the main thread only."""

    def handlers() -> Mapping[int, Callable[[], None]]:
        return {
            signal.SIGWINCH: terminal.wake,
            signal.SIGTSTP: terminal.suspend,
            signal.SIGCONT: terminal.resume,
        }

    def handle(number: int, _: FrameType | None) -> None:
        handlers()[number]()

    before = {number: signal.signal(number, handle) for number in handlers()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
