"""A virtual board in a bad state, and jobs on it: what they end with, and what their user reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jouled.board.board import Board, discover
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.knobs import CONF_PATH_PATH, STATUS_PATH, read_knobs
from jouled.board.snapshot import snapshot_path
from jouled.config import Config, load
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.named import clear, inject
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.space import PowerMode

RATIO = 1.4


class Faulty:
    """A virtual board in `folder`, its faults by name."""

    def __init__(self, folder: Path, *faults: str, **machine: Any) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", programs="in_process", **machine)
        self.host: Host = self.machine.host(folder)
        self.events: list[Event] = []
        self.cancellation = Cancellation()
        if faults:
            self.suffer(*faults)

    def suffer(self, *faults: str) -> None:
        inject(self.machine.root, self.folder, faults)

    def recover(self) -> None:
        clear(self.machine.root, self.folder)
        set_faults(str(self.machine.root))

    def config(self, **overrides: Any) -> Config:
        values = {"target.latency_bound_ratio": RATIO, "job.budget": 4}
        return load(None, values | {key.replace("__", "."): value for key, value in overrides.items()})

    def run(self, *, on_event: Callable[[Event], None] | None = None, **keys: Any) -> JobResult:
        config = self.config(**keys)
        request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
        sinks = (self.events.append,) if on_event is None else (self.events.append, on_event)
        runner = VirtualRunner(self.machine, Arrival())
        return run_job(self.host, request, runner, cancellation=self.cancellation, sinks=sinks)

    def board(self) -> Board:
        return discover(self.host)

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, self.board().domains).values)

    def status_files(self) -> tuple[str, str]:
        """What nvpmodel keeps of its own."""
        return self.machine.kernel.load(STATUS_PATH), self.machine.kernel.load(CONF_PATH_PATH)

    def trials(self) -> list[dict[str, Any]]:
        return [event["trial"] for event in self.events if event["event"] == "trial"]

    def tried(self) -> set[PowerMode]:
        return {PowerMode(**trial["candidate"]["mode"]) for trial in self.trials()}

    def is_clean(self) -> bool:
        """Has the last job left no way back behind that it still needs?"""
        return not snapshot_path(self.folder).exists()

    def told(self, result: JobResult) -> str:
        """All that the job says to its user, a line each."""
        trials = [f"{trial['invalid']}: {trial['detail']}" for trial in self.trials() if trial["invalid"]]
        return "\n".join([f"{result.reason_code}: {result.reason_text}", *result.warnings, result.hint, *trials])

    def says(self, result: JobResult, pattern: str) -> bool:
        return re.search(pattern, self.told(result)) is not None
