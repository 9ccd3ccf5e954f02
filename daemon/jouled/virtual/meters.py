"""Which meter a job on simulated time has: the simulated board's own sensors, and nothing of this machine's."""

from __future__ import annotations

from jouled.board.meter import BoardMeters, Chosen
from jouled.board.process import Processes

_OWN = "the board's own sensors measure its total"


def simulated_meter(processes: Processes, wanted: str, board: BoardMeters | None) -> Chosen:
    """As `choose_meter`. jtop and NVML would tell what this machine draws, in its own time: they are not asked."""
    assert board is not None, "a simulated board is a Jetson"
    if wanted in ("auto", "sysfs"):
        return Chosen(board.sysfs(), _OWN)
    why = f'{_OWN}: board.meter = "{wanted}" is for a real one'
    return Chosen(board.sysfs(), why, is_fallback=True)
