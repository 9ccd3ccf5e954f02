"""Knobs: read, refused, put back in an order that the kernel takes."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jouled.board.discover import discover_domains
from jouled.board.domains import Domains
from jouled.board.knobs import (
    CONF_PATH_PATH,
    STATUS_PATH,
    Kind,
    Knobs,
    differences,
    kind_of,
    knob_paths,
    put_back,
    read_knobs,
    repair_status,
)
from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, BrokenError, NotSupportedError, StateError, SysfsError
from jouled.virtual.faults import set_faults
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import make_tree

CPU = "/sys/devices/system/cpu"
GPU = "/sys/class/devfreq/17000000.gpu"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
EMC_CAP = "/sys/kernel/nvpmodel_clk_cap/emc"
POWER = "/sys/devices/platform/gpu.0/power/control"


@pytest.fixture
def board(tmp_path: Path) -> VirtualSysfs:
    make_tree(tmp_path / "board", base_mode="MODE_30W")
    return VirtualSysfs(tmp_path / "board")


def settled(knobs: Knobs) -> dict[str, str]:
    """EMC's rate follows the load unless it is locked."""
    locked = knobs.values.get(f"{EMC}/mrq_rate_locked") == "1"
    return {path: text for path, text in knobs.values.items() if locked or path != f"{EMC}/rate"}


# --- any state, any damage ----------------------------------------------------------------------------------


def limits(table: tuple[int, ...]) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.sampled_from(table), st.sampled_from(table)).map(lambda pair: (min(pair), max(pair)))


