"""Install, upgrade and uninstall, step by step; each may be done again."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jouled.board.clock import Clock
from jouled.board.process import Processes
from jouled.board.statefile import remove_durably
from jouled.install import units
from jouled.install.command import check_command, own_command
from jouled.install.layout import Layout, remove_files, remove_link, write_config, write_files, write_link
from jouled.install.stock import apply_reference
from jouled.install.systemd import call, check_systemd

log = logging.getLogger(__name__)

STATE_DIR, RUN_DIR = Path("/var/lib/jouled"), Path("/run/jouled")
_JOURNAL = "see: journalctl -u jouled -u jouled-worker"


@dataclass(frozen=True, slots=True)
class Installed:
    """What was done: files that are new or other than before, whether the configuration is new, and the command that
    everybody finds, if there is one."""

    command: tuple[str, ...]
    changed: tuple[Path, ...]
    is_config_new: bool
    was_there: bool
    link: Path | None = None


@dataclass(frozen=True, slots=True)
class Uninstalled:
    """What was done, and what was left for the operator to keep or remove."""

    removed: tuple[Path, ...]
    is_stock_mode: bool
    left: tuple[Path, ...]


def install(processes: Processes, *, metrics_listen: str | None = None) -> Installed:
    """Put the service on this machine, or another version in its place. Raises JouledError."""
    check_systemd(processes)
    check_command(processes)
    layout, command = Layout(), own_command()
    was_there = stop(processes)
    changed = write_files(layout, command)
    call(processes, "systemd-sysusers", str(layout.sysusers))
    call(processes, "systemd-tmpfiles", "--create", str(layout.tmpfiles))
    is_config_new = write_config(layout, metrics_listen)
    call(processes, "systemctl", "daemon-reload")
    call(processes, "systemctl", "enable", "--quiet", *units.ENABLED)
    call(processes, "systemctl", "start", units.WORKER_SOCKET, units.SOCKET, hint=_JOURNAL)
    call(processes, "systemctl", "start", units.SERVICE, hint=_JOURNAL)
    return Installed(command, changed, is_config_new, was_there, write_link(layout, command))


def stop(processes: Processes) -> bool:
    """End the job if one runs, with the board as it was found, then the daemon and the worker; was there a service?

    A winner stays in force, unless `keep.on_stop` says otherwise. Raises JouledError.
    """
    layout = Layout()
    if not layout.unit(units.SERVICE).exists():
        return False
    _stop(processes, layout)
    return True


def stage(processes: Processes, prefix: Path, command: Sequence[str], *, metrics_listen: str | None) -> Installed:
    """Lay the files below `prefix` for an image that boots later. Nothing is started. Raises JouledError."""
    layout = Layout(prefix)
    was_there = layout.unit(units.SERVICE).exists()
    changed = write_files(layout, command)
    is_config_new = write_config(layout, metrics_listen)
    call(processes, "systemctl", f"--root={prefix}", "enable", "--quiet", *units.ENABLED)
    return Installed(tuple(command), changed, is_config_new, was_there, write_link(layout, command))


def unstage(processes: Processes, prefix: Path) -> Uninstalled:
    """Take away what `stage` has laid in an image. Raises JouledError."""
    layout = Layout(prefix)
    present = [name for name in units.UNITS if layout.unit(name).exists()]
    if present:
        call(processes, "systemctl", f"--root={prefix}", "disable", "--quiet", *present)
    removed = remove_files(layout)
    remove_link(layout)
    return Uninstalled(removed, is_stock_mode=False, left=())


def uninstall(processes: Processes, clock: Clock, *, purge: bool = False, leave_board: bool = False) -> Uninstalled:
    """Put the board's own mode in force, then take the service off. Raises JouledError; it may then be run again."""
    check_systemd(processes)
    layout = Layout()
    present = [name for name in units.UNITS if layout.unit(name).exists()]
    is_stock_mode = False
    if units.SERVICE in present:
        call(processes, "systemctl", "stop", units.SERVICE, hint=_JOURNAL)
    if units.WORKER_SOCKET in present and has_written(STATE_DIR) and not leave_board:
        call(processes, "systemctl", "start", units.WORKER_SOCKET, hint=_JOURNAL)
        apply_reference(clock)
        is_stock_mode = True
    if present:
        _stop(processes, layout)
        call(processes, "systemctl", "disable", "--quiet", *present)
    removed = remove_files(layout)
    remove_link(layout)
    call(processes, "systemctl", "daemon-reload")
    if not leave_board:
        remove_durably(STATE_DIR / "origin.json")
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    kept = (layout.config.parent, STATE_DIR)
    if purge:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
    return Uninstalled(removed, is_stock_mode, tuple(folder for folder in kept if folder.exists()))


def has_written(state_dir: Path) -> bool:
    """Has jouled ever written a knob of this board (since it was installed)?"""
    return (state_dir / "origin.json").exists()


def _stop(processes: Processes, layout: Layout) -> None:
    """Both services and both sockets; the daemon first, so that it ends its job through a worker that still runs."""
    for names in (
        (units.RETUNE_TIMER, units.RETUNE),
        (units.SERVICE, units.SOCKET),
        (units.WORKER_SOCKET, units.WORKER),
    ):
        there = [name for name in names if layout.unit(name).exists()]
        if there:
            call(processes, "systemctl", "stop", *there, hint=_JOURNAL)
