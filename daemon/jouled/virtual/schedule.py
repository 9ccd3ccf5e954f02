"""Faults in simulated time: spells, in which switches are set, and what happens once.

Below `faults.json`:
  spells  [{"from_s", "until_s" (null: for ever), "switches": {…}}]: the switches in force are those of `always` and of
          every spell that holds now
  always  {…}: switches that hold all the time
  once    [{"after_s", "do": …}] with `do` one of {"run": [program, arguments…]}, {"write": [path, text]},
          {"reset": true}, {"service": true} (nvpmodel.service runs again)
Seconds count from the start of the machine's process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from jouled.virtual.console import Console
from jouled.virtual.faults import FOLDER
from jouled.virtual.kernel import Kernel
from jouled.virtual.programs import program


class Machine(Protocol):
    """What happenings need of the machine."""

    @property
    def kernel(self) -> Kernel: ...

    def rerun_service(self) -> None:
        """nvpmodel.service runs again."""

    def reset(self) -> None:
        """The board loses its power and boots."""


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Switches of several faults in one: lists add up, tables too, of two values the later one counts."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                whole[name] = {**whole.get(name, {}), **value}
            elif isinstance(value, list):
                whole[name] = [*whole.get(name, []), *value]
            else:
                whole[name] = value
    return whole


def replace_switches(root: str, switches: Mapping[str, Any]) -> None:
    """Make `switches` the board's, leaving alone whoever stands still."""
    path = os.path.join(root, FOLDER, "faults.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(switches, file)
    os.replace(path + ".new", path)


class Schedule:
    """The spells and happenings of one machine's process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._holding: tuple[int, ...] | None = None

    def meet(self, faults: Mapping[str, Any], passed_s: float) -> None:
        """Let begin, end and happen what is due `passed_s` after the start."""
        if "spells" in faults:
            self._hold(faults, passed_s)
        due = [event for event in faults.get("once", ()) if passed_s >= event["after_s"]]
        if due:
            left = [event for event in faults["once"] if event not in due]
            self._rewrite({**self._machine.kernel.faults.all(), "once": left})
        for event in due:
            self._happen(event["do"])

    def _rewrite(self, switches: Mapping[str, Any]) -> None:
        replace_switches(self._machine.kernel.root, switches)

    def _hold(self, faults: Mapping[str, Any], passed_s: float) -> None:
        spells = faults["spells"]
        now = tuple(
            number
            for number, spell in enumerate(spells)
            if spell["from_s"] <= passed_s and (spell["until_s"] is None or passed_s < spell["until_s"])
        )
        if now == self._holding:
            return
        self._holding = now
        kept = {name: faults[name] for name in ("spells", "always", "once", "named") if name in faults}
        in_force = merged([faults.get("always", {}), *(spells[number]["switches"] for number in now)])
        self._rewrite({**in_force, **kept})

    def _happen(self, do: Mapping[str, Any]) -> None:
        kernel = Kernel(self._machine.kernel.root, "stranger")  # somebody else's hand on the board
        if "run" in do:
            name, *arguments = do["run"]
            program(name, kernel, Console()).run(arguments)
        elif "write" in do:
            path, text = do["write"]
            with suppress(OSError):  # a knob that is not there now stays as it is
                kernel.write(path, text.encode())
        elif "service" in do:
            self._machine.rerun_service()
        elif "reset" in do:
            self._machine.reset()
