"""What a daemon costs that has nothing to do: a real one on an idle virtual board, scraped as Prometheus would.

    python -m bench.idle [--seconds 600] [--jtop]

Prints memory and CPU of the daemon's process alone, beside the limits for a board; asserts nothing. With --jtop (as
root) the jtop service of jetson-stats, from a venv of its own below build/, serves one client on the same board.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from bench.cost import Cost, cost, lasting
from bench.jtop_peer import jtop_service, make_venv

from jouled.config import load

ROOT = Path(__file__).resolve().parents[1]
MOST_RESIDENT_MIB = 45.0
MOST_CPU_RATIO = 0.0015
SCRAPE_EVERY_S = 15.0
_START_S = 60.0
_SETTLE_S = 15.0  # imports and the first look are no idling

_CLIENT = r"""
import pathlib, sys
from jtop import jtop
target = pathlib.Path(sys.argv[1])
with jtop(interval=1.0) as board:
    updates = 0
    while board.ok():
        updates += 1
        seen = updates, board.nvpmodel, len(board.cpu["cpu"]), sorted(board.power["rail"])
        target.with_suffix(".new").write_text(" ".join(map(str, seen)))
        target.with_suffix(".new").rename(target)
"""


def scrape(port: int) -> str:
    """The metrics. Raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return bytes(answer.read()).decode()


def value(metrics: str, name: str) -> float:
    """Of a series that must be there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{name} is not among the metrics: the daemon is not as it should be")
    return float(found[1])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


# --- the two ------------------------------------------------------------------------------------------------


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[int, int]]:
    """A foreground daemon that answers; its pid and the port of its metrics."""
    port, said = free_port(), folder / "daemon.log"
    board = ["--virtual", "agx-orin-64gb", "--state-dir", str(folder / "state")]
    making = [sys.executable, "-m", "jouled.cli", "modes", *board]  # what makes a virtual board is no part of a daemon
    subprocess.run(making, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    argv = [sys.executable, "-m", "jouled.cli", "run", *board, "--metrics-listen", f"127.0.0.1:{port}"]
    environ = {**os.environ, **unit_environment()}
    with said.open("w") as log, subprocess.Popen(argv, cwd=ROOT, stderr=log, env=environ) as child:
        try:
            _wait_until(lambda: _answers(port), child, "the daemon", said)
            yield child.pid, port
        finally:
            child.send_signal(signal.SIGTERM)


def unit_environment() -> dict[str, str]:
    """What the daemon's unit sets."""
    lines = (ROOT / "units" / "jouled.service").read_text().splitlines()
    found = [line.partition("=")[2].split() for line in lines if line.startswith("Environment=")]
    return dict(pair.split("=", 1) for pairs in found for pair in pairs)


def _answers(port: int) -> bool:
    try:
        return bool(scrape(port))
    except OSError:
        return False


def _wait_until(is_there: Callable[[], bool], child: subprocess.Popen[bytes], what: str, said: Path) -> None:
    end_s = time.monotonic() + _START_S
    while not is_there():
        if time.monotonic() > end_s or child.poll() is not None:
            raise SystemExit(f"{what} did not start:\n{said.read_text()}")
        time.sleep(0.2)


@contextmanager
def jtop(folder: Path, board: Path) -> Iterator[tuple[int, Path]]:
    """The service with one client at 1 s; its pid and the file that counts the client's updates."""
    with jtop_service(folder / "jtop", board) as peer:
        updates, said = folder / "updates", folder / "client.log"
        with (
            said.open("w") as log,
            subprocess.Popen(peer.client(_CLIENT, str(updates)), stdout=log, stderr=log) as client,
        ):
            try:
                _wait_until(updates.exists, client, "jtop's client", said)
                yield peer.pid, updates
            finally:
                client.kill()


# --- the whole ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to watch (default 600)")
    parser.add_argument("--jtop", action="store_true", help="watch jtop beside it (root, overlayfs)")
    given = parser.parse_args()
    if given.jtop and os.geteuid() != 0:
        parser.error("--jtop mounts things in a namespace of its own: run it as root")
    version = make_venv() if given.jtop else ""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        pid, port = stack.enter_context(daemon(Path(name)))
        peer = stack.enter_context(jtop(Path(name), Path(name) / "state" / "board")) if given.jtop else None
        time.sleep(_SETTLE_S)
        groups = [[pid], *([lasting(peer[0])] if peer else [])]
        load_before, updates_before = os.getloadavg()[0], _updates(peer)
        answers = [scrape(port)]
        begun_s, before = time.monotonic(), [cost(pids) for pids in groups]
        answers += watch(port, begun_s + given.seconds)
        after, took_s = [cost(pids) for pids in groups], time.monotonic() - begun_s
        updates = _updates(peer) - updates_before
    seen = f"{len(answers) - 1} scrapes, {verifies(answers)} verifies"
    state = re.findall(r'^jouled_state\{state="(\w+)"\} 1\.0$', answers[-1], re.MULTILINE)
    print(f"{took_s:.1f} s on an idle virtual board; {os.cpu_count()} cores, load average", end=" ")
    print(f"{load_before:.2f} before, {os.getloadavg()[0]:.2f} after")
    print(f"jouled, state {' '.join(state)}: {seen}")
    show(before[0], after[0], took_s, f"limit {MOST_RESIDENT_MIB:g}", f"limit {100 * MOST_CPU_RATIO:g}")
    if peer:
        print(f"jtop {version}, {len(groups[1])} processes: {updates} updates of one client at 1 s;", end=" ")
        print("its children are nvpmodel, here a Python program")
        show(before[1], after[1], took_s)
    return 0


def watch(port: int, until_s: float) -> list[str]:
    """What the scrapes gave until then, one each `SCRAPE_EVERY_S`."""
    begun_s, answers = time.monotonic(), list[str]()
    while (next_s := begun_s + SCRAPE_EVERY_S * (len(answers) + 1)) <= until_s + 0.5:
        time.sleep(max(0.0, next_s - time.monotonic()))
        answers.append(scrape(port))
    time.sleep(max(0.0, until_s - time.monotonic()))
    return answers


def verifies(answers: Sequence[str]) -> int:
    """From the first scrape to the last, by the stamps of the last verify and the interval between two."""
    every_s = load(None, {}).keep.verify_interval_s
    stamps_s = [value(each, "jouled_last_verify_timestamp_seconds") for each in answers]
    return sum(round((after - before) / every_s) for before, after in pairwise(stamps_s))


def show(before: Cost, after: Cost, took_s: float, *limits: str) -> None:
    """Two lines, and a third for children that have come and gone."""
    memory, cpu = limits or ("", "")
    cpu_percent = 100 * (after.cpu_s - before.cpu_s) / took_s
    children_percent = 100 * (after.children_cpu_s - before.children_cpu_s) / took_s
    shared_out = f"(shared pages shared out: {after.shared_out_mib:.1f})"
    print(f"  RSS  {after.resident_mib:7.1f} MiB  {shared_out}  {memory}".rstrip())
    print(f"  CPU  {cpu_percent:7.3f} % of a core  {cpu}".rstrip())
    if children_percent:
        print(f"       {children_percent:7.3f} % more in children that have ended")


def _updates(peer: tuple[int, Path] | None) -> int:
    return int(peer[1].read_text().split()[0]) if peer else 0


if __name__ == "__main__":
    sys.exit(main())
