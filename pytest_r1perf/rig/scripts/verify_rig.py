"""Run by ``rig install`` with the rig's Python: import what a benchmark imports; write the versions to argv[1].

Importing the scheduler and every model module, as an engine does at its start, also leaves their byte code behind.
"""

import argparse
import importlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

# Sibling scripts must not shadow packages.
sys.path.pop(0)

import sglang
from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)

for module in (
    "sglang.bench_offline_throughput",
    "sglang.bench_serving",
    "sglang.launch_server",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang.srt.models.deepseek_v2",
):
    importlib.import_module(module)

versions = {
    "sglang": sglang.__version__,
    "torch": version("torch"),
    "transformers": version("transformers"),
    "python": platform.python_version(),
}
Path(sys.argv[1]).write_text(json.dumps(versions), encoding="utf-8")
