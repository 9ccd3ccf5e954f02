"""The workload that the configuration names: its variants, its runner, the plans built for it, what it holds for."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standin_python import DYNAMIC, STATIC, interpreter, onnx, plan

from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.process import BOARD_PATH, Processes
from jouled.board.sysfs import Sysfs
from jouled.cli.arguments import make_parser
from jouled.cli.machine import machine_host, machine_site
from jouled.cli.site import arrival_of, open_site, read_config
from jouled.config import Config, load
from jouled.errors import ConfigError, WorkloadError, WorkloadTooLargeError
from jouled.workload import users
from jouled.workload.configured import ConfiguredWorkload
from jouled.workload.marks import RUNTIME, content_mark, workload_marks
from jouled.workload.plans import KEPT, PlanCache, profile_of
from jouled.workload.runner import Arrival
from jouled.workload.users import runner_user
from jouletune.space import Variant


class Cancelled(Exception):
    """What a beat raises."""


class Bench:
    """A folder with engines, an interpreter with the stand-in TensorRT, and a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = interpreter(folder)
        self.host = Host(Sysfs(), Processes(), SystemClock(), folder / "state")
        self.beats = 0
        self._made: list[ConfiguredWorkload] = []

    def config(self, text: str, *, more: str = "") -> Config:
        path = self.folder / "config.toml"
        path.write_text(f'[workloads.detector]\narrival = "back_to_back"\n{text}\n{more}')
        return load(path)

    def workload(self, text: str, *, more: str = "", arrival: Arrival | None = None) -> ConfiguredWorkload:
        config = self.config(f'python = "{self.python}"\n{text}', more=more)
        entry = config.chosen()
        assert entry is not None
        made = ConfiguredWorkload(self.host, config, entry, arrival or Arrival())
        made.runner()
        self._made.append(made)
        return made

    def beat(self) -> None:
        self.beats += 1

    def close(self) -> None:
        for made in self._made:
            made.runner().close()

    def plans(self) -> list[Path]:
        return sorted((self.folder / "state" / "plans").glob("*.plan"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(users, "RUNNER_USER", "nobody-of-that-name")
    made = Bench(tmp_path)
    yield made
    made.close()


def engine(bench: Bench, **more: Any) -> str:
    return f'engine = "{plan(bench.folder, **more)}"'


# --- runs ----------------------------------------------------------------------------------------------------


def test_an_engine_is_loaded_and_runs(bench: Bench) -> None:
    workload = bench.workload(engine(bench) + "\nbatch = [2]\ninference_name = 'image'")
    said = workload.prepare(bench.beat)
    runner = workload.runner()
    loaded = runner.load(Variant(workload.entry.engine[0], 2, 1))
    assert loaded.inference_name == "image"
    assert dict(loaded.versions)["tensorrt"]
    runner.begin()
    while not (done := runner.take()).end_s.size:
        pass
    assert done.batch == 2
    assert (done.end_s >= done.start_s).all()
    runner.pause()
    assert len(said) == (os.geteuid() == 0)  # no user jouled-runner here: it runs as root, and that is said


def test_a_program_is_run_as_it_is_named(bench: Bench) -> None:
    program = bench.folder / "program.py"
    program.write_text("import time\nwhile True:\n    time.sleep(0.001)\n    print('x', flush=True)\n")
    workload = bench.workload(f'kind = "command"\nargv = ["{sys.executable}", "{program}"]')
    workload.prepare(bench.beat)
    runner = workload.runner()
    runner.load(Variant())
    runner.begin()
    while not runner.take().end_s.size:
        pass
    runner.pause()


def test_a_plan_that_is_none_is_named_with_the_runners_word(bench: Bench) -> None:
    path = bench.folder / "garbage.plan"
    path.write_bytes(b"garbage")
    workload = bench.workload(f'engine = "{path}"')
    workload.prepare(bench.beat)
    with pytest.raises(WorkloadError) as caught:
        workload.runner().load(Variant(str(path)))
    assert caught.value.code == "plan_invalid"
    assert "plan_invalid" in str(caught.value) or str(path) in str(caught.value)


def test_what_would_not_fit_is_refused_with_the_numbers_before_it_starts(bench: Bench) -> None:
    workload = bench.workload(engine(bench, context_bytes=1 << 50) + "\nbatch = [2]")
    workload.prepare(bench.beat)
    with pytest.raises(WorkloadTooLargeError, match="needed"):
        workload.runner().load(Variant(workload.entry.engine[0], 2, 1))


def test_reserve_of_the_configuration_is_kept_free(bench: Bench) -> None:
    workload = bench.workload(engine(bench) + "\nbatch = [2]", more="[job]\nmemory_reserve_bytes = 1e12")
    workload.prepare(bench.beat)
    with pytest.raises(WorkloadTooLargeError, match="memory_reserve_bytes"):
        workload.runner().load(Variant(workload.entry.engine[0], 2, 1))


def test_interpreter_that_is_not_there_is_the_workloads_fault_and_not_the_boards(bench: Bench) -> None:
    bench.python = Path("/nowhere/python")
    workload = bench.workload(engine(bench))
    with pytest.raises(WorkloadError, match=r"/nowhere/python: there is no folder /nowhere") as caught:
        workload.prepare(bench.beat)
    assert (caught.value.code, "check-config" in caught.value.hint) == ("bad_spec", True)


def test_files_are_tried_before_anything_is_started(bench: Bench) -> None:
    workload = bench.workload('engine = "/nowhere/a.plan"')
    with pytest.raises(WorkloadError, match=r"/nowhere/a.plan: there is no folder /nowhere") as caught:
        workload.prepare(bench.beat)
    assert (caught.value.code, bench.beats) == ("plan_unreadable", 0)
    program = bench.folder / "loop.sh"
    program.touch(mode=0o644)
    workload = bench.workload(f'kind = "command"\nargv = ["{program}"]')
    with pytest.raises(WorkloadError, match=r"may not run") as caught:
        workload.prepare(bench.beat)
    assert caught.value.hint == f"sudo chmod +x {program}"


def test_a_missing_engine_can_be_seen_before_a_job_waits(bench: Bench) -> None:
    with pytest.raises(WorkloadError, match=r"/nowhere/a.plan: there is no folder /nowhere"):
        bench.workload('engine = "/nowhere/a.plan"').look()


@pytest.mark.parametrize(
    ("more", "code", "hint"),
    [
        ("batch = [9]", "shape_outside_profile", "batch or shapes"),
        ('batch = [2]\ninputs = "{folder}/words.npz"', "inputs_invalid", "numpy.savez"),
    ],
)
def test_what_a_runner_refuses_comes_with_what_to_do(bench: Bench, more: str, code: str, hint: str) -> None:
    (bench.folder / "words.npz").write_text("words")
    workload = bench.workload(engine(bench) + "\n" + more.format(folder=bench.folder))
    workload.prepare(bench.beat)
    with pytest.raises(WorkloadError) as caught:
        workload.runner().load(Variant(workload.entry.engine[0], workload.entry.batch[0]))
    assert (caught.value.code, hint in caught.value.hint) == (code, True)


@pytest.mark.parametrize("missing", ["pycuda", "tensorrt"])
def test_trtexec_stands_in_where_python_has_no_bindings(bench: Bench, tmp_path: Path, missing: str) -> None:
    modules = tuple({"tensorrt", "pycuda"} - {missing})
    (tmp_path / "other").mkdir()
    bench.python = interpreter(tmp_path / "other", modules=modules)
    (tmp_path / "trtexec").touch(mode=0o755)
    bench.host = replace(bench.host, processes=Processes(path=f"{tmp_path}:{BOARD_PATH}"))
    workload = bench.workload(engine(bench))
    said = workload.prepare(bench.beat)
    assert any("trtexec" in sentence and missing in sentence for sentence in said)


def test_without_bindings_and_without_trtexec_the_bindings_are_what_is_missing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    bench.python = interpreter(tmp_path / "other", modules=("tensorrt",))
    workload = bench.workload(engine(bench))
    with pytest.raises(WorkloadError) as caught:
        workload.prepare(bench.beat)
    assert (caught.value.code, "pip install pycuda" in caught.value.hint) == ("no_pycuda", True)


def test_without_bindings_a_rate_cannot_be_run_and_the_reason_is_said(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    bench.python = interpreter(tmp_path / "other", modules=("tensorrt",))
    workload = bench.workload(engine(bench), arrival=Arrival("rate", 30.0))
    with pytest.raises(WorkloadError) as caught:
        workload.prepare(bench.beat)
    assert caught.value.code == "no_pycuda"


# --- plans built from ONNX -----------------------------------------------------------------------------------


def onnx_line(bench: Bench, **more: Any) -> str:
    return f'onnx = "{onnx(bench.folder, **more)}"'


def test_a_model_is_built_once_and_found_again(bench: Bench) -> None:
    text = onnx_line(bench) + "\nbatch = [2]"
    first = bench.workload(text)
    first.prepare(bench.beat)
    (built,) = bench.plans()
    content, inode = built.read_bytes(), built.stat().st_ino
    first.runner().load(Variant(first.entry.onnx[0], 2, 1))
    second = bench.workload(text)
    second.prepare(bench.beat)
    assert [path.stat().st_ino for path in bench.plans()] == [inode]
    assert built.read_bytes() == content
    assert second.spec_of(Variant(second.entry.onnx[0], 2, 1))["engine"] == str(built)


@pytest.mark.parametrize("change", ["content", "flags"])
def test_another_model_or_another_flag_is_another_plan(bench: Bench, change: str) -> None:
    bench.workload(onnx_line(bench) + "\nbatch = [2]").prepare(bench.beat)
    text = onnx_line(bench, latency_s=0.001) if change == "content" else onnx_line(bench) + '\nprecision = "fp16"'
    bench.workload(text + "\nbatch = [2]").prepare(bench.beat)
    assert len(bench.plans()) == 2


def test_another_tensorrt_is_another_plan(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    spec = {"onnx": str(onnx(tmp_path)), "precision": "fp32"}
    about = {"versions": {"tensorrt": "10.3.0"}, "gpu_name": "Orin"}
    others = ({**about, "versions": {"tensorrt": "10.7.0"}}, {**about, "gpu_name": "Thor"})
    assert len({cache.path_of(spec, about), *(cache.path_of(spec, other) for other in others)}) == 3
    assert cache.path_of({**spec, "plan_out": "/x"}, about) == cache.path_of(spec, about)


def test_one_plan_serves_all_batch_sizes_where_shapes_are_known(bench: Bench) -> None:
    workload = bench.workload(
        onnx_line(bench, tensors=DYNAMIC) + "\nbatch = [1, 4, 16]\nshapes = { input = [1, 3, 4, 4] }"
    )
    workload.prepare(bench.beat)
    assert len(bench.plans()) == 1
    for batch in (1, 16):
        workload.runner().load(Variant(workload.entry.onnx[0], batch, 1))


def test_without_shapes_each_batch_size_has_its_plan(bench: Bench) -> None:
    workload = bench.workload(onnx_line(bench, tensors=STATIC) + "\nbatch = [2, 4]")
    workload.prepare(bench.beat)
    assert len(bench.plans()) == 2


def test_profile_reaches_from_the_least_to_the_largest_batch() -> None:
    assert profile_of({"image": (1, 3, 224, 224), "table": (7, 2)}, (16, 1, 4)) == {
        "image": {"min": [1, 3, 224, 224], "opt": [4, 3, 224, 224], "max": [16, 3, 224, 224]},
        "table": {"min": [7, 2], "opt": [7, 2], "max": [7, 2]},
    }


def test_build_that_is_interrupted_leaves_nothing(bench: Bench) -> None:
    def interrupt(_: object) -> dict[str, Any]:
        raise Cancelled

    cache = PlanCache(bench.folder)
    spec = {"onnx": str(onnx(bench.folder)), "precision": "fp32"}
    with pytest.raises(Cancelled):
        cache.plan(spec, {}, interrupt)
    assert list(cache.folder.iterdir()) == []


def test_link_in_the_place_of_a_plan_is_not_followed(bench: Bench) -> None:
    def link(spec: Any) -> dict[str, Any]:
        Path(spec["plan_out"]).symlink_to("/etc/passwd")
        return {}

    cache = PlanCache(bench.folder)
    with pytest.raises(Exception, match="plan cannot be kept"):
        cache.plan({"onnx": str(onnx(bench.folder))}, {}, link)
    assert list(cache.folder.glob("*.plan")) == []


def test_a_model_that_cannot_be_read_is_named(bench: Bench) -> None:
    workload = bench.workload('onnx = "/nowhere/model.onnx"')
    with pytest.raises(WorkloadError, match=r"/nowhere/model.onnx: there is no folder /nowhere"):
        workload.prepare(bench.beat)


def test_only_the_plans_used_last_are_kept(bench: Bench) -> None:
    cache = PlanCache(bench.folder)
    cache.folder.mkdir(parents=True)
    for number in range(KEPT + 3):
        old = cache.folder / f"old{number:02}.plan"
        old.touch()
        os.utime(old, (number, number))

    def build(spec: Any) -> dict[str, Any]:
        Path(spec["plan_out"]).write_bytes(b"plan")
        return {}

    fresh = cache.plan({"onnx": str(onnx(bench.folder))}, {}, build)
    left = {path.name for path in cache.folder.iterdir()}
    assert len(left) == KEPT
    assert fresh.name in left
    assert "old00.plan" not in left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root builds as another user")
def test_as_root_another_user_builds_and_cannot_write_to_what_is_kept(bench: Bench) -> None:
    user = "nobody"

    def build(spec: Any) -> dict[str, Any]:
        place = Path(spec["plan_out"]).parent
        assert place.stat().st_uid == pwd.getpwnam(user).pw_uid
        assert place.stat().st_mode & 0o777 == 0o700
        Path(spec["plan_out"]).write_bytes(b"plan")
        return {}

    kept = PlanCache(bench.folder, user).plan({"onnx": str(onnx(bench.folder))}, {}, build)
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o644)


def test_another_user_gets_to_the_plans_whatever_the_umask(bench: Bench) -> None:
    def build(spec: Any) -> dict[str, Any]:
        Path(spec["plan_out"]).write_bytes(b"plan")
        return {}

    before = os.umask(0o027)
    try:
        kept = PlanCache(bench.folder).plan({"onnx": str(onnx(bench.folder))}, {}, build)
    finally:
        os.umask(before)
    assert (kept.parent.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o755, 0o644)


def test_trtexec_counts_gpus_as_nvml_does(bench: Bench) -> None:
    program, told = bench.folder / "trtexec", bench.folder / "told"
    program.write_text(f'#!/bin/sh\nprintf %s "$CUDA_DEVICE_ORDER" >{told}\nexit 1\n')
    program.chmod(0o755)
    bench.host = replace(bench.host, processes=Processes(path=f"{bench.folder}:{BOARD_PATH}"))
    made = bench.workload(engine(bench) + '\nkind = "trtexec"')
    with pytest.raises(WorkloadError):
        made.runner().load(Variant(made.entry.engine[0]))
    assert told.read_text() == "PCI_BUS_ID"


# --- whom it runs as, what it holds for ----------------------------------------------------------------------


def test_named_user_comes_before_the_default(bench: Bench) -> None:
    entry = bench.workload(engine(bench)).entry
    assert runner_user(entry) is None  # not root, or no such user
    assert runner_user(replace(entry, user="camera")) == "camera"


def test_a_user_who_is_not_there_is_said_before_a_job_begins(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="there is no such user"):
        bench.workload(f'engine = "{plan(bench.folder)}"\nuser = "nobody-of-that-name"')


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
def test_as_root_it_runs_as_the_runners_user_where_there_is_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "RUNNER_USER", "nobody")
    assert runner_user(bench.workload(engine(bench)).entry) == "nobody"


def test_marks_change_with_whatever_makes_it_another_workload(bench: Bench) -> None:
    path = plan(bench.folder)
    entry = bench.workload(f'engine = "{path}"').entry
    marks = workload_marks(entry, Arrival())
    assert marks[str(path)] == content_mark(str(path))
    assert RUNTIME not in marks
    others = [
        workload_marks(entry, Arrival("rate", 30.0)),
        workload_marks(replace(entry, batch=(1, 4)), Arrival()),
        workload_marks(replace(entry, sync="spin"), Arrival()),
    ]
    path.write_bytes(path.read_bytes() + b" ")
    others.append(workload_marks(entry, Arrival()))
    assert all(other != marks for other in others)


# --- the command line ----------------------------------------------------------------------------------------


def test_engines_on_the_command_line_are_variants_back_to_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["tune", "--fixed-mode", "--engine", "a.plan", "--engine", "/x/b.plan", "--no-latency-bound"]
    arguments = make_parser().parse_args(argv)
    config = read_config(arguments, is_real=False)
    host = machine_host(arguments, config, fixed=True, state_home=lambda: tmp_path)
    site = machine_site(host, config)
    assert [variant.engine for variant in site.variants] == [str(tmp_path / "a.plan"), "/x/b.plan"]
    assert arrival_of(arguments, config) == Arrival()
    assert site.workload == "engine"


def test_rate_goes_with_engines_on_the_command_line() -> None:
    arguments = make_parser().parse_args(["tune", "--engine", "/a.plan", "--rate-hz", "30"])
    assert arrival_of(arguments, read_config(arguments, is_real=False)) == Arrival("rate", 30.0)


def test_machine_without_a_workload_says_how_to_name_one(tmp_path: Path) -> None:
    arguments = make_parser().parse_args(["tune", "--fixed-mode", "--state-dir", str(tmp_path), "--no-latency-bound"])
    site = machine_site(machine_host(arguments, load(None), fixed=True, state_home=lambda: tmp_path), load(None))
    with pytest.raises(ConfigError, match="no workload") as caught:
        site.make_runner(Arrival())
    assert "--engine" in caught.value.hint


def test_fixed_mode_keeps_its_state_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_parser().parse_args(["tune", "--fixed-mode"])
    config = load(None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    host = machine_host(arguments, config, fixed=True, state_home=lambda: tmp_path)
    assert (host.state_dir, host.run_dir, host.privileged) == (tmp_path / "fixed", str(tmp_path / "run"), False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    host = machine_host(arguments, config, fixed=True, state_home=lambda: tmp_path)
    assert (host.state_dir, host.run_dir) == (Path("/var/lib/jouled/fixed"), "/run/jouled")
    host = machine_host(arguments, config, fixed=False, state_home=lambda: tmp_path)
    assert host.state_dir == Path("/var/lib/jouled")


def test_all_sessions_of_a_user_have_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_parser().parse_args(["tune", "--fixed-mode"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    locks = set()
    for given in ("", str(tmp_path / "session")):
        Path(given or tmp_path).mkdir(exist_ok=True)
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        locks.add(machine_host(arguments, load(None), fixed=True, state_home=lambda: tmp_path).run_dir)
    assert len(locks) == 1


def test_variants_are_axes_of_the_grid_of_a_board(tmp_path: Path) -> None:
    from jouled.board.board import discover

    config = tmp_path / "config.toml"
    config.write_text(
        '[workloads.detector]\nengine = ["/a.plan", "/b.plan"]\nbatch = [1, 4]\narrival = "back_to_back"\n'
        "[grid]\nsize = 48\n"
    )
    argv = ["tune", "--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "s"), "--config", str(config)]
    site = open_site(make_parser().parse_args(argv))
    try:
        space = site.make_space(discover(site.host))
    finally:
        site.close()
    axes = {axis.name: axis.values for axis in space.axes}
    assert axes["engine"] == ("/a.plan", "/b.plan")
    assert axes["batch"] == (1, 4)
    assert len(space) <= 48
    assert space.candidates[space.reference].variant == Variant("/a.plan", 1, 1)


def test_a_site_of_this_machine_looks_at_the_files_of_its_workload(tmp_path: Path) -> None:
    values = {"workload.default": "w", "workloads.w": True, "workloads.w.engine": ["/nowhere/a.plan"]}
    values["workloads.w.arrival"] = "back_to_back"
    host = Host(Sysfs(tmp_path), Processes(), SystemClock(), tmp_path / "state")
    site = machine_site(host, load(None, values))
    site.make_runner(Arrival())
    with pytest.raises(WorkloadError, match=r"there is no folder /nowhere"):
        site.request(Arrival()).look()