@st.composite
def states(draw: st.DrawFn, domains: Domains) -> dict[str, str]:
    """What some writer may have set: the path of a write and its text."""
    assert domains.gpu is not None
    assert domains.emc is not None
    flag = st.sampled_from("01")
    state = {f"{CPU}/cpu{cpu}/online": draw(flag) for cpu in domains.cpu.cpus[1:]}
    for policy, _ in domains.cpu.policies:
        low, high = draw(limits(domains.cpu.table_hz))
        state[f"{policy}/scaling_min_freq"] = str(low // 1000)
        state[f"{policy}/scaling_max_freq"] = str(high // 1000)
        state[f"{policy}/scaling_governor"] = draw(st.sampled_from(("schedutil", "performance")))
    low, high = draw(limits(domains.gpu.table_hz))
    state |= {f"{GPU}/min_freq": str(low), f"{GPU}/max_freq": str(high)}
    state[f"{GPU}/governor"] = draw(st.sampled_from(("nvhost_podgov", "performance")))
    state |= {f"{GPU}/device/railgate_enable": draw(flag), POWER: draw(st.sampled_from(("on", "auto")))}
    for cpu in draw(st.sets(st.sampled_from(domains.cpu.cpus))):
        state[f"{CPU}/cpu{cpu}/cpuidle/state1/disable"] = draw(flag)
    state[EMC_CAP] = str(draw(st.sampled_from(domains.emc.table_hz)))
    state[f"{EMC}/mrq_rate_locked"] = draw(flag)
    state[f"{EMC}/rate"] = str(draw(st.sampled_from(domains.emc.table_hz)))
    state["/sys/kernel/debug/bpmp/debug/bwmgr/bwmgr_halt"] = draw(flag)
    state[STATUS_PATH] = draw(st.sampled_from(("", "pmode:0000\n", "pmode:0002")))
    state[CONF_PATH_PATH] = draw(st.sampled_from(("", "/etc/nvpmodel.conf\n", "/run/jouled/modes/a b.conf\n")))
    return state


def write_state(sysfs: VirtualSysfs, state: dict[str, str]) -> None:
    for path, text in state.items():
        if path in (STATUS_PATH, CONF_PATH_PATH):
            sysfs.real(path).unlink(missing_ok=True)
            if text:
                sysfs.place(path, text)
            continue
        try:
            if path.endswith("min_freq"):  # make room above first
                sysfs.write(path.replace("min_freq", "max_freq"), "9999999999", why="test")
            sysfs.write(path, text, why="test")
        except AbsentError:
            assert "policy" in path  # its cores are offline


class Unrefusing(VirtualSysfs):
    """A kernel in whose face no write may fly: the order must be right at once."""

    def _write_bytes(self, path: str, data: bytes) -> None:
        try:
            super()._write_bytes(path, data)
        except OSError as error:
            raise AssertionError(f"refused: {path} <- {data!r}: {error}") from error


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_knobs_are_identical_after_any_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        root = Path(folder) / "board"
        make_tree(root, base_mode=data.draw(st.sampled_from(("MAXN", "MODE_30W"))))
        sysfs = VirtualSysfs(root)
        domains = discover_domains(sysfs)
        write_state(sysfs, data.draw(states(domains), label="found"))
        found = read_knobs(sysfs, domains)
        write_state(sysfs, data.draw(states(domains), label="damage"))
        assert put_back(Unrefusing(root), found) == ()
        assert settled(read_knobs(sysfs, domains)) == settled(found)


def test_a_second_put_back_writes_nothing(board: VirtualSysfs) -> None:
    found = read_knobs(board, discover_domains(board))
    board.write(f"{GPU}/max_freq", 306000000, why="test")
    assert put_back(board, found) == ()
    writes = board.kernel.writes
    assert put_back(board, found) == ()
    assert board.kernel.writes == writes


@pytest.mark.parametrize("stop_after", range(0, 40, 3))
def test_put_back_killed_after_any_write_is_finished_by_the_next(board: VirtualSysfs, stop_after: int) -> None:
    domains = discover_domains(board)
    found = read_knobs(board, domains)
    for cpu in range(1, 12):
        board.write(f"{CPU}/cpu{cpu}/online", "0" if cpu < 8 else "1", why="test")
    for path in (f"{GPU}/max_freq", f"{CPU}/cpufreq/policy0/scaling_max_freq"):
        board.write(path, "9999999999", why="test")
    for path in (f"{GPU}/min_freq", f"{CPU}/cpufreq/policy0/scaling_min_freq", EMC_CAP):
        board.write(path, "800000000", why="test")
    board.write(f"{EMC}/mrq_rate_locked", 1, why="test")
    board.place(STATUS_PATH, "pmode:0001\n")

    class Killed(BaseException):
        """As if the process were gone."""

    class Dying(VirtualSysfs):
        def _write_bytes(self, path: str, data: bytes) -> None:
            if self.kernel.writes >= stop_after:
                raise Killed
            super()._write_bytes(path, data)

    try:
        put_back(Dying(board.root), found)
    except Killed:
        assert board.read(STATUS_PATH) == "pmode:0002"  # already right, should a reboot come now
    assert put_back(board, found) == ()
    assert settled(read_knobs(board, domains)) == settled(found)


def test_locked_memory_found_locked_is_locked_again_at_its_rate(board: VirtualSysfs) -> None:
    board.write(f"{EMC}/mrq_rate_locked", 1, why="test")
    board.write(f"{EMC}/rate", 665600000, why="test")
    found = read_knobs(board, discover_domains(board))
    board.write(f"{EMC}/mrq_rate_locked", 0, why="test")
    board.write(f"{EMC}/rate", 3199000000, why="test")
    assert put_back(board, found) == ()
    assert board.read(f"{EMC}/mrq_rate_locked") == "1"
    assert board.read(f"{EMC}/rate") == "665600000"


def test_rate_of_unlocked_memory_is_no_difference(board: VirtualSysfs) -> None:
    found = read_knobs(board, discover_domains(board))
    board.write(f"{EMC}/rate", 204000000, why="test")
    assert differences(board, found) == {}


# --- nvpmodel's files ---------------------------------------------------------------------------------------


def test_status_files_come_back_byte_by_byte(board: VirtualSysfs) -> None:
    board.real(STATUS_PATH).write_bytes(b"pmode:0002")
    found = read_knobs(board, discover_domains(board))
    board.place(STATUS_PATH, "pmode:0000\n")
    board.place(CONF_PATH_PATH, "/run/jouled/modes/x.conf\n")
    assert repair_status(board, found) == ()
    assert board.real(STATUS_PATH).read_bytes() == b"pmode:0002"
    assert board.real(CONF_PATH_PATH).read_text() == found.values[CONF_PATH_PATH]


def test_status_file_that_was_not_there_is_removed(board: VirtualSysfs) -> None:
    board.real(STATUS_PATH).unlink()
    found = read_knobs(board, discover_domains(board))
    board.place(STATUS_PATH, "pmode:0000\n")
    assert put_back(board, found) == ()
    assert not board.exists(STATUS_PATH)


def test_repair_status_touches_no_other_knob(board: VirtualSysfs) -> None:
    found = read_knobs(board, discover_domains(board))
    board.write(f"{GPU}/max_freq", 306000000, why="test")
    board.place(STATUS_PATH, "pmode:0000\n")
    assert repair_status(board, found) == ()
    assert board.read(f"{GPU}/max_freq") == "306000000"
    assert board.read(STATUS_PATH) == "pmode:0002"


def test_status_is_put_back_in_place_on_a_full_disk(board: VirtualSysfs) -> None:
    class Full(VirtualSysfs):
        def place(self, path: str, text: str) -> None:
            self.real(path).with_name(f".{Path(path).name}.new").touch()  # as far as a full disk lets it come
            raise BrokenError(f"{path}: no space", path=path, errno=errno.ENOSPC)

    found = read_knobs(board, discover_domains(board))
    board.place(CONF_PATH_PATH, "/run/jouled/modes/a-very-long-name-of-a-mode.conf\n")
    assert put_back(Full(board.root), found) == ()
    assert board.real(CONF_PATH_PATH).read_text() == found.values[CONF_PATH_PATH]
    assert sorted(os.listdir(board.real("/var/lib/nvpmodel"))) == ["conf_file_path", "status"]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/nvpmodel.conf",
        "/sys/devices/platform/gpu.0/tpc_pg_mask",
        "/sys/devices/system/cpu/../../../../etc/shadow",
        "/sys/devices/platform/../../../etc/devfreq_dev/max_freq",
        "/sys/class/devfreq/../../../etc/max_freq",
        "/var/lib/nvpmodel/../../../etc/passwd",
        "/sys/devices/system/cpu/cpu1/online\n",
        "sys/devices/system/cpu/cpu1/online",
        "/sys/devices/platform/c250000.i2c/hwmon/hwmon1/curr1_max",
    ],
)
def test_path_that_is_no_knob_is_refused_before_any_write(board: VirtualSysfs, path: str) -> None:
    assert kind_of(path) is None
    before = board.kernel.writes
    with pytest.raises(StateError, match="nothing written"):
        put_back(board, Knobs({f"{GPU}/max_freq": "306000000", path: "1"}))
    assert board.kernel.writes == before
    assert board.read(f"{GPU}/max_freq") == "612000000"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{CPU}/cpu1/online", "2"),
        (f"{GPU}/max_freq", "fast"),
        (f"{GPU}/governor", "../x"),
        (f"{CPU}/cpufreq/policy0/scaling_governor", "a b"),
        (POWER, "off"),
        (STATUS_PATH, "rm -rf"),
        (CONF_PATH_PATH, "relative.conf"),
    ],
)
def test_value_that_no_knob_holds_is_refused(board: VirtualSysfs, path: str, value: str) -> None:
    with pytest.raises(StateError, match="nothing written"):
        put_back(board, Knobs({path: value}))


