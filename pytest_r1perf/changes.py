"""What changed since a baseline was stored: versions, environment, command line, other resolved arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from pytest_r1perf.baseline import Baseline
from pytest_r1perf.measurement import Measurement
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.resolved import differences


def changes_since(
    stored: Baseline | None, measurement: Measurement, host: Mapping[str, str] | None = None
) -> list[str]:
    """What else changed since the baseline, each a line; none of it bars a comparison.

    A flag of the command line is not listed again as the resolved argument of that name. A baseline without resolved
    arguments (an older file) has none of those lines. ``host`` are the settings of the hosts now (driver, clocks, power
    limit, kernel); a baseline without them, and a session of two environments, has no such lines.
    """
    if stored is None:
        return []
    changes: list[str] = []
    for name, now, kept in (
        ("versions", measurement.versions, "versions"),
        ("host", host or {}, "host_settings"),
        ("env", measurement.whole_env, "env"),
    ):
        old = stored.provenance.get(kept)
        if isinstance(old, Mapping):
            keys = [*old, *(key for key in now if key not in old)]
            changes += [
                f"{name}: {key}: {old.get(key, 'absent')} -> {now.get(key, 'absent')}"
                for key in keys
                if old.get(key) != now.get(key)
            ]
    old_flags = _flag_values(str(stored.provenance.get("command", "")))
    new_flags = _flag_values(command_line(measurement))
    changed = [flag for flag in {**old_flags, **new_flags} if old_flags.get(flag) != new_flags.get(flag)]
    changes += [
        f"command: {flag} {old_flags.get(flag, 'absent')} -> {new_flags.get(flag, 'absent')}" for flag in changed
    ]
    resolved = stored.provenance.get("resolved")
    if isinstance(resolved, Mapping):
        said = {flag.removeprefix("--").replace("-", "_") for flag in changed}
        changes += [
            f"resolved: {line}" for line in differences(_without(resolved, said), _without(measurement.resolved, said))
        ]
    return changes


def _without(arguments: Mapping[str, object], names: set[str]) -> dict[str, object]:
    return {name: value for name, value in arguments.items() if name not in names}


def _flag_values(command: str) -> dict[str, str]:
    """``--flag value`` pairs of a command line; a bare switch has the value ``on``."""
    values: dict[str, str] = {}
    flag = ""
    for word in shlex.split(command):
        if word.startswith("--"):
            flag = word
            values[flag] = "on"
        elif flag:
            values[flag] = word
    return values


def command_line(measurement: Measurement) -> str:
    """The command line as it would be elsewhere: no interpreter's and result file's paths, homes abbreviated."""
    words = list(measurement.command[1:])
    if "--result-filename" in words:
        at = words.index("--result-filename")
        del words[at : at + 2]
    homes = ((str(home()), "{r1perf_home}"), (str(Path.home()), "~"))
    for path, short in homes:
        words = [word.replace(path, short) for word in words]
    return shlex.join(["python", *words])
