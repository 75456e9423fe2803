"""Ship ourselves to another node: the sources of the launch package and what is to be done there.

``agent_argv(python)`` is all that a remote command line ever holds: the interpreter's path and a constant
without single quotes, dollars, backslashes, exclamation marks or newlines, which survives any login shell.
What is to run travels in the ``payload``, on standard input.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent.parent

_SOURCES = (
    "errors",
    "childenv",
    "devices",
    *(
        f"launch/{name}"
        for name in (
            *("proc", "mark", "record", "launcher", "closing", "reap", "guard", "guarded", "shield", "held"),
            *("client", "crew", "logfile", "process", "wire", "smi", "smiwatch", "agent"),
        )
    ),
)

_BOOTSTRAP = (
    "import sys, json, zlib, base64; v = sys.version_info; "
    "v >= (3, 10) or sys.exit("
    '"r1perf-agent: " + json.dumps(dict(event="problem", sentence='
    '"the Python there is %d.%d, and 3.10 or later is needed: give the path of another one" % v[:2]))); '
    "i = sys.stdin.buffer; p = json.loads(zlib.decompress(base64.b64decode(i.read(int(i.readline()))))); "
    'exec(p["start"], dict(payload=p))'
)
"""Runs on any Python from 3.4 on, which is where ``-I`` came."""

_START = """
import json, os, shutil, sys, tempfile
sys.dont_write_bytecode = True
home = None
try:
    home = tempfile.mkdtemp(prefix="r1perf-agent-")
    for name, source in payload["modules"].items():
        path = os.path.join(home, name + ".py")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
    sys.path.insert(0, home)
    from pytest_r1perf.launch.agent import main
    sys.exit(main(payload["spec"], home))
except OSError as error:
    sentence = f"the agent broke off there: {error}; is there room in {home or tempfile.gettempdir()}?"
    sys.exit("r1perf-agent: " + json.dumps({"event": "problem", "sentence": sentence}))
finally:
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)
"""


def agent_argv(python: str) -> tuple[str, ...]:
    """The command that becomes the agent, once :func:`payload` is written to it.

    Isolated (``-I``): no ``PYTHONPATH``, no user site, and no ``json.py`` of the login directory.
    """
    return (python, "-I", "-u", "-c", _BOOTSTRAP)


def payload(spec: Mapping[str, Any]) -> bytes:
    """A line with the length of what follows, and then modules and ``spec``: JSON, packed, as ASCII.

    Packed it fits into a pipe (64 KiB on Linux): MPICH's mpiexec gives up on a program that has not begun to
    read when the pipe is full ("process reading stdin too slowly; can't keep up", seen with 4.0).
    """
    text = json.dumps({"modules": _modules(), "start": _START, "spec": spec})
    packed = base64.b64encode(zlib.compress(text.encode("ascii"), 9))
    return b"%d\n%s" % (len(packed), packed)


@functools.cache
def _modules() -> dict[str, str]:
    """Path below the agent's folder, without ``.py``: source. The packages themselves are empty there."""
    sources = {f"pytest_r1perf/{name}": _PACKAGE / f"{name}.py" for name in _SOURCES}
    sources["filelock"] = _PACKAGE / "launch" / "flock.py"
    modules = {name: path.read_text(encoding="utf-8") for name, path in sources.items()}
    return {"pytest_r1perf/__init__": "", "pytest_r1perf/launch/__init__": "", **modules}
