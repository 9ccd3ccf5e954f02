"""`jouled report`: one job as a page and figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jouled.cli.arguments import KEYS
from jouled.cli.ledgers import in_ledgers
from jouled.errors import JouledError, StateError
from jouled.report.collect import Ledgered, collect, find
from jouled.report.folder import write
from jouletune.report import PAGE, render

NEEDED = "matplotlib>=3.8"


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a job, touching no board. Raises JouledError."""
    found = in_ledgers(arguments, lambda folders: find(folders, arguments.job))
    try:
        job = collect(found, {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()})
        files = render(job)
    except ImportError as error:
        raise _without_matplotlib(error) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _unreadable(found, error) from error
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


def _unreadable(found: Ledgered, error: Exception) -> StateError:
    what = f"{type(error).__name__}: {str(error)[:160]}"
    return StateError(
        f"{found.folder / 'ledger.jsonl'}: job {found.job} is not written as this version writes them: {what}",
        hint="make its report with the version that ran it; where that is this one, report it",
    )


def _without_matplotlib(error: ImportError) -> JouledError:
    return JouledError(
        f"report: matplotlib draws the figures and cannot be imported: {error}",
        hint=f"{sys.executable} -m pip install '{NEEDED}'",
    )
