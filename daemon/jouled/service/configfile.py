"""Is the configuration's file still the one that the daemon began with? It goes on as it began; jobs read the file."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

log = logging.getLogger(__name__)

_Signature = tuple[int, int, int] | None


class ConfigFile:
    """As it is now, and as it was when this was made; `path` None: there is none. Read only when it looks changed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._signature = self._sign()
        self._first = self._sum = self._digest()
        self._said = ""

    def _sign(self) -> _Signature:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)

    def _digest(self) -> str:
        """Empty where there is no such file."""
        try:
            return "" if self._path is None else hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError:
            return ""

    def difference(self) -> str:
        """A sentence while the file is another than at the start; "" while it is not. Logged when that changes."""
        signature = self._sign()
        if signature != self._signature:
            self._signature, self._sum = signature, self._digest()
        how = "is gone" if not self._sum else "has changed" if self._first else "is new"
        text = f"{self._path} {how} since the daemon began: it takes effect with: sudo systemctl restart jouled"
        said = "" if self._sum == self._first else text
        if said != self._said:
            log.warning("%s", said or f"{self._path} is as it was when the daemon began")
            self._said = said
        return said
