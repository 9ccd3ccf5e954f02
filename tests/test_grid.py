from __future__ import annotations

from pathlib import Path

import pytest

from jouled.board.board import Board, discover
from jouled.board.clock import SystemClock
from jouled.board.grid import board_space, domain_points
from jouled.board.host import Host
from jouled.config.kinds import Shape
from jouled.config.tables import GridTable
from jouled.errors import UsageError
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import make_tree
from jouletune.space import Candidate, PowerMode, Space, Variant

MHZ = 1_000_000


def _board(root: Path, base_mode: str) -> Board:
    root.mkdir()
    make_tree(root, base_mode=base_mode)
    return discover(Host(VirtualSysfs(root), VirtualProcesses(root), SystemClock(), root / "state"))


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Board]:
    folder = tmp_path_factory.mktemp("boards")
    return {name: _board(folder / name, name) for name in ("MAXN", "MODE_15W", "MODE_30W", "MODE_50W")}


def _values(space: Space) -> dict[str, tuple[object, ...]]:
    return {axis.name: axis.values for axis in space.axes}


@pytest.mark.parametrize(
    ("name", "emc", "gpu", "cpu"), [("MAXN", 3, 8, 4), ("MODE_30W", 3, 4, 8), ("MODE_50W", 3, 6, 5)]
)
def test_grids_of_the_agx_orin(boards: dict[str, Board], name: str, emc: int, gpu: int, cpu: int) -> None:
    space = board_space(boards[name], GridTable())
    values = _values(space)
    assert (len(values["emc_hz"]), len(values["gpu_hz"]), len(values["cpu_hz"])) == (emc, gpu, cpu)
    assert len(space) == emc * gpu * cpu


def test_a_small_table_is_used_whole(boards: dict[str, Board]) -> None:
    space = board_space(boards["MODE_15W"], GridTable())
    assert _values(space) == {
        "cpu_hz": tuple(khz * 1000 for khz in (729600, 806400, 883200, 960000, 1036800, 1113600)),
        "gpu_hz": (306 * MHZ, 408 * MHZ),
        "emc_hz": (665_600_000, 2133 * MHZ),
    }


@pytest.mark.parametrize("name", ["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"])
def test_every_candidate_is_within_the_base_mode_and_on_the_tables(boards: dict[str, Board], name: str) -> None:
    board = boards[name]
    space = board_space(board, GridTable())
    assert board.domains.gpu is not None
    assert board.domains.emc is not None
    for candidate in space.candidates:
        mode = candidate.mode
        assert mode.cores == board.base_mode.cores
        assert mode.cpu_hz in board.domains.cpu.table_hz
        assert mode.gpu_hz in board.domains.gpu.table_hz
        assert mode.emc_hz in board.domains.emc.table_hz
        assert board.base_mode.cpu_min_hz <= (mode.cpu_hz or 0) <= (board.base_mode.cpu_cap_hz or 0)
        assert (mode.gpu_hz or 0) <= (board.base_mode.gpu_cap_hz or 0)
        assert (mode.emc_hz or 0) <= (board.base_mode.emc_cap_hz or 0)


def test_both_ends_of_each_domain_are_kept_and_the_top_is_the_reference(boards: dict[str, Board]) -> None:
    board = boards["MAXN"]
    space = board_space(board, GridTable())
    values = _values(space)
    assert (values["cpu_hz"][0], values["cpu_hz"][-1]) == (729_600_000, 2_201_600_000)
    assert (values["gpu_hz"][0], values["gpu_hz"][-1]) == (306 * MHZ, 1_300_500_000)
    assert (values["emc_hz"][0], values["emc_hz"][-1]) == (665_600_000, 3199 * MHZ)
    assert space.candidates[space.reference] == Candidate(board.reference)


def test_the_memorys_floor_is_a_fifth_of_its_table_unless_it_is_given(boards: dict[str, Board]) -> None:
    board = boards["MAXN"]
    assert domain_points(board).emc_hz == (665_600_000, 2133 * MHZ, 3199 * MHZ)
    assert domain_points(board, 1).emc_hz == (204 * MHZ, 665_600_000, 2133 * MHZ, 3199 * MHZ)
    assert domain_points(board, 3_000 * MHZ).emc_hz == (3199 * MHZ,)


