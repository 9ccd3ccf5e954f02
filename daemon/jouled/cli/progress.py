"""What a person sees while a job runs, in this process or in the service's."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from jouled.cli.jobview import candidate_name, has_one_mode
from jouled.cli.output import FIXED, candidates_text, counted, duration, quantity, short_names
from jouled.job.events import Event
from jouletune.space import PowerMode, Variant

_MODE = "cores-CPU-GPU-EMC, MHz"
_INDENT = " " * 8
_WIDE = 80
_MODE_WIDTH = 24


class Progress:
    """Plain lines, one for each thing that a person wants to know; on standard error where no stream is given."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._began_s: float | None = None
        self._reference_j: float | None = None
        self._axes: Mapping[str, Sequence[Any]] | None = None
        self._is_fixed = False

    def __call__(self, event: Event) -> None:
        line = self._line(event)
        if self._began_s is None:
            self._began_s = float(event["t_s"])
        if line is not None:
            passed_s = float(event["t_s"]) - self._began_s
            print(
                f"{int(passed_s) // 60:3d}:{int(passed_s) % 60:02d}  {line}", file=self._out or sys.stderr, flush=True
            )

    def _line(self, event: Event) -> str | None:
        kind = event["event"]
        if kind == "job_started":
            self._axes = event.get("axes")
            self._is_fixed = event["base_mode"] == FIXED
            where = ", fixed mode" if self._is_fixed else f" in {event['base_mode']}"
            return (
                f"{event['board']}{where}: "
                f"{candidates_text(event['grid_size'], self._axes or {})}, "
                f"about {duration(event['expected_s'])}" + _measured(event)
            )
        if kind == "phase":
            return self._header() if event["phase"] == "reference" else _phase(event)
        if kind == "trial":
            return self._trial(event["trial"])
        if kind == "warning":
            return f"warning: {event['text']}"
        if kind == "restored":
            return "every knob is as it was found"
        return None

    def _header(self) -> str:
        name = "variant" if self._has_one_mode() else _MODE
        return f"reference\n          #  {name:{self._width()}}    energy  power    latency   saves"

    def _has_one_mode(self) -> bool:
        return self._is_fixed or has_one_mode(self._axes)

    def _width(self) -> int:
        """Of the column with power mode and variant."""
        axes = self._axes or {}
        longest = [
            max((len(name) for name in short_names(axes.get("engine", [])).values()), default=0),
            *(1 + len(str(max(axes[name]))) for name in ("batch", "instances") if name in axes),
        ]
        return _MODE_WIDTH + sum(longest) + len(longest) - 1

    def _trial(self, trial: dict[str, Any]) -> str:
        variant = Variant(**trial["candidate"]["variant"])
        mode = PowerMode(**trial["candidate"]["mode"])
        name = candidate_name(PowerMode() if self._is_fixed else mode, variant, self._axes)
        head = f"{trial['number'] + 1:3d}  {name:{self._width()}}{'L' if trial['policy'] == 'locked' else ' '}"
        window = trial["measurement"]
        if trial["invalid"] is not None:
            return f"{head} thrown away: {trial['invalid']} {trial['detail']}".rstrip()
        if trial["infeasible"] == "memory":
            return f"{head} does not fit: {trial['detail']}"
        if window is None:
            return f"{head} too slow, cut short"
        upper_s = window["latency_upper_s"]
        numbers = f"{quantity(window['energy_j'], 'J'):>9} {window['power_w']:5.1f} W"
        numbers += f" <= {quantity(upper_s, 's'):7}" if upper_s is not None else " " * 11
        if trial["purpose"] == "reference" and self._reference_j is None:
            self._reference_j = window["energy_j"]
        if self._reference_j is not None:
            numbers += f" {100 * (1 - window['energy_j'] / self._reference_j):+6.1f} %"
        return f"{head} {numbers}" + (f"  ({trial['infeasible']})" if trial["infeasible"] else "")


def _measured(event: Event) -> str:
    """Which meter, and why; an older worker does not say it."""
    why = event.get("meter_why")
    if why is None:
        return ""
    lines = [f"{event['rail']} ({event['rail_coverage']}):", *textwrap.wrap(why, _WIDE - len(_INDENT))]
    return "".join(f"\n{_INDENT}{line}" for line in lines)


def _phase(event: Event) -> str | None:
    if event["phase"] == "search":
        bound_s = event["bound_s"]
        bound = "" if bound_s is None else f", latency at most {quantity(bound_s, 's')}"
        return f"search{bound}"
    if event["phase"] == "known":
        count, jobs = len(event["earlier"]), event["jobs"]
        return f"{counted(count, 'window')} of {counted(jobs, 'earlier job')} are known" if count else None
    if event["phase"] == "finals":
        return f"finals, since the search has ended: {event['reason']}"
    return str(event["phase"])
