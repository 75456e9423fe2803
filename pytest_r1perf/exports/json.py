"""Everything, by the JSON Schema of the package (``r1perf report --schema``)."""

from __future__ import annotations

from pytest_r1perf.document.file import as_json as text

__all__ = ["text"]
