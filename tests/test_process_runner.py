"""Runner processes: loaded, begun together, taken from, paused; and whatever they do wrong named, and dead."""

from __future__ import annotations

import grp
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scripted_runner import PROGRAM
from tests.standin_python import interpreter, plan

from jouled.board.orphans import end_orphans, find_orphans
from jouled.board.process import MARK, Child, Processes, start_ticks
from jouled.errors import (
    ConfigError,
    NotPermittedError,
    ToolAbsentError,
    WorkloadDiedError,
    WorkloadError,
    WorkloadHungError,
)
from jouled.workload.child import Limits
from jouled.workload.process_runner import ProcessRunner, about, build_plan, runner_argv
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions
from jouletune.space import Variant

PATIENCE_S = 30.0
ARGV = (sys.executable, str(PROGRAM))
MARKED = f"test-{os.getpid()}-{start_ticks(os.getpid())}"


class CancelledByTest(Exception):
    """What a beat raises."""


def until(has_come: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if has_come():
            return
        pause.wait(0.005)
    raise AssertionError("it never came")


def make(arrival: Arrival | None = None, *, limits: Limits | None = None, **script: Any) -> ProcessRunner:
    def spec(variant: Variant) -> dict[str, Any]:
        return {"engine": variant.engine, "batch": variant.batch, "script": script}

    return ProcessRunner(Processes(mark=MARKED), arrival or Arrival(), argv=ARGV, make_spec=spec, limits=limits)


def taken(runner: ProcessRunner, count: int) -> Completions:
    """At least `count` requests."""
    parts: list[Completions] = []

    def enough() -> bool:
        parts.append(runner.take())
        return sum(len(part.end_s) for part in parts) >= count

    until(enough)
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("arrival_s", "start_s", "end_s")]
    return Completions(columns[0], columns[1], columns[2], parts[0].batch)


def begun(one: ProcessRunner) -> bool:
    """Never: begins until that fails."""
    one.begin()
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def runner() -> Iterator[Callable[..., ProcessRunner]]:
    made: list[ProcessRunner] = []

    def begin(*arguments: Any, **keys: Any) -> ProcessRunner:
        made.append(make(*arguments, **keys))
        return made[-1]

    yield begin
    for one in made:
        one.close()


Make = Callable[..., ProcessRunner]


def test_instances_are_loaded_and_what_they_say_is_kept(runner: Make) -> None:
    one = runner()
    loaded = one.load(Variant("/e.plan", 4, 2))
    assert dict(loaded.versions) == {"tensorrt": "8.5.3.1", "python": "3.8.10"}  # what is not there is absent
    assert len(set(one.pids)) == 2
    assert one.log_lines == ("[TRT] a warning", "[TRT] a warning")
    assert [ready["pid"] for ready in one.ready] == list(one.pids)


def test_completions_of_instances_are_one_stream_of_the_batch(runner: Make) -> None:
    one = runner()
    one.load(Variant(None, 4, 3))
    one.begin()
    done = taken(one, 60)
    assert done.batch == 4
    assert np.all(done.arrival_s <= done.start_s)
    assert np.all(done.start_s <= done.end_s)
    first = runner()
    first.load(Variant(None, 1, 2))
    first.begin()
    until(lambda: not np.any(np.diff(first.take().end_s) < 0))


def test_a_rate_is_shared_out_and_arrivals_are_the_due_times(runner: Make) -> None:
    one = runner(Arrival("rate", 200.0))
    one.load(Variant(None, 1, 2))
    one.begin()
    arrivals = np.sort(taken(one, 40).arrival_s)
    np.testing.assert_allclose(np.diff(arrivals[:40]), 0.005, atol=1e-6)


def test_queueing_counts_where_the_server_is_too_slow(runner: Make) -> None:
    one = runner(Arrival("rate", 400.0), service_s=0.005)
    one.load(Variant())
    one.begin()
    done = taken(one, 40)
    latency_s = done.end_s - done.arrival_s
    assert latency_s[39] > 39 * (0.005 - 0.0025)
    assert np.all(np.diff(latency_s) > 0.0)


