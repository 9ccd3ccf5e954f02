"""What it costs to read a board's rails at 5 Hz as a job does, beside what jtop's service costs at the same pace.

    python -m bench.meter [--seconds 120] [--board NAME] [--jtop]

The rails are files of a virtual board, so what is counted is the reading alone: on a board each value is a transfer on
the I²C bus, during which the kernel waits, for jouled as for jtop. Prints figures beside the limit; asserts nothing.
With --jtop (as root) the real service of jetson-stats, from a venv of its own below build/, serves one client.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.cost import Cost, cost, lasting
from bench.jtop_peer import ROOT, VENV, Peer, jtop_service, make_venv, why_not

from jouled.board.clock import SystemClock
from jouled.board.rails import find_meter
from jouled.board.sysfs import Sysfs
from jouled.virtual.machine import VirtualMachine

RATE_HZ = 5.0
MOST_CPU_RATIO = 0.003
_CHILD = ROOT / "daemon" / "jouled" / "board" / "jtop_child.py"
_SETTLE_S = 5.0


def sample(root: Path, rails: list[str], duration_s: float) -> None:
    """What a job does in a window, in a process that does nothing else: prints its CPU seconds and its samples."""
    meter = find_meter(Sysfs(root), rails)
    sampling = meter.sampling(SystemClock(), rate_hz=RATE_HZ)
    sampling.start()
    sampling.trace()  # imports numpy: no part of the sampling
    before_s, begun_s = time.process_time(), time.monotonic()
    time.sleep(duration_s)
    cpu_s, took_s = time.process_time() - before_s, time.monotonic() - begun_s
    trace = sampling.stop()
    print(cpu_s, took_s, trace.t_s.size, trace.lost)


def ratio(before: Cost, after: Cost, took_s: float) -> tuple[float, float]:
    """Cores of some processes, and of children of theirs that have ended."""
    return (after.cpu_s - before.cpu_s) / took_s, (after.children_cpu_s - before.children_cpu_s) / took_s


def start_client(peer: Peer, stack: ExitStack) -> tuple[int, Path]:
    """jouled's own client of jtop, at the same pace; its pid and what it has said."""
    said = peer.work / "client.log"
    argv = peer.inside(str(VENV / "bin" / "python"), "-I", str(_CHILD), str(1 / RATE_HZ))
    client = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=stack.enter_context(said.open("wb")))
    stack.enter_context(client)
    assert client.stdin is not None
    stack.callback(client.stdin.close)
    while b'"rails":{' not in said.read_bytes():
        if client.poll() is not None:
            raise SystemExit(f"jtop's client did not start: {said.read_text()}\n{peer.log}")
        time.sleep(0.1)
    return client.pid, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to sample (default 120)")
    parser.add_argument("--board", default="agx-orin-64gb", help="a virtual board (default agx-orin-64gb)")
    parser.add_argument("--jtop", action="store_true", help="run jtop beside it (root, overlayfs)")
    parser.add_argument("--sample", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sample:
        sample(Path(given.sample[0]), given.sample[1:], given.seconds)
        return 0
    if given.jtop and (why := why_not()) is not None:
        parser.error(f"--jtop {why}")
    version = make_venv() if given.jtop else ""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        machine = VirtualMachine(Path(name) / "board", board=given.board)
        machine.close()  # its sensors lie in their files now
        peer = stack.enter_context(jtop_service(Path(name) / "jtop", machine.root)) if given.jtop else None
        client = start_client(peer, stack) if peer is not None else None
        time.sleep(_SETTLE_S if peer is not None else 0.0)
        groups = [] if peer is None or client is None else [lasting(peer.pid), [client[0]]]
        begun_s, before = time.monotonic(), [cost(pids) for pids in groups]
        lines = 0 if client is None else client[1].read_bytes().count(b"\n")
        argv = [sys.executable, "-m", "bench.meter", "--seconds", str(given.seconds), "--sample", str(machine.root)]
        told = subprocess.check_output([*argv, *machine.spec.total_rails], text=True, cwd=ROOT).split()
        after, took_s = [cost(pids) for pids in groups], time.monotonic() - begun_s
        lines = 0 if client is None else client[1].read_bytes().count(b"\n") - lines
    cpu_s, sampled_s, samples, lost = float(told[0]), float(told[1]), int(told[2]), int(told[3])
    print(f"{given.board}, {sampled_s:.0f} s; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}")
    print(f"jouled's sampler: {samples} samples of {len(machine.spec.total_rails)} rails, {lost} lost")
    print(f"  CPU  {100 * cpu_s / sampled_s:7.3f} % of a core  limit {100 * MOST_CPU_RATIO:g}")
    if peer is not None:
        service, client_cost = (ratio(*each, took_s) for each in zip(before, after, strict=True))
        print(f"jtop {version}: {lines} sets of readings in {took_s:.0f} s, asked for one each {1 / RATE_HZ:g} s")
        print(f"  CPU  {100 * service[0]:7.3f} % of a core, the service ({len(groups[0])} processes)")
        print(f"       {100 * service[1]:7.3f} % more in nvpmodel -q, here a Python program")
        print(f"       {100 * client_cost[0]:7.3f} % the client that jouled would start")
    return 0


if __name__ == "__main__":
    sys.exit(main())
