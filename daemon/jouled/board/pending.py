"""A mode that takes the board down is not tried again.

pending.json says, before each apply, which mode is about to be in force; a clean end removes it. One that
is found after a boot means that the board went down in that mode: a strike. quarantine.json keeps the strikes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from jouled.board.applied import mode_from_fields
from jouled.board.host import Host
from jouled.board.modename import mode_name
from jouled.board.snapshot import boot_id
from jouled.board.statefile import Fields, read_state, remove_durably, set_aside, write_state
from jouled.errors import StateError
from jouletune.space import PowerMode

log = logging.getLogger(__name__)

_PENDING_SCHEMA = "jouled.pending/1"
_QUARANTINE_SCHEMA = "jouled.quarantine/1"
SURVIVED_S = 120.0  # so long in a mode, and it did not take the board down
SECOND_STRIKE_S = 24 * 3600.0
HELD_WITHIN_S = 30 * 60.0
HELD_FOR_S = 24 * 3600.0


_Word = TypeVar("_Word", bound=Enum)


class Why(str, Enum):
    """What a mode is applied for."""

    TRIAL = "trial"
    WINNER = "winner"
    REFERENCE = "reference"


class Standing(str, Enum):
    """What became of a mode in which the board went down."""

    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Pending:
    """The mode that is, or is about to be, in force. `since_s`: seconds since boot; `wall_s`: Unix time."""

    mode: PowerMode
    why: Why
    fingerprint: Mapping[str, str]
    boot_id: str
    since_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Strike:
    """One time that the board went down: in which boot, and when that was noticed (Unix time)."""

    boot_id: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One mode on one board (fingerprint) and its strikes, the oldest first."""

    mode: PowerMode
    fingerprint: Mapping[str, str]
    standing: Standing
    why: Why
    strikes: tuple[Strike, ...]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """All that is known of modes that took the board down; `unclean`: boots after which one was pending."""

    entries: tuple[Entry, ...] = ()
    unclean: tuple[Strike, ...] = field(default=())

    def standing(self, mode: PowerMode, fingerprint: Mapping[str, str]) -> Standing | None:
        """None: nothing is held against `mode` on this board."""
        found = self._entry(mode, fingerprint)
        return None if found is None else found.standing

    def quarantined(self, fingerprint: Mapping[str, str]) -> tuple[PowerMode, ...]:
        """The modes that must not be applied on this board."""
        return tuple(
            entry.mode
            for entry in self.entries
            if entry.standing is Standing.QUARANTINED and dict(entry.fingerprint) == dict(fingerprint)
        )

    def is_held(self, now_wall_s: float) -> bool:
        """Two unclean boots within 30 min, the last one less than 24 h ago: no knob may be written."""
        if len(self.unclean) < 2:
            return False
        before, last = self.unclean[-2:]
        # A clock that ran back (no RTC) neither makes two boots near nor keeps the board held for ever.
        is_near = abs(last.wall_s - before.wall_s) <= HELD_WITHIN_S
        return is_near and abs(now_wall_s - last.wall_s) < HELD_FOR_S

    def _entry(self, mode: PowerMode, fingerprint: Mapping[str, str]) -> Entry | None:
        for entry in self.entries:
            if entry.mode == mode and dict(entry.fingerprint) == dict(fingerprint):
                return entry
        return None


@dataclass(frozen=True, slots=True)
class BootNote:
    """What a boot tells of the one before it. `standing`: of `pending`'s mode from now on."""

    pending: Pending | None = None
    standing: Standing | None = None
    text: str = ""


def pending_path(state_dir: Path) -> Path:
    """Where pending.json lies."""
    return state_dir / "pending.json"


def quarantine_path(state_dir: Path) -> Path:
    """Where quarantine.json lies."""
    return state_dir / "quarantine.json"


# --- pending ------------------------------------------------------------------------------------------------


def note_apply(host: Host, mode: PowerMode, *, why: Why, fingerprint: Mapping[str, str]) -> None:
    """`mode` is about to be applied; on return that is on the disk. Raises StateError: do not apply."""
    pending = Pending(mode, why, dict(fingerprint), boot_id(host.sysfs), host.clock.boottime_s(), host.clock.wall_s())
    write_state(pending_path(host.state_dir), _PENDING_SCHEMA, {**asdict(pending), "why": why.value})


def read_pending(state_dir: Path) -> Pending | None:
    """The mode that is pending. Raises StateError."""
    fields = read_state(pending_path(state_dir), _PENDING_SCHEMA)
    if fields is None:
        return None
    return Pending(
        mode=mode_from_fields(fields.fields("mode")),
        why=_word(fields, "why", Why),
        fingerprint=fields.text_map("fingerprint"),
        boot_id=fields.text("boot_id"),
        since_s=fields.number("since_s"),
        wall_s=fields.number("wall_s"),
    )


def clear_pending(host: Host) -> bool:
    """A clean end: forget what is pending in this boot. One of another boot stays for `note_boot`."""
    pending = read_pending(host.state_dir)
    if pending is None or pending.boot_id != boot_id(host.sysfs):
        return False
    return remove_durably(pending_path(host.state_dir))


