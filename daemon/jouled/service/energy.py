"""Joules of each rail since the daemon's start: watts now and then, added up over the time between.

Each step counts the mean of its two ends. A step that is missing is not guessed: over a gap (a reading that failed, a
daemon that was held up) nothing is added, and in suspend the clock stands.
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_STEPS = 2.5  # of the sampling period: one late reading is bridged, two lost ones are not


class EnergyCounter:
    """`told` only grows."""

    def __init__(self) -> None:
        self._joules: dict[str, float] = {}
        self._last: tuple[float, Mapping[str, float]] | None = None

    def add(self, now_s: float, power_w: Mapping[str, float], *, period_s: float) -> None:
        """A reading (monotonic clock); empty: none could be taken."""
        last, self._last = self._last, (now_s, power_w)
        if last is None or not 0.0 < now_s - last[0] <= LONGEST_STEPS * period_s:
            last = None
        for rail, watts in power_w.items():
            before_w = watts if last is None else last[1].get(rail)
            step_s = 0.0 if last is None or before_w is None else now_s - last[0]
            self._joules[rail] = self._joules.get(rail, 0.0) + (watts + (before_w or 0.0)) / 2 * step_s

    def told(self) -> dict[str, float]:
        """Joules by rail."""
        return dict(self._joules)
