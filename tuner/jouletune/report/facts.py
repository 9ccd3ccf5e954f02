"""What a report is made of: one job, as its ledger has it, and what follows from that. No file, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jouletune.front import Front, FrontRow
from jouletune.objective import Objective
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.trial import Trial

SIDES = ("reference", "incumbent", "winner", "best_seen")


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative standard errors of one mean energy, by source. Windows repeat; the sensor's steps stay."""

    repeat: float
    between: float
    sensor: float

    @property
    def repeats(self) -> float:
        """What more windows would lessen: the windows' own errors and the spread between them."""
        return math.hypot(self.repeat, self.between)


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate under one clocks policy, over all its windows; `energy_j` None: it was cut short or not loaded."""

    index: int
    policy: str
    energy_j: float | None
    half_j: float
    latency_s: float | None
    latency_upper_s: float | None
    feasible: bool
    why_not: str
    windows: int
    spread: Spread | None


@dataclass(frozen=True, slots=True)
class Window:
    """One trial, good or not, and how warm the board was."""

    trial: Trial
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class Trace:
    """Power over one window: seconds from its begin, watts. `role`: a name of SIDES; `source`: samples or ledger."""

    role: str
    number: int
    t_s: Sequence[float]
    power_w: Sequence[float]
    window_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration that is no default: value as TOML, the option that stands for it ("": none)."""

    key: str
    value: str
    option: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `result`: what `jouled tune --json` printed, whole; made up as far as known where there is no end.

    `simulated`: "virtual", "recorded" or "". `began_utc`: "2026-12-01 10:20 UTC". `front`: what the model makes of
    all valid windows; None: too little is known. `command`: what does the job again. `keep_command`:
    what keeps power traces too.
    """

    result: Mapping[str, Any]
    has_ended: bool = True
    began_utc: str = ""
    simulated: str = ""
    sampler: str = ""
    budget: int | None = None
    meter_why: str = ""
    space: Space | None = None
    windows: tuple[Window, ...] = ()
    points: tuple[Point, ...] = ()
    front: Front | None = None
    traces: tuple[Trace, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    keep_command: str = ""
    ended_phase: str = ""

    @property
    def beliefs(self) -> Mapping[int, FrontRow]:
        """What the model makes of each candidate; empty where it says nothing."""
        return {} if self.front is None else {row.index: row for row in self.front.candidates}

    @property
    def objective(self) -> Objective:
        """What was to be least."""
        return Objective(self.result.get("objective") or Objective.ENERGY)

    @property
    def cost_noun(self) -> str:
        """The word for it: energy, energy × latency, time."""
        return self.objective.noun.replace(" x ", " × ")

    @property
    def noun(self) -> str:
        """What energy is counted by."""
        return str(self.result.get("inference_name") or "inference")

    @property
    def is_fixed(self) -> bool:
        """Was no knob touched?"""
        return self.result.get("method") == "fixed"

    @property
    def bound_s(self) -> float | None:
        """The latency bound in force."""
        bound_s = self.result.get("latency_bound_s")
        return None if bound_s is None else float(bound_s)

    @property
    def percentile(self) -> str:
        """p95, or the word."""
        value = self.result.get("latency_percentile")
        return "latency" if value is None else f"p{value:g}"

    def side(self, name: str) -> Mapping[str, Any] | None:
        """One of SIDES."""
        found: Mapping[str, Any] | None = self.result.get(name)
        return found

    def shown(self) -> str | None:
        """The side that is compared with the reference: the winner, else the best seen where it is another."""
        for name in ("winner", "best_seen"):
            side = self.side(name)
            if side is not None and (name == "winner" or not same_arm(side, self.side("reference"))):
                return name
        return None

    def index(self, name: str) -> int | None:
        """The index of a side's candidate in `space`."""
        side = self.side(name)
        return None if side is None or self.space is None else self.space.index_of(candidate_of(side))

    def point(self, name: str) -> Point | None:
        """The point of a side."""
        side, index = self.side(name), self.index(name)
        if side is None:
            return None
        return next((one for one in self.points if one.index == index and one.policy == side["policy"]), None)

    def roles(self) -> dict[tuple[int, str], str]:
        """(index, policy) → the side that stands there; the winner before the incumbent before the reference."""
        found: dict[tuple[int, str], str] = {}
        for name in (self.shown(), "incumbent", "reference"):
            side = None if name is None else self.side(name)
            index = None if name is None else self.index(name)
            if name is not None and side is not None and index is not None:
                found.setdefault((index, str(side["policy"])), name)
        reference = self.index("reference")
        if reference is None and self.space is not None and self.windows:
            found.setdefault((self.space.reference, "capped"), "reference")
        if (home := self.side("reference")) is not None and reference is not None:
            key = (reference, str(home["policy"]))
            found[key] = "reference" if found.get(key) == "incumbent" else found.get(key, "reference")
        return found

    def role_title(self, role: str) -> str:
        """What a side is called."""
        words = {
            "reference": "first variant" if self.is_fixed else f"own mode ({self.result.get('base_mode') or NO_MODE})",
            "incumbent": "in force before" if self.result.get("applied") else "in force",
            "winner": "to deploy" if self.is_fixed else "winner",
            "best_seen": "best other",
        }
        return words[role]


NO_MODE = "reference"


def candidate_of(side: Mapping[str, Any]) -> Candidate:
    """The candidate of a side of the result."""
    return Candidate(PowerMode(**side["mode"]), Variant(**side["variant"]))


def same_arm(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Are two sides the same candidate under the same policy?"""
    names = ("mode", "variant", "policy")
    return other is not None and all(one[name] == other[name] for name in names)


def lookup(result: Mapping[str, Any], path: str) -> Any:
    """`winner.energy_j` of a result; None where something on the way is null."""
    value: Any = result
    for part in path.split("."):
        if value is None:
            return None
        value = value[int(part)] if isinstance(value, (list, tuple)) else value.get(part)
    return value
