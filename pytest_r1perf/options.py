"""Command-line options and their ini twins, read into one frozen object."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import parse_rounds

if TYPE_CHECKING:
    import ast

    from pytest_r1perf.document.output import Wanted


class Update(str, Enum):
    """Which baselines this session writes."""

    NO = "no"
    NEW = "new"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PerfOptions:
    """What the user asked for; paths are absolute, times in seconds.

    ``selects``: perf tests run. ``narrows``: and nothing else does (with ``-m`` pytest's own filter decides).
    ``sglang``: the environment under test. ``sglang_old``: the one that it is compared with, in place of baselines.
    """

    topologies: tuple[str, ...]
    selects: bool
    narrows: bool
    platform: str | None
    sglang: str | None
    sglang_old: str | None
    update: Update
    gate: bool
    tolerance: float | None
    detect: float | None
    rounds: tuple[int, int] | None
    windows: int | None
    discard: int | None
    budget_s: float | None
    out: Path
    resume: bool
    baselines: Path
    data: tuple[Path, ...]
    lease_dir: Path | None
    sglang_defaults: bool
    outputs: bool
    deployment: bool
    plan: bool
    reports: tuple[Wanted, ...] = ()


_INI = (
    ("perf_platform", "string", "platform that perf tests run on (default: cpu)"),
    ("perf_sglang", "string", "SGLang environment: a virtual environment, a Python with sglang in it, or image:NAME"),
    ("perf_out", "string", "directory for results and logs (default: .r1perf)"),
    ("perf_gate", "bool", "fail what could not be decided (default: false)"),
    ("perf_baselines", "string", "directory of the stored baselines (default: baselines)"),
    ("perf_data", "paths", "further YAML files of topologies, platforms, recipes, workloads, antipatterns"),
    ("perf_lease_dir", "string", "node-local directory for device leases, shared by all users of the host"),
)

_REPORTS = (
    ("json", "the session's report as JSON, for programs (docs/reports.md; `r1perf report --schema`)"),
    ("html", "the session's report as one self-contained page"),
    ("markdown", "the session's report as Markdown, for a pull request or a step summary"),
)


def add_options(parser: pytest.Parser) -> None:
    """Register the option group and the ini keys."""
    group = parser.getgroup("r1perf", "performance regression tests on SGLang (pytest-r1perf)")
    topology = {
        "dest": "perf_topology",
        "metavar": "NAME[,NAME]",
        "default": None,
        "help": "run only the perf tests of these topologies (tp1, tp8, pp2, tp16, ...)",
    }
    try:
        group.addoption("--topology", "--perf-topology", **topology)
    except (ValueError, argparse.ArgumentError):  # another plugin owns the short name
        group.addoption("--perf-topology", **topology)
    group.addoption("--perf", action="store_true", default=False, help="run the perf tests (the same as -m perf)")
    group.addoption("--perf-platform", metavar="NAME", help="platform to run on; ini: perf_platform (default: cpu)")
    group.addoption(
        "--sglang",
        dest="perf_sglang",
        action="append",
        metavar="PATH",
        help="SGLang environment: a virtual environment's folder, a Python, or image:NAME; ini: perf_sglang. "
        "Twice, as old=PATH and new=PATH: measure both in turn and compare them with each other",
    )
    group.addoption("--perf-update", action="store_true", default=False, help="store the measured samples as baselines")
    group.addoption(
        "--perf-update-new", action="store_true", default=False, help="store baselines only where there is none"
    )
    group.addoption(
        "--perf-gate",
        action="store_true",
        default=None,
        help="fail what could not be decided or run (UNDECIDED, INCOMPARABLE, NO BASELINE); ini: perf_gate",
    )
    group.addoption(
        "--perf-tolerance", metavar="FRACTION", help="tolerance for every cell, e.g. 0.05, over markers and baselines"
    )
    group.addoption(
        "--perf-detect", metavar="FRACTION", help="the drop that a PASS excludes, where that is more than the tolerance"
    )
    group.addoption("--perf-rounds", metavar="MIN:MAX", help="processes to measure a cell with, e.g. 3:8 or 5")
    group.addoption("--perf-windows", metavar="N", help="engine and serve mode: timed windows of a cell in one engine")
    group.addoption(
        "--perf-discard",
        metavar="N",
        help="engine and serve mode: windows of a cell that are thrown away before them, as warm-up",
    )
    group.addoption("--perf-budget", metavar="TIME", help="start no further round after this time, e.g. 45m, 2h, 600s")
    group.addoption(
        "--perf-out", metavar="DIR", help="directory for results and logs; ini: perf_out (default: .r1perf)"
    )
    group.addoption(
        "--perf-resume",
        action="store_true",
        default=False,
        help="go on with the newest session of the output directory, if it was killed or interrupted",
    )
    group.addoption(
        "--perf-sglang-defaults",
        action="store_true",
        default=False,
        help="leave defaults that moved between SGLang releases to SGLang, and name those that differ",
    )
    group.addoption(
        "--perf-no-outputs",
        action="store_true",
        default=False,
        help="two environments: compare their speed only, and leave their greedy answers unasked",
    )
    group.addoption(
        "--perf-deployment",
        action="store_true",
        default=False,
        help="the closing pass: the same cells with the weights and the traffic of the platform's deployment: section",
    )
    for name, text in _REPORTS:
        group.addoption(f"--perf-{name}", metavar="FILE", help=text)
    group.addoption(
        "--perf-export",
        action="append",
        metavar="FORMAT=FILE",
        help="the report in another format, e.g. csv=perf.csv; may be given again (`r1perf report` writes it later)",
    )
    group.addoption(
        "--perf-plan",
        action="store_true",
        default=False,
        help="run nothing: print what each selected test would run, on what, and whether it fits (`r1perf plan`)",
    )
    for name, kind, text in _INI:
        parser.addini(name, f"pytest-r1perf: {text}", type=kind, default=None)  # type: ignore[arg-type]


def read_options(config: pytest.Config) -> PerfOptions:
    """The options of a session; :class:`R1PerfError` for a value that makes no sense."""
    option = config.getoption
    topologies = _names(option("perf_topology"))
    if option("perf_update") and option("perf_update_new"):
        raise R1PerfError("--perf-update and --perf-update-new contradict each other: give one of them")
    rounds = option("perf_rounds")
    old, new = _environments(config.invocation_params.dir, option("perf_sglang") or ())
    if old is not None and (option("perf_update") or option("perf_update_new")):
        raise R1PerfError(
            "--sglang old=... new=... compares two environments and stores no baseline: leave --perf-update out, or "
            "give one --sglang"
        )
    gate = option("perf_gate")
    return PerfOptions(
        topologies=topologies,
        narrows=bool(topologies) or option("perf"),
        selects=bool(topologies) or option("perf") or asks_for_perf(option("markexpr", "") or ""),
        platform=option("perf_platform") or config.getini("perf_platform") or None,
        sglang=new or _place(config.rootpath, config.getini("perf_sglang")),
        sglang_old=old,
        update=Update.ALL if option("perf_update") else Update.NEW if option("perf_update_new") else Update.NO,
        gate=bool(config.getini("perf_gate")) if gate is None else gate,
        tolerance=_fraction("--perf-tolerance", option("perf_tolerance")),
        detect=_fraction("--perf-detect", option("perf_detect")),
        rounds=_rounds(rounds),
        windows=_count("--perf-windows", option("perf_windows"), least=1),
        discard=_count("--perf-discard", option("perf_discard"), least=0),
        budget_s=parse_time(option("perf_budget")),
        out=config.rootpath / (option("perf_out") or config.getini("perf_out") or ".r1perf"),
        resume=option("perf_resume"),
        baselines=config.rootpath / (config.getini("perf_baselines") or "baselines"),
        data=tuple(Path(path) for path in config.getini("perf_data") or ()),
        lease_dir=_path(config, config.getini("perf_lease_dir")),
        sglang_defaults=option("perf_sglang_defaults"),
        outputs=not option("perf_no_outputs"),
        deployment=option("perf_deployment"),
        plan=option("perf_plan"),
        reports=_reports(config),
    )


def _reports(config: pytest.Config) -> tuple[Wanted, ...]:
    """The reports that were asked for; relative files are below the directory that pytest was started in."""
    given = {name: config.getoption(f"perf_{name}") for name, _ in _REPORTS}
    exports = config.getoption("perf_export") or ()
    if not exports and not any(given.values()):
        return ()
    from pytest_r1perf.document.output import Wanted, wanted

    base = config.invocation_params.dir
    found = [Wanted(name, base / text, f"--perf-{name}") for name, text in given.items() if text]
    found += [wanted("--perf-export", text, base) for text in exports]
    return tuple(found)


def asks_for_perf(expression: str) -> bool:
    """Whether a ``-m`` expression names ``perf`` positively: ``perf and not slow`` does, ``not perf`` doesn't.

    >>> asks_for_perf("perf and not slow"), asks_for_perf("not (slow or perf)")
    (True, False)
    """
    if "perf" not in expression:
        return False
    import ast  # a plain pytest does without it

    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError:
        return re.search(r"(?<!not )\bperf\b", expression) is not None
    return _positive(tree, negated=False)


def _positive(node: ast.expr, *, negated: bool) -> bool:
    import ast

    if isinstance(node, ast.BoolOp):
        return any(_positive(value, negated=negated) for value in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _positive(node.operand, negated=not negated)
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id == "perf" and not negated


def parse_time(text: str | None, option: str = "--perf-budget") -> float | None:
    """``"45m"``, ``"2h"``, ``"600s"`` or ``"600"`` in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match.group(1)) <= 0:
        raise R1PerfError(f"{option} must be a time like 45m, 2h or 600s, got {text!r}")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise R1PerfError("--topology needs a name, e.g. --topology tp8 or --topology tp8,pp2")
    return names


