"""Frames survive any cutting, broken ones are named, and times that cannot be are found out."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from jouled.errors import FrameError, WorkloadDiedError, WorkloadError
from jouled.workload.arrival import Share, TimeCheck, shares
from jouled.workload.frames import MOST_BYTES, Frame, FrameReader, control_line, pack
from jouled.workload.runner import Arrival

KINDS = "RICBLED"
FRAMES = st.lists(st.tuples(st.sampled_from(KINDS), st.binary(max_size=200)), max_size=12)
CUTS = st.lists(st.integers(0, 3000), max_size=30)
AT_NS = 1_000_000_000_000
BACK_TO_BACK = Share(Arrival())
RATE = Share(Arrival("rate", 50.0), offset_s=0.005)
TRACE = Share(Arrival("trace", times_s=(0.0, 0.01, 0.01, 0.5), period_s=0.6))


def fed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[tuple[str, bytes]]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[low:high] for low, high in pairwise(edges)]
    return [(frame.kind, frame.payload) for piece in pieces for frame in reader.feed(piece)]


@given(FRAMES, CUTS)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[str, bytes]], cuts: list[int]) -> None:
    reader = FrameReader()
    assert fed(reader, b"".join(pack(*frame) for frame in frames), cuts) == frames
    assert reader.pending == 0


@given(FRAMES, st.integers(1, 204))
def test_a_stream_that_ends_within_a_frame_shows_it(frames: list[tuple[str, bytes]], missing: int) -> None:
    data = b"".join(pack(*frame) for frame in [*frames, ("D", b"x" * 200)])
    reader = FrameReader()
    assert fed(reader, data[:-missing], []) == frames
    assert reader.pending == 205 - missing


@given(FRAMES, st.binary(min_size=1, max_size=300), CUTS)
def test_bytes_that_are_no_frame_are_an_error_and_nothing_else(
    frames: list[tuple[str, bytes]], rubbish: bytes, cuts: list[int]
) -> None:
    data = b"".join(pack(*frame) for frame in frames)
    reader = FrameReader()
    found = []
    with suppress(FrameError):
        found = fed(reader, data + rubbish, cuts)
        assert found[: len(frames)] == frames
    assert all(kind in KINDS for kind, _ in found)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"Hello, I am a library that prints", "type b'H'"),
        (struct.pack("<cI", b"C", MOST_BYTES + 1), f"{MOST_BYTES + 1} bytes"),
        (b"\x00" * 5, r"type b'\x00'"),
    ],
)
def test_what_is_no_frame_is_named(data: bytes, named: str) -> None:
    with pytest.raises(FrameError) as caught:
        list(FrameReader().feed(data))
    assert named in str(caught.value)
    assert "standard error" in caught.value.hint


def test_the_longest_frame_passes() -> None:
    (frame,) = FrameReader().feed(pack("L", b"x" * MOST_BYTES))
    assert len(frame.payload) == MOST_BYTES


@given(st.binary(max_size=60))
def test_a_document_is_an_object_or_an_error(payload: bytes) -> None:
    try:
        assert isinstance(Frame("R", payload).document(), dict)
    except FrameError:
        with pytest.raises((ValueError, AssertionError)):
            assert isinstance(json.loads(payload), dict)


def test_times_are_three_integers_a_request() -> None:
    rows = [(1, 2, 3), (-4, 5, 1 << 62)]
    payload = b"".join(struct.pack("<3q", *row) for row in rows)
    assert Frame("C", payload).times().tolist() == [list(row) for row in rows]
    assert Frame("C", b"").times().shape == (0, 3)
    with pytest.raises(FrameError, match="24 bytes a request, got 47"):
        Frame("C", payload[:-1]).times()


def test_what_the_parent_says_is_one_line_of_json() -> None:
    line = control_line({"do": "load", "spec": {"engine": "/a/b\n.plan"}})
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"do": "load", "spec": {"engine": "/a/b\n.plan"}}
    with pytest.raises(ValueError, match="JSON"):
        control_line({"at": float("nan")})


# --- times ------------------------------------------------------------------------------------------------


def truthful(share: Share, count: int, service_ns: list[int]) -> NDArray[np.int64]:
    """One server, a queue, and what it would report."""
    rows, free_ns = [], AT_NS
    for k in range(count):
        arrival_ns = free_ns if share.is_back_to_back else int(share.due_ns(AT_NS, k, 1)[0])
        start_ns = max(arrival_ns, free_ns)
        free_ns = start_ns + service_ns[k % len(service_ns)]
        rows.append((arrival_ns, start_ns, free_ns))
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


SERVICE = st.lists(st.integers(0, 80_000_000), min_size=1, max_size=20)


@given(st.sampled_from([BACK_TO_BACK, RATE, TRACE]), SERVICE, st.integers(0, 60), CUTS)
def test_the_truth_is_believed_however_it_is_batched(
    share: Share, service_ns: list[int], count: int, cuts: list[int]
) -> None:
    times = truthful(share, count, service_ns)
    check = TimeCheck(share, AT_NS)
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    for low, high in pairwise(edges):
        part = times[low:high]
        check.add(part, int(part[-1, 2]) if len(part) else AT_NS)
    assert check.count == count


LIES = {
    "future": ((0, 0, 1), "in the future"),
    "before_load": ((-1, 0, 0), "before the load began"),
    "start_first": ((0, -1, 0), "before it arrived"),
    "end_first": ((0, 0, -1), "before it started"),
}


@given(st.sampled_from([BACK_TO_BACK, RATE, TRACE]), SERVICE, st.integers(1, 40), st.data())
def test_a_lie_about_time_is_found_out_and_named(
    share: Share, service_ns: list[int], count: int, data: st.DataObject
) -> None:
    times = truthful(share, count, service_ns)
    name = data.draw(st.sampled_from(sorted(LIES)))
    shift, text = LIES[name]
    row = data.draw(st.integers(0, count - 1))
    now_ns = int(times[-1, 2])
    far_ns = 4_000_000_000_000 if name != "before_load" else int(times[row, 0]) - AT_NS + 1
    times[row] += np.array(shift, dtype=np.int64) * far_ns
    with pytest.raises(WorkloadDiedError) as caught:
        TimeCheck(share, AT_NS).add(times, now_ns)
    assert caught.value.code == "wrong_times"
    if count == 1:
        assert text in str(caught.value)
        assert "request 0" in str(caught.value)


def test_ends_that_go_back_are_found_out_across_frames() -> None:
    check = TimeCheck(BACK_TO_BACK, AT_NS)
    check.add(np.array([[AT_NS, AT_NS, AT_NS + 9]]), AT_NS + 10)
    with pytest.raises(
        WorkloadDiedError, match=r"request 1 ended 0\.000 ms before the one that was reported before it"
    ):
        check.add(np.array([[AT_NS, AT_NS, AT_NS + 8]]), AT_NS + 10)


@pytest.mark.parametrize("share", [RATE, TRACE])
def test_who_hides_queueing_is_found_out(share: Share) -> None:
    times = truthful(share, 30, [60_000_000])
    times[:, 0] = times[:, 1]  # as if each had come just when its turn came
    with pytest.raises(WorkloadDiedError, match=r"was due \d+\.\d+ ms from when it says"):
        TimeCheck(share, AT_NS).add(times, int(times[-1, 2]))


def test_the_largest_numbers_are_no_way_around() -> None:
    for row in ([-(1 << 63), (1 << 63) - 1, (1 << 63) - 1], [(1 << 63) - 1] * 3, [-(1 << 63)] * 3):
        with pytest.raises(WorkloadDiedError, match="lies about time"):
            TimeCheck(RATE, AT_NS).add(np.array([row], dtype=np.int64), AT_NS + 1)


@given(st.integers(1, 9), st.floats(0.1, 2000.0), st.integers(1, 50))
def test_instances_at_a_rate_take_turns(instances: int, rate_hz: float, count: int) -> None:
    parts = shares(Arrival("rate", rate_hz), instances)
    due_s = np.sort(np.concatenate([part.due_s(0, count) for part in parts]))
    np.testing.assert_allclose(due_s, np.arange(instances * count) / rate_hz, rtol=1e-9, atol=1e-9)


@given(st.integers(1, 5), st.lists(st.floats(0.001, 1.0), min_size=2, max_size=7), st.integers(1, 30))
def test_instances_of_a_trace_take_turns(instances: int, gaps_s: list[float], count: int) -> None:
    times_s = tuple(np.concatenate(([0.0], np.cumsum(gaps_s))).tolist())
    whole = Share(Arrival("trace", times_s=times_s, period_s=times_s[-1] + 0.01))
    parts = [part.due_s(0, count) for part in shares(whole.arrival, instances)]
    due_s = np.sort(np.concatenate(parts))
    np.testing.assert_allclose(due_s, whole.due_s(0, instances * count), rtol=1e-9)


def test_an_arrival_that_lacks_its_numbers_is_refused() -> None:
    for arrival in (Arrival("rate"), Arrival("rate", 0.0), Arrival("trace"), Arrival("sometimes")):
        with pytest.raises(WorkloadError, match="wanted back_to_back"):
            shares(arrival, 2)


@pytest.mark.parametrize(
    ("arrival", "told"),
    [
        (Arrival(), {"kind": "back_to_back"}),
        (Arrival("rate", 30.0), {"kind": "rate", "rate_hz": 15.0, "offset_s": 0.0}),
        (
            Arrival("trace", times_s=(0.0, 0.5), period_s=1.0),
            {"kind": "trace", "times_s": [0.0], "period_s": 1.0},
        ),
    ],
)
def test_a_runner_is_told_its_share(arrival: Arrival, told: dict[str, object]) -> None:
    assert dict(shares(arrival, 2)[0].message() if arrival.kind != "back_to_back" else BACK_TO_BACK.message()) == told
