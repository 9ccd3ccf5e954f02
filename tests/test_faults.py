"""Faults by name: each one's outcome and sentence in a whole job, how they are written, begin, end and are undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faulty import Faulty

from jouled.board.restore import restore
from jouled.cli import main
from jouled.errors import UsageError
from jouled.virtual.fault import GOOD
from jouled.virtual.fault_table import FAULTS
from jouled.virtual.faults import Faults
from jouled.virtual.machine import BoardReset
from jouled.virtual.mischief import CONF
from jouled.virtual.schedule import merged
from jouletune.decision import Outcome

CAPS = (
    "sys/devices/system/cpu/cpufreq/policy*/scaling_m??_freq",
    "sys/devices/platform/*/devfreq/*/m??_freq",
    "sys/kernel/nvpmodel_*_cap/emc*",
)


def caps(board: Faulty) -> dict[str, str]:
    """Caps and minima, read past every fault."""
    root = board.machine.root
    return {str(path): path.read_text() for pattern in CAPS for path in sorted(root.glob(pattern))}


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"board-resets"}))
def test_fault_ends_as_its_table_says_with_its_sentence(tmp_path: Path, name: str) -> None:
    fault, board = FAULTS[name], Faulty(tmp_path, name)
    before = caps(board)
    result = board.run()
    assert result.outcome in fault.outcomes, board.told(result)
    is_silent = fault.is_quiet and result.outcome in GOOD
    assert is_silent or board.says(result, fault.says), board.told(result)
    if not board.is_clean():  # what cannot be put back while the board misbehaves is said, and put back afterwards
        assert result.outcome == "board_fault"
        assert board.says(result, "not as found: .*wanted .*, got ")
        board.recover()
        restore(board.host)
    assert board.is_clean()
    assert result.applied or caps(board) == before


def test_board_that_resets_is_as_it_boots_and_the_next_job_says_who_was_interrupted(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    before = caps(board)
    board.suffer("board-resets")
    with pytest.raises(BoardReset):
        board.run()
    again = Faulty(tmp_path)
    assert caps(again) == before
    result = again.run()
    assert result.outcome in {"tuned", "no_gain"}
    assert again.says(result, "was interrupted"), again.told(result)


def test_table_names_outcomes_of_the_closed_list() -> None:
    known = {outcome.value for outcome in Outcome}
    assert all(fault.outcomes <= known for fault in FAULTS.values())
    assert all(fault.says or fault.outcomes <= {"tuned", "no_gain", "interrupted"} for fault in FAULTS.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvpmodel-hangz", "no such fault"),
        ("nvpmodel-slow:soon", "wanted a number from 0, got 'soon'"),
        ("nvpmodel-slow:-1", "wanted a number from 0, got '-1'"),
        ("wrong-rounding:dla", "wanted one of gpu, cpu, emc, got 'dla'"),
        ("sensor-error:EWHAT", "wanted the name of an errno such as EAGAIN, got 'EWHAT'"),
        ("nvpmodel-chroot:3", "wanted no argument of its own, then after_s=N and for_s=N, got '3'"),
        ("throttled:for_s=ever", "wanted seconds from 0, got 'ever'"),
        ("throttled:to_s=3", "got 'to_s=3'"),
        ("throttled,after_s=-1", "wanted seconds from 0, got '-1'"),
        ("throttled,3", "got '3'"),
    ],
)
def test_what_is_no_fault_is_said_before_anything_is_touched(tmp_path: Path, text: str, said: str) -> None:
    board = Faulty(tmp_path)
    with pytest.raises(UsageError) as caught:
        board.suffer("conf-relinked", text)
    assert said in str(caught.value)
    assert f"--fault {text}" in str(caught.value)
    assert Faults(str(board.machine.root)).all() == {}
    assert not (board.machine.root / "etc/nvpmodel/relinked.conf").exists()


def test_spells_begin_and_end_in_simulated_time(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "hot:after_s=10,for_s=5", "nvpmodel-slow:2", "second-writer:cpu,after_s=12")
    faults, clock = board.machine.kernel.faults, board.machine.clock
    policy = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
    seen = []
    for _ in range(8):
        clock.sleep(2.5)
        is_slow = faults.get("slow_s") == {"nvpmodel": 2.0}
        seen.append(("values" in faults.all(), is_slow, board.host.sysfs.read(policy)))
    is_hot = [hot for hot, _, _ in seen]
    assert is_hot == [False, False, False, True, True, False, False, False]
    assert all(is_slow for _, is_slow, _ in seen)
    assert [text == "960000" for _, _, text in seen] == [False] * 4 + [True] * 4


def test_times_follow_a_name_without_an_argument(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "hot,after_s=10,for_s=5")
    faults, clock = board.machine.kernel.faults, board.machine.clock
    seen = []
    for _ in range(8):
        clock.sleep(2.5)
        seen.append("values" in faults.all())
    assert seen == [False, False, False, True, True, False, False, False]


def test_what_happens_once_does_not_happen_to_the_next_process(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "board-resets:after_s=1")
    with pytest.raises(BoardReset):
        board.machine.clock.sleep(2.0)
    Faulty(tmp_path).machine.clock.sleep(2.0)


def test_files_are_put_back_when_the_fault_goes(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    conf = board.machine.root / CONF.lstrip("/")
    before = conf.readlink(), conf.read_bytes(), board.status_files()
    board.suffer("conf-id-gap", "status-lost", "conf-off-table")
    assert conf.read_bytes() != before[1]
    board.recover()
    assert (conf.readlink(), conf.read_bytes(), board.status_files()) == before


def test_switches_of_several_faults_add_up() -> None:
    parts: list[dict[str, Any]] = [
        {"hidden": ["a"], "values": {"x": "1"}, "prompt": True},
        {"hidden": ["b"], "values": {"y": "2"}},
    ]
    assert merged(parts) == {"hidden": ["a", "b"], "values": {"x": "1", "y": "2"}, "prompt": True}


def test_command_takes_faults_and_leaves_none_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune = ["tune", "--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path), "--latency-bound-ratio", "1.4"]
    assert main([*tune, "--fault", "gpu-busy"]) == 12
    assert "the GPU is 60 % busy before the job has begun" in capsys.readouterr().out
    assert Faults(str(tmp_path / "board")).all() == {}
    assert main([*tune, "--dry-run"]) == 0


def test_faults_that_a_killed_job_met_are_met_by_its_restore_and_gone_in_the_next_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Faulty(tmp_path, "gpu-busy")
    options = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]
    assert main(["restore", *options]) == 0
    assert "named" in Faults(str(board.machine.root)).all()
    assert main(["tune", *options, "--latency-bound-ratio", "1.4", "--dry-run"]) == 0
    assert Faults(str(board.machine.root)).all() == {}
    assert "nothing was touched" in capsys.readouterr().out


def test_switches_set_by_hand_stay(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    (board.machine.root / ".virtual" / "faults.json").write_text('{"prompt": true}')
    board.suffer()
    assert Faults(str(board.machine.root)).all() == {"prompt": True}


def test_only_a_virtual_board_has_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--state-dir", str(tmp_path), "--no-latency-bound", "--fault", "hot"]) == 2
    assert "only a virtual board misbehaves on command" in capsys.readouterr().err


def test_list_says_what_each_fault_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["virtual", "faults"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed[: len(FAULTS)]] == list(FAULTS)
    assert "[an errno (EAGAIN), after_s=100, for_s=30]" in next(line for line in listed if "sensor-error" in line)
