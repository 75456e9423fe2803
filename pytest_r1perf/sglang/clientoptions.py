"""The serving clients of an SGLang environment: which module each is, and which options it takes, asked from itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_r1perf import jsoncache
from pytest_r1perf.errors import EnvironmentBroken
from pytest_r1perf.place import Place, PlaceBroken
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.options import OptionTable, from_probe

_SCRIPT = Path(__file__).parent / "scripts" / "client_options.py"


class ClientKind(Enum):
    """SGLang's two clients of a running server; the value is the modules that each has been, newest first.

    ``bench_one_batch_server`` moved in 0.5.14, ``bench_serving`` in 0.5.15; where both modules are, the old one is a
    shim that warns.
    """

    ONE_BATCH = ("sglang.benchmark.one_batch_server", "sglang.bench_one_batch_server")
    SERVING = ("sglang.benchmark.serving", "sglang.bench_serving")

    @property
    def title(self) -> str:
        """The name by which SGLang's users know it."""
        return self.value[-1].removeprefix("sglang.")


@dataclass(frozen=True, slots=True)
class Client:
    """One client of one SGLang release: the module to run, and all options that it takes.

    ``bench_one_batch_server`` takes the server's options as well, so its table holds them.
    """

    kind: ClientKind
    module: str
    options: OptionTable

    @property
    def name(self) -> str:
        """For sentences: ``bench_serving of SGLang 0.5.9``."""
        return f"{self.kind.title} of SGLang {self.options.version}"


def ask_client(
    environment: SglangEnvironment, kind: ClientKind, env: Mapping[str, str], *, cache: Path, timeout_s: float = 300
) -> Client:
    """Ask the environment for a client's options, in the environment variables that the client will get.

    Building its parser takes seconds: what it says is kept in ``cache`` by interpreter, package versions and the stamp
    of the client's file. Raises :class:`EnvironmentBroken` with one sentence where it has no such client, or one that
    cannot be imported.
    """
    place = environment.place
    module = next((name for name in kind.value if name in environment.modules), None)
    if module is None:
        raise EnvironmentBroken(
            f"{place.label}: sglang {environment.version} has no {kind.title} in it: mend that installation, or name "
            f"another"
        )
    script = _SCRIPT.read_text(encoding="utf-8")
    stamp = _ask(place, ["stamp", module], env, timeout_s).get("stamp")
    entry = jsoncache.entry(cache, place.label, place.python, dict(environment.versions), module, stamp, script)
    options = jsoncache.read(entry)
    if not isinstance(options, list) or not options:
        said = _ask(place, ["options", module], env, timeout_s)
        if "options" not in said:
            why = " ".join(str(said.get("error", "")).split())[:300]
            raise EnvironmentBroken(
                f"{place.label}: {module} of sglang {environment.version} cannot be run ({why}): mend that "
                f"installation, or name another"
            )
        options = said["options"]
        jsoncache.write(entry, options)
    return Client(kind, module, from_probe(environment.version, options))


def _ask(place: Place, arguments: list[str], env: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    try:
        said = place.script(_SCRIPT, arguments, env=env, timeout_s=timeout_s)
        answer = said.json()
        if not isinstance(answer, dict):
            raise TypeError
        return answer
    except PlaceBroken as error:
        raise EnvironmentBroken(f"{place.label}: is no working Python ({error})") from None
    except (ValueError, TypeError):
        raise EnvironmentBroken(f"{place.label}: {arguments[1]} could not be asked ({said.last_words})") from None
