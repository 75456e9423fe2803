"""The greedy driver's command line, and what it wrote: answers, or the sentence that says why they are none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.outputs.agreement import Answers, Tokens

DRIVER = Path(__file__).parent / "scripts" / "greedy_driver.py"

WRITTEN = b"r1perf-greedy: written"
"""The line that the driver prints when only the engine's end is left."""


class BadAnswers(R1PerfError):
    """What the driver wrote is not what was asked for."""


def greedy_command(
    python: str,
    model_path: str,
    server_arguments: Sequence[str],
    *,
    prompts: Sequence[str],
    max_new_tokens: int,
    digest: str,
    result: str,
) -> tuple[str, ...]:
    """The argv that answers the prompts twice; ``server_arguments`` are translated already.

    The driver's text travels on the command line, as other hosts and containers don't have this package.
    ``result`` is relative to the working directory.
    """
    request = {"prompts": list(prompts), "max_new_tokens": max_new_tokens, "digest": digest, "result": result}
    source = DRIVER.read_text(encoding="utf-8")
    return (python, "-c", source, json.dumps(request), "--model-path", model_path, *server_arguments)


def shown_command(argv: Sequence[str]) -> tuple[str, ...]:
    """The same for a person: the driver as a file instead of its text."""
    return (argv[0], str(DRIVER), *argv[3:])


def read_answers(path: Path, *, prompts: int, max_new_tokens: int, digest: str) -> Answers | None:
    """What the driver wrote; ``None`` when it wrote nothing.

    Raises :class:`BadAnswers` for anything else than one line with every answer whole.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadAnswers(f"{path.name} of the greedy answers cannot be read ({error})") from None
    if not lines:
        return None
    if len(lines) > 1:
        raise BadAnswers(f"{path.name} has {len(lines)} results of greedy answers, and one process writes one")
    try:
        data = json.loads(lines[0])
    except (ValueError, RecursionError):
        raise BadAnswers(f"{path.name} of the greedy answers is cut short or no JSON: {lines[0][:80]!r}") from None
    if not isinstance(data, dict):
        raise BadAnswers(f"{path.name} of the greedy answers is no JSON object: {lines[0][:80]!r}")
    if data.get("prompts") != digest:
        raise BadAnswers(f"the driver answered prompt set {data.get('prompts')!r}, and {digest!r} was asked")
    passes = data.get("passes")
    if not isinstance(passes, list) or len(passes) != 2:
        raise BadAnswers("the driver did not answer the prompts twice")
    first, second = (_sequences(one, f"pass {number}", prompts) for number, one in enumerate(passes, 1))
    for number, answer in enumerate((*first, *second)):
        if len(answer) != max_new_tokens:
            raise BadAnswers(
                f"the answer to prompt {number % prompts + 1} in pass {number // prompts + 1} has {len(answer)} "
                f"tokens, and {max_new_tokens} were asked for"
            )
    return Answers(
        prompts=digest,
        first=first,
        second=second,
        input_ids=None if data.get("input_ids") is None else _sequences(data["input_ids"], "the prompts", prompts),
        dtype=_text(data, "dtype"),
        load_format=_text(data, "load_format"),
        quantization=None if data.get("quantization") is None else str(data["quantization"]),
        versions={name: str(one) for name, one in _mapping(data, "versions").items() if one is not None},
        texts={int(token): str(one) for token, one in _mapping(data, "tokens").items() if token.isdecimal()},
    )


def _sequences(value: Any, what: str, count: int) -> tuple[Tokens, ...]:
    if not isinstance(value, list) or len(value) != count:
        found = len(value) if isinstance(value, list) else "no list"
        raise BadAnswers(f"{what}: {found} sequences of tokens, and {count} prompts were asked")
    for one in value:
        if not isinstance(one, list) or not all(type(token) is int and token >= 0 for token in one):
            raise BadAnswers(f"{what}: not a list of token numbers: {str(one)[:80]}")
    return tuple(tuple(one) for one in value)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise BadAnswers(f"{key} of the greedy answers is {value!r}, and a text is needed")
    return value


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise BadAnswers(f"{key} of the greedy answers is {str(value)[:80]}, and a mapping is needed")
    return value
