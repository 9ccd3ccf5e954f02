"""apply and rollback on the virtual board: what is in force afterwards, what is written down, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jouled.board.applied import Applied, applied_path, read_applied, write_applied
from jouled.board.board import discover, fingerprint
from jouled.board.grid import board_space
from jouled.board.knobs import CONF_PATH_PATH, STATUS_PATH, Knobs, read_knobs
from jouled.board.lock import hold_board
from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import Why, note_apply, read_pending, read_quarantine
from jouled.board.snapshot import Snapshot, boot_id, read_origin, snapshot_path, write_snapshot
from jouled.board.switches import DISABLED_PATH
from jouled.board.winner import read_winner, winner_path, write_winner
from jouled.cli import main
from jouled.config import load
from jouled.errors import ApplyError, BusyError, ConfigError, NotPermittedError, RestoreError, UsageError
from jouled.job.site import Site
from jouled.ledger import Ledger
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import BoardReset, VirtualMachine
from jouled.worker.commands import apply_target, forget, restore_board, rollback, verify_board
from jouletune.space import Candidate

GOOD = "12-1497.6-918-2133"
OTHER = "8-1497.6-816-2133"
WHO = "uid 1000 (pepe)"
GPU_MAX = "/sys/class/devfreq/17000000.gpu/max_freq"


class Bench:
    """A virtual board, and a winner for it that some job has found."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", programs="in_process")
        self.host = self.machine.host(folder)
        config = load(None, {key.replace("__", "."): value for key, value in overrides.items()})
        self.site = Site(
            host=self.host,
            config=config,
            workload="w",
            make_space=lambda board: board_space(board, config.grid),
            make_runner=self.machine.runner,
        )

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, discover(self.host).domains).values)

    def marks(self) -> dict[str, str]:
        return fingerprint(discover(self.host), 0.0)

    def winner(self, name: str = GOOD, **fields: Any) -> Applied:
        made = Applied(
            candidate=Candidate(parse_mode_name(name)),
            policy="capped",
            fingerprint=self.marks(),
            workload="w",
            latency_bound_s=0.02,
            latency_percentile=95.0,
            decision_id="0123456789ab",
            wall_s=1.0,
            boot_id="another boot",
            home=Knobs({}),
        )
        return replace(made, **fields)

    def apply(self, target: str, why: str = "user") -> dict[str, Any]:
        return apply_target(self.site, target, why, WHO)

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in Ledger(self.folder).read().events if line["event"] == event]

    def faults(self, **faults: Any) -> None:
        set_faults(str(self.machine.root), **faults)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.host.sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "1036800", why="operator")
    write_winner(tmp_path, made.winner())
    return made


# --- what is in force afterwards ----------------------------------------------------------------------------


def test_winner_is_applied_verified_and_written_down_for_this_boot(bench: Bench) -> None:
    found = bench.knobs()
    done = bench.apply("winner", "boot")
    assert (done["mode"], done["policy"], done["to_source"], done["method"]) == (GOOD, "capped", "winner", "nvpmodel")
    assert bench.host.sysfs.read(GPU_MAX) == "918000000"
    assert verify_board(bench.site)["mismatches"] == []
    assert verify_board(bench.site)["mode"] == GOOD
    applied = read_applied(bench.folder)
    assert applied is not None
    assert applied.boot_id == boot_id(bench.host.sysfs)
    assert dict(applied.home.values) == found
    assert applied.decision_id == "0123456789ab"
    assert read_winner(bench.folder) == bench.winner()
    assert not snapshot_path(bench.folder).exists()


def test_reference_comes_back_as_found_and_the_winner_keeps_its_standing(bench: Bench) -> None:
    found = bench.knobs()
    bench.apply("winner")
    assert bench.knobs() != found
    done = bench.apply("reference", "pause")
    assert (done["to_source"], done["from"]) == ("reference", GOOD)
    assert bench.knobs() == found
    assert read_applied(bench.folder) is None
    assert read_winner(bench.folder) == bench.winner()
    assert bench.apply("winner", "pause")["mode"] == GOOD


