"""What the daemon does next, as tables: facts on the left, state and action on the right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from jouled.board.applied import Applied
from jouled.board.knobs import Knobs
from jouled.board.pending import Entry, Pending, Quarantine, Standing, Strike, Why
from jouled.config import Config, load
from jouled.service.keeper import Do, Facts, Memory, Pause, Verdict, decide, on_stop
from jouled.service.schedule import is_open, opens_in_s
from jouled.state import State
from jouletune.space import Candidate, PowerMode

BOOT, OLD = "boot-now", "boot-before"
MARKS = {"module": "p3701-0005", "base_mode": "MAXN"}
MODE = PowerMode(12, 1_497_600_000, 918_000_000, 2_133_000_000)
NAME = "12-1497.6-918-2133"
NOON_S = 12 * 3600.0
WALL_S = 1_800_000_000.0
WRONG = ("/sys/x/scaling_max_freq: wanted 1497600 kHz, got 2201600 kHz",)
BOUND = {"target.latency_bound_s": 0.033}


def _config(**overrides: Any) -> Config:
    return load(None, {name.replace("__", "."): value for name, value in overrides.items()})


def _winner(boot: str = BOOT, **changes: Any) -> Applied:
    made = Applied(Candidate(MODE), "capped", MARKS, "detector", 0.033, 95.0, "0123456789ab", 1.0, boot, Knobs({}))
    return replace(made, **changes)


def _facts(**changes: Any) -> Facts:
    facts = Facts(
        now_s=5000.0,
        wall_s=WALL_S,
        boottime_s=5000.0,
        local_s=NOON_S,
        boot_id=BOOT,
        workload="detector",
        fingerprint=MARKS,
    )
    return replace(facts, **changes)


def _kept(boot: str = BOOT, **changes: Any) -> Facts:
    """A winner that was put in force in `boot`."""
    winner = _winner(boot)
    return _facts(**{"applied": winner, "winner": winner, **changes})


def _pending(boot: str, why: Why = Why.WINNER) -> Pending:
    return Pending(MODE, why, MARKS, boot, 100.0, WALL_S - 60)


def _quarantine(standing: Standing, *strikes_s: float) -> Quarantine:
    strikes = tuple(Strike(f"boot-{index}", WALL_S - ago_s) for index, ago_s in enumerate(strikes_s))
    return Quarantine((Entry(MODE, MARKS, standing, Why.WINNER, strikes),), strikes)


def _unclean(*ago_s: float) -> Quarantine:
    return Quarantine((), tuple(Strike(f"boot-{index}", WALL_S - ago) for index, ago in enumerate(ago_s)))


APPLIED_OFTEN = Memory(applies_s=(4500.0, 4700.0, 4900.0))
LONG_AGO = Memory(applies_s=(4300.0, 4700.0, 4900.0))
OPERATOR_MODE = {**MARKS, "base_mode": "MODE_30W"}

ROWS: dict[str, tuple[Facts, Mapping[str, Any], State, Do, str]] = {
    # what is untouched stays so
    "a board without a winner is left alone": (_facts(), {}, State.IDLE, Do.NOTHING, ""),
    "mismatches without a winner are the operator's": (_facts(mismatches=WRONG), {}, State.IDLE, Do.NOTHING, ""),
    "a winner in force that is right is left alone": (_kept(), {}, State.IDLE, Do.NOTHING, ""),
    # what comes before everything
    "while a job tunes nothing else is done": (
        _kept(job_phase="search", mismatches=WRONG, has_snapshot=True),
        {},
        State.TUNING,
        Do.NOTHING,
        "",
    ),
    "the watch is a state of its own": (_facts(job_phase="watching"), {}, State.WATCHING, Do.NOTHING, ""),
    "the kill switch forbids every write": (
        _kept(OLD, switched_off="off", has_snapshot=True, mismatches=WRONG),
        {},
        State.DISABLED,
        Do.NOTHING,
        "",
    ),
    "observe forbids every write": (_kept(OLD, has_snapshot=True), {"mode": "observe"}, State.OBSERVE, Do.NOTHING, ""),
    "the kill switch is shown before observe": (
        _facts(switched_off="off"),
        {"mode": "observe"},
        State.DISABLED,
        Do.NOTHING,
        "",
    ),
    "who holds the board is waited for": (
        _kept(holder="pid 7 (jouled tune)", has_snapshot=True, mismatches=WRONG),
        {},
        State.WAITING,
        Do.NOTHING,
        "",
    ),
    # after a crash
    "a snapshot that nobody holds is restored": (_facts(has_snapshot=True), {}, State.WAITING, Do.RESTORE, "crash"),
    "a snapshot goes before the winner": (_kept(OLD, has_snapshot=True), {}, State.WAITING, Do.RESTORE, "crash"),
    "what another boot left pending is judged first": (
        _kept(OLD, pending=_pending(OLD)),
        {},
        State.WAITING,
        Do.RESTORE,
        "crash",
    ),
    "what this boot has pending is no crash": (_kept(pending=_pending(BOOT)), {}, State.IDLE, Do.NOTHING, ""),
    "a stuck worker is asked to restore again": (
        _kept(memory=Memory(stuck=True), has_snapshot=True),
        {},
        State.STUCK,
        Do.RESTORE,
        "stuck",
    ),
    "stuck waits for its time": (
        _facts(memory=Memory(stuck=True, retry_s=5001.0)),
        {},
        State.STUCK,
        Do.NOTHING,
        "stuck",
    ),
    # boots
    "before the boot delay a winner waits": (_kept(OLD, boottime_s=59.0), {}, State.WAITING, Do.NOTHING, ""),
    "after the boot delay a winner is applied": (
        _kept(OLD, boottime_s=60.0),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "the boot delay is the configuration's": (
        _kept(OLD, boottime_s=60.0),
        {"board__boot_delay_s": 61.0},
        State.WAITING,
        Do.NOTHING,
        "",
    ),
    "a suspect winner waits five delays": (
        _kept(OLD, boottime_s=299.0, quarantine=_quarantine(Standing.SUSPECT, 400)),
        {},
        State.WAITING,
        Do.NOTHING,
        "",
    ),
    "a suspect winner is applied once more": (
        _kept(OLD, boottime_s=300.0, quarantine=_quarantine(Standing.SUSPECT, 400)),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "a quarantined winner is not applied": (
        _kept(OLD, quarantine=_quarantine(Standing.QUARANTINED, 8 * 3600, 3 * 3600)),
        {},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "a mode quarantined on another board is applied": (
        _kept(
            OLD,
            quarantine=Quarantine((Entry(MODE, OPERATOR_MODE, Standing.QUARANTINED, Why.TRIAL, ()),)),
        ),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "two unclean boots within 30 min hold the board": (
        _kept(OLD, quarantine=_unclean(1799 + 60, 60)),
        {},
        State.HELD,
        Do.NOTHING,
        "",
    ),
    "two unclean boots 31 min apart do not": (
        _kept(OLD, quarantine=_unclean(1861 + 60, 60)),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "after 24 h without another it is not held any more": (
        _kept(OLD, quarantine=_unclean(24 * 3600 + 600, 24 * 3600)),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "a held board is not even paused": (
        _kept(quarantine=_unclean(900, 60), pause=Pause(None, "uid 0 (root)")),
        {},
        State.HELD,
        Do.NOTHING,
        "",
    ),
    # mismatches
    "a winner that was changed is applied again": (
        _kept(mismatches=WRONG),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "mismatch",
    ),
    "a third time within 10 min too": (
        _kept(mismatches=WRONG, memory=Memory(applies_s=(4500.0, 4900.0))),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "mismatch",
    ),
    "a fourth time within 10 min is contested": (
        _kept(mismatches=WRONG, memory=APPLIED_OFTEN),
        {},
        State.CONTESTED,
        Do.NOTHING,
        "",
    ),
    "applies of more than 10 min ago do not count": (
        _kept(mismatches=WRONG, memory=LONG_AGO),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "mismatch",
    ),
    "what is contested stays so while a knob is wrong": (
        _kept(mismatches=WRONG, memory=Memory(contested=True)),
        {},
        State.CONTESTED,
        Do.NOTHING,
        "",
    ),
    "a winner that cannot be applied after a boot is contested too": (
        _kept(OLD, memory=APPLIED_OFTEN),
        {},
        State.CONTESTED,
        Do.NOTHING,
        "",
    ),
    "on_mismatch = report writes nothing": (
        _kept(mismatches=WRONG),
        {"keep__on_mismatch": "report"},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "on_mismatch = retune begins a job": (
        _kept(mismatches=WRONG),
        {"keep__on_mismatch": "retune", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "on_mismatch = retune tries it once for a winner": (
        _kept(mismatches=WRONG, memory=Memory(tried=frozenset({"mismatch: 0123456789ab"}))),
        {"keep__on_mismatch": "retune", **BOUND},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "a failed apply is tried again at its time only": (
        _kept(mismatches=WRONG, memory=Memory(retry_s=5003.0, trouble="no worker")),
        {},
        State.WAITING,
        Do.NOTHING,
        "mismatch",
    ),
    # winners that hold no longer
    "a winner of another base mode is not applied": (
        _kept(OLD, fingerprint=OPERATOR_MODE),
        {},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "nor defended while in force": (
        _kept(mismatches=WRONG, fingerprint=OPERATOR_MODE),
        {},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "on_fingerprint_change = retune begins a job": (
        _kept(OLD, fingerprint=OPERATOR_MODE),
        {"when__on_fingerprint_change": "retune", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "a winner of another workload is not applied": (_kept(OLD, workload="planner"), {}, State.IDLE, Do.NOTHING, ""),
    "on_engine_change = retune begins a job": (
        _kept(OLD, workload="planner"),
        {"when__on_engine_change": "retune", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "on_fingerprint_change says nothing of workloads": (
        _kept(OLD, workload="planner"),
        {"when__on_fingerprint_change": "retune", **BOUND},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "a board that cannot be read is left alone": (_kept(OLD, fingerprint=None), {}, State.IDLE, Do.NOTHING, ""),
    # pause, and who stands in the winner's place
    "a pause brings the reference": (
        _kept(pause=Pause(WALL_S + 60, "uid 0 (root)")),
        {},
        State.PAUSED,
        Do.APPLY_REFERENCE,
        "pause",
    ),
    "a pause without a winner writes nothing": (
        _facts(pause=Pause(None, "uid 0 (root)")),
        {},
        State.PAUSED,
        Do.NOTHING,
        "pause",
    ),
    "a pause over a reboot applies no winner": (
        _kept(OLD, pause=Pause(None, "uid 0 (root)")),
        {},
        State.PAUSED,
        Do.NOTHING,
        "pause",
    ),
    "the winner comes back when the pause has ended": (
        _facts(winner=_winner(), stood_aside="pause", pause=Pause(WALL_S, "uid 0 (root)")),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "pause",
    ),
    "the winner comes back after on_stop = restore": (
        _facts(winner=_winner(), stood_aside="stop"),
        {},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
    "a reference that the user asked for stays": (
        _facts(winner=_winner(), stood_aside="user"),
        {},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "a reference of nobody knows why stays": (_facts(winner=_winner()), {}, State.IDLE, Do.NOTHING, ""),
    "a stale winner does not come back": (
        _facts(winner=_winner(), stood_aside="pause", fingerprint=OPERATOR_MODE),
        {},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    # jobs by themselves
    "tune_on_start is never by default": (_facts(untuned=True), BOUND, State.IDLE, Do.NOTHING, ""),
    "if_untuned tunes a board that is not": (
        _facts(untuned=True),
        {"when__tune_on_start": "if_untuned", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "if_untuned leaves a tuned board alone": (
        _facts(untuned=False),
        {"when__tune_on_start": "if_untuned", **BOUND},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "if_untuned tries once": (
        _facts(untuned=True, memory=Memory(tried=frozenset({"untuned"}))),
        {"when__tune_on_start": "if_untuned", **BOUND},
        State.IDLE,
        Do.NOTHING,
        "",
    ),
    "outside the window a job waits": (
        _facts(untuned=True),
        {"when__tune_on_start": "if_untuned", "when__window": "02:00-05:00", **BOUND},
        State.WAITING,
        Do.NOTHING,
        "",
    ),
    "inside the window it begins": (
        _facts(untuned=True, local_s=3 * 3600.0),
        {"when__tune_on_start": "if_untuned", "when__window": "02:00-05:00", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "a warm board cools down first": (
        _facts(untuned=True, hottest_c=70.5),
        {"when__tune_on_start": "if_untuned", **BOUND},
        State.WAITING,
        Do.NOTHING,
        "",
    ),
    "a board at the limit is cool enough": (
        _facts(untuned=True, hottest_c=70.0),
        {"when__tune_on_start": "if_untuned", **BOUND},
        State.WAITING,
        Do.RETUNE,
        "schedule",
    ),
    "the window holds back jobs, not the winner": (
        _kept(OLD),
        {"when__window": "02:00-05:00"},
        State.WAITING,
        Do.APPLY_WINNER,
        "boot",
    ),
}


def _decide(facts: Facts, overrides: Mapping[str, Any]) -> Verdict:
    return decide(facts, _config(**overrides))


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_what_is_done(row: tuple[Facts, Mapping[str, Any], State, Do, str]) -> None:
    facts, overrides, state, do, why = row
    verdict = _decide(facts, overrides)
    assert (verdict.state, verdict.do, verdict.why) == (state, do, why)


@pytest.mark.parametrize(
    ("changes", "overrides", "asked", "said"),
    [
        ({}, {}, {}, ""),
        ({}, BOUND, {}, ""),
        ({}, {"target.latency_bound_s": 0.02}, {}, "its latency bound is 0.033 s, now it is 0.02 s"),
        ({}, {"target.latency_bound_s": 0.05}, {}, "its latency bound is 0.033 s, now it is 0.05 s"),
        ({}, {"target.latency_bound_s": 0.02}, {"latency_bound_s": 0.033}, ""),
        ({}, {"target.latency_bound_s": 0.02}, {"latency_bound_ratio": 1.2}, ""),
        ({}, {"target.latency_bound_ratio": 1.1}, {}, ""),
        ({}, {"target.no_latency_bound": True}, {}, "its latency bound is 0.033 s, now there is none"),
        ({"latency_bound_s": None}, BOUND, {}, "its latency bound is none, now it is 0.033 s"),
        ({}, {"target.max_latency_bound_s": 0.03}, {}, "at most 0.03 s is allowed"),
        ({}, {"target.max_latency_bound_s": 0.03}, {"latency_bound_s": 0.033}, "at most 0.03 s is allowed"),
        ({"latency_bound_s": None}, {"target.max_latency_bound_s": 0.03}, {}, "its latency bound is none"),
        ({}, {"target.max_latency_bound_s": 0.033}, {}, ""),
        ({}, {"target.latency_percentile": 99}, {}, "95th percentile, now it is the 99th"),
        ({"latency_percentile": 99.0}, {}, {"latency_percentile": 99.0}, ""),
        ({"policy": "locked"}, {}, {}, "clocks locked, now they are capped"),
        ({"policy": "locked"}, {"grid.clocks": "both"}, {}, ""),
        ({"policy": "locked"}, {}, {"clocks": "locked"}, ""),
        ({"workload": "planner"}, {}, {}, "workload planner, now it is detector"),
        ({"workload": "planner"}, {}, {"workload": "planner"}, ""),
        ({"workload": "", "policy": "locked"}, BOUND, {}, ""),
        ({"fingerprint": {"module": "p3701-0005", "base_mode": "MODE_30W"}}, {}, {}, "base_mode was MODE_30W and is M"),
        ({"fingerprint": {**MARKS, "l4t": "36.4.3"}}, {}, {}, "l4t was 36.4.3 and is absent"),
        ({"workload": "", "fingerprint": {}}, {}, {}, "module was absent and is p3701-0005"),
    ],
)
def test_a_winner_holds_for_board_workload_bound_and_policy(
    changes: Mapping[str, Any], overrides: Mapping[str, Any], asked: Mapping[str, Any], said: str
) -> None:
    winner = _winner(OLD, **changes)
    verdict = decide(_facts(applied=winner, winner=winner, asked=asked), load(None, overrides))
    if said:
        assert said in verdict.stale
        assert (verdict.state, verdict.do) == (State.IDLE, Do.NOTHING)
        assert "jouled retune" in verdict.to_do
    else:
        assert (verdict.stale, verdict.do) == ("", Do.APPLY_WINNER)


def test_a_stale_winner_is_shown_in_every_state() -> None:
    facts = _kept(fingerprint=OPERATOR_MODE)
    verdicts = [
        decide(replace(facts, switched_off="off"), _config()),
        decide(facts, _config(mode="observe")),
        decide(replace(facts, pause=Pause(None, "root")), _config()),
        decide(replace(facts, quarantine=_unclean(900, 60)), _config()),
        decide(facts, _config(when__on_fingerprint_change="retune", **BOUND)),
    ]
    assert all("base_mode was MAXN" in verdict.stale for verdict in verdicts)


def test_what_is_due_says_when() -> None:
    assert _decide(_kept(OLD, boottime_s=20.0), {}).next.due_wall_s == WALL_S + 40
    assert _decide(_kept(quarantine=_unclean(900, 60)), {}).next.due_wall_s == WALL_S - 60 + 24 * 3600
    assert _decide(_kept(pause=Pause(WALL_S + 5, "root")), {}).next.due_wall_s == WALL_S + 5
    window = {"when__tune_on_start": "if_untuned", "when__window": "02:00-05:00", **BOUND}
    assert _decide(_facts(untuned=True), window).next.due_wall_s == WALL_S + 14 * 3600
    retried = _decide(_kept(mismatches=WRONG, memory=Memory(retry_s=5003.0, trouble="no worker")), {})
    assert (retried.next.due_wall_s, retried.to_do) == (WALL_S + 3, "no worker")


def test_who_must_act_is_told_the_command() -> None:
    assert "jouled forget --held" in _decide(_kept(quarantine=_unclean(900, 60)), {}).to_do
    assert f"jouled forget {NAME}" in _decide(_kept(OLD, quarantine=_quarantine(Standing.QUARANTINED, 9.0)), {}).to_do
    contested = _decide(_kept(mismatches=WRONG, memory=APPLIED_OFTEN), {})
    assert contested.contested
    assert WRONG[0] in contested.to_do


@pytest.mark.parametrize(
    ("facts", "overrides", "do"),
    [
        (_kept(), {}, Do.NOTHING),
        (_kept(), {"keep__on_stop": "restore"}, Do.APPLY_REFERENCE),
        (_kept(OLD), {"keep__on_stop": "restore"}, Do.NOTHING),
        (_facts(winner=_winner()), {"keep__on_stop": "restore"}, Do.NOTHING),
        (_kept(), {"keep__on_stop": "restore", "mode": "observe"}, Do.NOTHING),
        (_kept(switched_off="off"), {"keep__on_stop": "restore"}, Do.NOTHING),
        (_kept(holder="pid 7"), {"keep__on_stop": "restore"}, Do.NOTHING),
        (_kept(quarantine=_unclean(900, 60)), {"keep__on_stop": "restore"}, Do.NOTHING),
    ],
)
def test_the_stop_restores_only_where_asked_and_allowed(facts: Facts, overrides: Mapping[str, Any], do: Do) -> None:
    assert on_stop(facts, _config(**overrides)) is do


@pytest.mark.parametrize(
    ("window", "clock", "open_now", "wait_h"),
    [
        (None, 12.0, True, 0.0),
        ("02:00-05:00", 1.75, False, 0.25),
        ("02:00-05:00", 2.0, True, 0.0),
        ("02:00-05:00", 4.99, True, 0.0),
        ("02:00-05:00", 5.0, False, 21.0),
        ("22:30-04:00", 22.25, False, 0.25),
        ("22:30-04:00", 23.5, True, 0.0),
        ("22:30-04:00", 0.0, True, 0.0),
        ("22:30-04:00", 3.99, True, 0.0),
        ("22:30-04:00", 4.0, False, 18.5),
    ],
)
def test_the_window_may_reach_over_midnight(window: str | None, clock: float, *, open_now: bool, wait_h: float) -> None:
    assert is_open(window, clock * 3600) is open_now
    assert opens_in_s(window, clock * 3600) == wait_h * 3600
