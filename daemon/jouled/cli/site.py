"""Where a command acts: this machine, a virtual board, or recorded measurements. Decided here, never asked again."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jouled.board.statefile import write_hint
from jouled.cli.arguments import KEYS, options_of
from jouled.cli.faults import check_faults, inject_faults
from jouled.config import CONFIG_PATH, Config, check_owner, load
from jouled.errors import ConfigError, NotPermittedError, StateError, UsageError
from jouled.job.site import Site
from jouled.workload.variants import variants_of

if TYPE_CHECKING:
    from jouled.workload.runner import Arrival

log = logging.getLogger(__name__)

TREE = "board"
ENGINE_WORKLOAD = "engine"
_MAX_DIGITS = 12  # of --grid; a longer number is refused as the text it is


def state_home() -> Path:
    """Where state lies that needs no root. Raises StateError for a user without a home."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    if base.startswith("/"):
        return Path(base) / "jouled"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME and no such user, or HOME=~somebody
        home = Path()
    if not home.is_absolute():
        raise StateError(
            f"no folder for state: the home of this user is not known (HOME is {os.environ.get('HOME')!r})",
            hint="name a folder with --state-dir",
        )
    return home / ".local" / "state" / "jouled"


def overrides_of(arguments: argparse.Namespace) -> dict[str, object]:
    """`table.key` → value for every option that was given."""
    given = vars(arguments)
    values: dict[str, object] = {key: given[name] for name, key in KEYS.items() if given.get(name) is not None}
    if given.get("base_mode") is not None:
        values["board.base_mode"] = given["base_mode"]
    if given.get("engine"):
        values |= _engine_overrides(given["engine"], given.get("rate_hz"))
    grid = given.get("grid")
    if grid is not None:
        is_number = grid.isascii() and grid.isdecimal()
        key = "grid.size" if is_number or grid == "full" else "grid.shape"
        values[key] = int(grid) if is_number and len(grid) <= _MAX_DIGITS else grid
    return values


def _engine_overrides(engines: list[Path], rate_hz: float | None) -> dict[str, object]:
    """--engine stands for a workload of its own, which no file need name."""
    table = f"workloads.{ENGINE_WORKLOAD}"
    arrival = {"arrival": "back_to_back"} if rate_hz is None else {"arrival": "rate", "rate_hz": rate_hz}
    keys = {"engine": engines, "inference_name": "inference", **arrival}
    return {table: True, "workload.default": ENGINE_WORKLOAD, **{f"{table}.{name}": keys[name] for name in keys}}


def read_config(arguments: argparse.Namespace, *, is_real: bool) -> Config:
    """The configuration: the file named or, on the machine itself, the one that lies there. Raises ConfigError.

    A worker's `arguments` bring the `request` it carries out; or `has_no_config`, where a restore goes without.
    """
    path: Path | None = arguments.config
    if path is None and is_real and CONFIG_PATH.exists() and not getattr(arguments, "has_no_config", False):
        path = CONFIG_PATH
    if path is not None and is_real and os.geteuid() == 0:
        check_owner(path)
    return load(path, overrides_of(arguments), request=getattr(arguments, "request", None))


def tree_of(arguments: argparse.Namespace, real_state_dir: Callable[[], str]) -> tuple[Path, Path]:
    """(root of the board's files, state folder), for who only reads there: no board is made or opened."""
    if arguments.virtual is not None:
        state_dir = arguments.state_dir or state_home() / str(arguments.virtual)
    elif arguments.table is not None:
        state_dir = arguments.state_dir or state_home() / f"recorded-{arguments.table.stem}"
    else:
        return Path("/"), arguments.state_dir or Path(real_state_dir())
    return state_dir / TREE, state_dir


def open_to_restore(arguments: argparse.Namespace) -> Site:
    """As `open_site`; where the configuration is wrong, the defaults stand in for it: a restore needs none of it."""
    try:
        return open_site(arguments)
    except ConfigError as error:
        log.warning("%s; restored without it", error)
    without = {"config": None, "has_no_config": True, "request": None, "base_mode": None}
    return open_site(argparse.Namespace(**{**vars(arguments), **without}))


def open_site(arguments: argparse.Namespace) -> Site:
    """The board that the options name. Raises UsageError, ConfigError."""
    _check_fixed(arguments)
    check_faults(arguments)
    if arguments.virtual is not None:
        site = _virtual(arguments)
    elif arguments.table is not None:
        site = _recorded(arguments)
    else:
        site = _machine(arguments)
    return replace(site, fixed=bool(getattr(arguments, "fixed_mode", False)))


