"""matplotlib, the only place that loads it: figures to SVG and PDF, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from jouletune.report import ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_IN, NARROW_IN = 8.9, 3.62

_RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and copied
    "svg.hashsalt": "jouled",
    "pdf.fonttype": 42,
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "hatch.linewidth": 0.6,
    "path.simplify": False,
    "text.parse_math": False,  # the name of an engine may have two dollars
    "figure.constrained_layout.use": True,
}


class _Sink:
    """A file in memory, as much of one as matplotlib's writers ask for."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | str) -> int:
        self.data += data.encode() if isinstance(data, str) else bytes(data)
        return len(data)

    def tell(self) -> int:
        return len(self.data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """It is only asked whether there is such a thing."""
        raise OSError("not to be had here")

    def flush(self) -> None:
        """Nothing is held back."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure to be drawn: `draw(figure, is_narrow)`. `name` is a file's; title and description are for who cannot
    see it, and the caption stands below it. Sizes: wide and narrow.
    """

    name: str
    title: str
    description: str
    caption: str
    draw: Callable[[Figure, bool], None]
    height_in: tuple[float, float]
    width_in: tuple[float, float] = (WIDE_IN, NARROW_IN)


@contextmanager
def _style() -> Iterator[None]:
    from matplotlib import rc_context, rcdefaults, rcParams

    colours = {
        "text.color": ink.light("ink"),
        "axes.edgecolor": ink.light("muted"),
        "axes.labelcolor": ink.light("ink"),
        "xtick.color": ink.light("muted"),
        "ytick.color": ink.light("muted"),
        "xtick.labelcolor": ink.light("ink"),
        "ytick.labelcolor": ink.light("ink"),
        "grid.color": ink.light("line"),
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.frameon": False,
    }
    with rc_context():
        rcdefaults()  # not what a user's matplotlibrc says: the same job makes the same bytes everywhere
        settings: Any = {**_RC, **colours}  # newer stubs of matplotlib name every key
        rcParams.update(settings)
        yield


def _figure(plot: Plot, *, is_narrow: bool) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(plot.width_in[is_narrow], plot.height_in[is_narrow]))
    plot.draw(figure, is_narrow)
    return figure


def svg(plot: Plot, *, is_narrow: bool = False) -> str:
    """As matplotlib writes it."""
    sink = _Sink()
    with _style():
        _figure(plot, is_narrow=is_narrow).savefig(
            cast("IO[bytes]", sink), format="svg", metadata={"Date": None, "Creator": None}
        )
    return sink.data.decode()


def pdf(plot: Plot) -> bytes:
    """For print: the light colours, on paper's own white."""
    sink = _Sink()
    about = {"Title": plot.title, "Creator": "jouled", "Producer": None, "CreationDate": None}
    with _style():
        _figure(plot, is_narrow=False).savefig(cast("IO[bytes]", sink), format="pdf", metadata=about)
    return bytes(sink.data)


def plain(axes: Axes) -> None:
    """A light grid behind the marks."""
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
