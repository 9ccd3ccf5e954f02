"""`jouled tune`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jouled.cli.arguments import here
from jouled.cli.display import displayed, is_wanted
from jouled.cli.output import candidates_text, duration, ending
from jouled.cli.progress import Progress
from jouled.cli.site import arrival_of, open_site, require_root
from jouled.errors import StateError
from jouled.job.cancel import Cancellation
from jouled.job.events import Event, Events, Sink, encode
from jouled.job.export import Export, check_export
from jouled.job.job import run_job
from jouled.job.result import JobResult
from jouled.job.site import Site

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def tune(arguments: argparse.Namespace) -> int:
    """Run a job in this process and say what came of it. Raises JouledError."""
    site = open_site(arguments)
    try:
        arrival = arrival_of(arguments, site.config)
        request = site.request(arrival, seed=arguments.seed or 0, dry_run=arguments.dry_run)
        request.check()
        request.check_arrival(arrival)
        if arguments.export is not None:
            check_export(arguments.export, request, arrival, table=arguments.table)
        if not site.fixed:
            require_root(site, "tune")
        runner = site.make_runner(arrival)
        cancellation, export, lines = Cancellation(), Export(), _Lines()
        with _signals(cancellation), _shown(arguments, lines, cancellation) as shown:
            sinks: tuple[Sink, ...] = (export, *shown)
            result = run_job(site.host, request, runner, cancellation=cancellation, sinks=sinks)
    finally:
        site.close()
    _say(arguments, site, result, lines)
    if result.plan is not None:
        return 0
    if arguments.export is not None:
        _export(export, arguments, site, result)
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


class _Lines:
    """Events on standard output, one a line."""

    def __init__(self) -> None:
        self.last: Event = {}

    def __call__(self, event: Event) -> None:
        self.last = event
        print(encode(event), flush=True)

    def end(self, site: Site, result: JobResult) -> None:
        """A dry run, and a job that somebody else's lock kept out, have no end in the ledger; who listens gets one."""
        if self.last.get("event") == "finished":
            return
        told = result.as_json() | ({} if result.plan is None else {"outcome": None, "plan": result.plan})
        Events(site.host.clock, result.job, [self], int(self.last.get("seq", 0))).emit("finished", result=told)


@contextmanager
def _shown(arguments: argparse.Namespace, lines: _Lines, cancellation: Cancellation) -> Iterator[tuple[Sink, ...]]:
    """Who hears the events: a display where there is a terminal, else lines."""
    if arguments.json_lines:
        yield (lines,)
    elif arguments.json:
        yield ()
    elif arguments.dry_run or not is_wanted():
        yield (Progress(),)
    else:
        with displayed(lambda: cancellation.ask("user", "stopped by key q"), lambda: cancellation.asked) as display:
            yield (display,)


# --- when it is over ----------------------------------------------------------------------------------------


def _say(arguments: argparse.Namespace, site: Site, result: JobResult, lines: _Lines) -> None:
    if arguments.json_lines:
        lines.end(site, result)
    elif arguments.json:
        body = result.as_json() if result.plan is None else {"schema": 1, "job": result.job, "plan": result.plan}
        print(encode(body))
    elif result.plan is not None:
        print(_plan_text(result.plan))
    else:
        result.hint = here(result.hint, site.options)
        print(ending(result, undo=_undo(site, result)))
        if result.outcome == "tuned" and not site.fixed:
            print(f"\nnext: {here('jouled verify', site.options)}")


def _export(export: Export, arguments: argparse.Namespace, site: Site, result: JobResult) -> None:
    """Said on standard error: standard output is the result's, and the exit code stays the job's in any case."""
    path = arguments.export
    try:
        count = export.write(path)
    except StateError as error:
        kept = f"each window of job {result.job} stands in {site.host.state_dir / 'ledger.jsonl'}"
        print(f"jouled tune: warning: {error}; {error.hint}; {kept}", file=sys.stderr)
        return
    if count == 0:
        print("nothing was exported: no power mode was measured", file=sys.stderr)
        return
    print(f"{path}: {count} power mode{'s' if count > 1 else ''} as measured, for jouled tune --table", file=sys.stderr)


def _undo(site: Site, result: JobResult) -> str:
    """The command on a line of its own, however long it is."""
    reboot = f"(a reboot does it, too: the board then is in {result.base_mode})"
    return f"{here('jouled rollback', site.options)}\n{'':12}{reboot}"


def _plan_text(plan: dict[str, Any]) -> str:
    axes = ", ".join(f"{name} {len(values)}" for name, values in reversed(plan["axes"].items()))
    return "\n".join(
        [
            f"{plan['board']} in {plan['base_mode']}, {plan['workload']}, rail {plan['rail']}",
            f"{candidates_text(plan['grid_size'], plan['axes'])} ({axes})",
            f"sampler {plan['sampler']}, at most {plan['budget']} windows, then finals",
            f"about {duration(plan['expected_s'])}, in which the board runs the workload ({plan['arrival']})",
            "dry run: nothing was touched",
        ]
    )
