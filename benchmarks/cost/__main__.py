"""``python benchmarks/cost``: what measuring through the plugin costs. Needs the CPU rig (``make rig``).

python benchmarks/cost modes      wall time a verdict, engine mode against offline mode: 15 cells, half an hour
python benchmarks/cost plugin     what the plugin takes from the throughput, within one engine: ten minutes
python benchmarks/cost bare       the bare command and the plugin in turn, a process each: four minutes

``--quick`` shows in one or two minutes that it works; its numbers mean nothing. Let nothing else run.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

if not __package__:  # started by its folder's name: the folder above is where its modules are found
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cost import bare, modes, plugin


def main() -> None:
    """One of the three commands."""
    parser = argparse.ArgumentParser(prog="cost", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("modes", help="wall time a verdict, engine mode against offline mode")
    one.add_argument("--cells", type=int, default=15)
    one.add_argument("--offline-cells", type=int, help="measure only so many offline, and extrapolate (it says so)")
    one.add_argument("--repeats", type=int, default=2, help="sessions of each engine variant")
    one.add_argument("--first", type=int, default=modes.FIRST, help="prompts of the smallest cell")
    one.add_argument("--step", type=int, default=modes.STEP, help="prompts from cell to cell")
    two = commands.add_parser("plugin", help="throughput with the plugin running and stopped, in one engine")
    two.add_argument("--windows", type=int, default=240, help="timed windows of an engine")
    two.add_argument("--block", type=int, default=1, help="windows from switch to switch")
    two.add_argument("--engines", type=int, default=1)
    two.add_argument("-n", type=int, default=40, help="prompts of a window")
    two.add_argument("--burn", type=float, default=0.0, help="control: so much of every CPU is taken beside the plugin")
    three = commands.add_parser("bare", help="the bare command and the plugin in turn")
    three.add_argument("--pairs", type=int, default=8)
    three.add_argument("-n", type=int, default=50, help="prompts")
    for command in (one, two, three):
        command.add_argument("--quick", action="store_true", help="a minute or two: it works, and no more")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays stopped, and no folder is left
    if args.command == "modes":
        if args.quick:
            modes.main(2, 1, 1, variants=modes.QUICK)
        else:
            modes.main(args.cells, args.offline_cells or args.cells, args.repeats, args.first, args.step)
    elif args.command == "plugin":
        if args.quick:
            args.windows, args.n = 12, 10
        plugin.main(args.windows, args.block, args.engines, args.n, args.burn)
    else:
        bare.main(1 if args.quick else args.pairs, args.n)


if __name__ == "__main__":
    main()
