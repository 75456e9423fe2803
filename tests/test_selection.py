"""Which perf tests run, and what a mistake in a marker looks like: through pytest itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import QUIET, Project, lines_with

TWO_TOPOLOGIES = """
@perf(topology="tp1", n=50)
def test_one(): ...

@perf(topology="tp2", n=50)
def test_two(): ...

@pytest.mark.slow
@pytest.mark.perf(topology="tp1", n=60)
def test_slow(): ...

def test_plain(): ...
"""


@pytest.fixture
def suite(r1perf_project: Project) -> Project:
    r1perf_project.write(TWO_TOPOLOGIES)
    return r1perf_project


def collected(result: pytest.RunResult) -> list[str]:
    """Names of the collected tests, in order."""
    return [line.split("::", 1)[1] for line in result.outlines if line.startswith("test_") and "::" in line]


def mistakes(project: Project, text: str, *args: str) -> list[str]:
    """The sentences of a collection error."""
    project.write(text)
    result = project.run("--collect-only", *args)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    text = "\n".join(result.outlines)
    assert "Traceback" not in text
    assert "errors.py" not in text
    return [line for line in result.outlines if ": " in line and line.startswith(("test_", "Test"))]


# -- what runs ---------------------------------------------------------------------------------------------


def test_plain_pytest_leaves_perf_tests_out_and_says_so_in_one_line(suite: Project) -> None:
    result = suite.run()
    result.assert_outcomes(passed=1, deselected=3)
    assert result.ret == 0
    assert lines_with(result, "r1perf: ") == [
        "r1perf: 3 perf tests deselected (run with -m perf, --perf or --topology NAME)"
    ]
    assert "performance (r1perf)" not in str(result.stdout)
    assert suite.calls() == []
    assert not suite.out.exists()


def test_a_project_without_perf_tests_hears_nothing(r1perf_project: Project) -> None:
    r1perf_project.write("def test_plain(): ...")
    result = r1perf_project.run()
    result.assert_outcomes(passed=1)
    assert lines_with(result, "r1perf: ") == []


def test_plain_pytest_says_so_under_xdist_too(suite: Project) -> None:
    result = suite.pytester.runpytest_subprocess(*QUIET, "-n2")
    result.assert_outcomes(passed=1)
    assert lines_with(result, "r1perf: ") == [
        "r1perf: 3 perf tests deselected (run with -m perf, --perf or --topology NAME)"
    ]
    assert not suite.out.exists()


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("-m", "perf"), ["test_one", "test_two", "test_slow"]),
        (("--perf",), ["test_one", "test_two", "test_slow"]),
        (("-m", "perf and not slow"), ["test_one", "test_two"]),
        (("-m", "slow and perf"), ["test_slow"]),
        (("--topology", "tp2"), ["test_two"]),
        (("--perf-topology", "tp2"), ["test_two"]),
        (("--topology", "tp1,tp2"), ["test_one", "test_two", "test_slow"]),
        (("--topology", "tp1", "-m", "not slow"), ["test_one"]),
        (("--perf", "-k", "two or plain"), ["test_two"]),
        (("-m", "not perf"), ["test_plain"]),
        (("-m", "not slow"), ["test_plain"]),
        (("test_perf.py::test_two",), ["test_two"]),
        (("test_perf.py",), ["test_plain"]),
    ],
)
def test_selection(suite: Project, args: tuple[str, ...], names: list[str]) -> None:
    result = suite.run("--collect-only", "-q", *args)
    assert collected(result) == names
    assert result.ret == 0
    assert suite.calls() == []
    assert not suite.out.exists()


def test_node_ids_of_parameters_and_classes(r1perf_project: Project) -> None:
    r1perf_project.write("""
        class TestGroup:
            @perf(topology="tp1", n=50)
            def test_method(self): ...

            @pytest.mark.parametrize("n", [10, 20])
            @perf(topology="tp1")
            def test_loads(self, n): ...

        @perf(topology="tp1", n=50)
        def test_methodical(): ...
        """)

    def chosen(*ids: str) -> list[str]:
        return collected(r1perf_project.run("--collect-only", "-q", *ids))

    assert chosen("test_perf.py::TestGroup::test_loads[20]") == ["TestGroup::test_loads[20]"]
    assert chosen("test_perf.py::TestGroup::test_loads") == ["TestGroup::test_loads[10]", "TestGroup::test_loads[20]"]
    assert chosen("test_perf.py::TestGroup") == [
        "TestGroup::test_method",
        "TestGroup::test_loads[10]",
        "TestGroup::test_loads[20]",
    ]
    assert chosen("test_perf.py::test_methodical") == ["test_methodical"]


def test_node_id_from_another_directory_and_through_a_link(suite: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (suite.root / "sub").mkdir()
    monkeypatch.chdir(suite.root / "sub")
    assert collected(suite.run("--collect-only", "-q", "../test_perf.py::test_two"))[-1:] == ["test_two"]
    link = suite.root.parent / "link"
    link.symlink_to(suite.root)
    monkeypatch.chdir(link)
    assert collected(suite.run("--collect-only", "-q", f"{link}/test_perf.py::test_two"))[-1:] == ["test_two"]


def test_node_id_runs_under_xdist_in_one_session(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.parametrize("n", [10, 20])
        @perf(topology="tp1", min_tokps=100)
        def test_loads(n): ...
        """)
    result = r1perf_project.pytester.runpytest_subprocess(*QUIET, "-n2", "test_perf.py::test_loads")
    result.assert_outcomes(passed=2)
    assert len(list(r1perf_project.out.iterdir())) == 1
    assert len(r1perf_project.samples()) == 4


