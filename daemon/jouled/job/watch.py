"""What the watch after an apply is there to see: does what was chosen keep the limits while the load runs on?

Only what is *shown* counts. In finals a candidate has to prove that it keeps the bound; here its failing has to be
proved, or a mode at the bound would come and go with the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jouletune.decision import ReasonCode
from jouletune.measurement import Measurement
from jouletune.trial import Infeasible, Invalid, Limits, Trial, judge_feasibility

_Z = 1.645  # one-sided 95 %
# Windows of one mode scatter by about 0.5 % in latency (that no single window shows of itself), and the bound may have
# come from a window, too: only what lies further out is a breach.
SCATTER_RATIO = _Z * math.sqrt(2.0) * 0.005
_BREACHES = frozenset(
    {
        Invalid.THROTTLED,
        Invalid.MODE_CHANGED,
        Invalid.CLOCKS_MOVED,
        Invalid.WORKLOAD_DIED,
        Invalid.WORKLOAD_HUNG,
    }
)
_NO_POWER = frozenset({Invalid.SENSOR_GAP, Invalid.SENSOR_STALLED, Invalid.SENSOR_ZERO})


@dataclass(frozen=True, slots=True)
class Breach:
    """Why what was applied cannot stay."""

    code: ReasonCode
    text: str


def breach_of(watched: Trial, limits: Limits) -> Breach | None:
    """The breach that the window `watched` shows, if any. Readings that fail are none: they show nothing."""
    reason = watched.invalid
    if reason in _BREACHES:
        assert reason is not None
        return Breach(ReasonCode(reason.value), f"{reason.value} in the watch: {watched.detail}".rstrip(": "))
    window = watched.measurement
    if window is None:
        if watched.infeasible is Infeasible.LATENCY:
            return Breach(ReasonCode.LATENCY, "requests in the watch were clearly slower than the bound allows")
        return None
    return next(_breaches(window, limits, is_power_known=reason not in _NO_POWER), None)


def _breaches(window: Measurement, limits: Limits, *, is_power_known: bool) -> Iterator[Breach]:
    if limits.bound_s is not None and window.latency_lower_s > (1.0 + SCATTER_RATIO) * limits.bound_s:
        yield Breach(
            ReasonCode.LATENCY,
            f"p{window.latency_percentile:g} of the latency in the watch was {window.latency_s:.4g} s (at least "
            f"{window.latency_lower_s:.4g} s), bound {limits.bound_s:.4g} s",
        )
    if limits.max_power_w is not None and is_power_known:
        least_w = window.power_w * (1.0 - _Z * window.energy_se_j / window.energy_j)
        if least_w > limits.max_power_w:
            text = f"{window.power_w:.2f} W in the watch (at least {least_w:.2f} W), limit {limits.max_power_w:g} W"
            yield Breach(ReasonCode.MAX_POWER, text)
    if judge_feasibility(window, replace(limits, bound_s=None, max_power_w=None)) is Infeasible.RATE_NOT_REACHED:
        rate_hz = window.requests / window.duration_s
        text = f"{rate_hz:.2f} requests a second ended in the watch, {limits.rate_hz or 0.0:g} arrive"
        yield Breach(ReasonCode.RATE_NOT_REACHED, text)
