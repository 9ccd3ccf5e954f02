"""What goes into each request: its keys, their types and ranges, and what the configuration allows of them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from jouled.board.modename import mode_name, parse_mode_name
from jouled.config import Config
from jouled.config.kinds import shown
from jouled.control.problems import Problem
from jouled.errors import UsageError

LARGEST_BODY_BYTES = 16 * 1024
LONGEST_PAUSE_S = 31 * 86_400
MOST_HISTORY = 1000
_LONGEST_KEY = 64

S = TypeVar("S", bound=Struct)

# Ranges are those of config.toml (tests/test_control.py holds them together).
WorkloadName = Annotated[
    str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", max_length=64, description="the name of a workload")
]
Seconds = Annotated[float, Meta(ge=0.000001, le=3600, description="a number from 1e-06 to 3600 s")]
Ratio = Annotated[float, Meta(ge=0.1, le=100, description="a number from 0.1 to 100 x the reference's latency")]
Percentile = Annotated[float, Meta(ge=50, le=99.9, description="a number from 50 to 99.9 %")]
Watts = Annotated[float, Meta(ge=0.5, le=1000, description="a number from 0.5 to 1000 W")]
Budget = Annotated[int, Meta(ge=2, le=10_000, description="an integer 2 to 10000 windows")]
Gain = Annotated[float, Meta(ge=0, le=0.5, description="a number from 0 to 0.5 (0.02 = 2 %)")]
Duration = Annotated[float, Meta(ge=60, le=604_800, description="a number from 60 to 604800 s")]
Policy = Annotated[str, Meta(pattern="^(capped|locked|both)$", max_length=6, description="capped | locked | both")]
Flag = Annotated[bool, Meta(description="true or false")]
Target = Annotated[
    str,
    Meta(
        pattern=r"^(winner|reference|[0-9x][0-9x.-]{0,47})$",
        max_length=48,
        description='"winner" | "reference" | a power mode such as "12-1497.6-918-2133"',
    ),
]
ModeName = Annotated[
    str,
    Meta(pattern=r"^[0-9x][0-9x.-]{0,47}$", max_length=48, description='a power mode such as "12-1497.6-918-2133"'),
]
PauseLength = Annotated[
    float,
    Meta(
        ge=0, le=LONGEST_PAUSE_S, description=f"a number from 0 (ends a pause) to {LONGEST_PAUSE_S} s, or null (no end)"
    ),
]


class RetuneRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job is asked for; what is left out is as in config.toml."""

    workload: WorkloadName | None = None
    latency_bound_s: Seconds | None = None
    latency_bound_ratio: Ratio | None = None
    latency_percentile: Percentile | None = None
    max_power_w: Watts | None = None
    budget: Budget | None = None
    min_gain: Gain | None = None
    max_duration_s: Duration | None = None
    clocks: Policy | None = None
    dry_run: Flag = False


class ApplyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to put in force."""

    target: Target


class PauseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long the reference is put in force; null: until further notice, 0: the pause ends."""

    for_s: PauseLength | None = None


class ForgetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What is lifted: what is held against a power mode, or the state `held`. One of the two."""

    mode: ModeName | None = None
    held: Flag = False


class EmptyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """No keys."""


def decode(body: bytes, shape: type[S]) -> S:
    """The request in a body; an empty body is an empty object. Raises Problem (bad-json, invalid)."""
    data = body.strip() or b"{}"
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.ValidationError as error:
        raise _invalid(data, shape, str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad_json(str(error)) from None


def _bad_json(text: str) -> Problem:
    return Problem("bad-json", f"the body: wanted a JSON object, got something else: {text[:200]}", exit_code=2)


def invalid(key: str, wanted: str, got: str, *, hint: str = "") -> Problem:
    """One key is not as wanted."""
    text = f"{key}: wanted {wanted}, got {got}"
    return Problem("invalid", text, hint=hint, exit_code=2, key=key, wanted=wanted, got=got)


def _invalid(data: bytes, shape: type[Struct], text: str) -> Problem:
    """Which key it was that msgspec refused, what was wanted of it, and what came."""
    try:
        given: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return _bad_json(str(error))
    if not isinstance(given, dict):
        return invalid("the body", "an object", shown(given))
    known = ", ".join(shape.__struct_fields__)
    unknown = [key for key in given if key not in shape.__struct_fields__]
    if unknown:
        wanted = f"one of {known}" if known else "no key at all"
        return invalid(_short(unknown[0]), wanted, "a key that is not known", hint="docs/api.md lists the keys")
    key = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
    if key in given:
        return invalid(key, _wanted(shape, key), shown(given[key]))
    missing = next((name for name in shape.__struct_fields__ if name not in given), "the body")
    return invalid(missing, _wanted(shape, missing), "nothing")


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY and key.isprintable() else shown(key[:_LONGEST_KEY])


def _wanted(shape: type[Struct], key: str) -> str:
    """The description of a field."""
    hint: Any = get_type_hints(shape, include_extras=True).get(key)
    for part in (hint, *get_args(hint)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return "something else"


# --- what the configuration allows ---------------------------------------------------------------------------


def retune_request(retune: RetuneRequest, config: Config) -> dict[str, Any]:
    """The keys that were given, allowed by the configuration. Raises Problem (invalid, looser-bound, no-bound)."""
    _check_bound(retune, config)
    if retune.workload is not None and retune.workload not in config.workloads:
        named = " | ".join(config.workloads) or "none: the configuration names no workload"
        raise invalid("workload", named, shown(retune.workload), hint="leave it out for workload.default")
    given: dict[str, Any] = {name: getattr(retune, name) for name in retune.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None and value is not False}


def _check_bound(retune: RetuneRequest, config: Config) -> None:
    bound_s, limit_s = retune.latency_bound_s, config.target.max_latency_bound_s
    if bound_s is not None and retune.latency_bound_ratio is not None:
        raise invalid("latency_bound_ratio", "one bound", "latency_bound_s too", hint="leave one of the two out")
    if bound_s is not None and limit_s is not None and bound_s > limit_s:
        raise Problem(
            "looser-bound",
            f"latency_bound_s: wanted at most target.max_latency_bound_s ({limit_s:g} s), got {bound_s:g} s",
            hint="ask for less, or raise target.max_latency_bound_s in /etc/jouled/config.toml",
            exit_code=6,
        )
    if bound_s is None and retune.latency_bound_ratio is None and not config.target.has_bound():
        raise Problem(
            "no-bound",
            "no bound: wanted one of latency_bound_s, latency_bound_ratio, got none, and the configuration has none",
            hint="jouled retune --latency-bound-ratio 1.2 (at most 1.2 x the latency of the board's own mode; "
            "latency_bound_ratio in a request), or a bound under [target] of the configuration",
            exit_code=2,
        )


def apply_target(request: ApplyRequest) -> str:
    """`winner`, `reference`, or the name of a power mode as jouled writes it. Raises Problem."""
    if request.target in ("winner", "reference"):
        return request.target
    return _mode("target", request.target, _wanted(ApplyRequest, "target"))


def forget_what(request: ForgetRequest) -> tuple[str | None, bool]:
    """(mode's name or None, held). Raises Problem."""
    if (request.mode is None) != request.held:
        raise invalid("mode", 'either a mode or "held": true', "both" if request.held else "neither")
    if request.mode is None:
        return None, True
    return _mode("mode", request.mode, _wanted(ForgetRequest, "mode")), False


def _mode(key: str, text: str, wanted: str) -> str:
    try:
        return mode_name(parse_mode_name(text))
    except UsageError as error:
        raise invalid(key, wanted, shown(text), hint=error.hint) from None


def history_limit(query: dict[str, str]) -> int:
    """How many entries a client wants of the history (100). Raises Problem."""
    unknown = [name for name in query if name != "limit"]
    if unknown:
        raise invalid(_short(unknown[0]), "no query but limit", "a name that is not known")
    text = query.get("limit", "100")
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_HISTORY):
        raise invalid("limit", f"an integer from 1 to {MOST_HISTORY}", shown(text))
    return int(text)
