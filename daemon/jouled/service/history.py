"""What has happened, from the ledger and the requests: followed as they grow, kept small.

A job is one entry, whatever is known of it: its request, its course, its end. The whole of a job (its trials, its
result) is read from the ledger when somebody asks. Lines that are damaged are passed over and counted; the next job
sets them aside.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jouled.ledger import decode_line, rotated
from jouled.service.told import check_line
from jouled.state import Counters, LastJob
from jouletune.space import Candidate

log = logging.getLogger(__name__)

DECIDED = frozenset({"tuned", "no_gain", "no_feasible", "rolled_back"})
CHANGES = frozenset({"applied", "rolled_back", "restored"})
_LASTING = [f'"event":"{kind}"'.encode() for kind in ("finished", *sorted(CHANGES))]
_OF_JOBS = (b'"verb":"retune"', b'"event":"ended"')
_SHOWN = ("energy_j", "power_w", "latency_s", "throughput_hz")
_KEPT = 1000
_BUFFER_BYTES = 256 << 10
_LONGEST_LINE_BYTES = 4 << 20

Record = dict[str, Any]


class Tail:
    """The lines that a file of checksummed lines has gained since the last look. Another file of the name: all anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._file = (0, 0)
        self._offset = 0

    def records(self) -> Iterator[Record]:
        """The new ones, oldest first. A file that is not there, or may not be read, has none."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._offset:
                    self._file, self._offset = (found.st_dev, found.st_ino), 0
                if found.st_size > self._offset:
                    file.seek(self._offset)
                    yield from self._decoded(file)
        except OSError as error:
            log.debug("%s: %s", self.path, error)

    def _decoded(self, file: Any) -> Iterator[Record]:
        for line, length in _lines(file):
            self._offset += length
            try:
                if length > len(line):
                    raise ValueError(f"wanted at most {_LONGEST_LINE_BYTES} bytes, got {length}")
                yield _record(line)
            except ValueError as error:
                self.damaged += 1
                log.warning("%s: a line is passed over: %s", self.path, error)


def _lines(file: Any) -> Iterator[tuple[bytes, int]]:
    """Each line that is ended, of one beyond measure its end alone; how long it is.

    What is not ended is still being written, or torn: the next look sees it whole, or the next job sets it aside.
    """
    length = 0
    while piece := file.readline(_LONGEST_LINE_BYTES):
        length += len(piece)
        if piece.endswith(b"\n"):
            yield piece, length
            length = 0


@dataclass(slots=True)
class JobEntry:
    """What is remembered of one job. `outcome` None: it has not ended, as far as is known, or was a dry run.
    `is_presumed`: the daemon said that it was interrupted, which its own last word in the ledger overrules. `result`:
    what the worker said of one that is not in the ledger.
    """

    job: str
    who: str = ""
    request: Mapping[str, Any] | None = None
    accepted_wall_s: float | None = None
    started_wall_s: float | None = None
    ended_wall_s: float | None = None
    expected_s: float | None = None
    outcome: str | None = None
    reason_code: str | None = None
    reason_text: str = ""
    saving_ratio: float | None = None
    applied: bool = False
    duration_s: float | None = None
    has_ended: bool = False
    is_presumed: bool = False
    result: Record | None = None

    @property
    def began_wall_s(self) -> float:
        """When it was asked for, or began, whichever is known; 0 where neither is."""
        return self.accepted_wall_s or self.started_wall_s or 0.0

    def as_json(self) -> Record:
        """An entry of the history."""
        return {
            "kind": "job",
            "wall_s": self.accepted_wall_s or self.started_wall_s,
            "job": self.job,
            "who": self.who,
            "request": self.request,
            "outcome": self.outcome,
            "reason": {"code": self.reason_code, "text": self.reason_text},
            "saving_ratio": self.saving_ratio,
            "applied": self.applied,
            "started_wall_s": self.started_wall_s,
            "ended_wall_s": self.ended_wall_s,
            "duration_s": self.duration_s,
        }


@dataclass(slots=True)
class _Sums:
    jobs: dict[str, int] = field(default_factory=dict)
    trials: int = 0
    invalid: dict[str, int] = field(default_factory=dict)
    disturbed_s: float = 0.0
    rollbacks: int = 0
    last_tune_wall_s: float | None = None


class History:
    """Follows both files. `follow` reads what is new; everything else answers from memory or, where said, the file."""

    def __init__(self, ledger_path: Path, requests_path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._ledger = Tail(ledger_path)
        self._requests = Tail(requests_path)
        self._is_new = True
        self._jobs: dict[str, JobEntry] = {}
        self._order: deque[JobEntry | Record] = deque(maxlen=_KEPT)
        self._sums = _Sums()
        self._tried: tuple[str, set[tuple[Any, Any]]] = ("", set())
        self._measured: dict[str, Record] = {}
        self.decided: Record | None = None
        self.tuned: Record | None = None  # the last that put a winner in force; a no_gain after it does not end that
        self.last: JobEntry | None = None
        self.stood_aside = ""
        self.last_change: Record | None = None

    @property
    def damaged(self) -> int:
        """How many lines could not be read."""
        return self._ledger.damaged + self._requests.damaged

    def follow(self) -> None:
        """Take in what is new in the files."""
        if self._is_new:
            self._remember()
        for record in self._ledger.records():
            self._take_event(record)
        for record in self._requests.records():
            self._take_request(record)
        self._is_new = False

    def _remember(self) -> None:
        """What must stay known when a file has grown too large and begun anew: ends of jobs, changes, what was asked
        of jobs. The ledger comes first, so that it is known which jobs matter."""
        for path in rotated(self._ledger.path):
            for record in _marked(path, *_LASTING):
                self._take_event(record)
        for record in self._ledger.records():
            self._take_event(record)
        for path in rotated(self._requests.path):
            for record in _marked(path, *_OF_JOBS):
                self._take_request(record)

    def _entry(self, job: str) -> JobEntry:
        entry = self._jobs.get(job)
        if entry is None:
            entry = self._jobs[job] = JobEntry(job)
            self._keep(entry)
        return entry

    def _keep(self, newest: JobEntry | Record) -> None:
        """The oldest goes, but a job whose winner was applied stays known: its request tells whether that holds."""
        if len(self._order) == _KEPT and isinstance(oldest := self._order[0], JobEntry) and not oldest.applied:
            self._jobs.pop(oldest.job, None)
        self._order.append(newest)

    def _take_request(self, record: Record) -> None:
        job = record.get("job")
        if record.get("event") == "request" and record.get("verb") == "retune" and isinstance(job, str):
            entry = self._entry(job)
            entry.who, entry.request = str(record.get("who", "")), record.get("request")
            entry.accepted_wall_s = record.get("wall_s")
        elif record.get("event") == "ended" and isinstance(job, str):
            entry = self._entry(job)
            self._end(entry, record, record.get("wall_s"), is_presumed=bool(record.get("presumed", True)))
            entry.result = record.get("result")
        elif record.get("event") == "request":
            self._keep({"kind": "request", **{name: record[name] for name in record if name != "event"}})

    def _take_event(self, record: Record) -> None:
        kind, job = record.get("event"), record.get("job")
        if kind in CHANGES and "to" in record:
            self._take_change(record)
        if not isinstance(job, str):
            return
        if kind == "job_started":
            entry = self._entry(job)
            entry.started_wall_s, entry.expected_s = record.get("wall_s"), record.get("expected_s")
        elif kind == "trial":
            self._count(job, record.get("trial") or {})
        elif kind == "finished" and isinstance(record.get("result"), dict):
            self._take_result(self._entry(job), record["result"])
            if self._tried[0] != job:  # its trials went with a ledger that has begun anew
                self._count_result(record["result"])

    def _take_change(self, record: Record) -> None:
        self.last_change = record
        to_source = record.get("to_source")
        if record["event"] != "restored":
            is_reference = to_source == "reference" or record["to"] == "reference"
            self.stood_aside = str(record.get("why", "")) if is_reference and record["event"] == "applied" else ""
        self._sums.rollbacks += record["event"] == "rolled_back"
        self._keep({"kind": "change", **record})

    def _count(self, job: str, trial: Mapping[str, Any]) -> None:
        """A trial has one window or many; what was tried again is no other."""
        if self._tried[0] != job:
            self._tried = (job, set())
        tried = (trial.get("index"), trial.get("policy"))
        self._sums.trials += tried not in self._tried[1]
        self._tried[1].add(tried)
        invalid, window = trial.get("invalid"), trial.get("measurement")
        if invalid is None and isinstance(window, dict):
            self._measured[_key(trial.get("candidate"))] = {name: window.get(name) for name in _SHOWN}
        if isinstance(invalid, str):
            self._sums.invalid[invalid] = self._sums.invalid.get(invalid, 0) + 1

    def _count_result(self, result: Mapping[str, Any]) -> None:
        self._sums.trials += result.get("trials") or 0
        for reason, count in (result.get("invalid") or {}).items():
            self._sums.invalid[reason] = self._sums.invalid.get(reason, 0) + count

    def _take_result(self, entry: JobEntry, result: Record) -> None:
        started, duration_s = entry.started_wall_s, result.get("duration_s")
        entry.saving_ratio, entry.applied = result.get("saving_ratio"), bool(result.get("applied"))
        entry.duration_s = duration_s
        self.stood_aside = "" if entry.applied else self.stood_aside
        # A virtual board's seconds pass in no time: its job has not ended later than now.
        ended_wall_s = None if started is None or duration_s is None else min(started + duration_s, self._now_s())
        reason = result.get("reason") or {}
        self._end(entry, {"outcome": result.get("outcome"), "reason": reason}, ended_wall_s)
        self._sums.disturbed_s += result.get("disturbed_s") or 0.0
        if entry.outcome in DECIDED:
            self.decided = result
            self.tuned = result if result.get("outcome") == "tuned" else self.tuned
            self._sums.last_tune_wall_s = ended_wall_s

    def _end(
        self, entry: JobEntry, record: Mapping[str, Any], ended_wall_s: float | None, *, is_presumed: bool = False
    ) -> None:
        if entry.has_ended and (is_presumed or not entry.is_presumed):
            return
        # One that is overruled counts twice until the daemon starts anew: a counter never goes down.
        entry.has_ended, entry.is_presumed = True, is_presumed
        reason, outcome = record.get("reason") or {}, record.get("outcome")
        entry.outcome, entry.ended_wall_s = outcome, ended_wall_s
        entry.reason_code, entry.reason_text = reason.get("code"), str(reason.get("text") or "")
        if outcome is not None:
            self._sums.jobs[outcome] = self._sums.jobs.get(outcome, 0) + 1
            is_later = self.last is None or entry.began_wall_s >= self.last.began_wall_s
            self.last = entry if is_later or not self._is_new else self.last  # what ends now does, whatever the clock

    # --- answers ------------------------------------------------------------------------------------------

    def entries(self, limit: int) -> list[Record]:
        """The newest first. After a start all requests are read before the ledger, so the order is made by time."""
        found = [entry.as_json() if isinstance(entry, JobEntry) else dict(entry) for entry in reversed(self._order)]
        return sorted(found, key=lambda entry: -(entry.get("wall_s") or 0.0))[: max(0, limit)]

    def measured(self, candidate: Candidate) -> Record | None:
        """Its last valid measurement, of any job."""
        return self._measured.get(_key(asdict(candidate)))

    def entry(self, job: str) -> JobEntry | None:
        """What is remembered of a job."""
        return self._jobs.get(job)

    def open_jobs(self) -> list[JobEntry]:
        """Jobs that have not ended, as far as is known."""
        return [entry for entry in self._jobs.values() if not entry.has_ended]

    def last_job(self) -> LastJob | None:
        """How the last job ended."""
        last = self.last
        if last is None or last.outcome is None:
            return None
        return LastJob(last.job, last.outcome, last.reason_code, last.reason_text, last.ended_wall_s, last.saving_ratio)

    def counters(self, *, reapplies: int) -> Counters:
        """The sums."""
        sums = self._sums
        return Counters(
            reapplies=reapplies,
            rollbacks=sums.rollbacks,
            jobs=dict(sums.jobs),
            trials=sums.trials,
            trials_invalid=dict(sums.invalid),
            disturbed_s=sums.disturbed_s,
            last_tune_wall_s=sums.last_tune_wall_s,
        )

    def of_job(self, job: str, event: str | None = None) -> list[Record]:
        """All events (of a kind) of one job, read from the ledger and those that were rotated away."""
        mark = f'"job":"{job}"'.encode()
        found: list[Record] = []
        for path in (*rotated(self._ledger.path), self._ledger.path):
            found += [record for record in _marked(path, mark) if event in (None, record.get("event"))]
        return [record for record in found if record.get("job") == job]


def _record(line: bytes) -> Record:
    """A line that is whole, with everything in it of its type. Raises ValueError."""
    record = decode_line(line)
    check_line(record)
    return record


def _key(candidate: Any) -> str:
    return json.dumps(candidate, sort_keys=True)


def _marked(path: Path, *marks: bytes) -> Iterator[Record]:
    """The good lines that hold one of `marks`; only those are parsed."""
    try:
        with open(path, "rb", buffering=_BUFFER_BYTES) as file:
            for line in iter(lambda: file.readline(_LONGEST_LINE_BYTES), b""):
                if line.endswith(b"\n") and any(mark in line for mark in marks):
                    try:
                        yield _record(line)
                    except ValueError:
                        continue
    except OSError as error:
        log.debug("%s: %s", path, error)
