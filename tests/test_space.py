from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouletune.errors import SpaceError
from jouletune.space import Axis, Candidate, PowerMode, Space, Variant, choose_shape, log_even

EMC_HZ = (665_600_000, 2_133_000_000, 3_199_000_000)
GPU_HZ = (*range(306_000_000, 1_224_000_001, 102_000_000), 1_300_500_000)
CPU_HZ = (*range(729_600_000, 2_188_800_001, 76_800_000), 2_201_600_000)
counts = st.integers(1, 40)
tables = st.sets(st.integers(1, 10**10), min_size=1, max_size=40)


def mode(gpu: int, emc: int | None = None, batch: int = 1) -> Candidate:
    return Candidate(PowerMode(gpu_hz=gpu, emc_hz=emc), Variant(batch=batch))


@pytest.mark.parametrize(
    ("points", "shape"),
    [
        ((3, 11, 20), (3, 8, 4)),  # AGX Orin, MAXN
        ((3, 4, 14), (3, 4, 8)),  # MODE_30W: GPU capped at 612 MHz
        ((3, 6, 11), (3, 6, 5)),  # MODE_50W: GPU capped at 816 MHz
        ((4, 11, 20), (4, 6, 4)),  # of 8x3 and 6x4 the one at 1.5
        ((1, 11, 20), (1, 8, 8)),
        ((3, 4, 8), (3, 4, 8)),
        ((1, 90, 1), (1, 90, 1)),  # the whole table
        ((2, 1, 30), (2, 1, 30)),
    ],
)
def test_shape_follows_the_rule(points: tuple[int, int, int], shape: tuple[int, int, int]) -> None:
    assert choose_shape(*points) == shape


@given(counts, counts, counts, st.integers(1, 200))
def test_shape_never_exceeds_limit_or_tables(n_emc: int, n_gpu: int, n_cpu: int, limit: int) -> None:
    emc, gpu, cpu = choose_shape(n_emc, n_gpu, n_cpu, limit)
    assert 1 <= emc * gpu * cpu <= limit
    assert 1 <= emc <= n_emc
    assert 1 <= gpu <= n_gpu
    assert 1 <= cpu <= n_cpu


@given(counts, counts, counts)
def test_whole_table_is_used_when_it_fits(n_emc: int, n_gpu: int, n_cpu: int) -> None:
    whole = n_emc * n_gpu * n_cpu <= 96
    assert (choose_shape(n_emc, n_gpu, n_cpu) == (n_emc, n_gpu, n_cpu)) is whole


@pytest.mark.parametrize("points", [(0, 4, 4), (3, 0, 4), (3, 4, 0)])
def test_shape_of_an_empty_domain_is_an_error(points: tuple[int, int, int]) -> None:
    with pytest.raises(SpaceError, match="at least one point"):
        choose_shape(*points)


@given(tables, st.integers(2, 40))
def test_points_are_distinct_of_the_table_with_both_ends(table: set[int], n: int) -> None:
    chosen = log_even(sorted(table), n)
    assert len(chosen) == len(set(chosen)) == min(n, len(table))
    assert set(chosen) <= table
    assert list(chosen) == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (min(table), max(table))


def test_points_are_even_in_log_frequency() -> None:
    assert log_even([1, 2, 3, 4, 5, 8, 12, 16, 64], 4) == (1, 4, 16, 64)


def test_one_point_is_the_top() -> None:
    assert log_even(GPU_HZ, 1) == (1_300_500_000,)


@pytest.mark.parametrize(("points", "n"), [([], 3), ([0, 5], 2), ([1, 2], 0)])
def test_points_that_make_no_sense_are_an_error(points: list[int], n: int) -> None:
    with pytest.raises(SpaceError, match="wanted at least one"):
        log_even(points, n)


def test_maxn_of_agx_orin_has_96_candidates() -> None:
    emc, gpu, cpu = choose_shape(len(EMC_HZ), len(GPU_HZ), len(CPU_HZ))
    modes = [
        PowerMode(None, c, g, e)
        for e, g, c in itertools.product(log_even(EMC_HZ, emc), log_even(GPU_HZ, gpu), log_even(CPU_HZ, cpu))
    ]
    space = Space.of([Candidate(m) for m in modes], Candidate(modes[-1]))
    assert len(space) == 96
    assert [axis.name for axis in space.axes] == ["cpu_hz", "gpu_hz", "emc_hz"]
    assert space.coordinates(space.reference) == (3, 7, 2)


def test_axes_are_what_varies_in_ascending_order() -> None:
    space = Space.of([mode(3, batch=4), mode(1, batch=1), mode(2, batch=16)], 0)
    assert space.axes == (Axis("gpu_hz", (1, 2, 3)), Axis("batch", (1, 4, 16)))
    assert space.coordinates(2) == (1, 2)


def test_holes_are_none() -> None:
    space = Space.of([mode(1, 10), mode(2, 10), mode(2, 20)], 2)
    assert space.at((0, 0)) == 0
    assert space.at((0, 1)) is None
    assert space.at((7, 7)) is None


def test_one_candidate_has_no_axis() -> None:
    space = Space.of([mode(1)], 0)
    assert space.axes == ()
    assert space.at(()) == 0


@given(st.sets(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1))
def test_every_candidate_is_found_at_its_coordinates(places: set[tuple[int, int]]) -> None:
    space = Space.of([mode(gpu, emc) for gpu, emc in sorted(places)], 0)
    assert [space.at(space.coordinates(i)) for i in range(len(space))] == list(range(len(space)))


def test_added_candidate_keeps_all_indices() -> None:
    space = Space.of([mode(1), mode(3)], mode(3))
    wider = space.with_candidate(mode(2))
    assert wider.candidates[:2] == space.candidates
    assert wider.index_of(mode(2)) == 2
    assert wider.reference == space.reference == 1
    assert wider.with_candidate(mode(2)) is wider
    assert space.index_of(mode(2)) is None


def test_reference_outside_is_an_error() -> None:
    with pytest.raises(SpaceError, match="reference: wanted a candidate of 1"):
        Space.of([mode(1)], mode(2))
    with pytest.raises(SpaceError, match="reference: wanted an index below 1"):
        Space.of([mode(1)], 4)


def test_candidate_twice_is_an_error() -> None:
    with pytest.raises(SpaceError, match="got twice"):
        Space.of([mode(1), mode(1)], 0)


def test_half_recorded_axis_is_an_error() -> None:
    with pytest.raises(SpaceError, match="axis emc_hz: wanted a value in every candidate or in none"):
        Space.of([mode(1, 5), mode(2, None)], 0)


def test_index_outside_is_an_error() -> None:
    with pytest.raises(SpaceError, match="wanted an index below 1, got 1"):
        Space.of([mode(1)], 0).coordinates(1)
