"""Read the resolved arguments out of SGLang's ``server_args=`` log line.

Two shapes exist: ``server_args=ServerArgs(a=1, b='x')`` up to 0.5.18 and ``server_args={'a': 1, 'b': 'x'}``
from 0.5.19 on. Both are Python reprs, but not always Python: enum members (``<Foo.BAR: 1>``), ``inf`` and
nested records (``CudaGraphConfig(decode=PhaseConfig(...))``) are in them, so the line is cut into values
first and each value is read on its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# `Engine(server_args=server_args)` is a frame of every traceback, hence the bracket.
MARKER = re.compile(r"server_args=(ServerArgs\(|\{)")

_CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


def parse_server_args(line: str) -> dict[str, object]:
    """The arguments in ``line`` as a dict, empty when it has none.

    A value is what ``ast.literal_eval`` makes of it, else its text. A line that was cut short gives the
    arguments before the cut. Never raises.
    """
    found = MARKER.search(line)
    if found is None:
        return {}
    separator = "=" if found[1] == "ServerArgs(" else ":"
    args: dict[str, object] = {}
    for item in _split(line, found.end()):
        key_text, sep, value_text = _partition(item, separator)
        if not sep:
            continue
        key = key_text.strip() if separator == "=" else _literal(key_text)
        if isinstance(key, str) and (separator == ":" or _NAME.match(key)):
            args[key] = _literal(value_text)
    return args


def _literal(text: str) -> object:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _split(text: str, start: int) -> Iterator[str]:
    """The comma-separated items from ``start`` to the bracket that closes the list.

    An item that the end of the text cut in two is not given: half a number reads as another number.
    """
    begin = start
    for at, depth in _scan(text, start):
        if depth < 0 or (depth == 0 and text[at] == ","):
            if text[begin:at].strip():
                yield text[begin:at]
            begin = at + 1
        if depth < 0:
            return


def _partition(item: str, separator: str) -> tuple[str, str, str]:
    """``item`` at its first ``separator`` outside quotes and brackets."""
    for at, depth in _scan(item, 0):
        if depth == 0 and item[at] == separator:
            return item[:at], separator, item[at + 1 :]
    return item, "", ""


def _scan(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Each position outside strings with its bracket depth, -1 at the bracket that closes the whole."""
    stack: list[str] = []
    quote = ""
    at = start
    fresh = True  # at the start of a value: only there is '<' a bracket and not a comparison or an arrow
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote, fresh = char, False
        elif char in "([{" or (char == "<" and (fresh or (stack and stack[-1] == ">"))):
            stack.append(_CLOSER[char])
            fresh = True
        elif char in ")]}" or (char == ">" and stack and stack[-1] == ">"):
            while stack:  # a '<' that was never closed must not swallow the bracket around it
                if stack.pop() == char:
                    break
            else:
                yield at, -1
                return
        else:
            yield at, len(stack)
            if not char.isspace():
                fresh = char in ",=:"
        at += 1
