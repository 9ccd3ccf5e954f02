"""A stand-in for jetson-stats' client: the names that jtop_child uses, as the real one has them; no service.

The environment's JTOP_PLAN names a JSON file: {"version", "interval", "start": message of the exception at connection,
"sets": [what the service reads, one after the other], "then": what comes after the last ("stale", "lost" or "end")}.
The real one is held against jtop_child in tests/system/test_jtop.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

_PLAN: dict[str, Any] = json.loads(Path(os.environ["JTOP_PLAN"]).read_text())
__version__ = _PLAN.get("version", "7.2.2")


class JtopException(Exception):
    """What the real one raises, by this name."""


class _Mode:
    def __init__(self, name: str) -> None:
        self.name = name


class jtop:
    """The client."""

    def __init__(self, interval: float = 1.0) -> None:
        self.interval = _PLAN.get("interval", interval)
        self._sets: Iterator[dict[str, Any]] = iter(_PLAN["sets"])
        self._turns = 0

    def __enter__(self) -> jtop:
        if "start" in _PLAN:
            raise JtopException(_PLAN["start"])
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _next(self) -> bool:
        found = next(self._sets, None)
        if found is not None:
            self._turns += 1
            self._set = found
            self._uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return found is not None

    def ok(self) -> bool:
        """Waits, as the real one does."""
        time.sleep(self.interval)
        if not self._next():
            if _PLAN["then"] == "lost":
                raise JtopException("Lost connection with jtop server")
            return bool(_PLAN["then"] == "stale")  # the real client goes on with the same readings
        return True

    @property
    def uptime(self) -> timedelta:
        return timedelta(seconds=self._uptime_s)

    @property
    def power(self) -> dict[str, Any]:
        return dict(self._set["power"])

    @property
    def temperature(self) -> dict[str, Any]:
        return dict(self._set.get("temperature", {}))

    @property
    def cpu(self) -> dict[str, Any]:
        return {"cpu": self._set.get("cpu", [])}

    @property
    def gpu(self) -> dict[str, Any]:
        return dict(self._set.get("gpu", {}))

    @property
    def nvpmodel(self) -> _Mode | None:
        return _Mode(self._set["mode"]) if "mode" in self._set else None
