"""The line to the process that reads one GPU (nvml_child): what it says is kept, what it is asked is answered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jouled.board.process import Spawned
from jouled.board.reader import Reader
from jouled.errors import NotSupportedError, SensorError

START_S = 20.0  # the first call wakes a GPU that nobody uses
SILENT_S = 5.0
INSTALL = "pip install 'jouled[nvml]' (NVIDIA's nvidia-ml-py), and NVIDIA's driver with libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """What NVML says of one GPU. `index` is NVML's, in the order of the PCI bus; "unknown" or None: not told.

    `power`: "instant", or "average" where only the mean of the last second is to be had.
    """

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    driver: str
    power: str
    power_limit_w: float | None = None


def _info(about: Mapping[str, Any]) -> GpuInfo:
    texts = {name: about[name] or "unknown" for name in ("name", "uuid", "pci_bus_id", "driver", "power")}
    return GpuInfo(index=about["index"], power_limit_w=about["power_limit_w"], **texts)


@dataclass
class Run:
    """One sampling: what its lines held."""

    number: int
    power: list[tuple[float, float]] = field(default_factory=list)
    edges: list[tuple[float, float, float]] = field(default_factory=list)
    lost: int = 0
    lines: int = 0
    has_stopped: bool = False


class Link:
    """The child, and a thread that reads its lines. Raises NotSupportedError where it finds no GPU to measure."""

    def __init__(self, child: Spawned) -> None:
        self._about: Mapping[str, Any] | None = None
        self._refusal: Mapping[str, Any] | None = None
        self._look: Mapping[str, Any] | None = None
        self._reasons: set[str] = set()
        self._heard_s = time.monotonic()
        self.error: str | None = None
        self.step_s: float | None = None
        self.run = Run(0)
        self._reader = Reader(child, source="NVML", hear=self._hear)
        self._changed = self._reader.changed
        self._reader.start()

    def about(self) -> GpuInfo:
        """Who it is. Raises NotSupportedError."""
        self._reader.wait(lambda: self._about is not None, START_S)
        if self._about is not None:
            return _info(self._about)
        if self._refusal is not None:
            raise NotSupportedError(f"NVML: {self._refusal['text']}", hint=INSTALL)
        raise NotSupportedError(f"NVML: {self._why_silent()}", hint=INSTALL)

    # --- what the child says, in a thread of its own --------------------------------------------------------

    def _hear(self, said: Mapping[str, Any]) -> None:
        self._heard_s = time.monotonic()
        if "run" not in said:
            self._about, self._refusal = said.get("about"), said.get("error")
        else:
            self._keep(said)

    def _keep(self, said: Mapping[str, Any]) -> None:
        if said["look"] is not None:
            self._look = said["look"]
            self._reasons.update(said["look"]["reasons"] or ())
        self.error = said["error"] or self.error
        self.step_s = said["step_s"]
        run = self.run
        if said["run"] == run.number:
            run.power += [(t_s, power_w) for t_s, power_w in said["power"]]
            run.edges += [(t_s, width_s, joules) for t_s, width_s, joules in said["edges"]]
            run.lost += said["lost"]
            run.lines += 1
            run.has_stopped = said["stopped"]

    # --- what is asked of it --------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Has the reader not ended?"""
        return self._reader.is_alive

    @property
    def is_silent(self) -> bool:
        """Has it said nothing for long, though it says something each half second?"""
        return time.monotonic() - self._heard_s > SILENT_S

    def _why_silent(self) -> str:
        if self._reader.nonsense:
            return f"its reader said what is no line of its protocol: {self._reader.nonsense}"
        if self._reader.is_alive:
            return "its reader is silent: a call hangs in the driver"
        return self._reader.last_words()

    def _say(self, word: str) -> None:
        try:
            self._reader.say(word)
        except BrokenPipeError as error:
            raise SensorError(f"NVML: {self._why_silent()}") from error

    def start(self) -> Run:
        """Begin a run; returns when the first read of it is here. Raises SensorError."""
        with self._changed:
            run = self.run = Run(self.run.number + 1)
        self._say(f"start {run.number}")
        if not self._reader.wait(lambda: run.lines > 0, SILENT_S):
            raise SensorError(f"NVML: {self._why_silent()}")
        return run

    def stop(self, run: Run) -> None:
        """End it; returns when all of it is here. Raises SensorError."""
        self._say("stop")
        if not self._reader.wait(lambda: run.has_stopped, SILENT_S):
            raise SensorError(f"NVML: {self._why_silent()}")

    def look(self) -> Mapping[str, Any]:
        """The last look, no older than a few seconds. Raises SensorError."""
        self._reader.wait(lambda: self._look is not None, SILENT_S)
        with self._changed:
            look = self._look
        if look is None or not self.is_alive or time.monotonic() - look["t_s"] > SILENT_S:
            is_gone = not self.is_alive or self.is_silent
            raise SensorError(f"NVML: {self._why_silent() if is_gone else self.error or 'no look at the GPU yet'}")
        return look

    def take_reasons(self) -> set[str]:
        """What has throttled since the last call."""
        with self._changed:
            taken, self._reasons = self._reasons, set(self._look["reasons"] or ()) if self._look is not None else set()
        return taken

    def close(self) -> None:
        """End the child; idempotent."""
        self._reader.close(SILENT_S)