def _check_fixed(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together."""
    given = vars(arguments)
    if given.get("fixed_mode"):
        for name, why in (("table", "its rows are power modes"), ("grid", "there is no grid of power modes")):
            if given.get(name) is not None:
                raise UsageError(f"--{name}: it does not go with --fixed-mode: {why}", hint=f"leave --{name} out")
    simulated = next((name for name in ("virtual", "table") if given.get(name) is not None), None)
    if given.get("engine") and simulated is not None:
        text = f"--engine: a real engine does not run with --{simulated}"
        raise UsageError(text, hint="name several in the configuration to have them simulated")


@contextmanager
def _state_errors(state_dir: Path) -> Iterator[None]:
    """What the file system refuses is said with the folder's name."""
    try:
        yield
    except OSError as error:
        hint = write_hint(error, state_dir)
        if error.errno == errno.ENOENT and state_dir.exists():
            hint = f"remove the folder {state_dir / TREE} to get a fresh board"
        why = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
        raise StateError(f"{state_dir}: the virtual board cannot be kept there: {why}", hint=hint) from error


def _virtual(arguments: argparse.Namespace) -> Site:
    from jouled.board.grid import board_space
    from jouled.virtual.entry import virtual_plant
    from jouled.virtual.machine import VirtualMachine
    from jouled.virtual.meters import simulated_meter
    from jouled.virtual.programs import typed
    from jouled.virtual.runner import VirtualRunner

    config = read_config(arguments, is_real=False)
    _, state_dir = tree_of(arguments, str)
    workload = getattr(arguments, "virtual_workload", None) or "yolov8s-640"
    entry = config.chosen()
    with _state_errors(state_dir):
        machine = VirtualMachine(
            state_dir / TREE,
            board=arguments.virtual,
            base_mode=arguments.base_mode,
            plant=virtual_plant(arguments.virtual, workload, entry),
            seed=getattr(arguments, "virtual_seed", None) or 0,
            on_reset="exit",
            wall_s=time.time,
        )
        clear = inject_faults(arguments, machine.root, state_dir)

    def close() -> None:
        machine.close()
        clear()

    return Site(
        host=machine.host(state_dir),
        config=config,
        workload=virtual_name(workload, config),
        make_space=lambda board: board_space(board, config.grid, variants_of(entry)),
        make_runner=lambda arrival: VirtualRunner(machine, arrival),
        variants=variants_of(entry),
        options=options_of(arguments),
        typed=lambda line: typed(str(machine.root), line),
        choose_meter=simulated_meter,
        reboot=machine.reboot,
        close=close,
    )


def virtual_name(workload: str, config: Config) -> str:
    """What a job on a virtual board runs: the configuration's workload gives arrival and variants, never the load."""
    name = f"virtual:{workload}"
    return name if config.chosen() is None else f"{config.workload.default}, simulated by {name}"


def _recorded(arguments: argparse.Namespace) -> Site:
    from jouled.virtual.meters import recorded_meter
    from jouled.virtual.recorded import RecordedMachine

    if getattr(arguments, "grid", None) is not None:
        raise UsageError("--grid: a recorded board's candidates are exactly its rows", hint="leave --grid out")
    if arguments.base_mode is not None:
        raise UsageError("--base-mode: a recorded board has one mode only", hint="leave --base-mode out")
    config = read_config(arguments, is_real=False)
    _, state_dir = tree_of(arguments, str)
    with _state_errors(state_dir):
        seed = getattr(arguments, "seed", None) or 0
        machine = RecordedMachine(state_dir / TREE, arguments.table, seed=seed, wall_s=time.time)
    return Site(
        host=machine.host(state_dir),
        config=config,
        workload=machine.rail,
        make_space=lambda board: machine.space,
        make_runner=machine.runner,
        options=options_of(arguments),
        has_idle=False,
        total_rails=(machine.rail,),
        choose_meter=recorded_meter,
        reboot=machine.reboot,
        close=machine.close,
    )


def _machine(arguments: argparse.Namespace) -> Site:
    from jouled.cli.machine import machine_host, machine_site

    config = read_config(arguments, is_real=True)
    fixed = bool(getattr(arguments, "fixed_mode", False))
    host = machine_host(arguments, config, fixed=fixed, state_home=state_home)
    return machine_site(host, config)


def require_root(site: Site, verb: str) -> None:
    """Raise NotPermittedError, with the line to type, where this user may not write knobs."""
    if not site.host.privileged:
        raise NotPermittedError(f"{verb} writes to the board and needs root", hint=f"sudo jouled {verb} ...")


def arrival_of(arguments: argparse.Namespace, config: Config) -> Arrival:
    """How requests come: the option, the configuration's workload, else back to back.

    Raises UsageError, ConfigError.
    """
    from jouled.workload.runner import Arrival
    from jouled.workload.trace import read_trace

    chosen = config.chosen()
    if arguments.rate_hz is not None:
        if not 0.0 < arguments.rate_hz <= 100_000.0:
            raise UsageError(
                f"--rate-hz: wanted more than 0 and at most 100000 requests a second, got {arguments.rate_hz:g}"
            )
        if chosen is not None and len(chosen.batch) > 1:
            text = f"--rate-hz counts requests: wanted one batch size in workloads.{config.workload.default}.batch"
            raise UsageError(f"{text}, got {list(chosen.batch)}", hint="leave one of them, or --rate-hz out")
        return Arrival("rate", arguments.rate_hz)
    if chosen is None or chosen.arrival == "back_to_back":
        return Arrival()
    if chosen.arrival == "trace" and chosen.trace is not None:
        return read_trace(Path(chosen.trace))
    return Arrival("rate", chosen.rate_hz)
