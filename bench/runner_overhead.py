"""What the TensorRT runner spends on keeping and sending the three times of a request, without GPU: below 2 µs.

    python bench/runner_overhead.py [--requests 400000] [--repeats 7]

Prints one JSON object, in seconds a request: `keep_s` in the loop that calls CUDA, beyond an empty loop; `send_s` in
the thread that sends, to a process that reads; the least of all repeats (whatever else the machine does only adds).
Ends with 1 where their sum is above the limit. No GPU and no TensorRT are needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import ModuleType

RUNNER = Path(__file__).resolve().parents[1] / "daemon" / "jouled" / "workload" / "tensorrt_runner.py"
MOST_S = 2e-6


def load() -> ModuleType:
    """The runner's functions; it is one file that nobody imports."""
    spec = importlib.util.spec_from_file_location("tensorrt_runner", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def empty_s(requests: int) -> float:
    """A loop that only makes requests, seconds in all."""
    request, commands = iter(range(requests)).__next__, deque[object]()
    begun_s = time.perf_counter()
    with suppress(StopIteration):
        while not commands:
            request()
    return time.perf_counter() - begun_s


def keep_s(runner: ModuleType, outbox: object, requests: int) -> float:
    """The runner's own loop over requests that do nothing, seconds in all."""
    request = iter(range(requests)).__next__
    begun_s = time.perf_counter()
    with suppress(StopIteration):
        runner.back_to_back(request, outbox, deque())
    return time.perf_counter() - begun_s


def measure(runner: ModuleType, descriptor: int, requests: int) -> tuple[float, float]:
    """(keep, send) in seconds a request."""
    outbox = runner.Outbox(runner.Wire(descriptor))
    kept_s = keep_s(runner, outbox, requests) - empty_s(requests)
    assert len(outbox.done) == requests
    begun_s = time.perf_counter()
    outbox.flush()
    sent_s = time.perf_counter() - begun_s
    assert outbox.sent == requests
    return kept_s / requests, sent_s / requests


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    runner = load()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        found = [measure(runner, reader.stdin.fileno(), given.requests) for _ in range(given.repeats)]
        reader.stdin.close()
    keep, send = min(pair[0] for pair in found), min(pair[1] for pair in found)
    figures = {"python": sys.version.split()[0], "machine": os.uname().machine, "requests": given.requests}
    print(json.dumps({**figures, "keep_s": keep, "send_s": send, "limit_s": MOST_S}))
    return 0 if keep + send <= MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
