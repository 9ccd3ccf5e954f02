"""The decision in one sentence: what was found, its interval, its rail, and both parts of its error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jouletune.objective import Objective
from jouletune.report.facts import Job, candidate_of, same_arm
from jouletune.report.markup import Markup, Piece, element, join, told
from jouletune.report.words import FIRM, NONE, candidate_text, megahertz, percent, quantity, variant_text

_AS_FOUND = "Every knob is as it was found."
ENDINGS: Mapping[str, tuple[str, str]] = {
    "no_gain": ("No gain was shown", "What was in force stays: a larger saving than asked for was not shown."),
    "no_feasible": ("Nothing keeps the limits", "No candidate that was tried keeps the limits."),
    "cancelled": ("Cancelled", "The job was cancelled before it could decide."),
    "interrupted": ("Interrupted", "The job was interrupted before it could decide."),
    "rolled_back": ("Rolled back", "What was chosen broke a limit once in force, and was taken back."),
    "workload_failed": ("The workload failed", "The workload could not be run, so nothing was decided."),
    "board_busy": ("The board was busy", "Something else used the board, so nothing was measured."),
    "board_fault": ("The board failed", "The board or its tools failed, so nothing was decided."),
    "not_supported": ("Not supported", "This board cannot be tuned by this version."),
    "unstable": ("Unstable", "The board's draw changed by itself, so that nothing could be compared."),
}
UNKNOWN_END = ("No end", "The ledger holds no end of this job: it still runs, or it was killed.")


def headline(job: Job) -> Piece:
    """The shortest way to say it."""
    result = job.result
    if not job.has_ended:
        return f"{UNKNOWN_END[0]}: the job was in phase {job.ended_phase or 'starting'}"
    if result["outcome"] != "tuned":
        return ENDINGS[str(result["outcome"])][0]
    saving = result.get("saving_ratio")
    if same_arm(result["winner"], result.get("reference")) or saving is None:
        return "Back to the first variant" if job.is_fixed else "Back to the board’s own mode"
    ratio, path, what = saving, "saving_ratio", "energy"
    if job.objective is not Objective.ENERGY and result.get("gain_ratio") is not None:
        ratio, path, what = result["gain_ratio"], "gain_ratio", job.cost_noun
    less = "less" if ratio >= 0.0 else "more"
    return join(told(result, path, percent(abs(ratio))), f" {less} {what} per {job.noun}")


def decision(job: Job) -> Markup:
    """One or two sentences."""
    result = job.result
    if not job.has_ended:
        return join(UNKNOWN_END[1], " What was measured by then is shown as it is; nothing of it is a decision.")
    if result["outcome"] == "tuned":
        return _tuned(job)
    _, text = ENDINGS[str(result["outcome"])]
    reason = str((result.get("reason") or {}).get("text") or "")
    parts: list[Piece] = [text, " "]
    if reason:
        parts += [element("q", told(result, "reason.text", reason)), " "]
    parts += [_best_seen(job), " "]
    if result.get("applied") and result["outcome"] == "no_feasible":
        parts.append("What was in force before broke a limit, too, and gave way to the board’s own mode.")
    parts += [_AS_FOUND if not result.get("applied") and result["outcome"] != "board_fault" else ""]
    return join(*parts)


def _best_seen(job: Job) -> Piece:
    """Of a job that decided nothing: the least that was seen, and that nothing was shown by it."""
    if job.shown() != "best_seen":
        return ""
    side = job.result["best_seen"]
    return join(
        f"The best other candidate seen within the limits: {candidate_text(candidate_of(side))} with ",
        told(job.result, "best_seen.energy_j", quantity(side["energy_j"], "J")),
        f" per {job.noun} ",
        errors(job, "best_seen"),
        "; that it takes less is not shown.",
    )


def _tuned(job: Job) -> Markup:
    result, noun = job.result, job.noun
    winner, reference = result["winner"], result["reference"]
    if same_arm(winner, reference):
        text = str((result.get("reason") or {}).get("text") or "")
        return join("The board’s own mode is in force again: ", element("q", told(result, "reason.text", text)))
    parts: list[Piece] = [f"On {_board(job)}, running {result['workload']} {_arrival(job)}, "]
    parts += [element("strong", _change(job)), " takes ", *_gain(job)]
    parts += [
        told(result, "winner.energy_j", quantity(winner["energy_j"], "J")),
        f" per {noun} ",
        errors(job, "winner"),
    ]
    parts += [" instead of ", told(result, "reference.energy_j", quantity(reference["energy_j"], "J")), " "]
    parts += [errors(job, "reference"), f" in {_home(job)}"]
    parts += [": ", *_saving(job), ", on rail ", told(result, "rail", str(result["rail"]))]
    parts += [f" ({result['rail_coverage']})" if result.get("rail_coverage") else "", ". ", _latency(job)]
    return join(*parts)


def _board(job: Job) -> str:
    """A sentence that is quoted alone must say it, too."""
    board = str(job.result["board"])
    return {"virtual": f"a virtual {board}", "recorded": "a board made of recorded measurements"}.get(
        job.simulated, board
    )


def _arrival(job: Job) -> str:
    arrival = str(job.result.get("arrival") or "")
    return "back to back" if arrival == "back_to_back" else f"({arrival})"


def _gain(job: Job) -> list[Piece]:
    """What was to be least, where that is not the energy, comes first."""
    if job.objective is Objective.ENERGY or job.result.get("gain_interval") is None:
        return []
    return [*_less(job, "gain", job.cost_noun), "), which was asked for, and "]


def _saving(job: Job) -> list[Piece]:
    if job.result.get("saving_ratio") is None or job.result.get("saving_interval") is None:
        return ["how much that saves could not be compared in pairs"]
    what = "" if job.objective is Objective.ENERGY else "energy"
    return [*_less(job, "saving", what), _sensor_of_saving(job), ")"]


def _less(job: Job, name: str, what: str) -> list[Piece]:
    """A ratio with its interval, the bracket left open. What is more is told as more, with its interval turned."""
    result = job.result
    saving, interval = result[f"{name}_ratio"], result[f"{name}_interval"]
    less = "less" if saving >= 0.0 else "more"
    texts, order = (percent(interval[0]), percent(interval[1])), (0, 1)
    if saving < 0.0:
        texts, order = (percent(-interval[1]), percent(-interval[0])), (1, 0)
    return [
        element("strong", told(result, f"{name}_ratio", percent(abs(saving))), f" {less} {what}".rstrip()),
        " (95 % interval ",
        told(result, f"{name}_interval.{order[0]}", texts[0]),
        " to ",
        told(result, f"{name}_interval.{order[1]}", texts[1]),
    ]


def _sensor_of_saving(job: Job) -> str:
    sides = [job.point("winner"), job.point("reference")]
    spreads = [point.spread for point in sides if point is not None and point.spread is not None]
    if len(spreads) < 2:
        return ""
    sensor = 1.96 * math.hypot(*(spread.sensor for spread in spreads))
    return f"; ±{FIRM}{percent(sensor)} of that is the steps of the sensor, which no repeat lessens"


def errors(job: Job, name: str) -> Piece:
    """Both parts of a side's standard error."""
    point = job.point(name)
    if point is None or point.spread is None:
        return ""
    spread = point.spread
    return f"(±{FIRM}{percent(spread.repeats, 2)} by repeats, ±{FIRM}{percent(spread.sensor, 2)} by the sensor)"


