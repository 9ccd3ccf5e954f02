"""The verbs that ask the service: status, retune, cancel, apply, verify, rollback, history, pause, forget."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jouled.cli.arguments import here, options_of
from jouled.cli.client import SOCKET, AnsweredError, Client, Record
from jouled.cli.output import WIDTH, percent, quantity
from jouled.cli.progress import Progress
from jouled.cli.status import ago, person, status_text, when
from jouled.errors import JouledError, NotPermittedError, UnreachableError
from jouled.job.events import encode
from jouled.job.result import EXIT_CODES

_CHANGE_S = 180.0  # a worker that starts, restores, applies and reads back
_POLL_S = 2.0
_IMPLIED = {"rolled back": "rollback"}  # changes whose reason is in their name
_AWAY_S = 120.0  # how long a daemon may be gone in mid-job before we give up asking
_REQUEST = (
    *("workload", "latency_bound_s", "latency_bound_ratio", "latency_percentile", "max_power_w"),
    *("budget", "min_gain", "max_duration_s", "clocks", "dry_run"),
)


def client_of(arguments: argparse.Namespace) -> Client:
    """The daemon's end that the options name."""
    return Client(arguments.socket or SOCKET)


def _say(arguments: argparse.Namespace, record: Mapping[str, Any], text: str) -> None:
    print(encode(record) if arguments.json else text)


# --- looking ------------------------------------------------------------------------------------------------


def status(arguments: argparse.Namespace) -> int:
    """What is in force, whether it holds, what happens next."""
    found = client_of(arguments).get("/v1/status")
    to_do = here(str(found["to_do"]), options_of(arguments))
    _say(arguments, found, "" if arguments.json else status_text({**found, "to_do": to_do}, time.time()))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Have the worker compare every knob; 5 where one is wrong, 12 where somebody else holds the board."""
    found = client_of(arguments).post("/v1/verify", timeout_s=_CHANGE_S)
    wrong, unknown, is_busy = found.get("mismatches") or [], found.get("unknown") or [], bool(found.get("busy"))
    if is_busy:
        lines = [f"busy: {found.get('holder') or 'another process'} holds the board, whose modes come and go"]
    else:
        what = found.get("what") or "this mode"
        lines = [f"{'wrong' if wrong else 'ok'}: {what} should be in force: {_mode_of(found)}"]
        lines += [f"  wrong    {sentence}" for sentence in wrong]
    lines += [f"  unknown  {len(unknown)} knobs could not be read"] if unknown else []
    lines += [f"  warning  {text}" for text in _texts(found.get("warnings"))]
    lines += [f"  to do    {found['to_do']}"] if wrong and found.get("to_do") else []
    _say(arguments, found, "\n".join(lines))
    return 12 if is_busy else 5 if wrong else 0


def _mode_of(found: Mapping[str, Any]) -> str:
    return ", ".join(str(found[name]) for name in ("mode", "policy") if found.get(name)) or "not known"


def history(arguments: argparse.Namespace) -> int:
    """Requests, jobs' ends and changes of knobs, the newest first."""
    found = client_of(arguments).get(f"/v1/history?limit={arguments.limit}")
    now_s = time.time()
    times = [_at(entry, now_s) for entry in found["history"]]
    width = max(map(len, times), default=0)
    lines = [_hung(f"{at:{width}}  ", _entry(entry)) for at, entry in zip(times, found["history"], strict=True)]
    _say(arguments, found, "\n".join(lines) or "nothing has happened yet")
    return 0


def _hung(head: str, text: str) -> str:
    """Within the width, further lines below the first one's text."""
    indent = " " * (len(head) + 2)
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)


def _at(entry: Record, now_s: float) -> str:
    wall_s = entry.get("wall_s")
    return "-" if wall_s is None else when(wall_s, now_s)


