"""Where the benchmark was up to 0.5.20; the fake has one for both places."""

from __future__ import annotations

from sglang.benchmark.offline_throughput import main

if __name__ == "__main__":
    main()
