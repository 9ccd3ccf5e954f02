"""optuna-dashboard, the real server, opens a job's study as it lies there."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import wait_for

from jouled.cli import main
from jouled.study import study_path

pytestmark = pytest.mark.skipif(find_spec("optuna_dashboard") is None, reason="needs optuna-dashboard")


def get(port: int, path: str) -> dict[str, Any] | None:
    """The body as JSON; None: nobody listens yet."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", path)
        except ConnectionRefusedError:
            return None
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        found: dict[str, Any] = json.loads(answer.read())
        return found


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a finished job on the virtual board."""
    folder = tmp_path_factory.mktemp("job")
    options = ["--virtual", "agx-orin-64gb", "--state-dir", str(folder), "--sampler", "joule"]
    assert main(["tune", *options, "--latency-bound-ratio", "1.2", "--budget", "9", "--json"]) == 0
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def port(job: Path) -> Iterator[int]:
    """Where a dashboard of the job's study listens."""
    number = free_port()
    code = "import sys; from optuna_dashboard._cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, f"sqlite:///{study_path(job)}", "--host", "127.0.0.1", "--port", str(number)]
    with subprocess.Popen([*argv, "--server", "wsgiref", "--quiet"], stdin=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: get(number, "/api/studies"), "answer of the dashboard", 60)
            yield number
        finally:
            server.kill()


def told(job: Path) -> list[dict[str, Any]]:
    """What the search was told, by the ledger."""
    events = [json.loads(line) for line in (job / "ledger.jsonl").read_text().splitlines()]
    trials = [event["trial"] for event in events if event["event"] == "trial"]
    return [trial for trial in trials if trial["purpose"] in ("reference", "search")]


def test_trials_values_and_attributes_are_there(port: int, job: Path) -> None:
    listed = get(port, "/api/studies")
    assert listed is not None
    (summary,) = listed["study_summaries"]
    study = get(port, f"/api/studies/{summary['study_id']}")
    assert study is not None
    assert study["name"].startswith("job-")
    assert study["directions"] == ["minimize"]
    axes = json.loads({one["key"]: one["value"] for one in study["user_attrs"]}["axes"])
    assert set(axes) == {"cpu_hz", "gpu_hz", "emc_hz"}
    for shown, trial in zip(study["trials"], told(job), strict=True):
        noted = {one["key"]: one["value"] for one in shown["user_attrs"]}
        assert int(noted["candidate"]) == trial["index"]
        mode = {one["name"]: axes[one["name"]][int(one["param_external_value"])] for one in shown["params"]}
        assert mode == {name: trial["candidate"]["mode"][name] for name in axes}
        window = trial["measurement"]
        if window is not None:
            assert shown["state"] == "Complete"
            assert shown["values"] == [window["energy_j"]]
            assert float(noted["latency_s"]) == window["latency_s"]
            assert (float(noted["breach"]) > 0.0) == (trial["infeasible"] is not None)
        elif trial["infeasible"] is not None:
            assert (shown["state"], float(noted["breach"])) == ("Pruned", 1.0)


def test_page_is_served(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/dashboard/")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"<title>" in answer.read()
