"""The command line asking the service: what is shown, exit codes, and daemons that answer late, oddly or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.face import ENTRIES, JOB, MODE, NOW_S, STATUS, VERIFIED, WINNER, FakeFace, Serving, make_result, serving

from jouled.cli import main, remote
from jouled.cli.client import AnsweredError, Client, _no_connection
from jouled.cli.service_arguments import length
from jouled.cli.status import ago, status_text
from jouled.errors import JouledError, NotPermittedError, UnreachableError
from jouled.job.result import EXIT_CODES
from jouled.state import InForce, Next, Peer, Refused, RunningJob, Source, State, Status


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        yield running


def _run(server: Serving, *argv: str) -> int:
    return main([*argv, "--socket", str(server.path)])


# --- daemons that do not answer as they should ------------------------------------------------------------------


@dataclass
class _Clock:
    """Time that passes when somebody sleeps."""

    now_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now(self) -> float:
        return self.now_s


@contextmanager
def _answering(path: Path, answers: Sequence[bytes | None]) -> Iterator[list[bytes]]:
    """A server that gives one answer a connection, in turn; None: a reset. What it was asked comes out."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            for answer in answers:
                client, _ = listening.accept()
                with client:
                    asked.append(client.recv(65536) if answer is not None else b"")
                    if answer:
                        client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join(10)


def _ok(body: bytes = b'{"schema": 1}') -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_get_that_is_reset_is_asked_again(tmp_path: Path) -> None:
    clock = _Clock()
    with _answering(tmp_path / "s", [None, None, _ok()]):
        assert Client(tmp_path / "s", sleep=clock.sleep, now_s=clock.now).get("/v1/status") == {"schema": 1}


def test_a_get_that_is_always_reset_ends_after_2_s(tmp_path: Path) -> None:
    clock = _Clock()
    with (
        _answering(tmp_path / "s", [None] * 41),
        pytest.raises(UnreachableError, match="closes the connection without an answer") as caught,
    ):
        Client(tmp_path / "s", sleep=clock.sleep, now_s=clock.now).get("/v1/status")
    assert caught.value.exit_code == 7
    assert 1.9 <= clock.now_s <= 2.1


def test_a_post_is_sent_once(tmp_path: Path) -> None:
    clock = _Clock()
    with (
        _answering(tmp_path / "s", [b""]) as asked,
        pytest.raises(UnreachableError, match="went away before it answered") as caught,
    ):
        Client(tmp_path / "s", sleep=clock.sleep, now_s=clock.now).post("/v1/rollback")
    assert len(asked) == 1
    assert "jouled history" in caught.value.hint
    assert clock.now_s == 0.0


def test_a_daemon_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        with pytest.raises(UnreachableError, match=r"no answer within 0\.02 s"):
            Client(tmp_path / "s").get("/v1/status", timeout_s=0.02)


def test_a_full_queue_is_waited_for_2_s(tmp_path: Path) -> None:
    clock = _Clock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(str(tmp_path / "s"))
            with pytest.raises(UnreachableError):
                Client(tmp_path / "s", sleep=clock.sleep, now_s=clock.now).post("/v1/verify")
    assert clock.now_s >= 1.9


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"a":'])
def test_an_answer_that_is_no_object_is_said_so(tmp_path: Path, body: bytes) -> None:
    with _answering(tmp_path / "s", [_ok(body)]), pytest.raises(JouledError, match="wanted a JSON object"):
        Client(tmp_path / "s").get("/v1/status")


