"""Faults by name: what `--fault` does to the virtual board while a command runs, and the list of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jouled.errors import UsageError


def inject_faults(arguments: argparse.Namespace, root: Path, state_dir: Path) -> Callable[[], None]:
    """Let the virtual board at `root` have the faults named in `arguments`; what takes them away again.

    Verbs without the option leave alone what is there: a restore meets the board that the killed job met. Raises
    UsageError.
    """
    if arguments.virtual is None or not hasattr(arguments, "fault"):
        return lambda: None
    if not arguments.fault and not (root / ".virtual" / "faults.json").exists():
        return lambda: None  # a daemon does without the table
    from jouled.virtual.named import clear, inject

    inject(root, state_dir, arguments.fault)
    return partial(clear, root, state_dir)


def check_faults(arguments: argparse.Namespace) -> None:
    """Raise UsageError where no virtual board can have them."""
    if getattr(arguments, "fault", None) and arguments.virtual is None:
        text = f"--fault {arguments.fault[0]}: only a virtual board misbehaves on command"
        raise UsageError(text, hint="add --virtual BOARD")


def list_faults() -> int:
    """`jouled virtual faults`."""
    from jouled.virtual.named import named_faults

    print(named_faults())
    return 0
