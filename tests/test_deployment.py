"""The closing pass: the same cells with the deployment's own weights and traffic, kept apart from the benchmark's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import Cell, cell_of, reference_of
from pytest_r1perf.deployment import (
    Deployment,
    bound_note,
    deployed,
    deployed_catalog,
    deployment_note,
    is_of_deployment,
)
from pytest_r1perf.errors import DataError, R1PerfError
from pytest_r1perf.marker import PerfSpec
from tests.project import Project, sharegpt, verdicts

OWN = "{model_path: /data/R1-0528, load_format: auto, dataset: /data/traffic.json}"


def catalog_with(tmp_path: Path, deployment: str) -> Catalog:
    file = tmp_path / "r1perf.yaml"
    file.write_text(f"platforms: {{h200x8: {{model_path: /data/R1, deployment: {deployment}}}}}\n")
    return load_catalog([file])


def cell(catalog: Catalog, **changes: object) -> Cell:
    spec = PerfSpec(topology="tp8", n=7000, recipe="tp8-champion")
    return cell_of(replace(spec, **changes), catalog.platform("h200x8"), catalog)  # type: ignore[arg-type]


def test_the_same_cell_with_other_weights_and_traffic(tmp_path: Path) -> None:
    catalog = catalog_with(tmp_path, OWN)
    bench, own = cell(catalog), cell(deployed_catalog(catalog))
    assert bench.key == "h200x8/tp8-champion/sharegpt/n7000/offline"
    assert own.key == "h200x8/tp8-champion/sharegpt/n7000/offline/deployment"
    assert own.label == "tp8 tp8-champion n=7000 deployment"
    assert (bench.flags["load_format"], own.flags["load_format"]) == ("dummy", "auto")
    assert own.platform.model_path == "/data/R1-0528"
    assert own.platform.datasets["sharegpt"] == "/data/traffic.json"
    assert own.fingerprint != bench.fingerprint
    assert own.engine_key != bench.engine_key
    tuned = {name: value for name, value in own.flags.items() if name != "load_format"}
    assert tuned == {name: value for name, value in bench.flags.items() if name != "load_format"}


def test_equal_settings_are_kept_apart_all_the_same(tmp_path: Path) -> None:
    """A deployment that serves what the benchmark loads differs by its name only: rounds must not be mixed."""
    catalog = catalog_with(tmp_path, "{model_path: /data/R1, load_format: auto, dataset: $SHAREGPT}")
    flags = (("load_format", "auto"),)
    bench, own = (
        cell(catalog, recipe="default", flags=flags),
        cell(deployed_catalog(catalog), recipe="default", flags=flags),
    )
    assert bench.flags == own.flags
    assert bench.fingerprint != own.fingerprint


def test_an_anti_patterns_reference_is_of_the_deployment_too(tmp_path: Path) -> None:
    catalog = deployed_catalog(catalog_with(tmp_path, OWN))
    reference = reference_of(cell(catalog, flags=(("max_running_requests", 8),)), catalog, "a-rule")
    assert reference.key == "h200x8/tp8-champion/sharegpt/n7000/offline/deployment"


def test_keys(tmp_path: Path) -> None:
    catalog = deployed_catalog(catalog_with(tmp_path, OWN))
    assert is_of_deployment(cell(catalog).key)
    assert is_of_deployment(cell(catalog, flags=(("max_running_requests", 8),)).key)
    assert not is_of_deployment("h200x8/deployment/sharegpt/n7000/offline")
    assert not is_of_deployment("h200x8/default/sharegpt/n7000/offline/max_running_requests=8")


def test_a_platform_without_one_is_refused() -> None:
    catalog = load_catalog()
    with pytest.raises(R1PerfError, match="platform 'h200x8' has no 'deployment:' section: give model_path"):
        deployed(catalog.platform("h200x8"))
    assert not deployed_catalog(catalog).platform("h200x8").deployed


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("{model_path: /m, load_format: dummy, dataset: /d}", "is 'dummy', but a deployment has weights of its own"),
        ("{model_path: /m}", "key 'dataset' is missing"),
        ("{dataset: /d}", "key 'model_path' is missing"),
        ("{model_path: /m, dataset: /d, loadformat: auto}", "key is not known; did you mean 'load_format'?"),
        ("{model_path: '', dataset: /d}", "must be a non-empty text"),
    ],
)
def test_a_bad_section_is_refused_with_its_line(section: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"r1perf.yaml:1: platforms.h200x8.deployment") as refused:
        catalog_with(tmp_path, section)
    assert sentence in str(refused.value)


def test_what_the_report_says(tmp_path: Path) -> None:
    platform = deployed_catalog(catalog_with(tmp_path, OWN)).platform("h200x8")
    assert platform.deployment == Deployment("/data/R1-0528", "/data/traffic.json", "auto")
    note = deployment_note(platform)
    assert note.startswith("closing pass: weights /data/R1-0528 (auto), traffic /data/traffic.json; kept apart")
    assert bound_note("the floor 22000") == (
        "the floor 22000 is the benchmark's (dummy weights, ShareGPT): not applied to the deployment's own"
    )


# through the plugin

SUITE = """
@perf(topology="tp1", n=50, min_tokps=1000000)
def test_a(): ...
"""


@pytest.fixture
def served(r1perf_project: Project) -> Project:
    """A platform that serves another folder of weights and another traffic file."""
    project = r1perf_project
    weights = project.root / "weights"
    weights.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (weights / name).write_text((project.model / name).read_text())
    traffic = project.root / "traffic.json"
    traffic.write_text(sharegpt(120, prompt=35, answer=12))
    project.platform(
        deployment={"model_path": str(weights), "load_format": "auto", "dataset": str(traffic)},
    )
    project.write(SUITE)
    return project


def test_a_pass_has_its_own_baseline_and_no_floor(served: Project) -> None:
    served.perf("--perf-deployment", "--perf-update-new").assert_outcomes(passed=1)
    assert list(served.stored()["cells"]) == ["cpu/default/sharegpt/n50/offline/deployment"]
    (call, *_) = served.calls()
    argv = " ".join(call["argv"])
    assert f"--model-path {served.root}/weights" in argv
    assert f"--dataset-path {served.root}/traffic.json" in argv
    assert "--load-format auto" in argv
    result = served.perf("--perf-deployment")
    assert verdicts(result) == ["PASS"]
    out = result.stdout.str()
    assert "closing pass: weights" in out
    assert "the floor 1e+06 is the benchmark's" in out
    # The benchmark itself has no baseline yet, and its floor holds.
    benchmark = served.perf()
    assert verdicts(benchmark) == ["REGRESSED"]
    assert "closing pass" not in benchmark.stdout.str()


def test_each_leaves_the_others_entries_alone(served: Project) -> None:
    served.write(SUITE.replace("1000000", "1"))
    served.perf("--perf-update-new").assert_outcomes(passed=1)
    served.perf("--perf-deployment", "--perf-update-new").assert_outcomes(passed=1)
    assert len(served.stored()["cells"]) == 2
    for more in ((), ("--perf-deployment",)):
        result = served.perf(*more)
        assert verdicts(result) == ["PASS"]
        assert "no test uses" not in result.stdout.str()


def test_a_platform_without_the_section(r1perf_project: Project) -> None:
    r1perf_project.write(SUITE)
    result = r1perf_project.perf("--perf-deployment")
    result.assert_outcomes(failed=1)
    assert "--perf-deployment: platform 'cpu' has no 'deployment:' section" in result.stdout.str()
    assert r1perf_project.calls() == []


def test_a_published_figure_is_not_held_against_the_deployments_own(served: Project) -> None:
    served.write("""
        @perf(topology="tp1", n=50)
        def test_lab(perf_lab):
            low, high = perf_lab.in_turn({}, {"n": 60})
            perf_lab.compare(low, high, published="+7.5 %")
        """)
    whole = " ".join(line.strip() for line in served.perf("--perf-deployment").outlines)
    assert "published: ratio: +7.5 %: the benchmark's: not compared with the deployment's own weights" in whole
    benchmark = " ".join(line.strip() for line in served.perf().outlines)
    assert "published: ratio: +7.5 %: " in benchmark
    assert "the benchmark's: not compared" not in benchmark


def test_a_markers_dummy_weights_are_not_named_where_they_are_not_loaded(tmp_path: Path) -> None:
    catalog = catalog_with(tmp_path, OWN)
    flags = (("load_format", "dummy"), ("max_running_requests", 8))
    assert cell(catalog, flags=flags).key.endswith("/offline/load_format=dummy/max_running_requests=8")
    own = cell(deployed_catalog(catalog), flags=flags)
    assert own.flags["load_format"] == "auto"
    assert own.key == "h200x8/tp8-champion/sharegpt/n7000/offline/deployment/max_running_requests=8"
    assert own.label == "tp8 tp8-champion n=7000 deployment max_running_requests=8"
