"""Simulated time: nothing waits, everything that is due happens in order."""

from __future__ import annotations

from collections.abc import Callable

_EXACT_S = 1e-9


class SimTicker:
    """A periodic call in simulated time."""

    def __init__(self, clock: SimClock, period_s: float, tick: Callable[[float], None]) -> None:
        self._clock = clock
        self._period_s = period_s
        self._tick = tick
        self._began_s = clock.monotonic_s()
        self._count = 0
        self._error: Exception | None = None
        self.due_s: float | None = self._began_s

    def fire(self) -> None:
        """Call it now and set the next time; a time that has passed is not made up for."""
        now_s = self._clock.monotonic_s()
        try:
            self._tick(now_s)
        except Exception as error:  # noqa: BLE001 - raised again in stop(), where the owner is
            self._error = error
            self._clock.forget(self)
            return
        late = int((self._clock.monotonic_s() - self._began_s) / self._period_s + _EXACT_S)
        self._count = max(self._count + 1, late)
        self.due_s = self._began_s + self._count * self._period_s

    def stop(self) -> None:
        """End it; raise what a tick raised."""
        self._clock.forget(self)
        if self._error is not None:
            raise self._error


class SimClock:
    """A clock of the product's kind that a machine advances. `passes(to_s)` is called before time goes on to `to_s`.

    `wall_s`: what the wall clock shows instead of simulated time, for files that a real daemon reads beside it.
    """

    def __init__(
        self,
        *,
        start_s: float,
        boot_wall_s: float,
        passes: Callable[[float], None],
        wall_s: Callable[[], float] | None = None,
    ) -> None:
        self.boot_wall_s = boot_wall_s
        self._wall_s = wall_s
        self._now_s = start_s
        self._passes = passes
        self._tickers: list[SimTicker] = []
        self._ticking = False

    def monotonic_s(self) -> float:
        """Seconds since the virtual boot."""
        return self._now_s

    def boottime_s(self) -> float:
        """The same: a virtual board is never suspended."""
        return self._now_s

    def wall_s(self) -> float:
        """Unix time of the virtual board."""
        return self.boot_wall_s + self._now_s if self._wall_s is None else self._wall_s()

    def sleep(self, duration_s: float) -> None:
        """Let `duration_s` pass; ticks that fall due before its end happen on the way, in order."""
        end_s = self._now_s + max(0.0, duration_s)
        while not self._ticking:
            due = min((t for t in self._tickers if t.due_s is not None), key=lambda t: t.due_s or 0.0, default=None)
            if due is None or due.due_s is None or due.due_s >= end_s - _EXACT_S:
                break
            self._go(max(due.due_s, self._now_s))
            self._fire(due)
        self._go(end_s)

    def every(self, period_s: float, tick: Callable[[float], None]) -> SimTicker:
        """Call `tick(now_s)` now and each `period_s` of simulated time."""
        ticker = SimTicker(self, period_s, tick)
        self._tickers.append(ticker)
        self._fire(ticker)
        return ticker

    def forget(self, ticker: SimTicker) -> None:
        """Tick it no more."""
        ticker.due_s = None
        if ticker in self._tickers:
            self._tickers.remove(ticker)

    def restart(self, *, start_s: float, boot_wall_s: float) -> None:
        """A boot: time begins anew and nobody ticks."""
        for ticker in list(self._tickers):
            self.forget(ticker)
        self._now_s, self.boot_wall_s = start_s, boot_wall_s

    def _fire(self, ticker: SimTicker) -> None:
        was, self._ticking = self._ticking, True
        try:
            ticker.fire()
        finally:
            self._ticking = was

    def _go(self, to_s: float) -> None:
        if to_s > self._now_s:
            self._passes(to_s)
            self._now_s = max(to_s, self._now_s)
