"""The virtual board's workload behind the runner protocol."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from jouled.errors import WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.virtual.clock import SimClock
from jouled.virtual.kernel import Kernel
from jouled.virtual.operation import Plant
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

_SILENCE_S = 30.0


class Machine(Protocol):
    """What a runner needs of the machine that it runs on."""

    plant: Plant
    kernel: Kernel
    clock: SimClock

    @property
    def is_loaded(self) -> bool:
        """Does a load run?"""

    def check_alive(self) -> None:
        """Raises where the board has reset."""

    def start_load(self, variant: Variant, arrival: Arrival) -> None:
        """Requests from now on."""

    def stop_load(self) -> None:
        """No more requests."""

    def take(self) -> Completions:
        """What the load has ended since the last call."""


class VirtualRunner:
    """Runs the machine's workload. Faults: `workload_dies_s`, `workload_hangs_s`: seconds after the load began."""

    def __init__(self, machine: Machine, arrival: Arrival) -> None:
        self.arrival = arrival
        self._machine = machine
        self._variant: Variant | None = None
        self._began_s = 0.0

    def load(self, variant: Variant) -> Loaded:
        """Nothing takes time here."""
        self._machine.check_alive()
        self._variant = variant
        plant = self._machine.plant
        return Loaded(f"virtual workload {plant.workload}", plant.inference_name)

    def begin(self) -> None:
        """Start the load. Raises WorkloadError before `load`."""
        if self._variant is None:
            raise WorkloadError("virtual workload: begin() before load()")
        self._began_s = self._machine.clock.monotonic_s()
        self._machine.start_load(self._variant, self.arrival)

    def take(self) -> Completions:
        """What has ended; nothing after `pause`. Raises WorkloadDiedError, WorkloadHungError as its switches say."""
        if self._variant is None:
            raise WorkloadError("virtual workload: take() before load()")
        if not self._machine.is_loaded:
            empty = np.empty(0)
            return Completions(empty, empty, empty, self._variant.batch)
        faults = self._machine.kernel.faults.all()
        ran_s = self._machine.clock.monotonic_s() - self._began_s
        if ran_s >= faults.get("workload_dies_s", float("inf")):
            self._machine.stop_load()
            raise WorkloadDiedError("virtual workload: ended by signal 11")
        done = self._machine.take()
        hung_s = faults.get("workload_hangs_s", float("inf"))
        if ran_s < hung_s:
            return done
        if ran_s >= hung_s + _SILENCE_S:
            raise WorkloadHungError(f"virtual workload: nothing ended for {_SILENCE_S:.0f} s")
        kept = done.end_s < self._began_s + hung_s
        return Completions(done.arrival_s[kept], done.start_s[kept], done.end_s[kept], done.batch)

    def pause(self) -> None:
        """Stop the load."""
        self._machine.stop_load()

    def close(self) -> None:
        """Stop the load, forget what was loaded."""
        self._machine.stop_load()
        self._variant = None
