"""The TensorRT runner as its parent meets it: a process of its own, on stand-ins for tensorrt and pycuda.

What stand-ins cannot show: a real GPU's times, what CUDA itself takes of memory and of the interpreter's lock, that the
driver captures a graph, and that a broken plan makes TensorRT say no instead of crashing. That is bench/gpu_host.py.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.standin_python import DYNAMIC, RUNNER, STATIC, VERSIONS, Tensor, interpreter, onnx, plan
from tests.standins.machine import forward

from jouled.board.process import Processes
from jouled.errors import WorkloadError
from jouled.workload.frames import Frame, FrameReader
from jouled.workload.process_runner import ProcessRunner, about, build_plan, runner_argv
from jouled.workload.runner import Arrival
from jouletune.space import Variant

PATIENCE_S = 60.0
TWO_PROFILES: tuple[Tensor, ...] = (
    {
        "name": "input",
        "mode": "input",
        "shape": [-1, 3, -1, 4],
        "profile": [[[1, 3, 4, 4], [1, 3, 4, 4], [1, 3, 4, 4]], [[2, 3, 4, 4], [4, 3, 8, 4], [8, 3, 9, 4]]],
    },
    {"name": "output", "mode": "output", "shape": [-1, 5]},
)
ALL_TYPES = ("FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8", "FP8", "E8M0", "INT4", "FP4")


class Talk:
    """A runner, and a parent that is never in a hurry but always in time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.report = folder / "report.json"
        python = interpreter(folder, report=str(self.report), **settings)
        pipe, self.text = subprocess.PIPE, folder / "stderr.txt"
        with open(self.text, "wb") as text:
            self.process = subprocess.Popen([str(python), str(RUNNER)], stdin=pipe, stdout=pipe, stderr=text)
        assert self.process.stdout is not None
        self._fd = self.process.stdout.fileno()
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self.beats = 0
        self.lines: list[str] = []
        self.times: list[NDArray[np.int64]] = []

    def say(self, do: str, **more: Any) -> None:
        """One line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        self.process.stdin.flush()

    def frame(self) -> Frame | None:
        """The next one; None when there are no more."""
        while not self._frames:
            assert select.select([self._fd], [], [], PATIENCE_S)[0], "silent"
            data = os.read(self._fd, 1 << 16)
            if not data:
                return None
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()

    def answer(self) -> tuple[str, dict[str, Any]]:
        """The next frame that is no beat, line or completion; those are kept."""
        while (frame := self.frame()) is not None:
            if frame.kind == "B":
                self.beats += 1
            elif frame.kind == "L":
                self.lines.append(frame.document()["text"])
            elif frame.kind == "C":
                self.times.append(frame.times())
            else:
                return frame.kind, frame.document()
        raise AssertionError(self.text.read_text())

    def count(self, least: int) -> None:
        """Until so many completions have come."""
        while sum(map(len, self.times)) < least:
            frame = self.frame()
            assert frame is not None
            if frame.kind == "C":
                self.times.append(frame.times())

    def load(self, **spec: Any) -> dict[str, Any]:
        """What it says when it is ready."""
        self.say("load", spec=spec)
        kind, document = self.answer()
        assert kind == "R", document
        return document

    def fails(self, do: str = "load", **spec: Any) -> dict[str, Any]:
        """What it says of its failure, after which it ends with 1."""
        self.say(do, spec=spec)
        return self.failure()

    def failure(self) -> dict[str, Any]:
        """As `fails`, for whatever was said last."""
        kind, document = self.answer()
        assert kind == "E", document
        assert self.frame() is None
        assert self.process.wait(PATIENCE_S) == 1
        return document

    def start(self, kind: str = "back_to_back", **arrival: Any) -> int:
        """Requests from now on; the start that it was told."""
        at_ns = time.monotonic_ns()
        self.times.clear()
        self.say("start", arrival={"kind": kind, **arrival}, at_ns=at_ns)
        return at_ns

    def stop(self) -> NDArray[np.int64]:
        """All times since the start, shape (n, 3)."""
        self.say("stop")
        kind, document = self.answer()
        assert kind == "D", document
        times = np.concatenate([np.empty((0, 3), dtype=np.int64), *self.times])
        assert document == {"did": "stop", "sent": len(times)}
        return times

    def end(self) -> dict[str, Any]:
        """Close its input, and what it left on the GPU."""
        self.end_without_gpu()
        found: dict[str, Any] = json.loads(self.report.read_text())
        return found

    def end_without_gpu(self) -> None:
        """As `end`, where no GPU was used."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while (frame := self.frame()) is not None:
            if frame.kind == "L":
                self.lines.append(frame.document()["text"])
        assert self.process.wait(PATIENCE_S) == 0


