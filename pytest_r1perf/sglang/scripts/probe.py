"""Runs inside the SGLang environment: prints, as JSON, which packages and benchmark modules it has.

Only reads metadata: importing SGLang takes seconds and may need a GPU.
"""

import importlib.metadata as metadata
import json
import sys

PACKAGES = (
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "flashinfer-python",
    "torch",
    "transformers",
    "triton",
    "xgrammar",
    "deep-gemm",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
MODULES = {
    "sglang.benchmark.offline_throughput": "sglang/benchmark/offline_throughput.py",
    "sglang.bench_offline_throughput": "sglang/bench_offline_throughput.py",
}


def main() -> None:
    """Print one JSON object on standard output."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    modules = []
    if "sglang" in versions:
        files = metadata.distribution("sglang")
        modules = [name for name, path in MODULES.items() if files.locate_file(path).exists()]  # type: ignore[attr-defined]
    print(json.dumps({"versions": versions, "modules": modules}))


main()
