"""The report: its numbers are the job's, it loads nothing, it is the same bytes again, and every outcome has one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from jouled.cli import main
from jouled.errors import StateError, UsageError
from jouled.job.result import EXIT_CODES, JobResult
from jouled.ledger import Ledger
from jouled.report.collect import collect, find
from jouled.report.command import command_of, settings_of
from jouled.report.folder import write
from jouletune.report import cite, ink
from jouletune.report.facts import Job, Setting, lookup
from jouletune.report.page import page

BOARD = ["--virtual", "agx-orin-64gb"]
JOB = ["--latency-bound-ratio", "1.6", "--budget", "6", "--grid", "2x4x2", "--sampler", "joule", "--seed", "3"]
_VOID = {"meta", "link", "br", "path", "use", "stop"}
_MOST_BYTES = 2_000_000


@dataclass
class Page(HTMLParser):
    """What a browser would see, as far as these tests ask."""

    told: list[tuple[str, Any]] = field(default_factory=list)
    nulls: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _open: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.links += [value for name, value in given.items() if name in ("src", "href", "srcset", "data", "action")]
        if "id" in given:
            self.ids.append(given["id"])
        if "data-json" in given and "data-null" in given:
            self.nulls.append(given["data-json"])
        elif "data-json" in given:
            self.told.append((given["data-json"], json.loads(given["value"])))
        if tag not in _VOID:
            self._open.append((tag, given.get("id", "")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self._open or self._open[-1][0] != tag:
            self.errors.append(f"</{tag}> at {self.getpos()}, open: {self._open[-3:]}")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def end(self) -> Page:
        self.close()
        self.errors += [f"<{tag}> never closed" for tag, _ in self._open]
        return self


def seen(data: bytes) -> Page:
    found = Page()
    found.feed(data.decode())
    return found.end()


@dataclass(frozen=True)
class Made:
    """A job, what it printed, and its report."""

    state: Path
    folder: Path
    result: dict[str, Any]
    told: dict[str, Any]

    @property
    def html(self) -> bytes:
        return (self.folder / "index.html").read_bytes()


def report(capsys: pytest.CaptureFixture[str], state: Path, out: Path, *more: str) -> dict[str, Any]:
    assert main(["report", *more, *BOARD, "--state-dir", str(state), "--out", str(out), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Made once: by the command line, as a user does."""
    folder = tmp_path_factory.mktemp("report")
    texts = []
    for argv in (
        ["tune", *BOARD, "--state-dir", str(folder / "state"), *JOB, "--json"],
        ["report", *BOARD, "--state-dir", str(folder / "state"), "--out", str(folder / "out"), "--json"],
    ):
        done = subprocess.run([sys.executable, "-m", "jouled.cli", *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        texts.append(json.loads(done.stdout))
    return Made(folder / "state", folder / "out", texts[0], texts[1])


# --- the numbers ------------------------------------------------------------------------------------------


def test_every_number_on_the_page_is_the_one_that_tune_printed(made: Made) -> None:
    found = seen(made.html)
    for path, value in found.told:
        assert value == lookup(made.result, path), path
    for path in found.nulls:
        assert lookup(made.result, path) is None, path
    sides = ("energy_j", "energy_se_j", "latency_s", "latency_upper_s", "latency_samples", "power_w", "throughput_hz")
    wanted = {f"{side}.{name}" for side in ("reference", "winner") for name in (*sides, "windows", "mode.gpu_hz")}
    wanted |= {"saving_ratio", "saving_interval.0", "saving_interval.1", "latency_bound_s", "duration_s", "disturbed_s"}
    wanted |= {"rail", "board", "base_mode", "workload", "grid_size", "seed", "measurements", "trials", "idle_power_w"}
    assert wanted <= {path for path, _ in found.told}


def read_number(text: str) -> tuple[float, float]:
    """What a reader takes it for, in SI units, and half of its last digit."""
    found = re.fullmatch(r"±?\s*([−-]?[\d\s.]*\d)(?:\s?([mµ]?)(%|J|W|s|min|MHz|/s|windows?|candidates?))?", text)
    assert found is not None, text
    digits = re.sub(r"\s", "", found[1]).replace("−", "-")
    factor = {"m": 1e-3, "µ": 1e-6}.get(found[2] or "", 1.0) * {"%": 0.01, "min": 60.0, "MHz": 1e6}.get(found[3], 1.0)
    return float(digits) * factor, 0.5 * 10.0 ** -len(digits.partition(".")[2]) * factor


def test_every_number_that_is_read_on_the_page_is_the_one_behind_it(made: Made) -> None:
    told = re.findall(r'<data data-json="([^"]+)" value="([^"]+)">([^<]*)</data>', made.html.decode())
    numbers = [(path, json.loads(unescape(value)), unescape(text)) for path, value, text in told]
    numbers = [each for each in numbers if isinstance(each[1], int | float) and not isinstance(each[1], bool)]
    assert len(numbers) >= 40
    for path, value, text in numbers:
        shown, half = read_number(text)
        wanted = value
        if path.endswith(".energy_se_j"):  # shown as a share of its energy
            wanted = value / lookup(made.result, path.replace("_se_j", "_j"))
        digits = 0.005 * abs(wanted) if text.endswith("/s") else 0.0  # three digits are shown, also of thousands
        assert abs(shown - wanted) <= 1.001 * half + digits, (path, value, text)


def test_the_page_and_the_json_beside_it_hold_the_whole_result(made: Made) -> None:
    found = seen(made.html)
    assert json.loads(found.texts["tune-json"]) == made.result
    assert json.loads((made.folder / "job.json").read_text())["result"] == made.result
    assert made.told["result"] == made.result
    assert {Path(name) for name in made.told["files"]} == {path for path in made.folder.rglob("*") if path.is_file()}


def test_the_decision_names_interval_rail_and_both_parts_of_the_error(made: Made) -> None:
    text = seen(made.html).texts["decision"].replace("\u00a0", " ")
    low, high = made.result["saving_interval"]
    assert f"95 % interval {100 * low:.1f} % to {100 * high:.1f} %" in text
    assert made.result["rail"] in text
    assert "by repeats" in text
    assert "by the sensor" in text
    parts = [float(part) for part in re.findall(r"± ([\d.]+) % by (?:repeats|the sensor)", text)]
    for name, (repeats, sensor) in zip(("winner", "reference"), (parts[:2], parts[2:]), strict=True):
        side = made.result[name]
        assert np.hypot(repeats, sensor) == pytest.approx(100 * side["energy_se_j"] / side["energy_j"], abs=0.011)


def test_each_window_has_its_line(made: Made) -> None:
    trials = [event["trial"] for event in Ledger(made.state).read().events if event["event"] == "trial"]
    text = seen(made.html).texts["windows"]
    assert text.count("kept the limits") + text.count("breaks a limit") == len(trials)
    values = [float(value) for value in re.findall(r'<data value="([^"]+)">', made.html.decode())]
    energies = [trial["measurement"]["energy_j"] for trial in trials if trial["measurement"] is not None]
    assert values == energies


# --- the file ---------------------------------------------------------------------------------------------


def test_it_loads_nothing_and_is_small(made: Made) -> None:
    found = seen(made.html)
    assert all(link.startswith("#") or link == "data:," for link in found.links), found.links
    text = made.html.decode()
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert "http:" not in text
    assert "https:" not in text
    assert "default-src 'none'" in text
    assert len(made.html) < _MOST_BYTES


def test_it_is_well_formed_with_ids_that_are_there_once(made: Made) -> None:
    found = seen(made.html)
    assert found.errors == []
    assert len(found.ids) == len(set(found.ids))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', made.html.decode()))
    used |= set(" ".join(re.findall(r'aria-labelledby="([^"]+)"', made.html.decode())).split())
    assert used <= set(found.ids)
    assert found.tags.count("svg") == found.tags.count("desc") >= 5
    assert found.tags.count("h1") == found.tags.count("main") == 1


def test_inline_figures_have_no_colour_that_would_stay_in_the_dark(made: Made) -> None:
    text = made.html.decode()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    for name, (day, _) in ink.COLOURS.items():
        assert day not in drawn, name
        assert f"--{name}:" in text
    assert "prefers-color-scheme:dark" in text


def test_figures_stand_alone_in_light_colours_and_turn_with_the_reader(made: Made) -> None:
    for name in ("energy-map", "front", "course", "power"):
        svg = (made.folder / "figures" / f"{name}.svg").read_text()
        assert svg.startswith("<svg xmlns=")
        assert ink.light("ink") in svg
        assert "prefers-color-scheme: dark" in svg
        assert "var(" not in svg
        assert (made.folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_colours_are_told_apart_from_each_other_and_from_black_and_white() -> None:
    days = [day for day, _ in ink.COLOURS.values()]
    assert len(set(days)) == len(days)
    assert not {"#000000", "#ffffff"} & set(days)


def test_the_same_job_makes_the_same_bytes(made: Made, tmp_path: Path) -> None:
    argv = ["report", made.result["job"], *BOARD, "--state-dir", str(made.state), "--out", str(tmp_path / "again")]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-m", "jouled.cli", *argv], env=environment, check=True, capture_output=True)
    for path in sorted(path for path in made.folder.rglob("*") if path.is_file()):
        assert (tmp_path / "again" / path.relative_to(made.folder)).read_bytes() == path.read_bytes(), path.name


def test_measured_and_predicted_are_told_apart_in_words_and_marks(made: Made) -> None:
    text = seen(made.html).texts["map"]
    assert "A prediction is no measurement" in text
    assert "measured" in text
    assert "predicted" in text


def test_power_over_time_comes_from_the_ledger_unless_samples_were_kept(made: Made) -> None:
    assert "in means of the ledger" in seen(made.html).texts["power"]
    found = find([made.state], "latest")
    traces = collect(found, {}).traces
    assert [trace.role for trace in traces] == ["reference", "winner"]
    for trace in traces:
        inside = [w for t, w in zip(trace.t_s, trace.power_w, strict=True) if 0 <= t <= trace.window_s]
        assert np.mean(inside) == pytest.approx(made.result[trace.role]["power_w"], rel=0.02)
        path = made.state / "samples" / made.result["job"] / f"{trace.number:04d}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        volts = np.full((4, 1), 5.0)
        t_s, window_s = np.arange(4.0), np.array([1.0, 3.0])
        np.savez(path, t_s=t_s, window_s=window_s, voltage_v=volts, current_a=volts, external_w=1.0)
    kept = collect(found, {}).traces
    for folder in sorted(made.state.glob("samples/**/*"), reverse=True):
        folder.unlink() if folder.is_file() else folder.rmdir()
    assert {trace.source for trace in kept} == {"samples"}
    assert list(kept[0].t_s) == [-1.0, 0.0, 1.0, 2.0]
    assert list(kept[0].power_w) == [26.0] * 4


# --- to do it again ---------------------------------------------------------------------------------------


def test_the_command_on_the_page_does_the_job_again(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    command = seen(made.html).texts["command"]
    words = command.split()
    assert words[:2] == ["jouled", "tune"]
    assert {"--latency-bound-ratio", "--grid", "--budget", "--sampler", "--seed"} <= set(words)
    state = made.state.with_name("again")
    assert main([*words[1:], "--state-dir", str(state), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["winner"] == made.result["winner"]
    assert again["saving_interval"] == made.result["saving_interval"]


def test_a_command_names_board_mode_and_what_only_the_file_can_say() -> None:
    result = {"board": "orin-nano-8gb", "base_mode": "15W", "workload": "det", "rail": "VDD_IN", "seed": 0}
    settings = (Setting("grid.clocks", '"both"', "--clocks"), Setting("job.watch_s", "30.0", ""))
    command = command_of(result, {}, settings, simulated="")
    assert command == "sudo jouled tune --base-mode 15W --config config.toml --clocks both --seed 0"
    fixed = command_of({**result, "method": "fixed"}, {}, (), simulated="")
    assert fixed == "jouled tune --base-mode 15W --fixed-mode --no-latency-bound --seed 0"


def test_a_flag_has_no_value_and_what_has_no_option_goes_to_the_file() -> None:
    given = [["target.no_latency_bound", "true", "command line"], ["job.watch_s", "30.0", "request"]]
    settings = settings_of(given, {"target.no_latency_bound": "--no-latency-bound"})
    command = command_of({"workload": "w", "seed": 1}, {}, settings, simulated="")
    assert command == "sudo jouled tune --config config.toml --no-latency-bound --seed 1"


def test_plans_grids_and_a_rate_given_as_options_are_options_again() -> None:
    given = [
        ["workload.default", '"engine"', "command line"],
        ["grid.shape", '"3x8x4"', "command line"],
        ["workloads.engine.engine", '["/opt/a b.plan", "/opt/b.plan"]', "command line"],
        ["workloads.engine.arrival", '"rate"', "command line"],
    ]
    result = {"workload": "engine", "arrival": "rate 30 Hz", "seed": 1}
    command = command_of(result, {}, settings_of(given, {"workload.default": "--workload"}), simulated="")
    plans = "--engine '/opt/a b.plan' --engine /opt/b.plan"
    assert command == f"sudo jouled tune --grid 3x8x4 {plans} --rate-hz 30 --seed 1"


def test_it_is_cited_by_the_name_in_the_citation_file() -> None:
    told = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text())
    assert told["cff-version"] == "1.2.0"
    assert (told["title"], told["license"], told["version"]) == (cite.TITLE, cite.LICENSE, "0.1.0")
    assert [author["name"] for author in told["authors"]] == [cite.AUTHORS]
    assert {"message", "type"} <= set(told)


# --- every outcome ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", sorted(EXIT_CODES))
def test_each_outcome_has_an_honest_page(outcome: str, made: Made) -> None:
    blank = JobResult(job="0123456789ab", outcome=outcome, reason_text="why <it> ended").as_json()
    if outcome == "tuned":
        blank = made.result
    found = seen(page(Job(result=blank), {}))
    assert found.errors == []
    text = found.texts["decision"]
    if outcome != "tuned":
        assert "why <it> ended" in text
        assert "less energy" not in found.texts["headline"]
        assert ("as it was found" in text) == (outcome != "board_fault")


def test_what_was_asked_to_be_least_comes_before_the_energy(made: Made) -> None:
    gained = {"gain_ratio": 0.125, "gain_interval": [0.1, 0.15], "saving_ratio": -0.02, "saving_interval": [-0.04, 0.0]}
    found = seen(page(Job(result=made.result | gained | {"objective": "throughput"}), {}))
    assert found.texts["headline"].replace("\u00a0", " ") == "12.5 % less time per frame"
    text = found.texts["decision"].replace("\u00a0", " ")
    assert "12.5 % less time (95 % interval 10.0 % to 15.0 %), which was asked for" in text
    assert "2.0 % more energy (95 % interval −0.0 % to 4.0 %" in text.replace(" 0.0 %", " −0.0 %")
    assert ("saving_interval.0", -0.04) in found.told


def test_a_job_that_was_killed_is_shown_without_a_decision(made: Made, tmp_path: Path) -> None:
    events = [event for event in Ledger(made.state).read().events if event["event"] not in ("finished", "decision")]
    cut = [event for event in events if event.get("phase") not in ("finals", "apply", "watching")]
    for event in cut:
        Ledger(tmp_path).append(event)
    job = collect(find([tmp_path], "latest"), {})
    assert not job.has_ended
    assert job.result["measurements"] == len(job.windows)
    found = seen(page(job, {}))
    assert "No end" in found.texts["headline"]
    assert "nothing of it is a decision" in found.texts["decision"]
    assert found.errors == []


def test_a_job_that_ended_before_anything_was_measured_has_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    thor = ["--virtual", "thor", "--state-dir", str(state)]
    assert main(["tune", *thor, "--latency-bound-ratio", "1.2", "--json"]) == 8
    result = json.loads(capsys.readouterr().out)
    told = report(capsys, state, tmp_path / "out")
    assert told["result"] == result
    assert [Path(name).name for name in told["files"]] == ["index.html", "job.json"]
    found = seen((tmp_path / "out" / "index.html").read_bytes())
    assert "No window was taken" in found.texts["invalid"]


def test_what_was_invalid_is_told_with_its_reason(made: Made) -> None:
    job = collect(find([made.state], "latest"), {})
    lost = json.loads(json.dumps(job.windows[1].trial.to_dict()))
    lost |= {"invalid": "throttled", "detail": "<cpu-throttle-alert>", "measurement": None, "infeasible": None}
    trial = type(job.windows[1].trial).from_dict(lost)
    windows = (job.windows[0], replace(job.windows[1], trial=trial), *job.windows[2:])
    found = seen(page(replace(job, windows=windows), {}))
    assert "throttled" in found.texts["invalid"]
    assert "<cpu-throttle-alert>" in found.texts["invalid"]
    assert found.errors == []


def test_simulated_joules_are_called_so_first(made: Made) -> None:
    assert "no measurement of any hardware" in seen(made.html).texts["simulated"]
    recorded = replace(collect(find([made.state], "latest"), {}), simulated="recorded")
    assert "no hardware was run" in seen(page(recorded, {})).texts["simulated"]
    assert "simulated" not in seen(page(replace(recorded, simulated=""), {})).texts


# --- finding and writing ----------------------------------------------------------------------------------


def test_an_unknown_job_is_an_error_that_says_where_was_looked(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["report", "nonesuch", *BOARD, "--state-dir", str(made.state), "--out", str(tmp_path / "out")])
    assert code == 2
    told = capsys.readouterr().err
    assert "no job 'nonesuch'" in told
    assert str(made.state) in told
    assert not (tmp_path / "out").exists()


def test_no_name_is_no_job(made: Made) -> None:
    with pytest.raises(UsageError, match="no job ''"):
        find([made.state], "")


@pytest.mark.parametrize("change", [{"winner": {}}, {"best_seen": []}, {"reference": 3}])
def test_a_result_of_another_shape_is_an_error_that_says_so(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    for event in find([made.state], "latest").events:
        result = {"result": {**event["result"], **change}} if event["event"] == "finished" else {}
        started = {"wall_s": "then"} if event["event"] == "job_started" else {}
        Ledger(tmp_path).append({**event, **result, **started})
    assert main(["report", *BOARD, "--state-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"job {made.result['job']} is not written as this version writes them" in said
    assert "to do:" in said


def test_no_job_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no job yet"):
        find([tmp_path], "latest")


def test_a_job_is_found_after_its_ledger_was_rotated_and_beside_damage(made: Made, tmp_path: Path) -> None:
    data = (made.state / "ledger.jsonl").read_bytes()
    first, rest = data[: data.index(b"\n") + 1], data[data.index(b"\n") + 1 :]
    (tmp_path / "ledger.2.jsonl").write_bytes(first)
    (tmp_path / "ledger.jsonl").write_bytes(b"no line\n" + rest + b'{"torn')
    for name in ("latest", made.result["job"]):
        found = find([tmp_path], name)
        assert found.events == find([made.state], "latest").events


def test_the_latest_of_several_folders_is_the_one_that_began_last(made: Made, tmp_path: Path) -> None:
    Ledger(tmp_path).append({"event": "job_started", "job": "old", "wall_s": 1.0})
    assert find([tmp_path, made.state], "latest").job == made.result["job"]


def test_other_files_stay_and_an_earlier_reports_own_go(tmp_path: Path) -> None:
    out = tmp_path / "out"
    listed = json.dumps({"files": ["index.html", "figures/old.svg", "figures/../../mine", "notes.txt"]}).encode()
    write(out, {"index.html": b"1", "figures/old.svg": b"1", "job.json": listed})
    for path in (out / "notes.txt", tmp_path / "mine", out / "figures" / "mine.png"):
        path.write_text("mine")
    write(out, {"index.html": b"2", "figures/new.svg": b"2", "job.json": b"{}"})
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    names = ("notes.txt", "index.html", "job.json", "figures/new.svg", "figures/mine.png")
    assert left == {"mine", *(f"out/{name}" for name in names)}
    assert (out / "index.html").read_text() == "2"


def test_a_file_in_the_way_and_a_folder_that_is_closed_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="wanted a folder, got a file"):
        write(tmp_path / "file", {"index.html": b""})
    for name in ("file/below", 300 * "a"):
        with pytest.raises(StateError, match="cannot be written"):
            write(tmp_path / name, {"index.html": b""})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_matplotlib_the_line_to_type_is_said(made: Made, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['matplotlib'] = None; from jouled.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = ["report", *BOARD, "--state-dir", str(made.state), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", blocked, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{sys.executable} -m pip install 'matplotlib>=3.8'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_report_writes_nothing_below_the_state_folder(made: Made) -> None:
    def state() -> Mapping[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in made.state.rglob("*")}

    before = state()
    collect(find([made.state], "latest"), {})
    assert state() == before
