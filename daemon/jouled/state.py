"""What the daemon knows, as values: everything that `status` and the metrics show, and the face that shows it.

The service makes a new `Status` whenever something has changed; whoever answers a request or a scrape reads the last
one and nothing else. `*_wall_s` is Unix time. None: not known, never 0.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol

from jouled.board.modename import mode_name
from jouled.errors import BusyError, JouledError, NotPermittedError
from jouletune.space import PowerMode

SCHEMA = 1


class State(str, Enum):
    """What the daemon is about."""

    IDLE = "idle"
    WAITING = "waiting"
    TUNING = "tuning"
    WATCHING = "watching"
    HELD = "held"
    CONTESTED = "contested"
    STUCK = "stuck"
    PAUSED = "paused"
    DISABLED = "disabled"
    OBSERVE = "observe"


class Source(str, Enum):
    """Whose mode the board is in. `other`: neither the winner's nor the reference's."""

    WINNER = "winner"
    REFERENCE = "reference"
    OTHER = "other"


# --- errors of the face -------------------------------------------------------------------------------------


class Conflict(BusyError):
    """Something runs that excludes this (409). `job`: its id; "" where another process holds the board."""

    def __init__(self, message: str, *, job: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job = job


class Refused(NotPermittedError):
    """The configuration or the board's standing forbids this now (403)."""


class Unavailable(JouledError):
    """No worker answers (503)."""

    exit_code = 10


class Failed(JouledError):
    """The worker tried and did not succeed: `kind` is the class of its error (500, or what the kind says)."""

    def __init__(self, message: str, *, kind: str, exit_code: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.exit_code = exit_code


# --- the snapshot -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """Which board this is."""

    name: str
    model: str
    module: str
    carrier: str
    soc: str
    l4t: str | None
    base_mode: str


@dataclass(frozen=True, slots=True)
class InForce:
    """The mode that should be in force now, and whether the board was seen to be in it.

    `verified`: every knob that could be read was right at the last look (`last_verify_wall_s`). The worker, which can
    read what only root may, has looked at `last_full_verify_wall_s`. `unknown` counts knobs that the daemon may not
    read.
    """

    source: Source
    mode: PowerMode
    policy: str
    since_wall_s: float | None
    verified: bool = False
    last_verify_wall_s: float | None = None
    last_full_verify_wall_s: float | None = None
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """What was measured of a candidate in the deciding job."""

    energy_j: float
    latency_s: float | None
    latency_upper_s: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Winner:
    """The last winner, in force or not; numbers are None where the ledger no longer holds its job.

    `stale`: the sentence that says for what it no longer holds; "" while it holds.
    """

    mode: PowerMode
    policy: str
    workload: str
    job: str
    decided_wall_s: float
    latency_bound_s: float | None
    latency_percentile: float
    inference_name: str = "inference"
    rail: str | None = None
    saving_ratio: float | None = None
    saving_interval: tuple[float, float] | None = None
    reference: Side | None = None
    applied: Side | None = None
    stale: str = ""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job that runs now. `eta_wall_s`: when it should be over, by its own announcement."""

    id: str
    who: str
    phase: str
    trials: int
    started_wall_s: float
    eta_wall_s: float | None


@dataclass(frozen=True, slots=True)
class LastJob:
    """How the last job ended."""

    id: str
    outcome: str
    reason_code: str | None
    reason_text: str
    ended_wall_s: float | None
    saving_ratio: float | None


@dataclass(frozen=True, slots=True)
class Next:
    """What happens next by itself, "" where nothing does; `due_wall_s`: when."""

    text: str = ""
    due_wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the daemon's start, jobs and trials as far back as the ledger goes."""

    reapplies: int = 0
    rollbacks: int = 0
    jobs: Mapping[str, int] = field(default_factory=dict)
    trials: int = 0
    trials_invalid: Mapping[str, int] = field(default_factory=dict)
    disturbed_s: float = 0.0
    last_tune_wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """The sensors at the last look; what gave no value is left out. `sensor_errors` and `energy_j` (only with
    `metrics.energy_counter_hz`) count since the start.
    """

    wall_s: float
    rail_power_w: Mapping[str, float] = field(default_factory=dict)
    clock_hz: Mapping[str, int] = field(default_factory=dict)
    clock_cap_hz: Mapping[str, int] = field(default_factory=dict)
    temperature_c: Mapping[str, float] = field(default_factory=dict)
    throttle_events: Mapping[str, int] = field(default_factory=dict)
    sensor_errors: Mapping[str, int] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """Everything. `board` and `in_force` are None where the board cannot be read (then `warnings` say why).

    `mismatches`: a sentence a knob that is wrong. `to_do`: what its operator should do, "" where nothing.
    `paused_until_wall_s` is None without an end; only in state `paused` it means anything.
    """

    state: State
    since_wall_s: float
    wall_s: float
    board: BoardInfo | None = None
    in_force: InForce | None = None
    winner: Winner | None = None
    mismatches: tuple[str, ...] = ()
    job: RunningJob | None = None
    last_job: LastJob | None = None
    next: Next = Next()
    to_do: str = ""
    paused_until_wall_s: float | None = None
    quarantined: int = 0
    counters: Counters = Counters()
    readings: Readings | None = None
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    journal_fields: bool = False
    started_wall_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """JSON's own types only; every key is always there. Each mode has its name beside it."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        for name, part in (("in_force", self.in_force), ("winner", self.winner)):
            if part is not None:
                plain[name]["name"] = mode_name(part.mode)
        return {"schema": SCHEMA, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# --- the face -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks. `may_change`: root, or a member of `control.change_group`."""

    uid: int
    gid: int
    pid: int
    name: str
    may_change: bool

    def __str__(self) -> str:
        return f"uid {self.uid} ({self.name})"


class Face(Protocol):
    """What the service does for those who ask it.

    The methods that change something raise Refused (403), Conflict (409), ConfigError or UsageError (422),
    Unavailable (503), Failed, and StateError where the request could not be kept; nothing was done then. Whether the
    peer may change anything was checked before.
    """

    def status(self) -> Status: ...

    def decision(self) -> Mapping[str, Any] | None:
        """The result of the last job that decided something, as `tune --json` prints it."""

    def modes(self) -> Mapping[str, Any]:
        """As `modes --json` prints it. Raises Unavailable where the board cannot be read."""

    def history(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """Requests, jobs' ends and changes of knobs, the newest first, at most `limit`."""

    def job(self, job: str) -> Mapping[str, Any] | None:
        """A job's request, state and result; None: no such job is known."""

    def trials(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        """A job's trials in their order; None: no such job is known."""

    def job_events(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        """What a job has said so far, as the ledger has it; None: no such job is known."""

    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        """Events from now on. Who reads too slowly is dropped: the iterator ends."""

    async def retune(self, request: Mapping[str, Any], peer: Peer) -> str:
        """Begin a job; its id. The request is on the disk when this returns."""

    async def cancel(self, job: str, peer: Peer) -> None:
        """Ask the job to stop. Raises UsageError where no such job runs."""

    async def apply(self, target: str, peer: Peer) -> Mapping[str, Any]: ...

    async def rollback(self, peer: Peer) -> Mapping[str, Any]: ...

    async def verify(self, peer: Peer) -> Mapping[str, Any]: ...

    async def pause(self, for_s: float | None, peer: Peer) -> Mapping[str, Any]:
        """None: until further notice; 0: end the pause."""

    async def forget(self, mode: str | None, held: bool, peer: Peer) -> Mapping[str, Any]: ...
