"""Puts a terminal back when the process that changed it has gone without doing so, SIGKILL included.

Runs alone, as the text of `python -I -S -c`: it imports nothing of ours, and its command line has no word by which
somebody who kills the one that it watches would kill it too. Standard input is a pipe from that process: one line of
JSON (`before`, `ours`: the terminal's attributes or null; `text`: what to write), then a second line where that
process has put everything back itself. The pipe's end without that line is its death. Standard output is the terminal.

The attributes are put back only where they are still `ours`: a shell that was quicker has its own by then. A session
of its own keeps the keyboard's signals away from it, and lets it write to a terminal that is not in its foreground.
"""

from __future__ import annotations

import json
import os
import sys
import termios
from contextlib import suppress
from typing import Any


def plain(attributes: list[Any]) -> list[Any]:
    """Attributes as JSON has them."""
    keys = [key.decode("latin-1") if isinstance(key, bytes) else key for key in attributes[6]]
    return [*attributes[:6], keys]


def real(attributes: list[Any]) -> list[Any]:
    """The inverse of `plain`."""
    keys = [key.encode("latin-1") if isinstance(key, str) else key for key in attributes[6]]
    return [*attributes[:6], keys]


def main() -> None:
    """Wait, then put back what is not back yet."""
    first = sys.stdin.buffer.readline()
    if not first or sys.stdin.buffer.readline():
        return
    told = json.loads(first)
    with suppress(OSError, termios.error):  # a terminal that is gone needs nothing
        if told["before"] is not None and termios.tcgetattr(1) == real(told["ours"]):
            termios.tcsetattr(1, termios.TCSANOW, real(told["before"]))
        os.write(1, told["text"].encode())


if __name__ == "__main__":
    main()
