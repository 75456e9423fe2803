"""Makes the pytest project that the stages run in: ``r1perf.yaml`` for this host, the cells, and what is laid over.

python project.py FOLDER      with the variables of ``scripts/h200.sh``
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from settings import Settings, chosen

HERE = Path(__file__).parent
OURS = "ours: scripts/h200.sh"


def model_of(work: Path) -> tuple[str, str]:
    """The model's folder and the data set: named, or made by ``make_slice.py``."""
    made = work / "models"
    return (
        os.environ.get("R1_SLICE") or str(made / "r1-slice"),
        os.environ.get("SHAREGPT") or str(made / "sharegpt-like.json"),
    )


def platform(sizes: Settings, work: Path) -> dict[str, Any]:
    """What of the platform is this host's, or this measurement's."""
    common: dict[str, Any] = {
        "error_rate": {"per_night": 0.05, "suite_size": len(sizes.loads), "source": f"{OURS}: as many judged cells"},
        "engine": {"windows": sizes.windows, "source": OURS},
    }
    if sizes.platform == "cpu":
        return common
    model, dataset = model_of(work)
    site = os.environ.get("H200_SITE")
    return {
        **common,
        "model_path": model,
        "datasets": {"sharegpt": dataset},
        "sglang": os.environ["H200_SGLANG"],
        "flags": sizes.flags,
        "env": {**sizes.env, **({"PYTHONPATH": site} if site else {})},
        "timeout_s": {"value": 300, "source": f"{OURS}: the first process on a machine took 130 s"},
        "noise": {
            "run_cv": 0.06,
            "runs": 5,
            "session_cv": 0.03,
            "sessions": 5,
            "source": (
                f"{OURS}, provisional: on one H200 single windows differed by 8 to 12 %, means of three by about 6 % "
                f"(docs/measurements.md); to be replaced by what this measures"
            ),
        },
    }


def make(folder: Path) -> None:
    """Write all files; what is there already is replaced, sessions and baselines are left alone."""
    sizes = chosen()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -ra --color=no\nmarkers =\n    xdist_group: tests of one engine\n", encoding="utf-8"
    )
    shutil.copy(HERE / "suite.py", folder / "test_h200.py")
    shutil.copy(HERE / "suite_two.py", folder / "test_two.py")
    shutil.copy(HERE / "settings.py", folder / "settings.py")
    own = platform(sizes, folder.parent)
    slow = {"flags": {"max_running_requests": sizes.slow_requests}}
    # An environment's folder is its interpreter's own there, not the platform's.
    versions = {"env": {"PYTHONPATH": ""}} if "PYTHONPATH" in own.get("env", {}) else {}
    # An entry of the package's own extends the package's, not this file's: both are given what is this host's.
    _write(folder / "r1perf.yaml", {"platforms": dict.fromkeys((sizes.platform, sizes.two_platform), own)})
    _write(folder / "slow.yaml", {"platforms": {sizes.platform: slow}})
    _write(folder / "versions.yaml", {"platforms": {sizes.platform: versions}})
    _write(folder / "two.yaml", two(sizes))


def two(sizes: Settings) -> dict[str, Any]:
    """Layouts of two GPUs; one of them takes the host for two nodes."""
    source = f"{OURS}: two GPUs of one host"
    topologies = {
        "pp2-here": {"tp_size": 1, "pp_size": 2, "source": f"{source}, one process tree"},
        "pp2-ranks": {"tp_size": 1, "pp_size": 2, "nnodes": 2, "source": f"{source} as two local nodes"},
        "tp2-ep2": {"tp_size": 2, "ep_size": 2, "reference": "tp2", "source": f"{source}, an anti-pattern"},
    }
    if sizes.platform == "cpu":
        return {"topologies": topologies}
    ranks = {"nodes": 2, "source": f"{source}; two nodes are two ranks of it"}
    return {"topologies": topologies, "platforms": {sizes.two_platform: ranks}}


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(data, sort_keys=False, width=100), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
