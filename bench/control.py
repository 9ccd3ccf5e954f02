"""A real daemon on a virtual board, asked by many: how long status takes beside slow clients, and what it grows by.

    python bench/control.py [--requests 10000] [--malformed 1000] [--slow 200]

Prints one JSON object; ends with 1 where a limit is broken: no 5xx, status within 100 ms (p99), at most 5 MiB more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.face import connect_to  # noqa: E402
from tests.wire import exchange, malformed, random_request, statuses  # noqa: E402

MOST_P99_S = 0.1
MOST_GROWTH_BYTES = 5 << 20
_ASK = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_START_S = 30.0


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[int, Path]]:
    """A foreground daemon; its pid and socket."""
    path = folder / "control.sock"
    options = ["--virtual", "agx-orin-64gb", "--state-dir", str(folder / "state"), "--socket", str(path)]
    argv = [sys.executable, "-m", "jouled.cli", "run", *options, "--metrics-listen", ""]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as child:
        try:
            end_s = time.monotonic() + _START_S
            while not path.exists():
                if time.monotonic() > end_s or child.poll() is not None:
                    raise SystemExit("the daemon did not start")
                time.sleep(0.05)
            yield child.pid, path
        finally:
            child.send_signal(signal.SIGTERM)


def resident_bytes(pid: int) -> int:
    """What the daemon holds in memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def send(path: Path, data: bytes, timeout_s: float = 30.0) -> list[int]:
    """The statuses that come back."""
    with connect_to(path, timeout_s) as client:
        return statuses(exchange(client, data))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--malformed", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name, daemon(Path(name)) as (pid, path):
        found: dict[int, int] = {}
        for _ in range(200):
            send(path, _ASK)
        before = resident_bytes(pid)
        slow = [connect_to(path, 30.0) for _ in range(given.slow)]
        took_s = []
        for number in range(given.requests):
            began_s = time.perf_counter()
            assert send(path, _ASK) == [200]
            took_s.append(time.perf_counter() - began_s)
            if number % 5 == 0:
                slow[number % len(slow)].close()
                slow[number % len(slow)] = connect_to(path, 30.0)
        for client in slow:
            client.close()
        sent = [(malformed(rng), 0.05) for _ in range(given.malformed)]
        sent += [(_safe(rng), 30.0) for _ in range(given.requests)]
        for data, timeout_s in sent:
            try:
                answers = send(path, data, timeout_s)
            except TimeoutError:  # cut short: the daemon waits for the rest, we do not
                answers = []
            for status in answers:
                found[status] = found.get(status, 0) + 1
        growth = resident_bytes(pid) - before
    took_s.sort()
    p99_s = took_s[int(len(took_s) * 0.99)]
    report = {
        "requests": given.requests,
        "status_p50_s": round(took_s[len(took_s) // 2], 5),
        "status_p99_s": round(p99_s, 5),
        "resident_bytes": before,
        "growth_bytes": growth,
        "statuses": dict(sorted(found.items())),
    }
    print(json.dumps(report))
    is_good = p99_s <= MOST_P99_S and growth <= MOST_GROWTH_BYTES and not any(status >= 500 for status in found)
    return 0 if is_good else 1


def _safe(rng: random.Random) -> bytes:
    """A random request that begins no job."""
    while True:
        request = random_request(rng)
        if "retune" not in request.path:
            return request.encode()


if __name__ == "__main__":
    sys.exit(main())