def test_nothing_selected_prints_no_table(suite: Project) -> None:
    result = suite.run("--perf", "-k", "nothing_like_it")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "performance (r1perf)" not in str(result.stdout)
    assert "nothing was decided" not in str(result.stdout)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--topology", "pp3"), "ERROR: topology 'pp3' is not known; did you mean 'pp2'? (known: "),
        (("--topology", "tp1,pp3"), "ERROR: topology 'pp3' is not known; did you mean 'pp2'? (known: "),
        (("--topology", ","), "ERROR: --topology needs a name, e.g. --topology tp8"),
        (("--perf", "--perf-platform", "h200x9"), "ERROR: platform 'h200x9' is not known; did you mean 'h200x8'?"),
        (("--perf-tolerance", "5"), "ERROR: --perf-tolerance must be a fraction from 0 to below 1"),
        (("--perf-tolerance", "nan"), "ERROR: --perf-tolerance must be a fraction from 0 to below 1"),
        (("--perf-rounds", "5:3"), "ERROR: --perf-rounds: rounds must be MIN:MAX with 1 <= MIN <= MAX"),
        (("--perf-rounds", "0"), "ERROR: --perf-rounds: rounds must be MIN:MAX with 1 <= MIN <= MAX"),
        (("--perf-budget", "soon"), "ERROR: --perf-budget must be a time like 45m, 2h or 600s, got 'soon'"),
        (("--perf-update", "--perf-update-new"), "ERROR: --perf-update and --perf-update-new contradict each other"),
    ],
)
def test_wrong_options_are_one_sentence(suite: Project, args: tuple[str, ...], sentence: str) -> None:
    result = suite.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert line.startswith(sentence)
    assert "Traceback" not in str(result.stderr)


# -- what pytest says of the plugin ------------------------------------------------------------------------


def test_markers_documents_perf(r1perf_project: Project) -> None:
    result = r1perf_project.run("--markers")
    (line,) = lines_with(result, "@pytest.mark.perf(")
    assert "topology, n, min_tokps=None" in line
    assert "Runs only when asked for: -m perf, --topology, --perf or an explicit node id." in line


def test_help_has_one_group_with_every_option(r1perf_project: Project) -> None:
    result = r1perf_project.run("--help")
    text = str(result.stdout)
    title = "performance regression tests on SGLang (pytest-r1perf):"
    assert text.count(title) == 1
    group = text.split(title)[1].split("\n\n")[0]
    for option in (
        "--topology",
        "--perf-topology",
        "--perf",
        "--perf-platform",
        "--sglang",
        "--perf-update",
        "--perf-update-new",
        "--perf-gate",
        "--perf-tolerance",
        "--perf-rounds",
        "--perf-budget",
        "--perf-out",
        "--perf-resume",
    ):
        assert f" {option}" in group
    for key in ("perf_platform", "perf_sglang", "perf_out", "perf_gate", "perf_baselines", "perf_data"):
        assert f"  {key} (" in text


