"""Draw ``gate.svg`` from the numbers: ``python plot.py RESULT.json OUT.svg`` in the environment that has matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found,import-untyped,unused-ignore]

mpl.use("svg")
from matplotlib import pyplot as plt  # type: ignore[import-not-found,import-untyped,unused-ignore]

OURS = "ours"
FLOOR = 1e-3


def main() -> None:
    """Two panels: as they come, and at the same false-alarm rate."""
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gate", "font.size": 8, "font.family": "sans-serif"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5.2))
    _as_they_come(left, result["main"])
    _equal(right, result)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


def _as_they_come(axes: Any, found: dict[str, Any]) -> None:
    for number, (name, one) in enumerate(found.items(), start=1):
        alarms, power = one["unchanged"]["night"], one["5 % slower"]["rate"]
        mark = {"marker": "*", "s": 140, "color": "C3"} if name == OURS else {"marker": "o", "s": 18, "color": "C0"}
        axes.scatter(max(alarms, FLOOR), power, **mark, zorder=3)
        axes.annotate(str(number), (max(alarms, FLOOR), power), xytext=(4, 3), textcoords="offset points")
        axes.scatter([], [], marker="", label=f"{number} {name}")
    axes.axvline(0.01, color="grey", linewidth=0.8, linestyle="--")
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log",
        xlabel="a night of 40 unchanged cells with a false alarm (0.001: at most that)",
        ylabel="power at a 5 % drop, one night",
        title="As they come (CV 2 %)",
    )
    _legend_below(axes, handlelength=0, handletextpad=0)


def _equal(axes: Any, result: dict[str, Any]) -> None:
    for number, (name, row) in enumerate(result["equal"]["rules"].items()):
        rounds, power = zip(*row["tried"], strict=True)
        axes.plot(rounds, power, marker="o", markersize=3, linewidth=0.8, color=f"C{number}", label=name)
    ours = result["main"][OURS]
    spent = [ours[key]["rounds"] for key in ("unchanged", "5 % slower")]
    power = ours["5 % slower"]["rate"]
    axes.plot(spent, [power, power], color="black", linewidth=1.2)
    axes.scatter(spent, [power, power], marker="*", s=120, color=("C3", "black"), zorder=3)
    axes.annotate("ours: unchanged", (spent[0], power), xytext=(-8, 8), textcoords="offset points", fontsize=7)
    axes.annotate("5 % slower", (spent[1], power), xytext=(-4, 8), textcoords="offset points", fontsize=7)
    fixed = result["theory"]["fixed"]
    axes.axvline(fixed, color="grey", linewidth=0.8, linestyle=":", label=f"fixed-number t test: {fixed}")
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xlabel="rounds of a cell in a night (of an attempt, where there are two)",
        ylabel="power at a 5 % drop",
        title="Thresholds moved to 1 % false alarms a night (CV 2 %)",
        ylim=(0, 1.08),
    )
    _legend_below(axes)


def _legend_below(axes: Any, **style: Any) -> None:
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, **style)


if __name__ == "__main__":
    main()