def test_a_trace_is_played(runner: Make) -> None:
    one = runner(Arrival("trace", times_s=(0.0, 0.004, 0.01), period_s=0.02), service_s=0.0005)
    one.load(Variant())
    one.begin()
    arrivals = taken(one, 9).arrival_s[:9]
    np.testing.assert_allclose(
        arrivals - arrivals[0], [0, 0.004, 0.01, 0.02, 0.024, 0.03, 0.04, 0.044, 0.05], atol=1e-6
    )


def test_a_pause_leaves_what_has_ended_to_be_taken_and_the_next_load_begins_anew(runner: Make) -> None:
    one = runner()
    one.load(Variant())
    one.begin()
    taken(one, 3)
    one.pause()
    one.pause()
    left = one.take()
    assert len(one.take().end_s) == 0
    one.begin()
    again = taken(one, 3)
    assert again.arrival_s[0] > (left.end_s[-1] if len(left.end_s) else 0.0)
    for _ in range(20):  # a load that is asked for twice begins anew: what the first has under way is not the second's
        one.begin()
        taken(one, 1)
    one.close()
    one.close()


def test_what_is_loaded_already_is_not_loaded_again(runner: Make) -> None:
    one = runner()
    one.load(Variant(None, 1))
    pids = one.pids
    one.load(Variant(None, 1))
    assert one.pids == pids
    one.load(Variant(None, 2))
    assert one.pids != pids
    assert not any(is_alive(pid) for pid in pids)


def test_nothing_runs_before_it_is_loaded(runner: Make) -> None:
    one = runner()
    one.pause()
    for call in (one.begin, one.take):
        with pytest.raises(WorkloadDiedError, match="nothing is loaded"):
            call()


def test_memory_is_asked_for_once_and_judged_before_any_instance_starts() -> None:
    asked: list[tuple[int, int]] = []

    def check(numbers: Any, instances: int) -> None:
        asked.append((numbers["plan_bytes"], instances))
        if instances > 2:
            raise WorkloadError("too large")

    started: list[Child] = []
    one = ProcessRunner(
        Processes(on_start=started.append),
        Arrival(),
        argv=ARGV,
        make_spec=lambda variant: {"batch": variant.batch},
        check_fits=check,
    )
    one.load(Variant(None, 1, 1))
    one.load(Variant(None, 1, 2))
    with pytest.raises(WorkloadError, match="too large"):
        one.load(Variant(None, 1, 3))
    assert asked == [(1000, 1), (1000, 2), (1000, 3)]
    assert len(started) == 1 + 1 + (1 + 2) + 1  # one to ask, then the instances; what is free is asked each time
    assert one.pids == ()
    assert not any(is_alive(child.pid) for child in started)
    one.close()


def test_memory_of_a_discrete_gpu_that_others_have_taken_since_is_not_counted_on() -> None:
    free: list[int] = []
    one = ProcessRunner(
        Processes(),
        Arrival(),
        argv=(*ARGV, json.dumps({"free_bytes": 500})),
        make_spec=lambda variant: {"batch": variant.batch},
        check_fits=lambda numbers, _: free.append(numbers["free_bytes"]),
    )
    one.load(Variant(None, 1, 1))
    one.load(Variant(None, 1, 2))
    one.close()
    assert free == [9000, 500]


# --- what goes wrong ----------------------------------------------------------------------------------------

MOMENTS = ("load", "ready", "start", "completions:1", "completions:5", "stop")
DEEDS: dict[str, tuple[type[WorkloadError], str]] = {
    "exit:3": (WorkloadDiedError, r"ended with exit code 3 \| scripted to end"),
    "exit:0": (WorkloadDiedError, r"ended with exit code 0 \| scripted to end"),
    "signal:9": (WorkloadDiedError, r"was ended by signal 9"),
    "signal:11": (WorkloadDiedError, r"was ended by signal 11"),
    "half_frame": (WorkloadDiedError, r"exit code 0 in the middle of a frame"),
    "garbage": (WorkloadDiedError, r"wanted a frame .* got type b'H'"),
    "silence": (WorkloadHungError, r"was silent for 2 s and was killed"),
    "error:cuda_error": (WorkloadError, r"it went wrong \| \[TRT\] line one \| \[TRT\] line two"),
    "unasked": (WorkloadDiedError, r"answers 'D' where|says that None requests ended"),
}
QUICK = Limits(silence_s=2.0, load_s=20.0, stop_s=20.0, end_s=5.0)


