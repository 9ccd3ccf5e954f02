"""Which meter a job on simulated time has: the simulated board's own sensors, and nothing of this machine's."""

from __future__ import annotations

from dataclasses import replace

from jouled.board.meter import BoardMeters, Chosen
from jouled.board.process import Processes

_OWN = "the board's own sensors measure its total"
_TABLE = "the table's energies stand for a meter"


def simulated_meter(processes: Processes, wanted: str, board: BoardMeters | None) -> Chosen:
    """As `choose_meter`. jtop and NVML would tell what this machine draws, in its own time: they are not asked."""
    assert board is not None, "a simulated board is a Jetson"
    if wanted in ("auto", "sysfs"):
        return Chosen(board.sysfs(), _OWN)
    why = f'{_OWN}: board.meter = "{wanted}" is for a real one'
    return Chosen(board.sysfs(), why, is_fallback=True)


def recorded_meter(processes: Processes, wanted: str, board: BoardMeters | None) -> Chosen:
    """As `simulated_meter`; there are no sensors, but the energies that the table has."""
    chosen = simulated_meter(processes, wanted, board)
    return replace(chosen, why=chosen.why.replace(_OWN, _TABLE))
