"""`jouled check-config`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from jouled.config import CONFIG_PATH, Config, check_owner, load, render
from jouled.errors import ConfigError, NotPermittedError


def _check_traces(config: Config, path: Path) -> None:
    """Raise ConfigError with each trace that a job could not play."""
    from jouled.workload.trace import read_trace

    wrong = []
    for name, entry in config.workloads.items():
        try:
            if entry.trace is not None:
                read_trace(Path(entry.trace))
        except ConfigError as error:
            wrong.append(f"{path}: workloads.{name}.trace: {error}")
    if wrong:
        raise ConfigError("\n".join(wrong), hint="one column of seconds: docs/workloads.md")


def _check_access(config: Config, path: Path) -> list[str]:
    """Notes on files that are not there, or could not be tried. Raises ConfigError where the runner may not use one."""
    from jouled.board.process import Processes
    from jouled.workload.access import refusals
    from jouled.workload.users import runner_user

    notes, wrong, commands = [], [], []
    for name, entry in config.workloads.items():
        try:
            found = list(refusals(Processes(), entry, runner_user(entry)))
        except NotPermittedError as error:
            notes.append(f"workloads.{name}: whether its files can be read was not tried: {error}")
            continue
        notes += [f"workloads.{name}: {refusal.text}" for refusal in found if not refusal.command]
        wrong += [f"{path}: workloads.{name}: {refusal.text}" for refusal in found if refusal.command]
        commands += [refusal.command for refusal in found if refusal.command]
    if wrong:
        raise ConfigError("\n".join(wrong), hint="; ".join(dict.fromkeys(commands)))
    return notes


def check_config(arguments: argparse.Namespace) -> int:
    """Check the file and say so; with --print every value and where it came from. Raises ConfigError."""
    path: Path = arguments.config or CONFIG_PATH
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file", hint="name one with --config")
    if os.geteuid() == 0:
        check_owner(path)
    config = load(path)
    _check_traces(config, path)
    notes = _check_access(config, path)
    if arguments.json:
        values = {key: {"value": value, "origin": config.origin(key)} for key, value in config.values.items()}
        print(json.dumps({"schema": 1, "file": str(path), "values": values, "notes": notes}, default=str))
    elif arguments.show:
        print(render(config))
    else:
        print("\n".join([f"{path}: ok", *(f"  note  {text}" for text in notes)]))
    return 0
