"""Keeps ``--sglang PATH`` from moving pytest's rootdir.

pytest looks for its rootdir and ini file before any plugin has told it its options. The value of an option that it
doesn't know yet looks like a test path then: ``pytest --sglang /opt/sglang`` would take ``/opt/sglang`` for the
rootdir, and leave the project's ini file, baselines and output directory aside. ``--sglang=/opt/sglang`` is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

_TAKES_A_PATH = ("--sglang", "--perf-out", "--perf-json", "--perf-html", "--perf-markdown")


def joined(args: Sequence[str]) -> list[str]:
    """The arguments with ``--sglang PATH`` as ``--sglang=PATH``, where PATH is there to be mistaken.

    >>> joined(["-q", "--perf-out", "/", "--sglang", "/no/such"])
    ['-q', '--perf-out=/', '--sglang', '/no/such']
    """
    result: list[str] = []
    words = iter(args)
    for word in words:
        value = next(words, None) if word in _TAKES_A_PATH else None
        if value is None:
            result.append(word)
        elif Path(value).exists():
            result.append(f"{word}={value}")
        else:
            result += [word, value]
    return result


def run_with_joined(config: pytest.Config) -> int | None:
    """Run pytest anew with the joined arguments, before this one is configured; ``None`` where nothing is to mend."""
    args = [str(arg) for arg in config.invocation_params.args]
    mended = joined(args)
    if mended == args:
        return None
    return int(pytest.main(mended, plugins=list(config.invocation_params.plugins or ())))
