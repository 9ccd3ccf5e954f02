"""Which boards and releases jouled turns knobs on, and the sentence for those where it does not."""

from __future__ import annotations

from jouled.board.identity import BoardFile, Identity
from jouled.errors import NotSupportedError

OLDEST_L4T = 35
BEST_EFFORT_L4T = 35
NEWEST_L4T = 39
OBSERVE = 'set mode = "observe" to have it watched; `jouled tune --table GRID.csv` tunes on what was recorded of it'


def tuning_refusal(identity: Identity, file: BoardFile) -> str | None:
    """Why no knob of this board is turned, in one sentence; None: it may be tuned."""
    major = identity.l4t_major
    if major is not None and major < OLDEST_L4T:
        return f"L4T {identity.l4t} is not supported: jouled tunes boards of L4T 36, 38 and 39, at best effort of 35"
    return file.refusal or None


def release_warning(identity: Identity) -> str | None:
    """What there is to say about the release; None where it is one that jouled was written for."""
    major = identity.l4t_major
    if major == BEST_EFFORT_L4T:
        return f"L4T {identity.l4t} is looked after at best effort only; jouled was written for L4T 36, 38 and 39"
    if major is not None and major > NEWEST_L4T:
        return f"L4T {identity.l4t} is newer than jouled knows: every knob is read back, as always"
    return None


def require_tunable(identity: Identity, file: BoardFile) -> None:
    """Raise NotSupportedError where no knob of this board is turned."""
    why = tuning_refusal(identity, file)
    if why is not None:
        raise NotSupportedError(why, hint=OBSERVE)
