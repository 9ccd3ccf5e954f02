"""Where the product meets a machine: every door in one value, each replaceable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jouled.board.clock import Clock
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs


@dataclass(frozen=True, slots=True)
class Host:
    """The doors to one machine. `run_dir` is a path of the board, `state_dir` one of this file system."""

    sysfs: Sysfs
    processes: Processes
    clock: Clock
    state_dir: Path
    run_dir: str = "/run/jouled"
    privileged: bool = True