def test_a_problem_without_a_body_is_an_error_all_the_same(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with _answering(tmp_path / "s", [answer]), pytest.raises(AnsweredError, match="the daemon answered 503") as caught:
        Client(tmp_path / "s").get("/v1/status")
    assert caught.value.exit_code == 1


def test_a_problem_brings_its_text_hint_and_exit_code(server: Serving) -> None:
    server.face.failing = Refused("the board is held", hint="jouled forget --held")
    with pytest.raises(AnsweredError, match="the board is held") as caught:
        Client(server.path).post("/v1/apply", {"target": "winner"})
    assert (caught.value.hint, caught.value.exit_code) == ("jouled forget --held", 6)


@pytest.mark.parametrize("verb", [["status"], ["retune"], ["cancel"], ["apply", "winner"], ["history"], ["pause"]])
def test_without_a_daemon_it_is_7_with_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    path = tmp_path / "none.sock"
    assert main([*verb, "--socket", str(path)]) == 7
    text = capsys.readouterr().err
    assert str(path) in text
    assert f"to do: jouled run --socket {path}" in text


def test_the_installed_daemons_hint_is_systemctl() -> None:
    error = _no_connection(Path("/run/jouled/control.sock"), FileNotFoundError(2, "No such file or directory"))
    assert (error.exit_code, error.hint.partition("   ")[0]) == (7, "sudo systemctl start jouled.socket jouled")


def test_who_may_not_connect_is_told_the_group() -> None:
    error = _no_connection(Path("/run/jouled/none.sock"), PermissionError(13, "Permission denied"))
    assert isinstance(error, NotPermittedError)
    assert error.exit_code == 6
    assert error.hint.startswith("sudo usermod -aG jouled ")


# --- status -------------------------------------------------------------------------------------------------


def _text(status: Status, now_s: float = NOW_S) -> str:
    return status_text(json.loads(json.dumps(status.as_json())), now_s)


def test_status_says_what_is_in_force_what_it_saves_and_whether_it_holds() -> None:
    text = " ".join(_text(STATUS).split())
    assert "NVIDIA Jetson AGX Orin Developer Kit, MAXN, L4T 36.4.3" in text
    assert "in force the winner: 12 cores, CPU 1497.6, GPU 918, EMC 2133 MHz, capped (since " in text
    assert "saves 13.9 % of the energy per frame (95 %: 12.1 % to 15.7 %); 1.02 J -> 878 mJ" in text
    assert "latency p95 at most 29.3 ms, bound 33.0 ms" in text
    assert "holds yes, read back 4 s ago; what only root may read, 12 min ago" in text
    assert "next the worker reads every knob back, in 48 min" in text
    assert "to do nothing" in text


def test_status_says_which_knobs_are_wrong() -> None:
    text = _text(replace(STATUS, mismatches=tuple(f"knob {i}: wanted 1, got 2" for i in range(5)), to_do="look"))
    assert "no: 5 knobs are wrong, read back 4 s ago" in text
    assert text.count("wrong     knob ") == 3
    assert "and 2 more knobs: jouled status --json" in text


def test_a_wrong_knob_does_not_make_the_winner_a_mode_chosen_by_hand() -> None:
    text = _text(replace(STATUS, mismatches=("knob 1: wanted 1, got 2",)))
    assert "in force  should be the winner: 12 cores, " in text
    assert "not in force" not in text


def test_status_says_for_what_a_winner_no_longer_holds() -> None:
    assert STATUS.in_force is not None
    aside = replace(STATUS, in_force=replace(STATUS.in_force, source=Source.REFERENCE))
    stale = replace(aside, winner=replace(WINNER, stale="the engine has changed"))
    assert "winner    stale, not applied: the engine has changed" in _text(stale)
    assert "saves" not in _text(stale)


def test_status_says_how_far_a_job_is() -> None:
    job = RunningJob(JOB, "uid 1000 (pepe)", "search", 7, NOW_S - 600, NOW_S + 500)
    text = " ".join(_text(replace(STATUS, state=State.TUNING, job=job)).split())
    assert f"job {JOB} of pepe: search, 7 trials, about 8 min to go (since " in text


@pytest.mark.parametrize(
    "sentence", ["", "not tuned yet: ", "the engine of the workload detector has changed since then; "]
)
def test_a_command_that_status_names_can_be_copied_whole(sentence: str) -> None:
    command = "jouled retune --socket /var/lib/a/rather/long/path/to/some/control.sock --latency-bound-ratio 1.2"
    lines = _text(replace(STATUS, to_do=sentence + command)).splitlines()
    assert [line[12:] for line in lines if "jouled retune" in line] == [command]
    assert " ".join(sentence.split()) in " ".join(" ".join(lines).split())
    short = _text(replace(STATUS, to_do="not tuned yet: jouled retune")).splitlines()
    assert "  to do     not tuned yet: jouled retune" in short


def test_status_says_that_journal_fields_are_lost() -> None:
    assert "journal" not in _text(STATUS)
    assert "python3-systemd is not installed" in _text(replace(STATUS, journal_fields=False))


def test_status_of_a_board_that_cannot_be_read() -> None:
    blind = replace(STATUS, board=None, in_force=None, winner=None, warnings=("no /sys/devices/soc0",))
    text = _text(blind)
    assert text.startswith("jouled: the board cannot be read\n")
    assert "warning   no /sys/devices/soc0" in text


_TEXT = st.text(st.sampled_from("ab /._:-0%"), max_size=400)
_WHEN = st.none() | st.floats(NOW_S - 1e6, NOW_S + 1e9)


def _any_status(state: State, source: Source, texts: list[str], due_wall_s: float | None, has_job: bool) -> Status:
    return replace(
        STATUS,
        state=state,
        in_force=InForce(source, MODE, "locked", due_wall_s, last_verify_wall_s=due_wall_s, unknown=9),
        winner=replace(WINNER, stale=texts[0]),
        mismatches=tuple(texts[3:]),
        warnings=tuple(texts[3:]),
        to_do=texts[1],
        next=Next(texts[2], due_wall_s),
        paused_until_wall_s=due_wall_s,
        job=RunningJob(JOB, "uid 1000 (" + "x" * 30 + ")", "finals", 12, NOW_S, due_wall_s) if has_job else None,
        quarantined=3,
        journal_fields=False,
    )


_STATUSES = st.builds(
    _any_status,
    st.sampled_from(State),
    st.sampled_from(Source),
    st.lists(_TEXT, min_size=3, max_size=9),
    _WHEN,
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(status=_STATUSES, now_s=st.floats(NOW_S - 1e6, NOW_S + 1e9))
def test_status_always_fits_24_lines_of_80_columns(status: Status, now_s: float) -> None:
    lines = _text(status, now_s).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("  to do     ")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (89, "89 s"), (90, "2 min"), (5_399, "90 min"), (5_400, "2 h"), (172_799, "48 h"), (172_800, "2 d")],
)
def test_lengths_of_time_are_in_one_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_status_json_is_the_daemons(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(server, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(STATUS.as_json()))


def test_status_needs_none_of_the_daemons_libraries(server: Serving) -> None:
    heavy = ("numpy", "scipy", "optuna", "sqlalchemy", "aiohttp", "msgspec", "prometheus_client", "asyncio")
    code = f"import sys; sys.modules.update(dict.fromkeys({heavy}))\nfrom jouled.cli import main\nsys.exit(main())"
    argv = [sys.executable, "-c", code, "status", "--socket", str(server.path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in force" in done.stdout


# --- changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["apply", "winner"], ("apply", "winner")),
        (["apply", "12-1497.6-918-2133"], ("apply", "12-1497.6-918-2133")),
        (["rollback"], ("rollback",)),
        (["cancel", JOB], ("cancel", JOB)),
        (["pause"], ("pause", None)),
        (["pause", "--for", "2h"], ("pause", 7200.0)),
        (["pause", "--for", "0"], ("pause", 0.0)),
        (["pause", "--end"], ("pause", 0.0)),
        (["forget", "--held"], ("forget", None, True)),
        (["forget", "1-2-3-4"], ("forget", "1-2-3-4", False)),
        (["retune", "--no-wait"], ("retune", {})),
        (
            ["retune", "--no-wait", "--latency-bound-s", "0.03", "--budget", "9", "--dry-run"],
            ("retune", {"latency_bound_s": 0.03, "budget": 9, "dry_run": True}),
        ),
        (
            ["retune", "--no-wait", "--workload", "detector", "--clocks", "both", "--max-power-w", "20"],
            ("retune", {"workload": "detector", "clocks": "both", "max_power_w": 20.0}),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("is_json", [False, True])
def test_a_verb_asks_for_what_it_says(
    server: Serving, capsys: pytest.CaptureFixture[str], argv: list[str], call: tuple[Any, ...], *, is_json: bool
) -> None:
    assert _run(server, *argv, *(["--json"] if is_json else [])) == 0
    (asked,) = server.face.calls
    assert asked[:-1] == call
    out = capsys.readouterr().out
    if is_json:
        assert json.loads(out)["schema"] == 1
    else:
        assert 0 < len(out.splitlines()[0]) <= 100


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["apply", "best"], 2, 'got "best"'),
        (["retune", "--budget", "1"], 2, "wanted an integer 2 to 10000 windows, got 1"),
        (["cancel", "ffffffffffff"], 2, "there is no job 'ffffffffffff'"),
        (["cancel", "../../v1/rollback"], 2, "there is no job"),
        (["forget", "winner"], 2, 'got "winner"'),
    ],
)
def test_what_the_daemon_refuses_is_said_with_its_code(
    server: Serving, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, text: str
) -> None:
    assert _run(server, *argv) == code
    assert text in capsys.readouterr().err
    assert server.face.calls == []


def test_a_refused_verb_says_so_in_json_too(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    server.face.failing = Refused("the board is held", hint="jouled forget --held")
    assert _run(server, "rollback", "--json") == 6
    assert json.loads(capsys.readouterr().out)["error"]["text"] == "the board is held"


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({}, 0, "ok: the winner should be in force: 12-1497.6-918-2133, capped"),
        ({"mismatches": ["emc: wanted 1, got 2"], "to_do": "jouled apply winner"}, 5, "to do    jouled apply winner"),
        ({"busy": True, "holder": f"job {JOB}", "mismatches": ["x"]}, 12, f"busy: job {JOB} holds the board"),
        ({"unknown": ["a", "b"]}, 0, "unknown  2 knobs could not be read"),
    ],
)
def test_verify_ends_as_the_board_is(
    server: Serving, capsys: pytest.CaptureFixture[str], more: dict[str, Any], code: int, text: str
) -> None:
    server.face.verified = {**VERIFIED, **more}
    assert _run(server, "verify") == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "uid", "code"),
    [
        (["verify"], 1000, 42),
        (["forget", "1-2-3-4"], 1000, 42),
        (["apply", "winner"], 0, 42),
        (["rollback"], 0, 42),
        (["apply", "winner"], 1000, 7),
        (["rollback"], 1000, 7),
        (["status"], 0, 7),
    ],
)
@pytest.mark.usefixtures("capsys")
def test_what_can_be_done_without_a_daemon_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], uid: int, code: int
) -> None:
    from jouled.cli import verbs, worker

    monkeypatch.setattr(remote, "SOCKET", tmp_path / "none.sock")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    for module in (verbs, worker):
        monkeypatch.setattr(module, argv[0], lambda arguments: 42, raising=False)
    assert main(argv) == code
    assert main([*argv, "--socket", str(tmp_path / "none.sock")]) == 7


