"""Power modes, variants, candidates and the space that a search walks (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class PowerMode:
    """One power mode. None: this axis is fixed or was not recorded."""

    cores: int | None = None
    cpu_hz: int | None = None
    gpu_hz: int | None = None
    emc_hz: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One way of running a workload."""

    engine: str | None = None
    batch: int = 1
    instances: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """What one trial applies and runs."""

    mode: PowerMode
    variant: Variant = field(default_factory=Variant)
