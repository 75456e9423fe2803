"""``--perf-json``: sessions of every kind by the JSON Schema; files that are old, newer, damaged or unwritable."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pytest_r1perf import procedures
from pytest_r1perf.document.file import as_json, read_document
from pytest_r1perf.document.model import Cell, Document, Sample
from pytest_r1perf.effects import Effect, Point
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.procedures import Basis
from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict
from tests.project import QUIET, Project, lines_with

FORMAT_1 = Path(__file__).parent / "recorded" / "report_format1.json"
SCHEMA: dict[str, Any] = json.loads((files("pytest_r1perf") / "data" / "report.schema.json").read_text("utf-8"))

ONE = '@perf(topology="tp1", n=50)\ndef test_x(): ...\n'


def closed(schema: Any) -> Any:
    """The schema without room for what it does not describe: what is written must be documented."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and "object" in schema.get("type", ()) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    return found


STRICT = Draft202012Validator(closed(SCHEMA))


def faults(text: str) -> list[str]:
    """What the closed schema does not take; the text itself must be JSON, in which there is no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    data = json.loads(text, parse_constant=refuse)
    return [
        f"{list(error.absolute_path)}: {error.message}"
        for error in Draft202012Validator(closed(SCHEMA)).iter_errors(data)
    ]


def written(project: Project, name: str = "perf.json") -> dict[str, Any]:
    """The session's document, which is valid, and the same when it is read and written again."""
    path = project.root / name
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    assert as_json(read_document(path)) == text
    data: dict[str, Any] = json.loads(text)
    return data


def of(data: dict[str, Any]) -> dict[str, str]:
    """Verdict of each test."""
    return {cell["result"]["nodeid"].partition("::")[2]: cell["result"]["verdict"] for cell in data["cells"]}


# -- the schema --------------------------------------------------------------------------------------------