def test_cancel_finds_the_job_that_runs(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(server, "cancel") == 0
    assert "no job runs" in capsys.readouterr().out
    server.face.current = replace(STATUS, job=RunningJob(JOB, "x", "search", 1, NOW_S, None))
    assert _run(server, "cancel") == 0
    assert server.face.calls[0][:2] == ("cancel", JOB)


def test_history_has_a_line_for_each_thing(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(server, "history") == 0
    change, request, job = capsys.readouterr().out.splitlines()
    assert change.endswith("  applied  a -> b by root")
    assert request.endswith("  asked: apply winner by root")
    assert job.endswith(f"  job {JOB}  tuned, saves 13.9 % by pepe")
    assert _run(server, "history", "-n", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["history"] == [ENTRIES[0]]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"kind": "request", "verb": "pause", "for_s": 7200.0}, "asked: pause for 2 h"),
        ({"kind": "request", "verb": "pause", "for_s": None}, "asked: pause until further notice"),
        ({"kind": "request", "verb": "pause", "for_s": 0.0}, "asked: pause ends"),
        ({"kind": "request", "verb": "forget", "held": True}, "asked: forget the state held"),
        ({"kind": "request", "verb": "cancel", "of_job": JOB, "who": "uid 1 (x)"}, f"asked: cancel {JOB} by x"),
        ({"kind": "change", "event": "rolled_back", "from": "a", "to": "b", "why": "rollback"}, "rolled back  a -> b"),
        ({"kind": "change", "event": "applied", "from": "a", "to": "b", "why": "boot"}, "applied  a -> b (boot)"),
    ],
)
def test_history_says_what_was_asked_as_people_do(entry: dict[str, Any], text: str) -> None:
    assert remote._entry(entry) == text


