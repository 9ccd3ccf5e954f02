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
from jouletune.trace import PowerTrace, total_power_w
from jouletune.trial import Purpose, Trial

log = logging.getLogger(__name__)

FOLDER = "samples"
SCHEMA = 1
_TRACE_POINTS = 120


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


def coarse_power(trial: Trial, taken: Taken) -> dict[str, Any] | None:
    """The total over the window and what led to it in at most 120 means, for the ledger: under a kilobyte.

    Of what is compared only, so the reference, the incumbent and the finals; `start_s` counts from the window's begin.
    """
    trace = taken.trace
    if trial.purpose is Purpose.SEARCH or trace is None or trace.t_s.size < 2:
        return None
    power_w, t_s = total_power_w(trace), trace.t_s - taken.start_s
    step_s = max(trace.period_s, float(t_s[-1] - t_s[0]) / _TRACE_POINTS)
    bins = np.floor((t_s - t_s[0]) / step_s).astype(int)
    counts = np.bincount(bins)
    sums = np.bincount(bins, weights=power_w)
    means = [round(float(total / n), 3) if n else None for total, n in zip(sums, counts, strict=True)]
    window_s = round(taken.end_s - taken.start_s, 3)
    return {"start_s": round(float(t_s[0]), 3), "step_s": round(step_s, 4), "window_s": window_s, "power_w": means}


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
