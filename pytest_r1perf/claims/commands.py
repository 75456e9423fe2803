"""``r1perf claims``: what in the three documents is stale, wrong, or cannot be tested here."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError


@click.command("claims")
@click.option(
    "--sglang",
    metavar="VERSION|PATH",
    help="Only what is so in this release; of an environment its own parser is asked whether it agrees.",
)
@click.argument("names", metavar="[CLAIM]...", nargs=-1)
def claims_command(sglang: str | None, names: tuple[str, ...]) -> None:
    """Print the documents' claims that are stale, wrong or untestable, each with the releases and its evidence.

    CLAIM names some of them. Exit status 1 when an environment's own parser contradicts what is said of its release.

    Examples: r1perf claims; r1perf claims --sglang 0.5.20; r1perf claims lof-policy --sglang /opt/sglang-0.5.9
    """
    from packaging.version import InvalidVersion, Version

    from pytest_r1perf.claims.claim import load_claims
    from pytest_r1perf.errors import did_you_mean
    from pytest_r1perf.report.claims import claim_lines, lines_for

    claims = {claim.id: claim for claim in load_claims()}
    for name in names:
        if name not in claims:
            raise R1PerfError(f"claim {name!r} is not known; {did_you_mean(name, claims)}")
    chosen = [claims[name] for name in names] if names else list(claims.values())
    if sglang is None:
        click.echo("\n".join(claim_lines(chosen)))
        return
    if not Path(sglang).exists():
        try:
            version = str(Version(sglang))
        except InvalidVersion:
            raise R1PerfError(
                f"--sglang {sglang}: is neither a version like 0.5.20 nor an environment's path"
            ) from None
        click.echo("\n".join(lines_for(chosen, version)))
        return
    from pytest_r1perf.childenv import compose
    from pytest_r1perf.rig.home import home
    from pytest_r1perf.sglang.environment import local_place, probe

    environment = probe(local_place(sglang), compose({}), cache=home() / "probes")
    click.echo("\n".join(lines_for(chosen, environment.version)))
    contradicted = [line for claim in chosen for line in claim.contradictions(environment.options)]
    for line in contradicted:
        click.echo(line)
    sys.exit(1 if contradicted else 0)
