"""One object owns the run: it selects tests, measures them, keeps the results, and merges xdist workers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.grouping import SHARED, Upcoming, group_by_engine, send_groups_together
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.options import PerfOptions, Update
from pytest_r1perf.selection import FLOOR_PLATFORM, SPEC, Checker, named_by_id, select

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog
    from pytest_r1perf.cell import Cell
    from pytest_r1perf.hardware import Hardware
    from pytest_r1perf.platform import Platform
    from pytest_r1perf.records import SessionFolder
    from pytest_r1perf.results import CellResult
    from pytest_r1perf.runner import Runner
    from pytest_r1perf.site import Site
    from pytest_r1perf.sites import Sites
    from pytest_r1perf.testrun import TestRun  # noqa: F401 (in a quoted annotation)

RUN = pytest.StashKey["TestRun"]()
"""The run of a perf test, from its set-up on."""

_PROPERTY = "r1perf"
"""Attribute of a test report that carries results from a worker."""


class PerfSession:
    """What the hooks of ``plugin.py`` delegate to; one in pytest itself, and one in each xdist worker."""

    def __init__(self, config: pytest.Config, options: PerfOptions) -> None:
        self.config = config
        self.options = options
        self.results: list[CellResult] = []
        self.selected = 0
        self.deselected = 0
        self.updated: list[Path] = []
        self.errors: list[str] = []
        self._checker = Checker(lambda: self.catalog)
        self._folder: SessionFolder | None = None
        self._specs: list[PerfSpec] = []
        self._unused: list[str] | None = None
        self._sites: Sites | None = None
        self._upcoming = Upcoming()
        self._planned_refusals = False
        worker = getattr(config, "workerinput", None)
        self.worker: str | None = worker["workerid"] if worker is not None else None
        self._given: dict[str, Any] = worker.get("r1perf", {}) if worker is not None else {}

    # -- nouns ---------------------------------------------------------------------------------------------

    @cached_property
    def catalog(self) -> Catalog:
        """The package's data and the user's."""
        from pytest_r1perf.catalog import USER_FILE, load_catalog

        own = self.config.rootpath / USER_FILE
        catalog = load_catalog([*([own] if own.is_file() else []), *self.options.data])
        if self.options.deployment:
            from pytest_r1perf.deployment import deployed_catalog

            return deployed_catalog(catalog)
        return catalog

    def _hardware_of(self, platform: str) -> Hardware | None:
        """This host's hardware of a platform's kind, if it can be told."""
        from pytest_r1perf.hardware import hardware_for

        try:
            return hardware_for(is_cpu=self.catalog.platform(platform).is_cpu)
        except R1PerfError:
            return None

    @property
    def folder(self) -> SessionFolder:
        """This session's folder of records and logs, made when first needed."""
        from pytest_r1perf.records import begin

        if self._folder is None:
            folder = self._planned
            begin(folder, self.worker or "main")
            self._folder = folder
        return self._folder

    @cached_property
    def _planned(self) -> SessionFolder:
        """Where the folder is or will be: the same for every worker."""
        from pytest_r1perf.records import SessionFolder, plan_session

        if "folder" in self._given:
            return SessionFolder(Path(self._given["folder"]))
        return plan_session(self.options.out, resume=self.options.resume)

    # -- collection ----------------------------------------------------------------------------------------

    def _engine_key(self, spec: PerfSpec) -> str | None:
        """What tests of one engine or server share; the catalog is read only where a test asks for one."""
        if spec.mode not in SHARED:
            return None
        from pytest_r1perf.grouping import engine_keys
        from pytest_r1perf.runner import DEFAULT_PLATFORM

        def platform_of(spec: PerfSpec) -> Platform:
            return self.catalog.platform(self.options.platform or spec.platform or DEFAULT_PLATFORM)

        return engine_keys(platform_of, self.catalog)(spec)

    def check_names(self) -> None:
        """Refuse wrong data files and unknown names of options before anything is collected."""
        _ = self.catalog
        send_groups_together(self.config)
        for name in self.options.topologies:
            self.catalog.topology(name)
        if self.options.platform is not None:
            self.catalog.platform(self.options.platform)
        for given in (self.options.sglang_old, self.options.sglang):
            if given is not None:
                from pytest_r1perf.runner import check_here

                check_here(given, self.catalog, self.options.platform)
        if self.options.reports and not self.only_looks:
            from pytest_r1perf.document.output import refuse_unwritable

            refuse_unwritable(self.options.reports)
        if not self.only_looks:
            _ = self.folder

    def attach(self, nodes: object) -> None:
        """Check the markers of freshly made nodes."""
        if isinstance(nodes, (pytest.Item, pytest.Collector)):
            self._checker.attach([nodes])
        elif isinstance(nodes, list):
            self._checker.attach(nodes)

    def fail_collection(self, report: pytest.CollectReport) -> None:
        """Mistakes in a file's markers are its collection error."""
        self._checker.fail_collection(report)

    def select(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for; tell pytest of the rest."""
        kept, dropped = select(items, self.options, named_by_id(self.config))
        group_by_engine(kept, self._engine_key)
        items[:] = kept
        if dropped:
            self.config.hook.pytest_deselected(items=dropped)
        self.deselected = sum(SPEC in item.stash for item in dropped)
        self._specs = [item.stash[SPEC] for item in (*kept, *dropped) if SPEC in item.stash]

    def collected(self, items: list[pytest.Item]) -> None:
        """What is left to run when every plugin has deselected its part (``-k``, ``-m``, ``--lf``)."""
        self.selected = sum(SPEC in item.stash for item in items)
        if self.selected:
            self._upcoming.collected(items)
        if self.selected and self.worker is None and not self.only_looks:
            _ = self.folder

    def resume_line(self) -> str | None:
        """What ``--perf-resume`` found."""
        if not self.options.resume or not self.selected or self._folder is None:
            return None
        if self.has_samples:
            return f"r1perf: going on with session {self._folder.name}"
        return "r1perf: nothing to resume: the newest session ended by itself, still runs, or is from before a restart"

    def deselected_line(self) -> str | None:
        """What a plain ``pytest`` says of the perf tests that it left out."""
        if not self.deselected or self.options.selects:
            return None
        tests = "1 perf test" if self.deselected == 1 else f"{self.deselected} perf tests"
        return f"r1perf: {tests} deselected (run with -m perf, --perf or --topology NAME)"

    def show_plan(self, session: pytest.Session) -> None:
        """Print what would be run, where that was asked for, and let pytest run nothing."""
        if not self.options.plan:
            return
        import tempfile

        from pytest_r1perf.planning import Planner
        from pytest_r1perf.records import SessionFolder
        from pytest_r1perf.report.plan import render
        from pytest_r1perf.testrun import LAB_FIXTURE

        if self.distributes:
            raise pytest.UsageError("--perf-plan runs nothing, so nothing is distributed: leave -n out")
        # Not the session's own folder: a plan leaves no trace that --perf-resume would take for a session.
        with tempfile.TemporaryDirectory(prefix="r1perf-plan-") as scratch:
            planner = Planner(self._runner(SessionFolder(Path(scratch))), self.options.out)
            try:
                plans = [
                    planner.plan(item.nodeid, item.stash[SPEC], lab=LAB_FIXTURE in getattr(item, "fixturenames", ()))
                    for item in session.items
                    if SPEC in item.stash
                ]
            except R1PerfError as error:
                raise pytest.UsageError(str(error)) from None
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write(render(plans, reporter._tw.fullwidth))
        self._planned_refusals = any(plan.refused for plan in plans)
        self.config.option.collectonly = True

    # -- running -------------------------------------------------------------------------------------------

    def forbid_reruns(self, item: pytest.Item) -> None:
        """Keep pytest-rerunfailures away from a perf test: a measurement is never retried until it passes."""
        if SPEC in item.stash and self.config.pluginmanager.hasplugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=0), append=False)

    def start(self, item: pytest.Item) -> None:
        """Give a perf test its run before its fixtures are made."""
        spec = item.stash.get(SPEC, None)
        if spec is not None:
            from pytest_r1perf.testrun import TestRun

            self._upcoming.begun(item)
            floor_platform = getattr(getattr(item, "module", None), FLOOR_PLATFORM, None)
            try:
                item.stash[RUN] = TestRun(item, spec, self.assessor, self.options, floor_platform)
            except R1PerfError as error:
                pytest.fail(str(error), pytrace=False)

    def stoppable(self) -> contextlib.AbstractContextManager[None]:
        """Where SIGTERM is to act as Ctrl-C: while perf tests may run, here or in our workers."""
        if not (self.selected or self.options.selects):
            return contextlib.nullcontext()
        from pytest_r1perf.launch.stop import sigterm_as_interrupt

        return sigterm_as_interrupt()

    def call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure, then the body, then the verdict; see :class:`TestRun`."""
        run = item.stash.get(RUN, None)
        if run is None:
            return (yield)
        run.before_body()
        try:
            result = yield
        except BaseException as error:
            run.after_body(error)
            raise
        run.after_body(None)
        return result

    def report(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Put a test's results on its report: they travel to the controller with it."""
        run = item.stash.get(RUN, None)
        if run is None or report.when != "call":
            return
        run.finish(report)
        setattr(report, _PROPERTY, [result.as_dict() for result in run.results])

    @cached_property
    def assessor(self) -> Any:
        """The one that measures and judges, made when the first perf test runs."""
        from pytest_r1perf.assess import Assessor
        from pytest_r1perf.gitcommit import commit_of

        return Assessor(self._runner(self.folder), commit_of(self.config.rootpath))

    def _runner(self, folder: SessionFolder) -> Runner:
        """What gets nodes and environments and runs rounds, with its records and logs in ``folder``."""
        from pytest_r1perf.devices import lease_directory
        from pytest_r1perf.gpuwatch import GpuWatch
        from pytest_r1perf.modes import SessionModes
        from pytest_r1perf.recorder import Recorder
        from pytest_r1perf.runner import Runner
        from pytest_r1perf.site import Session
        from pytest_r1perf.sites import Sites

        modes = SessionModes(
            folder=folder.path,
            watch=lambda uuids: GpuWatch(self.nvml, uuids, self.progress.line),
            show=self.progress.show,
            options=self.options,
            gpu_of=self.catalog.gpu_of,
        )

        def started() -> Session:
            configured = self.options.lease_dir
            return Session(folder.name, lease_directory(configured), folder.path, configured)

        recorder = Recorder(folder, self.worker or "main")
        self._sites = Sites(started, self.progress.line)
        return Runner(self.options, self.catalog, recorder, self._sites, self._lease, modes, self._upcoming)

    @cached_property
    def nvml(self) -> Any:
        """The driver's library, opened when GPUs are first measured on; or why it can't be."""
        from pytest_r1perf.gpu.nvml import open_nvml

        return open_nvml()

    @cached_property
    def progress(self) -> Any:
        """Live progress: a bar on a terminal, a line now and then elsewhere, nothing in a worker."""
        from pytest_r1perf.report.progress import Progress

        return Progress(self.config, enabled=self.worker is None)

    @contextlib.contextmanager
    def _lease(self, site: Site, cell: Cell, nodeid: str) -> Iterator[None]:
        """The devices of a cell, for as long as it is measured."""
        from pytest_r1perf.leasing import leased

        with leased(site, cell, nodeid, waiting=self.progress.waiting, tell=self.progress.line):
            try:
                yield
            finally:
                self.progress.clear()

    def close(self) -> None:
        """Give back what was got from a batch system."""
        if self._sites is not None:
            self._sites.close()

    # -- merging and ending --------------------------------------------------------------------------------

    def configure_worker(self, workerinput: dict[str, Any]) -> None:
        """Tell a worker which session it belongs to."""
        workerinput["r1perf"] = {"folder": str(self._planned.path)}

    def scheduler(self, log: Any) -> object:
        """How xdist distributes: by groups where perf tests are selected, else as it does by itself."""
        if not self.options.selects or self.config.getvalue("dist") != "loadgroup":
            return None
        from pytest_r1perf.xdistgroups import WholeGroups

        return WholeGroups(self.config, log)

    def worker_collected(self, ids: list[str]) -> None:
        """Know what is selected before any worker ends: an interrupted session has a table too."""
        if self.options.selects:
            self.selected = len(ids)

    def worker_done(self, workeroutput: dict[str, Any]) -> None:
        """Take over a worker's counts; every worker collects the same."""
        counts = workeroutput.get("r1perf")
        if counts is not None:
            self.selected, self.deselected = counts["selected"], counts["deselected"]
            # Of other hosts' baselines each worker knows those on whose hardware it measured.
            self._unused = sorted({*(self._unused or []), *counts["unused"]})

    def take(self, report: pytest.TestReport) -> None:
        """A finished test's results, from here or from a worker."""
        carried = getattr(report, _PROPERTY, None)
        if carried:  # an ordinary test must not pay for the imports
            from pytest_r1perf.results import result_from

            self.results += [result_from(data) for data in carried]

    def finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write baselines, close the record, and let a session that decided nothing exit non-zero."""
        if self.worker is not None:
            output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]
            output["r1perf"] = {
                "selected": self.selected,
                "deselected": self.deselected,
                "unused": self.unused() if self.selected else [],
            }
            return
        if self.options.update is not Update.NO:
            self._store_baselines(session)
        if (self.undecided or self._planned_refusals or self.suite_regressed) and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        begun = (self._folder is not None or self.selected) and self._planned.path.is_dir()
        ended = begun and exitstatus != pytest.ExitCode.INTERRUPTED
        if ended:
            from pytest_r1perf.results import verdict_line

            self._record(*(verdict_line(result) for result in self.results))
        if begun and self.options.reports and not self.only_looks:
            self._write_reports(session)
        if ended:  # last, since a report that can't be written changes the status
            self._record({"kind": "end", "exitstatus": int(session.exitstatus)})

    def _record(self, *lines: Mapping[str, Any]) -> None:
        from pytest_r1perf.records import append

        with contextlib.suppress(OSError):
            for line in lines:
                append(self._planned, "main", line)

    @property
    def undecided(self) -> bool:
        """Whether cells were selected and none was decided: never a green that measured nothing."""
        asked = self.selected > 0 and not self.only_looks
        compares = self.options.sglang_old is not None
        return asked and not any(
            result.verdict.decided
            and not (result.quarantined and result.verdict.fails)
            and (result.side_by_side or not compares)
            for result in self.results
        )

    @property
    def suite_regressed(self) -> bool:
        """Whether a new environment is surely slower over the suite, even if no cell by itself is."""
        if self.options.sglang_old is None or not self.results:
            return False
        from pytest_r1perf.suite import suite_ratio

        suite = suite_ratio(self.results)
        return suite is not None and suite.regressed

    @property
    def has_summary(self) -> bool:
        """Whether there is anything to say at the end; a session without perf tests must not pay for it."""
        ran = (self.selected or self.results) and not self.only_looks
        return self.worker is None and bool(ran or (self.deselected and self.distributes))

    @property
    def only_looks(self) -> bool:
        """Whether nothing is run: ``--collect-only``, ``--perf-plan``."""
        return bool(self.config.option.collectonly or self.options.plan)

    @property
    def distributes(self) -> bool:
        """Whether the tests run in xdist workers."""
        return self.config.pluginmanager.has_plugin("dsession")

    @property
    def has_samples(self) -> bool:
        """Whether any round of this session has been written down."""
        from pytest_r1perf.records import lines

        return any(line.get("kind") == "sample" for line in lines(self._planned))

    def _store_baselines(self, session: pytest.Session) -> None:
        from pytest_r1perf.storing import store_baselines

        self.updated, self.errors = store_baselines(
            self.results,
            self.options.baselines,
            only_missing=self.options.update is Update.NEW,
        )
        if self.errors:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_reports(self, session: pytest.Session) -> None:
        """The files that were asked for; one that can't be written is an error of the session."""
        from pytest_r1perf.document.live import session_document
        from pytest_r1perf.document.output import write

        errors = write(session_document(self, int(session.exitstatus)), self.options.reports)
        if errors:
            self.errors += errors
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def unused(self) -> list[str]:
        """Baseline entries of this hardware that no collected test means; only when everything was collected."""
        from pytest_r1perf.unused import unused_entries

        if self._unused is not None:  # a worker has collected, and looked
            return self._unused
        arguments = self.config.args
        everything = arguments in ([str(self.config.rootpath)], self.config.getini("testpaths"))
        narrowed = any(self.config.getoption(name, None) for name in ("lf", "ignore", "ignore_glob", "deselect"))
        if not everything or narrowed:
            return []
        return unused_entries(self._specs, self.results, self.options, self.catalog, self._hardware_of)
