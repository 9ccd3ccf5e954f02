"""The state folders whose ledgers a verb reads: the one named or, on the machine itself, those of fixed mode too."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jouled.cli.machine import FIXED
from jouled.cli.site import read_config, state_home, tree_of
from jouled.errors import JouledError, NotPermittedError, StateError

T = TypeVar("T")


def in_ledgers(arguments: argparse.Namespace, find: Callable[[list[Path]], T]) -> T:
    """What `find` finds in the folders. Where it fails and one of them may not be read, that is the error.

    Touches no board. Raises what `find` raises.
    """
    is_real = arguments.virtual is None and arguments.table is None
    _, state_dir = tree_of(arguments, lambda: read_config(arguments, is_real=True).store.state_dir)
    folders = [state_dir, state_dir / FIXED]
    if is_real and arguments.state_dir is None:
        folders += _own()
    readable, refused = [], None
    for folder in folders:
        try:
            if folder.is_dir():
                readable.append(folder)
        except PermissionError as error:
            refused = NotPermittedError(f"{folder}: not for this user", hint="run it with sudo, or be in group jouled")
            refused.__cause__ = error
    try:
        return find(readable or [state_dir])
    except JouledError as error:
        raise refused or error from None


def _own() -> list[Path]:
    try:
        return [state_home() / FIXED]
    except StateError:  # no home
        return []
