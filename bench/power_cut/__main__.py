"""Cut the power of a machine with the service on it, again and again: is every boot after it right?

    sudo python -m bench.power_cut [--cuts 40] [--seed 0] [--work FOLDER] [--json] [--check]

A VM (qemu, no hardware virtualisation needed) boots a Debian with jouled as `jouled install` puts it there, on a
virtual board whose stock boot is a unit of its own. Its power goes (qemu is killed) at a random moment of a tune, an
apply, a restore, or at rest. After the next boot judge.py holds what is there against what was acknowledged before.
The first run in FOLDER makes the image (debootstrap, a few minutes); later ones take it and make the disk anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.power_cut.image import SOURCE, kernel_of, make_disk, make_root
from bench.power_cut.judge import ACTIVE_WITHIN_S, Boot, Memory, judge
from bench.power_cut.machine import Machine, NotHeardError

PLANS = ("tune", "apply", "restore", "idle")
BOOT_PATIENCE_S = 240.0
PATIENCE_S = 240.0
LONGEST_S = {"tune": 60.0, "apply": 6.0, "restore": 8.0, "idle": 6.0}


def main() -> int:
    options = _options().parse_args()
    if os.geteuid() != 0:
        print("bench.power_cut: makes a Debian with debootstrap, for which it must be root: sudo", file=sys.stderr)
        return 6
    for needed in ("qemu-system-x86_64", "debootstrap", "mkfs.ext4"):
        if shutil.which(needed) is None:
            print(f"{needed} is missing: apt-get install qemu-system-x86 debootstrap e2fsprogs", file=sys.stderr)
            return 1
    boots = list(run(options.work, options.cuts, options.seed, is_quiet=options.json))
    wrong = [boot for boot in boots if boot.wrong]
    if options.json:
        print(json.dumps([asdict(boot) for boot in boots]))
    else:
        print("\n".join(tally(boots, options.seed)))
    return 1 if options.check and (wrong or len(boots) < options.cuts) else 0


def run(work: Path, cuts: int, seed: int, *, is_quiet: bool) -> Iterator[Boot]:
    """Boot and cut; one `Boot` for each boot that follows a cut."""
    root, disk = work / "root", work / "disk.ext4"
    work.mkdir(parents=True, exist_ok=True)
    make_root(root, _wheel(work), SOURCE / "constraints.txt")
    make_disk(root, disk)
    kernel, initrd = kernel_of(root)
    rng, memory = random.Random(seed), Memory()
    for number in range(cuts + 1):
        plan = "tune" if number == 0 else PLANS[number % len(PLANS)]
        machine = Machine(kernel, initrd, disk, f"cut.plan={plan} cut.seed={rng.randrange(1 << 30)}")
        began = time.monotonic()
        machine.power_on()
        try:
            _boot(machine)
            boot = judge(number, memory, machine.heard) if number else None
            if number < cuts:
                _until_the_cut(machine, plan, rng)
        except NotHeardError as error:
            boot = Boot(number, memory.plan, wrong=(str(error),))
        machine.cut()
        memory = memory.after(plan, machine.heard)
        if boot is not None:
            if not is_quiet:
                print(f"{boot.line()}  [{time.monotonic() - began:.0f} s]", flush=True)
            yield boot


def _boot(machine: Machine) -> None:
    machine.wait_for(lambda line: line["event"] in ("judged", "absent"), BOOT_PATIENCE_S)


def _until_the_cut(machine: Machine, plan: str, rng: random.Random) -> None:
    """Wait for the plan to begin, then for a random part of it."""
    begins = {
        "tune": lambda line: line["event"] == "answered" and line["path"] == "/v1/retune",
        "apply": lambda line: line["event"] == "asked" and line["path"] == "/v1/apply",  # after a winner was found
        "restore": lambda line: line["event"] == "killed",
        "idle": lambda line: line["event"] == "resting",
    }
    machine.wait_for(begins[plan], PATIENCE_S)
    machine.listen_for(rng.uniform(0.0, LONGEST_S[plan]))


def tally(boots: list[Boot], seed: int) -> Iterator[str]:
    """What a person reads at the end."""
    wrong = [boot for boot in boots if boot.wrong]
    yield f"\n{len(boots)} power cuts (seed {seed}), by what went on: {_counted(boot.plan for boot in boots)}"
    yield f"what was pending: {_counted(boot.pending or 'nothing' for boot in boots)}"
    yield f"what became of it: {_counted(boot.standing or 'nothing' for boot in boots)}"
    yield f"half-done jobs found: {sum(boot.snapshot for boot in boots)}, acknowledged jobs: {_acknowledged(boots)}"
    yield f"lines of the ledger torn by the cut and set aside: {sum(boot.torn for boot in boots)}"
    up_s = sorted(boot.active_s for boot in boots if boot.active_s is not None)
    if up_s:
        yield f"service active after {up_s[len(up_s) // 2]:.0f} s of uptime (median), {up_s[-1]:.0f} s (longest)"
        yield f"(limit {ACTIVE_WITHIN_S:g} s, on an emulated processor)"
    yield f"{len(wrong)} boots in which something was wrong"
    for boot in wrong:
        yield f"  {boot.number}: {'; '.join(boot.wrong)}"


def _acknowledged(boots: list[Boot]) -> int:
    return max((boot.acknowledged for boot in boots), default=0)


def _counted(words: Iterator[str]) -> str:
    return ", ".join(f"{word} {count}" for word, count in Counter(words).most_common())


def _wheel(work: Path) -> Path:
    folder = work / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "-w", str(folder), str(SOURCE)], check=True)
    return next(folder.glob("jouled-*.whl"))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.power_cut", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--work", type=Path, default=Path("build/power-cut"), metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one object for each boot")
    parser.add_argument("--check", action="store_true", help="exit code 1 where something was wrong")
    return parser


if __name__ == "__main__":
    sys.exit(main())
