"""Where a job acts: one board with its doors, its candidates, and what can be run on it. Made by cli, used below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jouletune.space import Variant

if TYPE_CHECKING:
    from jouled.board.board import Board
    from jouled.board.host import Host
    from jouled.config import Config
    from jouled.job.request import ChooseMeter, Request
    from jouled.workload.runner import Arrival, Runner
    from jouletune.space import Space


@dataclass(frozen=True)
class Site:
    """`options` is what a user types to come back here; `reboot` boots a board that is virtual.

    `typed`: a command for the board's own shell, as it is typed on this machine.

    `fixed`: no knob is touched, only `variants` are compared. `prepare`, `look` and `has_idle` as in `Request`; the
    first two go with the runner made last.
    """

    host: Host
    config: Config
    workload: str
    make_space: Callable[[Board], Space]
    make_runner: Callable[[Arrival], Runner]
    options: str = ""
    typed: Callable[[str], str] = lambda line: line
    has_idle: bool = True
    total_rails: tuple[str, ...] = ()
    fixed: bool = False
    variants: tuple[Variant, ...] = (Variant(),)
    prepare: Callable[[Callable[[], None]], Sequence[str]] | None = None
    look: Callable[[], None] = lambda: None
    workload_marks: Callable[[Arrival], Mapping[str, str]] = lambda arrival: {}
    choose_meter: ChooseMeter | None = None
    reboot: Callable[[], None] | None = None
    close: Callable[[], None] = lambda: None

    def request(self, arrival: Arrival, *, seed: int = 0, dry_run: bool = False) -> Request:
        """One tuning run here, of a runner whose requests come by `arrival`."""
        from jouled.board.meter import choose_meter
        from jouled.job.request import Request

        return Request(
            config=self.config,
            workload=self.workload,
            make_space=self.make_space,
            seed=seed,
            total_rails=self.total_rails,
            dry_run=dry_run,
            fixed=self.fixed,
            has_idle=self.has_idle,
            variants=self.variants,
            prepare=self.prepare,
            look=self.look,
            workload_marks=lambda: self.workload_marks(arrival),
            choose_meter=self.choose_meter or choose_meter,
        )
