"""Runs inside the SGLang environment: prints, as JSON, what it has. Standard library only, Python 3.8+.

Without an argument only package metadata and files are looked at, which takes a tenth of a second. With
``options`` SGLang's own parser is built as well (seconds: it imports torch). The parser is only built, never
used: constructing ``ServerArgs`` needs an accelerator from 0.4.4 on, building its parser does not.
"""

import importlib.metadata as metadata
import json
import re
import sys
from typing import Any

PACKAGES = (
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "torch",
    "transformers",
    "triton",
    "xgrammar",
    "deep-gemm",
    "sgl-deep-gemm",
    "deep-ep",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
MODULES = (
    "sglang.benchmark.offline_throughput",
    "sglang.bench_offline_throughput",
    "sglang.benchmark.one_batch_server",
    "sglang.bench_one_batch_server",
    "sglang.benchmark.serving",
    "sglang.bench_serving",
    "sglang.launch_server",
)


def versions() -> "dict[str, str]":
    """Of the packages that decide how fast SGLang is; CUDA's as torch was built for."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "torch" in found:
        text = _text("torch", "torch/version.py")
        for name, key in (("cuda", "cuda"), ("hip", "rocm")):
            match = re.search(r"^%s\b[^=]*= *'([^']+)'" % name, text, re.MULTILINE)  # noqa: UP031
            if match:
                found[key] = match.group(1)
    return found


def modules() -> "list[str]":
    """Which benchmark modules this SGLang has, the newest name first."""
    files = metadata.distribution("sglang")
    return [name for name in MODULES if files.locate_file(name.replace(".", "/") + ".py").exists()]  # type: ignore[attr-defined]


def stamp() -> "list[int]":
    """Size and time of the file with the options: a checkout changes without changing its version."""
    try:
        status = metadata.distribution("sglang").locate_file("sglang/srt/server_args.py").stat()  # type: ignore[attr-defined]
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def options() -> "list[dict[str, Any]]":
    """Every server option as SGLang's own parser has it; defaults as Python writes them, choices as text."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return [
        {
            "opts": list(action.option_strings),
            "dest": action.dest,
            "default": repr(action.default),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "nargs": None if action.nargs is None else str(action.nargs),
            "action": type(action).__name__,
            "type": getattr(action.type, "__name__", None) if action.type is not None else None,
        }
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]


def _text(package: str, path: str) -> str:
    try:
        return str(metadata.distribution(package).locate_file(path).read_text())  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return ""


def main(arguments: "list[str]") -> None:
    """Print one JSON object as the last line of standard output."""
    answer: dict[str, Any] = {"versions": versions()}
    if "sglang" in answer["versions"]:
        answer["modules"] = modules()
        answer["stamp"] = stamp()
        if arguments == ["options"]:
            try:
                answer["options"] = options()
            except Exception as error:  # whatever a broken installation raises, down to a missing library
                answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


main(sys.argv[1:])
