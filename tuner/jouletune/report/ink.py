"""The colours, light and dark, and what becomes of matplotlib's SVG so that it follows the reader's theme.

Figures are drawn in the light theme's colours. In the page each becomes a variable of the style sheet. In a file of its
own each stays as it is, for programs that know no variables, and a media query turns it where the reader wants dark.
Hues are of Okabe and Ito's set, which people with any kind of colour blindness tell apart; shapes tell the same again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

# name → (light, dark); no two of the light ones may be the same, nor black and white, which are never turned
COLOURS: Mapping[str, tuple[str, str]] = {
    "paper": ("#fdfdfc", "#15181c"),
    "ink": ("#1b1f24", "#e7eaee"),
    "muted": ("#59636f", "#a3adb9"),
    "line": ("#d5dae0", "#3a424c"),
    "wash": ("#eef1f4", "#20252b"),
    "reference": ("#0072b2", "#56b4e9"),
    "winner": ("#d55e00", "#ff9a4d"),
    "incumbent": ("#aa4499", "#dd8ac8"),
    "other": ("#6b7580", "#98a2ae"),
    "predicted": ("#009e73", "#35cfa0"),
    "bad": ("#a3341c", "#f29c86"),
}

_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_OPEN = re.compile(r"<svg[^>]*>")
_VIEW = re.compile(r'viewBox="([^"]*)"')
_FONT = re.compile(r"font: ([^;\"]*?)(\d+(?:\.\d+)?)px [^;\"]*")
FONTS = "'DejaVu Sans', 'Segoe UI', system-ui, Helvetica, Arial, sans-serif"


def light(name: str) -> str:
    """The colour that figures are drawn with."""
    return COLOURS[name][0]


def variables(theme: int) -> str:
    """The colours of a theme (0 light, 1 dark) as declarations of CSS variables."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


def _bare(svg: str, name: str) -> tuple[str, str]:
    """What stands inside the root, with ids that are this figure's own, and the view box."""
    svg = _COMMENT.sub("", _METADATA.sub("", _HEAD.sub("", svg, count=1)))
    root = _OPEN.search(svg)
    assert root is not None, "matplotlib writes one"
    view = _VIEW.search(root[0])
    assert view is not None, "matplotlib writes one"
    inside = svg[root.end() : svg.rindex("</svg>")].replace("xlink:href", "href")
    inside = re.sub(r'\bid="', f'id="{name}-', inside)
    inside = re.sub(r'href="#', f'href="#{name}-', inside)
    inside = re.sub(r"url\(#", f"url(#{name}-", inside)
    return _FONT.sub(r"font: \1\2px " + FONTS.replace('"', "'"), inside), view[1]


def _described(name: str, view: str, about: tuple[str, str], inside: str, more: str) -> str:
    title, description = about
    return (
        f'<svg {more}viewBox="{view}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>{inside}</svg>'
    )


def inline(svg: str, name: str, about: tuple[str, str]) -> str:
    """A figure for the page, at most as wide as it was drawn; `about`: title and description, for who cannot see it."""
    inside, view = _bare(svg, name)
    for colour, (day, _) in COLOURS.items():
        inside = inside.replace(day, f"var(--{colour})")
    width = float(view.split()[2]) * 96 / 72
    return _described(name, view, about, inside, f'style="max-width:{width:.0f}px" ')


def standing(svg: str, name: str, about: tuple[str, str]) -> str:
    """A figure for a file of its own."""
    inside, view = _bare(svg, name)
    turned = "".join(
        f'[style*="{what}: {day}"]{{{what}:{night}!important}}'
        for day, night in COLOURS.values()
        for what in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{svg{{background:{COLOURS['paper'][1]}}}{turned}}}</style>"
    width, height = (float(part) for part in view.split()[2:])
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width:g}pt" height="{height:g}pt" '
    return _described(name, view, about, style + inside, size) + "\n"