def _entry(entry: Record) -> str:
    texts: dict[str, Callable[[Record], str]] = {"job": _job_text, "change": _change_text}
    text = texts.get(str(entry.get("kind")), _request_text)(entry)
    who = f" by {person(str(entry['who']))}" if entry.get("who") else ""
    return f"{text}{who}"


def _job_text(entry: Record) -> str:
    outcome = entry.get("outcome") or ("has not ended" if entry.get("ended_wall_s") is None else "was a dry run")
    ratio, reason = entry.get("saving_ratio"), (entry.get("reason") or {}).get("text")
    detail = f", saves {percent(ratio)}" if outcome == "tuned" and ratio is not None else ""
    detail = f": {reason}" if not detail and reason and reason != outcome else detail
    return f"job {entry.get('job')}  {outcome}{detail}"


def _change_text(entry: Record) -> str:
    event, why = str(entry.get("event")).replace("_", " "), entry.get("why")
    reason = f" ({why})" if why and why not in ("user", _IMPLIED.get(event)) else ""
    return f"{event}  {entry.get('from')} -> {entry.get('to')}{reason}"


def _request_text(entry: Record) -> str:
    verb = str(entry.get("verb", ""))
    if verb == "pause":
        for_s = entry.get("for_s")
        length = "until further notice" if for_s is None else f"for {ago(for_s)}" if for_s else "ends"
        return f"asked: {verb} {length}"
    named = (entry.get(name) for name in ("target", "mode", "of_job"))
    details = [str(value) for value in named if value] + (["the state held"] if entry.get("held") else [])
    return " ".join([f"asked: {verb}", *details])


# --- changing -----------------------------------------------------------------------------------------------


def apply(arguments: argparse.Namespace) -> int:
    """Put the winner, the reference or a mode in force."""
    found = client_of(arguments).post("/v1/apply", {"target": arguments.target}, timeout_s=_CHANGE_S)
    target = arguments.target
    what = {"winner": "the winner, ", "reference": "the board's own mode, "}.get(target, "")
    _say(arguments, found, f"in force and read back: {what}{_mode_of(found)}")
    return 0


def rollback(arguments: argparse.Namespace) -> int:
    """Put the reference in force and reject the winner."""
    found = client_of(arguments).post("/v1/rollback", timeout_s=_CHANGE_S)
    rejected = found.get("rejected")
    what = f"rolled back: the winner {rejected} is rejected" if rejected else "there was no winner to reject"
    _say(arguments, found, f"{what}\nin force and read back: the board's own mode, {_mode_of(found)}")
    return 0


def cancel(arguments: argparse.Namespace) -> int:
    """Stop the job that runs, or the one that is named."""
    client = client_of(arguments)
    job = arguments.job
    if job is None:
        running = client.get("/v1/status")["job"]
        if running is None:
            _say(arguments, {"schema": 1, "job": None}, "no job runs")
            return 0
        job = running["id"]
    found = client.post(f"/v1/jobs/{_quoted(job)}/cancel", timeout_s=_CHANGE_S)
    _say(arguments, found, f"job {job} stops, and every knob is put back as it was found")
    return 0


def _quoted(job: str) -> str:
    from urllib.parse import quote

    return quote(job, safe="")


def pause(arguments: argparse.Namespace) -> int:
    """Put the reference in force for a while; the winner comes back by itself."""
    for_s = 0.0 if arguments.end else arguments.for_s
    found = client_of(arguments).post("/v1/pause", {"for_s": for_s}, timeout_s=_CHANGE_S)
    if for_s == 0:
        text = "the pause is over"
    elif found.get("until_wall_s") is None:
        text = "paused until further notice; jouled pause --end ends it"
    else:
        text = f"paused until {when(found['until_wall_s'], time.time())}; jouled pause --end ends it"
    to_do = "" if found.get("paused") else found.get("to_do")  # how a pause ends is said already
    _say(arguments, found, "\n".join([text, *([f"  to do    {to_do}"] if to_do else [])]))
    return 0