@contextlib.contextmanager
def talk(folder: Path, **settings: Any) -> Iterator[Talk]:
    """A runner that is gone afterwards."""
    made = Talk(folder, **settings)
    with made.process:
        try:
            yield made
        finally:
            made.process.kill()


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """Its functions, for what needs no process."""
    spec = importlib.util.spec_from_file_location("runner_under_test", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrays(folder: Path, name: str, **values: NDArray[Any]) -> str:
    path = folder / f"{name}.npz"
    np.savez(path, allow_pickle=False, **values)
    return str(path)


SAMPLE = np.random.default_rng(7).standard_normal((3, 3, 4, 4)).astype("float32")
EXPECTED = forward({"": SAMPLE}, (3, 5))


@pytest.mark.parametrize("sign", ["x", '"', "é", "層", "\N{GRINNING FACE}", "\x1b"])
def test_a_line_of_the_log_fits_a_frame_that_is_written_as_one_piece(runner: ModuleType, sign: str) -> None:
    outbox = runner.Outbox(runner.Wire(-1))
    log = runner.Log(outbox)
    log.take("WARNING", sign * 5000)
    log.warn(sign * 5000)
    frames = [runner.pack("L", json.dumps(line).encode()) for line in outbox.lines]
    assert len(frames) == 2
    assert all(100 < len(frame) <= select.PIPE_BUF for frame in frames)


# --- what is loaded and run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_sample_gives_the_reference_outputs_at_each_batch_in_each_version(
    tmp_path: Path, version: str, *, cuda_graph: bool
) -> None:
    inputs, outputs = arrays(tmp_path, "in", input=SAMPLE), arrays(tmp_path, "out", output=EXPECTED)
    path = str(plan(tmp_path, tensors=DYNAMIC))
    with talk(tmp_path, tensorrt=version) as to:
        ready = to.load(engine=path, batch=5, inputs=inputs, outputs=outputs, tolerance=1e-6, cuda_graph=cuda_graph)
        assert ready["output_check"]["checked"]
        assert ready["output_check"]["max_error"] < 1e-6
        assert ready["tensors"][0] == {"name": "input", "mode": "input", "dtype": "float", "shape": [5, 3, 4, 4]}
        assert ready["versions"]["tensorrt"] == version
        assert ready["cuda_graph"] is cuda_graph
        assert ready["io_bytes"] == 5 * (48 + 5) * 4
        to.start()
        to.count(20)
        times = to.stop()
        left = to.end()
    arrival, start, end = times.T
    assert (arrival == start).all()
    assert (start[1:] >= end[:-1]).all()
    assert (end - start >= 400_000).all(), "a request is not waited for"
    assert {name: left[name] for name in ("allocated", "pinned", "engines")} == dict.fromkeys(
        ("allocated", "pinned", "engines"), 0
    )


def test_what_is_ready_tells_the_plan_the_memory_and_the_versions(tmp_path: Path) -> None:
    path = plan(tmp_path, context_bytes=5 << 20, weights_bytes=9 << 20)
    with talk(tmp_path, free_bytes=100 << 20) as to:
        ready = to.load(engine=str(path), batch=2)
        assert to.process.pid == ready["pid"]
        adjusted = Path(f"/proc/{to.process.pid}/oom_score_adj").read_text()
    assert int(adjusted) == 1000
    assert (ready["protocol"], ready["workload"], ready["gpu_name"]) == (1, "tensorrt", "NVIDIA Stand-in")
    assert (ready["plan_bytes"], ready["device_memory_bytes"]) == (path.stat().st_size, 5 << 20)
    assert ready["free_bytes"] == 100 << 20
    assert ready["loaded_free_bytes"] == (100 << 20) - (14 << 20) - ready["io_bytes"]
    assert set(ready["versions"]) == {"tensorrt", "pycuda", "python", "cuda_driver"}
    assert ready["output_check"] == {"checked": False, "max_error": None}


def test_inspecting_tells_the_same_memory_and_leaves_nothing(tmp_path: Path) -> None:
    path = str(plan(tmp_path, tensors=DYNAMIC))
    with talk(tmp_path) as to:
        to.say("inspect", spec={"engine": path, "batch": 4})
        kind, seen = to.answer()
        assert kind == "I"
        assert not seen["io_is_estimate"]
        ready = to.load(engine=path, batch=4)
        to.end()
    for key in ("plan_bytes", "device_memory_bytes", "io_bytes", "free_bytes", "engine_sha256", "tensors"):
        assert seen[key] == ready[key], key


def test_about_tells_versions_and_gpu_without_a_plan(tmp_path: Path) -> None:
    with talk(tmp_path, tensorrt="10.3.0") as to:
        to.say("about")
        kind, about = to.answer()
        to.end()
    assert (kind, about["did"], about["gpu_name"]) == ("D", "about", "NVIDIA Stand-in")
    assert about["versions"]["tensorrt"] == "10.3.0"


