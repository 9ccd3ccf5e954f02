"""What runs workloads: the interpreter with TensorRT and pycuda, trtexec, the files, tried as their user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jouled.board.lock import read_holder
from jouled.board.process import Processes
from jouled.config.tables import WorkloadEntry
from jouled.doctor.check import Check, Level, ok, unknown, warning
from jouled.doctor.patient import Patient
from jouled.errors import ConfigError, NotPermittedError, ToolAbsentError, WorkloadError
from jouled.workload.access import refusals
from jouled.workload.process_runner import about, runner_argv
from jouled.workload.trtexec import PLACES
from jouled.workload.users import runner_user

_ABOUT_S = 60.0
_NOBODY = "none"
_WHO = re.compile(r"^tensorrt runner \(pid \d+\): ")
# By what a runner calls it (docs/workloads.md).
TO_DO: Mapping[str, str] = {
    "no_tensorrt": "sudo apt install python3-libnvinfer   # the system's Python alone has it",
    "no_pycuda": "sudo env PATH=/usr/local/cuda/bin:$PATH python3 -m pip install pycuda",
    "no_gpu": "sudo usermod -aG video,render {user}",
}


def workloads(patient: Patient) -> Iterator[Check]:
    """One check for each workload of the configuration; where there is none, of the interpreter that one would have."""
    holder = read_holder(patient.site.host)
    if holder is not None:  # a runner beside it would be a stranger on the job's GPU
        yield unknown("runner", f"not tried while pid {holder[0]} (jouled {holder[1]}) holds the board")
        return
    if not patient.config.workloads:
        yield _without_workload(patient)
    for name, entry in patient.config.workloads.items():
        yield _workload(patient.site.host.processes, name, entry)


def nothing_runs(text: str) -> Callable[[Patient], Iterator[Check]]:
    """For a site that starts no program: `text` says what stands in for one."""
    return lambda patient: iter((ok("runner", text),))


def trtexec_of(processes: Processes) -> str | None:
    """Where NVIDIA's trtexec lies; None: nowhere."""
    return next((path for path in map(processes.find, PLACES) if path is not None), None)


def _without_workload(patient: Patient) -> Check:
    """Nothing needs it yet, so nothing is a fault."""
    found = _workload(patient.site.host.processes, _NOBODY, WorkloadEntry())
    text = f"no workload is named yet; {found.text.removeprefix(f'{_NOBODY}: ')}"
    level = Level.WARNING if found.level is Level.FAULT else found.level
    return Check(found.name, level, text, found.to_do or ("docs/workloads.md tells how",))


def _workload(processes: Processes, name: str, entry: WorkloadEntry) -> Check:
    """Raises nothing: what is wrong with one workload does not hide another."""
    try:
        user = runner_user(entry)
        refused = list(refusals(processes, entry, user))
    except NotPermittedError as error:
        return unknown("runner", f"{name}: {error}")
    except ConfigError as error:
        return _fault(name, str(error), [error.hint], ConfigError.exit_code)
    if refused:
        text = "; ".join(refusal.text for refusal in refused)
        return _fault(name, text, [refusal.command for refusal in refused if refusal.command])
    if entry.kind == "command":
        return ok("runner", f"{name}: {entry.argv[0]} can be run{_as(user)}")
    if entry.kind == "trtexec":
        return _trtexec(processes, name)
    return _interpreter(processes, name, entry, user)


def _fault(name: str, text: str, to_do: Sequence[str], code: int = WorkloadError.exit_code) -> Check:
    return Check("runner", Level.FAULT, f"{name}: {text}", tuple(filter(None, dict.fromkeys(to_do))), code)


def _as(user: str | None) -> str:
    return "" if user is None else f" as {user}"


def _trtexec(processes: Processes, name: str) -> Check:
    found = trtexec_of(processes)
    if found is None:
        return _fault(name, f"no trtexec at {' nor on PATH as '.join(PLACES)}", ["sudo apt install libnvinfer-bin"])
    return ok("runner", f"{name}: {found}")


def _interpreter(processes: Processes, name: str, entry: WorkloadEntry, user: str | None) -> Check:
    try:
        told = about(processes, argv=runner_argv(entry.python), user=user, timeout_s=_ABOUT_S)
    except ToolAbsentError as error:
        return _fault(name, f"{entry.python}: {error}", ["name one that is there: workloads.NAME.python"])
    except WorkloadError as error:
        return _without(processes, name, entry, error, user)
    beside = "" if trtexec_of(processes) is None else "; trtexec is there, too"
    return ok("runner", f"{name}: {entry.python}{_as(user)} has {_versions(told)}{beside}")


def _versions(told: Mapping[str, Any]) -> str:
    versions = told.get("versions")
    known = versions if isinstance(versions, dict) else {}
    names = (("python", "Python"), ("tensorrt", "TensorRT"), ("pycuda", "pycuda"), ("cuda_driver", "CUDA"))
    parts = [f"{text} {known[key]}" for key, text in names if known.get(key)]
    return ", ".join([*parts, *filter(None, [told.get("gpu_name")])])


def _without(processes: Processes, name: str, entry: WorkloadEntry, error: WorkloadError, user: str | None) -> Check:
    """trtexec stands in where only bindings are missing, for plans that come back to back."""
    line = TO_DO.get(error.code, error.hint).format(user=user or "$USER")
    said = _WHO.sub("", str(error))
    text = said if entry.python in said else f"{entry.python}: {said}"
    found = trtexec_of(processes)
    can_stand_in = error.code in ("no_tensorrt", "no_pycuda") and entry.engine and entry.arrival == "back_to_back"
    if found is not None and can_stand_in:
        return warning("runner", f"{name}: {text}; {found} stands in", line)
    return _fault(name, text, [line])
