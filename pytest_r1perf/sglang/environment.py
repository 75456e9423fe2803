"""An SGLang environment: a Python with SGLang in it, asked about itself; SGLang is never imported here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from pytest_r1perf import jsoncache
from pytest_r1perf.errors import EnvironmentBroken
from pytest_r1perf.place import LocalPlace, Place, PlaceBroken

if TYPE_CHECKING:
    from pytest_r1perf.sglang.options import OptionTable

OLDEST = Version("0.4.3")
"""Older releases have no comparable offline benchmark (reference: sglang-compat, 0.4.3.post2 to 0.5.23)."""

_PROBE = Path(__file__).parent / "scripts" / "probe.py"
_OFFLINE = ("sglang.benchmark.offline_throughput", "sglang.bench_offline_throughput")
"""The second name is gone from 0.5.21; where both are, it is a shim that warns (0.5.15 to 0.5.20)."""


@dataclass(frozen=True)
class SglangEnvironment:
    """A place, the versions of the packages that decide its speed, its benchmark modules and server options.

    ``versions``: of sglang, sglang-kernel or sgl-kernel, flashinfer, torch, cuda, NCCL, transformers, triton,
    DeepGEMM and Python, as far as they are installed. ``raw_options`` is SGLang's own parser, option by option.
    """

    place: Place
    versions: Mapping[str, str]
    modules: tuple[str, ...]
    raw_options: tuple[Mapping[str, Any], ...]

    @property
    def python(self) -> str:
        """The interpreter's path on its host."""
        return self.place.python

    @property
    def version(self) -> str:
        """SGLang's own version."""
        return self.versions["sglang"]

    @property
    def offline_module(self) -> str:
        """The module of the offline throughput benchmark."""
        return next(name for name in _OFFLINE if name in self.modules)

    @cached_property
    def options(self) -> OptionTable:
        """The server options that this SGLang accepts."""
        from pytest_r1perf.sglang.options import from_probe

        return from_probe(self.version, [dict(option) for option in self.raw_options])


def interpreter_of(path: str | os.PathLike[str]) -> Path:
    """The Python on this host that a user's ``--sglang PATH`` means: an interpreter, or a virtual environment.

    The path isn't resolved: a virtual environment's ``bin/python`` is a link, and its place is its meaning.
    """
    given = Path(path).expanduser().absolute()
    if given.is_dir():
        inside = given / "bin" / "python"
        if not inside.exists():
            raise EnvironmentBroken(
                f"--sglang {given}: this folder has no bin/python: name a virtual environment or an interpreter"
            )
        return inside
    if not given.exists():
        raise EnvironmentBroken(
            f"--sglang {given}: does not exist: name a virtual environment or an interpreter "
            f"(`r1perf rig install` makes one for the cpu platform)"
        )
    if not os.access(given, os.X_OK):
        raise EnvironmentBroken(f"--sglang {given}: is not executable: name a Python interpreter")
    return given


def local_place(path: str | os.PathLike[str]) -> LocalPlace:
    """The place of :func:`interpreter_of`."""
    python = interpreter_of(path)
    return LocalPlace(str(python), f"--sglang {python}")


def probe(place: Place, env: Mapping[str, str], *, cache: Path, timeout_s: float = 300) -> SglangEnvironment:
    """Ask the interpreter what it has, in the environment that the benchmark will get.

    The options come from SGLang's own parser, which takes seconds: they are kept in ``cache`` by interpreter,
    package versions and the stamp of the file that declares them. Raises :class:`EnvironmentBroken` with one
    sentence: not a Python, no SGLang, too old, no benchmark, or an SGLang that doesn't import.
    """
    answer = _ask(place, [], env, timeout_s)
    versions = answer["versions"]
    _refuse_unusable(place, versions, answer.get("modules", []))
    script = _PROBE.read_text(encoding="utf-8")
    entry = jsoncache.entry(cache, place.label, place.python, versions, answer.get("stamp"), script)
    options = jsoncache.read(entry)
    if not isinstance(options, list) or not options:
        full = _ask(place, ["options"], env, timeout_s)
        if "options" not in full:
            raise EnvironmentBroken(
                f"{place.label}: sglang {versions['sglang']} cannot be imported ({_one_line(full.get('error', ''))}): "
                f"mend that installation, or name another"
            )
        options = full["options"]
        jsoncache.write(entry, options)
    return SglangEnvironment(place, versions, tuple(answer["modules"]), tuple(options))


def _ask(place: Place, arguments: list[str], env: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    try:
        said = place.script(_PROBE, arguments, env=env, timeout_s=timeout_s)
        answer: dict[str, Any] = said.json()
        _ = answer["versions"]["python"]
    except PlaceBroken as error:
        raise EnvironmentBroken(f"{place.label}: is no working Python ({error})") from None
    except (ValueError, KeyError, TypeError):
        raise EnvironmentBroken(f"{place.label}: is no working Python ({said.last_words})") from None
    return answer


def _refuse_unusable(place: Place, versions: Mapping[str, str], modules: list[str]) -> None:
    if "sglang" not in versions:
        raise EnvironmentBroken(
            f"{place.label}: Python {versions['python']} has no sglang: install it there, or name another"
        )
    try:
        too_old = Version(versions["sglang"]) < OLDEST
    except InvalidVersion:
        too_old = False  # a build from a checkout; its own parser is the judge
    if too_old:
        raise EnvironmentBroken(
            f"{place.label}: sglang {versions['sglang']} is older than {OLDEST}, the first that is supported"
        )
    if not set(_OFFLINE) & set(modules):
        raise EnvironmentBroken(f"{place.label}: sglang {versions['sglang']} has no offline throughput benchmark in it")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
