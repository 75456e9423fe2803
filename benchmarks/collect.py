"""What collection costs: 10,000 parametrized perf tests against the same file without the plugin.

python benchmarks/collect.py [PAIRS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pairs import time_pairs

_TESTS = """
import pytest

@pytest.mark.parametrize("n", range(1, 10_001))
@pytest.mark.perf(topology="tp1")
def test_cell(n):
    pass
"""
_INI = "[pytest]\nmarkers =\n    perf: stands for the plugin's own\n"


def main(pairs: int) -> None:
    """Print the medians and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "test_many.py").write_text(_TESTS, encoding="utf-8")
        (root / "pytest.ini").write_text(_INI, encoding="utf-8")
        others = ["-p", "no:randomly", "-p", "no:xdist", "-p", "no:cov", "-p", "no:hypothesispytest"]
        base = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *others, "test_many.py"]
        result = time_pairs([*base, "--perf"], [*base, "-p", "no:r1perf"], cwd=root, pairs=pairs)
        print(result.report(("with the plugin", "without")))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
