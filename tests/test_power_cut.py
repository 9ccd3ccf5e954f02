"""The judge of the power cuts finds each thing that can be wrong after one, and nothing where all is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bench.power_cut.guest import plan_of
from bench.power_cut.judge import Memory, judge

MODE = {"cores": 8, "cpu_hz": 1.0e9, "gpu_hz": 0.6e9, "emc_hz": 2.1e9}
OTHER = {**MODE, "cpu_hz": 1.5e9}
BEFORE, NOW = "boot-1", "boot-2"
PENDING = {"mode": MODE, "why": "trial", "boot_id": BEFORE}
STRUCK = {"unclean": [{"boot_id": BEFORE}], "entries": [{"mode": MODE, "standing": "quarantined"}]}
TORN = "it is torn: no end of line"


def heard(
    found: Mapping[str, Any] | None = None, judged: Mapping[str, Any] | None = None, up_s: float = 20.0
) -> list[dict[str, Any]]:
    files = dict.fromkeys(("pending", "quarantine", "applied", "snapshot", "winner"))
    ledger = {"events": 3, "damaged": [], "jobs": 1}
    look = {"differing": [], "nvpmodel": "NV Power Mode: MODE_50W\n3\n", "ledger": ledger, **files, **(found or {})}
    history = {"history": [{"job": "a"}, {"job": "b"}, {"mode": "no job's"}]}
    verdict = {"status": {"state": "idle"}, "quarantine": None, "pending": None, "history": history, **(judged or {})}
    return [
        {"event": "found", "uptime_s": 9.0, **look},
        {"event": "up", "uptime_s": up_s, "status": {"state": "waiting"}},
        {"event": "judged", "uptime_s": 30.0, **verdict},
    ]


def wrong(memory: Memory | None = None, **told: Any) -> str:
    return "; ".join(judge(1, memory or Memory("tune", frozenset({"a"})), heard(**told)).wrong)


def test_a_boot_after_which_nothing_is_missing_is_right() -> None:
    assert wrong() == ""
    assert wrong(found={"pending": PENDING}, judged={"quarantine": STRUCK}) == ""
    assert wrong(found={"ledger": {"events": 1, "damaged": [TORN], "jobs": 1}}) == ""


def test_a_reference_that_was_in_force_gets_a_strike_and_no_standing() -> None:
    reference = {**PENDING, "why": "reference"}
    strike_alone = {"unclean": [{"boot_id": BEFORE}], "entries": []}
    assert wrong(found={"pending": reference}, judged={"quarantine": strike_alone}) == ""
    assert "wanted ''" in wrong(found={"pending": reference}, judged={"quarantine": STRUCK})


@pytest.mark.parametrize(("strikes", "standing", "is_right"), [(1, "suspect", True), (2, "suspect", False)])
def test_a_winner_is_suspect_once(strikes: int, standing: str, is_right: bool) -> None:
    entry = {"mode": MODE, "standing": standing}
    old = {"unclean": [{"boot_id": "boot-0"}], "entries": [entry]} if strikes == 2 else None
    unclean = [*([{"boot_id": "boot-0"}] if old else []), {"boot_id": BEFORE}]
    after = {"unclean": unclean, "entries": [entry]}
    found = {"pending": {**PENDING, "why": "winner"}, "quarantine": old}
    assert (wrong(found=found, judged={"quarantine": after}) == "") is is_right


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"found": {"differing": ["/sys/x"]}}, "operator's mode: /sys/x"),
        ({"found": {"nvpmodel": "NV Power Mode: MAXN\n0\n"}}, "MAXN"),
        ({"up_s": 61.0}, "active only 61 s"),
        ({"found": {"ledger": {"events": 1, "damaged": [TORN, TORN], "jobs": 1}}}, "the ledger is damaged"),
        ({"found": {"ledger": {"events": 1, "damaged": ["its checksum does not fit"], "jobs": 1}}}, "is damaged"),
        ({"found": {"snapshot": {"torn": '{"sch'}}}, "snapshot.json is torn"),
        ({"judged": {"history": {"history": []}}}, "acknowledged and lost: a"),
        ({"judged": {"quarantine": STRUCK}}, "nothing was pending, but there is a strike"),
        ({"found": {"pending": PENDING}}, "but the new strikes are []"),
        (
            {
                "found": {"pending": PENDING},
                "judged": {"quarantine": {**STRUCK, "entries": [{"mode": OTHER, "standing": "quarantined"}]}},
            },
            "wanted 'quarantined', it is ''",
        ),
        (
            {"found": {"pending": PENDING}, "judged": {"quarantine": STRUCK, "pending": PENDING}},
            "still there",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_said(told: dict[str, Any], said: str) -> None:
    assert said in wrong(**told)


def test_a_job_seen_in_a_mode_must_have_left_it_pending() -> None:
    applied = [{"event": "seen", "of": "phase"}, {"event": "seen", "of": "mode_applied"}]
    at_work = Memory().after("tune", applied)
    assert "nothing was pending" in wrong(memory=at_work)
    over = Memory().after("tune", [*applied, {"event": "seen", "of": "restored"}])
    assert wrong(memory=over) == ""


def test_what_was_acknowledged_is_remembered_over_boots_and_what_was_refused_is_not() -> None:
    def answer(code: int, job: str) -> dict[str, Any]:
        return {"event": "answered", "path": "/v1/retune", "code": code, "answer": {"job": job}}

    memory = Memory().after("tune", [answer(202, "a")]).after("idle", [answer(202, "b"), answer(409, "c")])
    assert memory.jobs == {"a", "b"}


def test_a_machine_that_did_not_come_up_is_wrong() -> None:
    boot = judge(7, Memory("idle"), [{"event": "absent", "journal": "no such unit"}])
    assert "not heard: found, up, judged" in boot.wrong[0]
    assert "no such unit" in boot.wrong[0]


def test_the_plan_comes_with_the_kernels_command_line() -> None:
    assert plan_of("console=ttyS0 cut.plan=apply root=/dev/vda cut.seed=7\n") == ("apply", 7)
