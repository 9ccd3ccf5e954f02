"""Hundreds of tunes on random boards with random faults, some of them killed: does each end as it should?

    python bench/soak.py [--runs 300] [--seed 0] [--workers 2] [--json] [--check]

Each run makes a virtual board (any that may be tuned, in any of its modes), puts one to four faults of the fault table
into it, two of three for 5 to 60 s from a random time on, and runs the command `jouled tune` on it in a process of its
own; each fifth board has a winner in force already. A third of the runs is to be killed with SIGKILL when a random
event has come (many are over before), and is then put back by `jouled restore`, which meets the same faults. Then the
faults go, and what a restore still finds is put back. Held against it: every knob is as found, or the verified
winner's; the outcome is one of the faults' right ones and says so; no traceback is printed; no process takes longer
than `LONGEST_S`. In nine runs of ten nvpmodel and jetson_clocks run within the process; in the tenth they are children.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jouled.board.discover import discover_domains
from jouled.board.knobs import NVPMODEL_FILES, read_knobs
from jouled.board.sysfs import Sysfs
from jouled.cli import main as jouled
from jouled.virtual.fault import GOOD, Fault
from jouled.virtual.fault_table import FAULTS
from jouled.virtual.faults import Faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.named import inject
from jouled.virtual.schedule import replace_switches
from jouled.virtual.specs import board_spec
from jouled.virtual.tree import boot, make_tree

BOARDS = (
    *("agx-orin-64gb", "agx-orin-64gb-l4t35", "agx-orin-32gb", "orin-nx-16gb", "orin-nx-8gb"),
    *("orin-nano-8gb", "orin-nano-8gb-super", "orin-nano-4gb"),
)
WORKLOADS = ("yolov8s-640", "resnet50", "vit-b16", "llm-decode", "preproc-heavy", "tiny")
LONGEST_S = 120.0
LEAST_GOOD = 0.6
_LAST_S = 700.0
_CHILDREN_EVERY = 10
_WINNER_EVERY = 5
_KILLED_SHARE = 1 / 3
_RESET = 137
_WORDS = {
    "wrong-rounding": ("gpu", "cpu", "emc"),
    "write-ignored": ("gpu", "cpu", "emc"),
    "second-writer": ("cpu", "core", "jetson_clocks", "service"),
    "sensor-error": ("EAGAIN", "ENODATA", "ENOENT", "EIO"),
    "over-current": ("oc2", "oc3"),
    "nvpmodel-hangs": ("0", "5", "20"),
    "nvpmodel-busy": ("0", "3", "12"),
}


@dataclass
class Run:
    """One tune and what came of it. `ended`: its outcome, "killed" or "board reset"; `wrong`: what should not be."""

    number: int
    board: str
    mode: str
    workload: str
    faults: list[str]
    had_winner: bool
    kill_at: int | None
    ended: str = ""
    outcome: str | None = None
    took_s: float = 0.0
    simulated_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def draw(number: int, seed: int) -> Run:
    """The run of this number."""
    rng = random.Random(f"{seed} {number}")
    board = rng.choice(BOARDS)
    spec = board_spec(board)
    mode = spec.boot_mode if rng.random() < 0.5 else rng.choice(spec.modes).name
    names = rng.sample(sorted(FAULTS), rng.randint(1, 4))
    kill_at = rng.randint(1, 700) if rng.random() < _KILLED_SHARE else None
    texts = [_text(FAULTS[name], rng) for name in names]
    return Run(number, board, mode, rng.choice(WORKLOADS), texts, number % _WINNER_EVERY == 0, kill_at)


def _text(fault: Fault, rng: random.Random) -> str:
    """Two of three pass after a while."""
    words = _WORDS.get(fault.name)
    parts = [rng.choice(words)] if words else []
    is_spell = rng.random() < 2 / 3
    if fault.after_s > 0.0 or is_spell:
        parts.append(f"after_s={rng.uniform(20.0, _LAST_S):.1f}")
    if is_spell:
        parts.append(f"for_s={rng.uniform(5.0, 60.0):.1f}")
    return f"{fault.name}:{','.join(parts)}" if parts else fault.name


# --- one run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A process that has run `jouled`. `killed`: at the event that was asked for."""

    code: int
    killed: bool
    out: str
    err: str
    took_s: float

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines(keepends=True) if line.endswith("\n")]