def _fields(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in schema.get("properties", {}).items():
        yield f"{path}.{name}", one
        yield from _fields(one, f"{path}.{name}")
    for name, one in schema.get("$defs", {}).items():
        yield from _fields(one, f"{path}.{name}")


def test_the_schema_is_one_and_describes_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"].endswith(":1")
    found = dict(_fields(SCHEMA))
    assert len(found) > 100
    bare = [name for name, one in found.items() if "description" not in one and "$ref" not in one]
    assert bare == []


def test_later_fields_are_allowed_and_lost_ones_are_not() -> None:
    """The schema as shipped: who validates with it must not break by a later version's addition."""
    validator = Draft202012Validator(SCHEMA)
    data = json.loads(FORMAT_1.read_text(encoding="utf-8"))
    data["of_later"] = data["cells"][0]["of_later"] = data["cells"][0]["result"]["of_later"] = 1
    assert list(validator.iter_errors(data)) == []
    del data["cells"][0]["result"]["verdict"]
    assert [error.message for error in validator.iter_errors(data)] == ["'verdict' is a required property"]


JITTER = (1.0, 1.002, 0.998)
BASIS = Basis(METRICS["total_throughput"], 0.00125)


def point(label: str, mean: float, n: int = 7000) -> Point:
    return Point(label, "tp8", 8, n, f"n={n}", tuple(mean * jitter for jitter in JITTER))


P = [point(f"cell {place}", 10000 + 900 * place) for place in range(4)]
OF_EVERY_KIND: dict[str, Callable[[], Effect]] = {
    "comparison": lambda: procedures.comparison(P[0], P[1], BASIS),
    "interaction": lambda: procedures.interaction(P[0], P[1], P[2], P[3], BASIS),
    "ablation": lambda: procedures.ablation(P, BASIS, {"total": "+90.1 %"}),
    "scaling": lambda: procedures.scaling(P[:2], BASIS),
    "spread": lambda: procedures.spread(P, BASIS),
}


@pytest.mark.parametrize("kind", OF_EVERY_KIND)
def test_effects_of_every_kind(kind: str) -> None:
    plain = OF_EVERY_KIND[kind]().as_dict()
    assert plain["kind"] == kind
    assert faults(as_json(document(effects=(plain,)))) == []


# -- numbers that are none ---------------------------------------------------------------------------------


def document(**changes: Any) -> Document:
    limits = Interval(1.0, 0.9, 1.1, 0.02, 3.0, 0.01, 0.025)
    judgement = Judgement("total_throughput", Verdict.PASS, 3, 4500.0, 0.01, baseline=4500.0, ratio=limits)
    values: dict[str, Any] = {
        "label": "tp1 n=50",
        "judgements": (judgement,),
        "medians": {"total_throughput": 4500.0},
        "rounds": 3,
        **changes,
    }
    result = CellResult(
        "test_p.py::test_x", "tp1", "k", platform="cpu", hardware="cpu-x", verdict=Verdict.PASS, **values
    )
    sample = Sample(1, "2026-11-30T10:15:00+00:00", {"total_throughput": 4500.0}, wall_s=1.0)
    return Document("20261130.101500.3fa9", "2026-11-30T10:16:00+00:00", "0.1.0", cells=(Cell(result, (sample,)),))


def test_an_endless_interval_comes_back(tmp_path: Path) -> None:
    endless = Interval(1.0, 0.0, math.inf, math.inf, 0.0, 0.01, 0.025)
    judgement = Judgement("total_throughput", Verdict.UNDECIDED, 1, 4500.0, None, baseline=4500.0, ratio=endless)
    path = tmp_path / "perf.json"
    path.write_text(as_json(document(judgements=(judgement,))))
    assert faults(path.read_text()) == []
    assert json.loads(path.read_text())["cells"][0]["result"]["judgements"][0]["ratio"]["upper"] is None
    assert read_document(path).cells[0].result.judgements[0].ratio == endless


ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=30)
@given(st.text(st.characters(), max_size=20), ANY, ANY)
def test_any_name_and_number(tmp_path_factory: pytest.TempPathFactory, name: str, one: float, other: float) -> None:
    made = document(label=name, cause=name, notes=(name,), medians={"total_throughput": one}, ceilings={name: other})
    sample = replace(made.cells[0].samples[0], metrics={"total_throughput": one}, remarks=(name,))
    made = replace(made, cells=(replace(made.cells[0], samples=(sample,)),), arguments=(name,))
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(as_json(made), encoding="utf-8")
    assert faults(path.read_text("utf-8")) == []
    back = read_document(path)
    assert back.cells[0].result.label == name
    assert back.arguments == (name,)


# -- sessions ----------------------------------------------------------------------------------------------


