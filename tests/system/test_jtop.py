"""The real jtop service and its client beside jouled on virtual boards: they see the same, and neither is harmed.

The service runs as root in a mount namespace of its own (bench/jtop_peer.py).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.jtop_peer import VENV, Peer, jtop_service, why_not

from jouled.board.board import discover
from jouled.board.clocks import read_clocks
from jouled.board.grid import board_space
from jouled.board.jtop_meter import JtopMeter, Link, open_jtop
from jouled.board.modename import mode_name
from jouled.board.process import Processes
from jouled.board.rails import find_meter
from jouled.board.thermal import ThermalSensors
from jouled.cli import main
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.space import Variant

BOARDS = ("agx-orin-64gb", "orin-nano-8gb")
SET_MODE = """
import sys
from jtop import jtop
with jtop(interval=0.5) as board:
    board.nvpmodel.set_nvpmodel_name(sys.argv[1], force=sys.argv[2] == "force")
    for _ in range(4):
        board.ok()  # what is set is done later, and only while somebody listens
"""


class Desk:
    """A virtual board with jtop's service on it, and a client that follows it."""

    def __init__(self, folder: Path, board: str, stack: ExitStack) -> None:
        self.folder, self.board = folder, board
        self.machine = VirtualMachine(folder / "state" / "board", board=board)
        stack.callback(self.machine.close)
        self.machine.sensors.publish()
        self._refuse_cold_zones()
        self.peer: Peer = stack.enter_context(jtop_service(folder / "jtop", self.machine.root))
        self.python = str(self.peer.python())
        self.meter: JtopMeter = open_jtop(
            Processes(), self.machine.spec.total_rails, averaging_s=0.43, find=lambda: self.python
        )
        stack.callback(self.meter.close)

    def _refuse_cold_zones(self) -> None:
        """Zones of units that are off answer EAGAIN; a plain file cannot, but what lies there can be no file."""
        for kind in self.machine.root.glob("sys/devices/virtual/thermal/thermal_zone*/type"):
            if kind.read_text().lower().startswith("cv"):
                kind.with_name("temp").unlink()
                kind.with_name("temp").mkdir()

    @property
    def link(self) -> Link:
        return self.meter.linked()

    def seen(self) -> Mapping[str, Any]:
        """What the service has read since now: of two sets that come one after the other the first may be older."""
        for _ in range(2):
            self.link.next_sample()
        return self.link.lines[-1]

    def load(self, for_s: float) -> VirtualRunner:
        runner = VirtualRunner(self.machine, Arrival())
        runner.load(Variant())
        runner.begin()
        self.machine.clock.sleep(for_s)
        self.machine.sensors.publish()
        return runner

    def tune(self) -> JobResult:
        config = load(None, {"target.latency_bound_ratio": 1.3, "job.budget": 8})
        request = Request(config, "virtual", lambda board: board_space(board, config.grid))
        host = self.machine.host(self.folder / "state")
        ticker = self.machine.clock.every(1.0, lambda _: self.machine.sensors.publish())
        try:
            return run_job(host, request, self.machine.runner(Arrival()), cancellation=Cancellation())
        finally:
            ticker.stop()

    def set_mode(self, name: str, *, force: bool = False) -> None:
        """As the client does it: with `force` it answers YES where nvpmodel wants to reboot."""
        argv = self.peer.client(SET_MODE, name, "force" if force else "ask")
        subprocess.run(argv, capture_output=True, check=True, timeout=90)

    def verified(self, capsys: pytest.CaptureFixture[str], seen: str) -> tuple[int, str]:
        """Exit code and output of `jouled verify` as soon as the output holds `seen`."""
        for _ in range(40):
            code, said = self.verify(capsys)
            if seen in said:
                return code, said
            self.link.next_sample()
        raise AssertionError(f"no {seen!r} in {said}")

    def verify(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
        """`jouled verify` in a process of its own opens the tree anew; here it is told to."""
        capsys.readouterr()
        code = main(["verify", "--virtual", self.board, "--state-dir", str(self.folder / "state")])
        return code, capsys.readouterr().out


@pytest.fixture(params=BOARDS)
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    if (why := why_not()) is not None:
        pytest.skip(why)
    if not (VENV / "bin" / "jtop").exists():
        pytest.skip("needs jetson-stats")
    with ExitStack() as stack:
        yield Desk(tmp_path, request.param, stack)


# --- they see the same --------------------------------------------------------------------------------------


@pytest.mark.parametrize("for_s", [0.0, 20.0], ids=["idle", "under load"])
def test_rails_clocks_temperatures_and_mode_are_those_that_jouled_reads(desk: Desk, for_s: float) -> None:
    runner = desk.load(for_s) if for_s else None
    seen = desk.seen()
    _compare_rails(desk, seen["rails"])
    sysfs = desk.machine.sysfs
    board = discover(desk.machine.host(desk.folder / "state"))
    clocks = read_clocks(sysfs, board.domains)
    assert (seen["cpu_khz"], seen["gpu_khz"]) == (int(clocks.cpu_hz or 0) // 1000, int(clocks.gpu_hz or 0) // 1000)
    zones_c = {name.removesuffix("-thermal"): celsius for name, celsius in ThermalSensors(sysfs).read().zones_c.items()}
    assert seen["celsius"] == pytest.approx(zones_c, abs=0.001)
    assert len(zones_c) >= 5
    assert seen["mode"] == board.base_mode.name
    if runner is not None:
        runner.close()


def _compare_rails(desk: Desk, theirs: Mapping[str, Mapping[str, float]]) -> None:
    """Each rail to the milliwatt (jtop cuts it off), and no rail but those that there are."""
    labels = [c.label for chip in desk.machine.spec.chips for c in chip.channels if c is not None]
    assert sorted(theirs) == sorted(labels)
    meter = find_meter(desk.machine.sysfs, labels)
    for rail, (volts, amperes) in zip(meter.rails, meter.read(), strict=True):
        told = theirs[rail.name]
        assert (told["mv"], told["ma"]) == (round(1000 * volts), round(1000 * amperes)), rail.name
        assert 0 <= 1000 * volts * amperes - told["mw"] < 1, rail.name
    assert max(rail["mw"] for rail in theirs.values()) > 1000


def test_a_meter_by_jtop_adds_up_the_same_total(desk: Desk) -> None:
    runner = desk.load(20.0)
    desk.seen()
    own = find_meter(desk.machine.sysfs, desk.machine.spec.total_rails)
    sampling = desk.meter.sampling(desk.machine.clock, rate_hz=5.0)
    sampling.start()
    assert desk.meter.rail == own.rail
    assert sampling.power_w == pytest.approx(sum(volts * amperes for volts, amperes in own.read()))
    assert sampling.stop().lost == 0
    runner.close()


# --- and go on side by side ---------------------------------------------------------------------------------


def test_jtop_runs_unharmed_through_a_whole_job_and_a_mode_set_by_it_is_seen_as_anothers(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    before, base_mode = len(desk.link.lines), desk.seen()["mode"]
    result = desk.tune()
    assert (result.outcome, result.applied) == ("tuned", True)
    desk.seen()
    lines = desk.link.lines[before:]
    assert len(lines) >= 4
    assert {line["mode"] for line in lines} == {base_mode}, "a mode of jouled's keeps the base mode's name"
    wanted = {c.label for chip in desk.machine.spec.chips for c in chip.channels if c is not None}
    assert all(set(line["rails"]) == wanted for line in lines)
    assert desk.link.lost == 0
    assert desk.peer.is_alive()
    assert "Traceback" not in desk.peer.log
    desk.machine.close()
    assert desk.verify(capsys)[0] == 0
    _base_mode_again(desk, base_mode, capsys)
    if desk.board == "agx-orin-64gb":  # on the other every mode has a TPC mask of its own
        _another_mode(desk, base_mode, capsys)


def _base_mode_again(desk: Desk, base_mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same nvpmodel mode, set once more, takes the winner's caps away."""
    desk.set_mode(base_mode, force=True)
    code, said = desk.verified(capsys, "somebody else has written these knobs since jouled applied it")
    assert code == 5
    assert "max_freq: wanted " in said
    assert "jouled apply" in said


def _another_mode(desk: Desk, base_mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One with the same TPC mask, which needs no reboot."""
    spec = desk.machine.spec
    other = next(m.name for m in spec.modes if m.mask == spec.mode(base_mode).mask and m.name != base_mode)
    desk.set_mode(other)
    wanted = f"somebody else has taken {mode_name(_winner(desk))} out of force: base_mode {base_mode} -> {other}"
    code, _ = desk.verified(capsys, wanted)
    assert code == 0, "what the operator's tool has set since is the reference"
    assert desk.seen()["mode"] == other


def _winner(desk: Desk) -> Any:
    from jouled.board.winner import read_winner

    winner = read_winner(desk.folder / "state")
    assert winner is not None
    return winner.candidate.mode


def test_the_service_needs_root_as_on_a_board() -> None:
    assert (why_not() == "needs root") == (os.geteuid() != 0)
