"""Several instances of a workload side by side: each its own process, all on one GPU.

A request has a part on the host, then one on the GPU. Host parts of different instances overlap with each other and
with the GPU's work; the GPU serves one request after the other, in the order in which they are ready. (A real one
slices time between processes; over a window the throughput is the same, and so is the mean latency of a full load.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from jouled.virtual.flow import Flow, RequestNoise, nth_arrival_s
from jouled.virtual.operation import Noise, Operation
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions

_IDLE, _HOST, _WAIT, _GPU = range(4)
_CHUNK = 1024


def start_flow(
    rng: np.random.Generator, noise: Noise, arrival: Arrival, *, batch: int, instances: int, start_s: float
) -> Flow | SharedFlow:
    """A load from now on."""
    if instances == 1:
        return Flow(rng, noise, arrival, batch=batch, start_s=start_s)
    return SharedFlow(rng, noise, arrival, batch=batch, instances=instances, start_s=start_s)


def advance_flow(flow: Flow | SharedFlow, to_s: float, operation: Operation, pace: float = 1.0) -> None:
    """Serve until `to_s` as `operation` does, every request `pace` times as long."""
    if isinstance(flow, SharedFlow):
        flow.advance(to_s, pace * operation.host_s, pace * operation.gpu_s)
    else:
        flow.advance(to_s, pace * operation.service_s)


class SharedFlow:
    """One load of several instances, which take turns with what arrives; event by event."""

    def __init__(
        self, rng: np.random.Generator, noise: Noise, arrival: Arrival, *, batch: int, instances: int, start_s: float
    ) -> None:
        self._factors = self._draw(RequestNoise(rng, noise))
        self._arrival = arrival
        self._batch = batch
        self._start_s = start_s
        self._now_s = start_s
        self._host_s = self._gpu_s = 0.0
        self._stage = [_IDLE] * instances
        self._next = list(range(instances))  # the number of each one's next request
        self._due_s = [self._arrives_s(number, start_s) for number in self._next]
        self._arrived_s = [0.0] * instances
        self._begun_s = [0.0] * instances
        self._factor = [1.0] * instances
        self._ready: deque[int] = deque()
        self._is_gpu_busy = False
        self._ended: list[tuple[float, float, float]] = []

    @staticmethod
    def _draw(noise: RequestNoise) -> Iterator[float]:
        while True:
            chunk = noise.peek(_CHUNK).tolist()
            noise.consume(_CHUNK)
            yield from chunk

    def _arrives_s(self, number: int, free_s: float) -> float:
        """When request `number` comes; back to back, when its instance is free."""
        came_s = nth_arrival_s(self._arrival, number)
        return free_s if came_s is None else self._start_s + came_s

    def advance(self, to_s: float, host_s: float, gpu_s: float) -> None:
        """Serve until `to_s`, a request's parts taking `host_s` and `gpu_s` times its noise.

        What was begun goes on at the new pace.
        """
        self._repace(host_s, gpu_s)
        due_s = self._due_s
        while (at_s := min(due_s)) <= to_s:
            which = due_s.index(at_s)
            stage = self._stage[which]
            if stage == _IDLE:
                self._begin(which, at_s)
            elif stage == _HOST:
                self._stage[which], due_s[which] = _WAIT, math.inf
                self._ready.append(which)
                self._serve_next(at_s)
            else:
                self._end(which, at_s)
        self._now_s = to_s

    def _repace(self, host_s: float, gpu_s: float) -> None:
        for stage, before_s, now_s in ((_HOST, self._host_s, host_s), (_GPU, self._gpu_s, gpu_s)):
            if before_s in (0.0, now_s):
                continue
            for which, at in enumerate(self._stage):
                if at == stage:
                    self._due_s[which] = self._now_s + (self._due_s[which] - self._now_s) * now_s / before_s
        self._host_s, self._gpu_s = host_s, gpu_s

    def _begin(self, which: int, at_s: float) -> None:
        arrived_s = self._arrives_s(self._next[which], at_s)
        self._arrived_s[which], self._begun_s[which] = arrived_s, at_s
        self._factor[which] = next(self._factors)
        self._stage[which], self._due_s[which] = _HOST, at_s + self._host_s * self._factor[which]

    def _serve_next(self, at_s: float) -> None:
        if self._is_gpu_busy or not self._ready:
            return
        which = self._ready.popleft()
        self._is_gpu_busy = True
        self._stage[which], self._due_s[which] = _GPU, at_s + self._gpu_s * self._factor[which]

    def _end(self, which: int, at_s: float) -> None:
        self._ended.append((self._arrived_s[which], self._begun_s[which], at_s))
        self._next[which] += len(self._stage)
        self._stage[which], self._due_s[which] = _IDLE, max(at_s, self._arrives_s(self._next[which], at_s))
        self._is_gpu_busy = False
        self._serve_next(at_s)

    def take(self) -> Completions:
        """What has ended since the last call, in the order of ending."""
        ended, self._ended = self._ended, []
        arrival_s, start_s, end_s = np.array(ended, dtype=np.float64).reshape(-1, 3).T
        return Completions(arrival_s, start_s, end_s, self._batch)
