"""The command line of reports: ``r1perf report``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError


@click.command("report")
@click.argument("source", type=click.Path(path_type=Path), default=Path(".r1perf"))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Everything, as --perf-json writes it.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="One self-contained page.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="A summary for GitHub.")
@click.option("--export", "exports", multiple=True, metavar="FORMAT=FILE", help="Any format; FILE may be - for stdout.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --json, and do nothing else.")
@click.option(
    "--baselines",
    type=click.Path(path_type=Path),
    default=Path("baselines"),
    show_default=True,
    help="Stored baselines, for the trends.",
)
def report_command(
    source: Path,
    json_file: Path | None,
    html_file: Path | None,
    markdown_file: Path | None,
    exports: tuple[str, ...],
    schema: bool,
    baselines: Path,
) -> None:
    """Write the report of a session again, in any format.

    SOURCE is a session's folder, a file that --perf-json wrote, or an output directory, of which the newest session is
    taken (default: .r1perf). Without a format the Markdown summary is printed.

    Example: r1perf report --html perf.html --export csv=-
    """
    from pytest_r1perf.document.output import Wanted, wanted, write
    from pytest_r1perf.document.source import document_from
    from pytest_r1perf.exports import writer

    if schema:
        click.echo((files("pytest_r1perf") / "data" / "report.schema.json").read_text(encoding="utf-8"), nl=False)
        return
    named = (("json", json_file), ("html", html_file), ("markdown", markdown_file))
    reports = [Wanted(name, path, f"--{name}") for name, path in named if path is not None]
    reports += [wanted("--export", text, Path()) for text in exports]
    document = document_from(source, baselines)
    printed = [one for one in reports if str(one.path) == "-"]
    if not reports:
        printed = [Wanted("markdown", Path("-"), "")]
    for one in printed:
        click.echo(writer(one.format)(document), nl=False)
    errors = write(document, [one for one in reports if one not in printed])
    if errors:
        raise R1PerfError("; ".join(errors))
