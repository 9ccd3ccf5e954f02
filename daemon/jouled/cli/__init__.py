"""The command line: reads options, calls the rest, says what came of it, ends with the right code."""

from __future__ import annotations

import argparse
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Sequence

from jouled.cli.arguments import here, make_parser, options_of
from jouled.cli.log import error_mark, set_up_log
from jouled.cli.service_arguments import is_for_service
from jouled.errors import JouledError
from jouletune.errors import JouletuneError, SpaceError

_LEVELS = (logging.ERROR, logging.INFO, logging.DEBUG)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the process's exit code."""
    try:
        code = _main(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as with `| head`
        return _without_reader()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.ENXIO):
            raise
        return _without_reader()
    return code


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± and µ is no reason to fail
    arguments = make_parser().parse_args(argv)
    level = _LEVELS[min(arguments.verbose, len(_LEVELS) - 1)]
    set_up_log(level, "jouled-worker" if arguments.verb in ("worker", "restore") else "jouled")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except JouledError as error:
        _say(arguments, error, hint=error.hint)
        return error.exit_code
    except JouletuneError as error:
        _say(arguments, error, hint="")
        return 2 if isinstance(error, SpaceError) else 1


def _without_reader() -> int:
    """Nobody reads what is printed; the interpreter's own last flush must not say so again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def _calm_blas() -> None:
    """Before numpy is loaded: on the search's small matrices threads of its BLAS wait for each other, where cores are
    busy ten times as long. A workload inherits nothing of this: children have an environment of their own.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _run(arguments: argparse.Namespace) -> int:
    """Import what the verb needs, and nothing else."""
    _calm_blas()
    verb: str = arguments.verb
    if verb == "tune":
        from jouled.cli.tune import tune

        return tune(arguments)
    if verb == "run":
        from jouled.cli.run import run as serve

        return serve(arguments)
    if is_for_service(arguments):
        from jouled.cli.remote import ask

        return ask(arguments)
    if verb in ("apply", "rollback"):
        from jouled.cli import worker as doing

        return doing.apply(arguments) if verb == "apply" else doing.rollback(arguments)
    if verb in ("install", "uninstall"):
        from jouled.cli import install as service

        return service.install(arguments) if verb == "install" else service.uninstall(arguments)
    if verb == "worker":
        from jouled.cli.worker import worker

        return worker(arguments)
    return _run_here(arguments)


def _run_here(arguments: argparse.Namespace) -> int:
    """What this process does by itself, and mostly only looks."""
    verb: str = arguments.verb
    if verb == "check-config":
        from jouled.cli.check import check_config

        return check_config(arguments)
    if verb == "report":
        from jouled.cli.report import report

        return report(arguments)
    if verb == "front":
        from jouled.cli.front import front

        return front(arguments)
    if verb == "doctor":
        from jouled.cli.doctor import doctor

        return doctor(arguments)
    if verb == "modes":
        from jouled.cli.modes import modes

        return modes(arguments)
    from jouled.cli import verbs

    run = {
        "verify": verbs.verify,
        "restore": verbs.restore,
        "forget": verbs.forget,
        "virtual": verbs.virtual,
    }[verb]
    return run(arguments)


def _say(arguments: argparse.Namespace, error: Exception, *, hint: str) -> None:
    hint = here(hint, options_of(arguments))
    if getattr(arguments, "json", False):
        kind = getattr(error, "kind", type(error).__name__)
        print(json.dumps({"schema": 1, "error": {"kind": kind, "text": str(error), "hint": hint}}))
    first, *rest = str(error).splitlines() or [type(error).__name__]
    lines = [f"jouled {arguments.verb}: {first}", *(f"  {line}" for line in rest)]
    lines += [f"  to do: {hint}"] if hint else []
    mark = error_mark()
    print("\n".join(mark + line for line in lines), file=sys.stderr)
