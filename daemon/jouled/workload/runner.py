"""What the job asks of whatever runs the workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jouletune.measurement import Completions
from jouletune.space import Variant


@dataclass(frozen=True, slots=True)
class Arrival:
    """How requests come: `back_to_back`, `rate` (with `rate_hz` requests a second) or `trace`."""

    kind: str = "back_to_back"
    rate_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a runner says of what it loaded."""

    key: str
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
        """What has ended since the last call. Raises WorkloadDiedError, WorkloadHungError."""

    def pause(self) -> None:
        """Stop the load, stay loaded."""

    def close(self) -> None:
        """End it; idempotent."""
