"""Whether the runner's user can read what it is to run, and what is said where it cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jouled.board.process import Processes
from jouled.cli import main
from jouled.config import load
from jouled.config.tables import WorkloadEntry
from jouled.errors import ConfigError
from jouled.workload import users
from jouled.workload.access import files_to_try, refusals

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
USER = "nobody"


def entry_of(folder: Path, text: str) -> WorkloadEntry:
    path = folder / "config.toml"
    path.write_text(f'[workloads.detector]\narrival = "back_to_back"\n{text}\n')
    return load(path).workloads["detector"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that everybody may enter, up to the root."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


def test_what_is_tried_is_what_the_runner_touches(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, 'engine = ["/a.plan", "/b.plan"]\ninputs = "/i.npz"\noutputs = "/o.npz"')
    assert files_to_try(entry) == {
        "/a.plan": "r",
        "/b.plan": "r",
        "/i.npz": "r",
        "/o.npz": "r",
        "/usr/bin/python3": "x",
    }
    assert files_to_try(entry_of(tmp_path, 'kind = "command"\nargv = ["/opt/bench", "--loop"]')) == {"/opt/bench": "x"}


@AS_ROOT
def test_file_that_the_user_may_not_read_comes_with_the_line_that_lets_it(place: Path) -> None:
    engine = place / "a b.plan"
    engine.touch(mode=0o600)
    entry = entry_of(place, f'engine = "{engine}"\npython = "/bin/sh"')
    (found,) = refusals(Processes(), entry, USER)
    assert found.text == f"{engine}: user {USER} may not read {engine}"
    assert found.command == f"sudo setfacl -m u:{USER}:r '{engine}'"
    engine.chmod(0o644)
    assert list(refusals(Processes(), entry, USER)) == []


@AS_ROOT
def test_folder_on_the_way_is_named_and_not_the_file(place: Path) -> None:
    engine = place / "inner" / "a.plan"
    engine.parent.mkdir(mode=0o700)
    engine.touch()
    entry = entry_of(place, f'engine = "{engine}"\npython = "/bin/sh"')
    (found,) = refusals(Processes(), entry, USER)
    assert found.command == f"sudo setfacl -m u:{USER}:x {engine.parent}"


def test_file_that_is_not_there_is_no_matter_of_rights(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, f'engine = "{tmp_path}/none.plan"\npython = "/bin/sh"')
    (found,) = refusals(Processes(), entry, None)
    assert (found.text, found.command) == (f"{tmp_path}/none.plan: there is no such file", "")


def test_program_that_nobody_may_run_is_made_executable(tmp_path: Path) -> None:
    program = tmp_path / "loop.sh"
    program.touch(mode=0o644)
    (found,) = refusals(Processes(), entry_of(tmp_path, f'kind = "command"\nargv = ["{program}"]'), None)
    assert (found.how, found.command) == ("x", f"sudo chmod +x {program}")


def test_user_that_there_is_not_is_named(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, 'engine = "/a.plan"')
    with pytest.raises(ConfigError, match="no such user"):
        list(refusals(Processes(), entry, "nobody-of-that-name"))


@AS_ROOT
def test_check_config_prints_the_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(users, "RUNNER_USER", USER)
    engine = place / "a.plan"
    engine.touch(mode=0o600)
    entry_of(place, f'engine = "{engine}"\npython = "/bin/sh"')
    assert main(["check-config", "--config", str(place / "config.toml")]) == 2
    assert f"sudo setfacl -m u:{USER}:r {engine}" in capsys.readouterr().err


def test_check_config_notes_an_engine_that_is_not_there_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry_of(tmp_path, f'engine = "{tmp_path}/none.plan"\npython = "/bin/sh"')
    argv = ["check-config", "--config", str(tmp_path / "config.toml")]
    assert main(argv) == 0
    assert "note  workloads.detector" in capsys.readouterr().out
    assert main([*argv, "--json"]) == 0
    assert "no such file" in json.loads(capsys.readouterr().out)["notes"][0]
