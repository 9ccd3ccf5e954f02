"""The command line: verbs, options, and which key of the configuration each option stands for."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from jouled import __version__
from jouled.cli.service_arguments import add_service_verbs

EXIT_CODES = """\
exit codes: 0 done (tuned, no_gain)   1 error            2 usage or configuration   3 no_feasible
            4 no_gain with --fail-on-no-gain             5 a knob was seen wrong    6 not permitted
            7 service not reachable   8 not_supported    9 workload_failed         10 board_fault
            11 unstable, interrupted, rolled_back        12 busy   13 cancelled    130/143 on signals"""

# option of `tune` -> key of config.toml
KEYS = {
    "latency_bound_s": "target.latency_bound_s",
    "latency_bound_ratio": "target.latency_bound_ratio",
    "no_latency_bound": "target.no_latency_bound",
    "latency_percentile": "target.latency_percentile",
    "max_power_w": "target.max_power_w",
    "objective": "target.objective",
    "min_gain": "target.min_gain",
    "risk": "job.risk",
    "budget": "job.budget",
    "sampler": "job.sampler",
    "max_duration_s": "job.max_duration_s",
    "clocks": "grid.clocks",
    "workload": "workload.default",
    "keep_samples": "job.keep_samples",
    "fresh": "job.fresh",
}


# Verbs that go with a board's options, with them already perhaps; and those that do not.
_TYPED = re.compile(
    r"(?<![\w./-])jouled (?:(tune|modes|verify|doctor|report|front|restore|forget|apply|rollback|virtual reboot|"
    r"status|watch|retune|cancel|history|pause)\b( --(?:virtual|table|socket)\b)?|"
    r"(install|uninstall|check-config|run)\b)"
)


def options_of(arguments: argparse.Namespace) -> str:
    """What a user types to come back to the same board."""
    given = vars(arguments)
    named = (("--virtual", "virtual"), ("--table", "table"), ("--state-dir", "state_dir"), ("--socket", "socket"))
    return " ".join(f"{option} {shlex.quote(str(given[key]))}" for option, key in named if given.get(key) is not None)


def program(called: str) -> str:
    """How a program that was called as `called` is called again: by its name alone where that finds the same."""
    if os.path.basename(called) != "jouled" or "/" not in called:
        return "jouled"
    found = shutil.which("jouled")
    is_same = found is not None and os.path.realpath(found) == os.path.realpath(called)
    return "jouled" if is_same else shlex.quote(called)


def here(text: str, options: str, called: str | None = None) -> str:
    """Commands in `text` as they are to be typed here: with the board's options, and as this program was `called`."""
    name = program(sys.argv[0] if called is None else called)

    def typed(found: re.Match[str]) -> str:
        if found[1] is None or found[2] is not None:
            return f"{name} {found[0].partition(' ')[2]}"
        return f"{name} {found[1]} {options}".rstrip()

    return _TYPED.sub(typed, text)


def _seed(text: str) -> int:
    """Raises ValueError, which argparse turns into a sentence."""
    value = int(text)
    if not 0 <= value < 1 << 32:
        raise argparse.ArgumentTypeError(f"wanted an integer from 0 to {(1 << 32) - 1}, got {text}")
    return value


def _board_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("which board")
    which = where.add_mutually_exclusive_group()
    which.add_argument("--virtual", metavar="BOARD", help="a virtual board, e.g. agx-orin-64gb; needs no root")
    which.add_argument(
        "--table", metavar="GRID.csv", type=Path, help="a board made of recorded measurements; needs no root"
    )
    where.add_argument(
        "--base-mode",
        metavar="NAME",
        help="the nvpmodel mode by name; a real board must be in it, a virtual one is booted in it",
    )
    where.add_argument(
        "--state-dir", metavar="DIR", type=Path, help="where jouled keeps its state (and the virtual board)"
    )
    where.add_argument("--config", metavar="FILE", type=Path, help="default /etc/jouled/config.toml")


def _virtual_options(parser: argparse.ArgumentParser) -> None:
    virtual = parser.add_argument_group("the virtual board")
    virtual.add_argument("--virtual-workload", metavar="NAME", help="default yolov8s-640")
    virtual.add_argument("--virtual-seed", metavar="N", type=_seed, help="another specimen of the board (default 0)")
    virtual.add_argument(
        "--fault",
        metavar="NAME[:ARGS]",
        action="append",
        default=[],
        help="misbehaviour by name, repeatable; `jouled virtual faults` lists them",
    )


