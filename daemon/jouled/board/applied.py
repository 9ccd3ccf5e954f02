"""applied.json: the winner in force. It is there only while one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jouled.board.knobs import Knobs
from jouled.board.statefile import Fields, read_state, remove_durably, write_state
from jouled.board.target import ClocksPolicy
from jouled.errors import StateError
from jouletune.space import Candidate, PowerMode, Variant

_SCHEMA = "jouled.applied/1"


@dataclass(frozen=True, slots=True)
class Applied:
    """A winner, and what it holds for (fingerprint, workload and its marks, bound, percentile, policy).

    It is in force in the boot `boot_id` only. `home`: the knobs of the reference, which `apply reference` goes back to.
    `workload_marks`: engines by their content, variants, arrival (workload/marks.py).
    """

    candidate: Candidate
    policy: str
    fingerprint: Mapping[str, str]
    workload: str
    latency_bound_s: float | None
    latency_percentile: float
    decision_id: str
    wall_s: float
    boot_id: str
    home: Knobs
    workload_marks: Mapping[str, str] = field(default_factory=dict)


def applied_path(state_dir: Path) -> Path:
    """Where it lies."""
    return state_dir / "applied.json"


def mode_from_fields(fields: Fields) -> PowerMode:
    """A power mode as `asdict` wrote it. Raises StateError."""
    return PowerMode(
        cores=fields.integer_or_none("cores"),
        cpu_hz=fields.integer_or_none("cpu_hz"),
        gpu_hz=fields.integer_or_none("gpu_hz"),
        emc_hz=fields.integer_or_none("emc_hz"),
    )


def knobs_from_fields(fields: Fields, name: str) -> Knobs:
    """Knobs, each checked to be one. Raises StateError."""
    knobs = Knobs(fields.text_map(name))
    try:
        knobs.check()
    except StateError as error:
        raise StateError(f"{fields.path}: {name}: {error}", hint=error.hint) from error
    return knobs


def _candidate_from_fields(fields: Fields) -> Candidate:
    variant = fields.fields("variant")
    engine = variant.values.get("engine")
    return Candidate(
        mode_from_fields(fields.fields("mode")),
        Variant(
            engine=None if engine is None else variant.text("engine"),
            batch=variant.integer("batch"),
            instances=variant.integer("instances"),
        ),
    )


def applied_to_plain(applied: Applied) -> dict[str, object]:
    """JSON's own types only."""
    applied.home.check()
    return {
        **asdict(replace(applied, home=Knobs({}))),
        "fingerprint": dict(applied.fingerprint),
        "workload_marks": dict(applied.workload_marks),
        "home": dict(applied.home.values),
    }


def applied_from_fields(fields: Fields) -> Applied:
    """The inverse of `applied_to_plain`. Raises StateError."""
    return Applied(
        candidate=_candidate_from_fields(fields.fields("candidate")),
        policy=fields.one_of("policy", [policy.value for policy in ClocksPolicy]),
        fingerprint=fields.text_map("fingerprint"),
        workload=fields.text("workload"),
        latency_bound_s=fields.number_or_none("latency_bound_s"),
        latency_percentile=fields.number("latency_percentile"),
        decision_id=fields.text("decision_id"),
        wall_s=fields.number("wall_s"),
        boot_id=fields.text("boot_id"),
        home=knobs_from_fields(fields, "home"),
        workload_marks=fields.text_map("workload_marks") if "workload_marks" in fields.values else {},
    )


def write_applied(state_dir: Path, applied: Applied) -> None:
    """A winner is in force from now on. Raises StateError."""
    write_state(applied_path(state_dir), _SCHEMA, applied_to_plain(applied))


def read_applied(state_dir: Path) -> Applied | None:
    """The winner in force; None: the board is in its reference. Raises StateError."""
    fields = read_state(applied_path(state_dir), _SCHEMA)
    return None if fields is None else applied_from_fields(fields)


def delete_applied(state_dir: Path) -> bool:
    """No winner is in force from now on; False when there was none. Raises StateError."""
    return remove_durably(applied_path(state_dir))