@pytest.mark.parametrize(
    ("path", "text", "to_do"),
    [
        (STATUS_PATH, "garbage\n", "sudo nvpmodel -m ID"),
        (CONF_PATH_PATH, "relative.conf", "sudo nvpmodel -m ID"),
        (f"{GPU}/governor", "two words\n", "report the board"),
    ],
)
def test_board_with_a_text_that_could_not_be_put_back_is_not_supported(
    board: VirtualSysfs, path: str, text: str, to_do: str
) -> None:
    board.real(path).write_text(text)
    with pytest.raises(NotSupportedError, match=rf"{path}: holds .*no knob was written") as caught:
        read_knobs(board, discover_domains(board))
    assert to_do in caught.value.hint


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/sys/devices/17000000.ga10b/devfreq/17000000.ga10b/max_freq", Kind.GPU_LIMIT),
        ("/sys/devices/platform/17000000.gpu/devfreq_dev/min_freq", Kind.GPU_LIMIT),
        ("/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu/governor", Kind.GPU_GOVERNOR),
        ("/sys/devices/gpu.0/power/control", Kind.POWER_CONTROL),
        (f"{GPU}/device/railgate_enable", Kind.RAILGATE),
        ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", Kind.EMC_CAP),
        (f"{CPU}/cpu11/cpufreq/scaling_max_freq", Kind.CPU_LIMIT),
    ],
)
def test_knobs_of_every_release_are_known(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


def test_domain_at_an_unknown_place_is_refused_while_nothing_is_written(board: VirtualSysfs) -> None:
    domains = discover_domains(board)
    odd = Domains(domains.cpu, None, None)
    cpu = type(domains.cpu)(domains.cpu.cpus, (("/sys/odd/policy0", (0,)),), domains.cpu.table_hz)
    with pytest.raises(NotSupportedError, match="/sys/odd/policy0"):
        knob_paths(board, type(odd)(cpu, None, None))


# --- what cannot be read or written -------------------------------------------------------------------------


def test_knob_that_is_forbidden_is_left_out(board: VirtualSysfs) -> None:
    set_faults(str(board.root), user="nobody")
    knobs = read_knobs(board, discover_domains(board))
    assert f"{EMC}/mrq_rate_locked" not in knobs.values
    assert f"{GPU}/max_freq" in knobs.values


def test_knob_that_gives_no_value_stops_the_reading(board: VirtualSysfs) -> None:
    domains = discover_domains(board)
    set_faults(str(board.root), read_errors={"*/17000000.gpu/max_freq": "EIO"})
    with pytest.raises(SysfsError, match="max_freq"):
        read_knobs(board, domains)


def test_knob_that_does_not_obey_is_named_and_the_others_are_put_back(board: VirtualSysfs) -> None:
    found = read_knobs(board, discover_domains(board))
    board.write(f"{GPU}/max_freq", 306000000, why="test")
    board.write(EMC_CAP, 665600000, why="test")
    set_faults(str(board.root), write_errors=[{"path": EMC_CAP, "errno": "EBUSY"}])
    (left,) = put_back(board, found)
    assert EMC_CAP in left
    assert "3199000000" in left
    assert "665600000" in left
    assert "busy" in left
    assert board.read(f"{GPU}/max_freq") == "612000000"


def test_write_that_changes_nothing_is_said(board: VirtualSysfs) -> None:
    found = read_knobs(board, discover_domains(board))
    board.write(f"{CPU}/cpu3/online", 0, why="test")
    set_faults(str(board.root), ignore_writes=["*/cpu3/online"])
    assert put_back(board, found) == (f"{CPU}/cpu3/online: wanted '1', got '0'",)


def test_gpu_is_held_powered_while_its_limits_are_written(board: VirtualSysfs) -> None:
    order: list[str] = []

    class Recording(VirtualSysfs):
        def _write_bytes(self, path: str, data: bytes) -> None:
            order.append(f"{path.rpartition('/')[2]}={data.decode()}")
            super()._write_bytes(path, data)

    found = read_knobs(board, discover_domains(board))
    board.write(f"{GPU}/max_freq", 306000000, why="test")
    assert put_back(Recording(board.root), found) == ()
    assert order == ["control=on", "max_freq=612000000", "control=auto"]


def test_a_plain_tree_of_another_release_is_put_back(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    values = {
        "/sys/devices/gpu.0/power/control": "auto",
        "/sys/devices/17000000.ga10b/devfreq/17000000.ga10b/min_freq": "306000000",
        "/sys/devices/17000000.ga10b/devfreq/17000000.ga10b/max_freq": "1300500000",
        "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap": "0",
    }
    for path in values:
        sysfs.place(path, "1")
    assert put_back(sysfs, Knobs(values)) == ()
    assert {path: sysfs.read(path) for path in values} == values
