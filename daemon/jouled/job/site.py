"""Where a job acts: one board with its doors, its candidates, and what can be run on it. Made by cli, used below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jouled.board.board import Board
    from jouled.board.host import Host
    from jouled.config import Config
    from jouled.workload.runner import Arrival, Runner
    from jouletune.space import Space


@dataclass(frozen=True)
class Site:
    """`options` is what a user types to come back here; `reboot` boots a board that is virtual."""

    host: Host
    config: Config
    workload: str
    make_space: Callable[[Board], Space]
    make_runner: Callable[[Arrival], Runner]
    options: str = ""
    total_rails: tuple[str, ...] = ()
    reboot: Callable[[], None] | None = None
    close: Callable[[], None] = lambda: None