def clear_survived(host: Host) -> bool:
    """Forget what is pending when the board has stood it for 120 s of this boot."""
    pending = read_pending(host.state_dir)
    if pending is None or host.clock.boottime_s() - pending.since_s < SURVIVED_S:
        return False
    return clear_pending(host)


# --- quarantine ---------------------------------------------------------------------------------------------


def _word(fields: Fields, name: str, kind: type[_Word]) -> _Word:
    text = fields.text(name)
    try:
        return kind(text)
    except ValueError:
        wanted = ", ".join(item.value for item in kind)
        raise StateError(
            f"{fields.path}: {name}: wanted one of {wanted}, got {text[:40]!r}",
            hint=f"move it away: mv {fields.path} {fields.path}.damaged",
        ) from None


def _strikes(fields: Fields, name: str) -> tuple[Strike, ...]:
    return tuple(Strike(item.text("boot_id"), item.number("wall_s")) for item in fields.list_of_fields(name))


def read_quarantine(state_dir: Path) -> Quarantine:
    """What is held against which mode. Raises StateError: then no mode may be applied."""
    fields = read_state(quarantine_path(state_dir), _QUARANTINE_SCHEMA)
    if fields is None:
        return Quarantine()
    entries = tuple(
        Entry(
            mode=mode_from_fields(item.fields("mode")),
            fingerprint=item.text_map("fingerprint"),
            standing=_word(item, "standing", Standing),
            why=_word(item, "why", Why),
            strikes=_strikes(item, "strikes"),
        )
        for item in fields.list_of_fields("entries")
    )
    return Quarantine(entries, _strikes(fields, "unclean"))


def _write_quarantine(state_dir: Path, quarantine: Quarantine) -> None:
    entries = [
        {**asdict(entry), "standing": entry.standing.value, "why": entry.why.value} for entry in quarantine.entries
    ]
    content = {"entries": entries, "unclean": [asdict(strike) for strike in quarantine.unclean[-8:]]}
    write_state(quarantine_path(state_dir), _QUARANTINE_SCHEMA, content)


def _judge(why: Why, strikes: tuple[Strike, ...]) -> Standing:
    """A trial's mode at the first strike; a winner at the second within 24 h (also if the clock ran back)."""
    if why is Why.TRIAL:
        return Standing.QUARANTINED
    again = len(strikes) > 1 and strikes[-1].wall_s - strikes[-2].wall_s <= SECOND_STRIKE_S
    return Standing.QUARANTINED if again else Standing.SUSPECT


def _with_strike(quarantine: Quarantine, pending: Pending, strike: Strike) -> Quarantine:
    if any(known.boot_id == strike.boot_id for known in quarantine.unclean):
        return quarantine  # killed after the write and before pending.json was removed
    struck = replace(quarantine, unclean=(*quarantine.unclean, strike))
    if pending.why is Why.REFERENCE:
        return struck
    old = quarantine._entry(pending.mode, pending.fingerprint)
    strikes = (*(old.strikes if old is not None else ()), strike)
    standing = _judge(pending.why, strikes)
    if old is not None and old.standing is Standing.QUARANTINED:
        standing = Standing.QUARANTINED
    entry = Entry(pending.mode, dict(pending.fingerprint), standing, pending.why, strikes)
    return replace(struck, entries=(*(known for known in quarantine.entries if known is not old), entry))


def _read_or_set_aside(host: Host) -> tuple[Pending | None, str]:
    try:
        return read_pending(host.state_dir), ""
    except StateError as error:
        aside = set_aside(pending_path(host.state_dir))
        return None, f"{error}; set aside as {aside.name}: which mode was in force is not known"


def note_boot(host: Host) -> BootNote:
    """Judge what the last boot left pending; to be called, with the board held, before any knob is written.

    May be killed and called again without a second strike. Raises StateError when quarantine.json cannot be
    read or written: then no mode may be applied.
    """
    pending, text = _read_or_set_aside(host)
    if pending is None or pending.boot_id == boot_id(host.sysfs):
        return BootNote(text=text)
    strike = Strike(pending.boot_id, host.clock.wall_s())
    quarantine = _with_strike(read_quarantine(host.state_dir), pending, strike)
    _write_quarantine(host.state_dir, quarantine)
    remove_durably(pending_path(host.state_dir))
    standing = quarantine.standing(pending.mode, pending.fingerprint)
    what = "nothing is held against it" if standing is None else f"it is {standing.value} from now on"
    text = f"the board went down in {mode_name(pending.mode)} ({pending.why.value}): {what}"
    log.warning("%s", text)
    return BootNote(pending, standing, text)


def forget(host: Host, mode: PowerMode) -> bool:
    """Lift what is held against `mode`, on every fingerprint; False when nothing was. Raises StateError."""
    quarantine = read_quarantine(host.state_dir)
    kept = tuple(entry for entry in quarantine.entries if entry.mode != mode)
    if len(kept) == len(quarantine.entries):
        return False
    _write_quarantine(host.state_dir, replace(quarantine, entries=kept))
    return True


def forget_held(host: Host) -> bool:
    """End the state `held`; False when there was none. Raises StateError."""
    quarantine = read_quarantine(host.state_dir)
    if not quarantine.is_held(host.clock.wall_s()):
        return False
    _write_quarantine(host.state_dir, replace(quarantine, unclean=()))
    return True
