"""config.toml, a request and a command line become one checked Config; everything wrong is said at once."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jouled.config.checks import BOUNDS, GRIDS, conflicts
from jouled.config.kinds import Kind, Unfit, shown, text
from jouled.config.tables import TABLES, WORKLOAD_NAME, Config, default_of, keys_of, kind_of
from jouled.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_PATH = Path("/etc/jouled/config.toml")
REQUEST_KEYS: Mapping[str, str] = {
    "workload": "workload.default",
    "latency_bound_s": "target.latency_bound_s",
    "latency_bound_ratio": "target.latency_bound_ratio",
    "latency_percentile": "target.latency_percentile",
    "max_power_w": "target.max_power_w",
    "min_gain": "target.min_gain",
    "budget": "job.budget",
    "max_duration_s": "job.max_duration_s",
    "clocks": "grid.clocks",
}
"""What a request may name → the key that it stands for (numbers and names only, never a path or a program)."""

_LARGEST_BYTES = 128 * 1024
_LONGEST_LINE = 4096  # tomllib's time grows with the square of a dotted key's length
_MOST_PROBLEMS = 50
_WORKLOAD_NAME = text(WORKLOAD_NAME, "the name of a workload")


@dataclass(slots=True)
class _Layer:
    """One source of values: `table.key` → value as the product uses it, and what was wrong in it."""

    origin: str
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def refuse(self, key: str, text: str) -> None:
        """Note what is wrong with `key`."""
        self.failed.add(key)
        self.problems.append(f"{self.origin}: {key}: {text}")

    def take(self, key: str, kind: Kind[Any], default: object, value: object) -> None:
        """Keep the value if it is of its kind, else say what was wanted."""
        try:
            self.values[key] = kind.take(value)
        except Unfit as unfit:
            advice = str(unfit) or _advice(default)
            self.refuse(key, f"wanted {kind.wanted}, got {shown(value)}; {advice}")


def load(
    path: Path | None,
    overrides: Mapping[str, object] | None = None,
    overrides_name: str = "command line",
    *,
    request: Mapping[str, object] | None = None,
) -> Config:
    """The configuration in force: overrides > request > file > default.

    `overrides` maps `table.key` (or `workloads.NAME.key`, for a new one `workloads.NAME` → True as well) to a value,
    `request` the names of REQUEST_KEYS; a value of None counts as not given. `path` None: no file. Raises ConfigError,
    whose message has a line for each thing wrong.
    """
    layers = [_from_file(path)] if path is not None else []
    named = _workload_names(layers)
    layers.append(_from_request(request or {}))
    layers.append(_from_overrides(overrides or {}, overrides_name, named))
    problems = [problem for layer in layers for problem in layer.problems]
    failed = {key for layer in layers for key in layer.failed}
    config = _build(_merge(layers))
    for conflict in conflicts(config):
        if not failed.intersection(conflict.keys):
            where = next(
                (config.origins[key] for key in conflict.keys if key in config.origins),
                str(path or "defaults"),
            )
            problems.append(f"{where}: {conflict.keys[0]}: {conflict.text}")
    if problems:
        hint = f"mend it, then: jouled check-config --config {path}" if path is not None else ""
        raise ConfigError("\n".join(problems), hint=hint)
    return config


def _read(path: Path) -> dict[str, Any]:
    """The file as TOML. Raises ConfigError."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: wanted a regular file, got something else", hint="name the file itself")
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        hint = "name it with --config, or put one at /etc/jouled/config.toml"
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error
    if len(data) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: wanted at most {_LARGEST_BYTES} bytes, got more", hint="is this the right file?")
    if any(len(line) > _LONGEST_LINE for line in data.splitlines()):
        raise ConfigError(f"{path}: wanted lines of at most {_LONGEST_LINE} bytes, got a longer one", hint="break it")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: wanted UTF-8, got another byte at {error.start}") from error
    except RecursionError:
        raise ConfigError(f"{path}: wanted TOML, got lists or tables nested too deep") from None
    except ValueError as error:
        raise ConfigError(f"{path}: wanted TOML, got something else: {error}") from error


def _from_file(path: Path) -> _Layer:
    layer = _Layer(str(path))
    for table, key, value in _walk(layer, _read(path)):
        if len(layer.problems) >= _MOST_PROBLEMS:
            layer.problems.append(f"{path}: and more: is this the right file?")
            break
        _place(layer, table, key, value)
    return layer


