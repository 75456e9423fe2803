"""JUnit XML: every test's verdict and numbers as properties, once, and a failure text that any parser reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.report.junit import properties
from pytest_r1perf.results import CellResult
from pytest_r1perf.verdict import Verdict
from tests.project import Project

TESTS = """
@perf(topology="tp1", n=50, metric=["total_throughput", "total_latency"])
def test_slow(): ...

@perf(topology="tp1", n=60, min_tokps=100)
def test_steady(): ...

@perf(topology="tp1", n=70)
def test_oom(): ...

@pytest.mark.parametrize("n", [pytest.param(80, id="<a> & \\"b\\" | \\x1b[31m \\x00 \\U0001f680")])
@perf(topology="tp1")
def test_named(n):
    raise AssertionError("a body \\x1b[31mfails\\x00 <so> & \\ufffe")

@perf(topology="tp1", n=90)
def test_lab(perf_lab):
    one, two = perf_lab.in_turn({}, {"n": 100})
    perf_lab.compare(one, two)
"""

_CASE = {"skipped", "error", "failure", "rerunFailure", "flakyFailure", "system-out", "system-err"}
_CASE_ATTRIBUTES = {"name", "assertions", "time", "timestamp", "classname", "status", "class", "file", "line", "group"}
_SUITE = {"testsuite", "properties", "testcase", "system-out", "system-err"}


def misshapen(path: Path) -> list[str]:
    """What Jenkins' junit-10.xsd would not take; properties of a case are pytest's (and our) one addition to it."""
    root = ElementTree.parse(path).getroot()
    found = [] if root.tag == "testsuites" else [f"root {root.tag}"]
    for suite in root:
        found += [f"suite has {child.tag}" for child in suite if child.tag not in _SUITE]
        found += [f"suite lacks {name}" for name in ("name", "tests", "failures", "errors") if name not in suite.attrib]
        for case in suite.iter("testcase"):
            places = [child.tag for child in case]
            found += [f"case has {tag}" for tag in places if tag not in {*_CASE, "properties"}]
            found += [f"case has attribute {name}" for name in case.attrib if name not in _CASE_ATTRIBUTES]
            if places.count("properties") > 1:
                found.append("properties stand twice")
            for item in case.iter("property"):
                if set(item.attrib) != {"name", "value"} or len(item):
                    found.append(f"property {item.attrib}")
    return found


def told(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Properties of each case by its name, in order and with repetitions."""
    return {
        case.get("name", ""): [(item.get("name", ""), item.get("value", "")) for item in case.iter("property")]
        for case in ElementTree.parse(path).getroot().iter("testcase")
    }


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    r1perf_project.write(TESTS)
    r1perf_project.perf("--perf-update-new", "-k", "slow or steady", "-q").assert_outcomes(passed=2, deselected=3)
    r1perf_project.control({}, n50={"speed": [2250.0, 2252.0]}, n70={"mode": "oom"})
    return r1perf_project


@pytest.mark.parametrize(
    "options", [(), ("-n2", "--dist", "loadgroup", "-o", "junit_family=xunit1")], ids=["alone", "xdist"]
)
def test_every_case_tells_its_verdict_and_numbers_once(project: Project, options: tuple[str, ...]) -> None:
    result = project.perf_subprocess(*options, "--junitxml=junit.xml")
    result.assert_outcomes(passed=2, failed=3)
    path = project.root / "junit.xml"
    assert misshapen(path) == []
    cases = told(path)
    assert len(cases) == 5
    for pairs in cases.values():
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names))
        assert "r1perf_verdict" in names
    slow = dict(cases["test_slow"])
    assert slow["r1perf_verdict"] == slow["r1perf_total_throughput_verdict"] == "REGRESSED"
    assert slow["r1perf_cell"] == "tp1/cpu/default/sharegpt/n50/offline"
    assert slow["r1perf_total_throughput_unit"] == "tok/s"
    assert slow["r1perf_total_latency_unit"] == "s"
    assert slow["r1perf_rounds"] == "2"
    assert slow["r1perf_against"] == "baseline"
    rounds = json.loads(slow["r1perf_total_throughput_samples"])
    kept = [line["metrics"]["total_throughput"] for line in project.samples() if line["nodeid"].endswith("test_slow")]
    assert rounds == pytest.approx(kept[-2:], rel=1e-9)
    assert float(slow["r1perf_total_throughput"]) == pytest.approx(sum(rounds) / 2, rel=1e-9)
    assert float(slow["r1perf_total_throughput_baseline"]) == pytest.approx(4504.5, rel=0.01)
    low, mid, high = (float(slow[f"r1perf_total_throughput_ratio{end}"]) for end in ("_lower", "", "_upper"))
    assert low < mid < high
    assert mid == pytest.approx(0.5, rel=0.01)
    steady = dict(cases["test_steady"])
    assert (steady["r1perf_verdict"], steady["r1perf_total_throughput_floor"]) == ("PASS", "100")
    assert dict(cases["test_oom"])["r1perf_rounds"] == "0"
    assert "r1perf_total_throughput" not in dict(cases["test_oom"])
    lab = dict(cases["test_lab"])
    assert lab["r1perf_cell"].endswith("/n90/offline")
    assert lab["r1perf_2_cell"].endswith("/n100/offline")
    assert len(json.loads(lab["r1perf_2_total_throughput_samples"])) == 2
    assert lab["r1perf_effect_1"].startswith("tp1 default n=90 / tp1 default n=100: total_throughput 1.0")


def test_a_failure_is_the_short_message(project: Project) -> None:
    project.perf("--junitxml=junit.xml", "-k", "slow or oom or named").assert_outcomes(failed=3, deselected=2)
    root = ElementTree.parse(project.root / "junit.xml").getroot()
    texts = {case.get("name", ""): case.findtext("failure") or "" for case in root.iter("testcase")}
    slow = texts.pop("test_slow").splitlines()
    assert slow[0] == "REGRESSED: tp1 default n=50 on cpu"
    assert slow[1].startswith("  total_throughput REGRESSED: median 2,2")
    assert slow[-1] == "  reproduce: pytest test_perf.py::test_slow --perf --perf-platform cpu"
    assert len(slow) < 8
    assert texts.pop("test_oom").startswith("OOM: tp1 default n=70 on cpu\n  cause: torch.OutOfMemoryError")
    (named,) = texts.values()
    assert "<so> & " in named


LEGAL = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
"""The characters of XML 1.0 (section 2.2)."""


@given(st.text(st.characters(), max_size=30), st.floats())
def test_any_name_and_number_is_fit_for_xml(name: str, value: float) -> None:
    result = CellResult(
        nodeid=name,
        topology=name,
        key=name,
        label=name,
        platform=name,
        hardware=name,
        verdict=Verdict.MEASURED,
        medians={"total_throughput": value},
        effects=({"sentence": name},),
    )
    pairs = properties([result, result], [{"total_throughput": (1.0, 2.0)}, {}])
    assert len({key for key, _ in pairs}) == len(pairs)
    assert all(LEGAL.fullmatch(key) and LEGAL.fullmatch(text) for key, text in pairs)
    assert dict(pairs)["r1perf_total_throughput"] == f"{value:.10g}"
