"""HTML in small pieces: text is escaped where it enters, and every number carries its value for programs."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from typing import Any

from jouletune.report.facts import lookup
from jouletune.report.words import FIRM

_VOID = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Piece = str | Markup | None


def escape(piece: Piece) -> str:
    """As it may stand in HTML; None is nothing."""
    if piece is None or isinstance(piece, Markup):
        return piece or ""
    return html.escape(piece.replace(" %", f"{FIRM}%"))


def join(*pieces: Piece, by: str = "") -> Markup:
    """One after the other."""
    return Markup(html.escape(by).join(escape(piece) for piece in pieces if piece))


def element(name: str, /, *pieces: Piece, **attributes: str) -> Markup:
    """`class_` is the attribute class, `data_json` is data-json."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*pieces)}</{name}>")


def told(result: Mapping[str, Any], path: str, text: str) -> Markup:
    """What the result says at `path`, shown as `text`: a number or a word of `tune --json`, exactly."""
    value = lookup(result, path)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return element("span", text, data_json=path, data_null="")
    return element("data", text, data_json=path, value=json.dumps(value))


def rows(pairs: list[tuple[str, Piece]]) -> Markup:
    """A list of words and what is to be said of each; what is empty is left out."""
    return element("dl", *(join(element("dt", word), element("dd", text)) for word, text in pairs if text))


def table(head: list[str], lines: list[list[Piece]], *, caption: str, class_: str = "") -> Markup:
    """A table whose cells know their column, so that a narrow screen can stack them."""
    columns = element("thead", element("tr", *(element("th", word, scope="col") for word in head)))
    body = []
    for line in lines:
        first = element("th", line[0], scope="row")
        rest = (
            element("td", element("span", cell), data_label=word) for word, cell in zip(head[1:], line[1:], strict=True)
        )
        body.append(element("tr", first, *rest))
    return element("table", element("caption", caption), columns, element("tbody", *body), class_=class_ or "plain")
