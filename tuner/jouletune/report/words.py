"""Numbers and names as a reader of the report sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from jouletune.space import Candidate, PowerMode, Variant

NONE = "–"
FIRM = "\u00a0"  # a space at which no line breaks
_SCALES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """`value` of an SI unit with three digits: 0.0184 s is 18.4 ms."""
    if value is None or not math.isfinite(value):
        return NONE
    scale, prefix = scale_of(value)
    scaled = float(f"{value / scale:.{digits}g}")  # 9.998 is 10.0, not 10.00
    places = max(0, digits - len(str(int(abs(scaled)))))
    return f"{scaled:.{places}f}{FIRM}{prefix}{unit}"


def scale_of(value: float) -> tuple[float, str]:
    """The scale at which `value` is a number from 1 to 1000, and its prefix."""
    if value == 0.0:
        return 1.0, ""
    return next(((scale, prefix) for scale, prefix in _SCALES if abs(value) >= scale), _SCALES[-1])


def percent(ratio: float | None, places: int = 1) -> str:
    """A ratio as a percentage."""
    return NONE if ratio is None else f"{100 * ratio:.{places}f}{FIRM}%".replace("-", "−")


def signed_percent(ratio: float, places: int = 1) -> str:
    """A change as a percentage with its sign."""
    text = f"{100 * ratio:+.{places}f}{FIRM}%"
    return text.replace("-", "−")


def megahertz(value_hz: int | None) -> str:
    """A clock without its unit; a dash for one that is not set."""
    return NONE if value_hz is None else f"{value_hz / 1e6:.1f}".removesuffix(".0")


def span(seconds: float | None) -> str:
    """Minutes where there are some."""
    if seconds is None:
        return NONE
    return f"{seconds:.0f}{FIRM}s" if seconds < 90 else f"{seconds / 60:.0f}{FIRM}min"


def counted(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def mode_text(mode: PowerMode) -> str:
    """A power mode in words; axes that are fixed are left out."""
    parts = [] if mode.cores is None else [counted(mode.cores, "core")]
    named = (("CPU", mode.cpu_hz), ("GPU", mode.gpu_hz), ("EMC", mode.emc_hz))
    clocks = [f"{name} {megahertz(value)}" for name, value in named if value is not None]
    return ", ".join([*parts, *clocks]) + (" MHz" if clocks else "")


def variant_text(variant: Variant) -> str:
    """A variant in words; "" for the plain one."""
    engine = [] if variant.engine is None else [variant.engine.rpartition("/")[2]]
    batch = [f"batch {variant.batch}"] if variant.batch != 1 else []
    return ", ".join([*engine, *batch, *([f"{variant.instances} instances"] if variant.instances != 1 else [])])


def candidate_text(candidate: Candidate) -> str:
    """All that there is to say of it."""
    return ", ".join(filter(None, (mode_text(candidate.mode), variant_text(candidate.variant)))) or "as it is"


AXES = {
    "cores": "cores online",
    "cpu_hz": "CPU cap",
    "gpu_hz": "GPU cap",
    "emc_hz": "EMC cap",
    "engine": "engine",
    "batch": "batch",
    "instances": "instances",
}


def axis_title(name: str) -> str:
    """What stands at an axis of a figure."""
    return AXES[name] + (", MHz" if name.endswith("_hz") else "")


def value_text(name: str, value: object) -> str:
    """One value of an axis."""
    if name.endswith("_hz") and isinstance(value, int):
        return megahertz(value)
    if name == "engine" and isinstance(value, str):
        return value.rpartition("/")[2]
    return NONE if value is None else str(value)


def place_text(values: Iterable[tuple[str, object]]) -> str:
    """A place on several axes: `EMC cap 3199 MHz, batch 4`."""
    texts = []
    for name, value in values:
        unit = " MHz" if name.endswith("_hz") else ""
        texts.append(f"{AXES[name]} {value_text(name, value)}{unit}")
    return ", ".join(texts)
