"""Every command of README.md and docs/ is run, or at least read by the parser that would read it.

What a command's group is, is said here once; one of no group fails, so that no page shows what nobody tries.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cli import cli
from pytest_r1perf.options import read_options
from tests.doccommands import PAGES, ROOT, Command, blocks, commands, simple
from tests.histories import nightly, sample, write_nights, write_session
from tests.project import QUIET, make_environment, sharegpt

ALL = [command for page in PAGES for command in commands(page)]

RUN = frozenset(
    {
        "r1perf baseline path",
        "r1perf check-parity",
        "r1perf claims",
        "r1perf compare",
        "r1perf doctor",
        "r1perf pbs-script",
        "r1perf plan",
        "r1perf power",
        "r1perf recommend",
        "r1perf report",
        "r1perf rig status",
        "r1perf trend",
    }
)
"""Run for real in a scratch project, in this process; with them `r1perf noise --from`."""
READ = frozenset(
    {
        "r1perf baseline check",
        "r1perf bisect",
        "r1perf dataset make",
        "r1perf model make",
        "r1perf noise",
        "r1perf rig install",
        "r1perf stress convert",
        "r1perf stress report",
        "r1perf stress run",
    }
)
"""Too long, too big or in need of a GPU, a server or a token: click reads their arguments and starts nothing."""
OTHERS = frozenset({"cp", "grep", "install", "journalctl", "otava", "pip", "podman", "sbatch", "systemctl", "tail"})
"""Programs of others: only the files of this repository that they name are looked for."""
MAY_FAIL = {
    "r1perf check-parity": {0, 1},
    "r1perf claims": {0, 1},
    "r1perf compare": {0, 1},
    "r1perf doctor": {0, 1},
    "r1perf plan": {0, 1},
}
"""Commands whose status says something of this host or of the scratch data; a usage error is 2."""

_WRITES = frozenset({"--export", "--html", "--json", "--markdown"})
WRITTEN = frozenset({"perf_tests/test_floor.py"})
"""Files that a page tells its reader to write."""

_RECORDED = r"\d{8}\.\d{6}\.[0-9a-f]{4}"


def test_every_page_is_read() -> None:
    assert len(ALL) > 50
    assert {"README.md", "docs/getting-started.md"} <= {command.page for command in ALL}


@dataclass(frozen=True)
class Scratch:
    """A project with recorded nights and a fake SGLang; ``names`` are what stands for the pages' placeholders."""

    root: Path
    names: Mapping[str, str]

    def mended(self, words: tuple[str, ...]) -> list[str]:
        """The words with placeholders (A, SESSION, a made-up session, /opt/sglang) as what is there."""
        return [self._mended(word) for word in words]

    def _mended(self, word: str) -> str:
        if word in self.names:
            return self.names[word]
        return re.sub(rf"\.r1perf/{_RECORDED}", self.names["A"], word)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    root = tmp_path_factory.mktemp("scratch")
    (root / "control.json").write_text('{"default": {}, "cells": {}}')
    environment = make_environment(root / "env", control=root / "control.json")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    (root / "data.json").write_text(sharegpt(120))
    noise = {"run_cv": 0.01, "runs": 20, "session_cv": 0.005, "sessions": 4, "source": "made up"}
    here = {"model_path": "model", "datasets": {"sharegpt": "data.json"}, "sglang": str(environment)}
    platforms = {"cpu": here, "h200x8": {"noise": noise}}
    (root / "own.yaml").write_text(yaml.safe_dump({"platforms": platforms}))
    (root / "pytest.ini").write_text("[pytest]\nperf_lease_dir = leases\n")
    shutil.copytree(ROOT / "baselines", root / "baselines")
    shutil.copytree(ROOT / "perf_tests", root / "perf_tests", ignore=shutil.ignore_patterns("__pycache__"))
    write_nights(root / ".r1perf", nightly(12, shape=lambda night: 0.0))
    for number in (1, 2, 3):  # three hosts' nights
        write_nights(
            root / f"node{number}" / ".r1perf",
            nightly(4, shape=lambda night: 0.0, seed=number),
            change=lambda night, number=number: {"host": {"hostname": f"node{number}"}},  # type: ignore[misc]
            day=lambda night, number=number: 30.0 * number + night,  # type: ignore[misc]
        )
    sides = [sample(number, 20000.0 + number, side=side) for number in (1, 2, 3) for side in ("old", "new")]
    write_session(root / "two", "20261101.020000.00aa", sides)
    nights = sorted(path.name for path in (root / ".r1perf").iterdir())
    names = {
        "A": f".r1perf/{nights[0]}",
        "B": f".r1perf/{nights[1]}",
        "SESSION": "two/20261101.020000.00aa",
        "FOLDER": f".r1perf/{nights[0]}",
        "history": ".r1perf",
        "/opt/sglang": str(environment),
    }
    return Scratch(root, names)


