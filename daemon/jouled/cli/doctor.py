"""`jouled doctor`: can this board be tuned, and if not, why; on one screen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from jouled.board.statefile import replace_text, write_hint
from jouled.cli.arguments import here
from jouled.cli.output import WIDTH
from jouled.cli.site import open_site
from jouled.doctor.check import Check, Level
from jouled.doctor.examine import Diagnosis, Workloads, examine
from jouled.doctor.patient import admit
from jouled.doctor.report import report
from jouled.doctor.runner import nothing_runs, workloads
from jouled.errors import ConfigError, StateError, UsageError
from jouled.job.site import Site

_SPACE = 20  # columns before a check's text
_COMMANDS = ("sudo ", "jouled ", "python3 ", "pip ", "df ", "chronyc ")
_wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)  # a path is never cut
_SAID = {True: "yes", False: "no", None: "unknown"}


def doctor(arguments: argparse.Namespace) -> int:
    """Look at everything that a job would need; 0 where one can run, else what it would end with."""
    if arguments.report is not None and (not arguments.report.name or arguments.report.is_dir()):
        text = f"--report: wanted the name of a file, got {str(arguments.report)!r}"
        raise UsageError(text, hint="jouled doctor --report report.txt")
    site, error = _open(arguments)
    try:
        patient = admit(site, config_error=error, may_probe=arguments.probe)
        diagnosis = examine(patient, workloads=_workloads(arguments, site))
        if arguments.report is not None:
            _write(arguments.report, report(diagnosis))
    finally:
        site.close()
    if arguments.json:
        print(json.dumps(as_json(diagnosis), ensure_ascii=False))
    else:
        height = shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None
        print("\n".join(screen(diagnosis, height)))
    if arguments.report is not None:
        print(f"{arguments.report}: written; look through it before you send it", file=sys.stderr)
    return diagnosis.exit_code


def _open(arguments: argparse.Namespace) -> tuple[Site, ConfigError | None]:
    """A configuration that is wrong is one of the things that doctor tells; the defaults then stand in for it."""
    try:
        return open_site(arguments), None
    except ConfigError as error:
        without = {"config": None, "has_no_config": True}
        return open_site(argparse.Namespace(**{**vars(arguments), **without})), error


def _workloads(arguments: argparse.Namespace, site: Site) -> Workloads:
    """Who looks at what would be run here; of a board that is made up: what stands in for it, and what is assumed."""
    if arguments.virtual is None:
        return workloads if arguments.table is None else nothing_runs(f"simulated: {site.workload}")
    from jouled.virtual.specs import board_spec

    assumed = board_spec(arguments.virtual).assumed
    told = f"simulated: {site.workload.removeprefix('virtual:')}"
    return nothing_runs(f"{told}; assumed: {', '.join(assumed)}" if assumed else told)


def _write(path: Path, text: str) -> None:
    try:
        replace_text(path, text)
    except OSError as error:
        hint = write_hint(error, path.parent, "name another file")
        raise StateError(f"--report: {path}: cannot be written: {error.strerror}", hint=hint) from error


# --- what is said -------------------------------------------------------------------------------------------


def as_json(diagnosis: Diagnosis) -> dict[str, object]:
    """One object; `can_tune` is null where only root could tell."""
    board, site = diagnosis.patient.board, diagnosis.patient.site
    options = site.options
    return {
        "schema": 1,
        "board": None if board is None else board.file.name,
        "base_mode": None if board is None else board.base_mode.name,
        "can_tune": diagnosis.can_tune,
        "why_not": [check.text for check in diagnosis.faults],
        "checks": [
            {
                "name": check.name,
                "level": check.level.value,
                "text": check.text,
                "to_do": [here(line, options) for line in map(site.typed, check.to_do)],
            }
            for check in diagnosis.checks
        ],
    }


def screen(diagnosis: Diagnosis, height: int | None) -> list[str]:
    """The lines. Where there are more than `height`, what is all right is cut to a line, then shares some."""
    head = list(_head(diagnosis))
    site = diagnosis.patient.site
    groups = [list(group) for _, group in groupby(diagnosis.checks, key=lambda check: check.level is Level.OK)]
    shown = [[line for check in group for line in _lines(check, site)] for group in groups]
    right = [number for number, group in enumerate(groups) if group[0].level is Level.OK]
    for shrink in (_cut, _shared):
        for number in sorted(right, key=lambda number: -len(shown[number])):
            over = 0 if height is None else len(head) + sum(map(_rows, shown)) - height
            if over > 0:
                shown[number] = shrink(groups[number], over)
    lines = [line for lines in shown for line in lines]
    has_room = height is None or len(head) + _rows(lines) < height
    return [*head, *([""] if has_room else []), *lines]


def _rows(lines: Sequence[str]) -> int:
    """Of a terminal of 80 columns: a line to be typed may take two."""
    return sum(1 + (len(line) - 1) // (WIDTH + 1) for line in lines)


def _cut(checks: Sequence[Check], over: int) -> list[str]:
    """A line each."""
    told = [_told(check) for check in checks]
    return [lines[0] if len(lines) == 1 else f"{lines[0][: WIDTH - 2].rstrip()} …" for lines in told]


def _shared(checks: Sequence[Check], over: int) -> list[str]:
    """The last of them share as few lines as save `over`; all do where that is not enough."""
    lines = own = _cut(checks, over)
    for kept in range(len(checks) - 2, -1, -1):
        names = ", ".join(check.name for check in checks[kept:])
        lines = own[:kept] + _wrapped("  ok       ", names, 11)
        if len(own) - len(lines) >= over:
            break
    return lines


def _head(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"board     {diagnosis.title}"
    yield f"can tune  {_SAID[diagnosis.can_tune]}"
    yield f"why not   {_why_not(diagnosis)}"


def _why_not(diagnosis: Diagnosis) -> str:
    """On one line: the whole sentence stands below."""
    faults = diagnosis.faults
    if not faults:
        count = sum(check.level is Level.WARNING for check in diagnosis.checks)
        nothing = "nothing speaks against it" + (f"; {count} warnings" if count > 1 else "; one warning" * count)
        root = f"; the rest is told to root: {here('sudo jouled doctor', '')}"
        return nothing if diagnosis.can_tune else nothing + root
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    room = WIDTH - 10 - len(more)
    text = faults[0].text
    return (text if len(text) <= room else f"{_wrap(text, room - 2)[0].rstrip(' :,;')} …") + more


def _told(check: Check) -> list[str]:
    return _wrapped(f"  {check.level.value:8} {check.name:8} ", here(check.text, ""), _SPACE)


def _lines(check: Check, site: Site) -> list[str]:
    return [*_told(check), *_to_do(check.to_do, site)]


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    return _wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * indent,
    )


def _to_do(lines: Sequence[str], site: Site) -> Iterator[str]:
    """What is to be typed is never broken."""
    for line in lines:
        is_command = line.startswith(_COMMANDS)
        head, text = f"{'':11}{'to do':9}", here(site.typed(line), site.options)
        yield from [head + text] if is_command else _wrapped(head, text, _SPACE)
