"""The command line that does a job again, as far as its ledger tells."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jouletune.report.facts import Setting

_VIRTUAL = "virtual:"
_RECORDED = "recorded:"
_CONFIG = "config.toml"
# Besides the options that stand for one key each. Plans given as options are a workload of their own.
_BESIDE = {"grid.shape": "--grid", "grid.size": "--grid", "workloads.engine.engine": "--engine"}
_OF_ENGINES = (
    "workload.default",
    "workloads.engine.arrival",
    "workloads.engine.rate_hz",
    "workloads.engine.inference_name",
)


def simulated_by(result: Mapping[str, Any]) -> str:
    """ "virtual", "recorded", or "" where a machine was measured. No name of a workload has a colon."""
    if str(result.get("rail") or "").startswith(_RECORDED):
        return "recorded"
    return "virtual" if _VIRTUAL in str(result.get("workload") or "") else ""


def settings_of(given: Iterable[Sequence[str]], options: Mapping[str, str]) -> tuple[Setting, ...]:
    """What the ledger says of the settings, each with the option of `jouled tune` that says the same."""
    return tuple(Setting(key, value, _BESIDE.get(key) or options.get(key, "")) for key, value, _ in given)


def command_of(
    result: Mapping[str, Any], started: Mapping[str, Any], settings: Sequence[Setting], *, simulated: str
) -> str:
    """One line of shell. A ledger of before settings were kept gives the bound in seconds."""
    words = ["jouled", "tune", *_board(result, simulated)]
    if result.get("method") == "fixed":
        words.append("--fixed-mode")
    has_plans = any(setting.option == "--engine" for setting in settings)
    said = [one for one in settings if not (one.key == "board.base_mode" or (has_plans and one.key in _OF_ENGINES))]
    needs_file = any(not setting.option for setting in said)
    words += ["--config", _CONFIG] if needs_file else []
    words += [word for setting in said for word in _option(setting)] if settings else _bound(result)
    words += [] if needs_file else _rate(result)
    if not settings and started.get("sampler"):
        words += ["--sampler", str(started["sampler"]), "--budget", str(started["budget"])]
    if result.get("seed") is not None:
        words += ["--seed", str(result["seed"])]
    is_real = not simulated and result.get("method") != "fixed"
    return shlex.join([*(["sudo"] if is_real else []), *words])


def keeping(command: str) -> str:
    """The same, with power over time kept."""
    return command if "--keep-samples" in command else f"{command} --keep-samples"


def _board(result: Mapping[str, Any], simulated: str) -> list[str]:
    if simulated == "recorded":
        return ["--table", str(result["rail"]).removeprefix(_RECORDED)]
    words = [] if result.get("base_mode") in (None, "fixed") else ["--base-mode", str(result["base_mode"])]
    if simulated == "virtual":
        workload = str(result["workload"]).rpartition(_VIRTUAL)[2]
        words = ["--virtual", str(result.get("board")), *words, "--virtual-workload", workload]
    return words


def _option(setting: Setting) -> list[str]:
    if not setting.option:
        return []
    value = _plain(setting.value)
    if isinstance(value, bool):
        return [setting.option] if value else []
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in (setting.option, str(one))]


def _rate(result: Mapping[str, Any]) -> list[str]:
    """Of an arrival that no file gives."""
    found = re.fullmatch(r"rate ([0-9.e+-]+) Hz", str(result.get("arrival") or ""))
    return [] if found is None else ["--rate-hz", found[1]]


def _plain(toml: str) -> Any:
    """The value of a TOML text or number; both are JSON's, too."""
    try:
        return json.loads(toml)
    except ValueError:
        return toml


def _bound(result: Mapping[str, Any]) -> list[str]:
    bound_s = result.get("latency_bound_s")
    return ["--no-latency-bound"] if bound_s is None else ["--latency-bound-s", f"{bound_s:.6g}"]
