"""Any program as a workload: its lines are its inferences, paced by itself or by us."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.board.process import Processes, start_ticks
from jouled.config.tables import WorkloadEntry
from jouled.errors import FrameError, WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.workload.child import Limits
from jouled.workload.command import CommandRunner
from jouled.workload.lines import Line, LineReader, parse_line
from jouled.workload.marks import FileWatch, differing, what_changed, workload_marks
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions
from jouletune.space import Variant

PATIENCE_S = 30.0
MARKED = f"test-{os.getpid()}-{start_ticks(os.getpid())}"
LOOPS = "import time\nwhile True: time.sleep(0.003); print('ok', flush=True)"
ANSWERS = "import sys, time\nfor line in sys.stdin: time.sleep({service_s}); print('done', flush=True)"
RATE = Arrival("rate", 100.0)


def until(has_come: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if has_come():
            return
        pause.wait(0.005)
    raise AssertionError("it never came")


Make = Callable[..., CommandRunner]


@pytest.fixture
def run() -> Iterator[Make]:
    made: list[CommandRunner] = []

    def begin(code: str, arrival: Arrival | None = None, **keys: Any) -> CommandRunner:
        argv = (sys.executable, "-S", "-c", code)
        made.append(CommandRunner(Processes(mark=MARKED), arrival or Arrival(), argv=argv, **keys))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def taken(runner: CommandRunner, count: int) -> Completions:
    """At least `count` requests."""
    parts: list[Completions] = []

    def enough() -> bool:
        parts.append(runner.take())
        return sum(len(part.end_s) for part in parts) >= count

    until(enough)
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("arrival_s", "start_s", "end_s")]
    return Completions(columns[0], columns[1], columns[2], parts[0].batch)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- back to back -------------------------------------------------------------------------------------------


def test_each_line_is_an_inference_and_its_latency_the_gap_before_it(run: Make) -> None:
    one = run(LOOPS, inference_name="token")
    loaded = one.load(Variant(None, 4, 1))
    assert loaded.inference_name == "token"
    one.begin()
    done = taken(one, 50)
    assert done.batch == 4
    latency_s = done.end_s - done.arrival_s
    assert float(np.median(latency_s)) >= 0.003
    np.testing.assert_allclose(done.arrival_s[1:], done.end_s[:-1])


def test_between_loads_it_stands_still(run: Make) -> None:
    one = run(LOOPS)
    one.load(Variant())
    (pid,) = one.pids
    until(lambda: state_of(pid) == "T")
    one.begin()
    taken(one, 5)
    one.pause()
    until(lambda: state_of(pid) == "T")
    one.take()
    before_s = one.take().end_s
    assert len(before_s) == 0
    begun_s = time.monotonic()
    one.begin()
    assert np.all(taken(one, 5).arrival_s >= begun_s)  # what it stood still is no latency


def test_instances_know_what_they_are(run: Make, tmp_path: Path) -> None:
    out = tmp_path / "env"
    tells = (
        f"import os\nopen({str(out)!r} + os.environ['JOULED_INSTANCE'], 'w').write(os.environ['JOULED_BATCH'] + '/' "
    )
    one = run(f"{tells} + os.environ['JOULED_INSTANCES'])\n{LOOPS}", environment={"MORE": "1"})
    one.load(Variant(None, 8, 2))
    assert [Path(f"{out}{number}").read_text() for number in (0, 1)] == ["8/2", "8/2"]
    one.begin()
    until(lambda: len(set(one.pids)) == 2 and len(one.take().end_s) > 4)


def test_where_memory_is_short_it_goes_first(run: Make) -> None:
    one = run(LOOPS)
    one.load(Variant())
    assert Path(f"/proc/{one.pids[0]}/oom_score_adj").read_text().strip() == "1000"


def test_a_line_may_stand_for_several(run: Make) -> None:
    one = run("import time\nwhile True: time.sleep(0.04); print('{\"items\": 10}', flush=True)")
    one.load(Variant())
    one.begin()
    done = taken(one, 30)
    assert len(done.end_s) % 10 == 0
    np.testing.assert_allclose(np.diff(done.end_s[:10]), np.diff(done.end_s[:10])[0], rtol=1e-5)


@pytest.mark.parametrize(("batch", "items", "requests"), [(4, 4, 1), (4, 8, 2), (1, 8, 8)])
def test_items_are_inferences_whatever_the_batch(run: Make, batch: int, items: int, requests: int) -> None:
    one = run(f"import time\nwhile True: time.sleep(0.02); print('{{\"items\": {items}}}', flush=True)")
    one.load(Variant(batch=batch))
    one.begin()
    done = taken(one, 8 * requests)
    lines_s = np.median(np.diff(done.end_s[::requests]))
    assert lines_s == pytest.approx(0.02, rel=0.5)
    assert done.batch * requests == items


def test_part_of_a_request_is_an_error(run: Make) -> None:
    one = run("import time\nwhile True: time.sleep(0.02); print('{\"items\": 6}', flush=True)")
    one.load(Variant(batch=4))
    one.begin()
    with pytest.raises(WorkloadDiedError, match=r"6 items, and a request has 4 \(JOULED_BATCH\)"):
        taken(one, 8)


OWN = """
import json, time
while True:
    began = time.monotonic_ns()
    time.sleep(0.002)
    print(json.dumps({"start_ns": began, "end_ns": time.monotonic_ns()}), flush=True)
    time.sleep(0.01)