@pytest.fixture
def at_home(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    monkeypatch.chdir(scratch.root)
    shutil.copy("own.yaml", "r1perf.yaml")  # `r1perf noise` writes into it
    monkeypatch.setenv("R1PERF_HOME", str(scratch.root / "home"))
    monkeypatch.setenv("HOME", str(scratch.root / "userhome"))
    monkeypatch.setenv("R1PERF_LEASE_DIR", str(scratch.root / "leases"))
    return scratch


def _unlike(found: list[Command]) -> list[Command]:
    """One of each: pages repeat one another."""
    return list({command.words: command for command in found}.values())


@pytest.mark.parametrize("command", _unlike(ALL), ids=str)
def test_command(command: Command, request: pytest.FixtureRequest) -> None:
    check = _group(command.words)
    assert check is not None, (
        f"{command} is of no group: add it to RUN, READ or OTHERS in {Path(__file__).name}, or fence the block as "
        "what it is (text, yaml, python)"
    )
    check(command.words, request)


def _group(words: tuple[str, ...]) -> Callable[[tuple[str, ...], pytest.FixtureRequest], None] | None:
    first = words[0]
    if first == "r1perf":
        name = _subcommand(words)
        if name in RUN or (name == "r1perf noise" and "--from" in words):
            return _run
        return _read if name in READ or name.startswith("r1perf notify ") or "--help" in words else None
    if first == "pytest":
        return _pytest
    if first == "make":
        return _make
    if first in ("python", "python3", "bash", "sh") or first.startswith(("scripts/", "./", "packaging/")):
        return _script
    return _of_others if first in OTHERS else None


def _subcommand(words: tuple[str, ...]) -> str:
    """``r1perf rig install`` of that command with its options."""
    group: click.Command = cli
    names = [words[0]]
    for word in words[1:]:
        if not isinstance(group, click.Group) or word not in group.commands:
            break
        group = group.commands[word]
        names.append(word)
    return " ".join(names)


def _run(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    scratch: Scratch = request.getfixturevalue("at_home")
    name = _subcommand(words)
    if name == "r1perf plan":  # a pytest of its own
        config = _parsed(("pytest", "--perf", "--perf-plan", *words[2:]), request)
        _check_files(config.args)
        if "twins" not in " ".join(words):
            _plan(scratch, words, request)
        return
    if name == "r1perf doctor" and "--elsewhere" in words:  # other hosts
        _read(words, request)
        return
    result = CliRunner().invoke(cli, scratch.mended(words[1:]), catch_exceptions=True)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code in MAY_FAIL.get(name, {0}), result.output
    written = [word.rpartition("=")[2] for option, word in pairwise(words) if option in _WRITES]
    assert result.output.strip() or written
    for path in written:
        assert path == "-" or Path(path).stat().st_size, f"{path} was not written"


_planned: list[tuple[str, ...]] = []


def _plan(scratch: Scratch, words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """The first one is really planned, in a pytest of its own; of the others the options are read, that is all."""
    if _planned:
        return
    _planned.append(words)
    request.getfixturevalue("monkeypatch").chdir(scratch.root)  # pytester went elsewhere
    capfd: pytest.CaptureFixture[str] = request.getfixturevalue("capfd")
    result = CliRunner().invoke(cli, scratch.mended(words[1:]))
    said = capfd.readouterr()
    assert result.exit_code in MAY_FAIL["r1perf plan"], said.out + said.err
    assert "would run" in said.out


def _read(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """Click's own parser, which refuses an option, a value or a missing argument; callbacks are not run."""
    group: click.Command = cli
    rest = list(words[1:])
    context = click.Context(cli, info_name="r1perf")
    while isinstance(group, click.Group):
        if not rest or rest[0] not in group.commands:
            pytest.fail(f"{' '.join(words)}: there is no such command; see docs/reference/commands.md")
        group = group.commands[rest.pop(0)]
        context = click.Context(group, parent=context, info_name=group.name, resilient_parsing="--help" in rest)
    if "--help" not in rest:
        group.parse_args(context, rest)
    _check_files([word for word in words if "::" in word])
    del request


def _pytest(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    config = _parsed(words, request)
    _check_files([word for word in words[1:] if word.startswith(("perf_tests", "tests")) or "::" in word])
    for option, known in (("topology", load_catalog().topologies), ("platform", load_catalog().platforms)):
        value = config.getoption(f"perf_{option}")
        for name in (value or "").split(",") if value else []:
            assert name in known, f"--{option} {name} is not known"


def _parsed(words: tuple[str, ...], request: pytest.FixtureRequest) -> pytest.Config:
    """The configuration that pytest makes of the words, and ours of it; nothing is collected."""
    pytester: pytest.Pytester = request.getfixturevalue("pytester")
    for name in ("perf_tests", "tests"):
        (pytester.path / name).mkdir(exist_ok=True)
    given = [word for word in words[1:] if "::" not in word and not (pytester.path / word).is_dir()]
    given = [word for word in given if not word.endswith(".py") and not word.startswith("perf_tests/")]
    config = pytester.parseconfig(*QUIET, *given)
    config.addinivalue_line("markers", "rig: of the repository")
    read_options(config)
    return config


def _make(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """``make -n``: the targets and variables are the Makefile's."""
    del request
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    targets = [word for word in words[1:] if "=" not in word]
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", text, re.M), f"the Makefile has no target {target}"
    for word in words[1:]:
        if "=" in word:
            assert re.search(rf"^{re.escape(word.partition('=')[0])} \?=", text, re.M), f"the Makefile has no {word}"


def _script(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """A script of this repository: it is there, and its language reads it. ``python -m`` is anybody's."""
    del request
    if "-m" in words[:2]:
        return
    name = next(word for word in words if "/" in word)
    path = ROOT / name
    assert path.exists(), f"{name} is not in the repository"
    if path.is_file() and path.suffix == ".sh":
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
        text = path.read_text(encoding="utf-8")
        for option in (word for word in words if word.startswith("--")):
            assert option.partition("=")[0] in text, f"{name} knows no {option}"
    elif path.suffix == ".py":
        compile(path.read_text(encoding="utf-8"), name, "exec")


def _of_others(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """Files of this repository that a foreign program is given are there; a command in quotes is one of ours."""
    for word in words[1:]:
        if re.match(r"(scripts|packaging|docs|perf_tests|baselines|\.github)/[\w./-]+\Z", word):
            assert (ROOT / word).exists(), f"{word} is not in the repository"
        if word.startswith(("pytest ", "r1perf ")):
            (inner,) = simple(word)
            check = _group(inner)
            assert check is not None
            check(inner, request)


def _check_files(node_ids: list[str]) -> None:
    """A node id's file is in the repository and has a test of that name."""
    for node_id in node_ids:
        name, _, test = node_id.partition("::")
        if name in WRITTEN:
            continue
        path = ROOT / name.split("[")[0]
        assert path.exists(), f"{name} is not in the repository"
        if test:
            assert f"def {test.split('[')[0]}(" in path.read_text(encoding="utf-8"), f"{node_id}: there is no such test"


# What stands in a sentence: options and commands by name.

_INLINE = re.compile(r"`([^`\n]+)`")


def _inline() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for found in _INLINE.finditer(text):
            yield name, found[1]


def test_commands_in_sentences_exist() -> None:
    wrong = []
    for page, text in _inline():
        if text.startswith("r1perf ") and not text.startswith("r1perf COMMAND"):
            words = tuple(text.split())
            node: click.Command = cli
            for word in words[1:]:
                if isinstance(node, click.Group):
                    if word not in node.commands and not word.startswith("-"):
                        wrong.append(f"{page}: `{text}`")
                    node = node.commands.get(word, node)
        elif text.startswith("make ") and (target := text.split()[1]).isalpha():
            made = re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
            if not made:
                wrong.append(f"{page}: `{text}`")
    assert wrong == []


def test_files_in_sentences_exist() -> None:
    ours = re.compile(r"(?:scripts|packaging|docs|tests|perf_tests|benchmarks|pytest_r1perf|\.github)/[\w./-]*\w")
    wrong = [
        f"{page}: `{text}`"
        for page, text in _inline()
        if ours.fullmatch(text) and text not in WRITTEN and not (ROOT / text).exists()
    ]
    assert wrong == []


def test_perf_options_in_pages_exist() -> None:
    known = (ROOT / "pytest_r1perf" / "options.py").read_text(encoding="utf-8")
    wrong = []
    for page in PAGES:
        for option in set(re.findall(r"(?<![\w-])--perf-[a-z-]+", page.read_text(encoding="utf-8"))):
            if option in ("--perf-target", "--perf-baseline"):  # another plugin's
                continue
            if f'"{option}"' not in known and f'"{option.removeprefix("--perf-")}"' not in known:
                wrong.append(f"{page.relative_to(ROOT)}: {option}")
    assert wrong == []


def test_a_wrong_command_is_seen(request: pytest.FixtureRequest) -> None:
    """The checks themselves: each kind refuses a mistake of its kind."""
    for words in (
        ("r1perf", "bisect", "x.py::y", "--godd", "0.5.9"),
        ("r1perf", "stress", "run", "DIR", "--repeats", "many"),
    ):
        with pytest.raises(click.UsageError):
            _read(words, request)
    with pytest.raises(pytest.UsageError):
        _pytest(("pytest", "--perf-platfrom", "cpu"), request)
    with pytest.raises(AssertionError, match="is not known"):
        _pytest(("pytest", "--topology", "tp9"), request)
    with pytest.raises(AssertionError, match="no target"):
        _make(("make", "pref"), request)
    with pytest.raises(AssertionError, match="not in the repository"):
        _script(("scripts/h201.sh",), request)
    with pytest.raises(AssertionError, match="no such test"):
        _check_files(["perf_tests/test_cpu.py::test_nothing"])
    assert _group(("r1pref", "trend")) is None
    assert _group(("r1perf", "trends")) is None


def test_what_a_block_is() -> None:
    assert simple("A=1 b c 2>&1 | d > e && f # g") == [("b", "c"), ("d",), ("f",)]
    assert [block.is_shell for block in blocks(ROOT / "README.md")].count(True) >= 5
