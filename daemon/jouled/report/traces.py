"""Power over time of what is compared: from the raw samples where they were kept, else from the ledger's means."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jouled.job.samples import FOLDER
from jouletune.report.facts import Job, Trace, Window


def traces_of(job: Job, events: Sequence[Mapping[str, Any]], folder: Path) -> Job:
    """The job with a trace each of the reference and of what is compared with it, as far as there are any."""
    kept = {event["trial"]["number"]: event.get("power_trace") for event in events if "trial" in event}
    roles = {role: key for key, role in job.roles().items()}
    wanted = [role for role in ("reference", job.shown()) if role is not None and role in roles]
    found = [_trace(job, role, roles[role], kept, folder) for role in wanted]
    return replace(job, traces=tuple(trace for trace in found if trace is not None))


def _trace(job: Job, role: str, key: tuple[int, str], kept: Mapping[int, Any], folder: Path) -> Trace | None:
    """Of the last valid window that has one: in the finals both are near each other in time."""
    for window in reversed(_valid(job, key)):
        number = window.trial.number
        trace = _sampled(role, number, folder / FOLDER / str(job.result["job"]) / f"{number:04d}.npz")
        trace = trace or _ledgered(role, number, kept.get(number))
        if trace is not None:
            return trace
    return None


def _valid(job: Job, key: tuple[int, str]) -> list[Window]:
    return [
        window
        for window in job.windows
        if (window.trial.index, window.trial.policy) == key
        and window.trial.invalid is None
        and window.trial.measurement is not None
    ]


def _ledgered(role: str, number: int, trace: Mapping[str, Any] | None) -> Trace | None:
    if not trace:
        return None
    step_s, start_s = float(trace["step_s"]), float(trace["start_s"])
    read = [(start_s + (at + 0.5) * step_s, watts) for at, watts in enumerate(trace["power_w"]) if watts is not None]
    if not read:
        return None
    t_s, power_w = zip(*read, strict=True)
    return Trace(role, number, t_s, power_w, float(trace["window_s"]), "ledger")


def _sampled(role: str, number: int, path: Path) -> Trace | None:
    """None where no samples were kept, or they cannot be read: the ledger's means do then."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            if "t_s" not in kept.files or kept["t_s"].size < 2:
                return None
            start_s, end_s = (float(edge) for edge in kept["window_s"])
            power_w = (kept["voltage_v"] * kept["current_a"]).sum(axis=1) + kept["external_w"]
            t_s = kept["t_s"] - start_s
            return Trace(role, number, t_s.tolist(), power_w.tolist(), end_s - start_s, "samples")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
