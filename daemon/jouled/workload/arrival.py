"""When requests are due: an arrival shared out among instances, and the times that a runner must keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jouled.errors import WorkloadDiedError, WorkloadError
from jouled.workload.frames import Times
from jouled.workload.runner import Arrival
from jouled.workload.trace import dealt

_NS = 1e9
_MS = 1_000_000
_DUE_WITHIN_NS = _MS


@dataclass(frozen=True, slots=True)
class Share:
    """The requests of one instance. `offset_s`: how long after the start the first comes, at a rate."""

    arrival: Arrival
    offset_s: float = 0.0

    @property
    def is_back_to_back(self) -> bool:
        """Does each request wait for the one before?"""
        return self.arrival.kind == "back_to_back"

    def message(self) -> Mapping[str, Any]:
        """As a runner is told it."""
        arrival = self.arrival
        if arrival.kind == "rate":
            return {"kind": "rate", "rate_hz": arrival.rate_hz, "offset_s": self.offset_s}
        if arrival.kind == "trace":
            return {"kind": "trace", "times_s": list(arrival.times_s), "period_s": arrival.period_s}
        return {"kind": "back_to_back"}

    def due_s(self, first: int, count: int) -> NDArray[np.float64]:
        """When requests `first`… are due, in seconds after the start, shape (count,). Not for back to back."""
        k = np.arange(first, first + count, dtype=np.float64)
        arrival = self.arrival
        if arrival.kind == "rate":
            assert arrival.rate_hz is not None
            return np.asarray(self.offset_s + k / arrival.rate_hz)
        assert arrival.period_s is not None
        times_s = np.asarray(arrival.times_s)
        index = np.arange(first, first + count)
        return np.asarray((index // len(times_s)) * arrival.period_s + times_s[index % len(times_s)])

    def due_ns(self, at_ns: int, first: int, count: int) -> NDArray[np.int64]:
        """The same on the monotonic clock, for a load that starts at `at_ns`."""
        return np.asarray(at_ns + np.rint(self.due_s(first, count) * _NS).astype(np.int64))


def shares(arrival: Arrival, instances: int) -> tuple[Share, ...]:
    """What each of `instances` gets: they take turns, so that together they see `arrival`. Raises WorkloadError."""
    if arrival.kind == "back_to_back":
        return (Share(arrival),) * instances
    if arrival.kind == "rate" and arrival.rate_hz is not None and arrival.rate_hz > 0.0:
        each = Arrival("rate", arrival.rate_hz / instances)
        return tuple(Share(each, k / arrival.rate_hz) for k in range(instances))
    if arrival.kind == "trace" and arrival.times_s and arrival.period_s is not None:
        return tuple(Share(dealt(arrival, k, instances)) for k in range(instances))
    raise WorkloadError(f"arrival {arrival}: wanted back_to_back, rate with rate_hz, or trace with times")


class TimeCheck:
    """Holds the times that one runner reports for one load against what cannot be otherwise.

    Who hides queueing, counts what has not ended, or speaks of another load, is found out here.
    """

    def __init__(self, share: Share, at_ns: int) -> None:
        self._share = share
        self._at_ns = at_ns
        self._last_end_ns = at_ns
        self.count = 0

    def add(self, times: Times, now_ns: int) -> None:
        """The next requests, which have come at `now_ns`. Raises WorkloadDiedError that names the lie."""
        if not len(times):
            return
        arrival, start, end = times[:, 0], times[:, 1], times[:, 2]
        before = np.concatenate(([self._last_end_ns], end[:-1]))
        self._refuse(arrival < self._at_ns, arrival, self._at_ns, "arrived {} ms before the load began")
        self._refuse(start < arrival, start, arrival, "started {} ms before it arrived")
        self._refuse(end < start, end, start, "ended {} ms before it started")
        self._refuse(end < before, end, before, "ended {} ms before the one that was reported before it")
        self._refuse(end > now_ns, end, now_ns, "ends {} ms in the future")
        if not self._share.is_back_to_back:
            due = self._share.due_ns(self._at_ns, self.count, len(times))
            self._refuse(np.abs(arrival - due) > _DUE_WITHIN_NS, arrival, due, "was due {} ms from when it says")
        self._last_end_ns = int(end[-1])
        self.count += len(times)

    def _refuse(
        self, wrong: NDArray[np.bool_], told: NDArray[np.int64], wanted: NDArray[np.int64] | int, text: str
    ) -> None:
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        against = int(np.broadcast_to(np.asarray(wanted), told.shape)[row])
        off_ms = abs(int(told[row]) - against) / _MS
        raise WorkloadDiedError(
            f"lies about time: request {self.count + row} {text.format(f'{off_ms:.3f}')}", code="wrong_times"
        )
