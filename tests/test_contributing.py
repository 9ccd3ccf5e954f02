"""CONTRIBUTING.md's worked example is a board that boots, is found, and can be tuned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jouled.board import identity
from jouled.board.board import discover
from jouled.board.grid import board_space
from jouled.board.identity import board_files, parse_board_file
from jouled.board.rails import find_meter
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.virtual import specs
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival

PAPER = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    """The board of the paper: its file among the others, its twin made as the paper says."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAPER, re.DOTALL)
    (old, new, nearest, name) = re.findall(r"sed 's/(\S+)/(\S+)/' (\S+)\.toml >(\S+)\.toml", PAPER)[0]
    known = (*board_files(), parse_board_file(text, where=f"boards/{name}.toml"))
    monkeypatch.setattr(identity, "board_files", lambda: known)
    twins = tmp_path / "boards"
    twins.mkdir()
    (twins / f"{name}.toml").write_text((specs.BOARDS / f"{nearest}.toml").read_text().replace(old, new))
    monkeypatch.setattr(specs, "BOARDS", twins)
    return VirtualMachine(tmp_path / "board", board=name, programs="in_process")


def test_the_papers_board_is_found_with_its_total_and_tuned(tmp_path: Path, machine: VirtualMachine) -> None:
    host = machine.host(tmp_path)
    board = discover(host)
    assert (board.file.name, board.identity.module) == ("orin-nx-new", "p3767-0042")
    assert find_meter(host.sysfs, board.file.total_rails).rail == "VDD_IN"
    config = load(None, {"target.latency_bound_ratio": 1.3, "job.budget": 6})
    request = Request(config, "virtual:yolov8s-640", lambda found: board_space(found, config.grid))
    result = run_job(host, request, VirtualRunner(machine, Arrival()), cancellation=Cancellation())
    assert result.outcome in ("tuned", "no_gain"), result.hint
    assert "VDD_IN" in (result.rail or "")


def test_what_the_paper_calls_by_name_is_there() -> None:
    root = Path(__file__).parents[1]
    named = {path for path in re.findall(r"(?:`|\()((?:tests|docs|daemon)/[a-z/_.-]+\.(?:py|md|toml))", PAPER)}
    assert len(named) > 5
    for path in named - {"daemon/jouled/board/boards/orin-nx-new.toml"}:
        assert (root / path).is_file(), path
