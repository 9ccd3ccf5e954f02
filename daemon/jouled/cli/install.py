"""`jouled install` and `jouled uninstall`: the service comes and goes as a whole."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from jouled import __version__
from jouled.board.clock import SystemClock
from jouled.board.process import Processes
from jouled.config import Config, load
from jouled.errors import NotPermittedError, UsageError
from jouled.install.command import own_command
from jouled.install.layout import Layout, script_of
from jouled.install.service import Installed, Uninstalled, stage, stop, unstage
from jouled.install.service import install as install_service
from jouled.install.service import uninstall as uninstall_service
from jouled.install.systemd import check_systemd


def install(arguments: argparse.Namespace) -> int:
    """Users, folders, units and configuration; enabled and started. Raises JouledError."""
    prefix: Path | None = arguments.prefix
    listen: str | None = arguments.metrics_listen
    processes = Processes(mark="install")
    if prefix is None:
        check_systemd(processes)
        _require_root("install")
    config = _check_config(Layout(prefix or Path("/")).config, listen)
    if arguments.stop_only:
        return _stop(processes, as_json=arguments.json)
    if prefix is None:
        done = install_service(processes, metrics_listen=listen)
    else:
        done = stage(processes, prefix.absolute(), own_command(), metrics_listen=listen)
    if arguments.json:
        print(json.dumps(_installed_json(done, prefix)))
    else:
        print(_installed_text(done, prefix, config))
    return 0


def _stop(processes: Processes, *, as_json: bool) -> int:
    was_there = stop(processes)
    said = "jouled is stopped" if was_there else "there is no jouled service on this machine"
    print(json.dumps({"schema": 1, "was_there": was_there}) if as_json else said)
    return 0


def _check_config(path: Path, listen: str | None) -> Config:
    """What will be in force. Raises ConfigError, or UsageError where the operator's file says otherwise."""
    overrides = {} if listen is None else {"metrics.listen": listen}
    if not path.exists():
        return load(None, overrides)
    config = load(path)
    if listen is not None and load(None, overrides).metrics.listen != config.metrics.listen:
        raise UsageError(
            f'--metrics-listen: wanted {listen}, but {path} says metrics.listen = "{config.metrics.listen}"',
            hint=f"the file is yours and stays as it is: change it there, then: systemctl restart jouled ({path})",
        )
    return config


def _require_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise NotPermittedError(f"{verb} makes users and units and needs root", hint=f"sudo jouled {verb}")


def _installed_json(done: Installed, prefix: Path | None) -> dict[str, object]:
    return {
        "schema": 1,
        "command": list(done.command),
        "changed": [str(path) for path in done.changed],
        "is_config_new": done.is_config_new,
        "was_there": done.was_there,
        "link": None if done.link is None else str(done.link),
        "prefix": None if prefix is None else str(prefix),
    }


def _installed_text(done: Installed, prefix: Path | None, config: Config) -> str:
    if prefix is not None:
        return f"laid {len(done.changed)} files below {prefix}; the service starts at the image's first boot"
    listen, group = config.metrics.listen, config.control.change_group
    typed = "jouled" if done.link is not None else str(script_of(done.command))
    how = "was there: it is started anew," if done.was_there else "is installed,"
    lines = [
        f"jouled {__version__} {how} enabled and running ({len(done.changed)} files new or changed)",
        f"  config   {Layout().config} ({'new, with every default' if done.is_config_new else 'yours, left alone'})",
        f"  metrics  {f'http://{listen}/metrics' if listen else 'off'}",
        f"  command  {done.link or script_of(done.command)}",
        "  reading  is for root and group jouled: sudo usermod -aG jouled NAME",
        f"  changes  are for root{f' and group {group}' if group else '; control.change_group names a group'}",
        f"next: {typed} status",
    ]
    return "\n".join(lines)


def uninstall(arguments: argparse.Namespace) -> int:
    """The board's own mode, then off with it. Raises JouledError."""
    processes = Processes(mark="uninstall")
    prefix: Path | None = arguments.prefix
    if prefix is None:
        check_systemd(processes)
        _require_root("uninstall")
        done = uninstall_service(processes, SystemClock(), purge=arguments.purge, leave_board=arguments.leave_board)
    else:
        done = unstage(processes, prefix.absolute())
    if arguments.json:
        body = {"removed": done.removed, "is_stock_mode": done.is_stock_mode, "left": done.left}
        print(json.dumps({"schema": 1, **body}, default=str))
    elif prefix is not None:
        print(f"took {len(done.removed)} files below {prefix} away; nothing was stopped")
    else:
        print(_uninstalled_text(done))
    return 0


def _uninstalled_text(done: Uninstalled) -> str:
    if not done.removed:
        return "there is no jouled service on this machine"
    board = "the board is in its own mode" if done.is_stock_mode else "no knob was touched"
    lines = [f"jouled is removed ({len(done.removed)} files); {board}"]
    if done.left:
        lines.append(f"  left     {', '.join(map(str, done.left))} (jouled uninstall --purge removes them)")
    lines.append("  left     the users jouled and jouled-runner, and drop-ins of your own")
    return "\n".join(lines)
