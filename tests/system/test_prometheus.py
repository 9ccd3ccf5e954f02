"""A real Prometheus scrapes the daemon through a job on the virtual board: what each panel shows is what is so.

The truth is read from the ledger and from the board's files, the latter held still for the moment. Alerts fire and
clear with their times cut short. No root is needed; the server is the one that .ci/run takes out of its package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.scrape import WARM_UP, back_to_back
from tests.system.conftest import ask, wait_for

from jouled import __version__
from jouled.job.result import EXIT_CODES
from jouletune.trial import Invalid

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards"
PAGES = ("jouled.json", "jouled-fleet.json")
VARIABLES = {"$job": "jouled", "$instance": "orin"}
SETTLED_S = 2.5  # a look of the daemon, a reading of its sensors and a scrape of Prometheus, a second each
BOARD = ["--virtual", "agx-orin-64gb"]
_CONFIG = """\
schema = 1
[target]
latency_bound_ratio = 1.4
[job]
budget = 8
[keep]
verify_interval_s = 1.0
on_mismatch = "report"
[metrics]
energy_counter_hz = 1.0
"""
_SERVER = """\
global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}
rule_files: [{rules}]
scrape_configs:
  - job_name: jouled
    static_configs: [{{ targets: ["127.0.0.1:{port}"], labels: {{ instance: orin }} }}]
"""
_SHORTER = ((r"for: \d+m", "for: 1s"), (r"\[(15m|6h)\]", "[4s]"), (r"> 3600", "> 1"), (r"\[4s\]\) > 5", "[4s]) > 1"))


def _program(name: str) -> str:
    """The server's or promtool's path; .ci/run fetches both."""
    found = shutil.which(name, path=f"{ROOT}/build/prometheus/usr/bin") or shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def _running(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said, subprocess.Popen(argv, stdout=said, stderr=said, cwd=ROOT) as child:
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)


@dataclass
class Stage:
    """A daemon on a virtual board, and Prometheus beside it."""

    folder: Path
    daemon: int
    metrics: int
    port: int

    # --- Prometheus

    def get(self, what: str, **given: str | float) -> Any:
        """The data of an answer of its HTTP API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(given)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        found = self.get("query", query=expr, **({} if at_s is None else {"time": at_s}))
        result: list[dict[str, Any]] = found["result"]
        return result

    def scraped_after(self, wall_s: float) -> float:
        """The time of the first scrape that began later; queries at it see that one."""

        def look() -> float | None:
            found = self.query("timestamp(jouled_build_info)")
            return float(found[0]["value"][1]) if found and float(found[0]["value"][1]) > wall_s else None

        return wait_for(look, "scrape", 30)

    def firing(self) -> set[str]:
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    # --- the daemon and its board

    def request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        code, answer = ask(str(self.folder / "state/control.sock"), method, path, json.dumps(body))
        assert code in (200, 202), (code, answer)
        return answer

    def ledger(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self._lines("ledger.jsonl") if record.get("event") == event]

    def retunes(self) -> list[dict[str, Any]]:
        return [record for record in self._lines("daemon/requests.jsonl") if record.get("verb") == "retune"]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "state" / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def files(self, pattern: str) -> list[Path]:
        """The board's files that match."""
        return sorted((self.folder / "state/board").glob(pattern))

    def worker(self) -> int:
        (pid,) = Path(f"/proc/{self.daemon}/task/{self.daemon}/children").read_text().split()
        return int(pid)


@pytest.fixture(scope="module", name="stage")
def _stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    program, folder = _program("prometheus"), tmp_path_factory.mktemp("prometheus")
    rules = (RULES / "jouled.rules.yml").read_text()
    for long, short in _SHORTER:
        rules = re.sub(long, short, rules)
    (folder / "rules.yml").write_text(rules)
    (folder / "config.toml").write_text(_CONFIG)
    metrics, port = _free_port(), _free_port()
    (folder / "prometheus.yml").write_text(_SERVER.format(rules=folder / "rules.yml", port=metrics))
    daemon = [sys.executable, "-m", "jouled.cli", "run", *BOARD, "--state-dir", str(folder / "state")]
    daemon += ["--config", str(folder / "config.toml"), "--metrics-listen", f"127.0.0.1:{metrics}"]
    server = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    server += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with ExitStack() as stack:
        child = stack.enter_context(_running(daemon, folder / "daemon.log"))
        stack.enter_context(_running(server, folder / "prometheus.log"))
        stage = Stage(folder, child.pid, metrics, port)
        wait_for(lambda: _is_ready(stage), f"scrape: {folder}", 60)
        yield stage