def test_the_first_profile_that_holds_the_shapes_is_chosen(tmp_path: Path) -> None:
    path = str(plan(tmp_path, tensors=TWO_PROFILES, profiles=2))
    outputs = arrays(tmp_path, "out", output=forward({"": np.tile(SAMPLE[:2], (1, 1, 2, 1))}, (2, 5)))
    inputs = arrays(tmp_path, "in", input=np.tile(SAMPLE[:2], (1, 1, 2, 1)))
    with talk(tmp_path) as to:
        ready = to.load(engine=path, batch=2, inputs=inputs, outputs=outputs, tolerance=1e-6)
        to.end()
    assert ready["tensors"][0]["shape"] == [2, 3, 8, 4], "an open dimension is the profile's best"


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_inputs_of_every_type_get_random_values(tmp_path: Path, kind: str) -> None:
    tensors = ({**STATIC[0], "dtype": kind}, STATIC[1])
    with talk(tmp_path, tensorrt="11.4.0.106") as to:
        ready = to.load(engine=str(plan(tmp_path, tensors=tensors)), batch=2)
        to.end()
    bits = {"FLOAT": 32, "INT32": 32, "HALF": 16, "BF16": 16, "INT64": 64, "INT4": 4, "FP4": 4}.get(kind, 8)
    assert ready["io_bytes"] == 96 * bits // 8 + 40
    assert not to.lines, "a value that is not finite came out"


def test_tensors_that_are_no_rows_of_numbers_get_the_memory_they_need(tmp_path: Path) -> None:
    tensors: Sequence[Tensor] = (
        {"name": "input", "mode": "input", "shape": [2, 3, 4, 4], "dtype": "HALF", "vector": [1, 8]},
        {"name": "boxes", "mode": "output", "shape": [-1, -1], "most_bytes": 4096},
    )
    with talk(tmp_path) as to:
        ready = to.load(engine=str(plan(tmp_path, tensors=tensors)), batch=2)
        to.end()
    assert ready["io_bytes"] == 2 * 8 * 4 * 4 * 2 + 4096


def test_a_tensor_that_holds_a_shape_needs_its_values(tmp_path: Path) -> None:
    shape = {"name": "size", "mode": "input", "shape": [2], "dtype": "INT32", "host": True}
    path = str(plan(tmp_path, tensors=(*STATIC, shape)))
    with talk(tmp_path) as to:
        assert to.fails(engine=path, batch=2)["code"] == "inputs_invalid"
    inputs = arrays(tmp_path, "in", input=SAMPLE, size=np.array([4, 4]))
    with talk(tmp_path) as to:
        ready = to.load(engine=path, batch=2, inputs=inputs)
        to.end()
    assert ready["pinned_bytes"] - ready["io_bytes"] == 8


@pytest.mark.parametrize(("sync", "context", "event"), [("blocking", 4, 3), ("spin", 1, 2)])
def test_waiting_blocks_or_spins_as_asked(tmp_path: Path, sync: str, context: int, event: int) -> None:
    with talk(tmp_path) as to:
        ready = to.load(engine=str(plan(tmp_path)), batch=2, sync=sync)
        to.start("rate", rate_hz=200.0)
        to.count(3)
        to.stop()
        left = to.end()
    assert ready["sync"] == sync
    assert left["flags"] == {"context": context, "event": event, "stream": 1}


def test_prints_of_libraries_do_not_come_between_frames(tmp_path: Path) -> None:
    with talk(tmp_path, faults={"prints": True}) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        to.end()
        assert "TensorRT says hello" in to.text.read_text()


def test_warnings_with_each_request_do_not_fill_the_pipe(tmp_path: Path) -> None:
    with talk(tmp_path, faults={"warns": True}) as to:
        to.load(engine=str(plan(tmp_path, latency_s=0.0)), batch=2)
        to.start()
        to.count(1000)
        to.stop()
        to.end()
    assert 0 < len(to.lines) <= 200
    assert to.lines[0].startswith("[WARNING] something is slow")


# --- arrivals ---------------------------------------------------------------------------------------------------------


def test_at_a_rate_requests_arrive_when_due_and_queue_when_the_runner_is_late(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path, latency_s=0.004)), batch=2)
        at_ns = to.start("rate", rate_hz=1000.0, offset_s=0.0005)
        to.count(30)
        times = to.stop()
        to.end()
    arrival, start, end = times.T
    due = at_ns + np.rint((0.0005 + np.arange(len(times)) / 1000.0) * 1e9)
    assert (np.abs(arrival - due) <= 1).all()
    assert (start >= arrival).all()
    assert (start[1:] >= end[:-1]).all()
    assert (end - arrival)[29] > 29 * 2_900_000, "queueing is not counted"


