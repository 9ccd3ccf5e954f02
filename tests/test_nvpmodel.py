from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.board.nvpmodel import (
    NvpmodelConf,
    Param,
    PowerModel,
    Setting,
    parse_conf,
    parse_query,
    query,
    read_status,
    write_conf,
)
from jouled.board.process import Completed, Processes
from jouled.board.sysfs import Sysfs
from jouled.errors import BrokenError, ToolAbsentError
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.tree import make_tree

STOCK = """\
# Copyright notice
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
CORE_1 /sys/devices/system/cpu/cpu1/online   # the second

<PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap
MAX_FREQ_KNEXT /sys/kernel/nvpmodel_clk_cap/emc
< PARAM TYPE=HWMON NAME=VDDIN_OC_LIMIT >
WARN /sys/devices/platform/c250000.i2c/i2c-7/7-0040/hwmon curr1_max

< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 1
EMC MAX_FREQ -1
< POWER_MODEL ID=3 NAME=10W >
CPU_ONLINE CORE_1 0
VDDIN_OC_LIMIT WARN 3000
EMC MAX_FREQ 2133000000

< FAN_CONFIG DEFAULT=quiet >
anything may stand here
< PM_CONFIG DEFAULT=7 >
"""


def test_stock_grammar_is_understood() -> None:
    conf = parse_conf(STOCK, where="stock.conf")

    assert [param.name for param in conf.params] == ["CPU_ONLINE", "EMC", "VDDIN_OC_LIMIT"]
    assert conf.default == 7  # of no mode: the tool itself notices only at boot
    emc = conf.param("EMC")
    assert emc is not None
    assert emc.paths("MAX_FREQ") == (
        "/sys/kernel/nvpmodel_clk_cap/emc",
        "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
    )
    limit = conf.param("VDDIN_OC_LIMIT")
    assert limit is not None
    assert limit.path("WARN") == "/sys/devices/platform/c250000.i2c/i2c-7/7-0040/hwmon curr1_max"


def test_modes_are_found_by_id_and_by_name_across_id_gaps() -> None:
    conf = parse_conf(STOCK, where="stock.conf")

    assert conf.by_id(3) is conf.by_name("10W")
    assert conf.by_id(1) is None
    assert conf.by_name("MODE_10W") is None
    ten = conf.by_id(3)
    assert ten is not None
    assert ten.settings[0] == Setting("CPU_ONLINE", "CORE_1", "0")
    assert ten.value("EMC", "MAX_FREQ") == "2133000000"
    assert ten.value("EMC", "MIN_FREQ") is None


def test_of_two_lines_for_one_argument_the_last_counts() -> None:
    text = STOCK.replace("EMC MAX_FREQ -1\n", "EMC MAX_FREQ -1\nEMC MAX_FREQ 665600000\n")
    model = parse_conf(text, where="stock.conf").by_id(0)
    assert model is not None
    assert model.value("EMC", "MAX_FREQ") == "665600000"


_PARAM = "< PARAM TYPE=CLOCK NAME=GPU >\nMAX_FREQ /sys/max\n"
_MODEL = "< POWER_MODEL ID=0 NAME=MAXN >\nGPU MAX_FREQ -1\n"
_CONFIG = "< PM_CONFIG DEFAULT=0 >\n"


