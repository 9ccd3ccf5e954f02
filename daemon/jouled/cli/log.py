"""Where the log goes: stderr; under systemd the journal, with fields where systemd-python is installed."""

from __future__ import annotations

import logging
import os
import sys

from jouled.service.notify import PriorityFormatter, is_journal, journal_handler

_STDERR = 2


def set_up_log(level: int, identifier: str) -> None:
    """For the whole process. `identifier` is the journal's SYSLOG_IDENTIFIER."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if is_journal(_STDERR, os.environ):
        level = min(level, logging.INFO)  # a unit's decisions and changes are always kept
        handler.setFormatter(PriorityFormatter())
        with_fields = journal_handler(identifier)
        if with_fields is not None:
            handler = with_fields
            handler.setFormatter(logging.Formatter("%(message)s"))  # the rest is in the fields
    logging.basicConfig(level=level, handlers=[handler])


def lacks_journal_fields() -> bool:
    """Does the log go to the journal as plain lines, for want of systemd-python?"""
    return any(isinstance(handler.formatter, PriorityFormatter) for handler in logging.getLogger().handlers)


def error_mark() -> str:
    """What goes before a line of an error that is printed, so that the journal counts it among the errors."""
    return "<3>" if is_journal(_STDERR, os.environ) else ""
