"""A power mode's name for people and commands: `12-1497.6-918-2133`, cores and the caps in MHz, x for a fixed axis."""

from __future__ import annotations

import re
from decimal import Decimal

from jouled.errors import UsageError
from jouletune.space import PowerMode

_PART = re.compile(r"x|\d{1,7}(\.\d{1,6})?")


def mode_name(mode: PowerMode) -> str:
    """The name."""
    caps = (mode.cpu_hz, mode.gpu_hz, mode.emc_hz)
    return "-".join(["x" if mode.cores is None else str(mode.cores), *(_megahertz(cap_hz) for cap_hz in caps)])


def _megahertz(cap_hz: int | None) -> str:
    if cap_hz is None:
        return "x"
    text = f"{Decimal(cap_hz) / 1_000_000:.6f}".rstrip("0")
    return text.removesuffix(".")


def parse_mode_name(text: str) -> PowerMode:
    """The inverse of `mode_name`. Raises UsageError."""
    parts = text.split("-")
    if len(parts) != 4 or not all(_PART.fullmatch(part) for part in parts) or "." in parts[0]:
        raise UsageError(
            f"power mode {text!r}: wanted CORES-CPU-GPU-EMC with the caps in MHz, such as 12-1497.6-918-2133",
            hint="jouled modes prints the names",
        )
    cores = None if parts[0] == "x" else int(parts[0])
    cpu_hz, gpu_hz, emc_hz = (None if part == "x" else int(Decimal(part) * 1_000_000) for part in parts[1:])
    return PowerMode(cores, cpu_hz, gpu_hz, emc_hz)
