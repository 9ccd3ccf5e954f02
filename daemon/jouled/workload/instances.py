"""The instances of a variant, each a child process: they begin together, and where one fails all of them end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from jouled.errors import WorkloadDiedError
from jouled.workload.arrival import Share, shares
from jouled.workload.frames import Times
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions

_NS = 1e9


class Instance(Protocol):
    """One child. Each call raises WorkloadDiedError, WorkloadHungError or StuckError where it has failed."""

    @property
    def pid(self) -> int:
        """Of the process."""

    def begin(self, share: Share, at_ns: int) -> None:
        """Requests from `at_ns` on."""

    def taken(self) -> list[Times]:
        """What has come since the last call."""

    def ask_to_stop(self) -> None:
        """No more requests."""

    def stopped(self) -> None:
        """Wait for what is in flight."""

    def ask_to_end(self) -> None:
        """It is to end; does not raise."""

    def close(self) -> None:
        """End it; idempotent. Raises StuckError."""


class Instances:
    """Those of one variant; `batch` inferences a request. `lead_s`: so much later than `begin` the load begins."""

    def __init__(self, *, batch: int, lead_s: float = 0.0) -> None:
        self.children: tuple[Instance, ...] = ()
        self.runs = False
        self._batch = batch
        self._lead_ns = round(lead_s * _NS)

    def add(self, child: Instance) -> None:
        """One more."""
        self.children = (*self.children, child)

    def begin(self, arrival: Arrival) -> None:
        """Start the load, shared out among them; one that runs is stopped first: what is under way of it is its own."""
        self.pause()
        parts = shares(arrival, len(self.children))
        at_ns = time.monotonic_ns() + self._lead_ns
        with self.ended_on_error():
            for child, share in zip(self.children, parts, strict=True):
                child.begin(share, at_ns)
            self.runs = True

    def take(self) -> Completions:
        """What all of them have ended, in order of the end."""
        with self.ended_on_error():
            parts = [times for child in self.children for times in child.taken()]
        times = np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)
        times = times[np.argsort(times[:, 2], kind="stable")]
        arrival_s, start_s, end_s = (times[:, column] / _NS for column in range(3))
        return Completions(arrival_s, start_s, end_s, self._batch)

    def pause(self) -> None:
        """Stop the load and wait for what is in flight."""
        if not self.runs:
            return
        self.runs = False
        with self.ended_on_error():
            for child in self.children:
                child.ask_to_stop()
            for child in self.children:
                child.stopped()

    def check(self, workload: str) -> None:
        """Raise WorkloadDiedError where there are none (any more)."""
        if not self.children:
            raise WorkloadDiedError(f"{workload}: nothing is loaded")

    def close(self) -> None:
        """End them; idempotent. Raises StuckError."""
        children, self.children, self.runs = self.children, (), False
        for child in children:
            child.ask_to_end()
        with contextlib.ExitStack() as stack:  # each of them, also where another does not die
            for child in children:
                stack.callback(child.close)

    @contextlib.contextmanager
    def ended_on_error(self) -> Iterator[None]:
        """Where one fails all of them end, before the failure is told."""
        try:
            yield
        except BaseException:
            self.close()
            raise