def test_a_session_of_several_ends(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(
        ONE
        + """
EIGHT = {"max_running_requests": 8}

@perf(topology="tp1", n=60)
def test_oom(): ...

@perf(topology="tp1", n=70)
def test_open(): ...

@perf(topology="tp1", n=80)
def test_lab(perf_lab):
    cells = perf_lab.in_turn({}, {"n": 90}, {"flags": EIGHT}, {"n": 90, "flags": EIGHT})
    perf_lab.compare(cells[0], cells[1])
    perf_lab.ablation(*cells[:3])
    perf_lab.by_load([(cells[0], cells[2]), (cells[1], cells[3])])
    assert not perf_lab.attempt(n=60)
"""
    )
    project.perf("--perf-update-new", "-k", "test_x or open", "-q").assert_outcomes(passed=2, deselected=2)
    project.control({}, n50={"speed": 2250.0}, n60={"mode": "oom"}, n70={"speed": [4500.0, 4500.0, 2600.0, 4600.0]})
    project.perf("--perf-json", "perf.json", "-p", "no:randomly").assert_outcomes(failed=2, skipped=1, passed=1)
    data = written(project)
    assert of(data)["test_x"] == "REGRESSED"
    assert of(data)["test_oom"] == "OOM"
    assert of(data)["test_open"] == "UNDECIDED"
    assert data["exitstatus"] == 1
    assert data["arguments"][-2:] == ["-p", "no:randomly"]
    slow, oom = data["cells"][0], data["cells"][1]
    assert [sample["metrics"]["total_throughput"] for sample in slow["samples"]] == pytest.approx(
        [2250, 2250], rel=0.01
    )
    assert data["environments"][slow["samples"][0]["environment"]]["versions"]["sglang"] == "0.5.20"
    assert [broken["verdict"] for broken in oom["broken"]] == ["OOM"]
    kinds = [effect["kind"] for cell in data["cells"] for effect in cell["result"]["effects"]]
    assert kinds == ["comparison", "ablation", "by load"]


def test_a_session_of_two_environments(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(ONE)
    old = project.further_environment("was", version="0.5.9")
    new = project.further_environment("is", version="0.5.20", speed=3000.0)
    sides = ("--sglang", f"old={old}", "--sglang", f"new={new}")
    project.perf(*sides, "--perf-json", "perf.json", "--perf-tolerance", "0.05").assert_outcomes(failed=1)
    data = written(project)
    assert {(one["side"], one["versions"]["sglang"]) for one in data["environments"]} == {
        ("old", "0.5.9"),
        ("new", "0.5.20"),
    }
    (cell,) = data["cells"]
    places = [data["environments"][sample["environment"]]["side"] for sample in cell["samples"]]
    assert sorted(places) == ["new"] * (len(places) // 2) + ["old"] * (len(places) // 2)
    assert "versions: sglang: 0.5.9 -> 0.5.20" in cell["result"]["notes"]


def test_a_session_of_workers_has_every_cell_once(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(ONE + '\n@perf(topology="tp1", n=60)\ndef test_y(): ...\n')
    project.perf_subprocess("-n2", "--perf-json", "perf.json")
    data = written(project)
    assert sorted(of(data)) == ["test_x", "test_y"]
    assert [len(cell["samples"]) for cell in data["cells"]] == [2, 2]


def test_an_interrupted_session_has_what_was_measured(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(ONE + '\n@perf(topology="tp1", n=60)\ndef test_y(): ...\n')
    project.control({}, n60={"mode": "hang-benchmark"})
    with project.started("--perf-json", "perf.json") as process:
        project.reached("benchmark", calls=3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    data = written(project)
    assert list(of(data)) == ["test_x"]
    assert data["exitstatus"] == pytest.ExitCode.INTERRUPTED


# -- files -------------------------------------------------------------------------------------------------


def test_a_file_of_format_1_is_read() -> None:
    """Recorded on an H200 by the first version; whatever comes later must read it."""
    assert faults(FORMAT_1.read_text(encoding="utf-8")) == []
    made = read_document(FORMAT_1)
    assert [cell.result.verdict for cell in made.cells] == [Verdict.REGRESSED, Verdict.REGRESSED, Verdict.OOM]
    assert [len(cell.samples) for cell in made.cells] == [1, 1, 1]
    (judgement,) = made.cells[0].result.judgements
    assert judgement.ratio is not None
    assert judgement.ratio.estimate == pytest.approx(0.18754, rel=1e-4)
    first = made.cells[0].samples[0]
    assert made.environments[first.environment].sglang == "0.5.11"
    assert made.environments[first.environment].host["gpu driver"] == "580.159.04"
    assert first.readings is not None
    assert first.readings.gpus == 1
    assert made.environments[made.cells[2].samples[0].environment].side == "old"


DAMAGED = {
    "empty": ("", "it is not JSON"),
    "half": (FORMAT_1.read_text(encoding="utf-8")[:5000], "it is not JSON"),
    "deep": ("[" * 100_000, "it is not JSON"),
    "a list": ("[]", "is no report of pytest-r1perf"),
    "another": ('{"name": "x", "format": 1}', "is no report of pytest-r1perf"),
    "newer": ('{"name": "pytest-r1perf report", "format": 99}', "written by a newer pytest-r1perf (format 99)"),
    "no format": ('{"name": "pytest-r1perf report"}', "is damaged"),
    "odd format": ('{"name": "pytest-r1perf report", "format": "one"}', "is damaged"),
    "format zero": ('{"name": "pytest-r1perf report", "format": 0}', "is damaged"),
    "nothing else": ('{"name": "pytest-r1perf report", "format": 1}', "is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    text, says = DAMAGED[kind]
    path = tmp_path / "perf.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(R1PerfError) as caught:
        read_document(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("wrong", [None, 7, "text", [], {}, [1], {"a": 1}])
def test_a_file_whose_parts_are_something_else(tmp_path: Path, wrong: object) -> None:
    """Every part in turn: read as it is where it may be so, else refused; never another error."""
    path = tmp_path / "perf.json"
    text = FORMAT_1.read_text(encoding="utf-8")
    places: list[list[str | int]] = [[name] for name in json.loads(text)]
    for inner in ("result", "samples", "broken", "trend"):
        places.append(["cells", 0, inner])
    places += [["cells", 0, "samples", 0, name] for name in json.loads(text)["cells"][0]["samples"][0]]
    places += [["cells", 0, "result", name] for name in json.loads(text)["cells"][0]["result"]]
    places += [["cells", 0], ["environments", 0], ["cells", 0, "result", "judgements", 0, "ratio"]]
    for place in places:
        data = json.loads(text)
        part = data
        for step in place[:-1]:
            part = part[step]
        part[place[-1]] = wrong
        path.write_text(json.dumps(data), encoding="utf-8")
        try:
            as_json(read_document(path))
        except R1PerfError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 (either way is right)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(R1PerfError, match="cannot be read"):
        read_document(path)


@pytest.mark.parametrize("target", ["/dev/null", "folder/deep/perf.json"])
def test_places_that_can_be_written(r1perf_project: Project, target: str) -> None:
    project = r1perf_project
    project.write(ONE)
    result = project.perf(f"--perf-json={target}")
    result.assert_outcomes(skipped=1)
    assert lines_with(result, "ERROR:") == []
    if target == "/dev/null":
        assert Path(target).is_char_device()
    else:
        written(project, target)


def test_a_report_elsewhere_does_not_move_the_rootdir(
    r1perf_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The second night's file is there already, and pytest takes a word that is a path for one of a test."""
    path = tmp_path_factory.mktemp("reports") / "perf.json"
    path.write_text("last night's")
    r1perf_project.write(ONE)
    r1perf_project.perf("--perf-json", path).assert_outcomes(skipped=1)
    assert of(json.loads(path.read_text())) == {"test_x": "NO BASELINE"}


@pytest.mark.parametrize("target", ["/proc/perf.json", "test_perf.py/perf.json", "env"])
def test_a_place_that_cannot_is_told_before_anything_is_measured(r1perf_project: Project, target: str) -> None:
    project = r1perf_project
    project.write(ONE)
    result = project.perf(f"--perf-json={target}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if "--perf-json" in line]
    assert len(errors) == 1
    assert "cannot be written" in errors[0]
    assert project.calls() == []


def test_a_full_disk_at_the_end_is_an_error_of_the_session(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(ONE)
    result = project.perf("--perf-json=/dev/full")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (error,) = lines_with(result, "ERROR:")
    assert error.startswith("ERROR: --perf-json /dev/full: cannot be written (No space left on device)")


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    """A full disk in the middle of the file, as a limit of the process shows it."""
    path = tmp_path / "perf.json"
    path.write_text("the old one")
    program = (
        "import sys; from pathlib import Path\n"
        "from pytest_r1perf.document.file import read_document\n"
        "from pytest_r1perf.document.output import Wanted, write\n"
        f"print(write(read_document(Path({str(FORMAT_1)!r})), [Wanted('json', Path(sys.argv[1]), '--perf-json')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "cannot be written (File too large)" in done.stdout
    assert path.read_text() == "the old one"
    assert [item.name for item in tmp_path.iterdir()] == ["perf.json"]


def test_arguments_that_are_no_text_break_no_report(r1perf_project: Project) -> None:
    project = r1perf_project
    project.write(ONE)
    odd = os.fsdecode(b"odd-\xff.json")
    command = [sys.executable, "-m", "pytest", *QUIET, "--perf", "--perf-json", odd, "--perf-markdown", "perf.md"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, timeout=120, check=False)
    assert b"INTERNALERROR" not in done.stdout
    assert faults((project.root / odd).read_text()) == []
    assert (project.root / "perf.md").exists()