def test_a_rollback_without_a_winner_rejects_nobody_and_is_not_counted(bench: Bench) -> None:
    bench.apply("12-1497.6-918-2133")
    bench.apply("reference")
    winner_path(bench.folder).unlink(missing_ok=True)
    done = rollback(bench.site, WHO)
    assert (done["rejected"], done["mode"]) == (None, "12-2201.6-1300.5-3199")
    assert bench.lines("rolled_back") == []
    assert bench.lines("applied")[-1]["why"] == "rollback"


def test_rollback_rejects_the_winner_by_name(bench: Bench) -> None:
    found = bench.knobs()
    bench.apply("winner")
    done = rollback(bench.site, WHO)
    assert (done["rejected"], done["mode"]) == (GOOD, "12-2201.6-1300.5-3199")
    assert bench.knobs() == found
    assert read_applied(bench.folder) is None
    assert read_winner(bench.folder) is None
    (line,) = bench.lines("rolled_back")
    assert (line["rejected"], line["rejected_decision_id"]) == (GOOD, "0123456789ab")
    assert (line["who"], line["from"], line["to_source"]) == (WHO, GOOD, "reference")
    with pytest.raises(UsageError, match="no winner"):
        bench.apply("winner")


def test_mode_by_name_is_in_force_until_the_reference_is(bench: Bench) -> None:
    found = bench.knobs()
    assert bench.apply(OTHER)["to_source"] == "other"
    assert verify_board(bench.site)["what"] == "the mode applied by hand"
    assert bench.apply(GOOD)["from"] == OTHER
    assert verify_board(bench.site)["mismatches"] == []
    bench.apply("reference")
    assert bench.knobs() == found


def test_mode_by_hand_is_no_winner(bench: Bench) -> None:
    winner_path(bench.folder).unlink()
    bench.apply(OTHER)
    with pytest.raises(UsageError, match="no winner"):
        bench.apply("winner")


def test_winner_of_a_version_without_winner_json_is_applied(bench: Bench) -> None:
    winner_path(bench.folder).unlink()
    write_applied(bench.folder, bench.winner())
    assert bench.apply("winner", "boot")["mode"] == GOOD


def test_naming_the_reference_is_applying_it(bench: Bench) -> None:
    bench.apply("winner")
    assert bench.apply("12-2201.6-1300.5-3199")["to_source"] == "reference"
    assert read_applied(bench.folder) is None


def test_locked_winner_is_locked_again(bench: Bench) -> None:
    write_winner(bench.folder, bench.winner(policy="locked"))
    assert bench.apply("winner")["policy"] == "locked"
    assert bench.host.sysfs.read("/sys/class/devfreq/17000000.gpu/min_freq") == "918000000"
    assert verify_board(bench.site)["mismatches"] == []


def test_status_files_and_mode_stay_the_operators(bench: Bench) -> None:
    before = bench.host.sysfs.read(STATUS_PATH), bench.host.sysfs.read(CONF_PATH_PATH)
    bench.apply("winner")
    assert (bench.host.sysfs.read(STATUS_PATH), bench.host.sysfs.read(CONF_PATH_PATH)) == before
    bench.machine.reboot()
    assert bench.host.sysfs.read(GPU_MAX) == "1300500000"


def test_hung_nvpmodel_is_replaced_by_own_writes_and_said(bench: Bench) -> None:
    bench.faults(hang={"nvpmodel": 3})
    done = bench.apply("winner")
    assert done["method"] == "sysfs"
    assert "did not end" in done["warnings"][-1]
    assert verify_board(bench.site)["mismatches"] == []


# --- mismatches ---------------------------------------------------------------------------------------------


def test_applying_again_mends_what_somebody_changed(bench: Bench) -> None:
    bench.apply("winner")
    bench.host.sysfs.write(GPU_MAX, "408000000", why="somebody")
    assert len(verify_board(bench.site)["mismatches"]) == 1
    assert bench.apply("winner", "mismatch")["from"].endswith("-408-2133")
    assert verify_board(bench.site)["mismatches"] == []


