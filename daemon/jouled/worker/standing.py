"""What should be in force, and what the worker must know and do before it writes a knob."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jouled.board.applied import Applied
from jouled.board.apply import ClocksPolicy
from jouled.board.board import Board
from jouled.board.host import Host
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.lock import hold_board
from jouled.board.pending import read_quarantine
from jouled.board.snapshot import boot_id, read_origin
from jouled.board.switches import check_switches
from jouled.board.winner import home_of
from jouled.errors import ConfigError, NotPermittedError
from jouled.job.mending import Mended, mend
from jouled.job.site import Site
from jouletune.space import PowerMode

Enter = Callable[[str], None]


def no_phase(_: str) -> None:
    """For who has no deadlines."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should be in force; `home`: what rest means (minima, idle states), as before the first write in a boot."""

    mode: PowerMode
    policy: ClocksPolicy
    home: Knobs


def should_be(host: Host, board: Board, in_force: Applied | None) -> Wanted:
    """The winner that is in force, else the reference as it was found. Raises StateError."""
    found = read_knobs(host.sysfs, board.domains)
    if in_force is not None:
        return Wanted(in_force.candidate.mode, ClocksPolicy(in_force.policy), home_of(found, in_force))
    origin = read_origin(host.state_dir)
    ground = {"conf_sha256": board.conf_sha256, "base_mode": board.base_mode.name, "boot_id": boot_id(host.sysfs)}
    home = origin.knobs if origin is not None and origin.holds(**ground) else found
    return Wanted(board.reference, ClocksPolicy.CAPPED, home)


def require_write(site: Site, verb: str) -> None:
    """Raise NotPermittedError or ConfigError where no knob may be written at all."""
    if not site.host.privileged:
        raise NotPermittedError(f"{verb} writes to the board and needs root", hint=f"sudo jouled {verb} …")
    if site.config.mode == "observe":
        raise ConfigError('mode: wanted "tune", got "observe": no knob is ever written', hint="change mode first")
    check_switches(site.host.sysfs)


def check_held(host: Host) -> None:
    """Raise NotPermittedError after two unclean boots within 30 min. Raises StateError."""
    if read_quarantine(host.state_dir).is_held(host.clock.wall_s()):
        raise NotPermittedError(
            "the board went down twice within 30 min while modes of jouled were in force: no knob is written for 24 h",
            hint="find out why it went down; then: jouled forget --held",
        )


@contextmanager
def held_to_write(site: Site, verb: str, *, who: str, enter: Enter = no_phase) -> Iterator[Mended]:
    """Hold the board, mended, and be allowed to write to it.

    Raises NotPermittedError (root, kill switch, held), ConfigError (observe), BusyError, and what `mend` raises.
    """
    require_write(site, verb)
    with hold_board(site.host, verb=verb):
        enter("restore")
        mended = mend(site.host, who=who, why=verb)
        check_held(site.host)
        yield mended
