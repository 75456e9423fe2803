"""What pytest and an agent on another node say to each other.

To the agent goes one JSON text, on its standard input. From it come lines on its standard error,
``r1perf-agent: {"event": ..., ...}``, between whatever ssh or srun say there themselves; its standard output
is the command's.

Standard library only: a copy of this runs on the other node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pytest_r1perf.launch.launcher import Closer, RankCommand

PREFIX = "r1perf-agent: "


def telemetry_name(rank: int) -> str:
    """The file of what a rank's GPUs did, as it comes from another node."""
    return f"telemetry-rank{rank}.jsonl"


def packed(text: str) -> str:
    """The bytes that ``text`` is for the kernel, one character each: they survive another encoding there."""
    return os.fsencode(text).decode("latin-1")


def unpacked(text: str) -> str:
    """What :func:`packed` took, as text on this side."""
    return os.fsdecode(text.encode("latin-1"))


def pack_command(command: RankCommand) -> dict[str, Any]:
    """For JSON."""
    return {
        "rank": command.rank,
        "argv": [packed(item) for item in command.argv],
        "env": packed_env(command.env),
        "cwd": packed(command.cwd),
        "fetch": [packed(name) for name in command.fetch],
        "closers": [
            {"argv": [packed(item) for item in one.argv], "env": packed_env(one.env), "gone": one.gone}
            for one in command.closers
        ],
        "gpus": list(command.gpus),
    }


def unpack_command(data: Mapping[str, Any]) -> RankCommand:
    """What :func:`pack_command` took."""
    return RankCommand(
        int(data["rank"]),
        tuple(unpacked(item) for item in data["argv"]),
        unpacked_env(data["env"]),
        unpacked(data["cwd"]),
        tuple(unpacked(name) for name in data["fetch"]),
        tuple(
            Closer(tuple(unpacked(item) for item in one["argv"]), unpacked_env(one["env"]), one["gone"])
            for one in data["closers"]
        ),
        tuple(data["gpus"]),
    )


def packed_env(env: Mapping[str, str]) -> dict[str, str]:
    """Names and values, each as :func:`packed`."""
    return {packed(name): packed(value) for name, value in env.items()}


def unpacked_env(env: Mapping[str, str]) -> dict[str, str]:
    """What :func:`packed_env` took."""
    return {unpacked(name): unpacked(value) for name, value in env.items()}


def frame(event: str, **fields: Any) -> bytes:
    """One line of the agent's."""
    return (PREFIX + json.dumps({"event": event, **fields}) + "\n").encode("ascii")


def sifted(text: str) -> tuple[list[dict[str, Any]], str]:
    """The agent's events among what else was said on standard error, and that rest.

    A frame may begin in the middle of a line, after words that were not ended with one. One that was torn
    belongs to the rest.
    """
    events: list[dict[str, Any]] = []
    rest: list[str] = []
    for line in text.splitlines():
        before, prefix, body = line.partition(PREFIX)
        event = _event(body) if prefix else None
        if event is None:
            rest.append(line)
            continue
        events.append(event)
        if before.strip():
            rest.append(before)
    return events, "\n".join(rest).strip()


def _event(body: str) -> dict[str, Any] | None:
    try:
        event = json.loads(body)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