def forget(arguments: argparse.Namespace) -> int:
    """Lift what is held against a mode, or the state held."""
    body = {"held": True} if arguments.held else {"mode": arguments.mode}
    found = client_of(arguments).post("/v1/forget", body, timeout_s=_CHANGE_S)
    if arguments.held:
        text = "jobs may run again" if found.get("forgotten") else "the board was not held"
    elif found.get("forgotten"):
        text = f"{arguments.mode} may be tried again"
    else:
        text = f"nothing was held against {arguments.mode}"
    _say(arguments, found, text)
    return 0


# --- a job --------------------------------------------------------------------------------------------------


def retune(arguments: argparse.Namespace) -> int:
    """Have the service run a job and, unless told otherwise, watch it to its end."""
    client = client_of(arguments)
    given = {name: getattr(arguments, name) for name in _REQUEST}
    body = {name: value for name, value in given.items() if value is not None and value is not False}
    if not arguments.wait:
        found = client.post("/v1/retune", body, timeout_s=_CHANGE_S)
        text = f"job {found['job']} has begun; how it goes:\njouled status"
        _say(arguments, found, here(text, options_of(arguments)))
        return 0
    show = _shower(arguments)
    with _listening(client) as events:
        job = client.post("/v1/retune", body, timeout_s=_CHANGE_S)["job"]
        if not arguments.json and not arguments.json_lines:
            print(f"job {job}; it goes on when this is interrupted (jouled cancel stops it)", file=sys.stderr)
        try:
            end = _follow(client, job, events, show)
        except KeyboardInterrupt:
            print(f"\njob {job} goes on; jouled cancel stops it, jouled status tells how it goes", file=sys.stderr)
            return 130
    return _ending(arguments, end)


def _shower(arguments: argparse.Namespace) -> Callable[[Record], None]:
    if arguments.json_lines:
        return lambda event: print(encode(event), flush=True)
    return (lambda event: None) if arguments.json else Progress()


@contextmanager
def _listening(client: Client) -> Iterator[Iterator[Record]]:
    """The daemon's events, or none where it has too many listeners: then it is asked now and again."""
    try:
        stream = client.events()
        events = stream.__enter__()
    except AnsweredError:
        yield iter(())
        return
    try:
        yield events
    finally:
        stream.__exit__(None, None, None)


def _follow(client: Client, job: str, events: Iterator[Record], show: Callable[[Record], None]) -> Record:
    """Show a job's events; its end: {"result"} and, where it failed, {"error"}."""
    for event in events:
        if event.get("job", job) != job:
            continue
        if "t_s" in event:
            show(event)
        if event.get("event") == "finished":
            return event
    return _poll(client, job)


def _poll(client: Client, job: str, *, sleep: Callable[[float], None] = time.sleep) -> Record:
    """The end of a job whose events were lost; a daemon that is gone is waited for. Raises UnreachableError."""
    away_s = 0.0
    while True:
        try:
            found = client.get(f"/v1/jobs/{job}")
            away_s = 0.0
            is_over = found.get("outcome") is not None or found.get("result") is not None
            if is_over and not found.get("is_running"):
                return {"result": found.get("result") or found, "error": found.get("error")}
        except UnreachableError:
            away_s += _POLL_S
            if away_s > _AWAY_S:
                raise
        sleep(_POLL_S)


def _ending(arguments: argparse.Namespace, end: Record) -> int:
    """Say how a job ended; the exit code of its outcome."""
    result, error = end.get("result"), end.get("error")
    if result is None:
        raise _job_error(error or {})
    plan = result.get("plan")
    if arguments.json:
        print(json.dumps(result if plan is None else {"schema": 1, "job": result.get("job"), "plan": plan}))
    elif not arguments.json_lines:
        print(_plan_text(plan) if plan is not None else here("\n".join(_result_text(result)), options_of(arguments)))
    if plan is not None:
        return 0
    outcome = str(result.get("outcome"))
    return 4 if outcome == "no_gain" and arguments.fail_on_no_gain else EXIT_CODES.get(outcome, 1)


