"""``r1perf check-parity``: the guide's checklist over two measured things, or over each by itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pytest_r1perf.errors import R1PerfError

if TYPE_CHECKING:
    from pytest_r1perf.parity.check import Item
    from pytest_r1perf.parity.recorded import Recorded

EXIT_BROKEN, EXIT_UNREADABLE = 1, 2


@click.command("check-parity")
@click.argument("a", metavar="[A]", default="baselines")
@click.argument("b", metavar="[B]", required=False)
@click.option("--gate", is_flag=True, help="Fail what is not known, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the items as one JSON object.")
def parity_command(a: str, b: str | None, gate: bool, as_json: bool) -> None:
    """Hold A and B against the best-practice guide's six-item checklist for result parity.

    Each of them is a session's folder, an output directory (its newest session counts), one samples-*.jsonl, a
    baseline file, a folder of baselines, or a result file that SGLang wrote by itself. PATH:CELL means one cell of it,
    by its key (`*` may stand in it); PATH:old and PATH:new are the sides of a session that compared two environments.
    Two inputs of one cell each are held against each other, all others cell by cell. A alone is checked by itself: what
    its entries do not record is named (default: the stored baselines). A session of two environments alone is its new
    side against its old one.

    Exit status: 0 nothing is broken; 1 an item is broken (with --gate also: not known); 2 an input cannot be read.

    Example: r1perf check-parity baselines/8x-nvidia-h200/tp8.yaml .r1perf
    """
    try:
        found, said = _checked(a, b)
    except R1PerfError as error:
        click.echo(f"r1perf: {error}", err=True)
        sys.exit(EXIT_UNREADABLE)
    from pytest_r1perf.parity.check import broken, not_known

    if as_json:
        import json

        from pytest_r1perf.report.parity import plain

        click.echo(json.dumps({"checked": [plain(*one) for one in found], "said": said}, indent=2))
    else:
        from pytest_r1perf.report.parity import alone_lines, pair_lines

        for one, other, items in found:
            pair = other is not None
            lines = pair_lines(one, other, items) if other is not None else alone_lines(one, items)
            click.echo("\n".join([*lines, ""] if pair else lines))
        for sentence in said:
            click.echo(sentence)
    every = [item for _, _, items in found for item in items]
    sys.exit(EXIT_BROKEN if broken(every) or (gate and not_known(every)) else 0)


def _checked(a: str, b: str | None) -> tuple[list[tuple[Recorded, Recorded | None, tuple[Item, ...]]], list[str]]:
    from pytest_r1perf.parity.check import check, check_alone
    from pytest_r1perf.parity.sides import pairs, read_both, read_cells

    both = (read_cells(a), read_cells(b)) if b is not None else read_both(a)
    if both is None:
        alone = read_cells(a)
        return [(cell, None, check_alone(cell)) for cell in alone.cells], list(alone.problems)
    first, second = both
    found, left = pairs(first, second)
    return [(one, other, check(one, other)) for one, other in found], [*left, *first.problems, *second.problems]
