"""`jouled watch` and the display of `tune` on real terminals: what they show, what keys do, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.face import JOB, NOW_S, STATUS, FakeFace, Serving, serving
from tests.screen import session
from tests.test_pictures import STORY

from jouled.cli import main
from jouled.control.peers import Peers
from jouled.state import Peer, RunningJob, State
from jouled.worker.credentials import HasOptions

JOULED = (sys.executable, "-m", "jouled.cli")
_MODES = "stty -a | grep -ow '[-]*icanon\\|[-]*echo' | tr '\\n' ' '"  # what a shell's user types on
RUNNING = RunningJob(JOB, "uid 1000 (pepe)", "search", 7, NOW_S - 600, NOW_S + 500)
TUNING = replace(STATUS, state=State.TUNING, job=RUNNING)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        yield running


def _watch(path: Path) -> list[str]:
    return [*JOULED, "watch", "--socket", str(path)]


def _begin_job(server: Serving) -> None:
    server.call(lambda: setattr(server.face, "told", STORY[:-1]))
    server.call(lambda: setattr(server.face, "current", TUNING))


# --- watch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (40, 6)])
def test_watch_fits_the_terminal_follows_its_size_and_leaves_it_whole(server: Serving, columns: int, rows: int) -> None:
    with session(_watch(server.path), columns, rows) as shown:
        shown.shows("q leaves")
        if columns >= 80:
            text = shown.screen.text
            for told in ("idle", "the winner: 12 cores", "13.9 %", "VDD_GPU_SOC 12.5", "CPU 1497.6 of", "tj 52.2"):
                assert told in text
            assert "yes, read back" in text
        shown.resize(columns + 7, rows + 3)
        shown.until(lambda screen: "idle" in screen.lines[0] and len(screen.lines[0]) > columns - 1)
        shown.resize(columns - 10, rows)
        shown.until(lambda screen: screen.lines[0] and len(screen.lines[0]) <= columns - 11)
        shown.press("q")
        assert shown.end() == 0
        assert (shown.screen.wrapped, shown.screen.unknown) == (0, [])
        assert shown.is_whole()
        assert shown.screen.cursor[1] == 0


def test_watch_tells_a_running_job_from_its_beginning_and_cancels_it_when_told_twice(server: Serving) -> None:
    _begin_job(server)
    with session(_watch(server.path), 80, 24) as shown:
        shown.shows("c cancels it")
        shown.shows("−13.2 %")
        shown.shows("thrown away: throttled")
        shown.press("c")
        shown.shows(f"cancel job {JOB} and put the board back? y: yes")
        shown.press("n")
        shown.shows("the job goes on")
        assert server.face.calls == []
        shown.press("c")
        shown.shows("y: yes")
        shown.press("y")
        shown.shows(f"job {JOB} stops, and every knob is put back")
        assert [call[:2] for call in server.face.calls] == [("cancel", JOB)]
        server.call(lambda: setattr(server.face, "current", STATUS))
        server.call(server.face.publish, STORY[-1])
        shown.shows(f"job {JOB}: tuned")
        shown.shows("the winner: 12 cores")
        shown.press("q")
        assert shown.end() == 0


class _Reader(Peers):
    def of(self, sock: HasOptions) -> Peer:
        return replace(super().of(sock), may_change=False)


def test_who_may_only_look_is_told_so_when_he_cancels(tmp_path: Path) -> None:
    with serving(tmp_path, peers=_Reader("")) as server:
        _begin_job(server)
        with session(_watch(server.path), 200, 50) as shown:
            shown.shows("c cancels it")
            shown.press("c")
            shown.shows("y: yes")
            shown.press("y")
            shown.shows("wanted root or a member of control.change_group")
            assert server.face.calls == []


def test_watch_waits_for_a_daemon_that_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ExitStack() as stack:
        with serving(tmp_path):
            shown = stack.enter_context(session(_watch(path), 80, 24))
            shown.shows("q leaves")
        shown.shows("not reachable since ")
        path.unlink()
        with serving(tmp_path, FakeFace(current=TUNING, told=STORY[:-1])):
            shown.shows("tuning")
            shown.shows("−13.2 %")
            shown.until(lambda screen: "not reachable" not in screen.text)
            shown.press("q")
            assert shown.end() == 0


def test_watch_without_a_daemon_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "control.sock"
    assert main(["watch", "--socket", str(path)]) == 7
    assert f"to do: jouled run --socket {path}" in capsys.readouterr().err


def _piped(server: Serving, lines: int, *more: str) -> list[str]:
    """The first lines of a watch that nobody looks at; its reader goes then."""
    _begin_job(server)
    with subprocess.Popen([*_watch(server.path), *more], stdout=subprocess.PIPE, text=True, encoding="utf-8") as child:
        assert child.stdout is not None
        told = [child.stdout.readline().rstrip("\n") for _ in range(lines)]
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
    return told


def test_watch_writes_lines_where_there_is_no_terminal(server: Serving) -> None:
    told = _piped(server, 9)
    assert told[0].endswith(f"  tuning; winner 12-1497.6-918-2133 in force; job {JOB}")
    assert told[1] == "  0:00  agx-orin-64gb in MAXN: 4 power modes, about 10 min"
    assert not any("\x1b" in line for line in told)
    assert any("thrown away: throttled" in line for line in told)


def test_watch_writes_an_object_a_line_where_asked(server: Serving) -> None:
    told: list[Any] = [json.loads(line) for line in _piped(server, 4, "--json")]
    assert told[0]["event"] == "status"
    assert told[0]["status"]["state"] == "tuning"
    assert [each["seq"] for each in told if each["event"] not in ("status", "away")][:1] == [1]


# --- a client that is killed, or stopped ----------------------------------------------------------------------


def test_the_terminal_is_whole_after_a_watch_was_killed(server: Serving) -> None:
    with session(_watch(server.path), 80, 24) as shown:
        shown.shows("q leaves")
        assert not shown.is_whole()
        shown.process.send_signal(signal.SIGKILL)
        assert shown.end() == -signal.SIGKILL
        shown.until(lambda _: shown.is_whole())
        assert shown.screen.cursor[1] == 0


def test_a_shell_has_its_terminal_back_while_a_watch_is_stopped_and_after_it_was_killed(server: Serving) -> None:
    with session(["bash", "--norc", "-i"], 80, 24, PS1="$ ", HISTFILE="") as shown:
        shown.shows("$")
        shown.press(" ".join(_watch(server.path)) + "\r")
        shown.shows("q leaves")
        shown.press("\x1a")
        shown.shows("Stopped")
        shown.press(f"{_MODES}; echo pid=$(jobs -p)=\r")
        shown.shows("icanon echo")
        found = re.search(r"pid=(\d+)=", shown.until(lambda screen: re.search(r"pid=\d+=", screen.text)).text)
        assert found is not None
        shown.press("fg\r")
        shown.until(lambda screen: "idle" in screen.lines[0] and not any("Stopped" in line for line in screen.lines))
        os.kill(int(found[1]), signal.SIGKILL)
        shown.shows("Killed")
        shown.press(f"{_MODES}; exit\r")
        shown.shows("icanon echo")
        shown.end()
        assert shown.is_whole()


# --- tune -----------------------------------------------------------------------------------------------------


def _tune(folder: Path) -> list[str]:
    board = ["--virtual", "agx-orin-64gb", "--state-dir", str(folder / "state")]
    long = ["--budget", "500", "--sampler", "random", "--max-duration-s", "604800"]  # it does not end by itself
    return [*JOULED, "tune", *board, "--latency-bound-ratio", "1.2", "--seed", "1", *long]


def test_tune_is_drawn_and_q_puts_the_board_back_and_says_so(tmp_path: Path) -> None:
    with session(_tune(tmp_path), 80, 24, LC_ALL="C") as shown:
        shown.shows("q stops and puts the board back")
        shown.shows("of at most 500 windows")
        shown.resize(60, 30)
        shown.until(lambda screen: len(screen.lines[2]) == 59)
        shown.press("qq")
        shown.until(lambda screen: "cancelled: stopped by key q" in "\n".join([*screen.scrolled, *screen.lines]))
        assert shown.end() == 13
        told = [*shown.screen.scrolled, *shown.screen.lines]
        assert any("every knob is as it was found" in line for line in told)
        assert sum("  0:00  agx-orin-64gb in MAXN: " in line for line in told) == 1
        assert shown.is_whole()
    assert main(["verify", *_tune(tmp_path)[4:8]]) == 0


def test_the_terminal_is_whole_after_a_tune_was_killed(tmp_path: Path) -> None:
    with session(_tune(tmp_path), 200, 50) as shown:
        shown.shows("of at most 500 windows")
        screen = shown.shows("reference  ")
        shown.process.send_signal(signal.SIGKILL)
        shown.end()
        shown.until(lambda _: shown.is_whole())
        assert (screen.wrapped, screen.unknown) == (0, [])


# --- what it costs --------------------------------------------------------------------------------------------


def test_nobody_loads_rich_who_does_not_draw(server: Serving) -> None:
    code = (
        "import sys; from jouled.cli import main; import jouled.cli.run, jouled.service.face, jouled.cli.watch\n"
        f"assert main(['status', '--socket', {str(server.path)!r}]) == 0\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'rich']"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
