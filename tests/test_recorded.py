from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import discover
from jouled.board.knobs import read_knobs
from jouled.board.rails import find_meter
from jouled.cli import main
from jouled.errors import UsageError, WorkloadError
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.recorded import RecordedMachine
from jouled.virtual.specs import spec_from_json
from jouled.workload.runner import Arrival
from jouletune.space import PowerMode, Variant

HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"
GPU_EMC = """\
,,300000000,800000000,1,0.20,2.0
,,300000000,1600000000,1,0.18,2.1
,,600000000,800000000,1,0.12,1.6
,,600000000,1600000000,1,0.10,1.5
,,900000000,1600000000,1,0.08,1.9
"""
BACK_TO_BACK = Arrival()
GRIDS = Path(__file__).resolve().parents[2] / "shared" / "data" / "grids"


def machine(folder: Path, rows: str = GPU_EMC, *, seed: int = 0, name: str = "a") -> RecordedMachine:
    path = folder / f"{name}.csv"
    path.write_text(HEADER + rows)
    return RecordedMachine(folder / "root", path, seed=seed, programs="in_process")


def test_board_has_the_tables_of_the_csv_and_its_reference_as_base_mode(tmp_path: Path) -> None:
    recorded = machine(tmp_path)
    board = discover(recorded.host(tmp_path / "state"))
    assert board.domains.gpu is not None
    assert board.domains.emc is not None
    assert board.domains.gpu.table_hz == (300_000_000, 600_000_000, 900_000_000)
    assert board.domains.emc.table_hz == (800_000_000, 1_600_000_000)
    assert (board.reference.gpu_hz, board.reference.emc_hz) == (900_000_000, 1_600_000_000)
    assert board.file.name == "recorded"
    assert board.warnings == ()


def test_candidates_are_exactly_the_rows(tmp_path: Path) -> None:
    space = machine(tmp_path).space
    assert len(space) == 5
    assert [axis.name for axis in space.axes] == ["gpu_hz", "emc_hz"]
    assert space.candidates[space.reference].mode == PowerMode(None, None, 900_000_000, 1_600_000_000)


def test_every_row_applies_and_runs_as_recorded(tmp_path: Path) -> None:
    recorded = machine(tmp_path)
    host = recorded.host(tmp_path / "state")
    board = discover(host)
    actuator = Actuator(host, board, read_knobs(host.sysfs, board.domains), Method.NVPMODEL)
    for row in recorded.table.rows:
        actuator.apply(row.candidate.mode, ClocksPolicy.CAPPED)
        assert actuator.verify(row.candidate.mode, ClocksPolicy.CAPPED) == ()
        recorded.sync()
        assert recorded.plant.operate(recorded.setting, Variant()).service_s == row.latency_s
        truth = recorded.truth(row.candidate.mode)
        assert truth.energy_j == pytest.approx(row.energy_j)
        assert truth.power_w == pytest.approx(row.power_w)
        assert truth.latency_s(50) == pytest.approx(row.latency_s, rel=1e-3)
        assert truth.latency_s(95) == pytest.approx(row.latency_s * math.exp(1.645 * 0.005), rel=1e-3)


def test_single_valued_axes_are_fixed(tmp_path: Path) -> None:
    recorded = machine(tmp_path, "4,1000000,300,800000,1,1,1\n4,1000000,600,800000,1,1,1\n")
    board = discover(recorded.host(tmp_path / "state"))
    assert [axis.name for axis in recorded.space.axes] == ["gpu_hz"]
    assert board.reference == recorded.space.candidates[recorded.space.reference].mode
    assert board.reference == PowerMode(4, 1_000_000, 600, 800_000)


def test_core_counts_are_of_the_board(tmp_path: Path) -> None:
    recorded = machine(tmp_path, "2,,300,,1,1,1\n6,,300,,1,1,1\n")
    board = discover(recorded.host(tmp_path / "state"))
    assert board.reference.cores == 6
    assert recorded.spec.clusters == ((0, 1, 2, 3), (4, 5))


