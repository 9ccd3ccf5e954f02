"""A job's own measurements as a CSV that `tune --table` makes a board of (docs/recorded.md)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from jouled.board.apply import ClocksPolicy
from jouled.board.statefile import replace_text, write_hint
from jouled.errors import StateError, UsageError
from jouled.job.events import Event
from jouled.job.request import Request
from jouled.job.summary import counted, mean_energy_j
from jouled.workload.runner import Arrival
from jouletune.table import Row, render_table
from jouletune.trial import Trial

log = logging.getLogger(__name__)

_CAPPED = ClocksPolicy.CAPPED.value


def check_export(path: Path, request: Request, arrival: Arrival, *, table: Path | None = None) -> None:
    """Raise UsageError, before anything is measured, where the recorded format could not hold the job or the file."""
    if arrival.kind != "back_to_back":
        raise UsageError(
            f"--export: wanted arrival back_to_back, got {arrival}: a recorded board knows its power while busy only",
            hint='leave --rate-hz out, or set arrival = "back_to_back"',
        )
    engines = {variant.engine for variant in request.variants}
    if len(engines) > 1 or any(variant.instances != 1 for variant in request.variants):
        raise UsageError(
            "--export: a recorded board has batch sizes, but neither several engines nor several instances",
            hint="export a job of one engine with instances = [1]",
        )
    if request.config.grid.clocks == ClocksPolicy.LOCKED.value:
        raise UsageError("--export: a recorded board's clocks are capped, got locked", hint="leave --clocks out")
    if not path.name:
        raise UsageError(f"--export: wanted the name of a file, got {str(path)!r}", hint="--export GRID.csv")
    if table is not None and path.exists() and path.samefile(table):
        raise UsageError(
            f"--export: {path} is the table that this board is made of; a job measures only some of its rows",
            hint="name another file",
        )
    is_closed = path.exists() and not os.access(path, os.W_OK)
    if path.is_dir() or is_closed or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--export: {path}: no file can be written there", hint="name one in a folder that is yours")


class Export:
    """Listens to a job's events and keeps its trials."""

    def __init__(self) -> None:
        self._trials: dict[int, list[Trial]] = {}

    def __call__(self, event: Event) -> None:
        if event["event"] != "trial":
            return
        trial = Trial.from_dict(event["trial"])
        if trial.invalid is None and trial.measurement is not None and trial.policy == _CAPPED:
            self._trials.setdefault(trial.index, []).append(trial)

    def rows(self) -> tuple[Row, ...]:
        """One for each candidate that was measured, capped, in the order of the grid."""
        ordered = sorted(self._trials.items())
        return tuple(_row(number, trials) for number, (_, trials) in enumerate(ordered))

    def write(self, path: Path) -> int:
        """Make or replace the file; how many rows. Nothing is written of a job that measured nothing.

        Raises StateError; a file that was there still stands.
        """
        rows = self.rows()
        if rows:
            try:
                replace_text(path, render_table(rows))
            except OSError as error:
                hint = write_hint(error, path.parent, "name another file")
                raise StateError(f"--export: {path}: cannot be written: {error.strerror}", hint=hint) from error
        return len(rows)


def _row(number: int, trials: Sequence[Trial]) -> Row:
    """Energy as the result has it; latency is the mean time of a request, so that joules over seconds are the power.

    The percentile would make slow modes look thriftier than they are.
    """
    windows = counted(trials)
    latency_s = sum(window.duration_s for window in windows) / sum(window.requests for window in windows)
    return Row(number, trials[0].candidate, latency_s, mean_energy_j(windows))
