"""The ways in which a workload of the configuration may be run: engines × batch sizes × instances."""

from __future__ import annotations

from itertools import product

from jouled.config.tables import WorkloadEntry
from jouletune.space import Variant


def variants_of(entry: WorkloadEntry | None) -> tuple[Variant, ...]:
    """Every variant, the first of each list first: that one is the reference's. Without an entry the plain one."""
    if entry is None:
        return (Variant(),)
    engines: tuple[str | None, ...] = entry.engine or entry.onnx or (None,)
    return tuple(Variant(*each) for each in product(engines, entry.batch, entry.instances))
