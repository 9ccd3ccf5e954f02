"""Fails when a test was skipped that should have run here: python skipped.py JUNIT_XML (stdlib only).

Two reasons to skip are known: `needs ../shared/data`, where that folder is not beside the clone, and `needs the memory
controller of cgroup v1`, where the machine has none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

NEEDS_DATA = "needs ../shared/data"
NEEDS_MEMORY = "needs the memory controller of cgroup v1"


def skipped(report: Path) -> list[tuple[str, str]]:
    """(test, reason) of each test in the report that did not run to its end by its own wish."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        for mark in case.iter("skipped"):
            found.append((f"{case.get('classname')}::{case.get('name')}", mark.get("message") or "no reason"))
    return found


def main(report: Path) -> int:
    """0 when each skip is one that is right on this machine."""
    there = {
        NEEDS_DATA: (Path(__file__).resolve().parents[2] / "shared" / "data").is_dir(),
        NEEDS_MEMORY: Path("/sys/fs/cgroup/memory/memory.oom_control").exists(),
    }
    wrong = [(test, why) for test, why in skipped(report) if there.get(why, True)]
    for test, why in wrong:
        print(f"skipped although it should run here: {test} ({why})", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
