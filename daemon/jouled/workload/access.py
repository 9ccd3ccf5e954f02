"""Can whoever runs a workload read its files? Tried as that user, and with the line that lets it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jouled.board.process import Processes
from jouled.config.tables import WorkloadEntry

_TEST = "test"
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file that `user` (None: this one) cannot use, to read (`how` r) or to run (x).

    `command` lets it; "" where the file is not there at all.
    """

    path: str
    how: str
    text: str
    command: str = ""


def files_to_try(entry: WorkloadEntry) -> dict[str, str]:
    """Path → `r` or `x`: what is to be done with it."""
    read = (*entry.engine, *entry.onnx, *filter(None, (entry.inputs, entry.outputs)))
    runs = entry.argv[:1] if entry.kind == "command" else (entry.python,) if entry.kind == "tensorrt" else ()
    return {**dict.fromkeys(read, "r"), **{path: "x" for path in runs if path.startswith("/")}}


def refusals(processes: Processes, entry: WorkloadEntry, user: str | None) -> Iterator[Refusal]:
    """Each file that cannot be used, and why. Raises ConfigError (no such user), NotPermittedError (not root)."""
    for path, how in files_to_try(entry).items():
        if _can(processes, path, how, user):
            continue
        blocked = next((str(folder) for folder in _folders(path) if not _can(processes, str(folder), "x", user)), None)
        if blocked is None and not os.path.exists(path):
            yield Refusal(path, how, f"{path}: there is no such file")
        elif blocked is not None and not os.path.exists(blocked):
            yield Refusal(path, how, f"{path}: there is no folder {blocked}")
        else:
            yield _refused(path, blocked, how, user)


def _folders(path: str) -> list[Path]:
    return list(reversed(Path(path).parents))


def _refused(path: str, blocked: str | None, how: str, user: str | None) -> Refusal:
    place, right = (path, how) if blocked is None else (blocked, "x")
    who = f"user {user}" if user is not None else "this user"
    doing = "enter" if blocked is not None else {"r": "read", "x": "run"}[how]
    name = user or os.environ.get("USER") or str(os.geteuid())
    command = f"sudo setfacl -m u:{name}:{right} {shlex.quote(place)}"
    if (
        blocked is None and how == "x" and not Path(path).stat().st_mode & 0o111
    ):  # nobody may: it is not meant to be run
        command = f"sudo chmod +x {shlex.quote(place)}"
    return Refusal(path, how, f"{path}: {who} may not {doing} {place}", command)


def _can(processes: Processes, path: str, how: str, user: str | None) -> bool:
    """Ask the kernel as that user: modes, ACLs and mounts all count."""
    if user is None:
        return os.access(path, {"r": os.R_OK, "x": os.X_OK}[how])
    child = processes.spawn((_TEST, f"-{how}", path), user=user)
    try:
        code = child.wait(_TIMEOUT_S)
        if code is None:  # a file system that hangs
            child.kill()
    finally:
        child.release()
    return code == 0