def test_a_trace_is_played_in_a_loop(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        at_ns = to.start("trace", times_s=[0.0, 0.001, 0.004], period_s=0.01)
        to.count(7)
        times = to.stop()
        to.end()
    wanted = [0, 1, 4, 10, 11, 14, 20]
    assert [round((arrival - at_ns) / 1e6, 3) for arrival in times[:7, 0]] == wanted


def test_a_trace_without_a_period_ends_and_can_be_stopped(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        to.start("trace", times_s=[0.0, 0.001])
        to.count(2)
        assert len(to.stop()) == 2
        to.end()


def test_a_load_can_be_stopped_and_started_again(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        for _ in range(2):
            at_ns = to.start("rate", rate_hz=500.0)
            to.count(5)
            assert to.stop()[0, 0] == at_ns
        to.say("stop")
        assert to.answer() == ("D", {"did": "stop", "sent": 0})
        to.end()


def test_a_start_in_the_future_is_waited_for(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        at_ns = time.monotonic_ns() + 100_000_000
        to.say("start", arrival={"kind": "back_to_back"}, at_ns=at_ns)
        to.count(1)
        times = to.stop()
        to.end()
    assert times[0, 0] >= at_ns


def test_a_new_rate_holds_for_what_is_not_due_yet(runner: ModuleType) -> None:
    arrival = runner.AtRate(1000, runner.Given({"rate_hz": 100.0}, "arrival"))
    assert [arrival.due_ns(k) for k in range(3)] == [1000, 10_001_000, 20_001_000]
    arrival.change(200.0, 3, 45_000_000)  # three and four are due by now, five would be at 50 ms
    assert [arrival.due_ns(k) for k in range(3, 7)] == [30_001_000, 40_001_000, 45_001_000, 50_001_000]
    arrival.change(1.0, 7, 50_001_500)
    assert arrival.due_ns(7) == 1_050_001_000


def test_a_trace_longer_than_its_period_is_refused(runner: ModuleType) -> None:
    with pytest.raises(runner.RunnerError, match="does not fit"):
        runner.AsTrace(0, runner.Given({"times_s": [0.0, 2.0], "period_s": 1.0}, "arrival"))


# --- what goes wrong, and what it is called ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"garbage" * 100, "plan_invalid", "Magic tag does not match"),
        ("truncated", "plan_invalid", "Size specified in header"),
        (b"", "plan_invalid", "empty"),
        (None, "plan_unreadable", "No such file"),
    ],
)
def test_a_plan_that_is_none_is_named(tmp_path: Path, data: bytes | str | None, code: str, words: str) -> None:
    path = plan(tmp_path)
    if data == "truncated":
        data = path.read_bytes()[:-20]
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        path.unlink()
    with talk(tmp_path) as to:
        failure = to.fails(engine=str(path), batch=2)
    assert failure["code"] == code
    assert words in " ".join((failure["text"], *failure["log"]))
    assert str(path) in failure["text"]


@pytest.mark.parametrize(
    ("tensors", "spec", "words"),
    [
        (STATIC, {"batch": 3}, "wanted a batch of 3"),
        (STATIC, {"batch": 2, "shapes": {"input": [2, 3, 8, 8]}}, "[2, 3, 4, 4] and nothing else"),
        (STATIC, {"batch": 2, "shapes": {"input": [2, 3]}}, "wanted 4 dimensions"),
        (DYNAMIC, {"batch": 17}, "from [1, 3, 4, 4] to [16, 3, 4, 4] (profile 0), wanted [17, 3, 4, 4]"),
    ],
)
def test_a_shape_outside_the_profile_is_named(
    tmp_path: Path, tensors: Sequence[Tensor], spec: dict[str, Any], words: str
) -> None:
    with talk(tmp_path) as to:
        failure = to.fails(engine=str(plan(tmp_path, tensors=tensors)), **spec)
    assert (failure["code"], words in failure["text"]) == ("shape_outside_profile", True), failure


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"refuses_shape": True}, "shape_outside_profile"),
        ({"infer_shapes": True}, "shape_outside_profile"),
        ({"refuses_address": "output"}, "cuda_error"),
        ({"context": True}, "cuda_error"),
        ({"make_context": True}, "out_of_memory"),
        ({"refuses_at": 1}, "cuda_error"),
        ({"break_at": 1}, "cuda_error"),
        ({"capture": 901}, "cuda_error"),
        ({"wrong_by": 0.5}, "output_mismatch"),
        ({"nan": True}, "output_mismatch"),
        ({"cuda_init": "no CUDA-capable device is detected"}, "no_gpu"),
        ({"count": 0}, "no_gpu"),
        ({"runtime": 35}, "no_gpu"),
        ({"import": "libnvinfer.so.8: cannot open shared object file"}, "no_tensorrt"),
    ],
    ids=str,
)
def test_each_failure_of_the_libraries_has_its_name(tmp_path: Path, faults: dict[str, Any], code: str) -> None:
    inputs, outputs = arrays(tmp_path, "in", input=SAMPLE), arrays(tmp_path, "out", output=EXPECTED)
    path = str(plan(tmp_path, tensors=DYNAMIC))
    with talk(tmp_path, faults=faults) as to:
        failure = to.fails(engine=path, batch=2, inputs=inputs, outputs=outputs, cuda_graph="capture" in faults)
        if code not in ("no_gpu", "no_tensorrt") and "make_context" not in faults:
            left = json.loads(to.report.read_text())
            assert (left["allocated"], left["pinned"], left["engines"]) == (0, 0, 0), "the GPU is not free"
    assert failure["code"] == code, failure


