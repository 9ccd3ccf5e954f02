"""The sections with figures: what each shows, and how it is to be read."""

from __future__ import annotations

from collections.abc import Mapping

from jouletune.objective import Objective
from jouletune.report.facts import Job
from jouletune.report.markup import Markup, Piece, element, join


def _figure(figures: Mapping[str, Markup], name: str, caption: str) -> Piece:
    wide, narrow = figures.get(name), figures.get(f"{name}-narrow")
    if wide is None or narrow is None:
        return None
    files = f" Files: figures/{name}.svg, figures/{name}.pdf."
    return element(
        "figure",
        element("div", wide, class_="wide"),
        element("div", narrow, class_="narrow"),
        element("figcaption", caption + files),
        id=f"figure-{name}",
    )


def maps(job: Job, figures: Mapping[str, Markup]) -> Piece:
    """A map for each EMC clock, and the key."""
    names = sorted((n for n in figures if n.startswith("energy-map-")), key=lambda n: int(n.rpartition("-")[2]))
    if not names:
        return element("p", _no_map(job))
    panels = [figures[name] for name in names]
    marks = [("scale", "less to more energy"), ("measured", "measured")]
    marks += [("predicted", "predicted")] if job.front else []
    marks += [("slow", "tried, breaks a limit")] if any(not point.feasible for point in job.points) else []
    marks += [("slow-predicted", "predicted to break the bound")] if job.front and job.bound_s is not None else []
    marks += [("reference", job.role_title("reference"))]
    marks += [("incumbent", job.role_title("incumbent"))] if "incumbent" in job.roles().values() else []
    marks += [("winner", job.role_title(name))] if (name := job.shown()) else []
    key = element("ul", *(element("li", element("i", class_=mark), word) for mark, word in marks), class_="key")
    return join(
        element("p", f"Numbers are energy per {job.noun}, {_model_text(job)}{_objective_text(job)}"),
        element("div", *panels, class_="maps"),
        key,
        element("p", "All maps in one: figures/energy-map.svg, figures/energy-map.pdf.", class_="muted"),
    )


def _objective_text(job: Job) -> str:
    if job.objective is Objective.ENERGY:
        return ""
    return f" What was to be least is another thing, {job.cost_noun} per {job.noun}."


def _model_text(job: Job) -> str:
    if not job.front:
        return "measured; too little was measured for a model to say anything of the rest."
    earlier = int(job.result.get("earlier_measurements") or 0)
    known = f" and {earlier} of earlier jobs" if earlier else ""
    steered = "which also proposed the windows" if job.sampler == "joule" else f"though {job.sampler} chose the windows"
    return (
        f"where measured; elsewhere the middle of what the model of jouletune believes after all valid windows{known}, "
        f"{steered}. A prediction is no measurement, and nothing is put in force by one."
    )


def _no_map(job: Job) -> str:
    if job.space is None:
        return "The job ended before its candidates were listed."
    return "There is one candidate only." if not job.space.axes else "Nothing was measured whole: no map can be drawn."


def front(job: Job, figures: Mapping[str, Markup]) -> Piece:
    """The front with the bound."""
    text = (
        "Energy bars are 95 % intervals. Latency bars reach to the upper 95 % limit of the "
        f"{job.percentile}, which has to lie left of the bound. "
    )
    text += "Shaded: beyond the bound. " if job.bound_s is not None else "No bound was asked for. "
    if job.front:
        text += (
            "Hollow circles and the dashed front are the model’s predictions, with bars of 90 % on the front; what "
            "lies far outside is not shown. Right of the bound they say what a looser one might save. "
        )
    return _figure(figures, "front", text.strip())


def course(job: Job, figures: Mapping[str, Markup]) -> Piece:
    """What happened when."""
    text = (
        "Each window at its time, with its 95 % interval. Below, the reference measured again and again, against its "
        "first window: what moves there is drift, not the power mode. Temperature is the hottest zone’s at the "
        "window’s end. Windows without an energy stand at the foot."
    )
    return _figure(figures, "course", text)


def power(job: Job, figures: Mapping[str, Markup]) -> Piece:
    """The traces, or how to have them."""
    if not job.traces:
        keep = element("pre", job.keep_command) if job.keep_command else ""
        return join(element("p", "No power over time was kept of what is compared here. To have it kept:"), keep)
    sources = {trace.source for trace in job.traces}
    how = "as read, from the raw samples" if sources == {"samples"} else "in means of the ledger"
    raw = "" if sources == {"samples"} else " Every reading is kept with --keep-samples."
    text = f"One window each, {how}. Dotted: the mean over the window, which starts at 0; the pilot is in no number."
    return _figure(figures, "power", text + raw)
