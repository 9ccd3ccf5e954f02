"""Trials of an ordinary Optuna study, told by anyone: what they say of a candidate.

The value is the energy of one item in joules. User attributes: `latency_s`, without which a finished trial says
nothing that a search could use; if known `energy_se_j` and `latency_se_s` (standard errors), and `feasible` where more
than the latency decides that. A pruned trial was cut short as too slow, a failed one is no evidence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from jouletune.errors import SearchError
from jouletune.space import Space
from jouletune.standing import Failed, Infeasible, Measured, Noted, Observation, encode, window_of

REASON = "failed"


def read_trial(trial: FrozenTrial, space: Space, bound_s: float | None) -> Noted | None:
    """The candidate and what was seen of it; None: not finished, or none of `space`. Raises SearchError."""
    if not trial.state.is_finished() or set(trial.params) != {axis.name for axis in space.axes}:
        return None
    index = space.at([trial.params[axis.name] for axis in space.axes])
    return None if index is None else (index, encode(_observation(trial, space, index, bound_s)))


def _observation(trial: FrozenTrial, space: Space, index: int, bound_s: float | None) -> Observation:
    if trial.state is TrialState.PRUNED:
        return Infeasible()
    if trial.state is not TrialState.COMPLETE:
        return Failed(REASON)
    window = window_of(
        _number(trial, "value", None if trial.values is None else trial.values[0], least=math.ulp(0.0)),
        _number(trial, "energy_se_j", trial.user_attrs.get("energy_se_j", 0.0), least=0.0),
        _number(trial, "latency_s", trial.user_attrs.get("latency_s"), least=math.ulp(0.0)),
        _number(trial, "latency_se_s", trial.user_attrs.get("latency_se_s", 0.0), least=0.0),
        items=space.candidates[index].variant.items,
        bound_s=bound_s,
    )
    return _judged(trial, window)


def _judged(trial: FrozenTrial, window: Measured) -> Measured:
    """What the other side says of its feasibility counts, too: the attribute, or Optuna's constraints."""
    feasible = trial.user_attrs.get("feasible", all(value <= 0.0 for value in trial.constraints.values()))
    return replace(window, feasible=window.feasible and bool(feasible))


def _number(trial: FrozenTrial, name: str, value: Any, *, least: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        wanted = "above 0" if least > 0.0 else "of at least 0"
        raise SearchError(
            f"trial {trial.number}: {name}: wanted a finite number {wanted}, got {value!r}; the value is the energy in "
            'joules, the latency is told by trial.set_user_attr("latency_s", seconds) before the trial ends'
        )
    return float(value)
