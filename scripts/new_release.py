"""Prints the newest SGLang that pip would install, where it is newer than the pinned one.

Nothing is printed where there is none; exit status 1 where pip gives no answer. ``--pin FILE`` has the pinned release.
With pip and not an index's own interface: yanked and pre-releases are left out, and a site's mirror is asked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

_PIN = Path(__file__).parent / "sglang.version"
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)+(\.?post[0-9]+)?")
"""What a release may look like that goes on a command line and into a branch's name."""


def newest(project: str) -> str:
    """The version that pip would take; :class:`SystemExit` with a sentence where it gives none."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    command += ["--no-input", "--disable-pip-version-check", "--only-binary", ":all:", "--report", "-", project]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        version = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise SystemExit(f"new_release.py: pip does not say which {project} is the newest: {last}") from None
    except (subprocess.TimeoutExpired, ValueError, LookupError) as error:
        raise SystemExit(f"new_release.py: pip's answer about {project} is not usable: {error!r}") from None
    if not isinstance(version, str) or not _PLAIN.fullmatch(version):
        raise SystemExit(f"new_release.py: pip names {project} {version!r}, which is no release's version")
    return version


def main() -> None:
    """Compare with the pin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pin", type=Path, default=_PIN)
    parser.add_argument("--project", default="sglang")
    given = parser.parse_args()
    text = given.pin.read_text(encoding="utf-8").strip()
    try:
        pinned = Version(text)
    except InvalidVersion:
        raise SystemExit(f"new_release.py: {given.pin} holds {text!r}, which is no version") from None
    found = newest(given.project)
    if Version(found) > pinned:
        print(found)


if __name__ == "__main__":
    main()
