"""pytest's hooks, and nothing else: each delegates to the session in a line or two.

Nothing heavy is imported here: a plain ``pytest`` and ``pytest --help`` don't pay for this plugin.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import MARKER_LINE
from pytest_r1perf.options import add_options, read_options
from pytest_r1perf.rooting import run_with_joined
from pytest_r1perf.selection import declare_overrides
from pytest_r1perf.session import PerfSession

if TYPE_CHECKING:
    from pytest_r1perf.evidence import AntiPatterns, LoadEvidence
    from pytest_r1perf.lab import PerfLab, PerfResult

SESSION = pytest.StashKey[PerfSession]()


class Results:
    """The one hook that gets no config: an object of its own carries the session to it."""

    def __init__(self, session: PerfSession) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A finished test, of this process or of a worker."""
        self._session.take(report)


@pytest.hookimpl(trylast=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and ini keys; last, so that another plugin keeps its own --topology."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """``--sglang PATH`` must not move the rootdir."""
    return run_with_joined(config)


def pytest_configure(config: pytest.Config) -> None:
    """Document the marker and make the session object."""
    config.addinivalue_line("markers", MARKER_LINE)
    try:
        session = config.stash[SESSION] = PerfSession(config, read_options(config))
        config.pluginmanager.register(Results(session), "r1perf-results")
        if session.worker is None and session.options.selects:
            session.check_names()
    except R1PerfError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: a worker is about to start."""
    node.config.stash[SESSION].configure_worker(node.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """xdist: tests of one engine go to one worker."""
    return config.stash[SESSION].scheduler(log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """xdist: a worker knows its tests."""
    node.config.stash[SESSION].worker_collected(ids)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001
    """xdist: a worker has ended."""
    node.config.stash[SESSION].worker_done(getattr(node, "workeroutput", None) or {})


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """An empty body may be parametrized over the marker's arguments."""
    declare_overrides(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, object, object]:
    """Check the markers as soon as the tests exist."""
    nodes = yield
    collector.config.stash[SESSION].attach(nodes)
    return nodes


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file's mistakes are its collection error."""
    report = yield
    collector.config.stash[SESSION].fail_collection(report)
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Perf tests run only when asked for."""
    config.stash[SESSION].select(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Count what is left to run."""
    try:
        session.config.stash[SESSION].collected(session.items)
    except R1PerfError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """SIGTERM ends perf tests as Ctrl-C does; with ``--perf-plan`` nothing runs."""
    session.config.stash[SESSION].show_plan(session)
    with session.config.stash[SESSION].stoppable():
        return (yield)


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """A line about deselected perf tests, and one about what is resumed."""
    session = config.stash[SESSION]
    return [line for line in (session.deselected_line(), session.resume_line()) if line is not None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A perf test is run once, whatever --reruns says."""
    item.config.stash[SESSION].forbid_reruns(item)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A perf test gets its run before its fixtures."""
    item.config.stash[SESSION].start(item)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Measure, body, verdict: all in the call phase."""
    return (yield from pyfuncitem.config.stash[SESSION].call(pyfuncitem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Results travel on the test's report."""
    report = yield
    item.config.stash[SESSION].report(item, report)
    return report


@pytest.fixture
def perf_result(request: pytest.FixtureRequest) -> PerfResult:
    """Everything measured for this test's own marker: samples, verdict, versions. See docs/fixtures.md."""
    from pytest_r1perf.lab import perf_result_of

    return perf_result_of(request)


@pytest.fixture
def perf_lab(request: pytest.FixtureRequest) -> PerfLab:
    """Measure several cells in one test and compare them. See docs/fixtures.md."""
    from pytest_r1perf.lab import perf_lab_of

    return perf_lab_of(request)


@pytest.fixture
def antipatterns(request: pytest.FixtureRequest) -> AntiPatterns:
    """The anti-pattern rules, and those that this test's cell is an instance of. See docs/antipatterns.md."""
    from pytest_r1perf.evidence import antipatterns_of

    return antipatterns_of(request)


@pytest.fixture
def load_evidence(request: pytest.FixtureRequest) -> LoadEvidence:
    """Conclude from pairs of cells; a conclusion from low loads only is xfailed. See docs/antipatterns.md."""
    from pytest_r1perf.evidence import load_evidence_of

    return load_evidence_of(request)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nodes of a batch system are given back."""
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.close()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Baselines, the end of the record, the exit status."""
    session.config.stash[SESSION].finish(session, exitstatus)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """The table."""
    session = config.stash[SESSION]
    if not session.has_summary:
        return
    from pytest_r1perf.report.terminal import write_summary

    write_summary(terminalreporter, session, interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
