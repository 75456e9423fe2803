"""Which SGLang releases there are, and which of them lie between two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from pytest_r1perf.datafile import read_yaml
from pytest_r1perf.errors import R1PerfError

RELEASES_FILE = Path(__file__).parents[1] / "data" / "releases.yaml"


def known_releases(path: Path = RELEASES_FILE) -> tuple[str, ...]:
    """The releases of ``data/releases.yaml``, the oldest first."""
    data = read_yaml(path)
    data.text("source")
    found = data.texts("releases")
    data.done()
    return found


def candidates(good: str, bad: str, *, versions: Sequence[str] = ()) -> tuple[str, ...]:
    """From ``good`` to ``bad``: the part of ``versions`` between them, in its order, or all known releases there.

    An end that is not listed is put at its place. Raises :class:`R1PerfError` when the ends are the same, in the
    wrong order or no versions, or when a version is listed twice.
    """
    if good == bad:
        raise R1PerfError(f"--good and --bad are both {good!r}: there is nothing between them")
    if versions:
        return between(good, bad, versions)
    first, last = _version(good, "--good"), _version(bad, "--bad")
    if first >= last:
        raise R1PerfError(
            f"--good {good} is not older than --bad {bad}: bisect looks for what made a newer release slower; "
            "for another order name the --versions"
        )
    return (good, *(name for name in known_releases() if first < Version(name) < last), bad)


def between(good: str, bad: str, names: Sequence[str]) -> tuple[str, ...]:
    """The part of an ordered list from ``good`` to ``bad``; an end that is not in it is put at its end."""
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise R1PerfError(f"{twice!r} is listed twice: name each version once, from the good end to the bad one")
    whole = [*([] if good in names else [good]), *names, *([] if bad in names else [bad])]
    low, high = whole.index(good), whole.index(bad)
    if low > high:
        raise R1PerfError(f"{bad!r} (bad) comes before {good!r} (good) in the list: list them from good to bad")
    return tuple(whole[low : high + 1])


def _version(text: str, option: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise R1PerfError(
            f"{option} {text!r} is not a release of SGLang (like 0.5.12): name a release, or give the list with "
            "--versions or --env"
        ) from None
