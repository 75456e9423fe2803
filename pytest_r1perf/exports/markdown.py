"""A summary in GitHub's Markdown, for a pull request's comment and $GITHUB_STEP_SUMMARY: 65,000 characters at most."""

from __future__ import annotations

from pytest_r1perf.report.markdown import summary as text

__all__ = ["text"]
