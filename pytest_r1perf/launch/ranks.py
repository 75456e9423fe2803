"""From what each rank runs to the local processes that stand for them, and back to what happened there."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pytest_r1perf.childenv import compose
from pytest_r1perf.gpu.occupancy import ALLOWED_S, IDLE_BYTES, IDLE_SHARE
from pytest_r1perf.launch import reap
from pytest_r1perf.launch.bundle import agent_argv, payload
from pytest_r1perf.launch.client import Client
from pytest_r1perf.launch.launcher import Allocation, RankCommand
from pytest_r1perf.launch.mark import RunMark, marked_environment
from pytest_r1perf.launch.wire import PREFIX, frame, pack_command, packed, sifted, unpacked, unpacked_env

_OF_THIS_HOST = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_AGENT_LATER_S = 60.0
"""The agent's own timeout comes so much after ours: it is for a node that cannot be reached any more."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank's agent said, and in ``text`` what else was on standard error: ssh's or srun's own words.

    ``returncode``: the command's own, negative for a signal; ``None`` when the agent never said how it ended.
    ``ended_by``: as ``Exit.ended_by``, or ``lifeline``, ``output closed``, or a signal's name, when the agent
    was told to end it. ``files``: what was fetched. ``problems``: sentences, one of them when GPUs were not free and
    the command was not started. ``env``: the variables that can change a measurement, as the command had them there,
    whoever set them (``childenv.recorded``).
    """

    text: str
    host: str = ""
    returncode: int | None = None
    ended_by: str | None = None
    survivors: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unclosed: tuple[str, ...] = ()
    log_full: bool = False
    problems: tuple[str, ...] = ()
    reaped: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def started(self) -> bool:
        """Whether the agent came as far as to start the command."""
        return bool(self.host)


def log_name(rank: int) -> str:
    """The file that a rank's output goes to."""
    return "log.txt" if rank == 0 else f"log-rank{rank}.txt"


def errors_name(rank: int) -> str:
    """The file for what the local command (ssh, srun) and the agent say."""
    return f"launch-rank{rank}.txt"


def clients_for(
    allocation: Allocation,
    commands: Sequence[RankCommand],
    *,
    python: str,
    session: str,
    mark: RunMark,
    folder: Path,
    timeout_s: float,
    state_dir: str | None = None,
    grace_s: float = reap.GRACE_S,
    gpu_wait_s: float = ALLOWED_S,
) -> tuple[Client, ...]:
    """A client for each command, in the order of ranks; logs and errors go to ``folder``.

    ``python``: an interpreter of 3.10 or later on every node, used where the allocation is remote.
    ``timeout_s``: that of ``supervise``. ``state_dir``: for records there; the lease directory's default if
    ``None``. ``gpu_wait_s``: how long GPUs of another host may take to be free, before the command is started there.
    """
    clients = []
    for command in sorted(commands, key=lambda one: one.rank):
        log = folder / log_name(command.rank)
        if not allocation.remote:
            env = {**command.env, **marked_environment(mark)}
            clients.append(Client(command.rank, command.argv, env, Path(command.cwd), log, closers=command.closers))
            continue
        spec = {
            "kind": "run",
            "command": pack_command(command),
            "session": session,
            "timeout_s": timeout_s + _AGENT_LATER_S,
            "idle": {"wait_s": gpu_wait_s, "bytes": IDLE_BYTES, "share": IDLE_SHARE},
            "grace_s": grace_s,
            "state_dir": None if state_dir is None else packed(state_dir),
        }
        errors = folder / errors_name(command.rank)
        clients.append(connected(allocation, command.rank, python, spec, mark, log_path=log, errors_path=errors))
    return tuple(clients)


def connected(
    allocation: Allocation,
    rank: int,
    python: str,
    spec: dict[str, Any],
    mark: RunMark,
    *,
    log_path: Path,
    errors_path: Path,
) -> Client:
    """The client of an agent on the node of ``rank``."""
    (node,) = (node for node in allocation.nodes if node.rank == rank)
    return Client(
        rank,
        allocation.connect(node, agent_argv(python)),
        {**_without_ours(compose({})), **marked_environment(mark)},
        errors_path.parent,
        log_path,
        errors_path,
        payload(spec),
    )


def _without_ours(env: Mapping[str, str]) -> dict[str, str]:
    """Srun and mpiexec hand on what they have: this host's GPUs and tuning mean nothing on another."""
    return {name: value for name, value in env.items() if name not in _OF_THIS_HOST}


def told(errors_path: Path, folder: Path | None = None) -> Told:
    """Read what the agent and its connection said; fetched files are put into ``folder``.

    The file is written anew without what was fetched, for people.
    """
    try:
        text = errors_path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Told("")
    events, rest = sifted(text)
    host, ended, files, problems, reaped = "", dict[str, Any](), [], [], []
    env: dict[str, str] = {}
    for event in events:
        match event["event"]:
            case "started":
                host = str(event["host"])
                env = unpacked_env(event.get("env", {}))
            case "ended":
                ended = event
            case "problem" | "dirty":
                problems.append(str(event["sentence"]))
            case "reaped":
                reaped.append(str(event["sentence"]))
            case "file" if folder is not None and "base64" in event:
                try:
                    files.append(_received(event, folder))
                except (OSError, ValueError, KeyError) as error:
                    problems.append(f"the file {event.get('name')!r} from {host or 'there'} was lost: {error}")
    if files:
        with contextlib.suppress(OSError):
            errors_path.write_text(_without_content(text), encoding="utf-8")
    return Told(
        rest,
        host,
        ended.get("returncode"),
        ended.get("ended_by"),
        tuple(ended.get("survivors", ())),
        tuple(ended.get("left", ())),
        tuple(ended.get("unclosed", ())),
        bool(ended.get("log_full")),
        tuple(problems),
        tuple(reaped),
        tuple(files),
        env,
    )


def _received(event: dict[str, Any], folder: Path) -> Path:
    name = PurePath(unpacked(event["name"]))
    if name.is_absolute() or ".." in name.parts:
        raise ValueError("its name leads out of the folder")
    content = base64.b64decode(event["base64"], validate=True)
    if len(content) != event["size"]:
        raise ValueError(f"{len(content)} of {event['size']} bytes came")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _without_content(text: str) -> str:
    lines = []
    for line in text.splitlines():
        before, prefix, _ = line.partition(PREFIX)
        events, _rest = sifted(line[len(before) :]) if prefix else ([], "")
        if events and events[0].pop("base64", None) is not None:
            event = events[0].pop("event")
            line = before + frame(event, **events[0]).decode("ascii").rstrip()
        lines.append(line + "\n")
    return "".join(lines)
