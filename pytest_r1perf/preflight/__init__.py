"""Preflight: what is wrong with a cell before anything is started. Rules give findings; nothing is measured."""

from __future__ import annotations

from pytest_r1perf.preflight.check import check, findings_of
from pytest_r1perf.preflight.finding import Finding, Severity

__all__ = ["Finding", "Severity", "check", "findings_of"]
