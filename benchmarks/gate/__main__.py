"""``python benchmarks/gate``: simulate, print the targets, write the tables and the plot where asked.

python benchmarks/gate environments         make the other deciders' environments (pip)
python benchmarks/gate quick                a minute, rough
python benchmarks/gate full --docs docs     a quarter of an hour at most; writes docs/gate.md's tables and docs/gate.svg
python benchmarks/gate report FILE --docs docs   the same from the numbers of an earlier run
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

if not __package__:  # started by its folder's name: the folder above is where its modules are found
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from gate import environments, report
from gate.run import FULL, QUICK, run


def main() -> None:
    """One of the four commands."""
    parser = argparse.ArgumentParser(prog="gate", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("environments", help="make the other deciders' environments")
    for name, about in (("quick", "a minute"), ("full", "a quarter of an hour at most")):
        command = commands.add_parser(name, help=about)
        command.add_argument("--output", type=Path, default=environments.cache() / f"{name}.json", help="the numbers")
        command.add_argument("--docs", type=Path, help="folder whose gate.md and gate.svg are written")
        command.add_argument("--processes", type=int, default=2)
    again = commands.add_parser("report", help="tables and plot from an earlier run")
    again.add_argument("output", type=Path)
    again.add_argument("--docs", type=Path)
    args = parser.parse_args()

    if args.command != "report":
        for problem in environments.make_all():
            print(problem, file=sys.stderr)
    if args.command == "environments":
        return
    if args.command != "report":
        result = run(FULL if args.command == "full" else QUICK, args.processes)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
        print(f"{result['seconds']:.0f} s; the numbers are in {args.output}")
    result = json.loads(args.output.read_text(encoding="utf-8"))
    for line in report.lines(result):
        print(line)
    if args.docs is not None:
        _write(args.docs, args.output, result)


def _write(docs: Path, numbers: Path, result: dict[str, Any]) -> None:
    report.put(docs / "gate.md", result)
    python = environments.interpreter("plot")
    if python is None:
        print("no plot: the environment 'plot' isn't there", file=sys.stderr)
        return
    plot = Path(__file__).parent / "plot.py"
    subprocess.run([str(python), str(plot), str(numbers), str(docs / "gate.svg")], check=True)


if __name__ == "__main__":
    main()