def test_a_floor_above_the_base_modes_cap_leaves_the_cap(boards: dict[str, Board]) -> None:
    assert domain_points(boards["MODE_15W"], 3_000 * MHZ).emc_hz == (2133 * MHZ,)


def test_full_is_every_point_in_range(boards: dict[str, Board]) -> None:
    points = domain_points(boards["MODE_30W"])
    space = board_space(boards["MODE_30W"], GridTable(size="full"))
    assert len(space) == len(points.emc_hz) * len(points.gpu_hz) * len(points.cpu_hz) == 3 * 4 * 14


def test_a_given_shape_is_taken_as_far_as_there_are_points(boards: dict[str, Board]) -> None:
    values = _values(board_space(boards["MODE_30W"], GridTable(shape=Shape(2, 6, 3))))
    assert [len(values[name]) for name in ("emc_hz", "gpu_hz", "cpu_hz")] == [2, 4, 3]


def test_a_smaller_size_is_kept(boards: dict[str, Board]) -> None:
    for size in (2, 5, 12, 40, 96, 200):
        assert len(board_space(boards["MAXN"], GridTable(size=size))) <= size


def test_listed_clocks_are_used_whole_and_the_rest_fills_the_size(boards: dict[str, Board]) -> None:
    space = board_space(boards["MAXN"], GridTable(gpu_hz=(1_300_500_000, 612 * MHZ)))
    values = _values(space)
    assert values["gpu_hz"] == (612 * MHZ, 1_300_500_000)
    assert len(space) == 2 * len(values["emc_hz"]) * len(values["cpu_hz"]) <= 96


def test_lists_without_the_reference_get_it_as_one_more_candidate(boards: dict[str, Board]) -> None:
    board = boards["MAXN"]
    space = board_space(board, GridTable(cpu_hz=(729_600_000,), gpu_hz=(306 * MHZ,), emc_hz=(3199 * MHZ,)))
    assert len(space) == 2
    assert space.candidates[space.reference].mode == board.reference


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GridTable(gpu_hz=(714 * MHZ,)), r"grid\.gpu_hz: 714000000 .*: 306000000, 408000000, 510000000, 612000000$"),
        (GridTable(gpu_hz=(307 * MHZ,)), r"grid\.gpu_hz: 307000000"),
        (GridTable(cpu_hz=(2_201_600_000,)), r"grid\.cpu_hz: 2201600000"),
        (GridTable(emc_hz=(3200 * MHZ,)), r"grid\.emc_hz: 3200000000"),
        (GridTable(cores=(9,)), r"grid\.cores: 9 .*: 1, 2, 3, 4, 5, 6, 7, 8$"),
        (GridTable(size=2, gpu_hz=(306 * MHZ, 408 * MHZ, 510 * MHZ)), "lists and variants alone make 3"),
    ],
)
def test_lists_beyond_the_base_mode_or_the_size_are_refused(
    boards: dict[str, Board], options: GridTable, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        board_space(boards["MODE_30W"], options)


def test_cores_and_variants_are_axes_only_where_asked_for(boards: dict[str, Board]) -> None:
    plain = board_space(boards["MAXN"], GridTable())
    assert {axis.name for axis in plain.axes} == {"cpu_hz", "gpu_hz", "emc_hz"}
    space = board_space(boards["MAXN"], GridTable(cores=(4, 12)), (Variant(batch=1), Variant(batch=4)))
    values = _values(space)
    assert (values["cores"], values["batch"]) == ((4, 12), (1, 4))
    assert len(space) <= 96
    assert space.candidates[space.reference] == Candidate(boards["MAXN"].reference, Variant(batch=1))


def test_a_list_may_repeat_itself(boards: dict[str, Board]) -> None:
    space = board_space(boards["MAXN"], GridTable(cores=(12, 12), gpu_hz=(306 * MHZ, 306 * MHZ, 1_300_500_000)))
    assert _values(space)["gpu_hz"] == (306 * MHZ, 1_300_500_000)
    assert PowerMode(12, 2_201_600_000, 306 * MHZ, 3199 * MHZ) in [candidate.mode for candidate in space.candidates]
