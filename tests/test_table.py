from __future__ import annotations

import pytest

from jouletune.errors import SpaceError
from jouletune.space import Candidate, PowerMode, Variant
from jouletune.table import parse_table

HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"


def test_rows_become_candidates_with_absent_axes_fixed() -> None:
    table = parse_table(HEADER + ",,300,10,1,0.5,2\n,,600,10,1,0.25,3.5\n", where="a.csv")
    assert [row.candidate for row in table.rows] == [
        Candidate(PowerMode(gpu_hz=300, emc_hz=10)),
        Candidate(PowerMode(gpu_hz=600, emc_hz=10)),
    ]
    assert [axis.name for axis in table.space.axes] == ["gpu_hz"]
    assert table.space.reference == 1


def test_power_is_the_energy_of_a_batch_over_its_latency() -> None:
    table = parse_table(HEADER + ",,300,,8,0.5,2\n", where="a.csv")
    assert table.rows[0].power_w == 32.0


def test_reference_is_highest_clocks_and_smallest_batch() -> None:
    text = HEADER + ",5,600,10,2,1,1\n,5,300,10,1,1,1\n,5,600,10,1,1,1\n,5,600,5,1,1,1\n"
    table = parse_table(text, where="a.csv")
    assert table.space.candidates[table.space.reference] == Candidate(PowerMode(None, 5, 600, 10))


def test_rows_without_energy_are_left_out_and_keep_their_numbers() -> None:
    table = parse_table(HEADER + ",,300,,1,0.5,\n,,600,,1,0.25,3\n", where="a.csv")
    assert [row.number for row in table.rows] == [1]


@pytest.mark.parametrize(("sizes", "kept"), [(20, 20), (21, 5)])
def test_of_more_than_twenty_batch_sizes_only_powers_of_two_stay(sizes: int, kept: int) -> None:
    rows = "".join(f",,300,,{batch},0.5,3\n" for batch in range(1, sizes + 1))
    assert len(parse_table(HEADER + rows, where="a.csv").rows) == kept


def test_empty_batch_is_one() -> None:
    assert parse_table(HEADER + ",,3,,,1,1\n", where="a.csv").rows[0].candidate.variant == Variant(batch=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv:1: wanted the header cores,cpu_hz.*, got nothing"),
        ("gpu_hz,latency_s\n", r"a\.csv:1: wanted the header .*, got gpu_hz,latency_s"),
        (HEADER, r"a\.csv: wanted at least one row with latency_s and energy_j, got none"),
        (HEADER + ",,3,,1,1,\n", r"a\.csv: wanted at least one row"),
        (HEADER + ",,3,,1,1\n", r"a\.csv:2: wanted 7 cells, got 6"),
        (HEADER + ",,3,,1,1,1\n,,1.5,,1,1,1\n", r"a\.csv:3: gpu_hz: wanted a whole number .*, got '1\.5'"),
        (HEADER + ",,3,,0,1,1\n", r"a\.csv:2: batch: wanted a whole number of at least 1 or nothing, got '0'"),
        (HEADER + ",,3,,1,,1\n", r"a\.csv:2: latency_s: wanted a number of seconds, got an empty cell"),
        (HEADER + ",,3,,1,1,nan\n", r"a\.csv:2: energy_j: wanted a number above 0 or nothing, got 'nan'"),
        (HEADER + ",,3,,1,-1,1\n", r"a\.csv:2: latency_s: wanted a number above 0 or nothing, got '-1'"),
        (HEADER + ",,3,,1,1,1\n\n,,3,,1,1,2\n", r"a\.csv:4: wanted each mode and batch once, .* line 2"),
        (HEADER + ",,3\0,,1,1,1\n", r"a\.csv:2:4: wanted text, got a NUL byte"),
        ("\0", r"a\.csv:1:1: wanted text, got a NUL byte"),
        (HEADER + ",,3,,1,1," + "1" * 140_000, r"a\.csv:2:10001: wanted at most 10000 characters a line, got 140009"),
        (HEADER + '"' + ("," * 9_000 + "\n") * 20, r"a\.csv:16: wanted comma-separated cells: field larger than"),
        (
            HEADER + ",," + "9" * 5000 + ",,1,1,1\n",
            r"a\.csv:2: gpu_hz: wanted at most 999999999999, got '9{40}'… \(5000",
        ),
        (HEADER + ",,1000000000000,,1,1,1\n", r"a\.csv:2: gpu_hz: wanted at most 999999999999, got '1000000000000'"),
        (HEADER + "1025,,3,,1,1,1\n", r"a\.csv:2: cores: wanted at most 1024, got '1025'"),
        (HEADER + ",,²,,1,1,1\n", r"a\.csv:2: gpu_hz: wanted a whole number"),
        (
            HEADER + ",,3,,1," + "9" * 5000 + ",1\n",
            r"a\.csv:2: latency_s: wanted a number above 0 .*\(5000 characters\)",
        ),
        (HEADER + ",,3,,1,1e-300,1\n", r"a\.csv:2: latency_s: wanted 1e-05 to 100000, got '1e-300'"),
        (HEADER + ",,3,,1,1,1e300\n", r"a\.csv:2: energy_j: wanted 1e-09 to 1e\+09, got '1e300'"),
        (HEADER + ",,3,,1,1,1\n,,,,1,1,2\n", r"a\.csv: axis gpu_hz: wanted a value in every candidate"),
    ],
)
def test_errors_name_file_line_wanted_and_got(text: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        parse_table(text, where="a.csv")
