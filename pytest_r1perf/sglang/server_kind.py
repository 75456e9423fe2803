"""Which server a sweep talks to: its kind (model, version, arguments) and which start of it, asked over HTTP."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_r1perf.childenv import is_secret
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.server_args import resolved_from_server_info

_PATHS = ("/server_info", "/get_server_info")
"""The second is the name up to 0.5.6, and an alias that warns after it."""

_THIS_START = re.compile(
    r"(?:.*_)?(?:ports?|addrs?|ips?|urls?|host|endpoints?)\Z|random_seed\Z|served_model_name\Z|log_|ssl_|_"
    r"|(?:max_total_num_tokens|max_req_input_len|tokenizer_path|model_path)\Z|crash_dump|numa_node\Z|base_gpu_id\Z"
)
"""What differs between two starts of one command on one host, and the memory that was free then; of paths only the
model's says what is measured, and that one is kept beside the arguments."""

_COMPUTED = "mem_fraction_static"
"""Unless it is stated, SGLang computes it; on a CPU from the memory that is free (two starts of 0.5.20 in a row: 0.769
and 0.807)."""

_LISTED = 4


class ServerGone(R1PerfError):
    """The server does not answer, or not as SGLang does."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server's kind and start.

    ``arguments`` are the resolved ones that say what is measured. ``start`` tells one start of a server from
    another: 12 hexadecimal digits of its random seed, its served name and its start-up times, as far as this release
    tells them.
    """

    model: str
    version: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    start: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the manifest: the kind alone."""
        return {"model": self.model, "version": self.version, "arguments": dict(self.arguments)}


def from_json(data: Mapping[str, Any]) -> Server:
    """A kind as the manifest has it; raises KeyError, TypeError or ValueError where it is none."""
    arguments = data["arguments"]
    if not isinstance(arguments, Mapping):
        raise TypeError("arguments")
    return Server(str(data["model"]), str(data["version"]), {str(k): str(v) for k, v in arguments.items()})


def server_of(info: Mapping[str, Any]) -> Server:
    """From a server's answer to ``/server_info``.

    Raises :class:`ServerGone` where it is not SGLang's: without a model and a version.
    """
    model, version = info.get("model_path"), info.get("version")
    if not isinstance(model, str) or not isinstance(version, str):
        raise ServerGone("it is no SGLang server: its /server_info names no model_path and version")
    arguments = {
        name: _text(value)
        for name, value in sorted(resolved_from_server_info(info).items())
        if value is not None
        and not _THIS_START.match(name)
        and not is_secret(name)
        and not (name == _COMPUTED and _unstated(info))
    }
    told = [info.get(name) for name in ("random_seed", "served_model_name", "startup_time")]
    start = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]
    return Server(model, version, arguments, start)


def read_server(url: str, *, timeout_s: float = 20.0) -> Server:
    """Ask the server at ``url`` who it is; raises :class:`ServerGone` with the reason, without a full stop."""
    import requests

    answer = None
    try:
        asking = requests.Session()
        asking.trust_env = False  # no proxy of ours between a benchmark and its server
        for path in _PATHS:
            answer = asking.get(url.rstrip("/") + path, timeout=timeout_s)
            if answer.status_code != 404:
                break
        assert answer is not None
        if answer.status_code != 200:
            raise ServerGone(f"it answers with status {answer.status_code}")
        info = answer.json()
    except requests.Timeout:
        raise ServerGone(f"it does not answer within {timeout_s:g} s") from None
    except requests.ConnectionError:
        raise ServerGone("nothing answers there") from None
    except requests.JSONDecodeError:
        raise ServerGone("it is no SGLang server: its /server_info is not JSON") from None
    except (requests.RequestException, ValueError) as error:
        raise ServerGone(f"it cannot be asked ({error})") from None
    if not isinstance(info, dict):
        raise ServerGone("it is no SGLang server: its /server_info is no object")
    return server_of(info)


def differences(known: Server, found: Server) -> list[str]:
    """What makes two servers of another kind, each a few words; empty where they are of one kind."""
    changed = [
        f"{what} {old} there, {new} here"
        for what, old, new in (("model", known.model, found.model), ("version", known.version, found.version))
        if old != new
    ]
    if known.version == found.version:  # another release has other arguments as well
        names = sorted(known.arguments.keys() | found.arguments.keys())
        for name in names:
            old, new = known.arguments.get(name, "unset"), found.arguments.get(name, "unset")
            if old != new:
                changed.append(f"{name} {old} there, {new} here")
    more = len(changed) - _LISTED
    return changed[:_LISTED] + ([f"and {more} more"] if more > 0 else [])


def _unstated(info: Mapping[str, Any]) -> bool:
    """Whether SGLang computed it, by the server's own command where the release tells it (0.5.20 does)."""
    command = info.get("launch_command")
    return _COMPUTED.replace("_", "-") not in command if isinstance(command, str) else info.get("device") == "cpu"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=str)
