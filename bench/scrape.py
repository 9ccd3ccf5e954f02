"""What a scrape takes, and whether many leave anything behind: a real daemon on an idle virtual board.

    python -m bench.scrape [--scrapes 100000] [--spaced 60]

Back to back on one connection, as Prometheus keeps it; then some that come more than a second apart, which read the
sensors anew. Prints percentiles beside the limit and the daemon's memory before and after; asserts nothing.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cost import Cost, cost
from bench.idle import daemon

MOST_P99_S = 0.005
WARM_UP = 500  # what is allocated once is no growth
_SPACE_S = 1.1  # more than the daemon's sensors are kept for


class Scraper:
    """One connection to the metrics."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.length_bytes = 0

    def scrape(self) -> float:
        """Seconds from the request to the last byte. Raises OSError, HTTPException."""
        begun_s = time.perf_counter()
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read()
        took_s = time.perf_counter() - begun_s
        if b"\njouled_build_info" not in text:
            raise SystemExit(f"these are no metrics of jouled: {text[:200]!r}")
        self.length_bytes = len(text)
        return took_s

    def close(self) -> None:
        self._connection.close()


def back_to_back(port: int, count: int) -> list[float]:
    """Seconds of each."""
    scraper = Scraper(port)
    try:
        return [scraper.scrape() for _ in range(count)]
    finally:
        scraper.close()


def spaced(port: int, count: int) -> list[float]:
    """Seconds of each, with a pause before it after which the sensors are read anew."""
    scraper = Scraper(port)
    took_s = []
    try:
        for _ in range(count):
            time.sleep(_SPACE_S)
            took_s.append(scraper.scrape())
    finally:
        scraper.close()
    return took_s


def percentile(took_s: Sequence[float], share: float) -> float:
    """The smallest that so many are not above."""
    return sorted(took_s)[min(len(took_s) - 1, int(share * len(took_s)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=100_000, help="back to back (default 100,000)")
    parser.add_argument("--spaced", type=int, default=60, help="more than a second apart (default 60)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, daemon(Path(name)) as (pid, port):
        back_to_back(port, WARM_UP)
        load, before, begun_s = os.getloadavg()[0], cost([pid]), time.monotonic()
        took_s = back_to_back(port, given.scrapes)
        elapsed_s, after = time.monotonic() - begun_s, cost([pid])
        apart_s = spaced(port, given.spaced)
        print(f"{os.cpu_count()} cores, load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")
    show(f"{len(took_s)} scrapes in {elapsed_s:.0f} s", took_s)
    show(f"{len(apart_s)} that read the sensors", apart_s)
    _show_cost(before, after, len(took_s))
    return 0


def show(what: str, took_s: Sequence[float]) -> None:
    ms = [1000 * value for value in (percentile(took_s, 0.5), percentile(took_s, 0.99), max(took_s))]
    print(f"{what}: median {ms[0]:.2f} ms, p99 {ms[1]:.2f} ms (limit {1000 * MOST_P99_S:g}), longest {ms[2]:.2f} ms")


def _show_cost(before: Cost, after: Cost, count: int) -> None:
    each_ms = 1000 * (after.cpu_s - before.cpu_s) / count
    print(f"  RSS  {before.resident_mib:.1f} MiB before, {after.resident_mib:.1f} after")
    print(f"  CPU  {each_ms:.2f} ms a scrape")


if __name__ == "__main__":
    sys.exit(main())
