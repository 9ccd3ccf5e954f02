"""Rails as jtop's service reads them, for where the board's own sensors are hidden; by a process of its own
(jtop_child: jetson-stats is under the AGPL, and no part of jouled).

The service reads at the pace of its first client, each time the sensor's last average.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jouled.board.channels import Rail
from jouled.board.clock import Clock
from jouled.board.process import Processes, Spawned
from jouled.board.reader import Reader
from jouled.config.owner import check_owner
from jouled.errors import ConfigError, NotSupportedError, SensorError

if TYPE_CHECKING:
    from jouletune.measurement import PowerTrace

log = logging.getLogger(__name__)

INTERVAL_S = 0.5  # what is asked of the service; it keeps to it only where nobody has asked before
START_S = 20.0
SILENT_S = 10.0
_VOLTAGE_STEP_V = 0.008
_PLACES = "/usr/local/bin:/usr/bin:/bin"
INSTALL = "sudo pip3 install jetson-stats, start its service (sudo systemctl start jtop), and be in group jtop or root"
_CHILD = Path(__file__).with_name("jtop_child.py")


def interpreter(places: str = _PLACES) -> str | None:
    """The Python that has jtop: this one, else that of the command `jtop`, by its first line; None: there is none.

    As root only a command and an interpreter that root alone may change or replace: who else could would become root.
    """
    if importlib.util.find_spec("jtop") is not None:
        return sys.executable
    command = shutil.which("jtop", path=places)
    if command is None:
        return None
    with open(command, "rb") as file:
        words = file.readline(4096).removeprefix(b"#!").decode("utf-8", "replace").split()
    python = words[0] if words else ""
    if not os.path.isabs(python) or Path(python).name == "env" or not os.access(python, os.X_OK):
        return None
    if os.geteuid() == 0:
        try:
            for place in (command, python):
                check_owner(Path(place).parent)  # of a link, too
                check_owner(Path(place))
        except ConfigError as error:
            log.warning("%s is not run as root: %s; %s", command, error, error.hint)
            return None
    return python


def _start(processes: Processes, python: str | None) -> Spawned:
    if python is None:
        raise NotSupportedError("jtop: there is no jetson-stats here that could be used", hint=INSTALL)
    return processes.spawn([python, "-I", str(_CHILD), str(INTERVAL_S)])


class Link:
    """The child, and a thread that reads its lines. Raises NotSupportedError where it finds no service."""

    patience_s = SILENT_S

    def __init__(self, child: Spawned) -> None:
        self._about: Mapping[str, Any] | None = None
        self.why: str | None = None
        self.lines: list[Mapping[str, Any]] = []
        self.lost = 0
        self.was_silent = False
        self._heard = 0
        self._reader = Reader(child, source="jtop", hear=self._hear)
        self._reader.start()

    def about(self) -> Mapping[str, Any]:
        """`version`, `interval_s`, `rails`. Raises NotSupportedError."""
        self._reader.wait(lambda: self._about is not None, START_S)
        if self._about is None:
            raise NotSupportedError(f"jtop: {self.silence()}", hint=INSTALL)
        return self._about

    def _hear(self, said: Mapping[str, Any]) -> None:
        self._heard += 1
        if "rails" in said:
            if not all(isinstance(rail, dict) for rail in said["rails"].values()):
                raise TypeError("rails")
            self.lines.append({**said, "t_s": float(said["t_s"])})
        elif "stale_s" in said:
            self.lost += 1
            self.why = f"its service has read nothing new for {said['stale_s']:g} s"
        else:
            self._about, self.why = said.get("about", self._about), said.get("error", self.why)

    @property
    def is_alive(self) -> bool:
        """Has the reader not ended?"""
        return self._reader.is_alive

    def silence(self) -> str:
        """Why there is nothing more of it."""
        if self.why is not None:
            return self.why
        if self._reader.nonsense:
            return f"its reader said what is no line of its protocol: {self._reader.nonsense}"
        return "its reader is silent" if self._reader.is_alive else self._reader.last_words()

    def next_sample(self) -> None:
        """Wait for one that is not here yet. Raises SensorError; `was_silent` where nothing was said at all."""
        count, heard = len(self.lines), self._heard
        if not self._reader.wait(lambda: len(self.lines) > count, self.patience_s):
            self.was_silent = self._heard == heard
            raise SensorError(f"jtop: {self.silence()}")

    def close(self) -> None:
        """End the child; idempotent."""
        self._reader.close(SILENT_S)


class JtopMeter:
    """The sum of some of the rails that jtop's service reads."""

    observer = None
    gpu = None

    def __init__(
        self,
        start: Callable[[], Spawned],
        total_rails: Sequence[str],
        *,
        coverage: str,
        averaging_s: float,
        allow_partial: bool,
    ) -> None:
        self._start = start
        self._link = Link(start())
        try:
            about = self._link.about()
            missing = [name for name in total_rails if name not in about["rails"]]
            present = tuple(name for name in total_rails if name in about["rails"])
            if not present or (missing and not allow_partial):
                raise NotSupportedError(
                    f"jtop {about['version']} reads no {', '.join(missing)}; it reads: "
                    f"{', '.join(about['rails']) or 'no rail'}",
                    hint='set board.total_rails to this board\'s labels, or board.on_partial_rails = "partial"',
                )
        except NotSupportedError:
            self._link.close()
            raise
        self.version = str(about["version"])
        self.labels = present
        self.rail = "+".join(present)
        covered = f"partial, without {', '.join(missing)}" if missing else coverage
        self.coverage = f"{covered}, read by jtop"
        self.interval_s = float(about["interval_s"])
        self.averaging_s = max(averaging_s, self.interval_s)

    def linked(self) -> Link:
        """The reader, begun anew where it has ended (its service was restarted) or was silent. Raises SensorError."""
        if not self._link.is_alive or self._link.was_silent:
            log.warning("jtop's reader is started again: %s", self._link.silence())
            self._link.close()
            self._link = Link(self._start())
            try:
                self._link.about()
            except NotSupportedError as error:
                raise SensorError(str(error)) from error
        return self._link

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> JtopSampling:
        """The times are those of the system's clock, the pace is the service's: neither argument changes them."""
        log.debug("jtop reads each %g s, not at %g Hz", self.interval_s, rate_hz)
        return JtopSampling(self, external_w=external_w)

    def close(self) -> None:
        """End the reader; idempotent."""
        self._link.close()