@pytest.mark.parametrize(("target", "typed"), [("winner", "winner"), ("reference", "reference"), (OTHER, OTHER)])
def test_verify_says_what_puts_it_right(bench: Bench, target: str, typed: str) -> None:
    bench.apply(target)
    assert verify_board(bench.site)["to_do"] == ""
    bench.host.sysfs.write(GPU_MAX, "408000000", why="somebody")
    found = verify_board(bench.site)
    assert found["mismatches"]
    assert found["to_do"].startswith(f"jouled apply {typed}, or reboot")


def test_reference_mended_after_a_mismatch_is_the_one_that_verify_wants(bench: Bench) -> None:
    found = bench.knobs()
    bench.apply("winner")
    bench.apply("reference")
    bench.host.sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "729600", why="somebody")
    assert len(verify_board(bench.site)["mismatches"]) == 1
    bench.apply("reference", "mismatch")
    assert verify_board(bench.site)["mismatches"] == []
    assert bench.knobs() == found


# --- what is written down -----------------------------------------------------------------------------------


def test_each_change_is_one_line_with_who_from_to_and_why(bench: Bench) -> None:
    bench.apply("winner", "boot")
    bench.apply("reference", "stop")
    lines = bench.lines("applied")
    assert [(line["from"], line["to"], line["why"], line["to_source"]) for line in lines] == [
        ("12-2201.6-1300.5-3199", GOOD, "boot", "winner"),
        (GOOD, "12-2201.6-1300.5-3199", "stop", "reference"),
    ]
    assert {line["who"] for line in lines} == {WHO}


def test_pending_names_the_mode_until_the_board_has_stood_it(bench: Bench) -> None:
    bench.apply("winner")
    pending = read_pending(bench.folder)
    assert pending is not None
    assert (mode_name(pending.mode), pending.why) == (GOOD, Why.WINNER)
    verify_board(bench.site)
    assert read_pending(bench.folder) is not None
    bench.machine.clock.sleep(121.0)
    verify_board(bench.site)
    assert read_pending(bench.folder) is None


def test_origin_is_kept_once_as_first_found(bench: Bench) -> None:
    found = bench.knobs()
    bench.apply("winner")
    bench.apply("reference")
    origin = read_origin(bench.folder)
    assert origin is not None
    assert dict(origin.knobs.values) == found


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_knob_that_cannot_even_be_put_back_is_left_to_the_next_restore(bench: Bench) -> None:
    bench.apply(OTHER)
    before, applied = bench.knobs(), read_applied(bench.folder)
    bench.faults(wrong_rounding={"gpu": 1})
    with pytest.raises(RestoreError):
        bench.apply("winner")
    assert snapshot_path(bench.folder).exists()
    bench.faults()
    assert restore_board(bench.site, WHO)["found"] == "this_boot"
    assert bench.knobs() == before
    assert read_applied(bench.folder) == applied
    assert read_winner(bench.folder) == bench.winner()
    assert not snapshot_path(bench.folder).exists()


def test_failed_apply_is_put_back_at_once_and_said(bench: Bench) -> None:
    before = bench.knobs()
    bench.faults(ignore_writes=["*/policy4/scaling_max_freq"])
    with pytest.raises(ApplyError, match="scaling_max_freq"):
        bench.apply("winner")
    assert bench.knobs() == before
    assert not snapshot_path(bench.folder).exists()
    assert read_pending(bench.folder) is None
    assert read_applied(bench.folder) is None
    (line,) = bench.lines("restored")
    assert (line["who"], line["to"]) == (WHO, "as found")


def test_board_that_goes_down_in_a_winner_makes_it_suspect_then_quarantined(bench: Bench) -> None:
    bench.apply("winner", "boot")
    bench.machine.reboot()
    again = Bench(bench.folder)
    done = again.apply("winner", "boot")
    assert "suspect" in done["warnings"][0]
    again.machine.clock.sleep(31 * 60.0)
    again.machine.reboot()
    third = Bench(bench.folder)
    with pytest.raises(NotPermittedError, match="quarantined") as caught:
        third.apply("winner", "boot")
    assert f"jouled forget {GOOD}" in caught.value.hint
    assert third.host.sysfs.read(GPU_MAX) == "1300500000"
    with pytest.raises(NotPermittedError, match="quarantined"):
        third.apply(GOOD)
    assert third.apply("reference")["to_source"] == "reference"