def act_until_it_fails(one: ProcessRunner, seen: list[int] | None = None) -> None:
    one.load(Variant(None, 1, 2))
    (seen if seen is not None else []).extend(one.pids)
    one.begin()
    taken(one, 30)
    one.pause()
    one.take()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("deed", DEEDS)
def test_whatever_it_does_wrong_at_any_message_is_named_and_all_of_them_end(
    runner: Make, moment: str, deed: str
) -> None:
    kind, text = DEEDS[deed]
    one = runner(limits=QUICK if deed == "silence" else None, at=moment, do=deed)
    seen: list[int] = []
    with pytest.raises(kind, match=text) as caught:
        act_until_it_fails(one, seen)
    assert type(caught.value) is WorkloadError or isinstance(caught.value, WorkloadDiedError | WorkloadHungError)
    if deed == "error:cuda_error":
        assert caught.value.code == "cuda_error"
        assert isinstance(caught.value, WorkloadDiedError) == (moment not in ("load", "ready"))
    assert one.pids == ()
    assert not any(is_alive(pid) for pid in seen)
    assert find_orphans(MARKED, ()) == ()


@pytest.mark.parametrize("moment", ["load", "ready", "completions:3"])
def test_after_a_failure_it_can_be_loaded_again(moment: str) -> None:
    scripts: list[dict[str, Any]] = [{"at": moment, "do": "signal:9"}, {}]

    def spec(variant: Variant) -> dict[str, Any]:
        return {"batch": variant.batch, "script": scripts[0]}

    one = ProcessRunner(Processes(), Arrival(), argv=ARGV, make_spec=spec)
    with pytest.raises(WorkloadDiedError, match="signal 9"):
        act_until_it_fails(one)
    del scripts[0]
    act_until_it_fails(one)
    one.close()


def test_a_death_while_nobody_looks_is_told_at_the_next_begin(runner: Make) -> None:
    one = runner()
    one.load(Variant())
    os.kill(one.pids[0], signal.SIGKILL)
    with pytest.raises(WorkloadDiedError, match="signal 9") as caught:
        until(lambda: begun(one))
    assert "dmesg" in caught.value.hint


def test_one_that_hangs_takes_its_siblings_with_it(runner: Make) -> None:
    one = runner(limits=QUICK)
    one.load(Variant(None, 1, 2))
    pids = one.pids
    one.begin()
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(WorkloadHungError, match=f"runner 1 of 2 .pid {pids[0]}. was silent"):
        until(lambda: one.take() is None)
    assert not any(is_alive(pid) for pid in pids)


def test_one_that_beats_and_never_gets_ready_has_a_deadline(runner: Make) -> None:
    one = runner(limits=Limits(silence_s=5.0, load_s=0.3), at="load", do="stop_reading")
    with pytest.raises(WorkloadHungError, match=r"lives, and has not done what it was asked to in 0\.3 s"):
        one.load(Variant())


def test_one_that_does_not_read_is_named(runner: Make) -> None:
    one = runner(limits=QUICK, at="ready", do="stop_reading")
    one.load(Variant())
    with pytest.raises(WorkloadDiedError, match="does not read what it is told any more"):
        until(lambda: begun(one))


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        ("future", "ends .* in the future"),
        ("past", "arrived .* before the load began"),
        ("backwards", "before it started"),
        ("early", "before it arrived"),
        ("overflow", "lies about time"),
    ],
)
def test_a_runner_that_lies_about_time_is_killed(runner: Make, lie: str, text: str) -> None:
    one = runner(lie=lie)
    one.load(Variant(None, 1, 2))
    pids = one.pids
    one.begin()
    with pytest.raises(WorkloadDiedError, match=text) as caught:
        until(lambda: one.take() is None)
    assert caught.value.code == "wrong_times"
    assert not any(is_alive(pid) for pid in pids)


def test_a_runner_that_hides_queueing_is_killed(runner: Make) -> None:
    one = runner(Arrival("rate", 400.0), service_s=0.005, lie="no_queueing")
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadDiedError, match="was due"):
        until(lambda: one.take() is None)


