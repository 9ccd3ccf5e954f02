"""Which wheels a package must carry for one Python on one architecture, from constraints.txt and the wheels' own words.

    wheels.py missing PYTHON MACHINE FOLDER    what FOLDER still lacks, pinned; it is downloaded, then asked again
    wheels.py lock PYTHON MACHINE FOLDER       the whole list with its hashes, as pip installs it

pip judges environment markers by the interpreter that it runs in, and not by the one it downloads for; hence this.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PIP = "pip==25.3"  # what installs the others: the system's may be too old, or not there at all
ROOTS = ("jouled", "pip")

Environment = dict[str, str]


def environment(python: str, machine: str) -> Environment:
    """What markers see on Linux with CPython `python` (3.10) on `machine` (aarch64)."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "platform_system": "Linux",
        "platform_release": "",
        "platform_version": "",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }


def pins(target: Environment) -> dict[str, str]:
    """`name==version` by name, as constraints.txt has it for the target."""
    lines = [PIP, *(ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]
    needed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        canonicalize_name(one.name): f"{one.name}{one.specifier}"
        for one in needed
        if one.marker is None or one.marker.evaluate(target)
    }


def name_of(wheel: Path) -> str:
    """The canonical name in a wheel's file name."""
    return canonicalize_name(wheel.name.partition("-")[0])


def needs(wheel: Path, target: Environment) -> Iterator[str]:
    """The names that a wheel asks for on the target. Raises ValueError for one with extras: none has any today."""
    with ZipFile(wheel) as packed:
        (metadata,) = (
            name for name in packed.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
        )
        headers = HeaderParser().parsestr(packed.read(metadata).decode())
    for text in headers.get_all("Requires-Dist", []):
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate(target):
            if one.extras:
                raise ValueError(f"{wheel.name} needs {text}: extras are not followed here")
            yield canonicalize_name(one.name)


def closure(folder: Path, target: Environment) -> tuple[list[Path], list[str]]:
    """The wheels of `folder` that the target needs, and the names that it lacks, both sorted."""
    there = {name_of(wheel): wheel for wheel in sorted(folder.glob("*.whl"))}
    found: set[str] = set()
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs(there[name], target) if name in there else []
    return sorted(there[name] for name in found if name in there), sorted(found - set(there))


def main(what: str, python: str, machine: str, folder: str) -> int:
    """Print the answer, a line a wheel."""
    target = environment(python, machine)
    pinned = pins(target)
    wheels, lacking = closure(Path(folder), target)
    if what == "missing":
        print(*(pinned[name] for name in lacking), sep="\n", end="\n" if lacking else "")
        return 0
    if lacking:
        print(f"{folder} lacks {', '.join(lacking)}", file=sys.stderr)
        return 1
    for wheel in wheels:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        version = wheel.name.split("-")[1]
        print(f"{name_of(wheel)}=={version} --hash=sha256:{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