"""


def test_a_program_may_tell_its_own_times(run: Make) -> None:
    one = run(OWN)
    one.load(Variant())
    one.begin()
    done = taken(one, 10)
    gaps_s = np.diff(done.end_s)
    assert np.all((done.end_s - done.arrival_s)[1:] < gaps_s)  # and not the whole gap
    assert np.all(done.start_s[1:] > done.end_s[:-1])


def test_times_that_cannot_be_are_a_lie(run: Make) -> None:
    one = run(OWN.replace("time.monotonic_ns()})", "time.time_ns()})"))  # the wrong clock
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadDiedError, match=r"lies about time: .* in the future"):
        until(lambda: one.take() is None)
    assert one.pids == ()


SENDS = """
import os, socket, time
print("a banner"); print("and chatter", flush=True)
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); out.connect(os.environ["JOULED_SOCKET"])
while True:
    time.sleep(0.004); out.send(b"x"); print("chatter", flush=True)
"""


def test_inferences_may_come_as_datagrams_and_then_lines_are_text(run: Make) -> None:
    one = run(SENDS)
    one.load(Variant())
    one.begin()
    taken(one, 3)
    done = taken(one, 20)
    assert float(np.median(np.diff(done.end_s))) > 0.003


def test_its_socket_goes_with_it(run: Make) -> None:
    one = run(f"import os, sys\nprint(os.environ['JOULED_SOCKET'], file=sys.stderr, flush=True)\n{LOOPS}")
    one.load(Variant())
    (folder,) = {Path(line.split()[-1]).parent for line in sockets() if "jouled-" in line}
    found = folder.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o711)  # entered by all, written to by us alone
    one.close()
    assert not folder.exists()


def sockets() -> list[str]:
    ours = str(os.getpid())
    found = []
    for descriptor in Path(f"/proc/{ours}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inode = target[8:-1]
            lines = Path("/proc/net/unix").read_text().splitlines()
            found += [line for line in lines if f" {inode} " in line and ".sock" in line]
    return found


# --- paced by us --------------------------------------------------------------------------------------------


def test_at_a_rate_each_request_comes_when_it_is_due(run: Make) -> None:
    one = run(ANSWERS.format(service_s=0.002), RATE)
    one.load(Variant())
    one.begin()
    done = taken(one, 30)
    np.testing.assert_allclose(np.diff(done.arrival_s), 0.01, atol=1e-6)
    assert np.all(done.end_s - done.arrival_s >= 0.002)


def test_at_a_rate_that_is_too_high_queueing_counts(run: Make) -> None:
    one = run(ANSWERS.format(service_s=0.02), RATE)
    one.load(Variant())
    one.begin()
    done = taken(one, 20)
    latency_s = done.end_s - done.arrival_s
    assert latency_s[19] > 19 * 0.01
    assert np.all(done.start_s[1:] >= done.end_s[:-1])
    one.pause()  # what waits is dropped: the next load begins with an empty queue
    one.begin()
    assert taken(one, 1).end_s[0] < taken(one, 1).end_s[0]


def test_two_instances_share_a_trace(run: Make) -> None:
    one = run(ANSWERS.format(service_s=0.001), Arrival("trace", times_s=(0.0, 0.01, 0.02), period_s=0.03))
    one.load(Variant(None, 1, 2))
    one.begin()
    arrivals = np.sort(taken(one, 24).arrival_s)[:20]
    np.testing.assert_allclose(np.diff(arrivals), 0.01, atol=1e-6)


def test_lines_that_nobody_asked_for_are_named(run: Make) -> None:
    one = run(LOOPS, RATE)
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadDiedError, match="writes more lines than it was asked for") as caught:
        until(lambda: one.take() is None)
    assert "back_to_back" in caught.value.hint


def test_a_request_that_is_not_answered_is_a_hang(run: Make) -> None:
    one = run("print(input(), flush=True)\nimport time; time.sleep(600)", RATE, limits=Limits(silence_s=0.3))
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadHungError, match=r"has not answered for 0\.3 s"):
        until(lambda: one.take() is None)
    assert one.pids == ()


def test_a_request_that_is_not_answered_before_the_pause_is_a_hang(run: Make) -> None:
    one = run("print(input(), flush=True)\nimport time; time.sleep(600)", RATE, limits=Limits(silence_s=0.3))
    one.load(Variant())
    one.begin()
    until(lambda: any(getattr(child, "_due_ns") for child in one._instances.children))  # noqa: B009
    with pytest.raises(WorkloadHungError, match="has not answered"):
        one.pause()


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_a_silent_program_is_killed(run: Make) -> None:
    code = "import time\nfor _ in range(40): time.sleep(0.005); print('ok', flush=True)\ntime.sleep(600)"
    one = run(code, limits=Limits(silence_s=0.4))
    one.load(Variant())
    (pid,) = one.pids
    one.begin()
    with pytest.raises(WorkloadHungError, match=r"was silent for 0\.4 s"):
        until(lambda: one.take() is None)
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_never_says_anything_is_not_loaded(run: Make) -> None:
    one = run("import time; time.sleep(600)", limits=Limits(load_s=0.3, end_s=0.5))
    with pytest.raises(WorkloadHungError, match="has written no line within") as caught:
        one.load(Variant())
    assert "flushes" in caught.value.hint


def test_a_program_that_ends_is_named_with_its_last_words(run: Make) -> None:
    one = run("import sys; print('no camera', file=sys.stderr); sys.exit(4)")
    with pytest.raises(WorkloadDiedError, match=r"ended with exit code 4 \| no camera"):
        one.load(Variant())


def test_a_program_that_is_not_there_is_named() -> None:
    one = CommandRunner(Processes(mark=MARKED), Arrival(), argv=("/opt/app/nothing",))
    with pytest.raises(WorkloadDiedError, match=r"nothing .*exit code 127.*not found"):
        one.load(Variant())
    one.close()


def test_buffered_lines_are_named_as_what_they_are(run: Make) -> None:
    code = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01); print('ok' * 200)"
    one = run(code)
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadDiedError, match="they were buffered") as caught:
        until(lambda: one.take() is None)
    assert "flush" in caught.value.hint


def test_it_is_asked_to_end_before_it_is_killed(run: Make, tmp_path: Path) -> None:
    out = tmp_path / "ended"
    handles = f"import signal, sys\nsignal.signal(15, lambda *_: (open({str(out)!r}, 'w').close(), sys.exit(0)))\n"
    one = run(handles + LOOPS)
    one.load(Variant())
    one.close()
    assert out.exists()


def test_one_that_does_not_end_is_killed(run: Make) -> None:
    one = run("import signal\nsignal.signal(15, signal.SIG_IGN)\n" + LOOPS, limits=Limits(end_s=0.2))
    one.load(Variant())
    (pid,) = one.pids
    one.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_death_while_it_stands_still_is_told_at_the_next_begin(run: Make) -> None:
    one = run(LOOPS)
    one.load(Variant())
    os.kill(one.pids[0], signal.SIGKILL)

    def begun() -> bool:
        one.begin()
        return False

    with pytest.raises(WorkloadDiedError, match="signal 9"):
        until(begun)


def test_another_program_is_another_workload(tmp_path: Path) -> None:
    script = tmp_path / "app"
    script.write_text("1")

    def marks(*arguments: str) -> dict[str, str]:
        return workload_marks(WorkloadEntry(kind="command", argv=(str(script), *arguments)), Arrival())

    before = marks("--loop")
    assert list(differing(before, marks("--loops"))) == ["program"]
    script.write_text("2")
    assert list(differing(before, marks("--loop"))) == [str(script)]


@pytest.mark.parametrize("form", ["{}", "--model={}", "relative"])
def test_another_content_of_a_file_that_an_argument_names_is_another_workload(tmp_path: Path, form: str) -> None:
    script = tmp_path / "bench.py"
    script.write_text("1")
    told = str(script.relative_to("/")) if form == "relative" else form.format(script)
    argv = ("/usr/bin/env", "-u", "X=1", told, str(tmp_path), "\0", "x" * 9000)
    entry = WorkloadEntry(kind="command", arrival="back_to_back", argv=argv)
    before, watch = workload_marks(entry, Arrival()), FileWatch()
    assert list(differing(before, watch.marks(entry, before))) == []
    script.write_text("2")
    assert list(differing(before, workload_marks(entry, Arrival()))) == [str(script)]
    assert list(differing(before, watch.marks(entry, before))) == [str(script)]
    script.unlink()
    assert what_changed(str(script), before, workload_marks(entry, Arrival())) == f"{script} is gone"


def test_a_file_of_an_argument_that_may_not_be_seen_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bench.py"
    script.write_text("1")
    entry = WorkloadEntry(kind="command", arrival="back_to_back", argv=("/usr/bin/env", str(script)))
    before = workload_marks(entry, Arrival())
    real = os.stat

    def refuse(path: Any, **keys: Any) -> os.stat_result:
        if str(path) == str(script):
            raise PermissionError(13, "Permission denied", path)
        return real(path, **keys)

    monkeypatch.setattr(os, "stat", refuse)
    assert list(differing(before, FileWatch().marks(entry, before))) == []


def example(language: str) -> str:
    text = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text()
    return text.partition(f"```{language}\n")[2].partition("```")[0]


@pytest.mark.parametrize("arrival", [Arrival(), RATE])
def test_the_example_of_the_documentation_works(run: Make, tmp_path: Path, arrival: Arrival) -> None:
    (tmp_path / "my_app.py").write_text(
        "import time\nclass model:\n    @staticmethod\n    def infer(): time.sleep(0.002)\n"
    )
    code = example("python")
    assert len(code.splitlines()) <= 10
    one = run(code, arrival, environment={"PYTHONPATH": str(tmp_path)})
    one.load(Variant())
    one.begin()
    assert float(np.median((done := taken(one, 20)).end_s - done.start_s)) >= 0.002


# --- lines --------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_lines_come_out_whole_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    reader, edges = LineReader(), [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [line for low, high in pairwise(edges) for line in reader.feed(data[low:high])]
    assert found == [line for line in data.split(b"\n")[:-1] if line.strip()]


def test_a_line_without_an_end_is_refused() -> None:
    reader = LineReader()
    assert reader.feed(b"x" * 65536) == []
    with pytest.raises(FrameError, match="lines of at most"):
        reader.feed(b"x")


@given(st.binary(max_size=60))
def test_any_text_is_one_inference_or_an_error(text: bytes) -> None:
    try:
        assert (parse_line(text).items or 1) >= 1
    except FrameError:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("ok", Line()),
        ("{not json", Line()),
        ("{}", Line()),
        ('{"items": 8}', Line(8)),
        ('{"start_ns": 1, "end_ns": 2}', Line(None, None, 1, 2)),
        ('{"arrival_ns": 0, "start_ns": 1, "end_ns": 2, "more": []}', Line(None, 0, 1, 2)),
    ],
)
def test_what_a_line_may_say(told: str, wanted: Line) -> None:
    assert parse_line(told.encode()) == wanted


@pytest.mark.parametrize(
    "told",
    [
        '{"items": 0}',
        '{"items": true}',
        '{"items": 1.5}',
        '{"items": 1000000}',
        '{"end_ns": 2}',
        '{"start_ns": 1, "end_ns": "2"}',
        '{"start_ns": -1, "end_ns": 2}',
        f'{{"start_ns": 1, "end_ns": {1 << 63}}}',
    ],
)
def test_what_a_line_says_wrongly_is_an_error(told: str) -> None:
    with pytest.raises(FrameError, match="wanted"):
        parse_line(told.encode())


def test_an_error_of_the_socket_is_said(run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: f"/nothing/of/this/name/{prefix}")
    with pytest.raises(WorkloadError, match="no socket for the program's datagrams"):
        run(LOOPS).load(Variant())
