"""A job as one page and its figures: numbers in, bytes out. matplotlib is loaded when `render` is called."""

from __future__ import annotations

import json
from collections.abc import Callable

from jouletune.report import canvas, charts, ink, maps
from jouletune.report.facts import Job
from jouletune.report.markup import Markup, element
from jouletune.report.page import page

PAGE = "index.html"
RESULT = "job.json"
_LEAST_PX = 200  # room for what stands above a small map


def render(job: Job) -> dict[str, bytes]:
    """File name → content: the page, each figure as SVG and PDF, the result as JSON. The same job, the same bytes.

    Raises ImportError where matplotlib is not installed.
    """
    found = maps.maps_of(job)
    makers: tuple[Callable[[Job], canvas.Plot | None], ...] = (charts.front, charts.course, charts.power)
    large = [plot for plot in (make(job) for make in makers) if plot is not None]
    figures: dict[str, Markup] = {}
    files: dict[str, bytes] = {}
    for plot in [] if found is None else maps.plots(found):
        figures[plot.name] = _panel(plot)
    for plot in large:
        drawn, narrow = canvas.svg(plot), f"{plot.name}-narrow"
        about = (plot.title, plot.description)
        figures[plot.name] = Markup(ink.inline(drawn, plot.name, about))
        figures[narrow] = Markup(ink.inline(canvas.svg(plot, is_narrow=True), narrow, about))
        files |= _files(plot, drawn)
    if found is not None:
        whole = maps.whole(found)
        files |= _files(whole, canvas.svg(whole))
    files = {PAGE: page(job, figures), **files}
    listed = {"schema": 1, "files": sorted([*files, RESULT]), "result": job.result}
    files[RESULT] = (json.dumps(listed, indent=1, allow_nan=False) + "\n").encode()
    return files


def _files(plot: canvas.Plot, drawn: str) -> dict[str, bytes]:
    svg = ink.standing(drawn, plot.name, (plot.title, plot.description))
    return {f"figures/{plot.name}.svg": svg.encode(), f"figures/{plot.name}.pdf": canvas.pdf(plot)}


def _panel(plot: canvas.Plot) -> Markup:
    drawn = Markup(ink.inline(canvas.svg(plot), plot.name, (plot.title, plot.description)))
    caption = element("figcaption", plot.caption) if plot.caption else Markup("")
    width_px = max(_LEAST_PX, 96 * plot.width_in[0])
    return element("figure", caption, drawn, style=f"width:{width_px:.0f}px")
