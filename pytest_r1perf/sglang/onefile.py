"""A script that runs on another host as one file: what it shares with others stands in it as text."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def one_file(script: str, **texts: str) -> str:
    """The script's source, with the text of another script for each empty constant: ``TELLING="telling.py"``.

    Raises ValueError where the script has no such constant, or has it twice.
    """
    source = (SCRIPTS / script).read_text(encoding="utf-8")
    for constant, name in texts.items():
        empty = f'\n{constant} = ""\n'
        if source.count(empty) != 1:
            raise ValueError(f"{script} has {source.count(empty)} constants {constant} to be filled in, not one")
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        source = source.replace(empty, f"\n{constant} = {text!r}\n")
    return source
