"""How well the gate decides: a simulation with independent log-normal noise, not a measurement.

Every line simulates that many nights: five baseline rounds and five new ones, each with log-normal noise of the
given coefficient of variation, and (second block) a random effect for each of the two sessions. The verdicts are
the plugin's own (``verdict.judge``). Real noise has outliers and drifts, which this leaves out.

    python benchmarks/gate.py [--nights 2000] [--tolerance 0.05] [--alpha 0.00125] [--rounds 5]
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from pytest_r1perf.verdict import Reference, Terms, Verdict, judge

METRIC = "total_throughput"
RUN_CVS = (0.01, 0.02, 0.04, 0.06, 0.1)
DROPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def log_sigma(cv: float) -> float:
    """Standard deviation of the logarithm of a log-normal variable with this coefficient of variation."""
    return math.sqrt(math.log1p(cv * cv))


def session(rng: random.Random, *, mean: float, run_cv: float, session_cv: float, rounds: int) -> list[float]:
    """The rounds of one session: one effect for the session, one for each round."""
    centre = math.log(mean) + rng.gauss(0, log_sigma(session_cv))
    return [math.exp(centre + rng.gauss(0, log_sigma(run_cv))) for _ in range(rounds)]


def known_session_cv(rng: random.Random, session_cv: float, sessions: int) -> float | None:
    """What ``r1perf noise`` would report of that many sessions: an estimate, off as such estimates are."""
    if session_cv == 0:
        return None
    effects = [rng.gauss(0, log_sigma(session_cv)) for _ in range(sessions)]
    mean = math.fsum(effects) / sessions
    return math.sqrt(math.fsum((effect - mean) ** 2 for effect in effects) / (sessions - 1))


def verdicts(
    *,
    nights: int,
    drop: float,
    run_cv: float,
    session_cv: float,
    tolerance: float,
    alpha: float,
    rounds: int,
    sessions: int,
    modelled: bool = True,
    seed: int = 2025,
) -> Counter[Verdict]:
    """How often each verdict comes out when the true throughput falls by ``drop``.

    ``modelled``: the platform's file states the session component (estimated from ``sessions`` of them).
    """
    rng = random.Random(seed)
    counts: Counter[Verdict] = Counter()
    for _ in range(nights):
        between = known_session_cv(rng, session_cv, sessions) if modelled else None
        terms = Terms(tolerance, None, alpha, noise_between=between, noise_sessions=sessions)
        old = session(rng, mean=1000, run_cv=run_cv, session_cv=session_cv, rounds=rounds)
        new = session(rng, mean=1000 * (1 - drop), run_cv=run_cv, session_cv=session_cv, rounds=rounds)
        counts[judge(METRIC, new, Reference(old), terms).verdict] += 1
    return counts


def cell(counts: Counter[Verdict]) -> str:
    """``PASS / UNDECIDED / REGRESSED`` in percent; IMPROVED counts as PASS."""
    nights = counts.total()
    passed = counts[Verdict.PASS] + counts[Verdict.IMPROVED]
    shares = (passed, counts[Verdict.UNDECIDED], counts[Verdict.REGRESSED])
    return " / ".join(f"{100 * share / nights:.0f}" for share in shares)


def table(args: argparse.Namespace, session_cv: float) -> Iterator[Sequence[str]]:
    """One line a coefficient of variation, one column a drop."""
    for run_cv in RUN_CVS:
        yield [f"{run_cv:.0%}"] + [
            cell(
                verdicts(
                    nights=args.nights,
                    drop=drop,
                    run_cv=run_cv,
                    session_cv=session_cv,
                    tolerance=args.tolerance,
                    alpha=args.alpha,
                    rounds=args.rounds,
                    sessions=10,
                )
            )
            for drop in DROPS
        ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--alpha", type=float, default=0.05 / 40, help="one-sided, of one cell")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(
        f"Simulation with independent log-normal noise: {args.rounds} against {args.rounds} rounds, tolerance "
        f"{args.tolerance:g}, alpha {args.alpha:g}, {args.nights} nights a cell.\n"
        f"PASS / UNDECIDED / REGRESSED in percent; lines: CV of a round; columns: the true drop."
    )
    for session_cv in (0.0, 0.03):
        print(f"\nCV between sessions {session_cv:.0%}" + (" (stated, from 10 sessions)" if session_cv else ""))
        headers = ["CV", *(f"{drop:.0%}" for drop in DROPS)]
        print(tabulate(table(args, session_cv), headers=headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
