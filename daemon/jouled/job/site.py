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

    `fixed`: no knob is touched, only `variants` are compared. `prepare` and `look` go with the runner made last
    (`Request`).
    """

    host: Host
    config: Config
    workload: str
    make_space: Callable[[Board], Space]
    make_runner: Callable[[Arrival], Runner]
    options: str = ""
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
            variants=self.variants,
            prepare=self.prepare,
            look=self.look,
            workload_marks=lambda: self.workload_marks(arrival),
            choose_meter=self.choose_meter or choose_meter,
        )