def test_a_change_with_the_longest_names_fits_80_columns() -> None:
    name = "12-2201.6-1300.5-3199"
    change = {"event": "applied", "from": name, "to": name, "why": "mismatch", "who": "uid 1000 (somebody)"}
    lines = remote._hung("12:34  ", remote._entry({"kind": "change", **change})).splitlines()
    assert lines == [f"12:34  applied  {name} -> {name} (mismatch) by", "         somebody"]


def test_after_a_rollback_status_says_that_the_winner_was_rejected() -> None:
    assert STATUS.last_job is not None
    rejected = replace(STATUS, winner=None, last_job=replace(STATUS.last_job, outcome="tuned"))
    assert "winner    none: the last one was rejected" in _text(rejected)
    assert "winner    none yet" in _text(replace(rejected, last_job=None))


def test_what_is_to_be_typed_names_the_socket_that_was_asked(
    server: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    server.face.failing = Refused("jouled is paused", hint="end the pause first: jouled pause --end")
    assert _run(server, "rollback") == 6
    assert f" pause --socket {server.path} --end" in capsys.readouterr().err


def test_json_tells_a_refusals_kind(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    server.face.failing = Refused("the board is held", hint="jouled forget --held")
    assert _run(server, "rollback", "--json") == 6
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "not-permitted"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("1.5 h", 5400), ("15m", 900), ("2d", 172_800)])
def test_lengths_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert length(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "2x", "1e9", "nan", "1 h 30", "2hh"])
def test_what_is_no_length_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pause", "--for", text])
    assert caught.value.code == 2
    capsys.readouterr()