def _job_error(error: Mapping[str, Any]) -> JouledError:
    """What ended a job before it had a result."""
    text = str(error.get("text") or "the job ended without a result")
    raised = JouledError(text, hint=str(error.get("hint") or "journalctl -u jouled-worker -e"))
    raised.exit_code = int(error.get("exit_code") or 1)
    return raised


def _plan_text(plan: Mapping[str, Any]) -> str:
    minutes = float(plan.get("expected_s") or 0.0) / 60
    return f"{plan.get('grid_size')} power modes, about {minutes:.0f} min; dry run: nothing was touched"


def _result_text(result: Mapping[str, Any]) -> list[str]:
    """A job's result in a few lines; `jouled status` tells the rest."""
    outcome, reason = result.get("outcome"), result.get("reason") or {}
    ratio, interval = result.get("saving_ratio"), result.get("saving_interval")
    if outcome == "tuned" and ratio is not None:
        low_high = "" if interval is None else f" (95 %: {percent(interval[0])} to {percent(interval[1])})"
        less = "less" if ratio >= 0 else "more"
        one = result.get("inference_name") or "inference"
        tuned = f"tuned: {percent(abs(ratio))} {less} energy per {one} than the board's own mode{low_high}"
        lines = [textwrap.fill(tuned, WIDTH, subsequent_indent="  ")]
    else:
        why = reason.get("text") or reason.get("code") or ""
        lines = [f"{outcome}: {why}" if why and why != outcome else f"{outcome}"]
    lines += [line for name in ("reference", "winner") if (line := _side_text(name, result.get(name)))]
    lines += [f"  warning    {text}" for text in _texts(result.get("warnings"))]
    return [*lines, f"  job        {result.get('job')}", "", "next: jouled status"]


def _side_text(name: str, side: Mapping[str, Any] | None) -> str:
    if not side or side.get("energy_j") is None:
        return ""
    upper_s = side.get("latency_upper_s")
    latency = "" if upper_s is None else f", latency at most {quantity(upper_s, 's')}"
    return f"  {name:9}  {quantity(side['energy_j'], 'J')}, {side.get('power_w') or 0.0:.1f} W{latency}"


def _texts(found: Sequence[str] | None) -> Sequence[str]:
    return found or ()


# --- which ---------------------------------------------------------------------------------------------------


def _watch(arguments: argparse.Namespace) -> int:
    from jouled.cli.watch import watch

    return watch(arguments, client_of(arguments))


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "status": status,
    "watch": _watch,
    "retune": retune,
    "cancel": cancel,
    "apply": apply,
    "verify": verify,
    "rollback": rollback,
    "history": history,
    "pause": pause,
    "forget": forget,
}


def ask(arguments: argparse.Namespace) -> int:
    """Have the service do it, or do it here where there is none to be reached and this process can."""
    try:
        return _VERBS[arguments.verb](arguments)
    except (UnreachableError, NotPermittedError) as error:
        if not _can_here(arguments, error):
            raise
    return _do_here(arguments)


def _can_here(arguments: argparse.Namespace, error: JouledError) -> bool:
    """Looking needs nobody; knobs are written by root, when no daemon is there (the board's lock keeps others out)."""
    if arguments.socket is not None:
        return False
    if arguments.verb in ("verify", "forget"):
        return True
    return arguments.verb in ("apply", "rollback") and isinstance(error, UnreachableError) and os.geteuid() == 0


def _do_here(arguments: argparse.Namespace) -> int:
    from jouled.cli import verbs, worker

    doing: dict[str, Callable[[argparse.Namespace], int]] = {
        "verify": verbs.verify,
        "forget": verbs.forget,
        "apply": worker.apply,
        "rollback": worker.rollback,
    }
    return doing[arguments.verb](arguments)
