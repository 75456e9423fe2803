"""The plan of a test that takes ``perf_lab``: what it can't know it says."""

from __future__ import annotations

from tests.project import Project


def test_a_plan_says_that_a_labs_cells_are_decided_while_it_runs(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp1", n=50)
        def test_lab(perf_lab):
            raise SystemExit("a plan runs no body")

        @perf(topology="tp1", n=60)
        def test_plain(): ...
        """)
    result = r1perf_project.perf("--perf-plan")
    assert result.ret == 0
    (at,) = (number for number, line in enumerate(result.outlines) if "perf-lab: " in line)
    assert "which cells are measured its body decides while it runs" in result.outlines[at]
    first, second = (result.outlines.index(f"test_perf.py::{name}") for name in ("test_lab", "test_plain"))
    assert first < at < second
    assert r1perf_project.calls() == []