# --- a job from its request to its end --------------------------------------------------------------------------


class _Working(FakeFace):
    """Runs a job as soon as it is asked for one; `story` is what it says, None the end of the stream."""

    story: Sequence[Mapping[str, Any] | None] = ()

    async def retune(self, request: Mapping[str, Any], peer: Peer) -> str:
        job = await super().retune(request, peer)
        loop = asyncio.get_running_loop()
        for event in self.story:
            loop.call_soon(self.publish, event)
        return job


def _event(kind: str, seq: int, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "t_s": float(seq), "event": kind, "job": JOB, **fields}


def _finished(outcome: str, **more: Any) -> dict[str, Any]:
    return _event("finished", 9, result=make_result(outcome), ok=True, error=None, **more)


def _story(tmp_path: Path, story: Sequence[Mapping[str, Any] | None], *argv: str, **jobs: Any) -> int:
    face = _Working()
    face.story = story
    face.jobs.update(jobs)
    with serving(tmp_path, face) as server:
        return _run(server, "retune", *argv)


@pytest.mark.parametrize("outcome", sorted(EXIT_CODES))
def test_retune_ends_as_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: str) -> None:
    started = _event("job_started", 1, board="b", base_mode="MAXN", grid_size=96, expected_s=1500.0)
    other = {**_finished("board_fault"), "job": "other"}
    assert _story(tmp_path, [started, other, _finished(outcome)]) == EXIT_CODES[outcome]
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{outcome}: ")
    assert "b in MAXN: 96 power modes, about 25 min" in shown.err


