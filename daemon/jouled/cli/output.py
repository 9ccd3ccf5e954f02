"""What a person reads: units, modes, the ending table of a job."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from jouled.job.result import JobResult, Side
from jouletune.objective import Objective
from jouletune.space import PowerMode, Variant

WIDTH = 79
FIXED = "fixed"  # JobResult.method of a job that touches no knob
VARIANT_AXES = ("engine", "batch", "instances")  # rows of the table only where they differ
_ERRORS = "95 % intervals: +- and the upper limit; the sensor's own tolerance is in none of them"
_SCALES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """`value` of an SI unit with three digits: 0.0184 s is 18.4 ms."""
    if not math.isfinite(value):
        return "-"
    scale, prefix = next(((s, p) for s, p in _SCALES if abs(value) >= s), (1.0, "") if value == 0 else _SCALES[-1])
    scaled = float(f"{value / scale:.{digits}g}")  # 9.998 is 10.0, not 10.00
    places = max(0, digits - len(str(int(abs(scaled)))))
    return f"{scaled:.{places}f} {prefix}{unit}"


def megahertz(value_hz: int | None) -> str:
    """A clock as the tables print it; a dash for an axis that is fixed."""
    if value_hz is None:
        return "-"
    return f"{value_hz / 1e6:.1f}".removesuffix(".0")


def mode_text(mode: PowerMode) -> str:
    """A power mode on one line; axes that are fixed are left out."""
    parts = [] if mode.cores is None else [f"{mode.cores} cores"]
    named = (("CPU", mode.cpu_hz), ("GPU", mode.gpu_hz), ("EMC", mode.emc_hz))
    clocks = [f"{name} {megahertz(value)}" for name, value in named if value is not None]
    return ", ".join([*parts, *clocks]) + (" MHz" if clocks else "")


def variant_name(variant: Variant) -> str:
    """A variant in few letters: the engine's name, b4 for batch 4, x2 for two instances; "" for the plain one."""
    engine = [] if variant.engine is None else [variant.engine.rpartition("/")[2]]
    batch = [f"b{variant.batch}"] if variant.batch != 1 else []
    return " ".join([*engine, *batch, *([f"x{variant.instances}"] if variant.instances != 1 else [])])


def short_names(engines: Sequence[str]) -> dict[str, str]:
    """Each engine by the words that tell its name from the others': of det-fp16.plan and det-fp32.plan fp16, fp32."""
    words = [re.split(r"[-_.]", PurePath(engine).name) for engine in engines]
    while len(words) > 1 and all(words) and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    while len(words) > 1 and all(words) and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    short = ["-".join(each) for each in words]
    whole = [PurePath(engine).name for engine in engines]
    is_told = len(engines) > 1 and all(short) and len(set(short)) == len(short)
    return dict(zip(engines, short if is_told else whole, strict=True))


def _variant_text(variant: Variant) -> str:
    parts = [variant.engine or "the workload as it is", f"batch {variant.batch}"]
    return ", ".join([*parts, f"{variant.instances} instance{'s' if variant.instances > 1 else ''}"])


def candidates_text(count: int, axes: Iterable[str]) -> str:
    """How many there are to choose from, and of what."""
    varied = set(axes)
    if count == 1:
        return "1 candidate"
    has_variants = bool(varied & set(VARIANT_AXES))
    if has_variants and varied <= set(VARIANT_AXES):
        return f"{count} variants"
    return f"{count} power modes with variants" if has_variants else f"{count} power modes"


def percent(ratio: float) -> str:
    """A ratio as a percentage with one place."""
    return f"{100 * ratio:.1f} %"


