"""Every name of TensorRT and pycuda that the runner uses exists in the versions that it is for, and it uses no others.

tests/tensorrt_names.json holds what the real libraries have. 8.5.3.1 and pycuda were listed by hand (their wheels need
libraries that are no small download); the bindings of 10.3.0 and 11.4.0.106 are listed anew wherever .ci/bindings has
fetched them.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.standin_python import RUNNER, VERSIONS, interpreter

ROOT = Path(__file__).resolve().parents[1]
NAMES = json.loads((ROOT / "tests" / "tensorrt_names.json").read_text())
TOUCHED: dict[str, dict[str, dict[str, bool]]] = NAMES["touched"]
LISTED: dict[str, dict[str, dict[str, list[str]]]] = NAMES["listed"]
BINDINGS = os.environ.get("JOULED_TENSORRT_BINDINGS")
# Attributes of other things that are called as something of TensorRT is.
OURS = {"code", "dtype", "engine", "logger", "tactic_sources", "values"}
OWN_NAMES = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
found = {}
for where in sys.argv[2:]:
    owner = module
    for part in filter(None, where.split(".")):
        owner = getattr(owner, part)
    found[where] = sorted(name for name in vars(owner) if not name.startswith("_"))
print(json.dumps(found))
"""


def used(*, always: bool) -> Iterator[tuple[str, str, str]]:
    """(library, class, name) of what the runner uses always, or only where it is there."""
    for library, classes in TOUCHED.items():
        for where, names in classes.items():
            yield from ((library, where, name) for name, is_always in names.items() if is_always is always)


def listed(library: str, where: str, name: str) -> list[str]:
    """The versions that have it."""
    return [version for version, classes in LISTED[library].items() if name in classes[where]]


def test_what_is_always_used_exists_in_every_version() -> None:
    lacking = {one: listed(*one) for one in used(always=True) if len(listed(*one)) < len(LISTED[one[0]])}
    assert lacking == {}


def test_what_is_used_where_it_is_there_is_there_somewhere() -> None:
    assert [one for one in used(always=False) if not listed(*one)] == []


def test_versions_of_each_jetpack_are_listed() -> None:
    assert tuple(LISTED["tensorrt"]) == VERSIONS


def test_the_runner_uses_no_name_that_is_not_proven() -> None:
    proven = {name for classes in TOUCHED.values() for names in classes.values() for name in names}
    known = {
        name
        for versions in LISTED.values()
        for classes in versions.values()
        for names in classes.values()
        for name in names
    }
    attributes = {node.attr for node in ast.walk(ast.parse(RUNNER.read_text())) if isinstance(node, ast.Attribute)}
    assert (attributes & known) - proven == OURS


def test_each_proven_name_is_one_that_the_runner_uses() -> None:
    tree = ast.parse(RUNNER.read_text())
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    chosen = set(TOUCHED["tensorrt"]["TacticSource"])  # by the specification
    assert {name for always in (True, False) for _, _, name in used(always=always)} - found == chosen


@pytest.mark.parametrize(
    ("library", "version"), [("tensorrt", version) for version in VERSIONS] + [("pycuda.driver", "2026.1")]
)
def test_a_standin_holds_what_is_used_and_was_proven_and_no_more(tmp_path: Path, library: str, version: str) -> None:
    python = interpreter(tmp_path, tensorrt=version)
    classes = list(TOUCHED[library])
    found = asked([str(python), "-c", OWN_NAMES, library, *classes])
    for where in classes:
        if where:
            wanted = set(TOUCHED[library][where]) & set(LISTED[library][version][where])
            assert set(found[where]) - {f"{where}.{name}" for name in classes} - nested(classes, where) == wanted, where
        else:
            wanted = set(TOUCHED[library][""]) & set(LISTED[library][version][""])
            assert wanted <= set(found[""])


def nested(classes: list[str], where: str) -> set[str]:
    """Classes within a class."""
    return {name.rpartition(".")[2] for name in classes if name.rpartition(".")[0] == where}


def asked(argv: list[str], **environment: str) -> dict[str, list[str]]:
    """What a child prints as JSON in its last line."""
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(BINDINGS is None, reason="needs the bindings that .ci/bindings fetches")
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_real_bindings_have_what_is_listed(version: str) -> None:
    folder = Path(str(BINDINGS)) / version
    classes = list(TOUCHED["tensorrt"])
    argv = [sys.executable, str(ROOT / "tests" / "tensorrt_listing.py"), "tensorrt_bindings", *classes]
    found: dict[str, Any] = asked(argv, PYTHONPATH=str(folder), LD_LIBRARY_PATH=str(folder / "libraries"))
    found[""] = [name for name in found[""] if name in TOUCHED["tensorrt"][""]]
    assert found == LISTED["tensorrt"][version]
