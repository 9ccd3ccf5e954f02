"""`jouled check-config`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from jouled.config import CONFIG_PATH, check_owner, load, render
from jouled.errors import ConfigError


def check_config(arguments: argparse.Namespace) -> int:
    """Check the file and say so; with --print every value and where it came from. Raises ConfigError."""
    path: Path = arguments.config or CONFIG_PATH
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file", hint="name one with --config")
    if os.geteuid() == 0:
        check_owner(path)
    config = load(path)
    if arguments.json:
        values = {key: {"value": value, "origin": config.origin(key)} for key, value in config.values.items()}
        print(json.dumps({"schema": 1, "file": str(path), "values": values}, default=str))
    elif arguments.show:
        print(render(config))
    else:
        print(f"{path}: ok")
    return 0
