"""A reader: a child that says one JSON object a line, heard by a thread of its own until it ends."""

from __future__ import annotations

import json
import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import Any

from jouled.board.process import Spawned
from jouled.errors import StuckError

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
_SHOWN_BYTES = 120


class Reader:
    """`source` is what it reads from; `hear` gets each object, in the thread and with `changed` held.

    `nonsense`: the last line, where it was no line of the protocol; else "".
    """

    def __init__(self, child: Spawned, *, source: str, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self.changed = threading.Condition()
        self._child = child
        self._source = source
        self._hear = hear
        self._has_ended = False
        self.nonsense = ""
        self._thread = threading.Thread(target=self._read, name=f"jouled-{source.lower()}", daemon=True)

    def start(self) -> None:
        """Begin to hear it."""
        self._thread.start()

    def _read(self) -> None:
        left = b""
        try:
            while more := os.read(self._child.stdout, _READ_BYTES):
                *lines, left = (left + more).split(b"\n")
                for line in lines:
                    self._take(line)
        finally:  # whatever ends the thread, nobody waits for it
            with self.changed:
                self._has_ended = True
                self.changed.notify_all()

    def _take(self, line: bytes) -> None:
        """What is no object, or not one of `hear`'s, is passed over and kept as `nonsense`, to be told of."""
        with self.changed:
            try:
                said = json.loads(line)
                if not isinstance(said, dict):
                    raise TypeError("no object")
                self._hear(said)
                self.nonsense = ""
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self.nonsense = repr(line[:_SHOWN_BYTES])
                log.warning("the reader of %s said what is no line of its protocol: %s", self._source, self.nonsense)
            self.changed.notify_all()

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""
        return not self._has_ended

    def wait(self, is_there: Callable[[], bool], most_s: float) -> bool:
        """Until `is_there`, the reader ends or `most_s` has passed: is it?"""
        with self.changed:
            return self.changed.wait_for(lambda: is_there() or self._has_ended, most_s) and is_there()

    def say(self, word: str) -> None:
        """One line to it. Raises BrokenPipeError."""
        os.write(self._child.stdin, f"{word}\n".encode())

    def last_words(self) -> str:
        """How it has ended, with the end of its standard error."""
        ready = select.select([self._child.stderr], [], [], 0)[0]
        text = os.read(self._child.stderr, _READ_BYTES).decode("utf-8", "replace") if ready else ""
        return f"its reader has ended: {' | '.join(text.splitlines()[-2:]) or 'it said nothing'}"

    def close(self, most_s: float) -> None:
        """End it, by SIGKILL where it does not end within `most_s`; idempotent."""
        self._child.close_stdin()
        if self._child.wait(most_s) is None:
            try:
                self._child.kill()
            except StuckError as error:
                log.error("%s", error)
                return
        self._thread.join()
        self._child.release()
