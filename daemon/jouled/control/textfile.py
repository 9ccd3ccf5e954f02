"""The metrics as a file, for node_exporter's textfile collector: whole or not at all, and gone when the daemon ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

WRITE_EVERY_S = 15.0
_EVERYBODY_READS = 0o644  # node_exporter runs as a user of its own


class Textfile:
    """`render` gives the text; `say` is told what is wrong, and "" when it is no more."""

    def __init__(self, path: Path, render: Callable[[], bytes], say: Callable[[str], None]) -> None:
        self._path = path
        self._fresh = path.with_name(f".{path.name}.new")  # node_exporter reads what ends in .prom
        self._render = render
        self._say = say
        self._trouble = ""

    def write(self) -> None:
        """Replace it. Raises nothing: what cannot be written is said, once."""
        text = self._render()
        try:
            self._place(text)
        except OSError as error:
            self._tell(f"metrics.textfile {self._path} cannot be written: {error.strerror}; see docs/monitoring.md")
        else:
            self._tell("")

    def _place(self, text: bytes) -> None:
        self._fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._fresh, flags, _EVERYBODY_READS)
        try:
            os.fchmod(descriptor, _EVERYBODY_READS)  # whatever the umask
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(text)
        finally:
            os.close(descriptor)
        os.replace(self._fresh, self._path)

    def _tell(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._say(trouble)
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("metrics.textfile %s is written again", self._path)

    def remove(self) -> None:
        """Old numbers must not look like today's."""
        for path in (self._path, self._fresh):
            with suppress(OSError):
                path.unlink()
