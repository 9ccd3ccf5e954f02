"""How a candidate's power mode comes into force while a job runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jouled.board.apply import Actuator, ClocksPolicy
from jouled.board.pending import Why, clear_survived, note_apply
from jouletune.space import PowerMode


class Modes(Protocol):
    """What puts a mode in force, and looks whether it still is. `method` names it in results."""

    @property
    def method(self) -> str: ...

    def enter(self, mode: PowerMode, policy: ClocksPolicy, why: Why) -> None:
        """`mode` is in force and verified on return. Raises ApplyError, ToolAbsentError, StuckError, StateError."""

    def verify(self, mode: PowerMode, policy: ClocksPolicy) -> tuple[str, ...]:
        """A sentence for each knob that is not as `mode` wants it."""

    def survived(self) -> None:
        """The board has come through a window in the mode."""


@dataclass(frozen=True, slots=True)
class BoardModes:
    """Written to the board; each is noted before, so that one which takes the board down is not tried again."""

    actuator: Actuator
    fingerprint: Mapping[str, str]

    @property
    def method(self) -> str:
        """nvpmodel or sysfs."""
        return self.actuator.method.value

    def enter(self, mode: PowerMode, policy: ClocksPolicy, why: Why) -> None:
        """As `Modes.enter`."""
        note_apply(self.actuator.host, mode, why=why, fingerprint=self.fingerprint)
        self.actuator.apply(mode, policy)

    def verify(self, mode: PowerMode, policy: ClocksPolicy) -> tuple[str, ...]:
        """As `Modes.verify`."""
        return self.actuator.verify(mode, policy)

    def survived(self) -> None:
        """As `Modes.survived`."""
        clear_survived(self.actuator.host)
