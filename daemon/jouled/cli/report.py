"""`jouled report`: one job as a page and figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jouled.cli.arguments import KEYS
from jouled.cli.machine import FIXED
from jouled.cli.site import read_config, state_home, tree_of
from jouled.errors import JouledError, NotPermittedError, StateError
from jouled.report.collect import Ledgered, collect, find
from jouled.report.folder import write
from jouletune.report import PAGE, render

NEEDED = "matplotlib>=3.8"


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a job, touching no board. Raises JouledError."""
    found = _find(arguments)
    job = collect(found, {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()})
    try:
        files = render(job)
    except ImportError as error:
        raise _without_matplotlib(error) from error
    folder = arguments.out or Path(f"jouled-report-{found.job}")
    paths = write(folder, files)
    if arguments.json:
        told = {"schema": 1, "job": found.job, "page": str(folder / PAGE), "files": [str(path) for path in paths]}
        print(json.dumps({**told, "has_ended": job.has_ended, "result": job.result}, allow_nan=False))
    else:
        size = sum(len(data) for data in files.values())
        print(f"{folder / PAGE}: job {found.job}, {job.result['outcome'] if job.has_ended else 'no end'}")
        print(f"  figures  {folder / 'figures'}: {len(paths) - 2} files, as SVG and PDF")
        print(f"  size     {size / 1e3:.0f} kB; the page is one file and loads nothing")
    return 0


def _find(arguments: argparse.Namespace) -> Ledgered:
    """In the state folder named or, on the machine itself, in those of fixed mode too."""
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
        return find(readable or [state_dir], arguments.job)
    except JouledError as error:
        raise refused or error from None


def _own() -> list[Path]:
    try:
        return [state_home() / FIXED]
    except StateError:  # no home
        return []


def _without_matplotlib(error: ImportError) -> JouledError:
    return JouledError(
        f"report: matplotlib draws the figures and cannot be imported: {error}",
        hint=f"{sys.executable} -m pip install '{NEEDED}'",
    )
