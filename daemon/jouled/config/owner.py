"""Whatever root obeys lies where only root writes: who could change a file?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jouled.errors import ConfigError


def check_owner(path: Path) -> None:
    """Raise ConfigError unless only root and this user could change or replace the file at `path`.

    The file and each folder above it, links followed, must belong to root or this user and be writable by nobody
    else (a folder with the sticky bit, such as /tmp, may be).
    """
    try:
        real = path.resolve(strict=True)
        for place in (real, *real.parents):
            _check(path, place, place.stat())
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{path}: cannot be looked at: {error}", hint="name an existing file with --config"
        ) from error


def _check(path: Path, place: Path, found: os.stat_result) -> None:
    trusted = {0, os.geteuid()}
    if found.st_uid not in trusted:
        raise ConfigError(
            f"{path}: wanted {place} to belong to uid {' or '.join(map(str, sorted(trusted)))}, got uid {found.st_uid}",
            hint=f"jouled obeys it as root, so: chown root {place}",
        )
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        raise ConfigError(
            f"{path}: wanted {place} to be writable by its owner alone, got mode {stat.S_IMODE(found.st_mode):04o}",
            hint=f"jouled obeys it as root, so: chmod go-w {place}",
        )
