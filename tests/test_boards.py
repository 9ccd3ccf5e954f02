"""The boards that jouled knows: which file is whose, which rail is the total, and where no knob is turned."""

from __future__ import annotations

from pathlib import Path

import pytest

from jouled.board.found import describe
from jouled.board.identity import TOPICS, BoardFile, Identity, board_files, find_board_file
from jouled.board.support import release_warning, require_tunable, tuning_refusal
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError
from jouled.virtual.specs import board_names, board_spec

ORIN_NANO = ("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234")
ORIN_NANO_SUPER = ("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234")
AGX = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
TOTALS = {  # MEASUREMENT "Which rail is the total"
    "agx-orin-64gb": AGX,
    "agx-orin-32gb": AGX,
    "orin-nx-16gb": ("VDD_IN",),
    "orin-nx-8gb": ("VDD_IN",),
    "orin-nano-8gb": ("VDD_IN",),
    "orin-nano-8gb-super": ("VDD_IN",),
    "orin-nano-4gb": ("VDD_IN",),
    "thor": ("VIN",),
    "thor-t4000": ("VIN",),
    "xavier-nx": ("VDD_IN",),
    "agx-xavier": ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
    "tx2": ("VDD_IN",),
    "nano": ("POM_5V_IN",),
}
DOCS = Path(__file__).resolve().parents[1] / "docs" / "boards.md"
ORIN = [name for name in TOTALS if "orin" in name]


def _identity(module: str, l4t: str | None = "36.4.3", compatible: tuple[str, ...] = ()) -> Identity:
    return Identity("some model", compatible, module, "p3768-0000", "tegra234", l4t)


def _file(name: str) -> BoardFile:
    return next(file for file in board_files() if file.name == name)


def test_every_board_of_the_field_has_a_file_with_its_total() -> None:
    assert {file.name: file.total_rails for file in board_files() if file.name != "recorded"} == TOTALS


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("p3701-0000", "agx-orin-64gb"),
        ("p3701-0005", "agx-orin-64gb"),
        ("p3701-0004", "agx-orin-32gb"),
        ("p3767-0000", "orin-nx-16gb"),
        ("p3767-0001", "orin-nx-8gb"),
        ("p3767-0003", "orin-nano-8gb"),
        ("p3767-0005", "orin-nano-8gb"),
        ("p3767-0004", "orin-nano-4gb"),
        ("p3834-0008", "thor"),
        ("p3834-0000", "thor-t4000"),
        ("p3668-0000", "xavier-nx"),
        ("p2972-0000", "agx-xavier"),
        ("p3310-1000", "tx2"),
        ("p3450-0000", "nano"),
    ],
)
def test_a_module_is_known_by_its_part_number(module: str, name: str) -> None:
    file = find_board_file(_identity(module))
    assert file is not None
    assert file.name == name


def test_the_super_configuration_of_one_module_is_another_board() -> None:
    plain = find_board_file(_identity("p3767-0005", compatible=ORIN_NANO))
    faster = find_board_file(_identity("p3767-0005", compatible=ORIN_NANO_SUPER))
    assert plain is not None
    assert faster is not None
    assert (plain.name, faster.name) == ("orin-nano-8gb", "orin-nano-8gb-super")


def test_a_super_configuration_without_a_file_of_its_own_is_the_modules() -> None:
    compatible = ("nvidia,p3768-0000+p3767-0000-super", "nvidia,tegra234")
    file = find_board_file(_identity("p3767-0000", compatible=compatible))
    assert file is not None
    assert file.name == "orin-nx-16gb"


@pytest.mark.parametrize("name", ORIN)
def test_every_orin_may_be_tuned(name: str) -> None:
    for l4t in ("35.4.1", "36.4.3", "39.2.0", None):
        require_tunable(_identity("p3701-0005", l4t), _file(name))