@pytest.mark.parametrize(
    ("sizes", "free_bytes", "words"),
    [
        ({"weights_bytes": 200 << 20}, 100 << 20, "cannot load the plan"),
        ({"context_bytes": 200 << 20}, 100 << 20, "execution context (209715200 bytes"),
        ({"weights_bytes": 0, "context_bytes": 0}, 100, "bytes for input"),
    ],
)
def test_too_much_memory_is_named_whatever_asks_for_it(
    tmp_path: Path, sizes: dict[str, Any], free_bytes: int, words: str
) -> None:
    with talk(tmp_path, free_bytes=free_bytes) as to:
        failure = to.fails(engine=str(plan(tmp_path, **sizes)), batch=2)
    assert (failure["code"], words in failure["text"]) == ("out_of_memory", True), failure


@pytest.mark.parametrize(("modules", "code"), [(("pycuda",), "no_tensorrt"), (("tensorrt",), "no_pycuda")])
def test_a_library_that_is_not_there_is_named(tmp_path: Path, modules: Sequence[str], code: str) -> None:
    with talk(tmp_path, modules=modules) as to:
        failure = to.fails(engine=str(plan(tmp_path)), batch=2)
    assert failure["code"] == code
    assert "has no module" in failure["text"]


@pytest.mark.parametrize("faults", [{"refuses_at": 40}, {"break_at": 40}, {"launch_at": 40}], ids=str)
def test_a_failure_under_load_comes_after_what_had_ended(tmp_path: Path, faults: dict[str, Any]) -> None:
    with talk(tmp_path, faults=faults) as to:
        to.load(engine=str(plan(tmp_path)), batch=2, cuda_graph="launch_at" in faults)
        to.start()
        failure = to.failure()
    before = 2 if "launch_at" in faults else 1  # requests that ran while it loaded
    ended = 40 - before - (0 if "launch_at" in faults else 1)
    assert failure["code"] == "cuda_error"
    assert sum(map(len, to.times)) == ended


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"batch": 0}, "spec.batch: wanted a whole number of at least 1, got 0"),
        ({"batch": True}, "spec.batch"),
        ({"sync": "sometimes"}, 'spec.sync: wanted one of "blocking", "spin"'),
        ({"tolerance": "small"}, "spec.tolerance"),
        ({"shapes": {"input": "all"}}, "spec.shapes"),
        ({"shapes": {"image": [2, 3, 4, 4]}}, "the engine's inputs are input"),
        ({"engine": None}, "wanted the path of a plan"),
        ({"engine": 7}, "spec.engine"),
    ],
    ids=str,
)
def test_a_wrong_specification_names_its_key(tmp_path: Path, spec: dict[str, Any], words: str) -> None:
    with talk(tmp_path) as to:
        failure = to.fails(**{"engine": str(plan(tmp_path)), "batch": 2, **spec})
    assert (failure["code"], words in failure["text"]) == ("bad_spec", True), failure


@pytest.mark.parametrize(
    "line",
    [b"start\n", b"[]\n", b'{"do": 7}\n', b'{"do": "dance"}\n', b'{"do": "start", "at_ns": 0}\n', b'{"do": "load"}\n'],
)
def test_a_line_that_is_no_command_ends_it_with_its_name(tmp_path: Path, line: bytes) -> None:
    with talk(tmp_path) as to:
        assert to.process.stdin is not None
        to.process.stdin.write(line)
        to.process.stdin.flush()
        assert to.failure()["code"] == "bad_spec"


@pytest.mark.parametrize(
    ("arrival", "words"),
    [({"kind": "rate"}, "rate_hz"), ({"kind": "poisson"}, "kind"), ({"kind": "trace", "times_s": ["a"]}, "times_s")],
    ids=str,
)
def test_a_wrong_arrival_names_its_key(tmp_path: Path, arrival: dict[str, Any], words: str) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        to.say("start", arrival=arrival, at_ns=0)
        failure = to.failure()
    assert (failure["code"], words in failure["text"]) == ("bad_spec", True), failure


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": SAMPLE}, "image, input"),
        ({"input": SAMPLE[:, :2]}, "wanted shape [2, 3, 4, 4], got [3, 2, 4, 4]"),
        ({"input": SAMPLE[:0]}, "wanted shape"),
        ({"input": SAMPLE > 0, "more": SAMPLE}, "more"),
        ({"input": SAMPLE.astype("complex64")}, "wanted float32, got complex64"),
        (b"PK not a zip", "wanted an .npz file"),
        (b"words", "wanted an .npz file with one array a tensor: it begins with b'wo'"),
        (None, "cannot be read"),
    ],
    ids=["name", "shape", "none", "too many", "type", "garbage", "text", "missing"],
)
def test_inputs_that_do_not_fit_are_named(tmp_path: Path, values: Any, words: str) -> None:
    path = arrays(tmp_path, "in", **values) if isinstance(values, dict) else str(tmp_path / "in.npz")
    if isinstance(values, bytes):
        Path(path).write_bytes(values)
    with talk(tmp_path) as to:
        failure = to.fails(engine=str(plan(tmp_path)), batch=2, inputs=path)
    assert (failure["code"], words in failure["text"]) == ("inputs_invalid", True), failure


