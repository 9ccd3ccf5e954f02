"""Where a report is written: each file whole or not at all, and nothing that is not the report's own is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jouled.errors import StateError, UsageError
from jouletune.report import RESULT

_OURS = re.compile(r"index\.html|job\.json|figures/[a-z0-9-]+\.(svg|pdf)")


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Put `files` into `folder`, which is made where it is not there. All are written beside it, then renamed.

    What an earlier report left there under other names goes; everything else stays. Raises UsageError, StateError.
    """
    folder = Path(os.path.abspath(folder))  # a link stays one
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder}: wanted a folder, got a file", hint="name another")
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".new", dir=folder.parent))
        try:
            _fill(fresh, files)
            stale = _stale(folder, files)
            _move(fresh, folder, files)
            for path in stale:
                path.unlink(missing_ok=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StateError(
            f"--out {folder}: cannot be written: {error.strerror}: {error.filename}",
            hint="name a folder that is yours, on a disk with some MB free",
        ) from error
    return [folder / name for name in files]


def _fill(fresh: Path, files: Mapping[str, bytes]) -> None:
    fresh.chmod(0o755)
    for name, data in files.items():
        path = fresh / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def _move(fresh: Path, folder: Path, files: Mapping[str, bytes]) -> None:
    if not folder.exists():
        os.rename(fresh, folder)
        return
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        os.replace(fresh / name, folder / name)


def _stale(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Files that an earlier report lists as its own and that this one does not have."""
    try:
        listed = json.loads((folder / RESULT).read_bytes())["files"]
        names = [name for name in listed if isinstance(name, str) and _OURS.fullmatch(name)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [folder / name for name in names if name not in files]
