"""nvpmodel and jetson_clocks as executables of the virtual board: how they are installed, started and end."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress

from jouled.virtual.console import Console, StreamConsole
from jouled.virtual.faults import FOLDER
from jouled.virtual.jetson_clocks import JetsonClocks
from jouled.virtual.kernel import Kernel
from jouled.virtual.nvpmodel import Nvpmodel

PLACES = {"nvpmodel": "usr/sbin/nvpmodel", "jetson_clocks": "usr/bin/jetson_clocks"}


def program(name: str, kernel: Kernel, console: Console) -> Nvpmodel | JetsonClocks:
    """The program called `name`, ready to run."""
    if name == "nvpmodel":
        return Nvpmodel(kernel, console)
    return JetsonClocks(kernel, console, home=os.environ.get("HOME", ""))


def install(root: str) -> None:
    """Put both executables below `root`. They find their root from where they lie, so a tree may be moved."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, {package!r}); from jouled.virtual.programs import main; sys.exit(main())"
    command = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(code)}"
    for name, place in PLACES.items():
        path = os.path.join(root, place)
        text = f'#!/bin/sh\n{command} {name} "$0" "$@"\n'
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if file.read() == text:
                    continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fresh = f"{path}.{os.getpid()}.new"  # another process may be opening the same board
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(fresh, 0o755)
        os.replace(fresh, path)


def typed(root: str, line: str) -> str:
    """A command for the board's own shell as it is typed here: its programs lie in its tree, and it has no other."""
    words = line.removeprefix("sudo ").split(" ", 1)
    if words[0] in PLACES:
        return " ".join([shlex.quote(os.path.join(root, PLACES[words[0]])), *words[1:]])
    if words[0] == "reboot":
        return " ".join(["jouled virtual reboot", *words[1:]])
    if words[0] == "jouled" or not line.startswith("sudo "):
        return line.removeprefix("sudo ")
    return f"on the board itself, in {root}: {line}"


def hand_over(root: str, took_s: float) -> None:
    """Leave word of how long a program ran, for whoever keeps the board's time."""
    with open(os.path.join(root, FOLDER, "took_s"), "a", encoding="ascii") as file:
        file.write(f"{took_s}\n")


def collect(root: str) -> float:
    """Seconds that programs have left word of since the last call."""
    path = os.path.join(root, FOLDER, "took_s")
    try:
        with open(path, encoding="ascii") as file:
            total_s = sum(float(line) for line in file)
    except FileNotFoundError:
        return 0.0
    with suppress(FileNotFoundError):
        os.unlink(path)
    return total_s


def main() -> int:
    """A child's whole life; argv is: name, the executable's path, its arguments."""
    name, path, *arguments = sys.argv[1:]
    place = os.path.realpath(path)
    root = place[: -len(PLACES[name]) - 1]
    run = program(name, Kernel(root, name), StreamConsole())
    code = run.run(arguments)
    hand_over(root, run.took_s)
    if run.reboots:
        from pathlib import Path

        from jouled.virtual.tree import boot

        boot(Path(root))
    return code