def test_only_the_top_of_the_process_takes_whatever_it_is() -> None:
    tree = ast.parse(RUNNER.read_text())
    broad = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and getattr(node.type, "id", None) in (None, "Exception")
        if node.type is None or isinstance(node.type, ast.Name)
    ]
    assert broad == ["main"]


def _at(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    place = data.rindex(mark) + offset
    return data[:place] + value + data[place + len(value) :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-30], "BadZipFile"),
        (lambda data: _at(data, b"PK\x01\x02", 8, b"\1"), "RuntimeError"),  # encrypted
        (lambda data: _at(data, b"PK\x01\x02", 10, b"\x63"), "NotImplementedError"),  # packed in an unknown way
        (lambda data: data[:60] + bytes(200) + data[260:], "error"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, input=SAMPLE)
    path.write_bytes(damage(path.read_bytes()))
    with talk(tmp_path) as to:
        failure = to.fails(engine=str(plan(tmp_path)), batch=2, inputs=str(path))
    assert failure["code"] == "inputs_invalid", failure
    assert said in failure["text"]


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"scores": np.zeros((2, 5))}, "the engine's outputs are output"),
        ({"output": np.zeros((2, 4))}, "expected values are [2, 4]"),
        ({"output": np.full((2, 5), np.nan)}, "not every expected value is finite"),
        ({"output": np.zeros((2, 5))}, "differs by"),
    ],
    ids=["name", "shape", "nan", "zeros"],
)
def test_outputs_that_cannot_be_compared_do_not_pass(tmp_path: Path, expected: Any, words: str) -> None:
    with talk(tmp_path) as to:
        failure = to.fails(engine=str(plan(tmp_path)), batch=2, outputs=arrays(tmp_path, "out", **expected))
    assert (failure["code"], words in failure["text"]) == ("output_mismatch", True), failure


# --- ONNX → plan ------------------------------------------------------------------------------------------------------

