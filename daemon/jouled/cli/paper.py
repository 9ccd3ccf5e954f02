"""Lines for a terminal of a given size, and the parts that they are made of. Only who draws imports this: rich.

Each line is made for the width, which is a column less than there is (a terminal may wrap after the last one). Nothing
is told by colour alone.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from jouled.cli.terminal import Size

LABEL = 10
BAR = 36
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[µm]?[JsWV]|%|MHz|°C)(?!\w))")
_PLAIN = {"µ": "u", "±": "~", "°": " ", "−": "-", "…": "~", "·": "-", "━": "="}


@dataclass(frozen=True, slots=True)
class Paper:
    """What is drawn on: its size, and the encoding in which the terminal is written to."""

    size: Size
    encoding: str

    @property
    def width(self) -> int:
        return max(1, self.size.columns - 1)

    @property
    def height(self) -> int:
        """The last row is the cursor's."""
        return max(1, self.size.rows - 1)

    def rendered(self, lines: Iterable[Text]) -> list[str]:
        """Lines as they are written, cut to the size."""
        out = io.StringIO()
        console = Console(file=out, width=self.width, height=self.height, force_terminal=True, legacy_windows=False)
        for line in list(lines)[: self.height]:
            console.print(self._printable(line), no_wrap=True, overflow="ellipsis", crop=True, highlight=False)
        return [self._encodable(line) for line in out.getvalue().splitlines()]

    def _printable(self, line: Text) -> Text:
        """A name or a warning may hold anything: what is no letter is none here."""
        plain = "".join(each if each.isprintable() else "?" for each in line.plain)
        if plain != line.plain:
            line.plain = plain
        line.truncate(self.width, overflow="ellipsis")
        return line

    def _encodable(self, line: str) -> str:
        try:
            line.encode(self.encoding)
        except UnicodeEncodeError:
            return "".join(_PLAIN.get(each, each) for each in line)
        return line


def ends(left: Text, right: Text, width: int) -> Text:
    """`left` at the left, `right` at the right; the left one gives way."""
    room = width - right.cell_len - 2
    if room < min(8, left.cell_len):
        return left
    left = left.copy()
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", right)


def labelled(label: str, *parts: str | tuple[str, str] | Text) -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), *parts)


def wrapped(label: str, text: str, width: int, most: int, style: str = "") -> list[Text]:
    """At most so many lines, by words; a number stays with its unit."""
    text = _BEFORE_UNIT.sub("\u00a0", text)
    room = max(10, width - LABEL)
    lines = textwrap.wrap(text, room, max_lines=most, placeholder=" …", break_on_hyphens=False) or [""]
    plain = [line.replace("\u00a0", " ") for line in lines]
    return [labelled(label if number == 0 else "", (line, style)) for number, line in enumerate(plain)]


def notice_lines(text: str, width: int, most: int = 3) -> list[Text]:
    """A notice over at most so many lines; none where there is nothing to say."""
    lines = textwrap.wrap(text, max(10, width), max_lines=most, placeholder=" …", break_on_hyphens=False)
    return [Text(line, "bold yellow") for line in lines]


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def bar(share: float, width: int, style: str) -> Text:
    """Filled to `share`, 0 to 1."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble(("━" * filled, style), ("·" * (width - filled), "dim"))


def saves(ratio: float, *, places: int = 1) -> str:
    """A saving as a change of the energy: −13.2 %."""
    text = f"{100 * abs(ratio):.{places}f}"
    sign = "" if float(text) == 0 else "−" if ratio > 0 else "+"
    return f"{sign}{text} %"


def first_that_fits(texts: Sequence[str], width: int) -> str:
    return next((text for text in texts if Text(text).cell_len <= width), texts[-1])