def test_a_runner_that_counts_otherwise_than_it_told_is_killed(runner: Make) -> None:
    one = runner(uncounted=2)
    one.load(Variant())
    one.begin()
    taken(one, 3)
    with pytest.raises(WorkloadDiedError, match=r"says that .* requests ended"):
        one.pause()


def test_an_engine_that_is_exchanged_on_the_way_is_refused(runner: Make) -> None:
    ready = {"engine_sha256": "5c" * 32}
    one = runner(ready=ready)
    one.load(Variant("/e.plan", 1, 1))
    one.load(Variant("/e.plan", 1, 2))
    ready["engine_sha256"] = "77" * 32
    with pytest.raises(WorkloadError, match=r"/e\.plan: another file than it was .* now 7777") as caught:
        one.load(Variant("/e.plan", 1, 1))
    assert caught.value.code == "plan_changed"
    assert one.pids == ()
    one.load(Variant("/other.plan", 1, 1))


@pytest.mark.parametrize(
    ("ready", "text"),
    [({"batch": 2}, "batch: wanted 1, got 2"), ({"protocol": 9}, "protocol: wanted 1, got 9")],
)
def test_one_that_has_loaded_another_thing_is_refused(runner: Make, ready: dict[str, Any], text: str) -> None:
    one = runner(ready=ready)
    with pytest.raises(WorkloadError, match=text) as caught:
        one.load(Variant())
    assert caught.value.code == "bad_ready"
    assert one.pids == ()


def test_what_the_beat_raises_ends_a_load() -> None:
    def beat() -> None:
        raise CancelledByTest

    script = {"at": "load", "do": "silence"}
    one = ProcessRunner(
        Processes(mark=MARKED),
        Arrival(),
        argv=ARGV,
        make_spec=lambda variant: {"batch": 1, "script": script},
        beat=beat,
        limits=Limits(silence_s=20.0, end_s=0.5),
    )
    with pytest.raises(CancelledByTest):
        one.load(Variant())
    assert one.pids == ()
    assert find_orphans(MARKED, ()) == ()


def test_a_plan_is_built_by_a_runner_and_a_failure_told() -> None:
    spec: dict[str, Any] = {"onnx": "/m.onnx", "plan_out": "/p.plan", "script": {}}
    done = build_plan(Processes(), argv=ARGV, spec=spec)
    assert (done["did"], done["plan"]) == ("build", "/p.plan")
    assert about(Processes(), argv=ARGV)["did"] == "about"
    spec["script"] = {"at": "build", "do": "error:build_failed"}
    with pytest.raises(WorkloadError, match="it went wrong") as caught:
        build_plan(Processes(), argv=ARGV, spec=spec)
    assert caught.value.code == "build_failed"


def test_the_runner_is_started_by_its_path_and_knows_its_parent() -> None:
    python, *options = runner_argv("/usr/bin/python3")
    assert python == "/usr/bin/python3"
    assert Path(options[1]).is_file()
    assert options[2:] == ["--parent", str(os.getpid())]


# --- the TensorRT runner itself, on stand-ins for TensorRT and pycuda ------------------------------------------


@pytest.mark.parametrize(
    "arrival",
    [Arrival(), Arrival("rate", 300.0), Arrival("trace", times_s=(0.0, 0.004, 0.005), period_s=0.012)],
)
def test_the_tensorrt_runner_keeps_to_all_of_it(tmp_path: Path, arrival: Arrival) -> None:
    engine = str(plan(tmp_path))
    numbers: list[Any] = []
    one = ProcessRunner(
        Processes(mark=MARKED),
        arrival,
        argv=runner_argv(str(interpreter(tmp_path))),
        make_spec=lambda variant: {"engine": engine, "batch": variant.batch},
        check_fits=lambda told, instances: numbers.append((told["plan_bytes"], instances)),
    )
    try:
        one.load(Variant(engine, 2, 2))
        for _ in range(2):
            one.begin()
            done = taken(one, 40)
            assert done.batch == 2
            one.pause()
    finally:
        one.close()
    assert numbers == [(Path(engine).stat().st_size, 2)]
    assert find_orphans(MARKED, ()) == ()


# --- how a child is started ---------------------------------------------------------------------------------

