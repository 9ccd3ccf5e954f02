"""The page: one HTML file that holds everything and loads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape

from jouletune.report import accounts, captions, cite, parts, style
from jouletune.report.facts import Job
from jouletune.report.markup import Markup, Piece, element, join
from jouletune.report.sentence import decision, headline, simulated_note

# Nothing may be loaded from anywhere, whatever a name in the ledger says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(job: Job, figures: Mapping[str, Markup]) -> bytes:
    """`figures`: inline SVGs by name, those that are there."""
    title = join(headline(job), f" – jouled report {job.result['job']}")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", _text(title)),
        Markup(f"<style>{style.sheet()}</style>"),
    )
    body = element("body", _header(job), element("main", *_sections(job, figures)), _footer(job), _data(job))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'.encode()


def _text(markup: Markup) -> str:
    """Without its tags."""
    return unescape(re.sub(r"<[^>]*>", "", markup))


def _header(job: Job) -> Markup:
    result = job.result
    about = [f"jouled report, job {result['job']}", str(result.get("board") or ""), job.began_utc]
    note = simulated_note(job)
    return element(
        "header",
        element("p", " · ".join(filter(None, about)), class_="kicker"),
        element("h1", headline(job), id="headline"),
        element("p", note, class_="note", id="simulated") if note else "",
        element("p", decision(job), class_="lead", id="decision"),
        parts.cards(job),
    )


def _sections(job: Job, figures: Mapping[str, Markup]) -> list[Piece]:
    return [
        _section("sides", "Compared", parts.sides(job)),
        _section("map", "Energy of each candidate", captions.maps(job, figures)),
        _section("front", "Energy against latency", captions.front(job, figures)),
        _section("course", "The job in time", captions.course(job, figures)),
        _section("power", "Power over time", captions.power(job, figures)),
        _section("invalid", "What did not count", accounts.invalid(job)),
        _section("windows", "Every window", accounts.windows(job)),
        _section("reproduce", "To do it again", accounts.reproduce(job)),
        _section("reading", "How to read the numbers", accounts.reading(job)),
        _section("cite", "To cite it", join(element("p", cite.line(job)), element("pre", cite.bibtex(job)))),
    ]


def _section(name: str, title: str, content: Piece) -> Piece:
    return element("section", element("h2", title), content, id=name) if content else None


def _footer(job: Job) -> Markup:
    text = "Made by jouled report from the job’s ledger; the file loads nothing and can be kept as it is."
    return element("footer", text)


def _data(job: Job) -> Markup:
    """The result as `jouled tune --json` printed it, for programs."""
    told = json.dumps(job.result, ensure_ascii=True, sort_keys=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="tune-json">{told}</script>')
