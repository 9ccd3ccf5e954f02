"""The study database: Optuna's view of a job, told after the ledger and made anew from it whenever in doubt."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jouled.board.statefile import set_aside
from jouled.errors import StateError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

    from jouletune.search import Observation, Search

log = logging.getLogger(__name__)


def study_path(state_dir: Path) -> Path:
    """Where it lies."""
    return state_dir / "study.db"


def _damage(path: Path) -> str | None:
    """What is wrong with the database; None: nothing, or there is none."""
    if not path.exists():
        return None
    try:
        # mode=rw: what a killed writer left half done is rolled back by the look itself
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if answer == ("ok",) else str(answer)


def _set_aside(path: Path, why: str) -> None:
    log.warning("%s: %s; it is made anew from the ledger", path, why)
    for part in (path, path.with_name(f"{path.name}-journal"), path.with_name(f"{path.name}-wal")):
        if os.path.lexists(part):
            set_aside(part)


@contextmanager
def open_storage(state_dir: Path) -> Iterator[RDBStorage]:
    """Optuna's storage in `state_dir`; a damaged one is set aside and an empty one made. Raises StateError."""
    from optuna.exceptions import OptunaError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    path = study_path(state_dir)
    if path.is_symlink():
        _set_aside(path, "is a symbolic link")
    damage = _damage(path)
    if damage is not None:
        _set_aside(path, damage)
    state_dir.mkdir(parents=True, exist_ok=True)
    try:
        storage = RDBStorage(f"sqlite:///{path}")
    except (OptunaError, SQLAlchemyError, RuntimeError) as error:  # another program's, or another version's
        _set_aside(path, str(error).splitlines()[0])
        try:
            storage = RDBStorage(f"sqlite:///{path}")
        except (OptunaError, SQLAlchemyError) as again:
            text = str(again).splitlines()[0]  # the rest is SQL
            raise StateError(f"{path}: cannot be made: {text}", hint="free some space, or mend its rights") from again
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def study_errors(state_dir: Path) -> Iterator[None]:
    """What the database refuses becomes a StateError: the ledger, which was told first, has everything."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise StateError(
            f"{study_path(state_dir)}: cannot be written: {str(error).splitlines()[0]}",
            hint=f"free some space in {state_dir}; the ledger has all that was measured",
        ) from error


def rebuild_study(
    storage: RDBStorage,
    study_name: str,
    make_search: Callable[[RDBStorage, str], Search],
    told: Iterable[tuple[int, Observation]],
) -> Search:
    """The search as the ledger knows it: an older study of that name is dropped, then all is told again in order.

    `make_search(storage, study_name)` makes an empty search; `told` comes from the ledger's `trial` events.
    """
    from optuna.study import delete_study, get_all_study_names

    if study_name in get_all_study_names(storage):
        delete_study(study_name=study_name, storage=storage)
    search = make_search(storage, study_name)
    for index, observation in told:
        search.tell(index, observation)
    return search
