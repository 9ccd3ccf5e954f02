from __future__ import annotations

import re
from pathlib import Path

import pytest

from jouled.board.found import unknown_board
from jouled.board.identity import (
    TOPICS,
    BoardFile,
    board_files,
    find_board_file,
    parse_board_file,
    read_identity,
)
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError

COMPATIBLE = ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234")
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 2025\n"


def _tree(root: Path, compatible: tuple[str, ...] = COMPATIBLE, release: str | None = RELEASE) -> Sysfs:
    folder = root / "proc/device-tree"
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    (folder / "compatible").write_bytes(b"".join(entry.encode() + b"\0" for entry in compatible))
    if release is not None:
        (root / "etc").mkdir()
        (root / "etc/nv_tegra_release").write_text(release)
    return Sysfs(root)


def test_identity_is_what_the_device_tree_says(tmp_path: Path) -> None:
    identity = read_identity(_tree(tmp_path))

    assert identity.model == "NVIDIA Jetson AGX Orin Developer Kit"
    assert identity.compatible == COMPATIBLE
    assert (identity.module, identity.carrier, identity.soc) == ("p3701-0005", "p3737-0000", "tegra234")
    assert identity.l4t == "36.4.3"


@pytest.mark.parametrize("release", [None, "", "something else\n", "# R36, REVISION 4.3\n"])
def test_an_l4t_that_is_not_told_is_none(tmp_path: Path, release: str | None) -> None:
    assert read_identity(_tree(tmp_path, release=release)).l4t is None


def test_a_module_without_a_known_carrier_is_still_known(tmp_path: Path) -> None:
    identity = read_identity(_tree(tmp_path, ("nvidia,p3701-0000", "nvidia,tegra234")))
    assert (identity.module, identity.carrier) == ("p3701-0000", "unknown")
    file = find_board_file(identity)
    assert file is not None
    assert file.name == "agx-orin-64gb"


def test_a_machine_without_device_tree_is_no_jetson(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="no Jetson") as caught:
        read_identity(Sysfs(tmp_path))
    assert "--virtual" in caught.value.hint


def test_another_arm_board_is_no_jetson_and_named(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="raspberrypi,4-model-b, brcm,bcm2711") as caught:
        read_identity(_tree(tmp_path, ("raspberrypi,4-model-b", "brcm,bcm2711")))
    assert "--virtual" in caught.value.hint


def test_an_unknown_jetson_is_refused_with_what_was_found_and_what_is_known(tmp_path: Path) -> None:
    sysfs = _tree(tmp_path, ("nvidia,p3737-0000+p9999-0001", "nvidia,tegra234"))
    identity = read_identity(sysfs)
    assert find_board_file(identity) is None
    told = str(unknown_board(sysfs, identity))
    assert re.search(r"p9999-0001.*L4T 36\.4\.3.*found: no clocks and no rails; known: .*orin-64gb \(p3701-0000", told)
    assert "p0000" not in told


def test_the_totals_of_the_agx_orin_leave_out_the_rail_inside_another() -> None:
    board = next(board for board in board_files() if board.name == "agx-orin-64gb")
    assert board.total_rails == ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


def test_no_two_board_files_claim_one_module() -> None:
    claimed = [part for board in board_files() for part in board.compatible]
    assert len(claimed) == len(set(claimed))


_FILE = """\
name = "x"
module = "X"
soc = "tegra234"
compatible = ["p0000-0000"]
total_rails = ["VDD_IN"]
coverage = "module"
rail_averaging_s = 1
emc_table_hz = [204000000]
cooling_ignored = []
refusal = ""
[confidence]
rails = "seen"
modes = "seen"
cpu_table = "assumed"
gpu_table = "unknown"
emc_table = "inferred"
thermal_zones = "seen"
paths = "seen"
"""
KNOWN = dict(zip(TOPICS, ("seen", "seen", "assumed", "unknown", "inferred", "seen", "seen"), strict=True))


def test_a_board_file_is_read_whole() -> None:
    assert parse_board_file(_FILE, where="x.toml") == BoardFile(
        "x", "X", "tegra234", ("p0000-0000",), "", ("VDD_IN",), "module", 1.0, (204000000,), (), KNOWN
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('soc = "tegra234"\n', "", "soc: missing"),
        ('soc = "tegra234"', 'soc = "tegra234"\nfan = 1', "fan: no such key"),
        ('name = "x"', "name = 1", "name: wanted str, got 1"),
        ("[204000000]", '["fast"]', r"emc_table_hz: wanted tuple\[int, ...\], got \['fast'\]"),
        ("[204000000]", "[true]", "emc_table_hz: wanted"),
        ("rail_averaging_s = 1", "rail_averaging_s = true", "rail_averaging_s: wanted float"),
        ('name = "x"', 'name = "x', "x.toml: "),
        ('rails = "seen"\n', "", "confidence: wanted rails, modes"),
        ('rails = "seen"', 'rails = "sure"', r"each seen or inferred or assumed or unknown; got .*sure"),
        ('paths = "seen"', 'paths = "seen"\nfan = "seen"', "confidence: wanted rails"),
        ('emc_table = "inferred"', 'emc_table = "assumed"', "emc_table_hz: what is assumed must not be used"),
    ],
)
def test_a_wrong_board_file_is_refused_by_file_and_key(old: str, new: str, message: str) -> None:
    assert old in _FILE
    with pytest.raises(NotSupportedError, match=message) as caught:
        parse_board_file(_FILE.replace(old, new), where="x.toml")
    assert str(caught.value).startswith("x.toml: ")
