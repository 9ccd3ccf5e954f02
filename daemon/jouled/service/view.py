"""The board as the daemon sees it: discovered once, looked at often, never written.

Discovery is done anew only when something that it rests on has changed: the boot, the stock conf, nvpmodel's mode, the
set of cores that are online, the GPU's devfreq device.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from jouled.board.applied import Applied
from jouled.board.board import Board, discover, fingerprint
from jouled.board.discover import CPU_ROOT, DEVFREQ_ROOT
from jouled.board.host import Host
from jouled.board.knobs import STATUS_PATH, Knobs, read_knobs
from jouled.board.nvpmodel import CONF_PATH
from jouled.board.snapshot import boot_id
from jouled.board.target import ClocksPolicy, Target, target_of
from jouled.board.verify import compare
from jouled.config import Config
from jouled.errors import ApplyError, JouledError, StateError, SysfsError
from jouled.service.sensors import Sensors
from jouled.state import BoardInfo, Readings, Source
from jouled.worker.standing import should_be
from jouletune.space import PowerMode

log = logging.getLogger(__name__)

_Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """One comparison: what should be in force, and each knob that is not so."""

    source: Source
    mode: PowerMode
    policy: str
    mismatches: tuple[str, ...]
    unknown: int


class View:
    """One board. `board` None: it could not be read at the last look, and `trouble` says why."""

    def __init__(self, host: Host, config: Config) -> None:
        self._host = host
        self._config = config
        self._signature: _Signature | None = None
        self._targets: dict[tuple[PowerMode, str, str], Target] = {}
        self._home: Knobs | None = None
        self.sensors = Sensors(host.sysfs, config.board.total_rails)
        self.board: Board | None = None
        self.marks: dict[str, str] | None = None
        self.boot_id = ""
        self.trouble = ""
        self.discoveries = 0

    # --- who it is ----------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See whether it is still the board that was discovered. Raises nothing: `trouble` says what is wrong."""
        try:
            signature = self._sign()
            if signature != self._signature or self.board is None:
                self._discover()
            self._signature = signature
            self.trouble = ""
        except JouledError as error:
            if str(error) != self.trouble:
                log.warning("the board cannot be read: %s", error)
            self.trouble, self.board, self.marks, self._signature = str(error), None, None, None

    def _sign(self) -> _Signature:
        sysfs = self._host.sysfs
        self.boot_id = boot_id(sysfs)
        parts: list[object] = [self.boot_id, sysfs.read(f"{CPU_ROOT}/online")]
        for path in (CONF_PATH, STATUS_PATH):
            try:
                found = os.stat(sysfs.real(path))
                parts.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError as error:
                parts.append(error.errno)
        if self.board is not None and self.board.domains.gpu is None:
            parts.append(tuple(sysfs.glob(f"{DEVFREQ_ROOT}/*")))
        return tuple(parts)

    def _discover(self) -> None:
        self.discoveries += 1
        self._targets.clear()
        self._home = None
        self.sensors.renew()
        self.board = discover(self._host, self._config.board.base_mode)
        self.marks = fingerprint(self.board, self._config.board.external_w)

    def info(self) -> BoardInfo | None:
        """For show."""
        if self.board is None:
            return None
        identity = self.board.identity
        return BoardInfo(
            self.board.file.name,
            identity.model,
            identity.module,
            identity.carrier,
            identity.soc,
            identity.l4t,
            self.board.base_mode.name,
        )

    # --- whether it is as it should be --------------------------------------------------------------------

    def look(self, applied: Applied | None, *, source: Source, compares: bool = True) -> Look | None:
        """Compare every knob with `applied`, None: with the reference. None where the board cannot be read.

        Not `compares`: somebody turns the knobs just now, so only what should be in force is told.
        """
        board = self.board
        if board is None:
            return None
        mode, policy = board.reference, ClocksPolicy.CAPPED
        if applied is not None:
            mode, policy = applied.candidate.mode, ClocksPolicy(applied.policy)
        if not compares:
            return Look(source, mode, policy.value, (), 0)
        try:
            target = self._target(board, mode, policy, applied)
            found = compare(self._host.sysfs, board, target)
        except (ApplyError, SysfsError) as error:
            return Look(source, mode, policy.value, (str(error),), 0)
        return Look(source, target.mode, policy.value, found.mismatches, len(found.unknown))

    def _target(self, board: Board, mode: PowerMode, policy: ClocksPolicy, applied: Applied | None) -> Target:
        key = (mode, policy.value, "" if applied is None else f"{applied.decision_id} {applied.wall_s}")
        target = self._targets.get(key)
        if target is None:
            home = self._reference_home(board) if applied is None else applied.home
            target = self._targets[key] = target_of(board, home, mode, policy)
        return target

    def _reference_home(self, board: Board) -> Knobs:
        """What rest means in the reference: as found before the first write of this boot, else as it is now."""
        if self._home is None:
            try:
                self._home = should_be(self._host, board, None).home
            except StateError as error:
                log.warning("what rest means is taken from the board: %s", error)
                self._home = read_knobs(self._host.sysfs, board.domains)
        return self._home

    # --- its sensors --------------------------------------------------------------------------------------

    def readings(self, wall_s: float, *, with_caps: bool = True) -> Readings:
        """All sensors, now; without `with_caps` no knob is read. What gives no value is left out and counted."""
        return self.sensors.read(self.board, wall_s, self._host.clock.monotonic_s(), with_caps=with_caps)

    def count_energy(self, period_s: float) -> None:
        """Read the rails for their joules, `period_s` after the last time."""
        if self.board is None:
            return
        now_s = self._host.clock.monotonic_s()
        self.sensors.energy.add(now_s, self.sensors.rails_w(self.board, now_s), period_s=period_s)
