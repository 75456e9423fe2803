"""Answer JSON lines with one rule: ``python serve.py NAME`` imports ``rule_NAME`` and calls its ``decide``.

A line is a list of requests; the answer is the list of what ``decide`` gives of each.

Runs in the environment of the package that decides, so it imports nothing of this project.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Answer until the input ends; what the package prints goes to stderr."""
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr
    decide = importlib.import_module(f"rule_{sys.argv[1]}").decide
    for line in sys.stdin:
        answers.write(json.dumps([_answer(decide, request) for request in json.loads(line)]) + "\n")
        answers.flush()


def _answer(decide: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return decide(request)
    except Exception as error:  # whatever the package does with bad data is its answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
