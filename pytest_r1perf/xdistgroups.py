"""Whole groups of tests to one xdist worker, and a test that killed its worker is not run again."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class WholeGroups(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no py.typed
    """``--dist loadgroup``, but for what happens when a worker dies.

    xdist 3.8 hands the whole work of a dead worker on, the test that it died in first: a benchmark that takes its
    worker down would be started again and again.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker out; return the test that it was running, which counts as over."""
        workload = self.assigned_work.pop(node)
        open_tests = (test for unit in workload.values() for test, done in unit.items() if not done)
        crashed: str | None = next(open_tests, None)
        if crashed is None:
            return None
        for unit in workload.values():
            if crashed in unit:
                unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed
