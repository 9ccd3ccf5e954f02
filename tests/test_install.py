"""Laying the service's files, trusting its code, and asking a worker for the board's own mode."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jouled.board.process import Processes
from jouled.config import load
from jouled.errors import BoardError, BusyError, JouledError, NotSupportedError, UsageError
from jouled.install import command, systemd
from jouled.install.layout import Layout, remove_files, remove_link, write_config, write_files, write_link
from jouled.install.stock import apply_reference
from jouled.install.units import SHIPPED, UNITS

COMMAND = ("/opt/jouled/bin/python", "-I", "-m", "jouled.cli")
needs_systemctl = pytest.mark.skipif(shutil.which("systemctl") is None, reason="needs systemd")


def jouled(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "jouled.cli", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


# --- files --------------------------------------------------------------------------------------------------


def test_every_unit_is_laid_with_the_real_command(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert set(write_files(layout, COMMAND)) == set(layout.files())
    for name in UNITS:
        text = layout.unit(name).read_text()
        assert "/usr/bin/jouled" not in text
        assert ("/opt/jouled/bin/python -I -m jouled.cli " in text) == name.endswith(".service")


def test_laying_them_again_changes_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_files(layout, COMMAND)
    before = {path: path.stat().st_mtime_ns for path in layout.files()}
    assert write_files(layout, COMMAND) == ()
    assert {path: path.stat().st_mtime_ns for path in layout.files()} == before


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """What pip lays beside the interpreter."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/jouled").touch()
    return tmp_path / "venv/bin/jouled"


def test_the_command_is_found_by_everybody_until_it_is_removed(tmp_path: Path, script: Path) -> None:
    layout, command = Layout(tmp_path), (str(script.with_name("python")), "-I")
    assert write_link(layout, command) == write_link(layout, command) == tmp_path / "usr/local/bin/jouled"
    assert layout.link.resolve() == script
    layout.link.unlink()
    layout.link.symlink_to("/opt/older/bin/jouled")  # of an older venv that is gone
    assert write_link(layout, command) == layout.link
    assert layout.link.resolve() == script
    remove_link(layout)
    assert not layout.link.is_symlink()
    remove_link(layout)


def test_a_command_of_somebody_elses_stays(tmp_path: Path, script: Path) -> None:
    layout = Layout(tmp_path)
    layout.link.parent.mkdir(parents=True)
    layout.link.write_text("theirs")
    assert write_link(layout, (str(script.with_name("python")),)) is None
    remove_link(layout)
    assert layout.link.read_text() == "theirs"