@pytest.mark.parametrize(
    ("text", "line", "wanted", "got"),
    [
        ("MAX_FREQ /sys/x\n", 1, "a section header", "MAX_FREQ /sys/x"),
        ("< PARAM TYPE=CLOCK NAME=GPU\n", 1, "a section header", "< PARAM TYPE=CLOCK NAME=GPU"),
        ("< MODEL ID=1 >\n", 1, "PARAM, POWER_MODEL or PM_CONFIG", "< MODEL ID=1 >"),
        ("< PARAM TYPE=CLOCK >\n", 1, "exactly TYPE= and NAME=", "< PARAM TYPE=CLOCK >"),
        ("< PARAM TYPE=CLOCK NAME = GPU >\n", 1, "KEY=VALUE", "NAME = GPU"),
        ("< PARAM TYPE=CLOCK NAME=A NAME=B >\n", 1, "each once", "NAME=B"),
        ("< PARAM TYPE=REGISTER NAME=GPU >\n", 1, "TYPE=FILE|CLOCK|HWMON", "REGISTER"),
        (_PARAM + _PARAM, 3, "each PARAM once", "NAME=GPU"),
        ("< PARAM TYPE=CLOCK NAME=GPU >\nMAX_FREQ sys/max\n", 2, "`ARG /path` in PARAM GPU", "sys/max"),
        ("< PARAM TYPE=CLOCK NAME=GPU >\nMAX_FREQ /a /b\n", 2, "`ARG /path` in PARAM GPU", "/b"),
        ("< PARAM TYPE=HWMON NAME=V >\nWARN /a\n", 2, "`ARG /dir attribute`", "WARN /a"),
        (_PARAM + "MAX_FREQ /sys/other\n", 3, "each argument of PARAM GPU once", "/sys/other"),
        (_PARAM + "\n# note\n< POWER_MODEL ID=x NAME=MAXN >\n", 5, "an id of decimal digits", "ID=x"),
        (_PARAM + "< POWER_MODEL ID=-1 NAME=MAXN >\n", 3, "an id of decimal digits", "ID=-1"),
        (_PARAM + _MODEL + "< POWER_MODEL ID=0 NAME=B >\n", 5, "id and name once", "NAME=B"),
        (_PARAM + _MODEL + "< POWER_MODEL ID=1 NAME=MAXN >\n", 5, "id and name once", "ID=1"),
        (_PARAM + "< POWER_MODEL ID=0 NAME=A >\nGPU MAX_FREQ\n", 4, "`PARAM ARG VALUE`", "GPU MAX_FREQ"),
        (_PARAM + "< POWER_MODEL ID=0 NAME=A >\nDLA MAX_FREQ 1\n", 4, "name of a PARAM section above", "DLA"),
        (_PARAM + "< POWER_MODEL ID=0 NAME=A >\nGPU MIN_FREQ 1\n", 4, "an argument of PARAM GPU", "MIN_FREQ"),
        (_PARAM + "< POWER_MODEL ID=0 NAME=A >\nGPU MAX_FREQ fast\n", 4, "an integer for GPU MAX_FREQ", "fast"),
        (_PARAM + _MODEL + _CONFIG + _CONFIG, 6, "one PM_CONFIG", "DEFAULT=0"),
        (_PARAM + _MODEL + _CONFIG + "GPU MAX_FREQ 1\n", 6, "nothing in PM_CONFIG", "GPU MAX_FREQ 1"),
    ],
)
def test_each_error_names_file_line_wanted_and_got(text: str, line: int, wanted: str, got: str) -> None:
    with pytest.raises(BrokenError) as caught:
        parse_conf(text, where="/etc/nvpmodel.conf")

    message = str(caught.value)
    assert message.startswith(f"/etc/nvpmodel.conf, line {line}: wanted ")
    assert wanted in message
    assert got in message.partition(", got ")[2]
    assert caught.value.path == "/etc/nvpmodel.conf"


@pytest.mark.parametrize(("text", "wanted"), [(_PARAM + _CONFIG, "POWER_MODEL"), (_PARAM + _MODEL, "PM_CONFIG")])
def test_missing_sections_are_errors(text: str, wanted: str) -> None:
    with pytest.raises(BrokenError, match=wanted):
        parse_conf(text, where="x.conf")


_NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True)
_PATHS = st.from_regex(r"(/[a-z0-9_.@:]{1,8}){1,4}", fullmatch=True)


@st.composite
def _params(draw: st.DrawFn) -> Param:
    kind = draw(st.sampled_from(["FILE", "CLOCK", "HWMON"]))
    path = _PATHS if kind != "HWMON" else st.builds("{} {}".format, _PATHS, _NAMES)
    args = draw(st.dictionaries(_NAMES, path, min_size=1, max_size=4))
    return Param(kind, draw(_NAMES), tuple(args.items()))


