"""Every virtual board: what it is, every mode of its grid applied and put back, a whole tune; Thor is only observed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from jouled.board.apply import Actuator, ClocksPolicy, Method, probe_method
from jouled.board.board import Board, discover
from jouled.board.grid import board_space
from jouled.board.identity import LEVELS
from jouled.board.knobs import differences, put_back, read_knobs
from jouled.board.rails import find_meter
from jouled.board.sysfs import Sysfs
from jouled.board.thermal import read_thermal
from jouled.config import load
from jouled.errors import JouledError, NotSupportedError
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.service.view import View
from jouled.state import Source
from jouled.virtual.console import Console
from jouled.virtual.jetson_clocks import JetsonClocks
from jouled.virtual.kernel import Kernel
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.plant import LayerPlant, board_plant, load_workload
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.specs import board_names, board_spec
from jouled.virtual.tree import make_tree
from jouled.workload.runner import Arrival
from jouletune.space import PowerMode, Space

MHZ = 1_000_000
AGX = "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
# name: (board file, base mode, cores, CPU top kHz, GPU top Hz, EMC top Hz, mask, total rail, CPU sections of the conf)
FACTS = {
    "agx-orin-64gb": ("agx-orin-64gb", "MAXN", 12, 2201600, 1300500000, 3199 * MHZ, 0, AGX, 3),
    "agx-orin-64gb-l4t35": ("agx-orin-64gb", "MAXN", 12, 2201600, 1300500000, 3199 * MHZ, 0, AGX, 3, "best effort"),
    "agx-orin-32gb": ("agx-orin-32gb", "MAXN", 8, 2188800, 930750000, 3199 * MHZ, 128, AGX, 2),
    "orin-nx-16gb": ("orin-nx-16gb", "MAXN", 8, 1984000, 918 * MHZ, 3199 * MHZ, 240, "VDD_IN", 2),
    "orin-nx-8gb": ("orin-nx-8gb", "MAXN", 6, 1984000, 765 * MHZ, 3199 * MHZ, 240, "VDD_IN", 2),
    "orin-nano-8gb": ("orin-nano-8gb", "15W", 6, 1510400, 624750000, 2133 * MHZ, 240, "VDD_IN", 2),
    "orin-nano-8gb-super": ("orin-nano-8gb-super", "MAXN_SUPER", 6, 1728000, 1020 * MHZ, 3199 * MHZ, 240, "VDD_IN", 6),
    "orin-nano-4gb": ("orin-nano-4gb", "10W", 6, 1510400, 624750000, 2133 * MHZ, 252, "VDD_IN", 2),
    "thor": ("thor", "MAXN", 14, 2601000, 1575 * MHZ, 4266 * MHZ, None, "VIN", 7),
}
ORIN = [name for name in FACTS if name != "thor"]
# JETSON 1.4, in the conf's own units: name, cores, CPU kHz, GPU Hz, EMC Hz, mask
MODES = {
    "orin-nx-16gb": [
        ("MAXN", 8, -1, -1, -1, 240),
        ("10W", 4, 1190400, 612 * MHZ, 2133 * MHZ, 252),
        ("15W", 4, 1420800, 612 * MHZ, -1, 252),
        ("25W", 8, 1497600, 408 * MHZ, -1, 240),
    ],
    "orin-nano-8gb-super": [
        ("15W", 6, 1497600, 612 * MHZ, 2133 * MHZ, 240),
        ("25W", 6, 1344000, 918 * MHZ, 3199 * MHZ, 240),
        ("MAXN_SUPER", 6, -1, -1, -1, 240),
        ("7W", 4, 960000, 408 * MHZ, 2133 * MHZ, 252),
    ],
    "orin-nano-4gb": [
        ("10W", 6, -1, -1, -1, 252),
        ("7W_AI", 4, 806400, 408 * MHZ, 2133 * MHZ, 252),
        ("7W_CPU", 4, 960000, 306 * MHZ, 2133 * MHZ, 252),
    ],
}


class Bench:
    """One virtual board."""

    def __init__(self, folder: Path, board: str, **machine: Any) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", board=board, programs="in_process", **machine)
        self.host = self.machine.host(folder)

    def board(self) -> Board:
        return discover(self.host)

    def space(self) -> Space:
        return board_space(self.board(), load(None).grid)

    def tune(self) -> JobResult:
        config = load(None, {"target.latency_bound_ratio": 1.3})
        request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
        return run_job(self.host, request, VirtualRunner(self.machine, Arrival()), cancellation=Cancellation())


@cache
def _facts(name: str) -> tuple[Any, ...]:
    """What jouled finds of the board as it boots; what it warns of at the end."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        bench = Bench(Path(folder), name)
        board, sysfs = bench.board(), bench.host.sysfs
        assert board.domains.gpu is not None
        assert board.domains.emc is not None
        base = board.base_mode
        rail = find_meter(sysfs, board.file.total_rails).rail
        tops = (board.domains.cpu.table_hz[-1] // 1000, board.domains.gpu.table_hz[-1], board.domains.emc.table_hz[-1])
        assert tops == ((base.cpu_cap_hz or 0) // 1000, base.gpu_cap_hz, base.emc_cap_hz)  # it boots its top mode
        sections = sum(param.name.startswith("CPU_A78") for param in board.conf.params)
        told = ("best effort",) if any("best effort" in warning for warning in board.warnings) else ()
        assert len(board.warnings) == len(told)
        return (board.file.name, base.name, base.cores, *tops, base.mask, rail, sections, *told)


def test_there_is_a_virtual_board_for_each_that_the_papers_name() -> None:
    assert set(board_names()) == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_board_is_found_as_the_papers_say(name: str) -> None:
    assert _facts(name) == FACTS[name]


@pytest.mark.parametrize("name", FACTS)
def test_no_other_boards_file_would_do(name: str) -> None:
    assert all(_facts(other) != FACTS[name] for other in FACTS if other != name)


@pytest.mark.parametrize("name", MODES)
def test_stock_modes_are_those_of_the_papers(name: str) -> None:
    found = [(m.name, m.cores, m.cpu_khz, m.gpu_hz, m.emc_hz, m.mask) for m in board_spec(name).modes]
    assert found == MODES[name]


@pytest.mark.parametrize("name", FACTS)
def test_every_stock_mode_boots_and_is_its_own_reference(tmp_path: Path, name: str) -> None:
    for mode in board_spec(name).modes:
        bench = Bench(tmp_path / mode.name, name, base_mode=mode.name)
        board = bench.board()
        assert (board.base_mode.name, board.base_mode.cores) == (mode.name, mode.cores)
        home = read_knobs(bench.host.sysfs, board.domains)
        actuator = Actuator(bench.host, board, home, Method.NVPMODEL)
        assert actuator.verify(board.reference, ClocksPolicy.CAPPED) == ()
        assert probe_method(bench.host, board, home, "auto") == (Method.NVPMODEL, "")
        assert differences(bench.host.sysfs, home) == {}


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("name", FACTS)
def test_every_mode_of_the_grid_is_applied_verified_and_put_back(tmp_path: Path, name: str, method: Method) -> None:
    bench = Bench(tmp_path, name)
    board = bench.board()
    home = read_knobs(bench.host.sysfs, board.domains)
    actuator = Actuator(bench.host, board, home, method)
    space = bench.space()
    assert len(space.candidates) >= 60
    for candidate in space.candidates:
        actuator.apply(candidate.mode, ClocksPolicy.CAPPED)
        assert actuator.current() == candidate.mode
    assert put_back(bench.host.sysfs, home) == ()
    assert differences(bench.host.sysfs, home) == {}


@pytest.mark.parametrize("name", FACTS)
def test_locked_clocks_are_verified_and_put_back_on_every_board(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, name)
    board = bench.board()
    home = read_knobs(bench.host.sysfs, board.domains)
    actuator = Actuator(bench.host, board, home, Method.SYSFS)
    for candidate in (bench.space().candidates[0], bench.space().candidates[-1]):
        actuator.apply(candidate.mode, ClocksPolicy.LOCKED)
        assert actuator.verify(candidate.mode, ClocksPolicy.LOCKED) == ()
    assert put_back(bench.host.sysfs, home) == ()


@pytest.mark.parametrize("name", ORIN)
def test_a_tune_saves_more_than_5_percent_within_its_bound(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, name)
    before = read_knobs(bench.host.sysfs, bench.board().domains)
    result = bench.tune()
    assert result.outcome == "tuned"
    assert result.saving_ratio is not None
    assert result.saving_ratio > 0.05
    assert result.winner is not None
    assert result.reference is not None
    truth = bench.machine.truth
    winner, reference = truth(result.winner.candidate.mode), truth(result.reference.candidate.mode)
    assert winner.energy_j < 0.95 * reference.energy_j
    assert winner.latency_s(95.0) <= 1.305 * reference.latency_s(95.0)
    actuator = Actuator(bench.host, bench.board(), before, Method.SYSFS)
    assert actuator.verify(result.winner.candidate.mode, ClocksPolicy.CAPPED) == ()
    actuator.apply(bench.board().reference, ClocksPolicy.CAPPED)
    assert differences(bench.host.sysfs, before) == {}


@pytest.mark.parametrize("name", ORIN)
def test_the_top_modes_cost_over_the_best_ones_is_within_what_was_published(name: str) -> None:
    """1.07 to 1.28 times; over the GPU's clock energy is U-shaped with its minimum inside (MEASUREMENT)."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        bench = Bench(Path(folder), name)
        board = bench.board()
        energy_j = {c.mode: bench.machine.truth(c.mode).energy_j for c in bench.space().candidates}
        best = min(energy_j, key=lambda mode: energy_j[mode])
        assert 1.07 <= energy_j[board.reference] / energy_j[best] <= 1.28
        assert board.domains.gpu is not None
        assert best.gpu_hz is not None
        assert 0.5 <= best.gpu_hz / board.domains.gpu.table_hz[-1] <= 0.85


# --- Thor -------------------------------------------------------------------------------------------------


def test_thor_is_not_tuned_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "thor")
    before = read_knobs(bench.host.sysfs, bench.board().domains)
    result = bench.tune()
    assert result.outcome == "not_supported"
    assert "Jetson Thor is only observed: which caps and GPU masks" in result.reason_text
    assert differences(bench.host.sysfs, before) == {}
    assert bench.machine.sysfs.kernel.writes == 0


def test_thor_is_observed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "thor")
    view = View(bench.host, load(None, {"mode": "observe"}))
    view.refresh()
    assert view.trouble == ""
    readings = view.readings(0.0)
    assert set(readings.rail_power_w) == {"VIN"}
    assert 10 < readings.rail_power_w["VIN"] < 40
    assert set(readings.clock_hz) == {"cpu", "gpu", "emc"}
    assert readings.sensor_errors
    assert not any(readings.sensor_errors.values())
    assert bench.machine.sysfs.kernel.writes == 0


@pytest.mark.parametrize("conf", ["< PARAM TYPE=PCI NAME=GPU_POWER_GATING >\n", ""])
def test_thor_is_observed_whatever_its_conf_holds(tmp_path: Path, conf: str) -> None:
    bench = Bench(tmp_path, "thor")
    (tmp_path / "board/etc/nvpmodel/nvpmodel_p3834_0008.conf").write_text(conf)
    board = bench.board()
    assert board.reference == PowerMode(14, 2601 * MHZ, 1575 * MHZ, 4266 * MHZ)
    assert board.base_mode.name == "unknown"
    assert any("the caps are watched as they stood when jouled looked first: /etc/" in text for text in board.warnings)
    view = View(bench.host, load(None, {"mode": "observe"}))
    view.refresh()
    look = view.look(None, source=Source.REFERENCE)
    assert look is not None
    assert look.mismatches == ()
    assert set(view.readings(0.0).rail_power_w) == {"VIN"}
    assert bench.tune().outcome == "not_supported"


# --- L4T 35 and 32 ----------------------------------------------------------------------------------------


def test_l4t_35_has_its_own_paths_and_its_own_word_for_no_cap(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "agx-orin-64gb-l4t35")
    board, sysfs = bench.board(), bench.host.sysfs
    gpu, emc = board.domains.gpu, board.domains.emc
    assert gpu is not None
    assert emc is not None
    assert gpu.path == "/sys/class/devfreq/17000000.ga10b"
    assert gpu.mask_path == "/sys/devices/gpu.0/tpc_pg_mask"
    assert (emc.cap_path, emc.uncapped) == ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", 0)
    assert emc.bwmgr_halt_path is None
    assert sysfs.read(emc.cap_path) == "0"
    assert "/bus@0/" not in str(sysfs.real("/sys/bus/i2c/drivers/ina3221/1-0040").resolve())
    assert "tj-therm" in read_thermal(sysfs).zones_c
    actuator = Actuator(bench.host, board, read_knobs(sysfs, board.domains), Method.NVPMODEL)
    actuator.apply(PowerMode(emc_hz=2133 * MHZ), ClocksPolicy.CAPPED)
    assert sysfs.read(emc.cap_path) == "2133000000"
    actuator.apply(board.reference, ClocksPolicy.CAPPED)
    assert sysfs.read(emc.cap_path) == "0"


def test_l4t_32_is_refused_with_its_sentence_and_untouched(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "agx-orin-64gb")
    release = tmp_path / "board/etc/nv_tegra_release"
    release.write_text(release.read_text().replace("R36 (release), REVISION: 4.3", "R32 (release), REVISION: 7.1"))
    result = bench.tune()
    assert result.outcome == "not_supported"
    assert result.reason_text.startswith("L4T 32.7.1 is not supported: jouled tunes boards of L4T 36, 38 and 39")
    assert bench.machine.sysfs.kernel.writes == 0


@pytest.mark.parametrize("revision", ["R38 (release), REVISION: 4.0", "R39 (release), REVISION: 2.0"])
def test_an_orin_on_a_newer_release_is_tuned_as_on_36(tmp_path: Path, revision: str) -> None:
    bench = Bench(tmp_path, "orin-nano-8gb")
    release = tmp_path / "board/etc/nv_tegra_release"
    release.write_text(release.read_text().replace("R36 (release), REVISION: 4.3", revision))
    assert bench.board().warnings == ()
    assert bench.tune().outcome == "tuned"


# --- what is wrong with a board ---------------------------------------------------------------------------


def test_a_cloned_image_with_another_modules_conf_is_refused(tmp_path: Path) -> None:
    """The 12-core conf on a 6-core board, and a conf whose caps lie below the table (FIELD-PROBLEMS 7)."""
    bench = Bench(tmp_path, "orin-nano-8gb")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        other = Bench(Path(folder), "agx-orin-64gb")
        text = (other.machine.root / "etc/nvpmodel.conf").read_text()
    (tmp_path / "board/etc/nvpmodel/nvpmodel_p3767_0003.conf").write_text(text)
    with pytest.raises(NotSupportedError, match="switches on cpu6; this board has 6 cores"):
        bench.board()


def test_an_unknown_board_is_refused_with_what_was_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "orin-nx-8gb")
    compatible = tmp_path / "board/proc/device-tree/compatible"
    compatible.write_bytes(compatible.read_bytes().replace(b"p3767-0001", b"p3767-0042"))
    with pytest.raises(
        JouledError, match=r"p3767-0042.*found: CPUs 0-5, 115\.2 to 1984 MHz.*rails VDD_CPU_GPU_CV, VDD_IN"
    ):
        bench.board()


# --- the programs and the plant ---------------------------------------------------------------------------


def _show(bench: Bench, option: str = "--show") -> list[str]:
    console = Console()
    JetsonClocks(Kernel(str(bench.machine.root), "jetson_clocks"), console).run([option] if option else [])
    return "".join(console.out).splitlines()


def test_jetson_clocks_shows_each_release_in_its_own_format(tmp_path: Path) -> None:
    older = _show(Bench(tmp_path / "35", "agx-orin-64gb-l4t35"))
    assert older[2].startswith("cpu0: Online=1 Governor=schedutil MinFreq=729600 MaxFreq=2201600 ")
    assert any(line.startswith("FAN Dynamic Speed control=active") for line in older)
    assert not any(line.startswith("Active GPU TPCs") for line in older)
    middle = _show(Bench(tmp_path / "36", "orin-nx-16gb"))
    assert middle[2].startswith("cpu0:  Online=1 ")
    assert "Active GPU TPCs: 4" in middle
    assert any(line.startswith("EMC ") and line.endswith("FreqOverride=0") for line in middle)
    thor = _show(Bench(tmp_path / "38", "thor"))
    assert thor[0] == "SOC family:tegra264  Machine:NVIDIA Jetson AGX Thor Developer Kit"
    assert thor[1] == "Online CPUs: 0-13, Offline CPUs: "
    assert "Online=" not in thor[2]
    assert "WFI=1 cc7=1" in thor[2]
    assert any(line.startswith("gpu-gpc-0 MinFreq=315000000 MaxFreq=1575000000") for line in thor)


def test_jetson_clocks_of_l4t_39_shows_a_lock_by_equal_limits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "agx-orin-64gb")
    release = tmp_path / "board/etc/nv_tegra_release"
    release.write_text(release.read_text().replace("R36 (release), REVISION: 4.3", "R39 (release), REVISION: 2.0"))
    _show(bench, "")
    emc = next(line for line in _show(bench) if line.startswith("EMC"))
    assert emc == "EMC MinFreq=3199000000 MaxFreq=3199000000 CurrentFreq=3199000000"


def test_the_plant_without_a_board_is_the_agx_orins() -> None:
    work = load_workload("tiny")
    assert board_plant("agx-orin-64gb", work) == LayerPlant(work)


@pytest.mark.parametrize("name", FACTS)
def test_every_total_rail_is_measured_and_the_sum_of_the_plants_parts(name: str) -> None:
    plant, spec = board_plant(name, load_workload("tiny")), board_spec(name)
    measured = {channel.label for chip in spec.chips for channel in chip.channels if channel is not None}
    assert set(plant.rails) == measured
    assert plant.total == spec.total_rails
    parts = dict(plant.wiring)
    counted = [part for rail in plant.total for part, _ in parts[rail]]
    assert len(counted) == len(set(counted))  # no watt twice
    assert {"gpu", "soc", "controller", "cpu", "board", "dram"} <= set(counted)


@pytest.mark.parametrize("name", FACTS)
def test_every_virtual_board_says_how_well_it_is_known(name: str) -> None:
    spec = board_spec(name)
    topics = {"modes", "cpu_table", "gpu_table", "emc_table", "cpu_floor", "masks", "supplies", "memory"}
    assert topics <= set(spec.confidence)
    assert set(spec.confidence.values()) <= set(LEVELS)
    assert ("cpu_table" in spec.assumed) == (spec.confidence["cpu_table"] == "assumed")


@pytest.mark.parametrize("name", FACTS)
def test_sensors_tell_the_board_at_rest_before_a_machine_runs_on_its_tree(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path / "board", name)
    meter = find_meter(Sysfs(tmp_path / "board"), board_spec(name).total_rails)
    told_w = sum(volts * amperes for volts, amperes in meter.read())
    machine = VirtualMachine(tmp_path / "board", board=name, programs="in_process")
    power, _ = machine.plant.rest(machine.setting)
    assert told_w == pytest.approx(
        sum(power.w[machine.plant.rails.index(rail)] for rail in meter.rail.split("+")), rel=0.12
    )