@pytest.mark.parametrize("name", [name for name in TOTALS if name not in ORIN])
def test_every_other_board_is_refused_with_its_own_sentence(name: str) -> None:
    file = _file(name)
    with pytest.raises(NotSupportedError, match=f"{file.module} is (only observed|not tuned)") as caught:
        require_tunable(_identity("x"), file)
    assert 'mode = "observe"' in caught.value.hint
    assert "--table" in caught.value.hint


def test_l4t_32_is_refused_with_the_releases_that_are_not() -> None:
    assert tuning_refusal(_identity("p3701-0005", "32.7.1"), _file("agx-orin-64gb")) == (
        "L4T 32.7.1 is not supported: jouled tunes boards of L4T 36, 38 and 39, at best effort of 35"
    )


@pytest.mark.parametrize(
    ("l4t", "told"), [("35.4.1", "best effort"), ("36.4.3", None), ("38.2", None), ("39.2.0", None), ("41.1", "newer")]
)
def test_what_is_said_of_a_release(l4t: str, told: str | None) -> None:
    warning = release_warning(_identity("p3701-0005", l4t))
    assert warning is None if told is None else warning is not None and told in warning


def test_nothing_is_said_of_a_release_that_is_not_told() -> None:
    assert release_warning(_identity("p3701-0005", None)) is None


def test_no_assumed_memory_table_is_used_on_a_real_board() -> None:
    for file in board_files():
        assert not file.emc_table_hz or file.confidence["emc_table"] in ("seen", "inferred"), file.name
    assert _file("orin-nano-8gb").emc_table_hz != _file("orin-nano-8gb-super").emc_table_hz


@pytest.mark.parametrize(
    ("name", "topic", "level"),
    [
        ("agx-xavier", "rails", "unknown"),  # JETSON 4.2: whether VDDRQ lies inside SYS5V
        ("thor", "rails", "seen"),
        ("thor-t4000", "rails", "inferred"),  # seen of a T5000 only
        ("tx2", "modes", "unknown"),  # JETSON 1.4: the caps of MAXP_CORE_DENVER
        ("thor", "modes", "unknown"),
    ],
)
def test_the_least_known_value_of_a_topic_tells_how_well_it_is_known(name: str, topic: str, level: str) -> None:
    assert _file(name).confidence[topic] == level


def test_what_is_found_of_an_unknown_board_is_told(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/present": "0-5\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_available_frequencies": "115200 1510400\n",
        "sys/class/devfreq/17000000.gpu/available_frequencies": "306000000 624750000\n",
        "sys/kernel/nvpmodel_clk_cap/emc": "2133000000\n",
        "sys/class/hwmon/hwmon3/in1_label": "VDD_IN\n",
        "sys/class/hwmon/hwmon3/in2_label": "NC\n",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0": "POM_5V_IN\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(describe(Sysfs(tmp_path))) == [
        "CPUs 0-5, 115.2 to 1510.4 MHz in 2 steps",
        "devfreq 17000000.gpu, 306 to 624.75 MHz in 2 steps",
        "memory cap /sys/kernel/nvpmodel_clk_cap/emc",
        "rails POM_5V_IN, VDD_IN",
    ]


def test_the_documents_tables_are_the_files() -> None:
    lines = DOCS.read_text().splitlines()
    for name in TOTALS:
        file = _file(name)
        what = "observed" if file.refusal else "tuned"
        assert f"| {name} | {', '.join(file.compatible)} | {what} | {' + '.join(file.total_rails)} |" in lines
        assert f"| {name} | {' | '.join(file.confidence[topic] for topic in TOPICS)} |" in lines


def test_the_document_says_what_each_virtual_board_assumes() -> None:
    lines = DOCS.read_text().splitlines()
    for name in board_names():
        spec = board_spec(name)
        assert f"| {name} | {spec.boot_mode} | {', '.join(spec.assumed) or '–'} |" in lines
    assert "**Measured on hardware: none yet.**" in DOCS.read_text()
