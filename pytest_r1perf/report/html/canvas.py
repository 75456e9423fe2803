"""Where charts are drawn: one matplotlib figure, used again and again, and what all charts have in common.

Figures are 4 inches wide, 288 points, with letters of 9 points: on a phone of 360 pixels they are shown at about that
size, on a desktop in a grid at about 420 pixels.
"""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.report.html.plain import line
from pytest_r1perf.report.html.svg import ROLES, inline
from pytest_r1perf.report.numbers import number

WIDTH = 4.0
"""Inches."""
_LETTERS = 9.0
_ROW = 0.42
"""Inches of a row that has its label above it."""
_FOOT, _HEAD = 0.46, 0.1
_TALL_ROW = 0.58
_LINE, _WHOLE_LINE = 53, 56
"""Letters that a row's label and value have room for side by side, and a label alone."""
_NEEDED = ("jinja2", "matplotlib")
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.size": _LETTERS,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": False,
    "text.color": ROLES["ink"],
    "axes.edgecolor": ROLES["muted"],
    "axes.labelcolor": ROLES["ink"],
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": ROLES["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": ROLES["ink"],
    "ytick.color": ROLES["ink"],
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.color": ROLES["paper"],
    "hatch.linewidth": 1.2,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: its title, and an ``<svg>`` element that carries its alternative text."""

    title: str
    svg: str


@dataclass(slots=True)
class Drawing:
    """A chart that is being drawn; ``chart`` is there when its context has ended."""

    figure: Any
    title: str
    alt: str
    made: list[Chart] = field(default_factory=list)

    @property
    def chart(self) -> Chart:
        """The finished one."""
        return self.made[0]


def refuse_missing() -> None:
    """:class:`R1PerfError` where what the page is made with is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise R1PerfError(
            f"an HTML report needs {' and '.join(missing)}, not installed here: pip install 'pytest-r1perf[html]'"
        )


class Canvas:
    """Draws charts, each with ids of its own, so that many can stand on one page."""

    def __init__(self) -> None:
        refuse_missing()
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=(WIDTH, 2.4), facecolor="none", edgecolor="none")
        FigureCanvasSVG(self._figure)
        self._drawn = 0

    @contextmanager
    def draw(self, title: str, alt: str, height: float) -> Iterator[Drawing]:
        """A chart of ``height`` inches; ``alt`` says in words what it shows."""
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that matplotlib's own font lacks; the reader's has them
            self._figure.clear()
            self._figure.set_size_inches(WIDTH, height)
            drawing = Drawing(self._figure, line(title), line(alt))
            yield drawing
            self._drawn += 1
            mpl.rcParams["svg.hashsalt"] = f"r1perf {self._drawn}"
            file = io.StringIO()
            self._figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
            drawing.made.append(Chart(drawing.title, inline(file.getvalue(), f"{drawing.title}. {drawing.alt}")))


def box(drawing: Drawing, *, left: float = 0.6, right: float = 0.12, top: float = 0.1, bottom: float = 0.46) -> Any:
    """Axes with margins in inches."""
    width, height = drawing.figure.get_size_inches()
    axes = drawing.figure.add_axes(
        (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    )
    axes.set_axisbelow(True)
    return axes


def height_of_rows(labels: Sequence[tuple[str, str]]) -> float:
    """Inches of a chart of such rows."""
    return _HEAD + _FOOT + (_TALL_ROW if _too_long(labels) else _ROW) * len(labels)


def _too_long(labels: Sequence[tuple[str, str]]) -> bool:
    """Whether a label and its value can't stand side by side, so that the value goes under it in all rows."""
    return any(value and len(line(name)) + len(value) > _LINE for name, value in labels)


def rows(drawing: Drawing, labels: Sequence[tuple[str, str]], axis: str) -> Any:
    """Axes of rows, the first at the top, at y = 0, 1, ...; a label stands above its row, and its value at the right.

    Names of cells are long and phones are narrow: beside the rows they would leave no room for them.
    """
    axes = box(drawing, left=0.12, right=0.12, top=_HEAD, bottom=_FOOT)
    two = _too_long(labels)
    axes.set_ylim(len(labels) - 0.5, -0.72) if two else axes.set_ylim(len(labels) - 0.4, -0.62)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(line(axis))
    across = axes.get_yaxis_transform()
    for place, (name, value) in enumerate(labels):
        above = place - (0.43 if two else 0.22)
        axes.text(0, above, line(name, _WHOLE_LINE), transform=across, ha="left", va="bottom")
        axes.text(1, place - (0.17 if two else 0.22), value, transform=across, ha="right", va="bottom")
    return axes


def plain_ticks(axis: Any, most: int = 5) -> None:
    """Ticks as the rest of the report writes numbers: ``22,854``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def span(values: Sequence[float], part: float = 0.1) -> tuple[float, float]:
    """The limits of an axis that has these values on it, with some room, and 2 % of them at least.

    What differs by less would look like something, and have the same number at every tick.
    """
    low, high = min(values), max(values)
    room = max((high - low) * part, (0.02 * abs(high) - (high - low)) / 2) or 1.0
    return low - room, high + room


def clipped(value: float, ends: tuple[float, float]) -> float:
    """A limit that lies beyond an axis (or is endless) at its end."""
    return min(max(value, ends[0]), ends[1]) if not math.isnan(value) else ends[0]
