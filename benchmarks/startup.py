"""What a plain ``pytest`` of an unrelated project pays for having the plugin installed.

python benchmarks/startup.py [PAIRS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pairs import time_pairs


def main(pairs: int) -> None:
    """Print the medians and the difference."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
        base = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cov", "test_one.py"]
        result = time_pairs(base, [*base, "-p", "no:r1perf"], cwd=root, pairs=pairs)
        print(result.report(("with the plugin", "without")))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