def call(arguments: Sequence[str], folder: Path, *, kill_at: int | None = None, children: bool = False) -> Ended:
    """`jouled` in a process of its own, which is killed when it has printed `kill_at` lines."""
    began_s = time.monotonic()
    reader, writer = os.pipe()
    err = folder.with_name(f"{folder.name}.err")
    pid = os.fork()
    if pid == 0:
        _child(arguments, writer, err, children=children)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGABRT))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    lines: list[str] = []
    killed = False
    with open(reader, encoding="utf-8", errors="replace") as out:
        for line in out:
            lines.append(line)
            if len(lines) == kill_at:
                os.kill(pid, signal.SIGKILL)
                killed = True
    _, status = os.waitpid(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    code = os.waitstatus_to_exitcode(status)
    told = err.read_text(encoding="utf-8", errors="replace")
    err.unlink()
    return Ended(code, killed and code == -signal.SIGKILL, "".join(lines), told, time.monotonic() - began_s)


def _child(arguments: Sequence[str], writer: int, err: Path, *, children: bool) -> None:
    """Never comes back."""
    code = 70
    try:
        os.dup2(writer, 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        os.closerange(3, 256)
        sys.stdout, sys.stderr = io.TextIOWrapper(io.FileIO(1, "w")), io.TextIOWrapper(io.FileIO(2, "w"))
        if not children:
            VirtualMachine.__init__.__kwdefaults__["programs"] = "in_process"  # type: ignore[index]  # it has some
        code = jouled(list(arguments))
        sys.stdout.flush()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - what a user would see as a traceback
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def knobs(root: Path) -> dict[str, str]:
    """Every knob, read past all faults; the memory's rate moves by itself."""
    sysfs = Sysfs(root)
    found = dict(read_knobs(sysfs, discover_domains(sysfs)).values)
    return {path: text for path, text in found.items() if not path.endswith("/clk/emc/rate")}


def booted_knobs(root: Path) -> dict[str, str]:
    """What the same disk boots into by the stock path; nvpmodel's own files are put back as they were found."""
    copy = root.with_name("booted")
    shutil.copytree(root, copy, symlinks=True)
    boot(copy)
    booted, found = knobs(copy), knobs(root)
    shutil.rmtree(copy)
    return booted | {path: found[path] for path in NVPMODEL_FILES if path in found}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing on this process's output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def soak(run: Run, folder: Path) -> Run:
    """Carry it out in `folder`, which is made and removed."""
    root = folder / "board"
    options = ["--virtual", run.board, "--state-dir", str(folder)]
    tune = ["tune", *options, "--virtual-workload", run.workload, "--latency-bound-ratio", "1.4", "--json-lines"]
    tune += ["--seed", str(run.number), "--virtual-seed", str(run.number), "--budget", "6"]
    make_tree(root, run.board, run.mode)
    try:
        if run.had_winner:
            call(tune, folder)
        _misbehave(root, folder, run.faults)
        found, booted = knobs(root), booted_knobs(root)
        children = run.number % _CHILDREN_EVERY == 3
        ended = call(tune, folder, kill_at=run.kill_at, children=children)
        _judge(run, ended)
        aftermath = [] if run.ended not in ("killed", "board reset") else [call(["restore", *options], folder)]
        replace_switches(str(root), {})
        aftermath.append(call(["restore", *options], folder))
        aftermath.append(call(["verify", *options], folder))
        _judge_board(run, aftermath, booted if run.ended == "board reset" else found, knobs(root))
    finally:
        shutil.rmtree(folder)
    return run


def _misbehave(root: Path, folder: Path, faults: Sequence[str]) -> None:
    """As `--fault` does; set by hand, so that no command takes them away again."""
    inject(root, folder, faults)
    switches = {name: value for name, value in Faults(str(root)).all().items() if name != "named"}
    replace_switches(str(root), switches)


def _judge(run: Run, ended: Ended) -> None:
    """Its outcome, what it said, and how long it took."""
    run.took_s = round(ended.took_s, 2)
    events = ended.events
    times_s = [event["t_s"] for event in events if "t_s" in event]
    run.simulated_s = round(max(times_s) - min(times_s), 1) if times_s else 0.0
    if "Traceback" in ended.err or "Traceback" in ended.out:
        run.wrong.append(f"traceback: {ended.err[-1500:]}")
    if ended.code == -signal.SIGABRT:
        run.wrong.append(f"took longer than {LONGEST_S:g} s")
    finished = next((event["result"] for event in events if event["event"] == "finished"), None)
    if finished is None:
        run.ended = "killed" if ended.killed else "board reset" if ended.code == _RESET else "no outcome"
        if run.ended == "no outcome":
            run.wrong.append(f"exit {ended.code} without an outcome: {ended.err[-600:]}")
        return
    run.outcome = run.ended = finished["outcome"]
    faults = [FAULTS[text.partition(":")[0]] for text in run.faults]
    right = GOOD.union(*(fault.outcomes for fault in faults))
    reason = f"{finished['reason']['code']}: {finished['reason']['text']}"
    if run.outcome not in right:
        run.wrong.append(f"outcome {run.outcome} is none of {sorted(right)}: {reason}")
    elif run.outcome not in GOOD and not _is_said(run.outcome, faults, events, reason):
        run.wrong.append(f"outcome {run.outcome} says nothing of {', '.join(run.faults)}: {reason}")


def _is_said(outcome: str, faults: Sequence[Fault], events: Sequence[dict[str, Any]], reason: str) -> bool:
    """Does what the user reads hold the sentence of a fault that ends so?"""
    trials = [event["trial"] for event in events if event["event"] == "trial"]
    told = [reason, *(f"{trial['invalid']}: {trial['detail']}" for trial in trials)]
    told += [event["text"] for event in events if event["event"] == "warning"]
    patterns = [fault.says for fault in faults if outcome in fault.outcomes and fault.says]
    return any(re.search(pattern, text) for pattern in patterns for text in told)


def _judge_board(run: Run, aftermath: Sequence[Ended], as_found: dict[str, str], now: dict[str, str]) -> None:
    """Every knob as found (as booted, after a reset), or the winner's, verified."""
    for ended in aftermath:
        if "Traceback" in ended.err:
            run.wrong.append(f"traceback afterwards: {ended.err[-1500:]}")
    restored, verified = aftermath[-2:]
    if restored.code != 0:
        run.wrong.append(f"restore ended with {restored.code} on a board that behaves: {restored.err[-600:]}")
    if run.outcome == "tuned":
        if verified.code != 0:
            run.wrong.append(f"the winner is not verified: {verified.out[-600:]}{verified.err[-600:]}")
        return
    differing = [
        f"{path}: was {as_found[path]}, is {now.get(path)}" for path in as_found if now.get(path) != as_found[path]
    ]
    if differing:
        run.wrong.append(f"not as found: {'; '.join(differing[:4])}")


# --- all of them --------------------------------------------------------------------------------------------


def _one(task: tuple[int, int, str]) -> Run:
    number, seed, parent = task
    run = draw(number, seed)
    try:
        with quiet():
            return soak(run, Path(parent) / str(number))
    except Exception as error:  # noqa: BLE001 - one run of many; it is in the tally
        run.wrong.append(f"the bench itself: {type(error).__name__}: {error}")
        return run


def tally(runs: Sequence[Run]) -> str:
    """What is printed and kept."""
    ended = Counter(run.ended for run in runs)
    judged = [run for run in runs if run.outcome is not None]
    good = sum(run.outcome in GOOD for run in judged)
    drawn = Counter(text.partition(":")[0] for run in runs for text in run.faults)
    lines = [
        f"{len(runs)} runs, {sum(drawn.values())} faults of {len(drawn)} kinds, {len({r.board for r in runs})} boards"
    ]
    lines += [f"  {count:4}  {name}" for name, count in ended.most_common()]
    share = good / len(judged) if judged else 0.0
    lines.append(f"{good} of {len(judged)} that came to an outcome: tuned or no_gain ({100 * share:.0f} %)")
    longest = max(runs, key=lambda run: run.took_s)
    slowest = max(runs, key=lambda run: run.simulated_s)
    lines.append(
        f"longest process {longest.took_s:.1f} s, longest job {slowest.simulated_s / 60:.0f} min of board time"
    )
    wrong = [run for run in runs if run.wrong]
    lines.append(f"{len(wrong)} runs in which something was wrong")
    for run in wrong:
        lines.append(
            f"  run {run.number}: {run.board} in {run.mode}, {run.workload}, {' '.join(run.faults)}: {run.ended}"
        )
        lines += [f"      {text}" for text in run.wrong]
    return "\n".join(lines)


def main() -> int:
    """Run them, print the tally; with --check, 1 where anything was wrong or too few ended well."""
    parser = argparse.ArgumentParser(description="Tunes on random boards with random faults, some of them killed.")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="each run, one JSON object a line")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="soak", dir=place) as parent:
        tasks = [(number, given.seed, parent) for number in range(given.first, given.first + given.runs)]
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(given.workers, mp_context=fork) as pool:
            runs = []
            for run in pool.map(_one, tasks):
                runs.append(run)
                if given.json:
                    print(json.dumps(asdict(run)), flush=True)
    print(tally(runs))
    judged = [run for run in runs if run.outcome is not None]
    enough = sum(run.outcome in GOOD for run in judged) >= LEAST_GOOD * len(judged)
    return int(given.check and (any(run.wrong for run in runs) or not enough))


if __name__ == "__main__":
    sys.exit(main())