def test_forgotten_mode_may_be_applied_again_and_is_no_winner_any_more(bench: Bench) -> None:
    note_apply(bench.host, parse_mode_name(GOOD), why=Why.TRIAL, fingerprint=bench.marks())
    bench.machine.reboot()
    with pytest.raises(NotPermittedError):
        bench.apply(GOOD)
    done = forget(bench.site, GOOD, who=WHO)
    assert (done["forgotten"], done["winner_removed"]) == (True, True)
    assert read_quarantine(bench.folder).entries == ()
    assert bench.apply(GOOD)["to_source"] == "other"
    assert bench.lines("forgotten")[0]["who"] == WHO


def test_two_unclean_boots_in_a_row_hold_every_apply(bench: Bench) -> None:
    for _ in range(2):
        bench.apply("reference")
        bench.machine.reboot()
    with pytest.raises(NotPermittedError, match="twice within 30 min"):
        bench.apply("reference")
    assert forget(bench.site, None, held=True)["forgotten"] is True
    assert bench.apply("reference")["to_source"] == "reference"


def test_snapshot_of_a_dead_job_is_restored_first(bench: Bench) -> None:
    found = bench.knobs()
    dead = Snapshot(boot_id(bench.host.sysfs), "dead", "dead-mark", "MAXN", Knobs(found), 1.0, winner=bench.winner())
    write_snapshot(bench.folder, dead)
    bench.host.sysfs.write(GPU_MAX, "408000000", why="the dead job")
    done = bench.apply("winner")
    assert "1 knobs were put back first" in done["warnings"][0]
    applied = read_applied(bench.folder)
    assert applied is not None
    assert dict(applied.home.values) == found


def test_board_reset_while_applying_leaves_a_snapshot_that_the_next_boot_sets_aside(bench: Bench) -> None:
    found, winner = bench.knobs(), bench.winner()
    bench.faults(board_reset={"gpu_hz": 918000000})
    with pytest.raises(BoardReset):
        bench.apply("winner")
    bench.faults()
    again = Bench(bench.folder)
    report = restore_board(again.site, WHO)
    assert report["found"] == "other_boot"
    assert report["warnings"]
    assert read_applied(bench.folder) is None
    assert read_winner(bench.folder) == winner
    assert again.knobs() != found  # the operator's own minimum went with the boot: the stock mode
    assert again.host.sysfs.read(GPU_MAX) == "1300500000"


@pytest.mark.parametrize("path", [winner_path, applied_path])
def test_damaged_file_is_set_aside_and_said(bench: Bench, path: Any) -> None:
    bench.apply("winner")
    path(bench.folder).write_text("{")
    done = bench.apply("reference")
    assert "set aside" in done["warnings"][0]
    assert path(bench.folder).with_name(f"{path(bench.folder).name}.aside.1").exists()


# --- what is refused ----------------------------------------------------------------------------------------


def test_stale_winner_is_refused_unless_named(bench: Bench) -> None:
    write_winner(bench.folder, bench.winner(fingerprint={**bench.marks(), "l4t": "35.1"}))
    before = bench.knobs()
    with pytest.raises(NotPermittedError, match=r"l4t 35\.1 -> ") as caught:
        bench.apply("winner")
    assert f"jouled apply {GOOD}" in caught.value.hint
    assert bench.knobs() == before
    assert bench.apply(GOOD)["mode"] == GOOD


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("13-1497.6-918-2133", "13 cores"),
        ("12-1497.6-919-2133", "GPU"),
        ("12-9999-918-2133", "CPU"),
        ("12-1497.6-918", "CORES-CPU-GPU-EMC"),
        ("../../etc/passwd", "power mode"),
    ],
)
def test_mode_that_the_board_lacks_is_refused_before_any_write(bench: Bench, target: str, words: str) -> None:
    before = bench.knobs()
    with pytest.raises(UsageError, match=words):
        bench.apply(target)
    assert bench.knobs() == before
    assert not snapshot_path(bench.folder).exists()
    assert not list(bench.folder.glob("pending*"))


