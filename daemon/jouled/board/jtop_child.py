"""Asks jtop's service for what it reads, in a process of its own: one JSON object a line, until standard input ends.

jetson-stats is under the AGPL, so nothing of jouled imports it but this program, which imports nothing of jouled: any
Python that has it runs it. First comes {"about": …} or {"error": …}, then a line for each set of readings:

    {"t_s": 12.5, "age_s": 0.04, "rails": {"VDD_IN": {"mw": 5000, "mv": 5000, "ma": 1000}}, "celsius": {"cpu": 45.0},
     "cpu_khz": 729600, "gpu_khz": 306000, "mode": "15W"}

`age_s` counts from when the service began to read. Where the service stands still the client gives the same readings
over and over; they are told once, then {"stale_s": seconds since the last new ones}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

STALE_INTERVALS = 3.0


def say(line: dict[str, Any]) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def end_with_parent() -> None:
    """When nobody holds the other end of standard input any more, nobody wants the readings."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def rails_of(power: dict[str, Any]) -> dict[str, Any]:
    """Every rail that was read. jtop takes a board's total out of its list and puts it beside it."""
    rails = dict(power.get("rail") or {})
    total = power.get("tot") or {}
    if "name" in total:
        rails[total["name"]] = total
    return {name: quantities(rail) for name, rail in rails.items() if rail.get("online", True)}


def quantities(rail: dict[str, Any]) -> dict[str, float]:
    """What there is of power, voltage and current, in jtop's milli-units."""
    named = (("mw", "power"), ("mv", "volt"), ("ma", "curr"))
    return {name: rail[theirs] for name, theirs in named if isinstance(rail.get(theirs), (int, float))}


def celsius(temperatures: dict[str, Any]) -> dict[str, float]:
    """Zones that are on."""
    return {name: zone["temp"] for name, zone in temperatures.items() if zone.get("online")}


def clock_khz(units: Iterable[dict[str, Any]]) -> int | None:
    """The fastest of some that are on, None where none tells it."""
    return max((unit["freq"]["cur"] for unit in units if "cur" in (unit.get("freq") or {})), default=None)


def readings(board: Any) -> dict[str, Any]:
    """What the service has read last."""
    mode = board.nvpmodel
    return {
        "rails": rails_of(board.power),
        "celsius": celsius(board.temperature),
        "cpu_khz": clock_khz(board.cpu["cpu"]),
        "gpu_khz": clock_khz(board.gpu.values()),
        "mode": None if mode is None else mode.name,
    }


def follow(board: Any) -> None:
    """Tell what is new, for as long as the client goes on. Raises what it raises."""
    stamp, new_s = None, time.monotonic()
    while board.ok():
        now_s = time.monotonic()
        uptime_s = board.uptime.total_seconds()  # taken when the service begins to read
        if uptime_s != stamp:
            stamp, new_s = uptime_s, now_s
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - uptime_s
            say({"t_s": now_s, "age_s": round(age_s, 3), **readings(board)})
        elif now_s - new_s > STALE_INTERVALS * board.interval:
            say({"stale_s": round(now_s - new_s, 1)})


def about(board: Any, version: str) -> dict[str, Any]:
    """Who answers."""
    return {"version": version, "interval_s": board.interval, "rails": sorted(readings(board)["rails"])}


def main(interval_s: float) -> int:
    """1 with an `error` line where there is nothing to follow, or no more."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        from jtop import __version__, jtop
    except ImportError as error:
        say({"error": f"this Python has no jtop: {error}"})
        return 1
    try:
        with jtop(interval=interval_s) as board:
            say({"about": about(board, __version__)})
            follow(board)
        say({"error": "its service gives nothing any more"})
    except Exception as error:  # noqa: BLE001 - whatever it is called there, the parent is told in words
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())})
    return 1


if __name__ == "__main__":
    code = main(float(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # its threads may hang on a service that is gone
