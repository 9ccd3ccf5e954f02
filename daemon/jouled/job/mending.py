"""What comes before anything else on a board that is held: a crash's remains are put right, the last boot is judged."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jouled.board.host import Host
from jouled.board.pending import note_boot
from jouled.board.restore import Found, RestoreReport, restore_held
from jouled.board.winner import set_damaged_aside
from jouled.errors import StateError
from jouled.job.changes import RESTORED, Change, keep_change
from jouled.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done before anything else; `warnings`: a sentence for each thing that somebody should know."""

    report: RestoreReport
    warnings: tuple[str, ...]


def mend(host: Host, *, who: str, why: str) -> Mended:
    """Finish what a crash left, judge what the last boot left. The board must be held.

    Neither a full disk nor a damaged ledger keeps the knobs from being put back. Raises as `restore_held` and
    `note_boot`.
    """
    report = restore_held(host)
    warnings = list(report.warnings)
    if report.found is not Found.NOTHING:
        text = f"job {report.job} was interrupted; {len(report.changed)} knobs were put back first"
        warnings.append(text)
    try:
        warnings += set_damaged_aside(host.state_dir)
        warnings += Ledger(host.state_dir).mend()
        if report.found is not Found.NOTHING:
            change = Change(RESTORED, who, why, None, None)
            more = {"job": report.job, "found": report.found.value, "changed": list(report.changed[:20])}
            keep_change(host, change, **more)
    except StateError as error:
        log.error("%s", error)
        warnings.append(str(error))
    note = note_boot(host)
    return Mended(report, (*warnings, note.text) if note.text else tuple(warnings))
