"""The house rules, as tests: linters, types, who may import whom, what no file may name, locked versions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]

# A module imports only from earlier ones (ARCHITECTURE section 2). A room that was split stands as its parts, in order.
ORDER = {
    "jouletune": (
        *("errors", "space", "objective", "table", "quantiles", "trace", "latency", "measurement", "trial", "earlier"),
        *("physics", "kernel", "surrogate", "mixture", "worth", "front"),
        *("descent", "standing", "plain", "sampler", "joule", "search", "finals", "decision", "suggest", "replay"),
        *("report", "__main__"),
    ),
    "jouled": (
        *("errors", "config", "board", "workload", "virtual", "ledger", "study", "job", "report", "doctor"),
        *("worker", "state", "metrics", "control", "service", "install", "cli", "__main__"),
    ),
}
LIGHT = ("jouletune.errors", "jouletune.space", "jouletune.decision", "jouled.errors", "jouled.config")
DOORS = {"os", "io", "pathlib", "socket", "subprocess", "shutil", "tempfile", "multiprocessing", "asyncio", "urllib"}


def _run(*argv: str) -> None:
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"


def _files(end: str = "") -> list[Path]:
    """Files that are or would be committed."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = [ROOT / name for name in names if name and name.endswith(end)]
    return [path for path in found if path.is_file()]


def _module(path: Path) -> str:
    """The dotted name of a module of the product."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts[1:])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> dict[str, ast.Module]:
    paths = [path for folder in ("daemon", "tuner") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {_module(path): ast.parse(path.read_text(), str(path)) for path in paths}


def _named(node: ast.AST) -> Iterator[str]:
    """The dotted names that an import statement may mean."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in _modules() else node.module


@cache
def _imports(module: str) -> frozenset[str]:
    """Everything that a module imports, inside functions too."""
    return frozenset(name for node in ast.walk(_modules()[module]) for name in _named(node))


def _reached(module: str) -> set[str]:
    """The product's modules that importing this one may bring, by any path."""
    seen: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name in _modules() and name not in seen:
            seen.add(name)
            left += _imports(name)
    return seen


def _room(module: str) -> tuple[str, str]:
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0]


def test_ruff_finds_nothing() -> None:
    _run("-m", "ruff", "check", ".")


def test_ruff_would_lay_no_line_out_otherwise() -> None:
    _run("-m", "ruff", "format", "--check", ".")


def test_mypy_strict_finds_nothing() -> None:
    _run("-m", "mypy")


def test_each_module_has_its_place_in_the_order() -> None:
    rooms = {_room(module) for module in _modules()} - {("jouled", ""), ("jouletune", "")}
    placed = {(package, room) for package, order in ORDER.items() for room in order}
    assert not rooms - placed, "give it a place in ORDER"


@pytest.mark.parametrize("module", sorted(_modules()))
def test_modules_import_only_from_earlier_ones(module: str) -> None:
    package, room = _room(module)
    if not room:
        return
    for name in _imports(module):
        other, there = _room(name)
        if other == package and there:
            assert ORDER[package].index(there) <= ORDER[package].index(room), f"{module} imports the later {name}"
        assert (package, other) != ("jouletune", "jouled"), f"{module} imports {name}: jouletune knows no machine"