def test_a_reason_that_says_nothing_new_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = make_result("cancelled", reason={"code": "user", "text": "cancelled"})
    assert _story(tmp_path, [{**_finished("cancelled"), "result": result}]) == 13
    assert capsys.readouterr().out.splitlines()[0] == "cancelled"


def test_retune_says_what_was_gained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _story(tmp_path, [_finished("tuned")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tuned: 13.9 % less energy per inference than the board's own mode (95 %: 12.1 %"
    assert lines[1] == "  to 15.7 %)"
    assert lines[2].split() == ["reference", "1.02", "J,", "30.6", "W,", "latency", "at", "most", "25.0", "ms"]
    assert lines[-1].startswith("next: jouled status --socket /")


def test_no_gain_is_4_for_those_who_want_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _story(tmp_path, [_finished("no_gain")], "--fail-on-no-gain") == 4
    capsys.readouterr()


def test_retune_json_is_the_result_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _story(tmp_path, [_event("warning", 1, text="x"), _finished("tuned")], "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["outcome"] == "tuned"
    assert shown.err == ""


def test_retune_json_lines_are_the_jobs_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _story(tmp_path, [_event("warning", 1, text="x"), _finished("tuned")], "--json-lines") == 0
    kinds = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["warning", "finished"]


def test_a_job_that_failed_before_it_began_ends_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"kind": "NotSupportedError", "text": "no such board", "hint": "jouled doctor", "exit_code": 8}
    assert _story(tmp_path, [_event("finished", 1, ok=False, result=None, error=error)]) == 8
    text = capsys.readouterr().err
    assert "no such board" in text
    assert "to do: jouled doctor" in text


def test_a_job_whose_events_were_lost_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _story(tmp_path, [_event("warning", 1, text="x"), None]) == 0
    assert capsys.readouterr().out.startswith("tuned: 13.9 % less energy")


class _Gone(Client):
    """A daemon that is away for a while, or for good."""

    def __init__(self, away: int) -> None:
        super().__init__(Path("none"))
        self.away = away

    def get(self, path: str, *, timeout_s: float = 10.0) -> dict[str, Any]:
        self.away -= 1
        if self.away >= 0:
            raise UnreachableError("gone")
        return {"outcome": None if self.away > -3 else "interrupted", "result": None}


def test_a_daemon_that_restarts_in_mid_job_is_waited_for() -> None:
    clock = _Clock()
    assert remote._poll(_Gone(20), JOB, sleep=clock.sleep)["result"]["outcome"] == "interrupted"


def test_a_daemon_that_does_not_come_back_is_given_up() -> None:
    clock = _Clock()
    with pytest.raises(UnreachableError):
        remote._poll(_Gone(10_000), JOB, sleep=clock.sleep)
    assert clock.now_s <= 130


def test_a_dry_run_ends_without_an_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = make_result(outcome=None, plan={"grid_size": 96, "expected_s": 1500.0})
    over = {"job": JOB, "outcome": None, "is_running": False, "ended_wall_s": NOW_S, "result": result}
    assert _story(tmp_path, [None], "--dry-run", **{JOB: over}) == 0
    assert capsys.readouterr().out == "96 power modes, about 25 min; dry run: nothing was touched\n"
    entry = {"kind": "job", "wall_s": NOW_S, "who": "", **over}
    assert remote._entry(entry).endswith(f"job {JOB}  was a dry run")
    assert remote._entry({**entry, "ended_wall_s": None}).endswith(f"job {JOB}  has not ended")


def test_retune_works_where_there_are_too_many_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path, most_streams=0) as server:
        assert _run(server, "retune") == 0
    assert capsys.readouterr().out.startswith("tuned: ")


def test_an_impatient_user_is_told_that_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote, "Progress", lambda: interrupt)
    assert _story(tmp_path, [_event("warning", 1, text="x")]) == 130
    assert f"job {JOB} goes on; jouled cancel stops it" in capsys.readouterr().err


def test_a_job_that_cannot_begin_is_said(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    server.face.running = "ba9876543210"
    assert _run(server, "retune") == 12
    assert "job ba9876543210 runs" in capsys.readouterr().err
