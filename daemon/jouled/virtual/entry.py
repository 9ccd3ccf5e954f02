"""The configuration's workload on a virtual board: its names and engines, with the load of a virtual workload."""

from __future__ import annotations

from dataclasses import replace

from jouled.config.tables import WorkloadEntry
from jouled.virtual.plant import LayerPlant, board_plant, load_workload


def virtual_plant(board: str, workload: str, entry: WorkloadEntry | None) -> LayerPlant:
    """The layer plant of `board` that runs `workload` in the name of `entry`. Raises UsageError."""
    work = load_workload(workload)
    if entry is None:
        return board_plant(board, work)
    return board_plant(board, replace(work, inference_name=entry.inference_name), entry.engine or entry.onnx)
