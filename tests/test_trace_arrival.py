"""A trace of arrivals: what is read of its file, what is said of a wrong one, how several instances share it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.errors import ConfigError
from jouled.workload.runner import Arrival
from jouled.workload.trace import MOST_ARRIVALS, dealt, parse_trace, read_trace


def test_trace_begins_with_the_load_and_closes_with_the_mean_gap() -> None:
    arrival = parse_trace("10\n10.5\n12\n13\n", where="t.csv")
    assert arrival.times_s == (0.0, 0.5, 2.0, 3.0)
    assert arrival.period_s == pytest.approx(4.0)  # 3 s in 3 gaps, and one more
    assert arrival.mean_rate_hz == pytest.approx(1.0)


def test_name_of_the_column_comments_and_empty_lines_are_passed() -> None:
    arrival = parse_trace("# a camera\narrival_s\n\n0.0\n0.1  # late\r\n", where="t.csv")
    assert arrival.times_s == (0.0, 0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n2\n1\n", r"t\.csv:3: wanted at least the 2 s of the line before, got '1'"),
        ("0\nx\n", r"t\.csv:2: wanted one number of seconds, got 'x'"),
        ("0,1\n1,2\n", r"t\.csv:1: wanted one number of seconds, got '0,1'"),
        ("s\nms\n0\n1\n", r"t\.csv:2: wanted one number of seconds, got 'ms'"),
        ("0\nnan\n", r"t\.csv:2: .* got 'nan'"),
        ("0\ninf\n", r"t\.csv:2: .* got 'inf'"),
        ("", "at least two arrivals, some time apart, got 0 within 0 s"),
        ("5\n", "got 1 within 0 s"),
        ("5\n5\n5\n", "got 3 within 0 s"),
        ("0\n80\n", "wanted a trace of at most 150 s, got 160.0 s: each window plays it twice"),
        ("0\n" + "1\n" * MOST_ARRIVALS, "wanted at most 200000 arrivals, got 200001"),
    ],
    ids=["backwards", "word", "columns", "two-names", "nan", "inf", "empty", "one", "at-once", "long", "endless"],
)
def test_wrong_trace_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_trace(text, where="t.csv")
    assert caught.value.hint


def test_trace_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.csv: the trace cannot be read: No such file"):
        read_trace(tmp_path / "no.csv")
    with pytest.raises(ConfigError, match="wanted a file with a trace, got something else"):
        read_trace(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe0")
    with pytest.raises(ConfigError, match="wanted a CSV in UTF-8, got another byte at 0"):
        read_trace(tmp_path / "binary")


def test_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t\n0\n0.25\n0.75\n")
    assert read_trace(tmp_path / "t.csv").times_s == (0.0, 0.25, 0.75)


def _first(arrival: Arrival, count: int) -> list[float]:
    """When the first `count` requests come."""
    assert arrival.period_s is not None
    each = len(arrival.times_s)
    return [i // each * arrival.period_s + arrival.times_s[i % each] for i in range(count)]


@given(st.lists(st.integers(0, 10), min_size=2, max_size=9), st.integers(1, 8))
def test_instances_share_a_trace_without_losing_or_doubling_a_request(gaps: list[int], n: int) -> None:
    times_s = [float(sum(gaps[:i])) for i in range(len(gaps))]
    if times_s[-1] == 0.0:
        return
    arrival = parse_trace("\n".join(map(str, times_s)), where="t.csv")
    count = 60
    whole = _first(arrival, n * count)
    for k in range(n):
        assert _first(dealt(arrival, k, n), count) == pytest.approx(whole[k::n])
    shared_hz = [dealt(arrival, k, n).mean_rate_hz or 0.0 for k in range(n)]
    assert sum(shared_hz) == pytest.approx(arrival.mean_rate_hz or 0.0)


def test_rate_and_back_to_back_have_their_rates() -> None:
    assert Arrival().mean_rate_hz is None
    assert Arrival("rate", 30.0).mean_rate_hz == 30.0
    assert [str(Arrival()), str(Arrival("rate", 30.0))] == ["back_to_back", "rate 30 Hz"]
