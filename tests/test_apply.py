"""Power modes on the virtual board: each claim is checked in the tree, not in what the actuator says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jouled.board.apply import Actuator, ClocksPolicy, Method, probe_method
from jouled.board.board import Board, discover
from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.knobs import Kind, Knobs, differences, put_back, read_knobs
from jouled.board.nvpmodel import parse_conf
from jouled.config.tables import GridTable
from jouled.errors import ApplyError, NotPermittedError, UsageError
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import boot, make_tree
from jouletune.space import PowerMode

CAPPED, LOCKED = ClocksPolicy.CAPPED, ClocksPolicy.LOCKED
GPU = "/sys/class/devfreq/17000000.gpu"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
BOTH = pytest.mark.parametrize("method", list(Method), ids=lambda method: method.value)


class Bench:
    """One virtual board with everything that an actuator needs."""

    def __init__(self, root: Path, *, children: bool = False) -> None:
        self.root = root
        self.sysfs = VirtualSysfs(root)
        processes = VirtualProcesses(root, in_process=not children)
        self.host = Host(self.sysfs, processes, SystemClock(), root / "state")
        self.board: Board = discover(self.host)
        self.home: Knobs = read_knobs(self.sysfs, self.board.domains)

    def actuator(self, method: Method) -> Actuator:
        return Actuator(self.host, self.board, self.home, method)

    def knobs(self) -> Knobs:
        return read_knobs(self.sysfs, self.board.domains)

    def modes(self) -> list[PowerMode]:
        return [candidate.mode for candidate in board_space(self.board, GridTable()).candidates]

    def read(self, path: str) -> str:
        return self.sysfs.read(path)


Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(base_mode: str = "MAXN", *, children: bool = False) -> Bench:
        make_tree(tmp_path, base_mode=base_mode)
        return Bench(tmp_path, children=children)

    return build


# --- every mode -------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("base_mode", "size"), [("MAXN", 96), ("MODE_30W", 96), ("MODE_50W", 90)])
def test_every_mode_of_the_grid_applies_and_is_in_the_tree(
    make: Make, base_mode: str, size: int, method: Method
) -> None:
    bench = make(base_mode)
    actuator = bench.actuator(method)
    modes = bench.modes()
    assert len(modes) == size
    random.Random(7).shuffle(modes)

    for mode in modes:
        actuator.apply(mode, CAPPED)
        assert bench.read(f"{GPU}/max_freq") == str(mode.gpu_hz)
        assert bench.read("/sys/kernel/nvpmodel_clk_cap/emc") == str(mode.emc_hz)
        caps = {
            bench.read(path) for path in bench.sysfs.glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq")
        }
        assert caps == {str((mode.cpu_hz or 0) // 1000)}
        assert actuator.verify(mode, CAPPED) == ()
        assert actuator.current() == mode

    assert put_back(bench.sysfs, bench.home) == ()


@BOTH
def test_locked_pins_every_clock_at_its_cap_and_capped_releases_it(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    actuator = bench.actuator(method)
    mode = PowerMode(8, 1_113_600_000, 408_000_000, 2_133_000_000)

    actuator.apply(mode, LOCKED)
    locked = bench.knobs().values
    assert {bench.read(path) for path in locked if path.endswith("scaling_min_freq")} == {"1113600"}
    assert locked[f"{GPU}/min_freq"] == "408000000"
    assert (locked[f"{EMC}/mrq_rate_locked"], locked[f"{EMC}/rate"]) == ("1", "2133000000")
    assert set(bench.knobs().of(Kind.IDLE).values()) == {"1"}
    assert actuator.verify(mode, LOCKED) == ()
    assert actuator.verify(mode, CAPPED) != ()

    actuator.apply(mode, CAPPED)
    capped = bench.knobs().values
    assert {bench.read(path) for path in capped if path.endswith("scaling_min_freq")} == {"729600"}
    assert (capped[f"{GPU}/min_freq"], capped[f"{EMC}/mrq_rate_locked"]) == ("306000000", "0")
    assert set(bench.knobs().of(Kind.IDLE).values()) == {"0"}
    assert actuator.verify(mode, LOCKED) != ()


@BOTH
def test_real_child_processes_apply_too(make: Make, method: Method) -> None:
    bench = make("MODE_30W", children=True)
    actuator = bench.actuator(method)
    actuator.apply(PowerMode(gpu_hz=306_000_000), LOCKED)
    actuator.apply(PowerMode(gpu_hz=510_000_000), CAPPED)
    assert bench.read(f"{GPU}/max_freq") == "510000000"
    assert bench.read(f"{EMC}/mrq_rate_locked") == "0"


# --- any sequence -----------------------------------------------------------------------------------------


class Pair:
    """A board that has been through everything, and one that is booted anew for each example."""

    def __init__(self, folder: Path, base_mode: str) -> None:
        self.trees = []
        for name in ("worn", "fresh"):
            root = folder / f"{base_mode} {name}"
            root.mkdir()
            make_tree(root, base_mode=base_mode)
            self.trees.append(Bench(root))
        self.worn, self.fresh = self.trees
        modes = self.worn.modes()
        self.modes = [*modes, *(PowerMode(cores, m.cpu_hz, m.gpu_hz, m.emc_hz) for cores in (1, 5) for m in modes[::7])]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("pairs")
    return {name: Pair(folder, name) for name in ("MAXN", "MODE_30W")}


@BOTH
@pytest.mark.parametrize("base_mode", ["MAXN", "MODE_30W"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequence_ends_in_the_knobs_of_the_last_alone(
    pairs: dict[str, Pair], base_mode: str, method: Method, data: st.DataObject
) -> None:
    pair = pairs[base_mode]
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from(pair.modes), st.sampled_from(ClocksPolicy)), min_size=1, max_size=6)
    )
    actuator = pair.worn.actuator(method)
    for mode, policy in steps:
        actuator.apply(mode, policy)

    boot(pair.fresh.root)
    pair.fresh.actuator(method).apply(*steps[-1])

    assert pair.worn.knobs().values.keys() == pair.fresh.knobs().values.keys()
    assert differences(pair.worn.sysfs, pair.fresh.knobs()) == {}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_both_methods_end_in_the_same_knobs(pairs: dict[str, Pair], data: st.DataObject) -> None:
    pair = pairs["MODE_30W"]
    step = data.draw(st.tuples(st.sampled_from(pair.modes), st.sampled_from(ClocksPolicy)))
    pair.worn.actuator(Method.NVPMODEL).apply(*step)
    pair.fresh.actuator(Method.SYSFS).apply(*step)
    assert differences(pair.worn.sysfs, pair.fresh.knobs()) == {}


@BOTH
def test_put_back_after_any_apply_leaves_every_knob_as_found(make: Make, method: Method) -> None:
    bench = make("MODE_50W")
    actuator = bench.actuator(method)
    for mode, policy in [(PowerMode(cores=5), LOCKED), (PowerMode(cpu_hz=729_600_000), CAPPED)]:
        actuator.apply(mode, policy)
    assert put_back(bench.sysfs, bench.home) == ()
    assert bench.knobs().values.keys() == bench.home.values.keys()
    assert actuator.current() == bench.board.reference


# --- what is found ----------------------------------------------------------------------------------------


@BOTH
def test_minima_that_the_operator_raised_stay_and_give_way_only_to_a_lower_cap(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    bench.sysfs.write(f"{GPU}/min_freq", 510_000_000, why="the operator's")
    bench.home = bench.knobs()
    actuator = bench.actuator(method)

    for gpu_hz, minimum_hz in [(612_000_000, 510_000_000), (306_000_000, 306_000_000), (612_000_000, 510_000_000)]:
        actuator.apply(PowerMode(gpu_hz=gpu_hz), CAPPED)
        assert (bench.read(f"{GPU}/max_freq"), bench.read(f"{GPU}/min_freq")) == (str(gpu_hz), str(minimum_hz))


@BOTH
def test_capped_on_a_board_that_was_found_locked_is_the_base_mode_unlocked(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    bench.host.processes.run(["jetson_clocks"], timeout_s=10.0)
    bench.home = bench.knobs()
    assert bench.home.values[f"{EMC}/mrq_rate_locked"] == "1"
    actuator = bench.actuator(method)

    actuator.apply(bench.board.reference, CAPPED)

    assert bench.read(f"{EMC}/mrq_rate_locked") == "0"
    assert bench.read(f"{GPU}/min_freq") == "306000000"
    assert set(bench.knobs().of(Kind.IDLE).values()) == {"0"}
    assert put_back(bench.sysfs, bench.home) == ()
    assert bench.read(f"{EMC}/mrq_rate_locked") == "1"


@BOTH
def test_idle_states_that_the_operator_switched_off_stay_off(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    path = "/sys/devices/system/cpu/cpu3/cpuidle/state1/disable"
    bench.sysfs.write(path, 1, why="the operator's")
    bench.home = bench.knobs()
    actuator = bench.actuator(method)
    actuator.apply(bench.board.reference, LOCKED)
    actuator.apply(bench.board.reference, CAPPED)
    assert bench.read(path) == "1"
    assert bench.read(path.replace("cpu3", "cpu2")) == "0"


@BOTH
def test_idle_states_that_are_all_off_without_pinned_clocks_are_the_operators_wish(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    for path in bench.home.of(Kind.IDLE):
        bench.sysfs.write(path, 1, why="the operator's")
    bench.home = bench.knobs()
    bench.actuator(method).apply(PowerMode(gpu_hz=306_000_000), CAPPED)
    assert set(bench.knobs().of(Kind.IDLE).values()) == {"1"}


@BOTH
def test_a_cluster_that_comes_back_gets_the_governor_that_was_found(make: Make, method: Method) -> None:
    bench = make("MAXN")
    path = "/sys/devices/system/cpu/cpufreq/policy8/scaling_governor"
    bench.sysfs.write(path, "performance", why="the operator's")
    bench.home = bench.knobs()
    actuator = bench.actuator(method)
    actuator.apply(PowerMode(cores=4), CAPPED)
    assert not bench.sysfs.exists(path)
    actuator.apply(bench.board.reference, CAPPED)
    assert bench.read(path) == "performance"


@BOTH
def test_gpu_power_that_was_found_on_stays_on(make: Make, method: Method) -> None:
    bench = make("MAXN")
    path = "/sys/devices/platform/gpu.0/power/control"
    bench.sysfs.write(path, "on", why="the operator's")
    bench.home = bench.knobs()
    bench.actuator(method).apply(PowerMode(gpu_hz=714_000_000), CAPPED)
    assert bench.read(path) == "on"


@BOTH
def test_cores_outside_the_base_mode_are_never_switched_on(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    actuator = bench.actuator(method)
    for mode, policy in [(PowerMode(cores=3), LOCKED), (PowerMode(cores=8), CAPPED), (PowerMode(), LOCKED)]:
        actuator.apply(mode, policy)
        assert {bench.read(f"/sys/devices/system/cpu/cpu{cpu}/online") for cpu in (8, 9, 10, 11)} == {"0"}


@BOTH
def test_fewer_cores_are_the_first_of_the_base_modes_own(make: Make, method: Method) -> None:
    bench = make("MODE_30W")
    conf = bench.root / "etc/nvpmodel.conf"
    before, start, block = conf.read_text().partition("< POWER_MODEL ID=2")
    for cpu in range(4):  # the base mode keeps the last cluster instead of the second
        block = block.replace(f"CORE_{cpu + 4} 1", f"CORE_{cpu + 4} 0", 1)
        block = block.replace(f"CORE_{cpu + 8} 0", f"CORE_{cpu + 8} 1", 1)
    conf.write_text(before + start + block.replace("CPU_A78_1", "CPU_A78_2", 2))
    boot(bench.root)
    bench = Bench(bench.root)
    assert bench.board.base_mode.online_cpus == (0, 1, 2, 3, 8, 9, 10, 11)

    bench.actuator(method).apply(PowerMode(cores=6), CAPPED)
    assert bench.read("/sys/devices/system/cpu/online") == "0-3,8-9"
    bench.actuator(method).apply(PowerMode(cores=8), LOCKED)
    assert bench.read("/sys/devices/system/cpu/online") == "0-3,8-11"


def test_own_writes_keep_the_gpu_powered_meanwhile(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    bench = make("MAXN")
    with caplog.at_level("DEBUG", logger="jouled.board.sysfs"):
        bench.actuator(Method.SYSFS).apply(PowerMode(gpu_hz=306_000_000), CAPPED)
    writes = [message.partition(" (")[0] for message in caplog.messages if message.startswith("write ")]
    power = "write /sys/devices/platform/gpu.0/power/control <- "
    assert (
        writes.index(f"{power}on") < writes.index(f"write {GPU}/max_freq <- 306000000") < writes.index(f"{power}auto")
    )


# --- nvpmodel's own truth ---------------------------------------------------------------------------------


def test_nvpmodel_keeps_telling_the_operators_mode_and_its_files_stay_byte_for_byte(make: Make) -> None:
    bench = make("MODE_50W")
    status, conf = (bench.root / f"var/lib/nvpmodel/{name}" for name in ("status", "conf_file_path"))
    before = status.read_bytes(), conf.read_bytes()
    actuator = bench.actuator(Method.NVPMODEL)

    actuator.apply(PowerMode(cpu_hz=729_600_000), CAPPED)

    assert (status.read_bytes(), conf.read_bytes()) == before
    said = bench.host.processes.run(["nvpmodel", "-q"], timeout_s=10.0).stdout
    assert said.splitlines()[:2] == ["NV Power Mode: MODE_50W", "3"]


def test_a_conf_file_path_that_was_not_there_is_not_left_behind(make: Make) -> None:
    bench = make("MAXN")
    path = bench.root / "var/lib/nvpmodel/conf_file_path"
    path.unlink()
    bench.home = bench.knobs()
    bench.actuator(Method.NVPMODEL).apply(PowerMode(gpu_hz=306_000_000), CAPPED)
    assert not path.exists()


def test_the_private_conf_holds_only_what_is_allowed_under_the_base_modes_own_name(make: Make) -> None:
    bench = make("MODE_30W")
    bench.actuator(Method.NVPMODEL).apply(PowerMode(8, 1_113_600_000, 408_000_000, 2_133_000_000), CAPPED)

    (placed,) = (bench.root / "run/jouled/modes").iterdir()
    conf = parse_conf(placed.read_text(), where=placed.name)
    (model,) = conf.models
    assert (model.id, model.name, conf.default) == (2, "MODE_30W", 2)
    assert {param.name for param in conf.params} == {
        "CPU_ONLINE", "CPU_A78_0", "CPU_A78_1", "GPU_POWER_CONTROL_ENABLE", "GPU", "GPU_POWER_CONTROL_DISABLE", "EMC",
    }  # fmt: skip
    names = [line.param for line in model.settings if line.param.startswith("GPU")]
    assert names == ["GPU_POWER_CONTROL_ENABLE", "GPU", "GPU", "GPU_POWER_CONTROL_DISABLE"]


def test_nothing_but_the_run_folder_gets_a_file(make: Make) -> None:
    bench = make("MAXN")

    def files() -> set[Path]:
        return {path for path in bench.root.rglob("*") if path.is_file() and ".virtual" not in path.parts}

    before = files()
    etc = {path: path.read_bytes() for path in (bench.root / "etc").rglob("*") if path.is_file()}
    bench.actuator(Method.NVPMODEL).apply(PowerMode(gpu_hz=306_000_000), LOCKED)
    assert {path.relative_to(bench.root).parts[:2] for path in files() - before} == {("run", "jouled")}
    assert {path: path.read_bytes() for path in etc} == etc


def test_a_reboot_after_an_apply_brings_the_operators_mode_back(make: Make) -> None:
    bench = make("MODE_50W")
    bench.actuator(Method.NVPMODEL).apply(PowerMode(4, 729_600_000, 306_000_000, 2_133_000_000), LOCKED)
    boot(bench.root)
    assert differences(bench.sysfs, bench.home) == {}
    assert bench.board.base_mode == discover(bench.host).base_mode


# --- refused before anything is written -------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (PowerMode(gpu_hz=714_000_000), "above the base mode's cap of 612000000 Hz"),
        (PowerMode(gpu_hz=600_000_000), "not in the board's table; nearest is 612000000 Hz"),
        (PowerMode(cpu_hz=2_201_600_000), "above the base mode's cap of 1728000000 Hz"),
        (PowerMode(cpu_hz=1_728_000), "not in the board's table"),
        (PowerMode(emc_hz=3_200_000_000), "not in the board's table; nearest is 3199000000 Hz"),
        (PowerMode(cores=9), "9 cores: base mode MODE_30W has 1 to 8"),
        (PowerMode(cores=0), "0 cores"),
    ],
)
def test_a_mode_beyond_the_base_mode_or_off_the_table_is_refused_unwritten(
    make: Make, method: Method, mode: PowerMode, message: str
) -> None:
    bench = make("MODE_30W")
    with pytest.raises(ApplyError, match=message):
        bench.actuator(method).apply(mode, LOCKED)
    assert bench.sysfs.kernel.writes == 0
    assert differences(bench.sysfs, bench.home) == {}
    assert not (bench.root / "run/jouled").exists()


def test_without_root_nothing_is_tried(make: Make) -> None:
    bench = make("MAXN")
    bench.host = Host(bench.sysfs, bench.host.processes, SystemClock(), bench.root / "state", privileged=False)
    with pytest.raises(NotPermittedError):
        bench.actuator(Method.SYSFS).apply(bench.board.reference, CAPPED)
    assert bench.sysfs.kernel.writes == 0


# --- probe ------------------------------------------------------------------------------------------------


def test_the_probe_takes_nvpmodel_where_it_works_and_changes_nothing(make: Make) -> None:
    bench = make("MODE_30W")
    assert probe_method(bench.host, bench.board, bench.home, "auto") == (Method.NVPMODEL, "")
    assert differences(bench.sysfs, bench.home) == {}


def test_a_wish_for_sysfs_starts_no_program(make: Make) -> None:
    bench = make("MODE_30W")
    assert probe_method(bench.host, bench.board, bench.home, "sysfs") == (Method.SYSFS, "")
    assert not (bench.root / "run/jouled").exists()


def test_a_stock_conf_without_a_section_for_a_domain_makes_the_probe_fall_back(make: Make) -> None:
    bench = make("MAXN")
    conf = bench.root / "etc/nvpmodel.conf"
    text = "".join(line for line in conf.read_text().splitlines(keepends=True) if not line.startswith("EMC "))
    text = text.replace("NAME=EMC", "NAME=MEMORY")
    conf.write_text(text)
    bench.board = discover(bench.host)
    method, reason = probe_method(bench.host, bench.board, bench.home, "auto")
    assert method is Method.SYSFS
    assert reason.startswith("apply_failed: /etc/nvpmodel.conf has no PARAM section that sets EMC")


# --- verify -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1497600"),
        ("/sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq", "960000"),
        ("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance"),
        ("/sys/devices/system/cpu/cpu7/online", "0"),
        ("/sys/devices/system/cpu/cpu1/cpuidle/state1/disable", "1"),
        (f"{GPU}/max_freq", "510000000"),
        (f"{GPU}/min_freq", "408000000"),
        (f"{GPU}/device/railgate_enable", "0"),
        ("/sys/kernel/nvpmodel_clk_cap/emc", "2133000000"),
        (f"{EMC}/mrq_rate_locked", "1"),
    ],
)
def test_verify_names_each_knob_that_another_program_changed(make: Make, method: Method, path: str, value: str) -> None:
    bench = make("MODE_30W")
    actuator = bench.actuator(method)
    actuator.apply(bench.board.reference, CAPPED)
    before = bench.read(path)

    bench.sysfs.write(path, value, why="somebody else")

    (sentence,) = actuator.verify(bench.board.reference, CAPPED)
    assert sentence.startswith(f"{path}: wanted {before}")
    assert f", got {value}" in sentence


def test_verify_tells_a_changed_mask_apart(make: Make) -> None:
    bench = make("MODE_30W")
    actuator = bench.actuator(Method.SYSFS)
    bench.sysfs.write("/sys/devices/platform/gpu.0/tpc_pg_mask", "0", why="somebody else")
    found = actuator.compare(bench.board.reference, CAPPED)
    assert found.is_mask_wrong
    assert found.mismatches == ("/sys/devices/platform/gpu.0/tpc_pg_mask: wanted mask 240, got 0",)
    with pytest.raises(ApplyError, match="wanted TPC mask 240, got 0") as caught:
        actuator.apply(PowerMode(gpu_hz=306_000_000), CAPPED)
    assert caught.value.code == "mask_differs"
    assert bench.read(f"{GPU}/max_freq") == "612000000"


def test_what_may_not_be_read_is_unknown_and_no_mismatch(make: Make) -> None:
    bench = make("MODE_30W")
    (bench.root / ".virtual/faults.json").write_text('{"user": "nobody"}')
    found = bench.actuator(Method.SYSFS).compare(bench.board.reference, LOCKED)
    assert f"{EMC}/mrq_rate_locked" in found.unknown
    assert f"{EMC}/rate" in found.unknown
    assert not any(EMC in sentence for sentence in found.mismatches)
    found = bench.actuator(Method.SYSFS).compare(bench.board.reference, CAPPED)
    assert found.mismatches == ()


def test_a_cap_that_gives_no_value_is_a_mismatch(make: Make) -> None:
    bench = make("MODE_30W")
    (bench.root / ".virtual/faults.json").write_text('{"read_errors": {"*/devfreq/*/max_freq": "EIO"}}')
    (sentence,) = bench.actuator(Method.SYSFS).verify(bench.board.reference, CAPPED)
    assert sentence.startswith(f"{GPU}/max_freq: wanted 612000000 Hz, got no value")


def test_current_reads_the_caps_back_and_leaves_out_what_it_cannot_read(make: Make) -> None:
    bench = make("MODE_30W")
    actuator = bench.actuator(Method.SYSFS)
    assert actuator.current() == PowerMode(8, 1_728_000_000, 612_000_000, 3_199_000_000)
    (bench.root / ".virtual/faults.json").write_text('{"read_errors": {"*/devfreq/*/max_freq": "EACCES"}}')
    assert actuator.current() == PowerMode(8, 1_728_000_000, None, 3_199_000_000)


def test_naming_another_base_mode_than_the_boards_is_refused(make: Make) -> None:
    bench = make("MODE_30W")
    with pytest.raises(UsageError, match="base mode MAXN: the board is in MODE_30W"):
        discover(bench.host, "MAXN")
