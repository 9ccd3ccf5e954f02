"""Endings of a job before its decision: raised where they are seen, and what an invalid window makes of a job."""

from __future__ import annotations

from collections.abc import Mapping

from jouletune.decision import Decision, Outcome
from jouletune.trial import Invalid

FAILS_AS: Mapping[Invalid, Outcome] = {
    Invalid.APPLY_FAILED: Outcome.BOARD_FAULT,
    Invalid.SENSOR_GAP: Outcome.BOARD_FAULT,
    Invalid.SENSOR_STALLED: Outcome.BOARD_FAULT,
    Invalid.SENSOR_ZERO: Outcome.BOARD_FAULT,
    Invalid.WORKLOAD_DIED: Outcome.WORKLOAD_FAILED,
    Invalid.WORKLOAD_HUNG: Outcome.WORKLOAD_FAILED,
    Invalid.GPU_BUSY: Outcome.BOARD_BUSY,
}


class Stopped(Exception):
    """The job ends before its finals, with this decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.text)
        self.decision = decision
