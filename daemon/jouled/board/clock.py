"""Time as a parameter: the system's clock, and the protocol that the virtual board's clock keeps too."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Ticker(Protocol):
    """A running periodic call."""

    def stop(self) -> None:
        """End it, wait for a tick in progress, raise what a tick raised."""


class Clock(Protocol):
    """What the product knows of time."""

    def monotonic_s(self) -> float:
        """Seconds that stand still in suspend; durations come from here."""

    def boottime_s(self) -> float:
        """Seconds since boot, suspend counted."""

    def wall_s(self) -> float:
        """Unix time, for logs and files only."""

    def sleep(self, duration_s: float) -> None:
        """Return `duration_s` later."""

    def every(self, period_s: float, tick: Callable[[float], None]) -> Ticker:
        """Call `tick(monotonic_s)` each `period_s`, first at once, until stopped. A late tick is not made up for."""


class _ThreadTicker:
    def __init__(self, period_s: float, tick: Callable[[float], None]) -> None:
        self._period_s = period_s
        self._tick = tick
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="jouled-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._ended.wait(max(0.0, due_s - time.monotonic())):
                now_s = time.monotonic()
                self._tick(now_s)
                due_s += self._period_s * max(1, math.ceil((time.monotonic() - due_s) / self._period_s))
        except Exception as error:  # noqa: BLE001 - raised again in stop(), where the owner is
            self._error = error

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(max(0.0, duration_s))

    def every(self, period_s: float, tick: Callable[[float], None]) -> Ticker:
        return _ThreadTicker(period_s, tick)
