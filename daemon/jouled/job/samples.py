"""The raw samples of each window, kept for whoever wants to look closer: one npz a window (docs/samples.md)."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from jouled.job.events import finite
from jouled.job.measuring import Taken
from jouletune.trace import PowerTrace
from jouletune.trial import Trial

log = logging.getLogger(__name__)

FOLDER = "samples"
SCHEMA = 1


def arrays_of(trial: Trial, taken: Taken) -> dict[str, Any]:
    """Name → array; times are seconds of the monotonic clock. Without a trace (an alarm ended it) none of power."""
    done = taken.completions
    arrays: dict[str, Any] = {
        "schema": np.int64(SCHEMA),
        "trial": np.array(json.dumps(finite(trial.to_dict()))),
        "window_s": np.array([taken.start_s, taken.end_s]),
        "arrival_s": done.arrival_s,
        "start_s": done.start_s,
        "end_s": done.end_s,
        "batch": np.int64(done.batch),
    }
    return arrays if taken.trace is None else arrays | _power(taken.trace)


def _power(trace: PowerTrace) -> dict[str, Any]:
    columns = {"voltage_v": [rail.voltage_v for rail in trace.rails], "current_a": [r.current_a for r in trace.rails]}
    arrays: dict[str, Any] = {
        "t_s": trace.t_s,
        "rails": np.array([rail.name for rail in trace.rails], dtype=np.str_),
        "external_w": np.float64(trace.external_w),
        "averaging_s": np.float64(trace.averaging_s),
        "lost": np.int64(trace.lost),
        **{name: np.array(rails, dtype=np.float64).T for name, rails in columns.items()},
    }
    if trace.counter is not None:
        arrays |= {"counter_t_s": trace.counter.t_s, "counter_j": trace.counter.joules}
    return arrays


class Samples:
    """Keeps one job's, below `state_dir`, beside those of at most `keep_jobs` - 1 earlier jobs."""

    def __init__(self, state_dir: Path, job: str, keep_jobs: int) -> None:
        self._root = state_dir / FOLDER
        self.folder = self._root / job
        self._keep_jobs = keep_jobs

    def keep(self, trial: Trial, taken: Taken) -> None:
        """Write one window's. Raises OSError."""
        if not self.folder.is_dir():
            self._make_room()
            self.folder.mkdir(mode=0o750, parents=True)
        path = self.folder / f"{trial.number:04d}.npz"
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            np.savez_compressed(file, **arrays_of(trial, taken))
        os.replace(fresh, path)

    def _make_room(self) -> None:
        """Remove the oldest jobs' folders."""
        if not self._root.is_dir():
            return
        folders = [path for path in self._root.iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_mtime)
        for folder in folders[: max(0, len(folders) - self._keep_jobs + 1)]:
            log.info("samples of job %s are removed: store.keep_jobs = %d", folder.name, self._keep_jobs)
            shutil.rmtree(folder)