SHOWS = """
import json, os, sys
fds = [name for name in os.listdir("/proc/self/fd")]
print(json.dumps({"env": dict(os.environ), "fds": len(fds), "sid": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
                  "uid": os.getuid(), "gid": os.getgid(), "groups": sorted(os.getgroups())}))
"""


def shown(processes: Processes, **keys: Any) -> dict[str, Any]:
    spawned = processes.spawn((sys.executable, "-I", "-S", "-c", SHOWS), **keys)
    with open(spawned.stdout, "rb", closefd=False) as out:
        told = out.read()
    assert spawned.wait(PATIENCE_S) == 0
    spawned.release()
    spawned.release()
    found: dict[str, Any] = json.loads(told)
    return found


def test_a_child_has_a_clean_environment_and_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib")
    started: list[Child] = []
    with open(tmp_path / "open", "wb") as file:
        os.set_inheritable(file.fileno(), True)
        told = shown(Processes(mark="j1", on_start=started.append), environment={"MORE": "x"})
    assert {name for name in told["env"] if not name.startswith("LC_")} == {
        *("PATH", "HOME", MARK, "LD_LIBRARY_PATH", "MORE"),
    }
    assert told["env"][MARK] == "j1"
    assert told["fds"] == 4  # 0, 1, 2 and the folder that it lists
    assert (told["sid"], told["cwd"]) == (told["pid"], "/")
    assert [child.pid for child in started] == [told["pid"]]


def test_a_child_of_another_user_has_no_rights_of_ours_but_the_gpus_groups() -> None:
    nobody = pwd.getpwnam("nobody")
    if os.geteuid() != 0:
        with pytest.raises(NotPermittedError, match="needs root"):
            Processes().spawn(ARGV, user="nobody")
        return
    spawned = Processes().spawn(("/bin/sh", "-c", "id -u; id -g; id -G; echo $HOME"), user="nobody")
    with open(spawned.stdout, "rb", closefd=False) as out:
        uid, gid, groups, home = out.read().decode().splitlines()
    assert spawned.wait(PATIENCE_S) == 0
    spawned.release()
    wanted = {group.gr_gid for group in grp.getgrall() if group.gr_name in ("video", "render")}
    assert (int(uid), int(gid), home) == (nobody.pw_uid, nobody.pw_gid, nobody.pw_dir)
    assert {int(each) for each in groups.split()} == wanted | {nobody.pw_gid}


def test_whom_a_child_cannot_be_started_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such user"):
        Processes().spawn(ARGV, user="nobody-of-this-name")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(NotPermittedError, match="needs root"):
        Processes().spawn(ARGV, user="nobody")


def test_what_cannot_be_started_is_said() -> None:
    with pytest.raises(ToolAbsentError, match="no such program"):
        Processes().spawn(("nothing-of-this-name",))
    with pytest.raises(ToolAbsentError, match="cannot be started"):
        Processes().spawn(("/nothing/of/this/name",))


FORKS = "import os, sys, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)"


def test_all_that_a_child_has_started_dies_with_it() -> None:
    spawned = Processes().spawn((sys.executable, "-c", FORKS))
    with open(spawned.stdout, "rb", closefd=False) as out:
        pids = [int(out.readline()), int(out.readline())]
    os.kill(spawned.pid, signal.SIGKILL)  # it alone
    assert spawned.wait(PATIENCE_S) == -signal.SIGKILL
    until(lambda: not any(is_alive(pid) for pid in pids))
    spawned.kill()
    spawned.release()


PARENT = """
import sys
from jouled.board.process import Processes
from jouled.workload.process_runner import ProcessRunner
from jouled.workload.runner import Arrival
from jouletune.space import Variant
runner = ProcessRunner(Processes(mark=sys.argv[1]), Arrival(), argv=sys.argv[2:],
                       make_spec=lambda v: {"batch": 1, "script": {"at": "ready", "do": "silence"}})
runner.load(Variant())
print(runner.pids[0], flush=True)
sys.stdin.read()
"""


def test_a_child_whose_parent_was_killed_is_found_by_its_mark() -> None:
    command = [sys.executable, "-c", PARENT, MARKED, *ARGV]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert end_orphans(MARKED, ()) == (pid,)
