"""Makes tests/recorded/sglang-options.json from a folder with one dump of options a release (0.5.9.json, ...).

    python -m tests.tools.compact_options FOLDER

A dump is what the probe prints: a list of {opts, dest, default, choices, nargs, action, type}. An option that
stays the same over a run of releases is one line with the run's first and last release.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

TARGET = Path(__file__).parents[1] / "recorded" / "sglang-options.json"


def compact(dumps: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The releases in their order, the lists of choices, and the options as runs."""
    releases = sorted(dumps, key=Version)
    choices: list[list[str]] = []
    runs: dict[str, list[int]] = {}
    options: list[list[Any]] = []
    for at, release in enumerate(releases):
        for entry in dumps[release]:
            fields = [entry[key] for key in ("opts", "dest", "default", "choices", "nargs", "action", "type")]
            fields[3] = fields[3] or None  # an empty list is left by a module that the dump had no real copy of
            if fields[3] is not None:
                if fields[3] not in choices:
                    choices.append(fields[3])
                fields[3] = choices.index(fields[3])
            run = runs.get(json.dumps(fields))
            if run is not None and run[1] == at - 1:
                run[1] = at
            else:
                run = runs[json.dumps(fields)] = [at, at]
                options.append([run, fields])
    options.sort(key=lambda row: (row[1][0], row[0][0]))
    return {
        "fields": ["first", "last", "opts", "dest", "default", "choices", "nargs", "action", "type"],
        "releases": releases,
        "choices": choices,
        "options": [[releases[run[0]], releases[run[1]], *fields] for run, fields in options],
    }


def main() -> None:
    """Write the table, one choice list and one run a line."""
    dumps = {path.stem: json.loads(path.read_text()) for path in Path(sys.argv[1]).glob("*.json")}
    table = compact(dumps)
    text = ["{"]
    for key in ("fields", "releases"):
        text.append(f'"{key}": {json.dumps(table[key])},')
    for key in ("choices", "options"):
        rows = ",\n".join(json.dumps(row) for row in table[key])
        text.append(f'"{key}": [\n{rows}\n]' + ("," if key == "choices" else ""))
    TARGET.write_text("\n".join([*text, "}"]) + "\n")


if __name__ == "__main__":
    main()
