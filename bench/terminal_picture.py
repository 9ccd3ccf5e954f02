"""A terminal's screen as tmux has it, as a picture and as text: `tmux capture-pane -e -p | … STEM TITLE COLUMNS ROWS`.

Writes STEM.svg and STEM.txt. The picture asks for no font from anywhere.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def svg_of(screen: str, title: str, columns: int, rows: int) -> str:
    """The screen in its whole size, as SVG."""
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor")
    lines = list(Text.from_ansi(screen).split("\n", allow_blank=True))  # a colour may go on in the next line
    for line in [*lines, *[Text()] * (rows - len(lines))][:rows]:
        console.print(line, no_wrap=True, crop=True, highlight=False)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.split("\n")).replace("Fira Code, monospace", "monospace")


def main(argv: list[str]) -> int:
    """Standard input to two files."""
    stem, title, columns, rows = argv
    screen = sys.stdin.read()
    svg = svg_of(screen, title, int(columns), int(rows))
    plain = "\n".join(line.rstrip() for line in Text.from_ansi(screen).plain.split("\n")).rstrip()
    Path(f"{stem}.svg").write_text(svg + "\n", encoding="utf-8")
    Path(f"{stem}.txt").write_text(plain + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