def _walk(layer: _Layer, content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """(table, key, value) of each key in a file; what is no table where one must be is noted."""
    for name, value in content.items():
        if name not in TABLES:
            yield "", name, value
        elif not isinstance(value, dict):
            layer.refuse(name, f"wanted a table [{name}], got {shown(value)}")
        elif name != "workloads":
            yield from ((name, key, item) for key, item in value.items())
        else:
            yield from _walk_workloads(layer, value)


def _walk_workloads(layer: _Layer, content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    for name, value in content.items():
        if not isinstance(value, dict):
            layer.refuse("workloads", f"wanted tables [workloads.NAME], got {shown(name)} = {shown(value)}")
            continue
        try:
            _WORKLOAD_NAME.take(name)
        except Unfit:
            text = f"wanted a name of letters, digits, - and _, at most 64 of them, got {shown(name)}; rename the table"
            layer.refuse("workloads", text)
            continue
        layer.values[f"workloads.{name}"] = True
        yield from ((f"workloads.{name}", key, item) for key, item in value.items())


def _place(layer: _Layer, table: str, key: str, value: object) -> None:
    """Take the value of one key, or say that there is no such key."""
    dotted = f"{table}.{key}" if table else key
    spec = keys_of("workloads" if table.startswith("workloads.") else table).get(key) if _is_table(table) else None
    if spec is None:
        layer.refuse(_short(dotted), f"no such {'table' if isinstance(value, dict) else 'key'}{_nearest(table, key)}")
    else:
        layer.take(dotted, kind_of(spec), default_of(spec), value)


def _closest(key: str, names: Iterable[str]) -> str:
    """What may have been meant; "" where nothing is like it."""
    from difflib import get_close_matches  # 0.2 MiB that only a mistake needs

    return next(iter(get_close_matches(key[:64], names, n=1)), "")


def _is_table(table: str) -> bool:
    return not table or table.startswith("workloads.") or (table in TABLES and table != "workloads")


def _from_request(request: Mapping[str, object]) -> _Layer:
    layer = _Layer("request")
    for name, value in request.items():
        if value is None:
            continue
        if name in REQUEST_KEYS:
            table, _, key = REQUEST_KEYS[name].partition(".")
            _place(layer, table, key, value)
        else:
            close = _closest(name, REQUEST_KEYS)
            advice = f"did you mean {close}?" if close else f"a request may name {', '.join(REQUEST_KEYS)}"
            layer.refuse(_short(name), f"no such key; {advice}")
    return layer


def _from_overrides(overrides: Mapping[str, object], origin: str, named: set[str]) -> _Layer:
    layer = _Layer(origin)
    made = {name for name, value in overrides.items() if value is True and name.rpartition(".")[0] == "workloads"}
    layer.values.update(dict.fromkeys(made, True))
    named = named | made
    for dotted, value in overrides.items():
        table, _, key = dotted.rpartition(".")
        if value is None or dotted in made:
            continue
        if table.startswith("workloads.") and table not in named:
            layer.refuse(_short(dotted), "no such workload in the configuration file")
        else:
            _place(layer, table, key, value)
    return layer


def _workload_names(layers: list[_Layer]) -> set[str]:
    return {name for layer in layers for name in layer.values if name.count(".") == 1 and name.startswith("workloads.")}


def _merge(layers: list[_Layer]) -> dict[str, tuple[Any, str]]:
    """`table.key` → (value, origin), a later layer before an earlier one.

    Of keys that exclude each other, one told by a later layer takes the place of those told by earlier ones.
    """
    merged: dict[str, tuple[Any, str]] = {}
    for layer in layers:
        given = {key for key, value in layer.values.items() if value is not False}
        for group in (BOUNDS, GRIDS, *_engine_groups(given)):
            if given.intersection(group):
                for key in group:
                    merged.pop(key, None)
        merged.update({key: (value, layer.origin) for key, value in layer.values.items()})
    return merged


def _engine_groups(keys: set[str]) -> Iterator[tuple[str, ...]]:
    for key in keys:
        table, _, last = key.rpartition(".")
        if table.startswith("workloads.") and last in ("engine", "onnx"):
            yield (f"{table}.engine", f"{table}.onnx")


def _build(merged: Mapping[str, tuple[Any, str]]) -> Config:
    values: dict[str, dict[str, Any]] = {}
    for dotted, (value, _) in merged.items():
        table, _, key = dotted.rpartition(".")
        if table != "workloads":
            values.setdefault(table, {})[key] = value
    names = [
        dotted.partition(".")[2] for dotted in merged if dotted.count(".") == 1 and dotted.startswith("workloads.")
    ]
    tables = {name: made(**values.get(name, {})) for name, made in TABLES.items() if name != "workloads"}
    workloads = {name: TABLES["workloads"](**values.get(f"workloads.{name}", {})) for name in names}
    top = {key: value for key, value in values.get("", {}).items() if key != "workloads"}
    origins = {dotted: origin for dotted, (_, origin) in merged.items()}
    return Config(**top, **tables, workloads=workloads, origins=origins)


def _nearest(table: str, key: str) -> str:
    """ "; did you mean …?": the same name in another table, else the nearest in this one, else the nearest anywhere."""
    elsewhere = {name: f"{other}.{name}" for other in TABLES if other != "workloads" for name in keys_of(other)}
    elsewhere |= {name: f"workloads.NAME.{name}" for name in keys_of("workloads")}
    elsewhere |= {name: f"[{name}]" for name in TABLES} | {name: name for name in keys_of("")}
    here: dict[str, str] = {}
    if _is_table(table):
        known = keys_of("workloads" if table.startswith("workloads.") else table)
        here = {name: f"{table}.{name}" if table else name for name in known}
    for names in ({key: elsewhere[key]} if key in elsewhere else {}, here, elsewhere):
        if close := _closest(key, names):
            return f"; did you mean {names[close]}?"
    return "; leave it out (every key: docs/configuration.md)"


def _advice(default: object) -> str:
    return "change it" if default in (None, (), {}) else f"leave it out for the default {shown(default)}"


def _short(name: str) -> str:
    return name if len(name) <= 80 and name.isprintable() else shown(name)
