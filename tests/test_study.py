"""The study is told after the ledger and made anew from it; whatever befalls it, the search goes on the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jouled.ledger import Ledger
from jouled.study import open_storage, rebuild_study, study_path
from jouletune.search import Failed, Infeasible, Measured, Observation, Search
from jouletune.space import Candidate, PowerMode, Space

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

SPACE = Space.of([Candidate(PowerMode(gpu_hz=gpu, emc_hz=emc)) for gpu in range(1, 7) for emc in (1, 2)], 11)
BOUND_S = 0.05


def make_search(storage: RDBStorage | None, name: str | None) -> Search:
    return Search(SPACE, bound_s=BOUND_S, sampler="descent", storage=storage, study_name=name)


def observe(index: int) -> Observation:
    if index == 3:
        return Failed("throttled")
    mode = SPACE.candidates[index].mode
    gpu, emc = mode.gpu_hz or 0, mode.emc_hz or 0
    latency_s = 0.12 / gpu + 0.01 / emc
    if latency_s > 2 * BOUND_S:
        return Infeasible()
    energy_j = 1.0 + 0.1 * (gpu - 4) ** 2 + 0.05 * emc
    return Measured(energy_j, 0.01, latency_s, latency_s, 0.001, 20.0, latency_s <= BOUND_S)


def as_event(index: int, observation: Observation) -> dict[str, object]:
    fields = {name: getattr(observation, name) for name in type(observation).__dataclass_fields__}
    return {"event": "trial", "job": "a", "index": index, "kind": type(observation).__name__, "seen": fields}


def from_ledger(ledger: Ledger) -> list[tuple[int, Observation]]:
    kinds: dict[str, type[Measured] | type[Infeasible] | type[Failed]] = {
        kind.__name__: kind for kind in (Measured, Infeasible, Failed)
    }
    return [(event["index"], kinds[event["kind"]](**event["seen"])) for event in ledger.read().of_job("a", "trial")]


def run(search: Search, ledger: Ledger, *, windows: int, told_all: bool = True) -> None:
    """Ledger first, then study; unless `told_all`, killed between the two of the last window."""
    for left in reversed(range(windows)):
        index = search.ask()
        assert index is not None
        observation = observe(index)
        ledger.append(as_event(index, observation))
        if left or told_all:
            search.tell(index, observation)


def asked_from_memory(told: list[tuple[int, Observation]]) -> int | None:
    search = make_search(None, None)
    for index, observation in told:
        search.tell(index, observation)
    return search.ask()


@pytest.mark.parametrize("told_all", [True, False])
def test_search_made_anew_asks_what_the_ledger_implies(tmp_path: Path, told_all: bool) -> None:
    ledger = Ledger(tmp_path)
    with open_storage(tmp_path) as storage:
        run(rebuild_study(storage, "job-a", make_search, ()), ledger, windows=6, told_all=told_all)
    told = from_ledger(ledger)
    assert len(told) == 6
    with open_storage(tmp_path) as storage:
        search = rebuild_study(storage, "job-a", make_search, told)
        assert search.ask() == asked_from_memory(told)
        assert search.best(2) == make_best(told)


def make_best(told: list[tuple[int, Observation]]) -> list[int]:
    search = make_search(None, None)
    for index, observation in told:
        search.tell(index, observation)
    return search.best(2)


@pytest.mark.parametrize("damage", ["cut", "noise", "foreign", "missing", "link", "empty"])
def test_damaged_database_is_set_aside_and_made_anew(tmp_path: Path, damage: str) -> None:
    ledger, path = Ledger(tmp_path), study_path(tmp_path)
    with open_storage(tmp_path) as storage:
        run(rebuild_study(storage, "job-a", make_search, ()), ledger, windows=4)
    hurt(path, damage)
    told = from_ledger(ledger)
    with open_storage(tmp_path) as storage:
        search = rebuild_study(storage, "job-a", make_search, told)
        assert search.ask() == asked_from_memory(told)
    kept = sorted(found.name for found in tmp_path.glob("study.db.aside.*"))
    assert kept == ([] if damage in ("missing", "empty") else ["study.db.aside.1"])


def hurt(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        path.write_bytes(data[:4096] + bytes(reversed(data[4096:])))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    if damage == "foreign":
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE version_info (version_info_id INTEGER, schema_version INTEGER)")
            other.execute("INSERT INTO version_info VALUES (1, 999)")
    elif damage == "link":
        path.with_name("elsewhere").write_bytes(data)
        path.symlink_to("elsewhere")


def test_writer_killed_in_a_transaction_costs_nothing_that_was_told(tmp_path: Path) -> None:
    ledger, path = Ledger(tmp_path), study_path(tmp_path)
    with open_storage(tmp_path) as storage:
        run(rebuild_study(storage, "job-a", make_search, ()), ledger, windows=4)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE half AS SELECT hex(randomblob(20000)) AS x FROM trials")
        journal = path.with_name("study.db-journal").read_bytes()
        torn = path.read_bytes()
    path.write_bytes(torn)
    path.with_name("study.db-journal").write_bytes(journal)
    with open_storage(tmp_path) as storage:
        search = rebuild_study(storage, "job-a", make_search, from_ledger(ledger))
        assert search.ask() == asked_from_memory(from_ledger(ledger))


def test_other_jobs_studies_stay(tmp_path: Path) -> None:
    with open_storage(tmp_path) as storage:
        for name in ("job-a", "job-b"):
            run(rebuild_study(storage, name, make_search, ()), Ledger(tmp_path), windows=2)
        rebuild_study(storage, "job-a", make_search, ())
        again = make_search(storage, "job-b")
        assert len(again.study.trials) == 2
