"""What this machine has, and what is missing of what the stages need; exit status 1 where something is.

python check.py      with the variables of ``scripts/h200.sh``
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from project import model_of
from settings import chosen

NEEDED = ("pytest", "yaml", "filelock", "tabulate", "psutil", "packaging", "click", "scipy", "requests")
OF_GPUS = ("pynvml",)
NAMES = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py"}
ASKED = (
    "index,name,uuid,driver_version,memory.total,memory.used,clocks.max.sm,power.limit,persistence_mode,"
    "mig.mode.current"
)


def main() -> int:
    """Print a line each; 1 where something is missing."""
    sizes = chosen()
    missing = []
    print(f"host       {platform.node()}, kernel {platform.release()}, {os.cpu_count()} CPUs, {_memory()}")
    print(f"disk       {shutil.disk_usage(os.environ['H200_WORK']).free >> 30} GiB free")
    print(f"python     {platform.python_version()} ({sys.executable})")
    for module in NEEDED + (() if sizes.platform == "cpu" else OF_GPUS):
        name = NAMES.get(module, module)
        try:
            importlib.import_module(module)
            print(f"{name:<10} {importlib.metadata.version(name)}")
        except ImportError as error:
            missing.append(name)
            print(f"{name:<10} MISSING ({error})")
    if sizes.platform == "cpu":
        return _end(missing)
    print(_said(["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]))
    print(_said(["nvidia-smi", "topo", "-m"]))
    site = os.environ.get("H200_SITE")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = "import sglang, torch; print(sglang.__version__, torch.__version__, torch.cuda.device_count())"
    answer = _said([os.environ["H200_SGLANG"], "-c", asked], {**env, **({"PYTHONPATH": site} if site else {})})
    print(f"sglang     {answer} (sglang, torch, GPUs)")
    if not answer[:1].isdigit():
        missing.append("sglang")
    for path in model_of(Path(os.environ["H200_WORK"])):
        there = Path(path).exists()
        print(f"input      {path}{'' if there else ': MISSING'}")
        missing += [] if there else [path]
    return _end(missing)


def _end(missing: list[str]) -> int:
    print(f"missing    {', '.join(missing) or 'nothing'}")
    return 1 if missing else 0


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB"


def _said(command: list[str], env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    lines = done.stdout.strip() or (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return lines if done.returncode == 0 else f"{command[0]}: {lines.splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(main())
