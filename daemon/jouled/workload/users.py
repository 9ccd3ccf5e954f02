"""Whom a workload runs as."""

from __future__ import annotations

import os
import pwd

from jouled.config.tables import WorkloadEntry

RUNNER_USER = "jouled-runner"


def runner_user(entry: WorkloadEntry) -> str | None:
    """The user that is named, else jouled-runner where this is root and there is one; None: as this process does."""
    if entry.user is not None:
        return entry.user
    return RUNNER_USER if os.geteuid() == 0 and is_user(RUNNER_USER) else None


def is_user(name: str) -> bool:
    """Is there such a user?"""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
