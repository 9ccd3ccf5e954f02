"""What goes over the worker's socket: one JSON object a line, UTF-8, at most 64 KiB, either way (stdlib only).

    worker → client   {"hello": {"protocol", "version", "pid"}}   or   {"busy": {"pid", "verb"}} and the end
    client → worker   one command
    worker → client   the events of a job; last {"event": "finished", "ok", "result", "error"} and the end
    client → worker   {"command": "cancel", "reason": "user"} while a job runs

The end of the client's stream during a job is a cancel with the reason `daemon_gone`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from jouled.errors import JouledError, UsageError
from jouletune.decision import ReasonCode

PROTOCOL = 1
MAX_LINE_BYTES = 64 << 10
FIRST_LINE_S = 10.0  # a side that has said nothing for so long is not there

Message = Mapping[str, Any]
T = TypeVar("T")


class ProtocolError(UsageError):
    """The other side does not speak this protocol."""


# --- lines --------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """One line. Raises ProtocolError where it is too long, or holds what strict JSON cannot."""
    try:
        data = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"no line of the worker's protocol: {error}") from error
    if len(data) > MAX_LINE_BYTES:
        raise ProtocolError(f"wanted a line of at most {MAX_LINE_BYTES} bytes, got {len(data)}")
    return data


def fitting(event: Message) -> Message:
    """`event`, without its `space` where that is too long for a line (some 1,350 candidates): the ledger has it."""
    if "space" not in event:
        return event
    try:
        encode(event)
    except ProtocolError:
        return {name: value for name, value in event.items() if name != "space"}
    return event


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def decode(line: bytes) -> dict[str, Any]:
    """The object in one line, without its end. Raises ProtocolError."""
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"wanted one JSON object a line, got {line[:60]!r}: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"wanted a JSON object, got {line[:60]!r}")
    return message


class LineReader:
    """Makes messages of the bytes of a stream, however they are cut; a longer line than `limit` is never kept."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that `data` completes. Raises ProtocolError: then the stream is of no more use."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= self._limit or any(len(line) >= self._limit for line in lines):
            self._rest = b""
            raise ProtocolError(f"wanted lines of at most {self._limit} bytes, got a longer one")
        return [decode(line) for line in lines]


# --- what the worker says -----------------------------------------------------------------------------------


def hello(version: str, pid: int) -> Message:
    """The worker is ready for a command."""
    return {"hello": {"protocol": PROTOCOL, "version": version, "pid": pid}}


def busy(pid: int, verb: str) -> Message:
    """Somebody holds the board, or is being served."""
    return {"busy": {"pid": pid, "verb": verb}}


def error_of(error: JouledError) -> Message:
    """What went wrong, as `finished` tells it."""
    return {"kind": type(error).__name__, "text": str(error), "hint": error.hint, "exit_code": error.exit_code}


def finished(result: Mapping[str, Any] | None, error: Message | None) -> Message:
    """The last line; `ok`: the command was carried out, whatever a job came to."""
    return {"event": "finished", "ok": error is None, "result": result, "error": error}


# --- what a client says -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tune:
    """Run a job called `job`; `request` holds names of jouled.config.REQUEST_KEYS, and dry_run."""

    job: str
    who: str
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Apply:
    """Put `target` (winner, reference, or a mode's name) in force."""

    target: str
    why: str
    who: str


@dataclass(frozen=True, slots=True)
class Rollback:
    """Apply the reference and reject the winner."""

    who: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Finish what a crash left."""

    who: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare every knob with what should be in force."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Lift what is held against `mode`, or with `held` the state of that name."""

    mode: str | None
    held: bool
    who: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job that runs."""

    reason: str


Command = Tune | Apply | Rollback | Restore | Verify | Forget | Cancel

REASONS = tuple(code.value for code in ReasonCode)
WHYS = ("user", "boot", "mismatch", "pause", "stop", "uninstall")
_JOB = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9.-]{1,80}")
_UNKNOWN = "unknown"


class _Getter:
    """The fields of one message, each taken once; what is left over is an error."""

    def __init__(self, message: Message) -> None:
        self._left = dict(message)

    def _wrong(self, name: str, wanted: str, got: object) -> ProtocolError:
        return ProtocolError(f"{name}: wanted {wanted}, got {got!r:.60}")

    def text(self, name: str, pattern: re.Pattern[str], wanted: str) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self._wrong(name, wanted, value)
        return value

    def text_or_none(self, name: str, pattern: re.Pattern[str], wanted: str) -> str | None:
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.text(name, pattern, wanted)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self._left.pop(name, None)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}", value)
        return str(value)

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def map(self, name: str) -> dict[str, Any]:
        value = self._left.pop(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return value

    def who(self) -> str:
        """Who asked, for the ledger: shown, never obeyed."""
        value = self._left.pop("who", _UNKNOWN)
        if not isinstance(value, str):
            raise self._wrong("who", "a text", value)
        return "".join(character if character.isprintable() else "?" for character in value[:120])

    def done(self, made: T) -> T:
        if self._left:
            raise ProtocolError(f"no such field: {next(iter(self._left))!r:.60}")
        return made


def _tune(fields: _Getter) -> Command:
    job = fields.text("job", _JOB, "12 hexadecimal digits")
    return Tune(job=job, who=fields.who(), request=fields.map("request"))


def _apply(fields: _Getter) -> Command:
    target = fields.text("target", _NAME, "winner, reference or a mode's name")
    return Apply(target=target, why=fields.one_of("why", WHYS), who=fields.who())


def _forget(fields: _Getter) -> Command:
    mode = fields.text_or_none("mode", _NAME, "a mode's name")
    held = fields.flag("held")
    if (mode is not None) == held:
        raise ProtocolError("forget: wanted either a mode or held, got both or neither")
    return Forget(mode=mode, held=held, who=fields.who())


_PARSERS: Mapping[str, Callable[[_Getter], Command]] = {
    "tune": _tune,
    "apply": _apply,
    "rollback": lambda fields: Rollback(fields.who()),
    "restore": lambda fields: Restore(fields.who()),
    "verify": lambda fields: Verify(),
    "forget": _forget,
    "cancel": lambda fields: Cancel(fields.one_of("reason", REASONS)),
}


def parse_command(message: Message) -> Command:
    """The command in `message`. Raises ProtocolError for one that is unknown, or a field that is wrong or unknown."""
    left = dict(message)
    name = left.pop("command", None)
    parse = _PARSERS.get(name) if isinstance(name, str) else None
    if parse is None:
        raise ProtocolError(f"command: wanted one of {', '.join(_PARSERS)}, got {name!r:.60}")
    fields = _Getter(left)
    return fields.done(parse(fields))
