"""A configuration as TOML, each value with where it came from."""

from __future__ import annotations

from dataclasses import fields

from jouled.config.kinds import toml
from jouled.config.tables import Config


def render(config: Config) -> str:
    """TOML that loads to the same configuration; each line ends in the origin of its value."""
    lines: list[str] = []
    for prefix, table in config.tables():
        lines += [f"\n[{prefix[:-1]}]"] if prefix else []
        for spec in fields(table):  # type: ignore[arg-type]  # each table is a dataclass
            if "kind" in spec.metadata:
                lines.append(_line(spec.name, getattr(table, spec.name), config.origin(f"{prefix}{spec.name}")))
    return "\n".join(lines) + "\n"


def _line(key: str, value: object, origin: str) -> str:
    if value in (None, (), {}):
        return f"# {key} is not set"
    return f"{f'{key} = {toml(value)}':<48}  # {origin}"