def test_no_two_modules_import_each_other() -> None:
    graph = {module: {name for name in _imports(module) if name in _modules()} - {module} for module in _modules()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")


@pytest.mark.parametrize("module", sorted(_modules()))
def test_texts_are_read_and_written_in_the_encoding_that_the_module_names(module: str) -> None:
    for node in ast.walk(_modules()[module]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            positional = len(node.args) - (node.func.attr == "write_text")
            is_file = node.func.attr in ("read_text", "write_text") and positional <= 0
            is_child = isinstance(given.get("text"), ast.Constant)
            if is_file or is_child:
                assert "encoding" in given, f"{module}:{node.lineno}: under LC_ALL=C this is ASCII"


def test_the_virtual_board_shares_nothing_with_the_surrogate() -> None:
    for module in _modules():
        if module.startswith("jouled.virtual"):
            assert "jouletune.surrogate" not in _reached(module), module


def test_neither_daemon_nor_worker_ever_draws() -> None:
    for module in _modules():
        if module.startswith(("jouled.service", "jouled.worker", "jouled.job", "jouled.cli.run", "jouled.cli.worker")):
            assert not any(name.startswith(("jouled.report", "jouletune.report")) for name in _reached(module)), module
    assert {module for module in _modules() if any(name.startswith("matplotlib") for name in _imports(module))} == {
        f"jouletune.report.{name}" for name in ("canvas", "charts", "maps")
    }


def test_only_the_outermost_modules_know_that_there_are_virtual_boards() -> None:
    for module in _modules():
        if not module.startswith(("jouled.virtual", "jouled.cli", "jouled.service")):
            assert not any(name.startswith("jouled.virtual") for name in _imports(module)), module


def test_the_tuner_opens_no_file_socket_or_process() -> None:
    for module, tree in _modules().items():
        if module.startswith("jouletune") and module != "jouletune.__main__":
            assert not {name.partition(".")[0] for name in _imports(module)} & DOORS, module
            opened = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_open(node.func)]
            assert not opened, f"{module} calls open()"


def _is_open(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "open"


def test_processes_are_started_through_one_door() -> None:
    starters = {module for module in _modules() if "subprocess" in _imports(module)}
    assert starters <= {"jouled.board.process"}


@pytest.mark.parametrize(("name", "door"), [("SO_PEERCRED", "credentials"), ("SOCK_DGRAM", "sdnotify")])
def test_who_connected_and_what_systemd_is_told_have_one_door_each(name: str, door: str) -> None:
    used = {
        module
        for module, tree in _modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == name and not module.startswith("jouled.workload.")
    }
    assert used == {f"jouled.worker.{door}"}


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_need_nothing_but_the_standard_library(module: str) -> None:
    brought = {name.partition(".")[0] for each in _reached(module) for name in _imports(each)}
    assert brought - {"jouled", "jouletune", "tomli", "tomllib"} <= sys.stdlib_module_names


def test_help_works_where_no_heavy_library_can_be_imported() -> None:
    blocked = "sys.modules.update(dict.fromkeys(('numpy', 'scipy', 'optuna', 'sqlalchemy', 'rich')))"
    _run("-c", f"import sys; {blocked}; sys.argv = ['jouled', '--help']; from jouled.cli import main; main()")


# Runs by itself, under JetPack's Python and beside JetPack's TensorRT: it may import nothing of ours, hence one file.
ALONE = ROOT / "daemon" / "jouled" / "workload" / "tensorrt_runner.py"


def test_modules_hold_at_most_400_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in _files(".py") if path != ALONE}
    product = {path: length for path, length in lengths.items() if path.parts[len(ROOT.parts)] in ("daemon", "tuner")}
    assert {str(path): length for path, length in product.items() if length > 400} == {}


def test_the_tensorrt_runner_is_one_file_for_python_3_8() -> None:
    tree = ast.parse(ALONE.read_text(), str(ALONE), feature_version=(3, 8))
    brought = {name for node in ast.walk(tree) for name in _named(node)}
    assert {name.partition(".")[0] for name in brought} <= sys.stdlib_module_names
    assert not any("jouled.workload.tensorrt_runner" in _imports(module) for module in _modules())


def test_functions_hold_at_most_50_lines() -> None:
    long = {
        f"{module}.{node.name}": node.end_lineno - node.lineno + 1
        for module, tree in _modules().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
    }
    assert {name: length for name, length in long.items() if length > 50} == {}


def test_no_file_names_a_path_of_a_machine_or_the_host_of_a_package_index() -> None:
    ends = "(" + "|".join(("org", "net", "com", "io")) + ")"
    hosts = rf"\b(py[p]i|python[h]osted|npm[j]s|deb[i]an|ubu[n]tu)\.{ends}\b"
    homes = r"(?<![\w.])/(wo[r]k|fa[r]m|ro[o]t|ho[m]e)/|\.pye[n]v\b"
    for path in _files():
        text = path.read_bytes().decode("utf-8", "replace")
        found = re.search(f"{hosts}|{homes}", text)
        assert found is None, f"{path.relative_to(ROOT)} names {found[0] if found else ''}"


def _project() -> dict[str, list[str]]:
    """Where a dependency is declared → the names declared there."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = {"dependencies": declared["project"]["dependencies"], "build": declared["build-system"]["requires"]}
    lists |= declared["project"]["optional-dependencies"]
    return {where: [re.split(r"[^A-Za-z0-9_-]", line)[0].lower() for line in lines] for where, lines in lists.items()}


def test_every_dependency_has_its_line_of_reason_and_no_other_has_one() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    reasons = dict(re.findall(r"^\| `([\w-]+)` \| (.{20,}) \|$", text, re.MULTILINE))
    assert set(reasons) == {name for names in _project().values() for name in names}


def test_constraints_are_names_versions_and_markers_for_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.+]*( ; [a-z_]+ .+)?", line), line
        assert "://" not in line, line
    locked = {line.partition("==")[0] for line in lines}
    assert {name for names in _project().values() for name in names} <= locked
    assert not (ROOT / "uv.lock").exists(), "uv.lock records addresses; constraints.txt is the lock"


def test_wheel_holds_both_packages_with_their_data_and_nothing_else(tmp_path: Path) -> None:
    _run("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT / top))
        for top in ("daemon", "tuner")
        for path in _files()
        if path.is_relative_to(ROOT / top)
    } | {f"jouled/install/units/{path.name}" for path in (ROOT / "units").iterdir() if path.is_file()}
    assert packed == wanted


@pytest.mark.parametrize(
    ("reason", "has_data", "code"),
    [("needs ../shared/data", False, 0), ("needs ../shared/data", True, 1), ("slow", False, 1), ("slow", True, 1)],
)
def test_ci_fails_on_a_skip_unless_the_data_is_not_there(
    tmp_path: Path, reason: str, *, has_data: bool, code: int
) -> None:
    (tmp_path / "clone" / ".ci").mkdir(parents=True)
    script = tmp_path / "clone" / ".ci" / "skipped.py"
    script.write_text((ROOT / ".ci" / "skipped.py").read_text())
    if has_data:
        (tmp_path / "shared" / "data").mkdir(parents=True)
    report = tmp_path / "report.xml"
    case = (
        f'<testcase classname="a" name="b"><skipped message="{reason}"/></testcase><testcase classname="a" name="c"/>'
    )
    report.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    done = subprocess.run([sys.executable, str(script), str(report)], capture_output=True, text=True, check=False)
    assert (done.returncode, "a::b" in done.stderr) == (code, code == 1)


def test_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'__version__ = "{version}"' in (ROOT / "daemon" / "jouled" / "__init__.py").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