def test_kill_switch_and_observe_write_nothing(bench: Bench) -> None:
    before = bench.knobs()
    bench.host.sysfs.place(DISABLED_PATH, "")
    with pytest.raises(NotPermittedError, match="disabled"):
        bench.apply("reference")
    bench.host.sysfs.real(DISABLED_PATH).unlink()
    with pytest.raises(ConfigError, match="observe"):
        apply_target(Bench(bench.folder, mode="observe").site, "reference", "user", WHO)
    assert bench.knobs() == before
    assert not (bench.folder / "ledger.jsonl").exists()


def test_board_held_by_another_is_left_alone(bench: Bench) -> None:
    with hold_board(bench.host, verb="tune"), pytest.raises(BusyError, match="jouled tune"):
        bench.apply("winner")


def test_applying_needs_root(bench: Bench) -> None:
    site = replace(bench.site, host=replace(bench.host, privileged=False))
    with pytest.raises(NotPermittedError):
        apply_target(site, "winner", "user", WHO)
    with pytest.raises(NotPermittedError):
        rollback(site, WHO)
    with pytest.raises(NotPermittedError):
        restore_board(site, WHO)


def test_worker_loads_no_heavy_library_before_it_tunes() -> None:
    code = (
        "import sys, jouled.cli.worker, jouled.worker.commands, jouled.board.board, jouled.worker.server; "
        "print(sorted({'numpy', 'scipy', 'optuna', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the command line, without any service ------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> list[str]:
    return ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "state")]


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


def test_apply_verify_and_rollback_tell_one_story(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "reference", *state]) == 0
    assert "in force: the reference, 12-2201.6-1300.5-3199, capped, by nvpmodel" in capsys.readouterr().out
    assert main(["apply", GOOD, *state, "--json"]) == 0
    assert read_json(capsys)["mode"] == GOOD
    assert main(["verify", *state, "--json"]) == 0
    assert read_json(capsys)["mode"] == GOOD
    write_winner(Path(state[-1]), Bench(Path(state[-1])).winner())
    assert main(["rollback", *state]) == 0
    assert f"rejected the winner {GOOD}" in capsys.readouterr().out
    assert main(["verify", *state, "--json"]) == 0
    assert read_json(capsys)["what"] == "the reference"
    assert read_pending(Path(state[-1])) is None


def test_tune_then_reference_then_winner_by_hand(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *state, "--latency-bound-ratio", "1.4", "--budget", "5", "--json"]) == 0
    assert read_json(capsys)["outcome"] == "tuned"
    winner = read_winner(Path(state[-1]))
    assert winner is not None
    assert main(["apply", "reference", *state]) == 0
    assert main(["apply", "winner", *state, "--json"]) == 0
    capsys_out = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(capsys_out)["decision_id"] == winner.decision_id


def test_recorded_board_is_applied_to_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "grid.csv"
    rows = ["cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j"]
    rows += [f"8,{cpu}000000,{gpu}000000,3199000000,1,0.01,{gpu / 1000}" for cpu in (1497, 2201) for gpu in (612, 1300)]
    table.write_text("\n".join(rows) + "\n")
    state = ["--table", str(table), "--state-dir", str(tmp_path / "state")]
    assert main(["modes", *state, "--json"]) == 0
    names = [row["name"] for row in read_json(capsys)["modes"]]
    assert main(["apply", names[0], *state, "--json"]) == 0
    assert read_json(capsys)["to_source"] in ("other", "reference")
    assert main(["apply", "reference", *state]) == 0
    assert main(["verify", *state]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["apply", "winner"], 2, "no winner"),
        (["apply", "13-1-1-1"], 2, "13 cores"),
        (["apply", "fast"], 2, "CORES-CPU-GPU-EMC"),
    ],
)
def test_apply_that_cannot_be_ends_with_its_code_and_what_to_do(
    state: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main([*arguments, *state]) == code
    told = capsys.readouterr().err
    assert words in told
    assert "to do: " in told


def test_apply_while_another_process_holds_the_board_ends_with_12(state: list[str]) -> None:
    assert main(["apply", "reference", *state]) == 0
    with hold_board(Bench(Path(state[-1])).host, verb="tune"):
        assert main(["apply", "reference", *state]) == 12
        assert main(["rollback", *state]) == 12