def test_another_plugin_keeps_its_own_topology_option(suite: Project) -> None:
    suite.write(
        """
        def pytest_addoption(parser):
            parser.getgroup("net", "networks").addoption("--topology", dest="net_topology", default="star")

        def pytest_report_header(config):
            return f"network: {config.getoption('net_topology')}"
        """,
        "netplugin.py",
    )
    suite.pytester.syspathinsert()
    result = suite.run("-p", "netplugin", "--topology", "ring", "--perf-topology", "tp2", "--collect-only")
    assert result.ret == 0
    assert lines_with(result, "network: ") == ["network: ring"]
    assert lines_with(result, "<Function") == ["<Function test_two>"]
    plain = suite.run("-p", "netplugin", "--topology", "ring")
    plain.assert_outcomes(passed=1, deselected=3)


# -- mistakes in markers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("n=50", "perf() needs a topology, e.g. perf(topology='tp8', n=5000)"),
        ("topology='pp3', n=50", "topology 'pp3' is not known; did you mean 'pp2'? (known: "),
        ("topology=8, n=50", "topology must be a name in quotes, got 8"),
        ("topology='tp1', n=0", "n must be a whole number of prompts above 0, got 0"),
        ("topology='tp1', n=-5", "n must be a whole number of prompts above 0, got -5"),
        ("topology='tp1', n=2.5", "n must be a whole number of prompts above 0, got 2.5"),
        ("topology='tp1', n=True", "n must be a whole number of prompts above 0, got True"),
        ("topology='tp1', n='50'", "n must be a whole number of prompts above 0, got '50'"),
        ("topology='tp1', n=50, min_tokps='fast'", "min_tokps must be a number, got 'fast'"),
        ("topology='tp1', n=50, min_tokps=0", "min_tokps must be above 0, got 0"),
        ("topology='tp1', n=50, min_tokps=float('nan')", "min_tokps must be a number, got nan"),
        ("topology='tp1', n=50, tolerance=5", "tolerance must be a fraction from 0 to below 1 (0.05 is 5 %), got 5"),
        (
            "topology='tp1', n=50, tolerance=1.0",
            "tolerance must be a fraction from 0 to below 1 (0.05 is 5 %), got 1.0",
        ),
        ("topology='tp1', n=50, tolerance=-0.1", "tolerance must be a fraction from 0 to below 1"),
        ("topology='tp1', n=50, min_tokp=3", "perf() has no argument 'min_tokp'; did you mean 'min_tokps'? (known: "),
        ("topology='tp1', n=50, recipe='tp8-champ'", "recipe 'tp8-champ' is not known; did you mean 'tp8-champion'?"),
        ("topology='tp1', n=50, recipe='tp8-champion'", "recipe 'tp8-champion' is for topology 'tp8', not for 'tp1'"),
        ("topology='tp1', n=50, workload='sharegtp'", "workload 'sharegtp' is not known; did you mean 'sharegpt'?"),
        ("topology='tp1', n=50, platform='cpus'", "platform 'cpus' is not known; did you mean 'cpu'?"),
        ("topology='tp1', n=50, metric='total_tput'", "metric 'total_tput' is not known; did you mean "),
        ("topology='tp1', n=50, metric=[]", "metric must be a name or a list of names, got []"),
        (
            "topology='tp1', n=50, metric='total_latency', min_tokps=3",
            "min_tokps is a floor, and of total_latency less is better: name a throughput first",
        ),
        ("topology='tp1', n=50, mode='gate'", "mode 'gate' is not in this version; (known: engine, offline, serve)"),
        ("topology='tp1', n=50, batch_size=4", "batch_size belongs to mode='serve', and this test has mode 'offline'"),
        ("topology='tp1', n=50, flags={'tp-size': 2}", "flags['tp-size'] belongs to the topology: choose or define"),
        ("topology='tp1', n=50, flags=['--x']", "flags must be a mapping with text keys, got ['--x']"),
        ("topology='tp1', n=50, env={'A': 1}", "env['A'] must be a text, got 1"),
        ("topology='tp1', n=50, timeout=0", "timeout must be above 0, got 0"),
        ("topology='tp1', n=50, rounds='3:2'", "rounds must be MIN:MAX with 1 <= MIN <= MAX, e.g. 3:8, got '3:2'"),
        (
            "topology='tp1', n=50, quarantine_until='soon'",
            "quarantine_until must be a day like '2026-12-31', got 'soon'",
        ),
        ("'tp1', 50, 3, 'x'", "perf() takes topology, n, min_tokps by position and got 4 values; name the others"),
        ("'tp1', topology='tp1'", "perf() got 'topology' twice, by position and by name"),
    ],
)
def test_a_marker_mistake_is_one_sentence(r1perf_project: Project, marker: str, sentence: str) -> None:
    (line,) = mistakes(r1perf_project, f"@pytest.mark.perf({marker})\ndef test_x(): ...")
    assert line.startswith(f"test_x: {sentence}")