def _fraction(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise R1PerfError(f"{name} must be a fraction from 0 to below 1 (0.05 is 5 %), got {text!r}")
    return value


def _count(name: str, text: str | None, *, least: int) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise R1PerfError(f"{name} must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _rounds(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        return parse_rounds(text)
    except R1PerfError as error:
        raise R1PerfError(f"--perf-rounds: {error}") from None


def _environments(base: Path, given: Sequence[str]) -> tuple[str | None, str | None]:
    """(old, new) of what ``--sglang`` was given: one path, or both sides by name."""
    sides = {side: text for text in given for side, _, _ in [text.partition("=")] if side in ("old", "new")}
    plain = [text for text in given if text.partition("=")[0] not in ("old", "new")]
    if not sides and len(plain) <= 1:
        return None, _place(base, plain[0] if plain else None)
    paths = {side: _place(base, text.partition("=")[2]) for side, text in sides.items()}
    if plain or len(given) != 2 or not (paths.get("old") and paths.get("new")):
        raise R1PerfError(
            f"--sglang takes one environment, or two as --sglang old=PATH --sglang new=PATH; got {', '.join(given)}"
        )
    return paths["old"], paths["new"]


def _place(base: Path, text: str | None) -> str | None:
    """A path seen from ``base``, unless it is ``image:NAME`` or begins with ``~`` or a variable (filled in later)."""
    if not text:
        return None
    return text if text.startswith(("~", "$", "{", "image:")) else str(base / text)


def _path(config: pytest.Config, text: str | None) -> Path | None:
    return config.rootpath / text if text else None
