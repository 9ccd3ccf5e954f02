"""This machine as a site: a Jetson whose knobs are turned, or any machine in fixed mode; and what is run on it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jouled.config import Config
from jouled.errors import ConfigError
from jouled.job.site import Site
from jouled.workload.variants import variants_of
from jouletune.space import Variant

if TYPE_CHECKING:
    from jouled.board.host import Host
    from jouled.config.tables import WorkloadEntry
    from jouled.workload.configured import ConfiguredWorkload
    from jouled.workload.runner import Arrival, Runner

RUN_DIR = "/run/jouled"
FIXED = "fixed"


def machine_host(arguments: argparse.Namespace, config: Config, *, fixed: bool, state_home: Callable[[], Path]) -> Host:
    """The doors to this machine. Fixed mode keeps its state apart: it decides nothing about the board."""
    from jouled.board.clock import SystemClock
    from jouled.board.host import Host
    from jouled.board.process import Processes
    from jouled.board.sysfs import Sysfs

    is_root = os.geteuid() == 0
    state_dir, run_dir = arguments.state_dir, RUN_DIR
    if state_dir is None and fixed:
        state_dir = (Path(config.store.state_dir) if is_root else state_home()) / FIXED
    if fixed and not is_root:
        # Beside the state, and not in XDG_RUNTIME_DIR, which is not there for each of a user's sessions (cron, su): two
        # jobs that share a state must not have two locks, or the second ends the first's children as a dead job's.
        run_dir = str(state_home() / "run")
    return Host(
        sysfs=Sysfs(),
        processes=Processes(),
        clock=SystemClock(),
        state_dir=state_dir or Path(config.store.state_dir),
        run_dir=run_dir,
        privileged=is_root,
    )


def machine_site(host: Host, config: Config) -> Site:
    """The site of this machine, whose workloads are those of the configuration."""
    from jouled.board.grid import board_space

    work = _Work(host, config)
    entry = config.chosen()
    variants = (Variant(),) if entry is None else variants_of(entry)
    return Site(
        host=host,
        config=config,
        workload=config.workload.default,
        make_space=lambda board: board_space(board, config.grid, variants),
        make_runner=work.runner,
        variants=variants,
        prepare=work.prepare,
        look=work.look,
        workload_marks=work.marks,
    )


class _Work:
    """The configuration's workload once its arrival is known; a site has one job, and so one of it."""

    def __init__(self, host: Host, config: Config) -> None:
        self._host = host
        self._config = config
        self._made: ConfiguredWorkload | None = None

    def runner(self, arrival: Arrival) -> Runner:
        """Raises ConfigError where no workload is named."""
        from jouled.workload.configured import ConfiguredWorkload

        self._made = ConfiguredWorkload(self._host, self._config, self._entry(), arrival)
        return self._made.runner()

    def prepare(self, beat: Callable[[], None]) -> Sequence[str]:
        """What comes before the first load. Raises as `ConfiguredWorkload.prepare`."""
        return () if self._made is None else self._made.prepare(beat)

    def look(self) -> None:
        """Before anything is done. Raises as `ConfiguredWorkload.look`."""
        if self._made is not None:
            self._made.look()

    def marks(self, arrival: Arrival) -> Mapping[str, str]:
        """What a winner holds for besides the board."""
        from jouled.workload.marks import workload_marks

        return workload_marks(self._entry(), arrival)

    def _entry(self) -> WorkloadEntry:
        entry = self._config.chosen()
        if entry is None:
            raise ConfigError(
                "no workload: the configuration names none",
                hint="name one in [workloads.NAME], or a plan with --engine PLAN; "
                "to try jouled out: jouled tune --virtual agx-orin-64gb --latency-bound-ratio 1.2",
            )
        return entry
