"""A mode that takes the board down is not tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.pending import (
    Standing,
    Why,
    clear_pending,
    clear_survived,
    forget,
    forget_held,
    note_apply,
    note_boot,
    pending_path,
    quarantine_path,
    read_pending,
    read_quarantine,
)
from jouled.board.process import Processes
from jouled.board.statefile import read_state, write_state
from jouled.board.sysfs import Sysfs
from jouled.errors import StateError
from jouletune.space import PowerMode

MODE = PowerMode(12, 1_497_600_000, 816_000_000, 3_199_000_000)
OTHER = PowerMode(12, 729_600_000, 306_000_000, 2_133_000_000)
BOARD = {"module": "p3701-0005", "base_mode": "MAXN"}
HOUR_S = 3600.0


class SetClock(SystemClock):
    """A clock that shows what it was set to."""

    boot_s = 1000.0
    now_s = 1_800_000_000.0

    def boottime_s(self) -> float:
        return self.boot_s

    def wall_s(self) -> float:
        return self.now_s


class Board:
    """A board that can boot and let time pass."""

    def __init__(self, root: Path) -> None:
        self.clock = SetClock()
        self.host = Host(Sysfs(root), Processes(), self.clock, root / "state")
        self._boots = iter(range(1000))
        self.boot()

    def boot(self, *, after_s: float = 60.0) -> None:
        self.clock.now_s += after_s
        self.clock.boot_s = 30.0
        self.host.sysfs.place("/proc/sys/kernel/random/boot_id", f"boot-{next(self._boots)}\n")

    def apply(self, mode: PowerMode, why: Why, fingerprint: dict[str, str] | None = None) -> None:
        note_apply(self.host, mode, why=why, fingerprint=fingerprint or BOARD)

    def standing(self, mode: PowerMode = MODE) -> Standing | None:
        return read_quarantine(self.host.state_dir).standing(mode, BOARD)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_trial_is_quarantined_at_the_first_strike(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    board.boot()
    note = note_boot(board.host)
    assert note.standing is Standing.QUARANTINED
    assert note.pending is not None
    assert note.pending.mode == MODE
    assert read_quarantine(board.host.state_dir).quarantined(BOARD) == (MODE,)
    assert board.standing(OTHER) is None
    assert read_pending(board.host.state_dir) is None


def test_winner_is_suspect_then_quarantined_within_a_day(board: Board) -> None:
    board.apply(MODE, Why.WINNER)
    board.boot()
    assert note_boot(board.host).standing is Standing.SUSPECT
    assert read_quarantine(board.host.state_dir).quarantined(BOARD) == ()
    board.apply(MODE, Why.WINNER)
    board.boot(after_s=23 * HOUR_S)
    assert note_boot(board.host).standing is Standing.QUARANTINED


def test_winner_stays_suspect_when_the_second_strike_is_a_day_later(board: Board) -> None:
    for _ in range(2):
        board.apply(MODE, Why.WINNER)
        board.boot(after_s=25 * HOUR_S)
        assert note_boot(board.host).standing is Standing.SUSPECT


def test_clock_that_ran_back_counts_as_within_a_day(board: Board) -> None:
    for after_s in (60.0, -1000 * HOUR_S):
        board.apply(MODE, Why.WINNER)
        board.boot(after_s=after_s)
        note = note_boot(board.host)
    assert note.standing is Standing.QUARANTINED


def test_reference_is_never_held_against_anybody(board: Board) -> None:
    for _ in range(3):
        board.apply(MODE, Why.REFERENCE)
        board.boot()
        note = note_boot(board.host)
        assert note.standing is None
        assert note.pending is not None
    assert read_quarantine(board.host.state_dir).entries == ()


def test_quarantine_of_a_trial_survives_a_strike_as_winner(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    board.boot()
    note_boot(board.host)
    board.apply(MODE, Why.WINNER)
    board.boot(after_s=100 * HOUR_S)
    assert note_boot(board.host).standing is Standing.QUARANTINED


def test_quarantine_holds_for_its_fingerprint_alone(board: Board) -> None:
    board.apply(MODE, Why.TRIAL, {**BOARD, "base_mode": "MODE_50W"})
    board.boot()
    note_boot(board.host)
    assert board.standing() is None


def test_clean_stop_leaves_nothing(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    assert clear_pending(board.host)
    board.boot()
    assert note_boot(board.host).pending is None
    assert board.standing() is None


def test_what_another_boot_left_pending_is_not_cleared(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    board.boot()
    assert not clear_pending(board.host)
    assert note_boot(board.host).standing is Standing.QUARANTINED


def test_pending_of_this_boot_is_no_strike(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    assert note_boot(board.host).pending is None
    assert read_pending(board.host.state_dir) is not None


@pytest.mark.parametrize(("stood_s", "is_cleared"), [(119.0, False), (121.0, True)])
def test_mode_that_was_stood_for_two_minutes_is_cleared(board: Board, stood_s: float, is_cleared: bool) -> None:
    board.apply(MODE, Why.TRIAL)
    board.clock.boot_s += stood_s
    assert clear_survived(board.host) is is_cleared


def test_note_boot_killed_before_its_last_step_strikes_once(board: Board) -> None:
    board.apply(MODE, Why.WINNER)
    left = pending_path(board.host.state_dir).read_bytes()
    board.boot()
    note_boot(board.host)
    pending_path(board.host.state_dir).write_bytes(left)  # as if killed before it was removed
    assert note_boot(board.host).standing is Standing.SUSPECT
    (entry,) = read_quarantine(board.host.state_dir).entries
    assert len(entry.strikes) == 1


def test_damaged_pending_is_set_aside_and_said(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    pending_path(board.host.state_dir).write_text("{")
    board.boot()
    note = note_boot(board.host)
    assert "set aside" in note.text
    assert list(board.host.state_dir.glob("pending.json.aside.*"))


def test_damaged_quarantine_stops_everything(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    board.boot()
    board.host.state_dir.joinpath("quarantine.json").write_text("{}")
    with pytest.raises(StateError, match=r"quarantine\.json"):
        note_boot(board.host)
    assert read_pending(board.host.state_dir) is not None


def test_forget_lifts_one_mode_and_no_other(board: Board) -> None:
    for mode in (MODE, OTHER):
        board.apply(mode, Why.TRIAL)
        board.boot()
        note_boot(board.host)
    assert forget(board.host, MODE)
    assert board.standing() is None
    assert board.standing(OTHER) is Standing.QUARANTINED
    assert not forget(board.host, MODE)


def test_two_unclean_boots_within_half_an_hour_hold_the_board_for_a_day(board: Board) -> None:
    for mode in (MODE, OTHER):
        board.apply(mode, Why.TRIAL)
        board.boot(after_s=20 * 60)
        note_boot(board.host)
    quarantine = read_quarantine(board.host.state_dir)
    assert quarantine.is_held(board.clock.now_s)
    assert not quarantine.is_held(board.clock.now_s + 25 * HOUR_S)
    assert forget_held(board.host)
    assert not read_quarantine(board.host.state_dir).is_held(board.clock.now_s)
    assert board.standing() is Standing.QUARANTINED


def test_two_unclean_boots_far_apart_hold_nothing(board: Board) -> None:
    for mode in (MODE, OTHER):
        board.apply(mode, Why.TRIAL)
        board.boot(after_s=31 * 60)
        note_boot(board.host)
    assert not read_quarantine(board.host.state_dir).is_held(board.clock.now_s)


def test_apply_that_cannot_be_noted_is_refused(board: Board) -> None:
    board.host.state_dir.mkdir()
    (board.host.state_dir / ".pending.json.new").mkdir()
    with pytest.raises(StateError, match=r"pending\.json"):
        board.apply(MODE, Why.TRIAL)


def test_unknown_word_in_quarantine_is_named(board: Board) -> None:
    board.apply(MODE, Why.TRIAL)
    board.boot()
    note_boot(board.host)
    path = quarantine_path(board.host.state_dir)
    fields = read_state(path, "jouled.quarantine/1")
    assert fields is not None
    entries = [{**entry.values, "standing": "pardoned"} for entry in fields.list_of_fields("entries")]
    write_state(path, "jouled.quarantine/1", {"entries": entries, "unclean": []})
    with pytest.raises(StateError, match="standing: wanted one of suspect, quarantined, got 'pardoned'"):
        read_quarantine(board.host.state_dir)
