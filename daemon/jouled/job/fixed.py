"""Fixed mode: no knob is touched, only variants of the workload are compared; on a Jetson, or beside any NVIDIA GPU.

Nothing is written to the board, so there is nothing to restore and no snapshot. What a crash may leave are the job's
children: they are kept in children.json, and the next job ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import Board, discover, fingerprint
from jouled.board.host import Host
from jouled.board.identity import read_identity
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.lock import read_holder
from jouled.board.modename import mode_name
from jouled.board.orphans import end_orphans
from jouled.board.pending import Why
from jouled.board.process import Child
from jouled.board.snapshot import boot_id
from jouled.board.statefile import read_state, remove_durably, write_state
from jouled.errors import BusyError, NotSupportedError, StateError, UsageError
from jouled.job.blocks import Arm
from jouled.job.custody import Charge
from jouled.job.ending import Stopped
from jouled.job.enforcement import watched
from jouled.job.ground import Ground, open_meter
from jouled.job.lastround import Finding
from jouled.job.modes import Modes
from jouled.job.request import Request
from jouled.job.trials import Trials
from jouled.ledger import Ledger
from jouletune.decision import Outcome, stopped
from jouletune.space import Candidate, PowerMode, Space

METHOD = "fixed"
SYSTEM_RUN_DIR = "/run/jouled"

_CHILDREN_SCHEMA = "jouled.children/1"
_MOST_CHILDREN = 256


class HeldError(BusyError):
    """Somebody else turns the knobs of this board."""


# --- children -----------------------------------------------------------------------------------------------


def children_path(state_dir: Path) -> Path:
    """Where they are kept while a job in fixed mode runs."""
    return state_dir / "children.json"


class ChildList:
    """Keeps a job's mark and its children (`Processes.on_start`)."""

    def __init__(self, host: Host, mark: str) -> None:
        self._path = children_path(host.state_dir)
        self._mark = mark
        self._boot_id = boot_id(host.sysfs)
        self._children: tuple[Child, ...] = ()
        self._write()

    def __call__(self, child: Child) -> None:
        self._children = (*self._children, child)[-_MOST_CHILDREN:]
        self._write()

    def _write(self) -> None:
        listed = [{"pid": child.pid, "start_ticks": child.start_ticks} for child in self._children]
        content = {"mark": self._mark, "boot_id": self._boot_id, "children": listed}
        write_state(self._path, _CHILDREN_SCHEMA, content)


def read_children(host: Host) -> tuple[str, tuple[Child, ...]] | None:
    """Mark (the job's id) and children that the last job left; None: it ended well. Raises StateError.

    After a reboot pid and start tick may be another's, so no child is named: those of another boot are gone.
    """
    fields = read_state(children_path(host.state_dir), _CHILDREN_SCHEMA)
    if fields is None:
        return None
    if fields.values.get("boot_id") != boot_id(host.sysfs):
        return fields.text("mark"), ()
    listed = fields.list_of_fields("children")
    return fields.text("mark"), tuple(Child(one.integer("pid"), one.integer("start_ticks")) for one in listed)


# --- modes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedModes:
    """The one mode that there is. `actuator` only reads; None: the machine has no clocks that jouled knows."""

    actuator: Actuator | None

    @property
    def method(self) -> str:
        """What results say."""
        return METHOD

    def enter(self, mode: PowerMode, policy: ClocksPolicy, why: Why) -> None:
        """It is in force already."""

    def verify(self, mode: PowerMode, policy: ClocksPolicy) -> tuple[str, ...]:
        """Whether somebody else has changed a cap."""
        if self.actuator is None:
            return ()
        now = self.actuator.current()
        return () if now == mode else (f"the caps were {mode_name(mode)} and are {mode_name(now)}",)

    def survived(self) -> None:
        """No mode was tried."""


# --- custody ------------------------------------------------------------------------------------------------