def counted(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Minutes where there are some."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _half_width(side: Side) -> str:
    low, high = side.energy_interval_j
    return f"± {100 * (high - low) / 2 / side.energy_j:.1f} %" if side.energy_j > 0 else ""


def _column(side: Side, result: JobResult) -> list[str]:
    mode = side.candidate.mode
    bound = result.latency_bound_s
    variant = side.candidate.variant
    return [
        "-" if mode.cores is None else f"{mode.cores}",
        megahertz(mode.cpu_hz),
        megahertz(mode.gpu_hz),
        megahertz(mode.emc_hz),
        side.policy,
        "-" if variant.engine is None else PurePath(variant.engine).name,
        f"{variant.batch}",
        f"{variant.instances}",
        f"{quantity(side.energy_j, 'J')} {_half_width(side)}",
        f"{side.power_w:.1f} W{_over(side.power_w, result.max_power_w)}",
        "none" if result.max_power_w is None else f"{result.max_power_w:g} W",
        quantity(side.latency_s, "s"),
        quantity(side.latency_upper_s, "s") + _judged(side.latency_upper_s, bound),
        "none" if bound is None else quantity(bound, "s"),
        _headroom(side.latency_upper_s, bound),
        f"{side.throughput_hz:.1f} /s",
        quantity(side.cost(Objective.ENERGY_DELAY), "J s") if result.objective == Objective.ENERGY_DELAY else "-",
    ]


def _over(power_w: float, limit_w: float | None) -> str:
    if limit_w is None:
        return ""
    return ", kept" if power_w <= limit_w else ", too much"


def _judged(upper_s: float, bound_s: float | None) -> str:
    if bound_s is None or not math.isfinite(upper_s):
        return ""
    return ", kept" if upper_s <= bound_s else ", too slow"


def _headroom(upper_s: float, bound_s: float | None) -> str:
    """What is left below the bound; nothing where it is not kept."""
    if bound_s is None or not math.isfinite(upper_s):
        return "-"
    left_s = bound_s - upper_s
    return f"{quantity(left_s, 's')} ({100 * left_s / bound_s:.0f} %)" if left_s >= 0.0 else "none"


def _labels(result: JobResult) -> list[str]:
    percentile = f"p{result.latency_percentile:g}" if result.latency_percentile else "percentile"
    return [
        "cores online",
        "CPU cap, MHz",
        "GPU cap, MHz",
        "EMC cap, MHz",
        "clocks",
        "engine",
        "batch",
        "instances",
        f"energy per {result.inference_name}",
        "power at this load",
        "  limit",
        f"latency {percentile}",
        "  upper limit",
        "  bound",
        "  headroom",
        f"{result.inference_name}s",
        f"energy x latency per {result.inference_name}",
    ]


def _sides(result: JobResult) -> list[tuple[str, Side]]:
    is_own = result.incumbent is None or result.incumbent == result.reference
    first = f"{'before' if is_own else 'own mode'} ({result.base_mode})"
    named = [("first variant" if result.method == FIXED else first, result.reference)]
    if not is_own:
        named.append(("before this job" if result.applied else "in force", result.incumbent))
    if result.outcome == "tuned":
        named.append(("to deploy" if result.method == FIXED else "in force now", result.winner))
    elif result.best_seen is not None and result.best_seen != result.reference:
        named.append(("best seen", result.best_seen))
    return [(name, side) for name, side in named if side is not None]


def _table(result: JobResult) -> list[str]:
    sides = _sides(result)
    if not sides:
        return []
    rows = [["", *(name for name, _ in sides)]]
    columns = [_column(side, result) for _, side in sides]
    rows += [[label, *cells] for label, *cells in zip(_labels(result), *columns, strict=True)]
    wanted = [row for row in rows if _is_told(row, result)]
    widths = [max(len(row[i]) for row in wanted) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in wanted
    ]


def _is_told(row: list[str], result: JobResult) -> bool:
    """Rows without a value say nothing, nor does a variant where there was no choice of one."""
    label, cells = row[0], set(row[1:])
    if label in VARIANT_AXES:
        return len(cells) > 1 or (result.method == FIXED and cells != {"-"})
    if label.strip() == "limit" and cells == {"none"}:
        return False
    return cells != {"-"} and not (label == "clocks" and result.base_mode == FIXED)


def _headline(result: JobResult) -> str:
    if result.outcome == "tuned" and result.saving_ratio is not None and result.saving_interval is not None:
        low, high = result.saving_interval
        if result.winner is not None and result.winner == result.reference:
            return "tuned: back to the board's own mode, since what was in force broke a limit"
        less = _less(result.saving_ratio, "energy")
        return (
            f"tuned: {_of_objective(result)}{less} per {result.inference_name} "
            f"than {'the first variant' if result.method == FIXED else 'before'} "
            f"({_span(low, high)})"
        )
    return f"{result.outcome}: {result.reason_text}"


def _less(ratio: float, noun: str) -> str:
    return f"{percent(abs(ratio))} {'less' if ratio >= 0 else 'more'} {noun}"


def _of_objective(result: JobResult) -> str:
    """What was asked to be least comes before what it does to the energy."""
    objective = Objective(result.objective or Objective.ENERGY)
    if objective is Objective.ENERGY or result.gain_ratio is None or result.gain_interval is None:
        return ""
    low, high = result.gain_interval
    return f"{_less(result.gain_ratio, objective.noun)} ({_span(low, high)}) and "


def _span(low: float, high: float) -> str:
    """Of a saving; where it is none, of what is more."""
    if low + high < 0.0:
        low, high = -high, -low
    return f"95 %: {percent(low)} to {percent(high)}"


def _changes(result: JobResult) -> list[str]:
    """What is other than before the job, a line each."""
    before, after = result.incumbent, result.winner or result.reference
    if result.method == FIXED:
        return ["nothing: fixed mode touches no knob"]
    if result.outcome == "board_fault":
        return ["what could be put back was put back: jouled verify tells"]
    if not result.applied or before is None or after is None:
        return ["nothing: every knob is as it was found"]
    if result.winner is None:
        return ["back to the board's own mode: what was in force before broke a limit"]
    old, new = before.candidate.mode, after.candidate.mode
    clocks = ("cpu_hz", "gpu_hz", "emc_hz")
    pairs = [(name[:3].upper(), getattr(old, name), getattr(new, name)) for name in clocks]
    lines = [f"{name} cap {megahertz(a)} -> {megahertz(b)} MHz" for name, a, b in pairs if a != b]
    if old.cores != new.cores:
        lines.insert(0, f"cores online {old.cores} -> {new.cores}")
    if before.policy != after.policy:
        lines.append(f"clocks {before.policy} -> {after.policy}")
    how = "nvpmodel with a private conf" if result.method == "nvpmodel" else "own writes"
    return [", ".join(lines) or "nothing", f"by {how}; nothing of it outlives a reboot"]


def _to_deploy(result: JobResult) -> str:
    """The variant that was chosen, where it is not the one that runs: an application is its owner's to change."""
    before, after = result.incumbent, result.winner
    if before is None or after is None or before.candidate.variant == after.candidate.variant:
        return ""
    return f"{_variant_text(after.candidate.variant)} (instead of {_variant_text(before.candidate.variant)})"


def _facts(result: JobResult, undo: str) -> list[tuple[str, str]]:
    """What stands below the table: a word, and what is to be said of it."""
    thrown = ", ".join(f"{count} {reason}" for reason, count in sorted(result.invalid.items()))
    facts = [
        ("rail", (result.rail or "-") + (f" ({result.rail_coverage})" if result.rail_coverage else "")),
        ("load", f"{result.workload or '-'}, {result.arrival or '-'}"),
        ("idle", "" if result.idle_power_w is None else f"{result.idle_power_w:.1f} W (measured once, not subtracted)"),
        (
            "job",
            f"{result.job}, {duration(result.duration_s)}, the board disturbed for {duration(result.disturbed_s)}: "
            f"{counted(result.measurements, 'window')} on {result.trials} of "
            f"{counted(result.grid_size or 0, 'variant' if result.method == FIXED else 'power mode')}",
        ),
        ("invalid", thrown),
        ("samples", result.samples or ""),
        ("errors", _ERRORS if _sides(result) else ""),
        *(("changed", change) for change in _changes(result)),
        ("deploy", _to_deploy(result)),
        ("undo", undo if result.applied and result.winner not in (None, result.reference) else ""),
        *(("warning", text) for text in result.warnings),
        ("to do", result.hint),
    ]
    return [(word, text) for word, text in facts if text]


def _said(word: str, text: str) -> str:
    """One fact within the width; a command or a path to be typed stays on one line."""
    head = f"  {word:8}  "
    if word in ("undo", "samples") or text.startswith("sudo "):
        return head + text
    indent = " " * len(head)
    return textwrap.fill(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def ending(result: JobResult, *, undo: str) -> str:
    """The last words of a job, as an operator reads them."""
    if result.board is None:  # it ended before the board was looked at
        told = [*(("warning", text) for text in result.warnings), ("to do", result.hint)]
        return "\n".join([_headline(result), *(_said(word, text) for word, text in told if text)])
    headline = textwrap.fill(_headline(result), WIDTH, subsequent_indent="  ", break_long_words=False)
    table, facts = _table(result), [_said(word, text) for word, text in _facts(result, undo)]
    return "\n".join([headline, "", *table, *([""] if table else []), *facts])
