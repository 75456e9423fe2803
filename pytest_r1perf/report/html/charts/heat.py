"""A heat map whose cells say their values: the colour is only a help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, box
from pytest_r1perf.report.html.plain import line
from pytest_r1perf.report.html.svg import ROLES

_ROW = 0.36


@dataclass(frozen=True, slots=True)
class Tile:
    """What is written, and how strongly it is coloured, from 0 to 1; ``hatched`` where there is no value."""

    text: str
    strength: float = 0.0
    hatched: bool = False
    framed: bool = False


def heat_chart(
    canvas: Canvas,
    title: str,
    names: tuple[str, str],
    down: Sequence[str],
    across: Sequence[str],
    tiles: Sequence[Sequence[Tile]],
) -> Chart:
    """``tiles[i][j]`` is at ``down[i]`` and ``across[j]``; ``names`` are the axes' (down, across)."""
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    told = "; ".join(
        f"{row}, {column}: {line(tile.text)}"
        for row, own in zip(down, tiles, strict=True)
        for column, tile in zip(across, own, strict=True)
    )
    left = min(1.5, 0.5 + 0.062 * max(len(line(name, 18)) for name in down))
    top = 0.3 if names[0] else 0.1
    height = 0.62 + top + _ROW * len(down)
    with canvas.draw(title, told, height) as drawing:
        mpl.rcParams["hatch.color"] = ROLES["muted"]  # until the end of the drawing: canvas.py sets all back
        axes = box(drawing, left=left, bottom=0.62, top=top)
        for i, own in enumerate(tiles):
            for j, tile in enumerate(own):
                place = (j - 0.48, i - 0.46)
                edge = ROLES["ink"] if tile.framed else ROLES["grid"]
                width = 1.8 if tile.framed else 0.6
                axes.add_patch(
                    Rectangle(
                        place, 0.96, 0.92, fc=ROLES["a"], alpha=0.05 + 0.5 * min(1.0, max(0.0, tile.strength)), lw=0
                    )
                )
                axes.add_patch(
                    Rectangle(place, 0.96, 0.92, fc="none", ec=edge, lw=width, hatch="//" if tile.hatched else None)
                )
                text = "\n".join(line(part, 64 // max(1, len(across))) for part in tile.text.split("\n"))
                axes.text(j, i, text, ha="center", va="center", fontsize=8.5)
        axes.set_xlim(-0.5, len(across) - 0.5)
        axes.set_ylim(len(down) - 0.5, -0.5)
        room = max(4, 52 // max(1, len(across)))
        axes.set_xticks(range(len(across)), [line(name, room) for name in across])
        axes.set_yticks(range(len(down)), [line(name, 18) for name in down])
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0)
        axes.set_xlabel(line(names[1]))
        if names[0]:  # upright it would be longer than a map of few rows is high
            axes.annotate(f"{line(names[0])} \u2193", (0, 1), xycoords="figure fraction", va="top", ha="left")
    return drawing.chart