class FixedCustody:
    """Of a machine whose knobs are left alone."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._host = charge.host
        self._actuator: Actuator | None = None

    def mend(self) -> None:
        """End what the last job has left running."""
        for sentence in Ledger(self._host.state_dir).mend():
            self._charge.warn(sentence)
        left = self._left()
        if left is None:
            return
        ended = end_orphans(*left)
        remove_durably(children_path(self._host.state_dir))
        if ended:
            pids = ", ".join(map(str, ended))
            self._charge.warn(f"job {left[0]} was interrupted and had left processes, which were ended: pid {pids}")

    def _left(self) -> tuple[str, tuple[Child, ...]] | None:
        try:
            return read_children(self._host)
        except StateError as error:  # its mark is lost; PDEATHSIG has ended our own runners all the same
            self._charge.warn(str(error))
            remove_durably(children_path(self._host.state_dir))
            return None

    def left_by(self) -> str | None:
        """As `Custody.left_by`."""
        left = self._left()
        return None if left is None else left[0]

    def survey(self) -> Ground:
        """As `Custody.survey`. Raises BusyError too, where a job turns knobs under us."""
        self._check_holder()
        try:
            read_identity(self._host.sysfs)
        except NotSupportedError:
            return self._gpu_host()
        return self._jetson()

    def _check_holder(self) -> None:
        """A lock of this user's own keeps root's jobs out of nothing: look whether one runs."""
        if self._host.run_dir == SYSTEM_RUN_DIR:
            return
        holder = read_holder(replace(self._host, run_dir=SYSTEM_RUN_DIR))
        if holder is not None:
            text = f"pid {holder[0]} (jouled {holder[1]}) holds the board and changes its modes"
            raise HeldError(text, hint="wait until it ends")

    def _jetson(self) -> Ground:
        request = self._charge.request
        board = discover(self._host, request.config.board.base_mode)
        found = read_knobs(self._host.sysfs, board.domains)
        self._actuator = Actuator(self._host, board, found, Method.SYSFS)
        return self._ground(board, found, self._actuator.current())

    def _gpu_host(self) -> Ground:
        return self._ground(None, Knobs({}), PowerMode())

    def _ground(self, board: Board | None, found: Knobs, mode: PowerMode) -> Ground:
        request = self._charge.request
        _check_size(request)
        space = Space.of([Candidate(mode, variant) for variant in request.variants], 0)
        opened = open_meter(self._host, request, board)
        gpu = opened.meter.gpu
        name, marks, versions = "unknown machine", {}, {}
        if board is not None:
            name, marks = board.file.name, fingerprint(board, request.config.board.external_w)
            versions = {"l4t": board.identity.l4t or "unknown"}
        elif gpu is not None:
            name, marks, versions = gpu.name, {"gpu": gpu.name, "uuid": gpu.uuid}, {"driver": gpu.driver}
        return Ground(
            name=name,
            base_mode=METHOD if board is None else board.base_mode.name,
            domains=None if board is None else board.domains,
            board=board,
            space=space,
            meter=opened.meter,
            meter_why=opened.why,
            observer=opened.observer,
            fingerprint=marks,
            found=found,
            home=found,
            incumbent=Arm(0, ClocksPolicy.CAPPED),
            applied=None,
            versions=versions,
            warnings=(*(() if board is None else board.warnings), *opened.warnings),
        )

    @contextmanager
    def kept(self, ground: Ground) -> Iterator[None]:
        """Children are kept in mind; there is nothing else to put back."""
        processes, job = self._host.processes, self._charge.job
        processes.mark = job
        processes.on_start = ChildList(self._host, job)
        try:
            yield
        finally:
            processes.on_start = None
            self._charge.runner.close()
            remove_durably(children_path(self._host.state_dir))

    def modes(self, ground: Ground) -> FixedModes:
        """The one mode that there is."""
        return FixedModes(self._actuator)

    def enforce(
        self, ground: Ground, finding: Finding, trials: Trials, modes: Modes, workload_marks: Mapping[str, str]
    ) -> bool:
        """Nothing is put in force; what was chosen is watched all the same. Raises Stopped."""
        winner = finding.decision.winner
        if winner is None:
            return False
        breach = watched(self._charge.events, trials, finding.arms[winner], self._charge.request.config.job.watch_s)
        if breach is not None:
            raise Stopped(stopped(Outcome.ROLLED_BACK, breach.code, breach.text))
        return False


def _check_size(request: Request) -> None:
    """Raise UsageError for more variants than a job may choose from."""
    size, count = request.config.grid.size, len(request.variants)
    if size != "full" and count > size:
        raise UsageError(
            f"{count} variants (engines × batch sizes × instances), more than grid.size = {size}",
            hint='name fewer, or set grid.size = "full"',
        )
