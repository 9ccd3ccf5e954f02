"""Reads one GPU through NVML in a process of its own.

A call takes some 4 ms on an H200 and may hang in the driver, so none is made where deadlines are held or inferences
are run. Standard input holds one word a line, `start NUMBER`, `stop` or `end` (so does its end); standard output one
JSON object a line: first what GPU it is (or an `error`), then what was seen since the last line.

    {"run": 3, "power": [[t_s, w], …], "edges": [[t_s, width_s, j], …], "lost": 0, "stopped": false, "look": {…}}

The energy counter moves in steps of time, 0.1 s on an H200, and a read says nothing of when. So it is read back to
back while its next step is due, and rarely in between: an edge lies between the last read of the old value and the
first of the new one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from jouled.board.nvml_device import Device, Reading, Unusable

LOOK_S = 0.5
SAY_S = 0.25
QUIET_S = 0.03
BRIEF_S = 0.001
LEARN_S = 2.0
_LEARN_STEPS = 8
_NEWEST_STEPS = 16
_LEAST_GUARD, _MOST_GUARD = 0.1, 0.5  # of a step
_WIDE, _FINE_S = 2.5, 0.005  # an edge so many times wider than usual, and not fine enough anyway, was missed


@dataclass(frozen=True)
class Edge:
    """The counter moved to `joules` somewhere within `width_s` around `t_s`."""

    t_s: float
    width_s: float
    joules: float


def find_edge(before: Reading, after: Reading) -> Edge | None:
    """The edge between two reads; None: the counter stood still. A counter that falls was reset: no edge either."""
    if before.energy_j is None or after.energy_j is None or after.energy_j <= before.energy_j:
        return None
    return Edge((before.begin_s + after.end_s) / 2, after.end_s - before.begin_s, after.energy_j)


class Pace:
    """When to read next: back to back while an edge is due, rarely while the counter stands still."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._last: Edge | None = None
        self._steps_s: deque[float] = deque(maxlen=_NEWEST_STEPS)
        self._widths_s: deque[float] = deque(maxlen=_NEWEST_STEPS)
        self._guard = _MOST_GUARD / 2
        self._learned = False

    @property
    def step_s(self) -> float | None:
        """The counter's step; None: not known (yet)."""
        return median(self._steps_s) if self._learned and self._steps_s else None

    def resume(self) -> None:
        """It was not looked at for a while: what comes next is no step after the last edge."""
        self._began_s = self._last = None

    def note(self, edge: Edge) -> None:
        """An edge was seen."""
        if self._widths_s:
            is_missed = edge.width_s > max(_WIDE * median(self._widths_s), _FINE_S)
            self._guard = min(max(self._guard * (1.5 if is_missed else 0.97), _LEAST_GUARD), _MOST_GUARD)
        if self._last is not None:
            self._steps_s.append(edge.t_s - self._last.t_s)
        self._widths_s.append(edge.width_s)
        self._last = edge

    def pause_s(self, now_s: float) -> float:
        """How long to leave the counter alone."""
        if self._began_s is None:
            self._began_s = now_s
        if not self._learned:
            self._learned = len(self._steps_s) >= _LEARN_STEPS or now_s - self._began_s > LEARN_S
            return 2 * BRIEF_S
        step_s = self.step_s
        if step_s is None:
            return QUIET_S  # it does not move
        if self._last is None:
            return 2 * BRIEF_S
        quiet_s = self._last.t_s + (1.0 - self._guard) * step_s - now_s
        if step_s < 4.0 * median(self._widths_s):  # it moves at each read: any read is an edge
            return QUIET_S / 2
        return max(BRIEF_S, min(QUIET_S, quiet_s))


# --- reading on and on --------------------------------------------------------------------------------------


@dataclass
class _Unsaid:
    """What the next line will hold."""

    power: list[tuple[float, float]] = field(default_factory=list)
    edges: list[tuple[float, float, float]] = field(default_factory=list)
    lost: int = 0
    error: str | None = None
    look: dict[str, Any] | None = None


