"""`jouled run`: the daemon, under systemd or in the foreground. It sees its board through plain files only."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.cli.faults import check_faults, inject_faults
from jouled.cli.log import lacks_journal_fields
from jouled.cli.site import overrides_of, tree_of, virtual_name
from jouled.config import CONFIG_PATH, Config, check_owner, load
from jouled.errors import StateError, UsageError
from jouled.job.site import Site
from jouled.service.configfile import ConfigFile
from jouled.service.face import Service
from jouled.service.notify import Notifier
from jouled.service.outlets import outlets
from jouled.service.sole import sole_daemon
from jouled.service.workers import ChildDoor, Door, SocketDoor
from jouled.workload.variants import variants_of

if TYPE_CHECKING:
    from jouled.board.board import Board
    from jouletune.space import Space

log = logging.getLogger(__name__)

CONTROL_SOCKET = Path("/run/jouled/control.sock")
WORKER_SOCKET = Path("/run/jouled/worker.sock")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class TreeClock(SystemClock):
    """Of a virtual board's tree: it has booted when its boot_id was written."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._boot_id = sysfs.real(_BOOT_ID)

    def boottime_s(self) -> float:
        with suppress(OSError):
            return max(0.0, time.time() - self._boot_id.stat().st_mtime)
        return 0.0


@dataclass(frozen=True, slots=True)
class _Options:
    """The configuration's file and what the command line puts before it."""

    path: Path | None
    overrides: Mapping[str, object]
    watched: ConfigFile

    def config(self, request: Mapping[str, Any] | None = None) -> Config:
        """With a request in between. Raises ConfigError."""
        return load(self.path, self.overrides, request=request)


def _options(arguments: argparse.Namespace) -> _Options:
    is_real = arguments.virtual is None and arguments.table is None
    path: Path | None = arguments.config
    if path is None and is_real and CONFIG_PATH.exists():
        path = CONFIG_PATH
    if path is not None and is_real and os.geteuid() == 0:
        check_owner(path)
    watched = ConfigFile(path or (CONFIG_PATH if is_real else None))  # before it is read: no change is missed
    return _Options(path, overrides_of(arguments) | {"metrics.listen": arguments.metrics_listen}, watched)


# --- the board, to be read ----------------------------------------------------------------------------------


def look_site(arguments: argparse.Namespace, config: Config) -> Site:
    """The board that the options name, its files alone: nothing can be written, no program started."""
    tree, state_dir = tree_of(arguments, lambda: config.store.state_dir)
    variants = variants_of(config.chosen())
    make_space: Callable[[Board], Space] = lambda board: board_space(board, config.grid, variants)  # noqa: E731
    if arguments.virtual is not None:
        _make_tree(tree, arguments.virtual, arguments.base_mode)
        workload = virtual_name(arguments.virtual_workload or "yolov8s-640", config)
    elif arguments.table is not None:
        space = _recorded_space(arguments.table)
        make_space = lambda _: space  # noqa: E731
        workload = f"recorded:{arguments.table.stem}"
    else:
        host = Host(Sysfs(), Processes(path=""), SystemClock(), state_dir, privileged=False)
        return Site(host, config, config.workload.default, make_space, _no_runner)
    sysfs = Sysfs(tree)
    host = Host(sysfs, Processes(path=""), TreeClock(sysfs), state_dir, privileged=False)
    return Site(host, config, workload, make_space, _no_runner)


def _no_runner(_: object) -> NoReturn:
    raise AssertionError("the daemon runs no workload")


def _make_tree(tree: Path, board: str, base_mode: str | None) -> None:
    """A virtual board that is not there yet. One that cannot be made here is made by its worker."""
    from jouled.virtual.faults import FOLDER

    if (tree / FOLDER / "board.json").exists():
        return
    from jouled.virtual.tree import make_tree  # 1.6 MiB that a daemon on a board that is there does without

    with suppress(PermissionError):
        make_tree(tree, board, base_mode)


def _recorded_space(path: Path) -> Space:
    from jouletune.errors import SpaceError
    from jouletune.table import parse_table

    try:
        return parse_table(path.read_text(encoding="utf-8"), where=str(path)).space
    except (OSError, UnicodeDecodeError, SpaceError) as error:
        raise UsageError(f"{path}: no table: {error}", hint="see docs/recorded.md") from error


# --- the worker, to be asked --------------------------------------------------------------------------------


def _worker_argv(arguments: argparse.Namespace, descriptor: int) -> Sequence[str]:
    argv = [sys.executable, "-m", "jouled.cli", *["-v"] * arguments.verbose, "worker", "--fd", str(descriptor)]
    names = ("virtual", "table", "base_mode", "state_dir", "config", "virtual_workload", "virtual_seed")
    for name in names:
        value = getattr(arguments, name)
        if value is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


# --- the whole ----------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop. Raises ConfigError, UsageError, StateError, BusyError for a second daemon."""
    notifier = Notifier()
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.INFO))  # decisions and changes are always logged
    options = _options(arguments)
    config = options.config()
    check_faults(arguments)
    site = look_site(arguments, config)
    with sole_daemon(site.host.state_dir):
        clear = inject_faults(arguments, site.host.sysfs.root, site.host.state_dir)
        try:
            asyncio.run(_serve(arguments, options, site, notifier, journal_fields=not lacks_journal_fields()))
        finally:
            clear()
    return 0


async def _serve(
    arguments: argparse.Namespace, options: _Options, site: Site, notifier: Notifier, *, journal_fields: bool
) -> None:
    from jouled.control.server import bound_socket, control_server, inherited_socket

    listening = inherited_socket()
    path = None if listening is not None else _socket_path(arguments, site)
    door: Door = SocketDoor(WORKER_SOCKET)
    if path is not None:
        door = ChildDoor(lambda descriptor: _worker_argv(arguments, descriptor))
        listening = bound_socket(path)
        log.info("listening on %s; the worker is a child of this process", path)
    assert listening is not None
    service = Service(site, door, options.config, notifier, journal_fields=journal_fields)
    service.outlook.config_file = options.watched
    control = control_server(service, site.config)
    await control.start(listening)
    try:
        async with outlets(service, site.config.metrics):
            await service.run()
    finally:
        if path is not None:  # while we still answer: afterwards it may be the next daemon's
            path.unlink(missing_ok=True)
        await control.stop()


def _socket_path(arguments: argparse.Namespace, site: Site) -> Path:
    if arguments.socket is not None:
        path: Path = arguments.socket
    elif arguments.virtual is not None or arguments.table is not None:
        path = site.host.state_dir / "control.sock"
    else:
        path = CONTROL_SOCKET
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{path.parent}: cannot be made: {error.strerror}", hint="name one with --socket") from error
    return path
