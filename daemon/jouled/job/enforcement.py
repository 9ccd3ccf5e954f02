"""A decision put in force: applied, verified, written down, and only then is the way back (the snapshot) given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jouled.board.applied import Applied, delete_applied, write_applied
from jouled.board.apply import ClocksPolicy
from jouled.board.host import Host
from jouled.board.modename import mode_name
from jouled.board.pending import Why, clear_pending
from jouled.board.restore import start_units
from jouled.board.snapshot import boot_id, delete_snapshot
from jouled.board.winner import delete_winner, write_winner
from jouled.errors import ApplyError, StateError
from jouled.job.blocks import Arm
from jouled.job.changes import APPLIED, ROLLED_BACK, Change, keep_change
from jouled.job.ending import Stopped
from jouled.job.events import Events
from jouled.job.ground import Ground
from jouled.job.modes import Modes
from jouled.job.request import Request
from jouled.job.trials import Trials
from jouled.job.watch import Breach, breach_of
from jouled.workload.runner import Runner
from jouletune.decision import Outcome, stopped
from jouletune.space import PowerMode

Committed = tuple[bool, Sequence[str]]
"""(the snapshot is gone: what is in force stays, warnings)."""


def watched(events: Events, trials: Trials, arm: Arm, watch_s: float) -> Breach | None:
    """Watch what was chosen under load for so long (0: not at all); what it breaks. Raises as Trials.watch."""
    if watch_s <= 0.0:
        return None
    events.emit("phase", phase="watching", watch_s=watch_s)
    trial = trials.watch(arm.index, arm.policy, watch_s)
    breach = breach_of(trial, trials.limits)
    if breach is None and trial.invalid is not None:
        events.warn(f"the watch after the job shows little: {trial.invalid.value} {trial.detail}".rstrip())
    return breach


@dataclass(frozen=True)
class Enforcement:
    """What a job does with its decision. Whatever it raises, the snapshot still lies there: restore."""

    host: Host
    request: Request
    ground: Ground
    modes: Modes
    trials: Trials
    runner: Runner
    events: Events
    units: tuple[str, ...]
    job: str
    who: str
    workload_marks: Mapping[str, str]

    def apply_winner(self, arm: Arm, bound_s: float | None) -> Committed:
        """Raises Stopped (rolled_back), ApplyError, StateError and what Actuator.apply and Trials.watch raise."""
        ground, host = self.ground, self.host
        if arm.index == ground.space.reference and arm.policy is ClocksPolicy.CAPPED:
            return self.apply_reference()
        candidate = ground.space.candidates[arm.index]
        self.events.emit("phase", phase="apply")
        self.modes.enter(candidate.mode, arm.policy, Why.WINNER)
        self.events.emit("mode_applied", index=arm.index, policy=arm.policy.value)
        applied = Applied(
            candidate=candidate,
            policy=arm.policy.value,
            fingerprint=ground.fingerprint,
            workload=self.request.workload,
            latency_bound_s=bound_s,
            latency_percentile=self.request.config.target.latency_percentile,
            decision_id=self.job,
            wall_s=host.clock.wall_s(),
            boot_id=boot_id(host.sysfs),
            home=ground.home,
            workload_marks=self.workload_marks,
        )
        write_applied(host.state_dir, applied)
        write_winner(host.state_dir, applied)
        self._keep(Change(APPLIED, self.who, "tuned", self._incumbent(), candidate.mode, "winner"))
        self._watch(arm, candidate.mode)
        return self._commit(candidate.mode, arm.policy)

    def _watch(self, arm: Arm, mode: PowerMode) -> None:
        """The load runs on for a while in what was chosen. Raises Stopped where it breaks what was asked for."""
        breach = watched(self.events, self.trials, arm, self.request.config.job.watch_s)
        if breach is not None:
            self._keep(Change(ROLLED_BACK, self.who, breach.code.value, mode, None))
            raise Stopped(stopped(Outcome.ROLLED_BACK, breach.code, f"{mode_name(mode)}: {breach.text}"))

    def _incumbent(self) -> PowerMode:
        return self.ground.space.candidates[self.ground.incumbent.index].mode

    def _keep(self, change: Change) -> None:
        keep_change(self.host, change, job=self.job)

    def apply_reference(self) -> Committed:
        """Back to the board's own mode, for good. Raises as `apply_winner`."""
        reference = self.ground.reference
        self.events.emit("phase", phase="apply")
        self.modes.enter(reference, ClocksPolicy.CAPPED, Why.REFERENCE)
        delete_applied(self.host.state_dir)
        delete_winner(self.host.state_dir)  # a decision has taken its place
        self._keep(Change(APPLIED, self.who, "tuned", self._incumbent(), reference, "reference"))
        return self._commit(reference, ClocksPolicy.CAPPED)

    def _commit(self, mode: PowerMode, policy: ClocksPolicy) -> Committed:
        """What is in force is written down; the units run again, and have changed nothing; the snapshot goes."""
        self.runner.close()
        _, warnings = start_units(self.host, self.units)
        mismatches = self.modes.verify(mode, policy) if self.units else ()
        if mismatches:
            names = ", ".join(self.units)
            text = f"{names} changed the power mode when started again: {mismatches[0]}"
            raise ApplyError(text, mismatches=mismatches)
        delete_snapshot(self.host.state_dir)
        try:
            clear_pending(self.host)
        except StateError as error:
            warnings = (*warnings, f"pending.json stays: {error}")
        return True, warnings
