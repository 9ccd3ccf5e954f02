"""What the worker, the ledger and the requests tell, as far as the daemon relies on it: each of its type, or none.

A line that is JSON, and in a file has its checksum, may still come from another version, or from a mistake. It is
checked once, where it comes in, and whatever follows may take it at its word. What is not named here is passed on as
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct


class Reason(Struct):
    """Of an outcome."""

    code: str | None = None
    text: str | None = None


class Side(Struct):
    """One candidate's numbers."""

    energy_j: float
    latency_s: float | None = None
    latency_upper_s: float | None = None
    power_w: float | None = None


class Result(Struct):
    """What came of a job, or of a short command."""

    job: str | None = None
    outcome: str | None = None
    reason: Reason | None = None
    workload: str | None = None
    inference_name: str | None = None
    base_mode: str | None = None
    rail: str | None = None
    applied: bool | None = None
    duration_s: float | None = None
    disturbed_s: float | None = None
    trials: int | None = None
    invalid: dict[str, int] | None = None
    saving_ratio: float | None = None
    saving_interval: tuple[float, float] | None = None
    reference: Side | None = None
    winner: Side | None = None
    mismatches: tuple[str, ...] = ()


class Trial(Struct):
    """Of a job."""

    index: int | None = None
    policy: str | None = None
    invalid: str | None = None
    measurement: dict[str, Any] | None = None


class Trouble(Struct):
    """Why a command was not carried out."""

    kind: str = ""
    text: str = ""
    hint: str = ""
    exit_code: int = 1


class Event(Struct):
    """The worker's, and a job's in the ledger."""

    event: str
    job: str | None = None
    wall_s: float | None = None
    phase: str | None = None
    expected_s: float | None = None
    trial: Trial | None = None
    ok: bool = False
    result: Result | None = None
    error: Trouble | None = None


class Change(Struct):
    """Of knobs, in the ledger."""

    event: str
    job: str | None = None
    wall_s: float | None = None
    why: str | None = None
    to: str | None = None
    to_source: str | None = None


class Request(Struct):
    """What was asked for."""

    event: str
    job: str | None = None
    wall_s: float | None = None
    who: str | None = None
    verb: str | None = None
    request: dict[str, Any] | None = None


class Ended(Struct):
    """How a job ended that is not in the ledger."""

    event: str
    job: str | None = None
    wall_s: float | None = None
    presumed: bool = True
    outcome: str | None = None
    reason: Reason | None = None
    result: Result | None = None


class Worker(Struct):
    """Who answers: of a hello or a busy."""

    pid: int = 0
    verb: str = ""
    protocol: int | None = None


class Greeting(Struct):
    """The worker's first line."""

    hello: Worker | None = None
    busy: Worker | None = None


def check(message: Mapping[str, Any], shape: type[Struct]) -> None:
    """Raise ValueError that says what is not of its type."""
    try:
        msgspec.convert(message, shape)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


_LINES: Mapping[str, type[Struct]] = {
    "request": Request,
    "ended": Ended,
    "applied": Change,
    "rolled_back": Change,
    "restored": Change,
}


def check_line(record: Mapping[str, Any]) -> None:
    """Of the ledger or the requests. Raises ValueError."""
    check(record, _LINES.get(str(record.get("event")), Event))