def test_window_to_window_noise_is_one_percent_in_energy_and_half_in_latency(tmp_path: Path) -> None:
    recorded = machine(tmp_path, seed=5)
    row = recorded.table.rows[recorded.space.reference]
    runner = recorded.runner(BACK_TO_BACK)
    runner.load(Variant())
    energies, latencies, spreads = [], [], []
    for _ in range(400):
        runner.begin()
        began_s = recorded.clock.monotonic_s()
        recorded.clock.sleep(4.0)
        done = runner.take()
        each_s = done.end_s - done.start_s
        latencies.append(math.log(statistics.fmean(each_s) / row.latency_s))
        spreads.append(statistics.stdev(float(s) for s in each_s) / row.latency_s)
        energy_j = recorded.energy_j(began_s, recorded.clock.monotonic_s()) / 4.0 * statistics.fmean(each_s)
        energies.append(math.log(energy_j / row.energy_j))
        runner.pause()
    # The standard error of a deviation from 400 values is 3.5 % of it; requests add 0.5 % / sqrt(50) to a mean.
    assert statistics.stdev(energies) == pytest.approx(0.01, rel=0.12)
    assert statistics.stdev(latencies) == pytest.approx(0.005, rel=0.12)
    assert statistics.fmean(energies) == pytest.approx(0.0, abs=0.002)
    assert statistics.fmean(latencies) == pytest.approx(0.0, abs=0.001)
    assert statistics.fmean(spreads) == pytest.approx(0.005, rel=0.05)


def test_same_seed_gives_the_same_windows(tmp_path: Path) -> None:
    ends = []
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        (tmp_path / name).mkdir()
        recorded = machine(tmp_path / name, seed=seed)
        runner = recorded.runner(BACK_TO_BACK)
        runner.load(Variant())
        runner.begin()
        recorded.clock.sleep(3.0)
        ends.append(runner.take().end_s.tolist())
    assert ends[0] == ends[1] != ends[2]


def test_one_rail_named_after_the_file_reads_the_power_of_the_row(tmp_path: Path) -> None:
    recorded = machine(tmp_path, name="tx2-vgg")
    meter = find_meter(recorded.sysfs, (recorded.rail,), coverage="as recorded", averaging_s=0.43)
    assert meter.rail == recorded.rail == "recorded:tx2-vgg"
    runner = recorded.runner(BACK_TO_BACK)
    runner.load(Variant())
    runner.begin()
    recorded.clock.sleep(2.0)
    ((voltage_v, current_a),) = meter.read()
    drawn_w = recorded.energy_j(recorded.clock.monotonic_s() - 1.0, recorded.clock.monotonic_s())
    assert voltage_v * current_a == pytest.approx(drawn_w, abs=0.005)


def test_power_counts_the_items_of_a_batch(tmp_path: Path) -> None:
    recorded = machine(tmp_path, ",,300,,1,0.1,2\n,,300,,4,0.2,1.5\n")
    truth = recorded.truth(PowerMode(gpu_hz=300), variant=Variant(batch=4))
    assert truth.power_w == pytest.approx(30.0)
    assert truth.energy_j == pytest.approx(1.5)


def test_setting_without_a_row_runs_like_the_nearest(tmp_path: Path) -> None:
    recorded = machine(tmp_path)
    truth = recorded.truth(PowerMode(gpu_hz=900_000_000, emc_hz=800_000_000))
    assert truth.energy_j in [pytest.approx(row.energy_j) for row in recorded.table.rows[2:]]


def test_batch_that_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"recorded:a: wanted a recorded batch size, got .*batch=3"):
        machine(tmp_path).truth(PowerMode(), variant=Variant(batch=3))