def test_without_a_console_script_there_is_no_link(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert write_link(layout, COMMAND) is None
    assert not layout.link.exists()


def test_another_version_replaces_what_differs_and_only_that(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_files(layout, COMMAND)
    layout.unit("jouled.socket").write_text("of an older version")
    assert write_files(layout, COMMAND) == (layout.unit("jouled.socket"),)


def test_files_are_readable_by_everyone_whatever_the_umask(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "image")
    before = os.umask(0o077)
    try:
        write_files(layout, COMMAND)
        write_config(layout, None)
    finally:
        os.umask(before)
    for path in (*layout.files(), layout.config):
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_new_configuration_names_every_default_and_the_address_asked_for(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert write_config(layout, "0.0.0.0:19761")
    shipped = load(SHIPPED / "config.toml").values
    assert load(layout.config).values == {**shipped, "metrics.listen": "0.0.0.0:19761"}


def test_the_operators_configuration_is_left_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.config.parent.mkdir(parents=True)
    layout.config.write_text('schema = 1\nmode = "observe"\n')
    assert not write_config(layout, "0.0.0.0:19761")
    assert layout.config.read_text() == 'schema = 1\nmode = "observe"\n'


def test_removing_takes_what_was_laid_and_leaves_drop_ins_and_the_configuration(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_files(layout, COMMAND)
    write_config(layout, None)
    own = layout.unit("jouled.service.d") / "own.conf"
    own.parent.mkdir()
    own.write_text("[Service]\n")
    assert set(remove_files(layout)) == set(layout.files())
    assert remove_files(layout) == ()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {own, layout.config}


# --- the command line ---------------------------------------------------------------------------------------


@needs_systemctl
def test_an_image_gets_its_files_and_links_and_nothing_is_started(tmp_path: Path) -> None:
    done = jouled("install", "--prefix", str(tmp_path), "--metrics-listen", "127.0.0.1:9", "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert len(body["changed"]) == len(Layout().files())
    wanted = {"jouled.service", "jouled.socket", "jouled-worker.socket", "jouled"}
    assert body["link"] == str(tmp_path / "usr/local/bin/jouled")
    assert {path.name for path in tmp_path.rglob("*") if path.is_symlink()} == wanted
    again = json.loads(jouled("install", "--prefix", str(tmp_path), "--json").stdout)
    assert (again["changed"], again["is_config_new"], again["was_there"]) == ([], False, True)
    gone = json.loads(jouled("uninstall", "--prefix", str(tmp_path), "--json").stdout)
    assert len(gone["removed"]) == len(Layout().files())
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [Layout(tmp_path).config]


def test_an_address_other_than_the_configured_one_is_refused_before_anything_is_laid(tmp_path: Path) -> None:
    config = Layout(tmp_path).config
    config.parent.mkdir(parents=True)
    config.write_text('schema = 1\n[metrics]\nlisten = "127.0.0.1:1"\n')
    done = jouled("install", "--prefix", str(tmp_path), "--metrics-listen", "127.0.0.1:2")
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert str(config) in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [config]


def test_a_wrong_configuration_is_said_before_anything_is_laid(tmp_path: Path) -> None:
    config = Layout(tmp_path).config
    config.parent.mkdir(parents=True)
    config.write_text("schema = 1\nnonsense = 3\n")
    done = jouled("install", "--prefix", str(tmp_path))
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [config]


def test_where_systemd_does_not_run_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systemd, "_RUNNING", tmp_path / "absent")
    with pytest.raises(NotSupportedError, match="systemd does not run") as caught:
        systemd.check_systemd(Processes())
    assert "jouled run" in caught.value.hint


def test_a_failed_step_says_what_was_called_and_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    (tmp_path / "systemctl").chmod(0o755)
    with pytest.raises(JouledError, match="systemctl start x: it is broken"):
        systemd.call(Processes(path=f"{tmp_path}:/usr/bin:/bin"), "systemctl", "start", "x")


# --- trust --------------------------------------------------------------------------------------------------


def test_code_that_others_can_change_is_not_run_as_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    prefix.mkdir()
    prefix.chmod(0o777)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    with pytest.raises(UsageError, match="others can change") as caught:
        command.check_command(Processes())
    assert str(prefix) in str(caught.value)
    assert "/opt/jouled" in caught.value.hint


def test_code_in_a_closed_folder_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prefix = tmp_path / "closed" / "venv"
    prefix.mkdir(parents=True)
    prefix.parent.chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    with pytest.raises(UsageError, match="may not enter"):
        command.check_command(Processes())


# --- the board's own mode -----------------------------------------------------------------------------------

HELLO = {"hello": {"protocol": 1, "version": "0", "pid": 7}}
BUSY = {"busy": {"pid": 7, "verb": "restore"}}
DONE = {"event": "finished", "ok": True, "result": {}, "error": None}


def failed(exit_code: int) -> dict[str, Any]:
    error = {"kind": "X", "text": "no such board", "hint": "", "exit_code": exit_code}
    return {"event": "finished", "ok": False, "result": None, "error": error}


class PatientClock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    boottime_s = wall_s = monotonic_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def every(self, period_s: float, tick: Callable[[float], None]) -> Any:
        raise NotImplementedError


@contextlib.contextmanager
def worker(path: Path, *answers: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """A worker that answers each connection with the next list, the last for ever; what it was told."""
    told: list[dict[str, Any]] = []
    has_ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            left = list(answers)
            while True:
                peer, _ = listening.accept()
                if has_ended.is_set():
                    peer.close()
                    return
                with peer, contextlib.suppress(BrokenPipeError):
                    _serve(peer, left.pop(0) if len(left) > 1 else left[0], told)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield told
        finally:
            has_ended.set()
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


def _serve(peer: socket.socket, answer: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
    for message in answer:
        peer.sendall(json.dumps(message).encode() + b"\n")
        if "hello" in message:
            with peer.makefile("rb") as lines:
                told.append(json.loads(lines.readline()))


def test_the_reference_is_asked_for_by_the_uninstaller(tmp_path: Path) -> None:
    with worker(tmp_path / "s", [HELLO, {"event": "progress"}, DONE]) as told:
        apply_reference(PatientClock(), tmp_path / "s")
    assert [(one["command"], one["target"], one["why"]) for one in told] == [("apply", "reference", "uninstall")]


def test_a_busy_worker_and_one_that_ends_before_it_speaks_are_asked_again(tmp_path: Path) -> None:
    with worker(tmp_path / "s", [BUSY], [], [HELLO, DONE]) as told:
        apply_reference(PatientClock(), tmp_path / "s")
    assert told[0]["command"] == "apply"


def test_a_worker_that_stays_busy_is_named(tmp_path: Path) -> None:
    with (
        worker(tmp_path / "s", [BUSY]),
        pytest.raises(BusyError, match=r"pid 7 \(jouled restore\)"),
    ):
        apply_reference(PatientClock(), tmp_path / "s")


def test_no_worker_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(BusyError, match="No such file"):
        apply_reference(PatientClock(), tmp_path / "s")


def test_a_board_that_is_none_needs_nothing(tmp_path: Path) -> None:
    with worker(tmp_path / "s", [HELLO, failed(8)]):
        apply_reference(PatientClock(), tmp_path / "s")


def test_a_board_that_does_not_obey_keeps_the_service_until_its_operator_says_otherwise(tmp_path: Path) -> None:
    with (
        worker(tmp_path / "s", [HELLO, failed(10)]),
        pytest.raises(BoardError, match="no such board") as caught,
    ):
        apply_reference(PatientClock(), tmp_path / "s")
    assert "--leave-board" in caught.value.hint