def test_mistakes_fail_the_collection_of_a_plain_pytest_too(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.perf(topology="tp1", n=0)
        def test_x(): ...
        """)
    result = r1perf_project.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert lines_with(result, "test_x: n must be")


def test_all_mistakes_of_a_file_are_shown_each_once(r1perf_project: Project) -> None:
    lines = mistakes(
        r1perf_project,
        """
        @pytest.mark.perf(topology="tp1", n=0)
        @pytest.mark.parametrize("load", [1, 2, 3])
        def test_params(load): ...

        @pytest.mark.perf(topology="tp1", n=0)
        def test_same_mistake(): ...

        @perf(topology="tp9", n=50)
        def test_other(): ...

        class TestA:
            @pytest.mark.perf(topology="tp1", n=50, tolerance=7)
            def test_in_class(self): ...

        @perf(topology="tp1", n=50)
        def test_good(): ...
        """,
    )
    assert [line.split(":")[0] for line in lines] == ["test_params[1]", "test_same_mistake", "test_other"]


def test_mistakes_within_a_class(r1perf_project: Project) -> None:
    lines = mistakes(
        r1perf_project,
        """
        class TestA:
            @pytest.mark.perf(topology="tp1", n=50, tolerance=7)
            def test_in_class(self): ...

            @pytest.mark.perf(topology="tp1", n=0)
            def test_too(self): ...
        """,
    )
    assert [line.split(":")[0] for line in lines] == ["test_in_class", "test_too"]


def test_mistakes_are_shown_under_xdist(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.perf(topology="tp9", n=5)
        def test_x(): ...

        @pytest.mark.perf(topology="tp1", n=0)
        def test_y(): ...
        """)
    result = r1perf_project.pytester.runpytest_subprocess(*QUIET, "-n2")
    assert result.ret != 0
    assert lines_with(result, "test_x: topology 'tp9' is not known; did you mean 'tp8'?")
    assert lines_with(result, "test_y: n must be a whole number of prompts above 0, got 0")
    assert "Traceback" not in str(result.stdout)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '@perf(topology="tp1", n=50)\nclass TestA:\n    def test_x(self): ...',
            "TestA: a class cannot have a perf marker: put it on each function, since one marker is one cell",
        ),
        (
            'pytestmark = perf(topology="tp1", n=50)\n\ndef test_x(): ...',
            "test_x: the perf marker stands on 'test_perf.py': put it on each function, since one marker is one cell",
        ),
        (
            '@perf(topology="tp1", n=50)\nasync def test_x(): ...',
            "test_x: an async test cannot be a perf test: the measurement runs by itself, so use a plain def",
        ),
        (
            '@perf(topology="tp1", n=50)\n@perf(topology="tp1", n=60)\ndef test_x(): ...',
            "test_x: has two perf markers; one marker is one cell, so give the test exactly one",
        ),
        (
            "import unittest\n\nclass TestA(unittest.TestCase):\n"
            '    @perf(topology="tp1", n=50)\n    def test_x(self): ...',
            "test_x: a unittest.TestCase method cannot be a perf test: make it a plain function",
        ),
        (
            '@perf(topology="tp1", n=50)\n'
            '@pytest.mark.parametrize("a", [pytest.param(1, marks=perf(topology="tp1", n=9))])\n'
            "def test_x(a): ...",
            "test_x[1]: has two perf markers; one marker is one cell, so give the test exactly one",
        ),
        (
            '@pytest.mark.parametrize("n", [50, -1])\n@perf(topology="tp1")\ndef test_x(n): ...',
            "test_x[-1]: n must be a whole number of prompts above 0, got -1",
        ),
    ],
)
def test_where_a_marker_cannot_stand(r1perf_project: Project, text: str, sentence: str) -> None:
    assert mistakes(r1perf_project, text) == [sentence]


def test_doctests_are_left_alone(r1perf_project: Project) -> None:
    (r1perf_project.root / "test_doc.py").write_text('"""\n>>> 1 + 1\n2\n"""\n')
    r1perf_project.run("--doctest-modules", "test_doc.py").assert_outcomes(passed=1)


# -- what a marker means -----------------------------------------------------------------------------------


