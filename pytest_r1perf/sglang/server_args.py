"""Read the resolved arguments out of SGLang's ``server_args=`` log line, or out of its ``/server_info``.

Two shapes of the line exist: ``server_args=ServerArgs(a=1, b='x')`` up to 0.5.18 and ``server_args={'a': 1, 'b': 'x'}``
from 0.5.19 on. Both are Python reprs, but not always Python: enum members (``<Foo.BAR: 1>``), ``inf`` and
nested records (``CudaGraphConfig(decode=PhaseConfig(...))``) are in them, so the line is cut into values
first and each value is read on its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

# `Engine(server_args=server_args)` is a frame of every traceback, hence the bracket.
MARKER = re.compile(r"server_args=(ServerArgs\(|\{)")

_CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_RECORD = re.compile(r"\s*[A-Za-z_][\w.]*\(")
_MAX_DEPTH = 4  # CudaGraphConfig holds PhaseConfigs, and they hold plain values

_NOT_ARGUMENTS = frozenset(
    {"internal_states", "version", "status", "max_req_input_len", "startup_time", "launch_command", "kv_events"}
)
"""What ``/server_info`` adds to the arguments (read in 0.4.3 to 0.5.23, seen in 0.5.9 and 0.5.20).

``max_total_num_tokens`` is added, too, and kept: `resolved.resolved_of` has it from the log.
"""
_RUNNING = "effective_max_running_requests_per_dp"  # 0.5.8+, among the scheduler's own


def parse_server_args(line: str) -> dict[str, object]:
    """The arguments in ``line`` as a dict, empty when it has none.

    A value is what ``ast.literal_eval`` makes of it, else its text. A line that was cut short gives the
    arguments before the cut. Never raises.
    """
    found = MARKER.search(line)
    if found is None:
        return {}
    return _items(line, found.end(), "=" if found[1] == "ServerArgs(" else ":")


def parse_record(text: str, depth: int = 0) -> dict[str, object]:
    """A dataclass's or a dict's repr as a dict, records within it as well; empty for other text. Never raises.

    Up to 0.5.18 the graphs are logged as ``CudaGraphConfig(decode=PhaseConfig(backend='full', ...), ...)``.
    """
    found = _RECORD.match(text)
    if found is None or depth > _MAX_DEPTH:
        value = _literal(text) if text.lstrip().startswith("{") else None
        return value if isinstance(value, dict) else {}
    items = _items(text, found.end(), "=")
    return {
        key: (parse_record(value, depth + 1) or value) if isinstance(value, str) else value
        for key, value in items.items()
    }


def resolved_from_server_info(info: Mapping[str, object]) -> dict[str, object]:
    """The resolved arguments in a server's answer to ``/server_info`` (``/get_server_info`` before 0.5.6.post2).

    Where the launcher's own copy has None, the scheduler's (``internal_states``, DP rank 0) is taken: up to
    0.5.3.post3 it alone knows the attention backend, and page and batch sizes are filled in there.
    """
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    resolved = {
        key: state.get(key) if value is None else value for key, value in info.items() if key not in _NOT_ARGUMENTS
    }
    if _RUNNING in state:
        resolved[_RUNNING] = state[_RUNNING]
    return resolved


def _items(text: str, start: int, separator: str) -> dict[str, object]:
    args: dict[str, object] = {}
    for item in _split(text, start):
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
