"""Samples the workloads of all cells beforehand, several at a time, into the cache that the plugin reads.

python sample.py PROJECT      each takes a start of Python with SGLang in it, which pytest would do one by one
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from settings import chosen

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.childenv import compose
from pytest_r1perf.marker import DEFAULT_WORKLOAD
from pytest_r1perf.platform import expand
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.environment import local_place, probe
from pytest_r1perf.sglang.sampling import look_at, sample


def main(project: Path) -> None:
    """One process a load, half as many at a time as there are cores."""
    sizes = chosen()
    catalog = load_catalog([project / "r1perf.yaml"])
    platform, workload = catalog.platform(sizes.platform), catalog.workload(DEFAULT_WORKLOAD)
    env = compose(platform.env)
    python = expand(platform.sglang or "python3", what="sglang", home=home())
    environment = probe(local_place(python), env, cache=home() / "probes")
    model = expand(platform.model_path, what="model_path", home=home())
    dataset = expand(platform.datasets[workload.dataset], what="datasets", home=home())
    given = look_at(environment, model, dataset, env)

    def one(n: int) -> str:
        found = sample(workload, n, environment=environment, given=given, cache=home() / "workloads", env=env)
        return f"n={n}: {found.total_input_tokens} input and {found.total_output_tokens} output tokens"

    loads = dict.fromkeys((sizes.offline_n, sizes.ablation_n, *sizes.loads, *sizes.noise_loads))
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for line in pool.map(one, loads):
            print(line, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