def _is_ready(stage: Stage) -> bool:
    try:
        return bool(stage.query("jouled_mode_in_force"))
    except OSError:
        return False


def _number(path: Path) -> int:
    return int(path.read_text())


# --- what is so ---------------------------------------------------------------------------------------------

_INA = "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*"
_TOTAL = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
_ZONE = "sys/devices/virtual/thermal/thermal_zone*/type"
_GPU, _CPU = "sys/class/devfreq/17000000.gpu", "sys/devices/system/cpu/cpufreq/policy*"
_EMC = "sys/kernel/debug/bpmp/debug/clk/emc/rate"
_EMC_CAP = "sys/kernel/nvpmodel_clk_cap/emc"
_DOMAINS = ("cpu", "gpu", "emc")


@dataclass(frozen=True)
class Plant:
    """The board as its files have it."""

    rails_w: Mapping[str, float]
    zones_c: Mapping[str, float]
    clock_hz: Mapping[str, float]
    cap_hz: Mapping[str, float]
    events: Mapping[str, float]

    @property
    def mode(self) -> str:
        caps_mhz = [f"{self.cap_hz[domain] / 1e6:g}" for domain in ("cpu", "gpu", "emc")]
        return "-".join(["12", *caps_mhz])


def read_plant(stage: Stage) -> Plant:
    rails_w = {}
    for label in stage.files(f"{_INA}/in?_label"):
        name, number = label.read_text().strip(), label.name[2]
        if name in _TOTAL:
            volts, amperes = (_number(label.with_name(f"{kind}{number}_input")) / 1000 for kind in ("in", "curr"))
            rails_w[name] = volts * amperes
    zones_c = {path.read_text().strip(): _number(path.with_name("temp")) / 1000 for path in stage.files(_ZONE)}
    events = {
        path.name.removesuffix("_event_cnt"): float(_number(path))
        for path in stage.files("sys/class/hwmon/hwmon*/oc?_event_cnt")
    }
    clocks = [(f"{_CPU}/scaling_cur_freq", 1000), (f"{_GPU}/cur_freq", 1), (_EMC, 1)]
    caps = [(f"{_CPU}/scaling_max_freq", 1000), (f"{_GPU}/max_freq", 1), (_EMC_CAP, 1)]

    def highest(paths: list[tuple[str, int]]) -> dict[str, float]:
        found = zip(_DOMAINS, paths, strict=True)
        return {name: float(max(map(_number, stage.files(path))) * unit) for name, (path, unit) in found}

    return Plant(rails_w, zones_c, highest(clocks), highest(caps), events)


def truth(stage: Stage, at_s: float, reference: str) -> dict[str, dict[str, Any]]:
    """What each panel must show at `at_s`, by its title: what a series is called → its value."""
    plant, results = read_plant(stage), [record["result"] for record in stage.ledger("finished")]
    jobs = {record["job"]: record["wall_s"] for record in stage.retunes()}
    running = [wall_s for job, wall_s in jobs.items() if job not in {result["job"] for result in results}]
    decided = [result for result in results if result["applied"]]
    found = _sensed(plant) | _counted(stage, results)
    found |= _standing("tuning" if running else "idle", reference if running else plant.mode, bool(decided))
    if running:
        found["The job that runs"] = found["Trials"]
        found["Job running for"] = {"running for": pytest.approx(at_s - running[0], abs=1.0)}
        found["Alerts"] = {"orin JouledJobTooLong": 1.0}
    return found | (_decision(stage, decided[-1], at_s) if decided else {})


def _standing(state: str, mode: str, has_winner: bool) -> dict[str, dict[str, Any]]:
    """What the board is in, and what only something wrong would change."""
    is_right, source = float(state == "idle"), "winner" if has_winner else "reference"
    return {
        "State": {state: 1.0},
        "State over time": {state: 1.0},
        "State by board": {f"orin {state}": 1.0},
        "Power mode": {f"{mode} ({source})": 1.0},
        "Power mode over time": {f"{mode} ({source}, capped)": 1.0},
        "In force": {"in force": is_right},
        "Wrong knobs": {"wrong": 0.0},
        "Quarantined modes": {"modes": 0.0},
        "Board": {"p3701-0005 L4T 36.4.3 MAXN": 1.0},
        "jouled": {__version__: 1.0},
        "Put right, taken back": {"put in force again": 0.0, "rolled back": 0.0},
        "Boards that answer": {"boards": 1.0},
        "Winner in force": {"boards": is_right if has_winner else 0.0},
        "Not in force": {"boards": 0.0},
        "Tuning": {"boards": float(state == "tuning")},
        "Stale winners": {"boards": 0.0},
        "Held": {"boards": 0.0},
        "Boards A": {state: 1.0},
        "Boards B": {mode: 1.0},
        "Boards C": {"orin": is_right},
        "Boards G": {"orin": 0.0},
    }


