"""`jouled tune`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jouled.board.modename import mode_name
from jouled.cli.output import duration, ending, quantity
from jouled.cli.site import arrival_of, open_site, require_root
from jouled.job.cancel import Cancellation
from jouled.job.events import Event, Sink, encode
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.job.site import Site
from jouletune.space import PowerMode, Variant

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def tune(arguments: argparse.Namespace) -> int:
    """Run a job in this process and say what came of it. Raises JouledError."""
    site = open_site(arguments)
    try:
        request = Request(
            config=site.config,
            workload=site.workload,
            make_space=site.make_space,
            seed=arguments.seed or 0,
            total_rails=site.total_rails,
            dry_run=arguments.dry_run,
        )
        request.check()
        require_root(site, "tune")
        runner = site.make_runner(arrival_of(arguments, site.config))
        cancellation = Cancellation()
        with _signals(cancellation):
            result = run_job(site.host, request, runner, cancellation=cancellation, sinks=_sinks(arguments, request))
    finally:
        site.close()
    _say(arguments, site, result)
    if result.plan is not None:
        return 0
    return result.exit_code(fail_on_no_gain=arguments.fail_on_no_gain)


@contextmanager
def _signals(cancellation: Cancellation) -> Iterator[None]:
    """A signal asks the job to stop; it then puts the board back by itself, however often one is impatient."""

    def ask(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        cancellation.ask("user", f"stopped by {name}", signal_number=number)

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- while it runs ------------------------------------------------------------------------------------------


def _sinks(arguments: argparse.Namespace, request: Request) -> tuple[Sink, ...]:
    if arguments.json_lines:
        return (_print_line,)
    if arguments.json:
        return ()
    return (Progress(request.config.job.budget),)


def _print_line(event: Event) -> None:
    print(encode(event), flush=True)


class Progress:
    """Plain lines on standard error, one for each thing that a person wants to know."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._began_s: float | None = None
        self._reference_j: float | None = None

    def __call__(self, event: Event) -> None:
        line = self._line(event)
        if self._began_s is None:
            self._began_s = float(event["t_s"])
        if line is not None:
            passed_s = float(event["t_s"]) - self._began_s
            print(f"{int(passed_s) // 60:3d}:{int(passed_s) % 60:02d}  {line}", file=sys.stderr, flush=True)

    def _line(self, event: Event) -> str | None:
        kind = event["event"]
        if kind == "job_started":
            return (
                f"{event['board']} in {event['base_mode']}: {event['grid_size']} power modes, "
                f"about {duration(event['expected_s'])}"
            )
        if kind == "phase":
            return _phase(event)
        if kind == "trial":
            return self._trial(event["trial"])
        if kind == "warning":
            return f"warning: {event['text']}"
        if kind == "restored":
            return "every knob is as it was found"
        return None

    def _trial(self, trial: dict[str, Any]) -> str:
        variant = Variant(**trial["candidate"]["variant"])
        name = mode_name(PowerMode(**trial["candidate"]["mode"])) + (
            "" if variant == Variant() else f" b{variant.batch}"
        )
        head = f"{trial['number'] + 1:3d}  {name:24}{'L' if trial['policy'] == 'locked' else ' '}"
        window = trial["measurement"]
        if trial["invalid"] is not None:
            return f"{head} thrown away: {trial['invalid']} {trial['detail']}".rstrip()
        if window is None:
            return f"{head} too slow, cut short"
        upper_s = window["latency_upper_s"]
        numbers = f"{quantity(window['energy_j'], 'J'):>9} {window['power_w']:5.1f} W"
        numbers += f" <= {quantity(upper_s, 's'):7}" if upper_s is not None else " " * 11
        if trial["purpose"] == "reference" and self._reference_j is None:
            self._reference_j = window["energy_j"]
        if self._reference_j is not None:
            numbers += f" {100 * (window['energy_j'] / self._reference_j - 1):+6.1f} %"
        return f"{head} {numbers}" + (f"  ({trial['infeasible']})" if trial["infeasible"] else "")


def _phase(event: Event) -> str | None:
    if event["phase"] == "search":
        bound_s = event["bound_s"]
        bound = "" if bound_s is None else f", latency at most {quantity(bound_s, 's')}"
        return f"search{bound}   (cores-CPU-GPU-EMC in MHz, L: locked)"
    if event["phase"] == "finals":
        return f"finals, since the search has ended: {event['reason']}"
    return str(event["phase"])


# --- when it is over ----------------------------------------------------------------------------------------


def _say(arguments: argparse.Namespace, site: Site, result: JobResult) -> None:
    if arguments.json:
        body = result.as_json() if result.plan is None else {"schema": 1, "job": result.job, "plan": result.plan}
        print(encode(body))
    elif arguments.json_lines:
        return
    elif result.plan is not None:
        print(_plan_text(result.plan))
    else:
        print(ending(result, undo=_undo(site, result)))
        if result.outcome == "tuned":
            print(f"\nnext: jouled verify {site.options}".rstrip())


def _undo(site: Site, result: JobResult) -> str:
    if site.reboot is not None:
        return f"jouled virtual reboot {site.options}"
    return f"reboot: nothing that jouled sets outlives one, and the board comes back in {result.base_mode}"


def _plan_text(plan: dict[str, Any]) -> str:
    axes = ", ".join(f"{name} {len(values)}" for name, values in plan["axes"].items())
    return "\n".join(
        [
            f"{plan['board']} in {plan['base_mode']}, {plan['workload']}, rail {plan['rail']}",
            f"{plan['grid_size']} power modes ({axes}); sampler {plan['sampler']}, {plan['budget']} windows and finals",
            f"about {duration(plan['expected_s'])}, in which the board runs the workload at full load",
            "dry run: nothing was touched",
        ]
    )
