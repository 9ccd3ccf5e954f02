"""A terminal for tests: a real pty with a program in its foreground, and a screen that understands what is written."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
# Makes the pty the controlling terminal of the new session, as a login does.
_LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
_ENOUGH_S = 30.0


@dataclass
class Screen:
    """Rows of characters. `wrapped` counts characters that did not fit their line; `unknown` sequences are kept."""

    columns: int
    rows: int
    wrapped: int = 0
    scrolled: list[str] = field(default_factory=list)
    modes: dict[str, bool] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    _row: int = 0
    _column: int = 0
    _lines: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resize(self.columns, self.rows)

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor(self) -> tuple[int, int]:
        return self._row, self._column

    def resize(self, columns: int, rows: int) -> None:
        """As a terminal that does not join what it has cut."""
        self.columns, self.rows = columns, rows
        kept = [line[:columns] + [" "] * (columns - len(line)) for line in self._lines[-rows:]]
        self._lines = kept + [[" "] * columns for _ in range(rows - len(kept))]
        self._row, self._column = min(self._row, rows - 1), min(self._column, columns - 1)

    def write(self, text: str) -> str:
        """Show it; what is left of a sequence that is not whole yet comes back."""
        while text:
            found = _SEQUENCE.match(text)
            if found is not None:
                self._control(*found.groups())
                text = text[found.end() :]
            elif text[0] == "\x1b" and len(text) < 16:
                return text
            else:
                self._put(text[0])
                text = text[1:]
        return ""

    def _control(self, numbers: str, letter: str) -> None:
        if letter == "H" and not numbers:
            self._row = self._column = 0
        elif letter == "K" and not numbers:
            self._lines[self._row][self._column :] = [" "] * (self.columns - self._column)
        elif letter == "J" and not numbers:
            self._control("", "K")
            for row in range(self._row + 1, self.rows):
                self._lines[row] = [" "] * self.columns
        elif numbers.startswith("?") and letter in "hl":
            self.modes[numbers[1:]] = letter == "h"
        elif letter != "m":
            self.unknown.append(numbers + letter)

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif not character.isprintable():
            self.unknown.append(character)
        elif self._column >= self.columns:
            self.wrapped += 1
        else:
            self._lines[self._row][self._column] = character
            self._column += 1

    def _down(self) -> None:
        if self._row < self.rows - 1:
            self._row += 1
            return
        self.scrolled.append("".join(self._lines.pop(0)).rstrip())
        self._lines.append([" "] * self.columns)


class Session:
    """A program on a pty of its own, which it controls; what it writes is on `screen`."""

    def __init__(self, argv: Sequence[str], columns: int, rows: int, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.screen = Screen(columns, rows)
        self._left = ""
        self.tty = slave
        self._set_size(columns, rows)
        self.before = termios.tcgetattr(slave)
        own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LOGIN, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**own, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        )

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """The window's new size; the program gets SIGWINCH."""
        self._hear()
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _hear(self, timeout_s: float = 0.0) -> None:
        while select.select([self._master], [], [], timeout_s)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # nobody is at the other end any more
                return
            self._left = self.screen.write(self._left + data.decode("utf-8", "surrogateescape"))
            timeout_s = 0.0

    def until(self, is_so: Callable[[Screen], Any]) -> Screen:
        """Wait until the screen is so."""
        ends_s = time.monotonic() + _ENOUGH_S
        while not is_so(self.screen):
            self._hear(0.05)
            assert time.monotonic() < ends_s, f"it did not come to that:\n{self.screen.text}"
        return self.screen

    def shows(self, text: str) -> Screen:
        """Wait until the text is on the screen, on one line."""
        return self.until(lambda screen: any(text in line for line in screen.lines))

    def end(self) -> int:
        """Wait for the program's end; its exit code."""
        ends_s = time.monotonic() + _ENOUGH_S
        while self.process.poll() is None:
            self._hear(0.02)
            assert time.monotonic() < ends_s, f"it did not end:\n{self.screen.text}"
        self._hear()
        return self.process.returncode

    def is_whole(self) -> bool:
        """Is the terminal as it was found: input modes, a visible cursor, lines that wrap, no other screen?"""
        modes = self.screen.modes
        self._hear()
        has_screen = modes.get("25", True) and modes.get("7", True) and not modes.get("1049", False)
        return bool(termios.tcgetattr(self.tty) == self.before and has_screen)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.tty)
        os.close(self._master)


@contextmanager
def session(argv: Sequence[str], columns: int, rows: int, **environment: str) -> Iterator[Session]:
    """A program on a terminal of its own."""
    running = Session(argv, columns, rows, environment)
    try:
        yield running
    finally:
        running.close()