def test_parameters_named_like_marker_arguments_override_them(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.parametrize(("n", "flags"), [(10, {}), (20, {"max_running_requests": 4})])
        @perf(topology="tp1", n=99, min_tokps=100)
        def test_x(n, flags, perf_result):
            assert perf_result.num_prompts == n
        """)
    r1perf_project.perf("--perf-rounds", "2").assert_outcomes(passed=2)
    assert [call["cell"] for call in r1perf_project.calls()] == ["n10"] * 2 + ["n20+max_running_requests=4"] * 2


def test_marker_on_a_parameter(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.parametrize("name", [
            pytest.param("a", marks=perf(topology="tp1", n=10, min_tokps=100)),
            pytest.param("b", marks=pytest.mark.perf("tp1", 20, 100)),
            "plain",
        ])
        def test_x(name): ...
        """)
    r1perf_project.perf().assert_outcomes(passed=2, deselected=1)
    assert [call["cell"] for call in r1perf_project.calls()] == ["n10"] * 2 + ["n20"] * 2


def test_a_topology_that_does_not_fit_is_skipped_with_both_counts(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp8", n=50)
        def test_x(): ...
        """)
    result = r1perf_project.perf("-rs", "--perf-platform", "h200x8")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (line,) = lines_with(result, "SKIPPED")
    assert line.startswith("SKIPPED [1] test_perf.py:")
    assert "topology 'tp8' needs 8 GPUs on 1 node" in line
    gated = r1perf_project.perf("--perf-platform", "h200x8", "--perf-gate")
    gated.assert_outcomes(failed=1)
    assert lines_with(gated, "NOT RUN (--perf-gate): topology 'tp8' needs 8 GPUs on 1 node")


def test_user_data_that_is_wrong_is_named_with_file_line_and_key(r1perf_project: Project) -> None:
    path: Path = r1perf_project.root / "r1perf.yaml"
    path.write_text("platforms:\n  cpu:\n    tolerance: {value: 1.5}\n")
    r1perf_project.write(TWO_TOPOLOGIES)
    result = r1perf_project.perf()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.startswith("ERROR: ")] == [
        f"ERROR: {path}:3: platforms.cpu.tolerance.value: must be above 0 and below 1, got 1.5"
    ]


def test_an_empty_body_is_parametrized_over_the_marker(r1perf_project: Project) -> None:
    r1perf_project.write(
        """
        @pytest.mark.parametrize("n, flags", [(10, {}), (20, {"max_running_requests": 4})])
        @perf(topology="tp1", min_tokps=1)
        def test_x(): ...

        @pytest.mark.parametrize("load", [1, 2])
        @perf(topology="tp1", n=5)
        def test_other_names_are_refused_as_ever(): ...
        """
    )
    result = r1perf_project.perf("-k", "test_x")
    result.stdout.fnmatch_lines(["*test_other_names_are_refused_as_ever: function uses no argument 'load'*"])
    r1perf_project.write(
        """
        @pytest.mark.parametrize("n, flags", [(10, {}), (20, {"max_running_requests": 4})])
        @perf(topology="tp1", min_tokps=1)
        def test_x(): ...
        """
    )
    r1perf_project.perf().assert_outcomes(passed=2)
    assert [sample["cell"] for sample in r1perf_project.samples()] == [
        "cpu/default/sharegpt/n10/offline",
        "cpu/default/sharegpt/n10/offline",
        "cpu/default/sharegpt/n20/offline/max_running_requests=4",
        "cpu/default/sharegpt/n20/offline/max_running_requests=4",
    ]


@pytest.mark.parametrize("option", ["--sglang", "--perf-out"])
def test_a_path_after_an_option_does_not_move_the_rootdir(r1perf_project: Project, option: str, tmp_path: Path) -> None:
    """Pytest looks for its rootdir before it knows our options: without care it would be the path's."""
    r1perf_project.write('@perf(topology="tp1", n=5, min_tokps=1)\ndef test_x(): ...\n')
    path = r1perf_project.environment if option == "--sglang" else tmp_path
    result = r1perf_project.pytester.runpytest_subprocess(*QUIET, "--perf", option, path)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"rootdir: {r1perf_project.root}", "configfile: pytest.ini"])
    result.stdout.no_fnmatch_line("*rootdir: */env*")


def test_a_misspelt_platform_of_the_floors_is_an_error(r1perf_project: Project) -> None:
    r1perf_project.write('perf_platform = "h200x9"\n\n@perf(topology="tp1", n=5, min_tokps=1)\ndef test_x(): ...\n')
    result = r1perf_project.perf()
    assert lines_with(result, "test_x: platform 'h200x9' is not known; did you mean 'h200x8'?") != []
