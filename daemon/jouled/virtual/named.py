"""Faults by name, put into a virtual board's tree and taken out of it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jouled.errors import UsageError
from jouled.virtual.fault import Effect, Fault
from jouled.virtual.fault_table import FAULTS
from jouled.virtual.faults import Faults
from jouled.virtual.mischief import Place
from jouled.virtual.schedule import merged, replace_switches

_TIMES = ("after_s", "for_s")


def _parsed(text: str) -> tuple[Fault, Effect, float, float]:
    """(fault, what it does, when it begins, how long it lasts)."""
    name = re.split("[:,]", text, maxsplit=1)[0]  # NAME,after_s=5 has no argument of its own
    rest = text[len(name) + 1 :]
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"--fault {text}: no such fault", hint="jouled virtual faults lists them")
    times = {"after_s": fault.after_s, "for_s": fault.for_s}
    argument = fault.argument
    for number, word in enumerate(rest.split(",") if rest else ()):
        key, is_pair, value = word.partition("=")
        if is_pair and key in _TIMES:
            times[key] = _seconds(text, value)
        elif number == 0 and not is_pair and fault.takes:
            argument = word
        else:
            wanted = f"{fault.takes or 'no argument of its own'}, then after_s=N and for_s=N"
            raise UsageError(f"--fault {text}: wanted {wanted}, got {word!r}")
    try:
        return fault, fault.does(argument), times["after_s"], times["for_s"]
    except UsageError as error:
        raise UsageError(f"--fault {text}: {error}") from error


def _seconds(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not number >= 0.0:
        raise UsageError(f"--fault {text}: wanted seconds from 0, got {value!r}")
    return number


def inject(root: Path, state_dir: Path, faults: Sequence[str]) -> None:
    """Let the board at `root` have exactly `faults` (NAME[:ARGS]) from now on. Raises UsageError.

    None: a board without faults, whichever named ones a killed process has left.
    """
    parsed = [_parsed(text) for text in faults]  # nothing is touched where one of them is wrong
    clear(root, state_dir)
    if not parsed:
        return
    place = Place(root, state_dir)
    always: list[dict[str, Any]] = []
    spells: list[dict[str, Any]] = []
    once: list[dict[str, Any]] = []
    for _, effect, after_s, for_s in parsed:
        for edit in effect.edits:
            edit(place)
        once += [{"after_s": after_s, "do": dict(do)} for do in effect.once]
        if effect.switches and after_s == 0.0 and math.isinf(for_s):
            always.append(dict(effect.switches))
        elif effect.switches:
            until_s = None if math.isinf(for_s) else after_s + for_s
            spells.append({"from_s": after_s, "until_s": until_s, "switches": dict(effect.switches)})
    now = [spell["switches"] for spell in spells if spell["from_s"] <= 0.0]
    kept = {"always": merged(always), "spells": spells, "once": once, "named": list(faults)}
    replace_switches(str(root), {**merged([*always, *now]), **kept})


def clear(root: Path, state_dir: Path) -> None:
    """No named fault any more; what somebody has set by hand stays."""
    if "named" in Faults(str(root)).all():
        replace_switches(str(root), {})
        Place(root, state_dir).undo()


def named_faults() -> str:
    """The list that a user reads."""
    width = max(len(name) for name in FAULTS)
    lines = [f"{fault.name:{width}}  {fault.text}{_argument_text(fault)}" for fault in FAULTS.values()]
    ends = "--fault NAME[:ARGUMENT][,after_s=N][,for_s=N]   repeatable; seconds are simulated, for_s=inf: to the end"
    return "\n".join([*lines, "", ends])


def _argument_text(fault: Fault) -> str:
    parts = [f"{fault.takes} ({fault.argument})"] if fault.takes else []
    parts += [f"after_s={fault.after_s:g}"] if fault.after_s else []
    parts += [f"for_s={fault.for_s:g}"] if not math.isinf(fault.for_s) else []
    return f" [{', '.join(parts)}]" if parts else ""
