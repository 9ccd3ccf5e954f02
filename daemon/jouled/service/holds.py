"""Does a winner still hold? It does for one board, one workload, one bound and one clocks policy (ARCHITECTURE 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jouled.board.applied import Applied
from jouled.config import Config
from jouled.workload import marks as workload_marks

_SAME_RATIO = 1e-6


@dataclass(frozen=True, slots=True)
class Stale:
    """`kind`: fingerprint, engine, bound or policy; `text`: what differs, old and new."""

    kind: str
    text: str


def staleness(
    winner: Applied,
    config: Config,
    *,
    fingerprint: Mapping[str, str] | None,
    workload: str,
    asked: Mapping[str, Any],
    marks: Mapping[str, str] | None = None,
) -> Stale | None:
    """Why it no longer holds; None while it does.

    `asked` is what its own request named: that is judged by the request, all else by the configuration. A mode that
    was applied by hand (it names no workload) holds for the board alone. `fingerprint` None is no verdict. `marks` are
    those of its workload now (workload/marks.py); None: not known.
    """
    if fingerprint is not None and (differing := _differing(winner.fingerprint, fingerprint)):
        return Stale("fingerprint", differing)
    if not winner.workload:
        return None
    if winner.workload not in (workload, asked.get("workload")):
        return Stale("engine", f"it was tuned for workload {winner.workload}, now it is {workload}")
    if marks and (changed := next(workload_marks.differing(winner.workload_marks, marks), None)) is not None:
        return Stale("engine", workload_marks.what_changed(changed, winner.workload_marks, marks))
    text = _bound(winner, config, asked)
    if text:
        return Stale("bound", text)
    clocks = asked.get("clocks") or config.grid.clocks
    if clocks not in ("both", winner.policy):
        return Stale("policy", f"it was tuned for clocks {winner.policy}, now they are {clocks}")
    return None


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = [name for name in (*then, *(name for name in now if name not in then)) if then.get(name) != now.get(name)]
    shown = ", ".join(f"{name} was {_short(then.get(name))} and is {_short(now.get(name))}" for name in names)
    return f"the board is another: {shown}" if names else ""


def _short(value: str | None) -> str:
    return "absent" if value is None else value[:12]


def _seconds(bound_s: float | None) -> str:
    return "none" if bound_s is None else f"{bound_s:g} s"


def _bound(winner: Applied, config: Config, asked: Mapping[str, Any]) -> str:
    """A ratio is taken of the reference as the job measured it, so of it only the limit can be judged."""
    target, bound_s = config.target, winner.latency_bound_s
    limit_s = target.max_latency_bound_s
    if limit_s is not None and (bound_s is None or bound_s > limit_s * (1 + _SAME_RATIO)):
        return f"its latency bound is {_seconds(bound_s)}, at most {_seconds(limit_s)} is allowed now"
    percentile = asked.get("latency_percentile") or target.latency_percentile
    if bound_s is not None and winner.latency_percentile != percentile:
        return f"its bound is on the {winner.latency_percentile:g}th percentile, now it is the {percentile:g}th"
    if asked.get("latency_bound_s") or asked.get("latency_bound_ratio"):
        return ""
    if target.no_latency_bound and bound_s is not None:
        return f"its latency bound is {_seconds(bound_s)}, now there is none"
    wanted_s = target.latency_bound_s
    if wanted_s is not None and (bound_s is None or abs(bound_s - wanted_s) > _SAME_RATIO * wanted_s):
        return f"its latency bound is {_seconds(bound_s)}, now it is {_seconds(wanted_s)}"
    return ""
