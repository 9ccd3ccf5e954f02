"""What the job asks of whatever runs the workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jouletune.measurement import Completions
from jouletune.space import Variant


@dataclass(frozen=True, slots=True)
class Arrival:
    """How requests come: `back_to_back`, `rate` (with `rate_hz` requests a second) or `trace`.

    A trace is played in a loop: request i of loop j comes `j * period_s + times_s[i]` after the load began.
    """

    kind: str = "back_to_back"
    rate_hz: float | None = None
    times_s: tuple[float, ...] = ()
    period_s: float | None = None

    @property
    def mean_rate_hz(self) -> float | None:
        """Requests a second in the long run; None where each waits for the one before."""
        if self.kind == "trace" and self.period_s is not None:
            return len(self.times_s) / self.period_s
        return self.rate_hz

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which nothing comes; 0 back to back."""
        if self.period_s is None:
            return 0.0 if self.rate_hz is None else 1.0 / self.rate_hz
        following_s = (*self.times_s[1:], self.period_s)
        return max(after_s - at_s for at_s, after_s in zip(self.times_s, following_s, strict=True))

    def __str__(self) -> str:
        if self.kind == "trace" and self.period_s is not None:
            return f"trace of {len(self.times_s)} requests in {self.period_s:.4g} s, {self.mean_rate_hz:.4g} Hz"
        return self.kind if self.rate_hz is None else f"{self.kind} {self.rate_hz:g} Hz"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a runner says of what it loaded."""

    description: str
    inference_name: str
    versions: tuple[tuple[str, str], ...] = ()


class Runner(Protocol):
    """One workload, ready to be loaded. Times are those of the host's clock (monotonic seconds)."""

    arrival: Arrival

    def load(self, variant: Variant) -> Loaded:
        """Make `variant` ready to run; no load yet. Raises WorkloadError."""

    def begin(self) -> None:
        """Start the load (again after `pause`)."""

    def take(self) -> Completions:
        """What has ended since the last call, after `pause` too. Raises WorkloadDiedError, WorkloadHungError."""

    def pause(self) -> None:
        """Stop the load, stay loaded."""

    def close(self) -> None:
        """End it; idempotent."""