def _output_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _told_while_it_runs(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    _output_options(which)
    which.add_argument("--json-lines", action="store_true", help="the job's events, one JSON object a line")


def _tune(verbs: Any) -> None:
    parser = verbs.add_parser(
        "tune",
        help="find the power mode with the least energy per inference within the bound, and apply it",
        description="Measures power modes under load, decides, applies the winner. On every other way out the board "
        "is left as it was found. One bound is required.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _board_options(parser)
    _virtual_options(parser)
    target = parser.add_argument_group("the target")
    bound = target.add_mutually_exclusive_group()
    bound.add_argument("--latency-bound-s", metavar="S", type=float, help="seconds, e.g. 0.033 for 33 ms")
    bound.add_argument("--latency-bound-ratio", metavar="R", type=float, help="x the base mode's latency, e.g. 1.2")
    bound.add_argument("--no-latency-bound", action="store_true", default=None, help="energy alone counts")
    target.add_argument("--latency-percentile", metavar="P", type=float, help="default 95")
    target.add_argument("--max-power-w", metavar="W", type=float, help="mean of the total rail")
    target.add_argument(
        "--objective",
        choices=("energy", "energy_delay", "throughput"),
        help="what is minimised: joules (default), joules x seconds, or the time per inference under --max-power-w",
    )
    target.add_argument("--min-gain", metavar="G", type=float, help="smallest saving worth a change (default 0.02)")
    _job_options(parser)
    _told_while_it_runs(parser)


def _job_options(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("the job")
    what = job.add_mutually_exclusive_group()
    what.add_argument("--workload", metavar="KEY", help="a name of [workloads] in the configuration")
    what.add_argument(
        "--engine", metavar="PLAN", type=Path, action="append", help="a TensorRT plan; several are compared"
    )
    job.add_argument(
        "--fixed-mode",
        action="store_true",
        help="touch no knob, compare only engines, batch sizes and instances; with any NVIDIA GPU, as any user",
    )
    job.add_argument("--rate-hz", metavar="HZ", type=float, help="requests a second, e.g. a camera's 30")
    job.add_argument("--budget", metavar="N", type=int, help="windows before the finals (default 15)")
    samplers = ("joule", "descent", "tpe", "random", "grid")
    job.add_argument("--sampler", choices=samplers, help="how the next one is chosen (default joule)")
    job.add_argument(
        "--risk", metavar="P", type=float, help="start no mode that breaks the bound more likely, e.g. 0.05; joule only"
    )
    job.add_argument("--grid", metavar="ExGxC", help="points of EMC x GPU x CPU, e.g. 3x8x4; or full")
    job.add_argument(
        "--clocks", choices=("capped", "locked", "both"), help="caps alone (default), or pinned by jetson_clocks"
    )
    job.add_argument("--seed", metavar="N", type=_seed, help="seed of everything random in the job")
    job.add_argument("--max-duration-s", metavar="S", type=float, help="the search ends in time for it (default 1800)")
    job.add_argument(
        "--keep-samples", action="store_true", default=None, help="raw samples, an npz a window, below the state folder"
    )
    job.add_argument(
        "--fresh", action="store_true", default=None, help="ignore what earlier jobs measured on this board"
    )
    job.add_argument("--export", metavar="GRID.csv", type=Path, help="write what was measured as a board for --table")
    job.add_argument("--fail-on-no-gain", action="store_true", help="exit 4 where nothing better was found")
    job.add_argument("--dry-run", action="store_true", help="say what would be done and how long it takes")


def _plain(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    _board_options(parser)
    _output_options(parser)
    return parser


def _service_verbs(verbs: Any) -> None:
    install = verbs.add_parser(
        "install",
        help="put the service on this machine: users, units, configuration; again: an upgrade",
        description="Makes users and folders, lays the units, enables and starts them. A configuration that is there "
        "stays. May be run again, with another version too.",
    )
    install.add_argument("--metrics-listen", metavar="ADDR:PORT", help="for a new configuration")
    what = install.add_mutually_exclusive_group()
    what.add_argument("--prefix", metavar="DIR", type=Path, help="lay the files below DIR, start nothing")
    what.add_argument("--stop-only", action="store_true", help="an upgrade's first half: end the job, stop")
    uninstall = verbs.add_parser(
        "uninstall",
        help="put the board's own mode in force, then take the service off",
        description="Puts the board's own mode in force, then stops and removes the units.",
    )
    uninstall.add_argument("--purge", action="store_true", help="remove configuration and state too")
    uninstall.add_argument("--leave-board", action="store_true", help="touch no knob, whatever is in force")
    uninstall.add_argument("--prefix", metavar="DIR", type=Path, help="take the files below DIR away, stop nothing")
    for parser in (install, uninstall):
        _output_options(parser)


def _worker(verbs: Any) -> None:
    parser = verbs.add_parser(
        "worker",
        help="the part that writes power modes; started by systemd or by `jouled run`, not by hand",
        description="Serves the socket it was started with: one command at a time, one JSON object a line.",
    )
    _board_options(parser)
    parser.add_argument("--fd", metavar="N", type=int, help="serve one command on the socket inherited as N, then end")
    parser.add_argument("--virtual-workload", metavar="NAME", help="default yolov8s-640")
    parser.add_argument("--virtual-seed", metavar="N", type=_seed, help="another specimen of the board (default 0)")


def _run(verbs: Any) -> None:
    run = verbs.add_parser(
        "run",
        help="the daemon: keep the winner in force, serve the control socket and the metrics",
        description="The daemon. Under systemd it talks to jouled-worker.socket; in the foreground, anywhere with "
        "--virtual or --table, the worker is its child.",
    )
    _board_options(run)
    _virtual_options(run)
    run.add_argument("--socket", metavar="PATH", type=Path, help="the control socket (default control.sock in DIR)")
    run.add_argument("--metrics-listen", metavar="ADDR:PORT", help="default 127.0.0.1:19761; an empty text: off")


def _doctor(verbs: Any) -> None:
    parser = _plain(verbs, "doctor", "can this board be tuned, and if not, why; with the lines to type")
    _virtual_options(parser)
    parser.epilog = "Ends with 0 where a job can run, else with what one would end with (jouled --help has the codes)."
    parser.add_argument(
        "--report", metavar="FILE", type=Path, help="write what was found, without serial numbers, addresses and names"
    )
    parser.add_argument(
        "--no-probe",
        action="store_false",
        dest="probe",
        help="do not try nvpmodel; else, as root, the board's own mode is applied to itself, which changes nothing",
    )


def _report(verbs: Any) -> None:
    parser = _plain(verbs, "report", "a job as one page of HTML and figures for a paper; needs matplotlib, no root")
    parser.add_argument("job", metavar="JOB|latest", nargs="?", default="latest", help="its id (default: the latest)")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where the files go; others in it stay (default jouled-report-JOB)"
    )


def _front(verbs: Any) -> None:
    parser = _plain(verbs, "front", "what latency buys: the least energy for each bound, measured and predicted")
    parser.add_argument("job", metavar="JOB|latest", nargs="?", default="latest", help="its id (default: the latest)")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every candidate there; - is standard output")


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="jouled",
        description="Finds and keeps the power mode in which a Jetson spends the least energy per inference "
        "within a latency bound.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jouled {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="-v decisions, -vv each write of a knob")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    _tune(verbs)
    _run(verbs)
    _plain(verbs, "modes", "the power modes that a job may choose from, and what is known of each")
    _plain(verbs, "verify", "compare the board with what should be in force; exit 5 where a knob differs")
    _plain(verbs, "restore", "finish what a crash left: put every knob back as it was found")
    forget = _plain(verbs, "forget", "let a quarantined power mode be tried again")
    which = forget.add_mutually_exclusive_group(required=True)
    which.add_argument("mode", metavar="MODE", nargs="?", help="as `jouled modes` prints it")
    which.add_argument("--held", action="store_true", help="end the state held, after two boards going down in a row")
    _worker(verbs)
    _doctor(verbs)
    _report(verbs)
    _front(verbs)
    check = verbs.add_parser("check-config", help="check the configuration file and print what is in force")
    check.add_argument("--config", metavar="FILE", type=Path, help="default /etc/jouled/config.toml")
    check.add_argument("--print", action="store_true", dest="show", help="each value and where it came from")
    _output_options(check)
    _service_verbs(verbs)
    add_service_verbs(verbs, _board_options, _output_options)
    virtual = verbs.add_parser("virtual", help="do to a virtual board what happens to a real one")
    actions = virtual.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("faults", help="the faults that --fault knows by name")
    reboot = actions.add_parser("reboot", help="boot it again through NVIDIA's stock path")
    _board_options(reboot)
    _output_options(reboot)
    return parser