def _home(job: Job) -> str:
    return "the first variant" if job.is_fixed else f"the board’s own mode {job.result['base_mode']}"


def _change(job: Job) -> str:
    """What the winner changes, in words."""
    winner, reference = (candidate_of(job.result[name]) for name in ("winner", "reference"))
    new, old = winner.mode, reference.mode
    named = (("CPU", new.cpu_hz, old.cpu_hz), ("GPU", new.gpu_hz, old.gpu_hz), ("EMC", new.emc_hz, old.emc_hz))
    parts = [f"{name} at {megahertz(a)} instead of {megahertz(b)} MHz" for name, a, b in named if a != b]
    if new.cores != old.cores:
        parts.insert(0, f"{new.cores} instead of {old.cores} cores")
    if winner.variant != reference.variant:
        before = variant_text(reference.variant) or "as it was"
        parts.append(f"{variant_text(winner.variant) or 'the plain variant'} instead of {before}")
    if job.result["winner"]["policy"] == "locked":
        parts.append("clocks locked")
    return ", ".join(parts) or "the same mode"


def _latency(job: Job) -> Piece:
    result, winner = job.result, job.result["winner"]
    parts: list[Piece] = [
        f"Its latency {job.percentile} is ",
        told(result, "winner.latency_s", quantity(winner["latency_s"], "s")),
        " (with 95 % confidence at most ",
        told(result, "winner.latency_upper_s", quantity(winner["latency_upper_s"], "s")),
        ")",
    ]
    if job.bound_s is None:
        return join(*parts, "; no bound was asked for.")
    bound = told(result, "latency_bound_s", quantity(job.bound_s, "s", 3) or NONE)
    upper_s = winner["latency_upper_s"]
    is_kept = upper_s is not None and upper_s <= job.bound_s
    return join(*parts, ", within the bound of " if is_kept else ", the bound is ", bound, ".")


def simulated_note(job: Job) -> str:
    """What must be known before any number is read; "": measured on the machine itself."""
    if job.simulated == "virtual":
        return (
            "A virtual board: these joules, watts and seconds were computed by a model of one. "
            "They show what the program does and are no measurement of any hardware."
        )
    if job.simulated == "recorded":
        return (
            "A recorded board: energies and latencies come from a table of measurements made elsewhere, "
            "with noise added; no hardware was run for this job."
        )
    return ""


def sides_shown(job: Job) -> list[str]:
    """The sides of the table, in order."""
    names = ["reference"]
    incumbent: Mapping[str, Any] | None = job.side("incumbent")
    if incumbent is not None and not same_arm(incumbent, job.side("reference")):
        names.append("incumbent")
    shown = job.shown()
    if shown is not None and not (shown == "winner" and same_arm(job.result["winner"], job.side("reference"))):
        names.append(shown)
    return [name for name in names if job.side(name) is not None]
