"""`jouled modes`: the grid, and what the last workload has shown of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from jouled.board.board import discover, fingerprint
from jouled.board.modename import mode_name
from jouled.board.pending import Quarantine, read_quarantine
from jouled.board.support import tuning_refusal
from jouled.board.winner import winner_in_force
from jouled.cli.output import candidates_text, quantity, variant_name
from jouled.cli.site import open_site
from jouled.errors import NotPermittedError
from jouled.ledger import Ledger
from jouletune.space import Candidate, Variant

_KEPT = ("energy_j", "power_w", "latency_s", "latency_upper_s", "throughput_hz")


def modes(arguments: argparse.Namespace) -> int:
    """Print the grid with what is known of each mode, the measured ones first."""
    site = open_site(arguments)
    try:
        board = discover(site.host, site.config.board.base_mode)
        why = tuning_refusal(board.identity, board.file)
        if why is not None:
            print(f"jouled modes: {why}; the grid below is only what its tables would give", file=sys.stderr)
        space = site.make_space(board)
        marks = fingerprint(board, site.config.board.external_w)
        try:
            quarantine = read_quarantine(site.host.state_dir)
            winner = winner_in_force(site.host, marks)
            events = Ledger(site.host.state_dir).read().events
        except NotPermittedError as error:
            print(f"jouled modes: {error}; what was measured is not shown", file=sys.stderr)
            quarantine, winner, events = Quarantine(), None, ()
        in_force = space.candidates[space.reference] if winner is None else winner.candidate
        workload, seen = _measured(events, board.base_mode.name)
    finally:
        site.close()
    rows = []
    for index, candidate in enumerate(space.candidates):
        standing = quarantine.standing(candidate.mode, marks)
        states = [
            *(["reference"] if index == space.reference else []),
            *(["in force"] if candidate == in_force else []),
            *([standing.value] if standing is not None else []),
        ]
        rows.append(_row(candidate, states, seen.get(_key(asdict(candidate)))))
    named = {"board": board.file.name, "base_mode": board.base_mode.name, "workload": workload}
    if arguments.json:
        print(json.dumps({"schema": 1, **named, "grid_size": len(rows), "modes": rows}))
        return 0
    shape = " x ".join(f"{len(axis.values)} {axis.name.removesuffix('_hz')}" for axis in reversed(space.axes))
    axes = [axis.name for axis in space.axes]
    print(f"{named['board']} in {named['base_mode']}: {candidates_text(len(rows), axes)} ({shape})")
    print(_text(rows, workload, has_variants=len({str(row["variant"]) for row in rows}) > 1))
    return 0


def _key(candidate: Mapping[str, Any]) -> str:
    return json.dumps(candidate, sort_keys=True)


def _measured(events: Iterable[Mapping[str, Any]], base_mode: str) -> tuple[str | None, dict[str, Mapping[str, Any]]]:
    """The last workload that ran in this base mode, and its last valid capped trial of each candidate."""
    jobs: dict[str, str] = {}
    last: str | None = None
    seen: dict[str, dict[str, Mapping[str, Any]]] = {}
    for event in events:
        if event.get("event") == "job_started" and event.get("base_mode") == base_mode:
            last = jobs[str(event["job"])] = str(event["workload"])
        trial = event.get("trial")
        workload = jobs.get(str(event.get("job")))
        if trial and workload is not None and trial["invalid"] is None and trial["policy"] == "capped":
            seen.setdefault(workload, {})[_key(trial["candidate"])] = trial
    return last, {} if last is None else seen.get(last, {})


def _row(candidate: Candidate, states: list[str], trial: Mapping[str, Any] | None) -> dict[str, Any]:
    window = None if trial is None else trial["measurement"]
    return {
        "name": mode_name(candidate.mode),
        "mode": asdict(candidate.mode),
        "variant": asdict(candidate.variant),
        "state": states,
        "infeasible": None if trial is None else trial["infeasible"],
        "measured": None if window is None else {name: window[name] for name in _KEPT},
    }


def _text(rows: list[dict[str, Any]], workload: str | None, *, has_variants: bool) -> str:
    for row in rows:
        row["label"] = f"{row['name']:26}"
        if has_variants:
            row["label"] += f" {variant_name(Variant(**row['variant'])) or 'plain':24}"
    known = [row for row in rows if row["measured"] is not None or row["infeasible"] is not None]
    known.sort(key=lambda row: (row["measured"] is None, (row["measured"] or {}).get("energy_j", 0.0)))
    lines = []
    if known:
        gap = 26 if has_variants else 1
        lines += [
            f"measured under {workload}, capped:",
            f"  cores-CPU-GPU-EMC, MHz    {'':{gap}}energy    power   latency",
        ]
        lines += [_known_line(row) for row in known]
    untried = [row for row in rows if row not in known]
    lines += ["not measured:"] if untried and known else []
    lines += [f"  {row['label']} {_states(row)}".rstrip() for row in untried]
    return "\n".join(lines)


def _known_line(row: Mapping[str, Any]) -> str:
    window = row["measured"]
    if window is None:
        return f"  {row['label']} too slow, cut short {_states(row)}".rstrip()
    numbers = f"{quantity(window['energy_j'], 'J'):>7} {window['power_w']:6.1f} W  {quantity(window['latency_s'], 's')}"
    limit = f" ({row['infeasible']})" if row["infeasible"] else ""
    return f"  {row['label']} {numbers}{limit}  {_states(row)}".rstrip()


def _states(row: Mapping[str, Any]) -> str:
    return ", ".join(row["state"])
