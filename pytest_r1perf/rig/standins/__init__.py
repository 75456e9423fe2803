"""Stand-ins: what the real SGLang asks for at import and a CPU without AMX cannot have.

``rig install`` copies this folder into the rig's ``site-packages`` as ``r1perf_standins`` beside a one-line
``.pth`` that calls `install` at every Python start, so spawned scheduler processes get it too. Nothing heavy is
imported here: only a finder is put on ``sys.meta_path``.

Absent packages (`sgl_kernel`, `triton`, `datasets`) get modules whose names can be imported and never used: a call
raises NotImplementedError with the name. A real package of that name, if it is installed, always wins.
Some real modules get an addition when they are imported: `torchvision_ops`, `mla_dispatch` and `collector`.
"""

from __future__ import annotations

import sys

from . import collector, datasets, mla_dispatch, sgl_kernel, torchvision_ops, triton
from .finder import AbsentFinder, AbsentPackage, AdditionFinder

ABSENT = {
    "sgl_kernel": AbsentPackage(sgl_kernel.make),
    "triton": AbsentPackage(triton.make, lacks=triton.LACKS),
    "datasets": AbsentPackage(datasets.make),
}

ADDITIONS = {
    "torchvision": torchvision_ops.defined,
    **dict.fromkeys(mla_dispatch.REGISTRY_MODULES, mla_dispatch.registered),
    **dict.fromkeys(collector.SLOW_MODULES, collector.paused),
}


def install() -> None:
    """Put the two finders on ``sys.meta_path``, once: additions first, absent packages last."""
    if any(isinstance(finder, AbsentFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, AdditionFinder(ADDITIONS))
    sys.meta_path.append(AbsentFinder(ABSENT))