RANGE = {"input": {"min": [1, 3, 4, 4], "opt": [8, 3, 4, 4], "max": [16, 3, 4, 4]}}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_built_has_the_profile_and_loads(tmp_path: Path, version: str) -> None:
    out = tmp_path / "built.plan"
    spec: dict[str, Any] = {"plan_out": str(out), "profile": RANGE, "onnx": str(onnx(tmp_path, tensors=DYNAMIC))}
    spec |= {"workspace_bytes": 1 << 28, "tactic_sources": ["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]}
    if version[0] != "1" or version.startswith("10"):
        spec["precision"] = "fp16"
    with talk(tmp_path, tensorrt=version) as to:
        to.say("build", spec=spec)
        kind, done = to.answer()
        assert (kind, done["did"], done["plan"]) == ("D", "build", str(out)), done
        ready = to.load(engine=str(out), batch=16)
        to.end()
    assert done["engine_sha256"] == ready["engine_sha256"]
    built = json.loads(out.read_bytes().partition(b"\n")[2])["built"]
    flags = ["FP16"] if "precision" in spec else []
    assert built == {"flags": flags, "WORKSPACE": 1 << 28, "tactic_sources": 1 << 3 | 1 << 4}
    assert [path.name for path in tmp_path.glob("built*")] == ["built.plan"]


def test_a_shape_that_is_written_is_profile_enough(tmp_path: Path) -> None:
    spec = {"onnx": str(onnx(tmp_path, tensors=DYNAMIC)), "plan_out": str(tmp_path / "built.plan")}
    with talk(tmp_path) as to:
        to.say("build", spec={**spec, "batch": 4, "shapes": {"input": [-1, 3, 4, 4]}})
        assert to.answer()[0] == "D"
        to.end_without_gpu()
    assert b"[[[4, 3, 4, 4], [4, 3, 4, 4], [4, 3, 4, 4]]]" in (tmp_path / "built.plan").read_bytes()


@pytest.mark.parametrize(
    ("settings", "spec", "code", "words"),
    [
        ({}, {"onnx": "nothing.onnx"}, "plan_unreadable", "nothing.onnx: the ONNX file cannot be read"),
        ({}, {"onnx": "detector.plan"}, "build_failed", "Failed to parse ONNX model"),
        ({}, {"profile": {}, "shapes": {"input": [1, 3]}}, "bad_spec", "leaves dimensions open"),
        ({}, {"profile": {"image": RANGE["input"]}}, "bad_spec", "the network's inputs are input"),
        ({}, {"profile": {"input": {**RANGE["input"], "min": [9, 3, 4, 4]}}}, "bad_spec", "inconsistent"),
        ({}, {"profile": {"input": [1, 2]}}, "bad_spec", "spec.profile"),
        ({}, {"tactic_sources": ["MAGIC"]}, "bad_spec", "no tactic source MAGIC"),
        ({}, {"plan_out": "/proc/nowhere/built.plan"}, "build_failed", "cannot be written"),
        ({}, {"plan_out": None}, "bad_spec", "wanted two paths"),
        ({"tensorrt": "11.4.0.106"}, {"precision": "fp16"}, "bad_spec", "takes the precision from the ONNX file"),
        ({"faults": {"build": "none"}}, {}, "build_failed", "could not build"),
        ({"faults": {"build": "memory"}}, {}, "out_of_memory", "could not build"),
        ({"faults": {"refuses_profile": True}}, {}, "bad_spec", "does not take"),
        ({"faults": {"runtime": 35}}, {}, "no_gpu", "builder"),
    ],
    ids=str,
)
def test_a_build_that_fails_says_why(
    tmp_path: Path, settings: dict[str, Any], spec: dict[str, Any], code: str, words: str
) -> None:
    plan(tmp_path)
    given = {"onnx": str(onnx(tmp_path, tensors=DYNAMIC)), "plan_out": str(tmp_path / "built.plan"), "profile": RANGE}
    given |= {key: str(tmp_path / value) if key == "onnx" else value for key, value in spec.items()}
    with talk(tmp_path, **settings) as to:
        failure = to.fails("build", **given)
    assert (failure["code"], words in failure["text"]) == (code, True), failure
    assert not list(tmp_path.glob("built*"))


# --- life and death ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [{"import_holds_s": 1.8}, {"context_holds_s": 1.8}], ids=str)
def test_it_beats_while_a_library_holds_the_interpreter(tmp_path: Path, faults: dict[str, float]) -> None:
    with talk(tmp_path, faults=faults) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        to.end()
    assert to.beats >= 2


def test_it_beats_while_it_waits(tmp_path: Path) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        frames = [to.frame() for _ in range(2)]
        to.end()
    assert [frame.kind for frame in frames if frame] == ["B", "B"]


class Kept:
    """A wire that keeps what is told."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self.kinds: list[str] = []

    def tell(self, kind: str, document: object) -> None:
        self.kinds.append(kind)

    def send(self, kind: str, payload: bytes) -> None:
        self.kinds.append(kind)


def test_it_falls_silent_when_a_request_does_not_end(runner: ModuleType) -> None:
    wire = Kept()
    outbox = runner.Outbox(wire)
    outbox.turn()
    outbox.begun_ns = time.monotonic_ns()
    outbox.turn()
    assert wire.kinds == ["B", "B"], "a request in flight is no reason to be silent"
    outbox.begun_ns = 1
    outbox.turn()
    assert wire.kinds == ["B", "B"], "a hung GPU must not look alive"


def test_completions_go_in_frames_of_at_most_256(runner: ModuleType) -> None:
    wire = Kept()
    outbox = runner.Outbox(wire)
    outbox.done.extend((k, k, k + 1) for k in range(600))
    outbox.flush()
    assert wire.kinds == ["C"] * 3
    assert outbox.sent == 600


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("how", ["end", "eof", "sigterm"])
def test_it_ends_cleanly_and_frees_the_gpu(tmp_path: Path, how: str, *, is_running: bool) -> None:
    with talk(tmp_path) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        if is_running:
            to.start()
            to.count(1)
        if how == "end":
            to.say("end")
        elif how == "sigterm":
            to.process.terminate()
        left = to.end()
    assert (left["allocated"], left["pinned"], left["engines"]) == (0, 0, 0)


@pytest.mark.parametrize("moment", ["loading", "ready", "running"])
def test_killed_it_leaves_no_process_behind(tmp_path: Path, moment: str) -> None:
    with talk(tmp_path, faults={"load_s": 3600.0} if moment == "loading" else {}) as to:
        if moment == "loading":
            to.say("load", spec={"engine": str(plan(tmp_path)), "batch": 2})
            frame = to.frame()
            assert frame is not None
            assert frame.kind == "B"
        else:
            to.load(engine=str(plan(tmp_path)), batch=2)
        if moment == "running":
            to.start()
            to.count(1)
        to.process.kill()
        while to.frame() is not None:  # the end of the stream: nobody holds the pipe any more
            pass


@pytest.mark.parametrize("fault", ["kill_at", "crash_at"])
def test_a_death_under_load_is_the_end_of_the_stream(tmp_path: Path, fault: str) -> None:
    with talk(tmp_path, faults={fault: 10}) as to:
        to.load(engine=str(plan(tmp_path)), batch=2)
        to.start()
        while to.frame() is not None:
            pass
        assert to.process.wait(PATIENCE_S) in (-signal.SIGKILL, -signal.SIGSEGV)


def test_it_dies_with_its_parent_though_its_input_stays_open(tmp_path: Path) -> None:
    python = interpreter(tmp_path)
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent, str(python), str(RUNNER)], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"B"
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.read()  # returns at the end of the stream: the runner and its pacemaker are gone


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_it_leaves_when_its_parent_is_another_than_it_was_told(tmp_path: Path, how: str) -> None:
    python, other = interpreter(tmp_path), str(os.getpid() + 1)
    environment = {**os.environ, "JOULED_PARENT": other} if how == "environment" else dict(os.environ)
    more = ["--parent", other] if how == "argument" else []
    done = subprocess.run(
        [str(python), str(RUNNER), *more],
        input=b"",
        capture_output=True,
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_modules_that_lie_beside_it_are_not_its_libraries(tmp_path: Path) -> None:
    copy = tmp_path / "beside" / RUNNER.name
    copy.parent.mkdir()
    copy.write_bytes(RUNNER.read_bytes())
    (copy.parent / "numpy.py").write_text("raise SystemExit('shadowed')\n")
    (copy.parent / "trace.py").write_text("raise SystemExit('shadowed')\n")
    python = interpreter(tmp_path)
    said = json.dumps({"do": "load", "spec": {"engine": str(plan(tmp_path)), "batch": 2}}).encode() + b"\n"
    done = subprocess.run([str(python), str(copy)], input=said, capture_output=True, timeout=PATIENCE_S, check=False)
    kinds = [frame.kind for frame in FrameReader().feed(done.stdout)]
    assert (done.returncode, kinds.count("R")) == (0, 1), done.stderr


@pytest.mark.parametrize(
    ("index", "seen", "wanted"),
    [(0, None, None), (1, None, "1"), (1, "2,3", "3"), (0, "GPU-1234", "GPU-1234"), (2, "2,3", "no_gpu")],
)
def test_the_device_is_counted_among_those_that_are_visible(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, index: int, seen: str | None, wanted: str | None
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if wanted == "no_gpu":
        with pytest.raises(runner.RunnerError, match="no such GPU"):
            runner._choose_device(index)
        return
    runner._choose_device(index)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == wanted


def test_every_code_is_one_of_the_protocol() -> None:
    known = {"bad_spec", "plan_unreadable", "plan_invalid", "shape_outside_profile", "out_of_memory", "output_mismatch"}
    known |= {"no_tensorrt", "no_pycuda", "no_gpu", "cuda_error", "build_failed", "inputs_invalid", "internal"}
    places = {"RunnerError": 0, "failure": 0, "_ask": 1, "_tell": 1, "_imported": 1, "_arrays": 2}
    used = set()
    for node in ast.walk(ast.parse(RUNNER.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            code = node.args[places[name]] if name in places else None
            if isinstance(code, ast.Constant):
                used.add(code.value)
    assert used <= known


# --- behind the parent's own code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrival", [Arrival(), Arrival("rate", 400.0), Arrival("trace", times_s=(0.0, 0.001, 0.01), period_s=0.02)], ids=str
)
def test_its_parent_runs_two_of_them_together(tmp_path: Path, arrival: Arrival) -> None:
    parent = behind(tmp_path, arrival)
    variant = Variant(str(plan(tmp_path, tensors=DYNAMIC)), batch=4, instances=2)
    try:
        loaded = parent.load(variant)
        assert dict(loaded.versions)["tensorrt"] == VERSIONS[0]
        for _ in range(2):
            parent.begin()
            assert len(taken(parent, 30)) >= 30
            parent.pause()
    finally:
        parent.close()


@pytest.mark.parametrize(
    ("batch", "faults", "code"),
    [(17, {}, "shape_outside_profile"), (4, {"break_at": 1}, "cuda_error"), (4, {"runtime": 35}, "no_gpu")],
    ids=str,
)
def test_its_parent_names_what_it_names(tmp_path: Path, batch: int, faults: dict[str, Any], code: str) -> None:
    parent = behind(tmp_path, Arrival(), faults=faults)
    try:
        with pytest.raises(WorkloadError) as failure:
            parent.load(Variant(str(plan(tmp_path, tensors=DYNAMIC)), batch=batch))
    finally:
        parent.close()
    assert failure.value.code == code


def test_its_parent_builds_a_plan_and_asks_what_there_is(tmp_path: Path) -> None:
    argv = runner_argv(str(interpreter(tmp_path, tensorrt="10.3.0")))
    assert str(RUNNER) in argv
    spec = {"onnx": str(onnx(tmp_path, tensors=DYNAMIC)), "plan_out": str(tmp_path / "built.plan"), "profile": RANGE}
    assert build_plan(Processes(), argv=argv, spec=spec)["plan_bytes"] == (tmp_path / "built.plan").stat().st_size
    assert about(Processes(), argv=argv)["versions"]["tensorrt"] == "10.3.0"


def behind(folder: Path, arrival: Arrival, **settings: Any) -> ProcessRunner:
    argv = runner_argv(str(interpreter(folder, **settings)))
    return ProcessRunner(
        Processes(), arrival, argv=argv, make_spec=lambda variant: {"engine": variant.engine, "batch": variant.batch}
    )


def taken(parent: ProcessRunner, count: int) -> list[float]:
    """When so many requests had ended."""
    ends: list[float] = []
    until_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while len(ends) < count:
        assert time.monotonic() < until_s
        ends.extend(parent.take().end_s)
        pause.wait(0.01)
    return ends
