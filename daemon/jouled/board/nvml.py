"""Energy, power and health of one GPU by NVML, read by a process of its own (nvml_child), which knows how to."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from jouled.board.clock import Clock
from jouled.board.clocks import ClockReading
from jouled.board.gpuload import GpuClient
from jouled.board.nvml_link import INSTALL, Link, Run
from jouled.board.process import Processes, Spawned
from jouled.board.thermal import ThermalState
from jouled.errors import NotSupportedError, SensorError

if TYPE_CHECKING:
    from jouletune.trace import EnergyCounter, PowerTrace

log = logging.getLogger(__name__)

_CHILD = "import sys; sys.path.append(sys.argv[1]); from jouled.board.nvml_child import main; "
_CHILD += "sys.exit(main(int(sys.argv[2]), sys.argv[3]))"
COVERAGE = "GPU board, as NVML counts it"
_PERIOD_S = 0.125  # four of them are a batch of 0.5 s (MEASUREMENT, "Errors")
_AVERAGE_S = 1.0  # of PowerUsage, where there is no instant field
_WIDE, _FINE_S = 3.0, 0.01
_PID_NAMESPACE = "/proc/self/ns/pid"
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same on every Linux


def child_argv(device: int, pynvml: Path) -> list[str]:
    """Isolated, as a root process must be: nothing is imported from where it happens to stand."""
    return [sys.executable, "-I", "-c", _CHILD, str(Path(__file__).parents[2]), str(device), str(pynvml)]


def _start(processes: Processes, device: int) -> Spawned:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise NotSupportedError("NVML: there is no Python module pynvml here", hint=INSTALL)
    return processes.spawn(child_argv(device, Path(found.origin)))


# --- what a job uses ----------------------------------------------------------------------------------------


class NvmlObserver:
    """What NVML tells beside power."""

    # The power limit is the operator's and stands for good: what a variant yields under it is what it yields.
    by_design = frozenset({"sw_power_cap"})
    counts_over_current = False

    def __init__(self, link: Callable[[], Link]) -> None:
        self._link = link

    def thermal(self) -> ThermalState:
        temperature_c = self._link().look()["temperature_c"]
        return ThermalState(
            zones_c={} if temperature_c is None else {"gpu": float(temperature_c)},
            cooling=dict.fromkeys(sorted(self._link().take_reasons()), 1),
            over_current={},
            alarms=(),
        )

    def clocks(self) -> ClockReading:
        look = self._link().look()
        return ClockReading(None, _hz(look["sm_mhz"]), _hz(look["memory_mhz"]))

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        """Nobody where NVML's pids are those of another namespace, and mean nothing here.

        They are ours where one of `own` is listed; where there is none yet, if the namespace is the machine's first.
        """
        pids = self._link().look()["pids"]
        if pids is None or not (set(own) & set(pids) if own else _is_first_namespace()):
            return ()
        return tuple(GpuClient(_name(pid), pid) for pid in pids if pid not in own)

    def load(self) -> float | None:
        load: float | None = self._link().look()["load"]
        return load


def _hz(clock_mhz: int | None) -> int | None:
    return None if clock_mhz is None else clock_mhz * 1_000_000


def _is_first_namespace() -> bool:
    return os.readlink(_PID_NAMESPACE) == _FIRST_NAMESPACE


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "unknown"


class NvmlMeter:
    """One GPU as the total rail."""

    coverage = COVERAGE

    def __init__(self, start: Callable[[], Spawned]) -> None:
        self._start = start
        self._relied_on = False
        self._link = self._open()
        self.rail = f"nvml:GPU{self.gpu.index}"
        self.averaging_s = _PERIOD_S if self.gpu.power == "instant" else _AVERAGE_S
        self.observer = NvmlObserver(lambda: self._link if self._relied_on else self.linked())

    def _open(self) -> Link:
        link = Link(self._start())
        try:
            self.gpu = link.about()
        except NotSupportedError:
            link.close()
            raise
        return link

    def relied_on(self, *, now: bool) -> None:
        """Does a sampling rely on the reader? It is told of its end then, and not given another one."""
        self._relied_on = now

    def linked(self) -> Link:
        """The reader, begun anew where it has ended or hangs. Raises SensorError."""
        if not self._link.is_alive or self._link.is_silent:
            log.warning("NVML's reader has ended or hangs, and is started again")
            self._link.close()
            try:
                self._link = self._open()
            except NotSupportedError as error:
                raise SensorError(str(error)) from error
        return self._link

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> NvmlSampling:
        """The times are those of the system's clock, the pace is the counter's: neither argument changes them."""
        log.debug("NVML is read at its own pace, not at %g Hz", rate_hz)
        return NvmlSampling(self, external_w=external_w)

    def close(self) -> None:
        """End the reader; idempotent."""
        self._link.close()


class NvmlSampling:
    """Reads between `start` and `stop`."""

    def __init__(self, meter: NvmlMeter, *, external_w: float) -> None:
        self._meter = meter
        self._external_w = external_w
        self._link: Link | None = None
        self._run = Run(0)
        self.last_error: SensorError | None = None

    def start(self) -> None:
        """Begin anew; returns with the first reading. Raises SensorError."""
        if self._link is not None:
            raise RuntimeError("the sampling runs already")
        link = self._meter.linked()
        self._run = link.start()
        self._link = link
        self._meter.relied_on(now=True)

    @property
    def power_w(self) -> float | None:
        """The last reading, `external_w` included; None before the first."""
        return self._run.power[-1][1] + self._external_w if self._run.power else None

    def trace(self) -> PowerTrace:
        """What was read so far."""
        import numpy as np

        from jouletune.trace import PowerTrace, RailTrace

        run = self._run
        power = np.array(run.power[:], dtype=np.float64).reshape(-1, 2)
        watts = RailTrace(self._meter.rail, np.ones(len(power)), power[:, 1].copy(), 0.0, 0.001)
        return PowerTrace(
            t_s=power[:, 0].copy(),
            rails=(watts,),
            averaging_s=self._meter.averaging_s,
            period_s=_PERIOD_S,
            external_w=self._external_w,
            lost=run.lost,
            counter=self._counter(),
        )

    def _counter(self) -> EnergyCounter | None:
        """None where the counter has never moved. An edge that was nearly missed is left out: its neighbours do."""
        import numpy as np

        from jouletune.trace import EnergyCounter

        edges = np.array(self._run.edges[:], dtype=np.float64).reshape(-1, 3)
        if not len(edges) and (self._link is None or self._link.step_s is None):
            return None
        kept = edges[edges[:, 1] <= max(_WIDE * np.median(edges[:, 1]), _FINE_S)] if len(edges) else edges
        return EnergyCounter(t_s=kept[:, 0].copy(), joules=kept[:, 2].copy(), width_s=kept[:, 1].copy())

    def stop(self) -> PowerTrace:
        """End it and give what was read; what was not to be had is in `last_error`."""
        link = self._link
        if link is not None:
            try:
                link.stop(self._run)
            except SensorError as error:
                self.last_error = error
                log.warning("%s", error)
            self._meter.relied_on(now=False)
        trace = self.trace()
        self._link = None
        return trace


def open_nvml(processes: Processes, *, device: int = 0) -> NvmlMeter:
    """The meter of one GPU by NVML's index. Raises NotSupportedError with what to install."""
    return NvmlMeter(lambda: _start(processes, device))
