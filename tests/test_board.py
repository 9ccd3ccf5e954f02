from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jouled.board.board import Board, discover, fingerprint
from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.errors import BrokenError, NotSupportedError, UsageError
from jouled.virtual.faults import set_faults
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import make_tree
from jouletune.space import PowerMode

Find = Callable[..., Board]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path, base_mode="MODE_30W")
    return tmp_path


@pytest.fixture
def find(root: Path) -> Find:
    def discovered(base_mode: str = "current") -> Board:
        sysfs = VirtualSysfs(root)
        board = discover(Host(sysfs, VirtualProcesses(root, in_process=True), SystemClock(), root / "state"), base_mode)
        assert sysfs.kernel.writes == 0  # looking changes nothing
        return board

    return discovered


def test_the_reference_is_the_mode_that_the_board_is_in(find: Find) -> None:
    board = find()
    assert board.base_mode.name == "MODE_30W"
    assert board.reference == PowerMode(8, 1_728_000_000, 612_000_000, 3_199_000_000)
    assert board.base_mode.mask == 240
    assert board.file.name == "agx-orin-64gb"
    assert board.warnings == ()


def test_naming_the_mode_that_the_board_is_in_is_fine(find: Find) -> None:
    assert find("MODE_30W") == find()


def test_naming_another_mode_says_how_to_switch(find: Find) -> None:
    with pytest.raises(UsageError, match="the board is in MODE_30W") as caught:
        find("MODE_50W")
    assert "nvpmodel -m 3" in caught.value.hint


def test_naming_no_mode_at_all_lists_those_there_are(find: Find) -> None:
    with pytest.raises(UsageError, match="it has: MAXN, MODE_15W, MODE_30W, MODE_50W"):
        find("30W")


def test_a_damaged_status_file_is_said_and_the_tool_asked(root: Path, find: Find) -> None:
    (root / "var/lib/nvpmodel/status").write_text("pmode:zwei\n")
    board = find()
    assert "status file gives no mode" in board.warnings[0]
    assert board.base_mode.name == "MODE_30W"  # the tool records nothing either: the conf's default


def test_no_recorded_mode_at_all_is_the_confs_default_and_said(root: Path, find: Find) -> None:
    (root / "var/lib/nvpmodel/status").unlink()
    set_faults(str(root), absent=["nvpmodel"])
    board = find()
    assert board.base_mode.name == "MODE_30W"
    assert any("recorded no mode yet; its default 2" in warning for warning in board.warnings)


def test_a_recorded_mode_that_the_conf_does_not_hold_is_refused(root: Path, find: Find) -> None:
    (root / "var/lib/nvpmodel/status").write_text("pmode:0042\n")
    with pytest.raises(NotSupportedError, match=r"in nvpmodel mode 42, which /etc/nvpmodel\.conf does not hold"):
        find()


def test_without_a_stock_conf_the_package_is_named(root: Path, find: Find) -> None:
    (root / "etc/nvpmodel.conf").unlink()
    with pytest.raises(NotSupportedError, match=r"/etc/nvpmodel\.conf") as caught:
        find()
    assert "nvidia-l4t-nvpmodel" in caught.value.hint


def test_a_dangling_conf_link_is_as_none(root: Path, find: Find) -> None:
    (root / "etc/nvpmodel/nvpmodel_p3701_0000.conf").unlink()
    with pytest.raises(NotSupportedError, match="no nvpmodel conf"):
        find()


def test_a_conf_that_does_not_parse_names_its_line(root: Path, find: Find) -> None:
    conf = root / "etc/nvpmodel.conf"
    conf.write_text("< PARAM TYPE=CLOCK NAME=GPU\n" + conf.read_text())
    with pytest.raises(BrokenError, match=r"/etc/nvpmodel\.conf, line 1: wanted a section header"):
        find()


def test_a_conf_of_a_bigger_module_is_refused(root: Path, find: Find) -> None:
    (root / "sys/devices/system/cpu/present").write_text("0-5\n")
    with pytest.raises(NotSupportedError, match="switches on cpu6; this board has 6 cores"):
        find()


def test_the_mask_in_force_counts_and_a_difference_is_said(root: Path, find: Find) -> None:
    (root / "sys/devices/platform/gpu.0/tpc_pg_mask").write_text("248\n")
    board = find()
    assert board.base_mode.mask == 248
    assert any("wants mask 240, the board has 248" in warning for warning in board.warnings)


def test_a_foreign_conf_in_use_is_said_and_the_boots_own_taken(root: Path, find: Find) -> None:
    (root / "var/lib/nvpmodel/conf_file_path").write_text("/opt/me/fast.conf\n")
    board = find()
    assert board.conf_path == "/etc/nvpmodel.conf"
    assert any("/opt/me/fast.conf" in warning for warning in board.warnings)


def test_the_links_target_as_conf_in_use_is_no_foreign_one(root: Path, find: Find) -> None:
    (root / "var/lib/nvpmodel/conf_file_path").write_text("/etc/nvpmodel/nvpmodel_p3701_0000.conf\n")
    assert find().warnings == ()


def test_without_root_the_memorys_table_is_the_board_files_and_said(root: Path, find: Find) -> None:
    set_faults(str(root), user="nobody")
    board = find()
    assert board.domains.emc is not None
    assert board.domains.emc.table_hz == board.file.emc_table_hz
    assert any("clock table is not readable" in warning for warning in board.warnings)


def test_the_fingerprint_changes_with_each_thing_a_winner_is_bound_to(root: Path, find: Find) -> None:
    before = fingerprint(find(), 0.0)
    assert set(before) == {"module", "carrier", "l4t", "conf_sha256", "base_mode", "external_w"}
    assert fingerprint(find(), 0.0) == before
    assert fingerprint(find(), 2.5) != before
    with (root / "etc/nvpmodel.conf").open("a") as file:
        file.write("# a comment\n")
    after = fingerprint(find(), 0.0)
    assert {key for key in before if before[key] != after[key]} == {"conf_sha256"}
    (root / "var/lib/nvpmodel/status").write_text("pmode:0003\n")
    assert fingerprint(find(), 0.0)["base_mode"] == "MODE_50W"
