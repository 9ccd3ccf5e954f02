"""Each change of what is in force: one line of the ledger and one of the log, with who, from, to and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from jouled.board.host import Host
from jouled.board.modename import mode_name
from jouled.ledger import Ledger
from jouletune.space import PowerMode

log = logging.getLogger(__name__)

APPLIED = "applied"
ROLLED_BACK = "rolled_back"
RESTORED = "restored"
AS_FOUND = "as found"
_TOLD = ("event", "from", "to", "why", "who")  # in the log, and as fields in the journal


@dataclass(frozen=True, slots=True)
class Change:
    """`to_source`: whose mode it is (reference, winner, other; "" after a restore). `to` None: the knobs as found."""

    event: str
    who: str
    why: str
    before: PowerMode | None
    to: PowerMode | None
    to_source: str = ""

    def line(self, wall_s: float, **more: Any) -> dict[str, Any]:
        """The ledger's line."""
        return {
            "v": 1,
            "event": self.event,
            "wall_s": wall_s,
            "who": self.who,
            "why": self.why,
            "from": None if self.before is None else mode_name(self.before),
            "to": AS_FOUND if self.to is None else mode_name(self.to),
            "to_source": self.to_source,
            **more,
        }


def keep_change(host: Host, change: Change, **more: Any) -> None:
    """Write both lines; the ledger's is on the disk on return. Raises StateError."""
    line = change.line(host.clock.wall_s(), **more)
    told = [line[name] for name in _TOLD]
    fields = {f"JOULED_{name.upper()}": value for name, value in zip(_TOLD, told, strict=True) if value is not None}
    log.info("%s: %s -> %s (%s), asked by %s", *told, extra=fields)
    Ledger(host.state_dir).append(line)
