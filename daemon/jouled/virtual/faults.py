"""Misbehaviour of the virtual board: `.virtual/faults.json` below its root, read anew whenever it changes.

Keys, all optional:
  user            "nobody": nobody here is root (EACCES on knobs and debugfs; the programs say so)
  chroot          true: nvpmodel believes that it runs in a chroot
  prompt          true: nvpmodel asks for a reboot in any mode
  hang            {program: n}: it stands still for good after n writes (0: at once)
  slow_s          {program: seconds}: it takes so much longer (simulated)
  absent          [programs]: not on PATH; acted on when the tree is opened and by VirtualProcesses
  wrong_rounding  {"gpu"|"cpu"|"emc": steps}: a written limit lands so many table steps off
  ignore_writes   [globs]: the write succeeds and changes nothing
  write_errors    [{"path": glob, "errno": "EBUSY", "after": n, "by": who}]: from write n+1 of that process on
  read_errors     {glob: "EAGAIN"}
  values          {glob: text}: what a read gives, whatever is there
  hidden          [globs]: as if it were not there (ENOENT)
  hold            {"by": who, "write": n | "path": glob}: stop before that write (`by`: nvpmodel, jetson_clocks,
                  sysfs), make `.virtual/held`, go on when `.virtual/release` exists; {"by": "clock", "after_s": s}:
                  the same when simulated time has advanced so far
  service_rerun_s seconds after which nvpmodel.service runs again and resets the caps
  board_reset     {"cores", "cpu_hz", "gpu_hz", "emc_hz"} (any of them): the board resets when time passes in it
  oc_rate_hz      {"oc1"|"oc2"|"oc3": events a second}
  oc_count        {"oc1"|"oc2"|"oc3": events on top}
  status_default  true: nvpmodel -f alone applies the file's DEFAULT, not the recorded mode
  fan_warning, errors_to_stdout  true: variants of nvpmodel's output (JETSON 1.6)
  workload_dies_s, workload_hangs_s  seconds after a load began
  spells, once    what begins, ends or happens in simulated time: `schedule.py`
"""

from __future__ import annotations

import fnmatch
import json
import os
import time
from typing import Any

from jouled.errors import StateError

FOLDER = ".virtual"
_POLL_S = 0.005


def damaged(root: str, name: str, what: str) -> StateError:
    """A file of the tree's own folder that says nothing any more."""
    return StateError(
        f"{os.path.join(root, FOLDER, name)}: is damaged: {what}",
        hint=f"remove the folder {root} to get a fresh board",
    )


def read_json(root: str, name: str) -> dict[str, Any]:
    """A JSON object in the tree's own folder. Raises FileNotFoundError, StateError."""
    try:
        with open(os.path.join(root, FOLDER, name), encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise damaged(root, name, str(error)) from error
    if not isinstance(found, dict):
        raise damaged(root, name, "wanted a JSON object")
    return found


class Faults:
    """The switches of one tree."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = os.path.join(root, FOLDER)
        self._path = os.path.join(self._folder, "faults.json")
        self._stamp: tuple[int, int] | None = None
        self._values: dict[str, Any] = {}

    def all(self) -> dict[str, Any]:
        """Every switch that is set."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self._stamp, self._values = None, {}
            return self._values
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._values = read_json(self._root, "faults.json")
            self._stamp = stamp
        return self._values

    def hides(self, path: str) -> bool:
        """Does it seem not to be there?"""
        return any(matches(path, pattern) for pattern in self.all().get("hidden", ()))

    def get(self, name: str, default: Any = None) -> Any:
        """One switch."""
        return self.all().get(name, default)

    def hold(self) -> None:
        """Say that this process stands still, and stand still until it is released."""
        held = os.path.join(self._folder, "held")
        with open(held + ".new", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.rename(held + ".new", held)
        while not os.path.exists(os.path.join(self._folder, "release")):
            time.sleep(_POLL_S)


def set_faults(root: str, **switches: Any) -> None:
    """Replace all switches of the tree at `root`; none given: a board that behaves."""
    path = os.path.join(root, FOLDER, "faults.json")
    for name in ("held", "release"):
        if os.path.exists(os.path.join(root, FOLDER, name)):
            os.unlink(os.path.join(root, FOLDER, name))
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(switches, file)
    os.replace(path + ".new", path)


def matches(path: str, pattern: str) -> bool:
    """Does the board's path match the glob (`*` crosses `/`)?"""
    return fnmatch.fnmatchcase(path, pattern)
