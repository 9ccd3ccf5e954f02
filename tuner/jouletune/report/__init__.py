"""A job as one page and its figures: numbers in, bytes out. matplotlib is loaded when `render` is called."""

from __future__ import annotations

import json
from collections.abc import Callable

from jouletune.report import canvas, charts, ink, maps
from jouletune.report.facts import Job
from jouletune.report.markup import Markup
from jouletune.report.page import page

PAGE = "index.html"
RESULT = "job.json"


def render(job: Job) -> dict[str, bytes]:
    """File name → content: the page, each figure as SVG and PDF, the result as JSON. The same job, the same bytes.

    Raises ImportError where matplotlib is not installed.
    """
    found = maps.maps_of(job)
    small = [] if found is None else maps.plots(job, found)
    makers: tuple[Callable[[Job], canvas.Plot | None], ...] = (charts.front, charts.course, charts.power)
    large = [plot for plot in (make(job) for make in makers) if plot is not None]
    figures = {plot.name: _panel(plot) for plot in small}
    for plot in large:
        figures[plot.name] = Markup(ink.inline(canvas.svg(plot), plot.name, plot.title, plot.description))
        narrow = f"{plot.name}-narrow"
        figures[narrow] = Markup(ink.inline(canvas.svg(plot, is_narrow=True), narrow, plot.title, plot.description))
    files = {PAGE: page(job, figures)}
    for plot in [*([] if found is None else [maps.whole(job, found)]), *small, *large]:
        drawn = ink.standing(canvas.svg(plot), plot.name, plot.title, plot.description)
        files[f"figures/{plot.name}.svg"] = drawn.encode()
        files[f"figures/{plot.name}.pdf"] = canvas.pdf(plot)
    listed = {"schema": 1, "files": sorted([*files, RESULT]), "result": job.result}
    files[RESULT] = (json.dumps(listed, indent=1, allow_nan=False) + "\n").encode()
    return files


def _panel(plot: canvas.Plot) -> Markup:
    from jouletune.report.markup import element

    drawn = Markup(ink.inline(canvas.svg(plot), plot.name, plot.title, plot.description))
    caption = element("figcaption", plot.caption) if plot.caption else Markup("")
    return element("figure", caption, drawn)
