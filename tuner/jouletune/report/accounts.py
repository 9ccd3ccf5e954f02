"""What did not count and why, every window, what does the job again, and how the numbers are to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jouletune.report.facts import Job, Window
from jouletune.report.markup import Piece, element, join, rows, table, told
from jouletune.report.words import AXES, FIRM, NONE, candidate_text, counted, percent, quantity, span
from jouletune.trial import Purpose

PURPOSES = {
    Purpose.REFERENCE: "reference",
    Purpose.INCUMBENT: "in force before",
    Purpose.SEARCH: "search",
    Purpose.FINALS: "finals",
}


def invalid(job: Job) -> Piece:
    """Each window that is no evidence, with its reason; those that broke a limit; all warnings."""
    lost = [window for window in job.windows if window.trial.invalid is not None]
    broke = [window for window in job.windows if window.trial.invalid is None and window.trial.infeasible is not None]
    counts = job.result.get("invalid") or {}
    pieces: list[Piece] = [element("p", _lost_text(job, lost))]
    if lost:
        head = ["window", "reason", "candidate", "seen"]
        lines: list[list[Piece]] = [[_at(one), _invalid(one), _candidate(one), one.trial.detail] for one in lost]
        pieces.append(table(head, lines, caption="Windows that are no evidence"))
    if broke:
        reasons = Counter(one.trial.infeasible.value for one in broke if one.trial.infeasible is not None)
        words = ", ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
        cut = sum(one.trial.cut for one in broke)
        what = f"{counted(len(broke), 'window')} ({words})"
        pieces.append(element("p", f"Broke a limit, and count as that: {what}, {cut} cut short once it was clear."))
    told_counts = [told(job.result, f"invalid.{reason}", f"{count} × {reason}") for reason, count in counts.items()]
    pieces.append(element("p", "Counted: ", join(*told_counts, by=", ")) if told_counts else "")
    warnings = [str(text) for text in job.result.get("warnings") or []]
    if warnings:
        pieces += [element("p", "The job warned:"), element("ul", *(element("li", text) for text in warnings))]
    return join(*pieces)


def _lost_text(job: Job, lost: Sequence[Window]) -> str:
    if not job.windows:
        return "No window was taken."
    if not lost:
        return f"Each of {counted(len(job.windows), 'window')} counted: none was disturbed."
    return (
        f"{len(lost)} of {counted(len(job.windows), 'window')} are no evidence and entered no number. "
        "Each was tried again as far as the rules allow: twice a trial, three times a reason."
    )


def _at(window: Window) -> str:
    again = f", attempt {window.trial.attempt + 1}" if window.trial.attempt else ""
    return f"{window.trial.number} ({PURPOSES[window.trial.purpose]}{again})"


def _invalid(window: Window) -> str:
    return "" if window.trial.invalid is None else window.trial.invalid.value


def _candidate(window: Window) -> str:
    locked = ", locked" if window.trial.policy == "locked" else ""
    return candidate_text(window.trial.candidate) + locked


def windows(job: Job) -> Piece:
    """A line each, for who does not believe figures."""
    if not job.windows:
        return None
    head = ["window", "at", "candidate", f"energy per {job.noun}", "± 95 %", "power", f"{job.percentile} ≤", "verdict"]
    lines = [_window(one) for one in job.windows]
    count = counted(len(job.windows), "window")
    content = table(head, lines, caption="In the order in which they were taken")
    return element("details", element("summary", f"{count}, as in the ledger"), content)


def _window(window: Window) -> list[Piece]:
    trial, measured = window.trial, window.trial.measurement
    verdict = _invalid(window) or ("" if trial.infeasible is None else f"breaks a limit: {trial.infeasible.value}")
    verdict = verdict or "kept the limits"
    at = f"{trial.t_s / 60:.1f}{FIRM}min"
    if measured is None:
        return [_at(window), at, _candidate(window), NONE, NONE, NONE, NONE, verdict + (", cut" if trial.cut else "")]
    low, high = measured.interval()
    half = (high - low) / 2 / measured.energy_j
    energy = element("data", quantity(measured.energy_j, "J"), value=repr(measured.energy_j))
    upper = quantity(measured.latency_upper_s, "s")
    watts = quantity(measured.power_w, "W")
    return [_at(window), at, _candidate(window), energy, percent(half), watts, upper, verdict]


def reproduce(job: Job) -> Piece:
    """The command, the settings, what it ran on."""
    result = job.result
    space = job.space
    axes = "" if space is None else " × ".join(f"{AXES[axis.name]} {len(axis.values)}" for axis in space.axes)
    versions = ", ".join(f"{name} {version}" for name, version in (result.get("versions") or {}).items())
    bound = told(result, "latency_bound_s", quantity(job.bound_s, "s", 4)) if job.bound_s is not None else "none"
    facts: list[tuple[str, Piece]] = [
        ("board", told(result, "board", str(result.get("board") or NONE))),
        ("base mode", _word(job, "base_mode")),
        ("rail", join(_word(job, "rail"), f" ({result['rail_coverage']})" if result.get("rail_coverage") else "")),
        ("meter", job.meter_why),
        ("idle power", join(_quantity(job, "idle_power_w", "W"), ", measured once and not subtracted")),
        ("workload", _word(job, "workload")),
        ("arrival", _word(job, "arrival")),
        ("objective", f"least {job.cost_noun} per {job.noun}"),
        ("bound", join(bound, f" on {job.percentile}")),
        ("power limit", _quantity(job, "max_power_w", "W") if result.get("max_power_w") is not None else ""),
        ("clocks", _word(job, "clocks")),
        ("applied by", _word(job, "method")),
        ("candidates", join(told(result, "grid_size", str(result.get("grid_size"))), f" ({axes})" if axes else "")),
        ("sampler", f"{job.sampler}, budget {job.budget} windows" if job.sampler else ""),
        ("seed", told(result, "seed", str(result.get("seed")))),
        ("windows", _counts(job)),
        ("took", join(told(result, "duration_s", span(result.get("duration_s"))), ", disturbed ", _disturbed(job))),
        ("known before", _known_text(int(result.get("earlier_measurements") or 0))),
        ("versions", versions),
        *((f"workload: {name}", value) for name, value in job.marks.items()),
    ]
    return join(_command(job), rows([pair for pair in facts if pair[1]]), _settings(job))


def _known_text(earlier: int) -> str:
    if not earlier:
        return ""
    return f"{counted(earlier, 'window')} of earlier jobs steered the search; with --fresh, or a fresh state, none does"


def _word(job: Job, name: str) -> Piece:
    value = job.result.get(name)
    return "" if value is None else told(job.result, name, str(value))


def _quantity(job: Job, name: str, unit: str) -> Piece:
    return told(job.result, name, quantity(job.result.get(name), unit))


def _disturbed(job: Job) -> Piece:
    return told(job.result, "disturbed_s", span(job.result.get("disturbed_s")))


def _counts(job: Job) -> Piece:
    measurements, trials = (int(job.result.get(name) or 0) for name in ("measurements", "trials"))
    taken = told(job.result, "measurements", str(measurements))
    return join(taken, " of ", told(job.result, "trials", counted(trials, "candidate")))


def _command(job: Job) -> Piece:
    if not job.command:
        return None
    return join(element("pre", element("code", job.command), id="command"))


def _settings(job: Job) -> Piece:
    if not job.settings:
        return None
    lines = "\n".join(f"{setting.key} = {setting.value}" for setting in job.settings)
    unsaid = [setting for setting in job.settings if not setting.option]
    text = "All settings that are no default"
    text += "; those without an option go into the configuration file:" if unsaid else ":"
    return join(element("p", text), element("pre", lines, id="settings"))


def reading(job: Job) -> Piece:
    """What the numbers are, and what they are not."""
    texts = [
        f"Energy per {job.noun} is the energy of the total rail over a window divided by the {job.noun}s completed in "
        "it. Idle time inside is included, idle power is not subtracted. The rail’s name is part of the number.",
        "Its error has two parts. Repeats: what the batches of a window show, and the spread between windows of one "
        "mode. Sensor: what the steps of its readings hide, however often one repeats. The shunt’s own tolerance is in "
        "neither.",
        "The saving is decided in pairs: blocks of windows close in time, in random order, so that drift cancels; its "
        "interval holds both parts. It counts only where the whole interval is beyond the least gain asked for.",
        f"Latency is of a whole request from its arrival. Its upper limit bounds the {job.percentile} with 95 % "
        "confidence, allowing for misses that come in clusters; a mode is chosen only if that limit keeps the bound.",
        "Windows of the search enter no decision: the least of many noisy values flatters itself.",
    ]
    own = "variant" if job.is_fixed else "mode"
    texts += [f"Savings refer to the first {own} as the board came with it, never to an earlier winner."]
    return element("ul", *(element("li", text) for text in texts))
