"""Metrics where less is better, for benchmark-action/github-action-benchmark with ``tool: customSmallerIsBetter``."""

from __future__ import annotations

from pytest_r1perf.document.model import Document
from pytest_r1perf.exports.github_action_benchmark import entries


def text(document: Document) -> str:
    """The whole file, as :mod:`pytest_r1perf.exports.github_action_benchmark` says."""
    return entries(document, better=-1)
