"""When requests arrive, start and end: one server, a queue, noise on each request."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from jouled.errors import WorkloadError
from jouled.virtual.operation import Noise
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions

Floats = NDArray[np.float64]
_CHUNK = 8192


class RequestNoise:
    """A stream of factors on the service time: lognormal, some slow, slow ones clustered."""

    def __init__(self, rng: np.random.Generator, noise: Noise) -> None:
        self._rng = rng
        self._noise = noise
        self._ahead: Floats = np.empty(0)
        self._slow = False

    def _draw(self) -> Floats:
        noise = self._noise
        factors = np.exp(noise.request_sd * self._rng.standard_normal(_CHUNK) - noise.request_sd**2 / 2)
        fresh = self._rng.random(_CHUNK) >= noise.slow_clustering
        slow = self._rng.random(_CHUNK) < noise.slow_ratio
        # a request that is not fresh is what the last fresh one was
        last = np.maximum.accumulate(np.where(fresh, np.arange(_CHUNK), -1))
        state = np.where(last >= 0, slow[last], self._slow)
        self._slow = bool(state[-1])
        return np.where(state, noise.slow_factor * factors, factors)

    def peek(self, count: int) -> Floats:
        """The next `count` factors; they stay until `consume`."""
        while len(self._ahead) < count:
            self._ahead = np.concatenate([self._ahead, self._draw()])
        return self._ahead[:count]

    def consume(self, count: int) -> None:
        """Go on by `count`."""
        self._ahead = self._ahead[count:]


def arrivals_s(arrival: Arrival, first: int, count: int) -> Floats | None:
    """When requests `first` and on come, in seconds from the start of the load; None: back to back."""
    numbers = first + np.arange(count)
    if arrival.kind == "back_to_back":
        return None
    if arrival.kind == "rate" and arrival.rate_hz:
        return numbers / arrival.rate_hz
    if arrival.kind == "trace" and arrival.period_s:
        loops, places = np.divmod(numbers, len(arrival.times_s))
        return np.asarray(loops * arrival.period_s + np.asarray(arrival.times_s)[places], dtype=np.float64)
    raise WorkloadError(f"virtual workload: wanted arrival back_to_back, rate or trace, got {arrival}")


def nth_arrival_s(arrival: Arrival, number: int) -> float | None:
    """As `arrivals_s`, of one request."""
    if arrival.kind == "rate" and arrival.rate_hz:
        return number / arrival.rate_hz
    came_s = arrivals_s(arrival, number, 1)
    return None if came_s is None else float(came_s[0])


def arrived_by(arrival: Arrival, passed_s: float) -> int:
    """How many requests have come when `passed_s` have passed (arrival by rate or trace)."""
    if arrival.period_s is None:
        return int(passed_s * (arrival.rate_hz or 0.0)) + 1
    loops, into_s = divmod(passed_s, arrival.period_s)
    return int(loops) * len(arrival.times_s) + bisect_right(arrival.times_s, into_s)


class Flow:
    """One load, from its start: what has ended by the time to which it was advanced."""

    def __init__(self, rng: np.random.Generator, noise: Noise, arrival: Arrival, *, batch: int, start_s: float) -> None:
        self._is_back_to_back = arrivals_s(arrival, 0, 1) is None
        self._noise = RequestNoise(rng, noise)
        self._arrival = arrival
        self._batch = batch
        self._start_s = start_s
        self._now_s = start_s
        self._free_s = start_s
        self._count = 0  # requests that have ended
        self._begun_s: float | None = None  # the one in service, and how much of it is done
        self._done = 0.0
        self._ended: list[tuple[Floats, Floats, Floats]] = []

    def advance(self, to_s: float, service_s: float) -> None:
        """Serve until `to_s`, a request taking `service_s` times its noise; what was begun goes on at the new pace."""
        while self._serve(to_s, service_s):
            pass
        self._now_s = to_s

    def _serve(self, to_s: float, service_s: float) -> bool:
        """One vectorised step; is there more to serve?"""
        guess = max(self._free_s, self._now_s)
        count = max(0, int((to_s - guess) / service_s * 1.02)) + 16
        if not self._is_back_to_back:
            count = min(count, arrived_by(self._arrival, to_s - self._start_s) - self._count)
        if count <= 0:
            return False
        needs_s = service_s * self._noise.peek(count)
        arrivals, starts, ends = self._times(needs_s)
        ended = int(np.searchsorted(ends, to_s, side="right"))
        if ended:
            self._ended.append((arrivals[:ended], starts[:ended], ends[:ended]))
            self._free_s = float(ends[ended - 1])
            self._noise.consume(ended)
            self._count += ended
            self._begun_s, self._done = None, 0.0
        if ended == count:
            return True
        if starts[ended] < to_s:
            # the share done before a change of pace stays done
            before = self._done if self._begun_s is not None else 0.0
            since_s = max(self._now_s, float(starts[ended])) if self._begun_s is not None else float(starts[ended])
            self._begun_s = float(starts[ended])
            self._done = before + (to_s - since_s) / float(needs_s[ended])
        return False

    def _times(self, needs_s: Floats) -> tuple[Floats, Floats, Floats]:
        count = len(needs_s)
        came_s = arrivals_s(self._arrival, self._count, count)
        earliest = np.full(count, self._free_s) if came_s is None else self._start_s + came_s
        arrivals = earliest.copy()
        work = needs_s.copy()
        earliest[0] = max(earliest[0], self._free_s)
        if self._begun_s is not None:
            earliest[0] = self._now_s
            work[0] = (1.0 - self._done) * needs_s[0]
        total = np.cumsum(work)
        ends: Floats = total + np.maximum.accumulate(earliest - (total - work))
        starts: Floats = ends - work
        if self._begun_s is not None:
            starts[0] = self._begun_s
        return starts if self._is_back_to_back else arrivals, starts, ends

    def take(self) -> Completions:
        """What has ended since the last call."""
        parts, self._ended = self._ended, []
        if not parts:
            empty = np.empty(0)
            return Completions(empty, empty, empty, self._batch)
        arrival_s, start_s, end_s = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Completions(arrival_s, start_s, end_s, self._batch)