def test_spec_survives_the_tree(tmp_path: Path) -> None:
    spec = machine(tmp_path).spec
    assert spec_from_json(spec.to_json()) == spec


def test_tree_goes_on_for_the_same_csv_and_is_refused_for_another(tmp_path: Path) -> None:
    machine(tmp_path).close()
    machine(tmp_path).close()
    with pytest.raises(UsageError, match=r"holds the board 'Recorded measurements \(a.csv\)', wanted .*b\.csv"):
        machine(tmp_path, name="b")


def test_tree_is_refused_when_the_csv_has_other_contents_since(tmp_path: Path) -> None:
    machine(tmp_path, GPU_EMC).close()
    machine(tmp_path, GPU_EMC.replace("0.20", " 0.2")).close()  # the same, spelled otherwise
    for changed in (GPU_EMC.replace("900000000", "950000000"), GPU_EMC.replace("1.9", "1.8")):
        with pytest.raises(UsageError, match=r"root: was made of .*a\.csv, whose contents have changed since") as error:
            machine(tmp_path, changed)
        assert "--state-dir" in error.value.hint


def test_board_of_another_kind_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    VirtualMachine(tmp_path / "root", programs="in_process").close()
    before = (tmp_path / "root/.virtual/state.json").read_bytes()
    with pytest.raises(UsageError, match=r"holds the board agx-orin-64gb \(NVIDIA.*\), wanted recorded"):
        machine(tmp_path)
    assert (tmp_path / "root/.virtual/state.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    machine(tmp_path / "other").close()
    with pytest.raises(
        UsageError, match=r"holds the board recorded \(Rec.* \(a\.csv\)\), wanted agx-orin-64gb"
    ) as error:
        VirtualMachine(tmp_path / "other" / "root", programs="in_process")
    assert "--state-dir" in error.value.hint


def test_arrival_at_a_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recorded:a: wanted arrival back_to_back, got rate"):
        machine(tmp_path).runner(Arrival("rate", 30.0))


def test_broken_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.csv:2: energy_j: wanted a number above 0 or nothing, got '-3'") as error:
        machine(tmp_path, ",,300,,1,1,-3\n")
    assert "cores,cpu_hz,gpu_hz" in error.value.hint


@pytest.mark.parametrize(("row", "column"), [(",1500,300,,1,1,1\n", "cpu_hz"), (",,300,2100500,1,1,1\n", "emc_hz")])
def test_clocks_that_the_kernel_cannot_count_are_refused(tmp_path: Path, row: str, column: str) -> None:
    with pytest.raises(UsageError, match=rf"a\.csv: {column}: wanted whole kHz.* Hz"):
        machine(tmp_path, row)


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    for wrong, why in (
        (path, "it is no text"),
        (tmp_path / "absent.csv", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(UsageError, match=f"cannot be read: {why}$"):
            RecordedMachine(tmp_path / "root", wrong)


@pytest.mark.skipif(not GRIDS.is_dir(), reason="needs ../shared/data")
def test_shared_grids_become_boards(tmp_path: Path) -> None:
    for path in sorted(GRIDS.glob("*.csv")):
        if "latency-only" in path.name:
            continue
        recorded = RecordedMachine(tmp_path / path.stem, path, programs="in_process")
        board = discover(recorded.host(tmp_path / "state"))
        wanted = recorded.space.candidates[recorded.space.reference].mode
        for name in ("cores", "cpu_hz", "gpu_hz", "emc_hz"):
            assert getattr(wanted, name) in (None, getattr(board.reference, name)), path.stem
        assert recorded.truth(wanted).energy_j == pytest.approx(recorded.table.rows[recorded.space.reference].energy_j)


def test_a_job_on_a_table_does_not_claim_sensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + GPU_EMC)
    where = ["--table", str(path), "--state-dir", str(tmp_path / "state")]
    assert main(["tune", *where, "--no-latency-bound", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["meter_why"] == "the table's energies stand for a meter"
