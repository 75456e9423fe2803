"""The errors a person can act on.

Each message is one sentence that names the thing, the value, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable


class R1PerfError(Exception):
    """A mistake of the user's or of the host's: shown as one sentence, never as a traceback."""


class DataError(R1PerfError):
    """A YAML file (topology, platform, recipe, workload, rule, baseline) that is refused.

    The message starts with ``file:line`` and names the key.
    """


class EnvironmentBroken(R1PerfError):
    """The SGLang environment cannot be used: no SGLang in it, too old, or not a Python at all."""


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """``"did you mean 'pp2'? (known: pp2, tp8)"``: the nearest of ``known``, then all of them."""
    import difflib  # a mistake may take its time, a plain pytest may not

    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}(known: {', '.join(names) or 'none'})"
