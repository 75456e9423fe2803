"""``r1perf doctor``: is this host ready to measure? One file a group of checks; it only looks, and ends nothing.

Checks are functions of what was seen (:class:`~pytest_r1perf.nodeinfo.NodeInfo`) and of the platform, so that they can
be asked about other hosts too; those that can only look at this host say so.
"""

from __future__ import annotations

from pytest_r1perf.doctor.check import Check, Status
from pytest_r1perf.doctor.host import node_checks

__all__ = ["Check", "Status", "node_checks"]
