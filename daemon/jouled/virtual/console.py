"""Where a virtual program reads answers and writes what it says: real streams in a child, lists within a process."""

from __future__ import annotations

import sys


class Console:
    """Keeps what is said in `out` and `err`; answers come from `answers`, then end of file."""

    def __init__(self, answers: list[str] | None = None) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._answers = list(answers or [])

    def say(self, text: str, *, end: str = "\n", error: bool = False) -> None:
        """One line (or with another end)."""
        (self.err if error else self.out).append(text + end)

    def ask(self) -> str | None:
        """One line typed by whoever sits there, None at end of file."""
        return self._answers.pop(0) if self._answers else None


class StreamConsole(Console):
    """The process's own streams, unbuffered, so that a kill keeps what was said before."""

    def say(self, text: str, *, end: str = "\n", error: bool = False) -> None:
        stream = sys.stderr if error else sys.stdout
        stream.write(text + end)
        stream.flush()

    def ask(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