class Reader:
    """Reads `device` until it is told to end: `wait` passes a pause and gives the word that came in it, or None."""

    def __init__(
        self,
        device: Device,
        failure: type[Exception],
        *,
        now: Callable[[], float],
        wait: Callable[[float], str | None],
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        self._device = device
        self._failure = failure
        self._now = now
        self._wait = wait
        self._say = say
        self._unsaid = _Unsaid()
        self._run: int | None = None
        self._pace = Pace()
        self._last: Reading | None = None
        self._said_s = self._looked_s = -1e9

    def run(self) -> None:
        """Until `end`."""
        while True:
            moved = self._run is not None and self._sample()
            self._look(is_quiet=moved or self._run is None)
            if self._now() - self._said_s >= (SAY_S if self._run is not None else LOOK_S):
                self._tell(stopped=False)
            word = self._wait(LOOK_S / 2 if self._run is None else self._pace.pause_s(self._now()))
            if word == "end":
                return
            if word is not None:
                self._obey(word)

    def _obey(self, word: str) -> None:
        verb, _, number = word.partition(" ")
        if verb == "start" and number.isdigit():
            self._run, self._last, self._unsaid = int(number), None, _Unsaid()
            self._pace.resume()
            self._sample()
            self._tell(stopped=False)  # who asked waits for it
        elif verb == "stop" and self._run is not None:
            self._sample()
            self._tell(stopped=True)
            self._run = None

    def _sample(self) -> bool:
        """Did the counter move?"""
        try:
            reading = self._device.read()
        except self._failure as error:
            self._unsaid.lost += 1
            self._unsaid.error = str(error)
            self._last = None
            return False
        edge = None if self._last is None else find_edge(self._last, reading)
        self._last = reading
        if reading.power_w is not None:
            self._unsaid.power.append(((reading.begin_s + reading.end_s) / 2, reading.power_w))
        if edge is not None:
            self._pace.note(edge)
            self._unsaid.edges.append((edge.t_s, edge.width_s, edge.joules))
        return edge is not None

    def _look(self, *, is_quiet: bool) -> None:
        """Each half second, just after an edge: the next one is not missed meanwhile."""
        since_s = self._now() - self._looked_s
        if since_s < LOOK_S or (since_s < 2 * LOOK_S and not is_quiet):
            return
        self._looked_s = self._now()
        try:
            self._unsaid.look = {"t_s": self._looked_s, **self._device.look()}
        except self._failure as error:
            self._unsaid.error = str(error)

    def _tell(self, *, stopped: bool) -> None:
        said, self._unsaid = self._unsaid, _Unsaid()
        self._said_s = self._now()
        self._say(
            {
                "run": self._run,
                "power": said.power,
                "edges": said.edges,
                "lost": said.lost,
                "error": said.error,
                "step_s": self._pace.step_s,
                "stopped": stopped,
                "look": said.look,
            }
        )


# --- the process --------------------------------------------------------------------------------------------


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class _Words:
    """The words that come on standard input."""

    def __init__(self) -> None:
        self._left = b""

    def wait(self, duration_s: float) -> str | None:
        if b"\n" not in self._left:
            ready, _, _ = select.select([0], [], [], duration_s)
            if not ready:
                return None
            more = os.read(0, 4096)
            if not more:
                return "end"
            self._left += more
        word, found, rest = self._left.partition(b"\n")
        if not found:
            return None
        self._left = rest
        return word.decode("utf-8", "replace")


def _pynvml(path: str) -> Any:
    """The very file that the parent found, wherever its Python finds it."""
    spec = importlib.util.spec_from_file_location("pynvml", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(index: int, path: str) -> int:
    """0 when it was told to end, 1 with an `error` line where there is nothing to measure."""
    nvml = _pynvml(path)
    try:
        device = Device(nvml, index, time.monotonic)
        about = device.about()
        if device.power is None:
            raise Unusable("no_power", f"{about['name']} tells no power by NVML")
        _say({"about": about})
    except Unusable as error:
        _say({"error": {"code": error.code, "text": str(error)}})
        return 1
    except nvml.NVMLError as error:
        _say({"error": {"code": "nvml", "text": str(error)}})
        return 1
    with suppress(BrokenPipeError, KeyboardInterrupt):  # nobody listens any more
        Reader(device, nvml.NVMLError, now=time.monotonic, wait=_Words().wait, say=_say).run()
    return 0