@st.composite
def _confs(draw: st.DrawFn) -> NvpmodelConf:
    params = draw(st.lists(_params(), min_size=1, max_size=5, unique_by=lambda param: param.name))
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    ids = draw(st.lists(st.integers(0, 10**9 - 1), min_size=len(names), max_size=len(names), unique=True))

    def setting() -> Setting:
        param = draw(st.sampled_from(params))
        number = str(draw(st.integers(-1, 10**12)))
        value = draw(_NAMES) if param.kind == "FILE" else number
        return Setting(param.name, draw(st.sampled_from(param.args))[0], value)

    models = tuple(
        PowerModel(number, name, tuple(setting() for _ in range(draw(st.integers(0, 6)))))
        for number, name in zip(ids, names, strict=True)
    )
    return NvpmodelConf(tuple(params), models, draw(st.integers(0, 10**6)))


@given(_confs())
def test_what_is_written_parses_to_itself(conf: NvpmodelConf) -> None:
    assert parse_conf(write_conf(conf), where="written") == conf


def test_the_writer_spaces_headers_as_the_strictest_tool_wants() -> None:
    text = write_conf(parse_conf(STOCK, where="stock.conf"))
    headers = [line for line in text.splitlines() if "<" in line]
    assert headers
    assert all(line.startswith("< ") and line.endswith(" >") for line in headers)
    assert "< PARAM TYPE=CLOCK NAME=EMC >" in headers


@pytest.mark.parametrize(
    ("stdout", "answer"),
    [
        ("NV Power Mode: MODE_30W\n2\n", ("MODE_30W", 2)),
        ("NVPM WARN: fan mode is not set!\nNV Power Mode: 15W\n0\n", ("15W", 0)),
        ("NV Power Mode: MAXN\nNVPM ERROR: Error opening /sys/kernel/x: 13\n0\n", ("MAXN", 0)),
        ("NVPM ERROR: Error opening /sys/kernel/nvpmodel_emc_cap/x: 13\n", None),
        ("NV Fan Mode:quiet\nNV Power Mode: MAXN\n8\n", ("MAXN", 8)),
        ("NV Power Mode: MAXN\n", None),
        ("NV Power Mode:\n3\n", None),
        ("", None),
    ],
)
def test_query_output_is_read_past_any_noise(stdout: str, answer: tuple[str, int] | None) -> None:
    assert parse_query(stdout) == answer


def test_query_ignores_the_exit_code(tmp_path: Path) -> None:
    class Failing(Processes):
        def run(self, argv, *, timeout_s):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 255, "NV Power Mode: MAXN\n0\n", "NVPM ERROR: x\n", 0.1)

    assert query(Failing()) == ("MAXN", 0)


def test_query_asks_the_tool(tmp_path: Path) -> None:
    make_tree(tmp_path, base_mode="MODE_50W")
    assert query(VirtualProcesses(tmp_path)) == ("MODE_50W", 3)


def test_query_without_the_tool_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolAbsentError):
        query(Processes(path=str(tmp_path)))


def _status(tmp_path: Path, text: str) -> Sysfs:
    target = tmp_path / "var/lib/nvpmodel/status"
    target.parent.mkdir(parents=True)
    target.write_text(text)
    return Sysfs(tmp_path)


def test_status_is_four_padded_digits(tmp_path: Path) -> None:
    assert read_status(_status(tmp_path, "pmode:0002\n")) == 2


def test_status_of_older_releases_carries_the_fan_mode_too(tmp_path: Path) -> None:
    assert read_status(_status(tmp_path, "pmode:0008 fmode:quiet\n")) == 8


def test_no_status_yet_is_none(tmp_path: Path) -> None:
    assert read_status(Sysfs(tmp_path)) is None


@pytest.mark.parametrize("text", ["", "2", "pmode:", "pmode:-1", "pmode:0002x"])
def test_a_damaged_status_is_no_mode(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenError, match="wanted `pmode:NNNN`"):
        read_status(_status(tmp_path, text))