def _sensed(plant: Plant) -> dict[str, dict[str, Any]]:
    """What the sensors say."""
    power_w, hottest_c = sum(plant.rails_w.values()), max(plant.zones_c.values())
    found: dict[str, dict[str, Any]] = {
        "Power": {"power": power_w},
        "Power of all": {"power": power_w},
        "Power by board": {"orin": power_w},
        "Power by rail": dict(plant.rails_w),
        "Hottest zone": {"hottest": hottest_c},
        "Hottest zone by board": {"orin": hottest_c},
        "Temperature": dict(plant.zones_c),
        "Throttle events since boot": dict(plant.events),
        "Throttle events by board": {"orin": sum(plant.events.values())},
        "Readings that failed": dict.fromkeys(("rails", "clocks", "caps", *plant.events, *plant.zones_c), 0.0),
        "Boards E": {"orin": power_w},
        "Boards F": {"orin": hottest_c},
    }
    for domain in _DOMAINS:
        found[f"{domain.upper()} clock"] = {"clock": plant.clock_hz[domain], "cap": plant.cap_hz[domain]}
    return found


def _counted(stage: Stage, results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the ledger adds up to."""
    outcomes = {name: float(sum(result["outcome"] == name for result in results)) for name in EXIT_CODES}
    trials = {(record["job"], record["trial"]["index"], record["trial"]["policy"]) for record in stage.ledger("trial")}
    invalid = [record["trial"]["invalid"] for record in stage.ledger("trial")]
    disturbed_s = sum(result["disturbed_s"] for result in results)
    return {
        "Jobs by outcome": outcomes,
        "Jobs of all boards by outcome": outcomes,
        "Windows thrown away": {reason.value: float(invalid.count(reason.value)) for reason in Invalid},
        "Trials": {"trials": float(len(trials))},
        "Time disturbed": {"disturbed": disturbed_s},
        "Time disturbed by board": {"orin": disturbed_s},
        "Boards H": {"orin": disturbed_s},
    }


def _decision(stage: Stage, result: Mapping[str, Any], at_s: float) -> dict[str, dict[str, Any]]:
    """What only a winner has, from the ledger's last word."""
    sides = {"reference": result["reference"], "applied": result["winner"]}
    bound_s, saving = result["latency_bound_s"], 1 - sides["applied"]["energy_j"] / sides["reference"]["energy_j"]
    ended_s = (stage.folder / "state/ledger.jsonl").stat().st_mtime
    return {
        "Energy saved": {"saved": pytest.approx(saving)},
        "Energy saved by board": {"orin": pytest.approx(saving)},
        "Mean saving": {"saved": pytest.approx(saving)},
        "Boards D": {"orin": pytest.approx(saving)},
        "Energy per inference": {f"{which}, {result['rail']}": side["energy_j"] for which, side in sides.items()},
        "Latency and its bound": {"bound": bound_s}
        | {f"{which}, p95": side["latency_s"] for which, side in sides.items()},
        "Latency headroom": {"headroom": pytest.approx(1 - sides["applied"]["latency_s"] / bound_s)},
        "Last decision": {"ago": pytest.approx(at_s - ended_s, abs=2.5)},
        "Winner stale": {"stale": 0.0},
    }


# --- and what is shown --------------------------------------------------------------------------------------

LEGENDS = {"A": "{{state}}", "B": "{{mode}}"}  # of the table's columns; the others go by the board


def pages() -> list[dict[str, Any]]:
    return [json.loads((RULES / name).read_text()) for name in PAGES]


def panels() -> list[dict[str, Any]]:
    return [panel for page in pages() for panel in page["panels"] if panel["type"] != "row"]


def shown(stage: Stage, at_s: float) -> dict[str, dict[str, float]]:
    """By the panel's title (and the column of the table): what each series is called → its value."""
    found: dict[str, dict[str, float]] = {}
    for panel in panels():
        for target in panel["targets"]:
            title, legend = panel["title"], target["legendFormat"]
            if panel["type"] == "table":
                title, legend = f"{title} {target['refId']}", LEGENDS.get(target["refId"], "{{instance}}")
            for series in stage.query(target["expr"], at_s):
                name = legend
                for label, value in series["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                assert "{{" not in name, f"{title}: {name}"
                assert name not in found.setdefault(title, {}), f"{title}: two series are called {name}"
                found[title][name] = float(series["value"][1])
    return found


@dataclass(frozen=True)
class Moment:
    """What is so and what is shown, at once."""

    truth: Mapping[str, Mapping[str, Any]]
    shown: Mapping[str, Mapping[str, float]]
    plant: Plant
    at_s: float
    firing: frozenset[str]


def take(stage: Stage, reference: str) -> Moment:
    at_s = stage.scraped_after(time.time() + SETTLED_S)
    firing = frozenset(stage.firing())
    return Moment(truth(stage, at_s, reference), shown(stage, at_s), read_plant(stage), at_s, firing)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _work_hard(stage: Stage) -> None:
    """A virtual board's files tell its sensors only at the end of a job; so that they differ, ours do now."""
    for pattern, factor in ((f"{_INA}/curr?_input", 3), (f"{_CPU}/scaling_cur_freq", 2)):
        for path in stage.files(pattern):
            path.write_text(f"{factor * _number(path)}\n")
    for number, path in enumerate(stage.files(_ZONE)):
        path.with_name("temp").write_text(f"{50_000 + 1_500 * number}\n")


@pytest.fixture(scope="module", name="moments")
def _moments(stage: Stage) -> Mapping[str, Moment]:
    reference = read_plant(stage).mode
    found = {"idle": take(stage, reference)}
    stage.request("POST", "/v1/retune", {})
    wait_for(lambda: len(stage.ledger("trial")) >= 4, "trial")
    with _stopped(stage.worker()):
        _work_hard(stage)
        found["tuning"] = take(stage, reference)
    wait_for(lambda: stage.ledger("finished"), "end of the job")
    wait_for(lambda: stage.request("GET", "/v1/status")["state"] == "idle", "rest")
    found["tuned"] = take(stage, reference)
    return found


BY_TIME = {"Last read back", "Energy counted"}


@pytest.mark.parametrize("name", ["idle", "tuning", "tuned"])
def test_each_panel_shows_what_is_so(moments: Mapping[str, Moment], name: str) -> None:
    moment = moments[name]
    seen = {title: dict(series) for title, series in moment.shown.items() if title not in BY_TIME}
    for title in sorted(seen.keys() | moment.truth.keys()):
        wanted = {
            label: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for label, value in moment.truth.get(title, {}).items()
        }
        assert seen.get(title) == wanted, title


def test_every_panel_has_shown_something(moments: Mapping[str, Moment]) -> None:
    seen = {title.removesuffix(f" {title[-1]}") for moment in moments.values() for title in moment.shown}
    seen |= {title for moment in moments.values() for title in moment.shown}
    assert {panel["title"] for panel in panels()} <= seen


def test_the_knobs_were_read_back_a_moment_ago_but_not_by_the_daemon_while_a_job_runs(
    moments: Mapping[str, Moment],
) -> None:
    ago_s = {name: moment.shown["Last read back"]["ago"] for name, moment in moments.items()}
    assert 0 <= ago_s["idle"] < SETTLED_S
    assert 0 <= ago_s["tuned"] < SETTLED_S
    assert ago_s["tuning"] == pytest.approx(
        moments["tuning"].shown["Job running for"]["running for"], abs=2 * SETTLED_S
    )


def test_joules_are_the_plants_watts_over_time(moments: Mapping[str, Moment]) -> None:
    idle, later = moments["idle"], moments["tuning"]
    joules = idle.shown["Energy counted"]
    seconds = {rail: joules[rail] / watts for rail, watts in idle.plant.rails_w.items()}
    assert max(seconds.values()) == pytest.approx(min(seconds.values()), rel=1e-9)
    assert min(seconds.values()) > 1.0
    took_s = later.at_s - idle.at_s
    for rail, watts in idle.plant.rails_w.items():
        grown = later.shown["Energy counted"][rail] - joules[rail]
        assert (took_s - 2.5) * watts <= grown <= 3.1 * watts * took_s
        assert moments["tuned"].shown["Energy counted"][rail] > later.shown["Energy counted"][rail]


def test_the_scrapes_left_nothing_out(stage: Stage, moments: Mapping[str, Moment]) -> None:
    (found,) = stage.query("min_over_time(up[5m])")
    assert found["value"][1] == "1"
    took_s = moments["tuned"].at_s - moments["idle"].at_s
    (count,) = stage.query(f"count_over_time(jouled_build_info[{took_s:.0f}s])", moments["tuned"].at_s)
    assert float(count["value"][1]) >= took_s - 3


def test_two_thousand_scrapes_leave_nothing_behind(stage: Stage) -> None:
    back_to_back(stage.metrics, WARM_UP)
    before_kib = _resident_kib(stage.daemon)
    back_to_back(stage.metrics, 2000)
    assert _resident_kib(stage.daemon) - before_kib < 512  # a byte that each left would be 2 KiB, a line 200


def _resident_kib(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


# --- what promtool says -------------------------------------------------------------------------------------


def _promtool(*argv: str, stdin: str = "") -> tuple[int, str]:
    program = _program("promtool")
    done = subprocess.run([program, *argv], input=stdin, capture_output=True, text=True, cwd=RULES, check=False)
    return done.returncode, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_rules_configuration_and_metrics(stage: Stage) -> None:
    code, said = _promtool("check", "rules", "jouled.rules.yml")
    assert (code, "SUCCESS: 18 rules found" in said) == (0, True), said
    code, said = _promtool("check", "config", str(stage.folder / "prometheus.yml"))
    assert (code, "FAILED" in said) == (0, False), said
    with urllib.request.urlopen(f"http://127.0.0.1:{stage.metrics}/metrics", timeout=30) as answer:
        assert _promtool("check", "metrics", stdin=answer.read().decode()) == (0, "")


def test_promtool_finds_nothing_wrong_with_the_documents_configuration(tmp_path: Path) -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    found = re.search(r"```yaml\n(rule_files.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "prometheus.yml").write_text(found[1])
    shutil.copy(RULES / "jouled.rules.yml", tmp_path)
    code, said = _promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert (code, "FAILED" in said) == (0, False), said


def test_every_alert_fires_and_clears_in_promtools_own_time() -> None:
    code, said = _promtool("test", "rules", "jouled.rules.test.yml")
    assert (code, "SUCCESS" in said) == (0, True), said


@pytest.mark.parametrize("page", range(len(PAGES)))
def test_the_variables_find_the_job_and_the_board(stage: Stage, page: int) -> None:
    found = []
    for variable in pages()[page]["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert match is not None, variable
        series = stage.query(match[1])
        found.append({each["metric"][match[2]] for each in series})
    assert found == [{"jouled"}, {"orin"}]


def test_annotations_mark_new_modes_and_jobs(stage: Stage, moments: Mapping[str, Moment]) -> None:
    (page,) = [page for page in pages() if page["uid"] == "jouled-board"]
    mode, job = (note["expr"] for note in page["annotations"]["list"])
    assert [series["metric"]["source"] for series in stage.query(mode, moments["tuned"].at_s)] == ["winner"]
    assert len(stage.query(job, moments["tuning"].at_s)) == 1
    assert stage.query(job, moments["tuned"].at_s) == []


# --- alerts, live -------------------------------------------------------------------------------------------


def test_the_alert_of_a_job_fires_while_it_is_too_long_and_clears_with_it(moments: Mapping[str, Moment]) -> None:
    fired = {name: "JouledJobTooLong" in moment.firing for name, moment in moments.items()}
    assert fired == {"idle": False, "tuning": True, "tuned": False}


def _fires_and_clears(stage: Stage, path: Path, wrong: str | None, *names: str) -> None:
    """While `path` holds `wrong` (None: cannot be read)."""
    text = path.read_text()
    assert not stage.firing() & set(names)
    if wrong is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_text(wrong)
    wait_for(lambda: stage.firing() >= set(names), f"alert of {names}", 30)
    if wrong is None:
        path.rmdir()
    path.write_text(text)
    wait_for(lambda: not stage.firing() & set(names), f"end of the alert of {names}", 30)


@pytest.mark.usefixtures("moments")
def test_a_knob_that_somebody_has_changed_fires_and_clears(stage: Stage) -> None:
    (path,) = stage.files(f"{_GPU}/max_freq")
    _fires_and_clears(stage, path, "306000000\n", "JouledMismatch", "JouledNotInForce")


@pytest.mark.usefixtures("moments")
def test_over_current_events_fire_and_clear(stage: Stage) -> None:
    path = stage.files("sys/class/hwmon/hwmon*/oc1_event_cnt")[0]
    before = _number(path)
    path.write_text(f"{before + 7}\n")
    wait_for(lambda: "JouledThrottling" in stage.firing(), "alert", 30)
    wait_for(lambda: "JouledThrottling" not in stage.firing(), "end of the alert", 30)


@pytest.mark.usefixtures("moments")
def test_a_sensor_that_is_lost_fires_and_clears(stage: Stage) -> None:
    (path,) = [path for path in stage.files(_ZONE) if path.read_text().strip() == "tj-thermal"]
    _fires_and_clears(stage, path.with_name("temp"), None, "JouledSensorLost")
