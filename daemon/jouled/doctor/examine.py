"""All checks in the order in which they are read, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jouled.doctor import boards, others, probe, runner, sensing, system
from jouled.doctor.check import Check, Level, fault_of, guarded, unknown, warning
from jouled.doctor.patient import Patient
from jouled.doctor.unit import unit
from jouled.errors import ForbiddenError, JouledError, NotPermittedError, NotSupportedError

_BOARD: tuple[tuple[str, Callable[[Patient], Check]], ...] = (
    ("conf", boards.conf),
    ("mask", boards.mask),
    ("clocks", boards.clocks),
    ("knobs", boards.knobs),
    ("state", probe.state),
    ("method", probe.method),
)
_MACHINE: tuple[tuple[str, Callable[[Patient], Check]], ...] = (
    ("others", others.others),
    ("boot", others.at_boot),
    ("cores", others.cores),
    ("root", system.root),
    ("disk", system.disk),
    ("clock", system.clock),
    ("config", system.config),
)
_TITLE = 69  # of a line of 79
Workloads = Callable[[Patient], Iterator[Check]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`board` is None where none was recognised."""

    patient: Patient
    checks: tuple[Check, ...]

    @property
    def faults(self) -> tuple[Check, ...]:
        """What no job can run with."""
        return tuple(check for check in self.checks if check.level is Level.FAULT)

    @property
    def can_tune(self) -> bool | None:
        """None: as far as this user can see."""
        if self.faults:
            return False
        return True if self.patient.site.host.privileged else None

    @property
    def exit_code(self) -> int:
        """0 where a job can run."""
        return next((check.exit_code or 1 for check in self.faults), 0)

    @property
    def title(self) -> str:
        """Which board, release and mode."""
        patient = self.patient
        if patient.board is not None:
            found = patient.board.identity
            name, l4t, mode = patient.board.file.name, found.l4t or "not told", patient.board.base_mode.name
            whole = f"{name} ({found.module} on {found.carrier}), L4T {l4t}, in {mode}"
            is_told = found.carrier != "unknown" and len(whole) <= _TITLE
            return whole if is_told else f"{name} ({found.module}), L4T {l4t}, in {mode}"
        if patient.identity is not None:
            found = patient.identity
            return f"{found.model} ({found.module} on {found.carrier}), L4T {found.l4t or 'not told'}"
        return "no Jetson"


def examine(patient: Patient, *, workloads: Workloads = runner.workloads) -> Diagnosis:
    """Look at everything; nothing that goes wrong on the way ends it. `workloads` looks at what would be run."""
    return Diagnosis(patient, tuple(_checks(patient, workloads)))


def _checks(patient: Patient, workloads: Workloads) -> Iterator[Check]:
    yield guarded("board", lambda: boards.facts(patient))
    if patient.board is not None:
        for name, look in _BOARD:
            yield guarded(name, lambda look=look: look(patient))  # type: ignore[misc]  # mypy: default argument
    yield from _sensors(patient)
    for name, look in _MACHINE:
        yield guarded(name, lambda look=look: look(patient))  # type: ignore[misc]
    yield from workloads(patient)
    yield guarded("unit", lambda: unit(patient))


def _sensors(patient: Patient) -> Iterator[Check]:
    """On a Jetson the board's, elsewhere NVML's; of a board that was not recognised nothing is known."""
    if patient.board is None and patient.identity is not None:
        return
    try:
        yield from sensing.meter(patient)
    except (NotPermittedError, ForbiddenError):
        yield unknown("rails")
    except NotSupportedError as error:
        if patient.board is None:  # nobody has said that this machine has a GPU: fixed mode is what would need one
            yield warning("rails", f"no GPU whose power NVML tells, either ({error}): not for fixed mode")
        else:
            yield fault_of("rails", error)
    except JouledError as error:
        yield fault_of("rails", error)
    if patient.board is not None:
        yield guarded("heat", lambda: sensing.heat(patient))
