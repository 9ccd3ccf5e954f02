"""What is collected each second of one measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jouled.board.clocks import ClockReading
from jouletune.measurement import Completions

SETTLE_OVER_S = 10.0
SETTLE_SLOPE_C = 0.5


class Progress(Protocol):
    """Hears how a stretch of a job goes: its name, the time, how long it may last, and what was just seen."""

    def __call__(self, phase: str, now_s: float, duration_s: float, seen: Mapping[str, Any] = {}, /) -> None: ...


@dataclass
class Seen:
    """Completions, clocks, what throttled, and (time, temperature), in their order."""

    completions: list[Completions] = field(default_factory=list)
    clocks: list[ClockReading] = field(default_factory=list)
    throttling: dict[str, None] = field(default_factory=dict)
    temperatures_c: list[tuple[float, float]] = field(default_factory=list)

    def joined(self) -> Completions:
        if not self.completions:
            empty = np.empty(0)
            return Completions(empty, empty, empty)
        parts = self.completions
        arrival_s, start_s, end_s = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("arrival_s", "start_s", "end_s")
        )
        order = np.argsort(end_s, kind="stable")  # instances tell of theirs in turns
        return Completions(arrival_s[order], start_s[order], end_s[order], parts[0].batch)

    def last_c(self) -> float | None:
        return self.temperatures_c[-1][1] if self.temperatures_c else None

    def last(self, fresh: Completions, percentile: float, power_w: float | None) -> dict[str, Any]:
        """What a display shows of the last second, in which `fresh` ended; what is not known is left out."""
        clocks = self.clocks[-1]
        told = {"cpu": clocks.cpu_hz, "gpu": clocks.gpu_hz, "emc": clocks.emc_hz}
        waited_s = fresh.end_s - fresh.arrival_s
        now = {
            "power_w": power_w,
            "temperature_c": self.last_c(),
            "latency_s": float(np.percentile(waited_s, percentile)) if waited_s.size else None,
            "clock_hz": {domain: value for domain, value in told.items() if value is not None},
        }
        return {name: value for name, value in now.items() if value is not None}

    def is_steady(self) -> bool:
        """Less than 0.5 °C over the last 10 s; a board without a readable zone counts as steady."""
        if not self.temperatures_c:
            return True
        now_s, now_c = self.temperatures_c[-1]
        before_s = now_s - SETTLE_OVER_S + 1e-9
        earlier_c = [value_c for t_s, value_c in self.temperatures_c if t_s <= before_s]
        return bool(earlier_c) and abs(now_c - earlier_c[-1]) < SETTLE_SLOPE_C
