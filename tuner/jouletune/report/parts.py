"""What is compared: the numbers that everybody wants first, and a column for each side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jouletune.report.facts import Job, same_arm
from jouletune.report.markup import Markup, Piece, element, join, table, told
from jouletune.report.sentence import errors, sides_shown
from jouletune.report.words import FIRM, NONE, counted, megahertz, percent, quantity, signed_percent, span

_NOTHING = "Nothing was measured whole, so there is nothing to compare."
_NO_SUMS = "Without an end there are no sums over a mode’s windows; each window stands below."


def cards(job: Job) -> Piece:
    """The numbers that everybody wants first: of the winner, else of what stays in force."""
    result, home = job.result, job.side("reference")
    name = next((one for one in ("winner", "incumbent", "reference") if job.side(one) is not None), "reference")
    side = job.side(name)
    if side is None or home is None:
        return None
    is_other = not same_arm(side, home)

    def beside(key: str, unit: str) -> Piece:
        if not is_other:
            return None
        return join(f"{job.role_title('reference')}: ", told(result, f"reference.{key}", quantity(home[key], unit)))

    bound = None if job.bound_s is None else told(result, "latency_bound_s", quantity(job.bound_s, "s"))
    windows = told(result, "measurements", counted(int(result["measurements"]), "window"))
    tried = told(result, "trials", str(result["trials"]))
    of = join(windows, " on ", tried, " of ", told(result, "grid_size", str(result["grid_size"])))
    whose = "" if not is_other else f", {'in force' if name == 'incumbent' else job.role_title(name)}"
    made: list[tuple[str, str, str, Piece]] = [
        (f"energy per {job.noun}{whose}", f"{name}.energy_j", quantity(side["energy_j"], "J"), beside("energy_j", "J")),
        (
            f"latency {job.percentile}",
            f"{name}.latency_s",
            quantity(side["latency_s"], "s"),
            join("bound: ", bound or "none"),
        ),
        ("power at this load", f"{name}.power_w", quantity(side["power_w"], "W"), beside("power_w", "W")),
        ("the board was disturbed", "disturbed_s", span(result.get("disturbed_s")), of),
    ]
    return element("div", *(_card(job, *one) for one in made), class_="cards")


def _card(job: Job, what: str, path: str, text: str, more: Piece) -> Markup:
    number = element("b", told(job.result, path, text))
    return element("div", element("span", what, class_="what"), number, element("span", more, class_="more"))


# --- the sides ----------------------------------------------------------------------------------------------


def sides(job: Job) -> Piece:
    """A column each: what it is, and its numbers."""
    names = sides_shown(job)
    if not names:
        return element("p", _NOTHING if job.has_ended or not job.windows else _NO_SUMS)
    head = ["", *(job.role_title(name) for name in names)]
    lines = [[label, *(cell(job, name) for name in names)] for label, cell in _LINES]
    kept = [line for line in lines if any(text not in (NONE, "") for text in line[1:])]
    kept = [line for line in kept if str(line[0]) not in _only_one(job, names)]
    kept = [[_label(job, str(line[0])), *line[1:]] for line in kept]
    caption = "± is one standard error. The shunts’ own tolerance is in no number here."
    return table(head, kept, caption=caption, class_="sides")


def _only_one(job: Job, names: list[str]) -> set[str]:
    """Batch and instances say nothing where they are 1 throughout."""
    variants = [job.result[name]["variant"] for name in names]
    return {key for key in ("batch", "instances") if all(variant[key] == 1 for variant in variants)}


def _label(job: Job, label: str) -> str:
    return label.replace("{noun}", job.noun).replace("{p}", job.percentile)


def _number(name: str, unit: str) -> Any:
    def cell(job: Job, side: str) -> Piece:
        value = job.result[side][name]
        return told(job.result, f"{side}.{name}", quantity(value, unit))

    return cell


def _clock(name: str) -> Any:
    def cell(job: Job, side: str) -> Piece:
        value = job.result[side]["mode"][name]
        return NONE if value is None else told(job.result, f"{side}.mode.{name}", f"{megahertz(value)} MHz")

    return cell


def _plain(path: str) -> Any:
    def cell(job: Job, side: str) -> Piece:
        value: Any = job.result[side]
        for part in path.split("."):
            value = value[part]
        shown = str(value).rpartition("/")[2]
        return NONE if value is None else told(job.result, f"{side}.{path}", shown)

    return cell


def _spread(job: Job, side: str) -> Piece:
    se_j, energy_j = job.result[side]["energy_se_j"], job.result[side]["energy_j"]
    whole = told(job.result, f"{side}.energy_se_j", f"±{FIRM}{percent(se_j / energy_j, 2)}")
    return join(whole, " ", errors(job, side))


def _against(job: Job, side: str) -> Piece:
    home = job.side("reference")
    if home is None or side == "reference":
        return NONE
    return signed_percent(job.result[side]["energy_j"] / home["energy_j"] - 1)


def _bound(job: Job, side: str) -> Piece:
    upper_s = job.result[side]["latency_upper_s"]
    if job.bound_s is None or upper_s is None:
        return NONE
    if upper_s > job.bound_s:
        return "over the bound"
    return f"{quantity(job.bound_s - upper_s, 's')} below the bound ({percent(1 - upper_s / job.bound_s, 0)})"


_LINES: Sequence[tuple[str, Any]] = (
    ("cores online", _plain("mode.cores")),
    ("CPU cap", _clock("cpu_hz")),
    ("GPU cap", _clock("gpu_hz")),
    ("EMC cap", _clock("emc_hz")),
    ("clocks", _plain("policy")),
    ("engine", _plain("variant.engine")),
    ("batch", _plain("variant.batch")),
    ("instances", _plain("variant.instances")),
    ("energy per {noun}", _number("energy_j", "J")),
    ("its standard error", _spread),
    ("change", _against),
    ("power at this load", _number("power_w", "W")),
    ("latency {p}", _number("latency_s", "s")),
    ("its upper limit (95 %)", _number("latency_upper_s", "s")),
    ("headroom", _bound),
    ("requests in it", lambda job, side: told(job.result, f"{side}.latency_samples", _count(job, side))),
    ("{noun}s a second", _number("throughput_hz", "/s")),
    ("windows", _plain("windows")),
)


def _count(job: Job, side: str) -> str:
    return f"{job.result[side]['latency_samples']:,}".replace(",", " ")  # a thin space