class JtopSampling:
    """What comes between `start` and `stop`."""

    def __init__(self, meter: JtopMeter, *, external_w: float) -> None:
        self._meter = meter
        self._external_w = external_w
        self._link: Link | None = None
        self._from = self._lost_before = 0
        self.last_error: SensorError | None = None

    def start(self) -> None:
        """Begin anew; returns with the first reading. Raises SensorError."""
        if self._link is not None:
            raise RuntimeError("the sampling runs already")
        link = self._meter.linked()
        self._from, self._lost_before = len(link.lines), link.lost
        link.next_sample()
        self._link = link

    def _readings(self) -> tuple[list[tuple[float, list[tuple[float, float]]]], int]:
        """(time, volts and amperes of each rail) of whole samples; how many were not whole."""
        link = self._link
        if link is None:
            return [], 0
        found, lost = [], link.lost - self._lost_before
        for line in link.lines[self._from :]:
            values = [_volts_amperes(line["rails"].get(label, {})) for label in self._meter.labels]
            whole = [value for value in values if value is not None]
            if len(whole) == len(values):
                found.append((line["t_s"], whole))
            else:  # jtop leaves a rail out whose reading failed
                lost += 1
        return found, lost

    @property
    def power_w(self) -> float | None:
        """The last reading, `external_w` included; None before the first."""
        found, _ = self._readings()
        return sum(volts * amperes for volts, amperes in found[-1][1]) + self._external_w if found else None

    def trace(self) -> PowerTrace:
        """What was read so far. The steps of the current are not told: they are no part of the sensor's error."""
        import numpy as np

        from jouletune.measurement import PowerTrace, RailTrace

        found, lost = self._readings()
        values = np.array([each for _, each in found], dtype=np.float64).reshape(len(found), len(self._meter.labels), 2)
        rails = tuple(
            RailTrace(rail.name, values[:, index, 0], values[:, index, 1], rail.voltage_step_v, rail.current_step_a)
            for index, rail in enumerate(Rail(label, _VOLTAGE_STEP_V, 0.0) for label in self._meter.labels)
        )
        return PowerTrace(
            t_s=np.array([t_s for t_s, _ in found], dtype=np.float64),
            rails=rails,
            averaging_s=self._meter.averaging_s,
            period_s=self._meter.interval_s,
            external_w=self._external_w,
            lost=lost,
        )

    def stop(self) -> PowerTrace:
        """End it and give what was read; what was not to be had is in `last_error`."""
        link = self._link
        trace = self.trace()
        if link is not None and (not link.is_alive or trace.lost):
            self.last_error = SensorError(f"jtop: {link.silence() if link.why else 'a rail was not read'}")
        self._link = None
        return trace


def _volts_amperes(rail: Mapping[str, float]) -> tuple[float, float] | None:
    """What a rail tells: both, or a power as that many amperes at 1 V; None: nothing."""
    if "mv" in rail and "ma" in rail:
        return rail["mv"] / 1000, rail["ma"] / 1000
    return (1.0, rail["mw"] / 1000) if "mw" in rail else None


def open_jtop(
    processes: Processes,
    total_rails: Sequence[str],
    *,
    coverage: str = "module",
    averaging_s: float,
    allow_partial: bool = False,
    find: Callable[[], str | None] = interpreter,
) -> JtopMeter:
    """The meter of `total_rails` by jtop's service; `find` tells which Python has its client.

    Raises NotSupportedError with what to install, or which rails there are.
    """
    return JtopMeter(
        lambda: _start(processes, find()),
        total_rails,
        coverage=coverage,
        averaging_s=averaging_s,
        allow_partial=allow_partial,
    )
