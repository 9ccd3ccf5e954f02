"""`jouled worker`, and the worker's commands that the command line carries out by itself: apply, rollback."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.pending import clear_pending
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.cli.site import arrival_of, open_site, open_to_restore, read_config, tree_of
from jouled.config import load
from jouled.errors import ConfigError, NotPermittedError, UsageError
from jouled.job.site import Site
from jouled.worker.commands import apply_target, asker
from jouled.worker.commands import rollback as roll_back
from jouled.worker.server import Server

if TYPE_CHECKING:
    from jouled.workload.runner import Runner

log = logging.getLogger(__name__)

_FIRST_INHERITED = 3  # sd_listen_fds(3)


# --- the worker ---------------------------------------------------------------------------------------------


def _state_dir(arguments: argparse.Namespace) -> str:
    try:
        return read_config(arguments, is_real=True).store.state_dir
    except ConfigError as error:  # each command says so; a restore must work all the same
        log.error("%s", error)
        return load(None).store.state_dir


class _Doors:
    """The board that the options name, opened anew for each command: the configuration may have changed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        root, state_dir = tree_of(arguments, lambda: _state_dir(arguments))
        self.look = Host(Sysfs(root), Processes(), SystemClock(), state_dir)

    def open(self, request: Mapping[str, object], *, is_restore: bool = False) -> Site:
        """Raises ConfigError unless `is_restore`: then the defaults stand in for a file that is wrong."""
        arguments = self._with(request=request)
        return open_to_restore(arguments) if is_restore else open_site(arguments)

    def runner(self, site: Site) -> Runner:
        return site.make_runner(arrival_of(self._with(rate_hz=None), site.config))

    def _with(self, **more: Any) -> argparse.Namespace:
        return argparse.Namespace(**{**vars(self._arguments), **more})


def _inherited(number: int) -> socket.socket:
    """The socket that this process was started with as file descriptor `number`. Raises UsageError."""
    try:
        is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        is_socket = False
    if not is_socket:
        raise UsageError(f"file descriptor {number}: wanted a socket, got none", hint="`jouled run` starts the worker")
    return socket.socket(fileno=number)


def _listener() -> socket.socket:
    """What systemd listens on for us. Raises UsageError."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    if pid != str(os.getpid()) or count != "1":
        raise UsageError(
            "the worker is started by systemd for its socket, or by `jouled run` with --fd",
            hint="systemctl start jouled-worker.socket; or without the service: jouled tune",
        )
    return _inherited(_FIRST_INHERITED)


def worker(arguments: argparse.Namespace) -> int:
    """Serve the socket this process was given. Raises UsageError, NotPermittedError."""
    is_virtual = arguments.virtual is not None or arguments.table is not None
    if not is_virtual and os.geteuid() != 0:
        raise NotPermittedError("the worker writes power modes and needs root", hint="systemd starts it as root")
    logging.getLogger("jouled").setLevel(min(logging.INFO, logging.getLogger().level))
    doors = _Doors(arguments)
    if arguments.fd is not None:
        Server(doors, channel=_inherited(arguments.fd)).serve()
    else:
        Server(doors, listener=_listener()).serve()
    return 0


# --- without a socket ---------------------------------------------------------------------------------------


def apply(arguments: argparse.Namespace) -> int:
    """Put the winner, the reference or a mode in force, in this process. Raises JouledError."""
    return _change(arguments, lambda site: apply_target(site, arguments.target, "user", asker()))


def rollback(arguments: argparse.Namespace) -> int:
    """Back to the reference; the winner is rejected. In this process. Raises JouledError."""
    return _change(arguments, lambda site: roll_back(site, asker()))


def _change(arguments: argparse.Namespace, act: Callable[[Site], dict[str, Any]]) -> int:
    site = open_site(arguments)
    try:
        done = act(site)
        clear_pending(site.host)  # this process ends well
    finally:
        site.close()
    if arguments.json:
        print(json.dumps({"schema": 1, **done}))
        return 0
    what = {"reference": "the reference", "winner": "the winner"}.get(done["to_source"], "the mode")
    print(f"in force: {what}, {done['mode']}, {done['policy']}, by {done['method']} (before: {done['from']})")
    if done["rejected"] is not None:
        print(f"  rejected the winner {done['rejected']}")
    for sentence in done["warnings"]:
        print(f"  warning  {sentence}")
    return 0
