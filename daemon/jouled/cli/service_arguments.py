"""The verbs that ask the service over its socket: their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(s|min|m|h|d)?")

# verbs that only the service can do
REMOTE = frozenset({"status", "watch", "retune", "cancel", "history", "pause"})
# verbs for the service, or with --virtual or --table for this process
EITHER = frozenset({"verify", "apply", "rollback", "forget"})

Options = Callable[[argparse.ArgumentParser], None]


def is_for_service(arguments: argparse.Namespace) -> bool:
    """Is this to be asked of the service, rather than done here?"""
    if arguments.verb in REMOTE:
        return True
    return arguments.verb in EITHER and arguments.virtual is None and arguments.table is None


def length(text: str) -> float:
    """`2h`, `90`, `1.5 d` in seconds."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"wanted a length of time such as 90, 30s, 15m, 2h or 1d, got {text!r}")
    return float(found[1]) * _UNITS_S[found[2] or ""]


def add_service_verbs(verbs: Any, board_options: Options, output_options: Options) -> None:
    """Add the verbs, and --socket to those that are there."""

    def verb(name: str, text: str, *, board: bool = False) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text.capitalize()}.")
        if board:
            board_options(parser)
        _socket(parser)
        output_options(parser)
        return parser

    verb("status", "what is in force, what it saves, whether it holds, what happens next")
    verb("watch", "the same, as it changes, and the job that runs; q leaves, c cancels the job")
    _retune(verb("retune", "have the service find the best mode again, and watch it to its end"))
    cancel = verb("cancel", "stop a job; every knob is put back as it was found")
    cancel.add_argument("job", metavar="JOB", nargs="?", help="default: the one that runs")
    apply = verb("apply", "put the winner, the board's own mode or any power mode in force", board=True)
    apply.add_argument("target", metavar="winner|reference|MODE", help="MODE as `jouled modes` prints it")
    verb("rollback", "put the board's own mode in force and reject the winner", board=True)
    history = verb("history", "requests, jobs and changes of knobs, the newest first")
    history.add_argument("-n", "--limit", metavar="N", type=_limit, default=20, help="how many (20)")
    pause = verb("pause", "put the board's own mode in force for a while")
    which = pause.add_mutually_exclusive_group()
    which.add_argument(
        "--for", metavar="TIME", dest="for_s", type=length, help="30s, 15m, 2h, 1d; left out: until --end"
    )
    which.add_argument("--end", action="store_true", help="end the pause: the winner comes back")
    for name in ("verify", "forget"):
        _socket(verbs.choices[name])


def _socket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", metavar="PATH", type=Path, help="the service's (/run/jouled/control.sock)")


def _limit(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"wanted an integer from 1 to 1000, got {text}")
    return value


def _retune(parser: argparse.ArgumentParser) -> None:
    """What a request may name; the rest stands in the service's configuration, and its limits hold."""
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--latency-bound-s", metavar="S", type=float, help="seconds, e.g. 0.033")
    bound.add_argument("--latency-bound-ratio", metavar="R", type=float, help="x the base mode's latency, e.g. 1.2")
    parser.add_argument("--workload", metavar="KEY", help="a name of [workloads] in the service's configuration")
    parser.add_argument("--latency-percentile", metavar="P", type=float)
    parser.add_argument("--max-power-w", metavar="W", type=float, help="mean of the total rail")
    parser.add_argument("--budget", metavar="N", type=int, help="windows before the finals")
    parser.add_argument("--min-gain", metavar="G", type=float, help="smallest saving worth a change")
    parser.add_argument("--max-duration-s", metavar="S", type=float)
    parser.add_argument("--clocks", choices=("capped", "locked", "both"))
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and how long it takes")
    parser.add_argument("--fail-on-no-gain", action="store_true", help="exit 4 where nothing better was found")
    parser.add_argument("--no-wait", action="store_false", dest="wait", help="say the job's id and be done")
    parser.add_argument("--json-lines", action="store_true", help="the job's events, one JSON object a line")
