"""Was what NCCL was asked for really chosen? NCCL downgrades a setting without a word (NCCL tuning notes).

    facts = nccl_facts(log)
    for finding in verify({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}, facts):
        print(finding)

The lines that tell are only printed when NCCL is asked for them, one a collective: look in a run of its own, with
:func:`verification_environment`, and not in one whose speed counts. :func:`questions` says whether a cell needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pytest_r1perf.sglang.nccl import ALGORITHMS, PROTOCOLS, NcclFacts, NcclReader, canonical


class Outcome(str, Enum):
    """What became of a setting."""

    CONFIRMED = "confirmed"
    DOWNGRADED = "downgraded"
    NOT_VERIFIABLE = "not verifiable"


@dataclass(frozen=True, slots=True)
class NcclFinding:
    """One setting; ``text`` says what the log shows, or what to set so that it shows it."""

    variable: str
    asked: str
    outcome: Outcome
    text: str

    def __str__(self) -> str:
        return f"{self.variable}={self.asked} {self.outcome.value}: {self.text}"


_OUTPUT_ONLY = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_ALWAYS = ("INIT", "ENV")
_NEEDS = {
    "NCCL_ALGO": "TUNING",
    "NCCL_PROTO": "TUNING",
    "NCCL_IB_HCA": "NET",
    "NCCL_SOCKET_IFNAME": "NET",
    "NCCL_NET_GDR_LEVEL": "NET",
    "NCCL_NET_GDR_READ": "NET",
}


def verification_environment(asked: Mapping[str, str]) -> dict[str, str]:
    """What to add to ``asked`` so that the log shows what became of it; given subsystems are kept.

    Empty when nothing of NCCL's is asked. A given list replaces NCCL's default one (INIT, BOOTSTRAP and ENV;
    src/debug.cc), so INIT and ENV are always named.
    """
    settings = [name for name in asked if name.startswith("NCCL_") and name not in _OUTPUT_ONLY]
    if not settings:
        return {}
    given = [word.strip().upper() for word in asked.get("NCCL_DEBUG_SUBSYS", "").split(",") if word.strip()]
    wanted = dict.fromkeys([*_ALWAYS, *(_NEEDS[name] for name in settings if name in _NEEDS)])
    if "ALL" in given:
        words = ["ALL"]
    elif given and given[0].startswith("^"):  # all but these: a list of names cannot be added to it
        words = list(wanted)
    else:
        words = list(dict.fromkeys([*given, *wanted]))
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": ",".join(words)}


ASKED = "NCCL was asked what it chose, in a process that was thrown away"
"""How the reason of such a process begins."""

_SILENT = ("NCCL_ALGO", "NCCL_PROTO")


def questions(asked: Mapping[str, str]) -> dict[str, str]:
    """The variables of one more process of a cell, thrown away, that shows what became of its algorithm and protocol.

    Empty where none is needed. Why a process of its own: the lines cost time in every collective that is not in a
    CUDA graph, so a round that prints them is no measurement; NCCL's choice depends on its version, the topology, the
    message's size and its variables, and on none of the lines; so what one process shows holds for the next ones of
    the same cell, which run without. What the extra process leaves behind is warm kernel caches, which every cell's
    first process does. Why only for these two: NCCL gives them up without a word (up to 2.23) where it likes another
    choice better. Adapters and sockets are checked before a run (docs/launching.md), and are the same for all cells of
    a platform: a process for each cell would cost more than it tells. A cell that gives ``NCCL_DEBUG`` itself has
    chosen what is told: INFO tells in every round, anything else in none.
    """
    if "NCCL_DEBUG" in asked or not any(asked.get(name) for name in _SILENT):
        return {}
    return verification_environment(asked)


def answer(findings: Sequence[NcclFinding]) -> str:
    """The reason of a process that was thrown away, for the record and for every round after it."""
    return f"{ASKED}: {'; '.join(map(str, findings))}"


def verify(asked: Mapping[str, str], facts: NcclFacts) -> tuple[NcclFinding, ...]:
    """One finding for every NCCL_* setting of ``asked`` but those that only concern the log itself."""
    return tuple(
        NcclFinding(name, value, *_judge(name, value, asked, facts))
        for name, value in sorted(asked.items())
        if name.startswith("NCCL_") and name not in _OUTPUT_ONLY
    )


_Judged = tuple[Outcome, str]


def _judge(name: str, value: str, asked: Mapping[str, str], facts: NcclFacts) -> _Judged:
    refused = next((text for text in facts.warnings if _concerns(text, name, value)), None)
    if refused is not None:
        return Outcome.DOWNGRADED, f"NCCL refused it: {refused}"
    if name in facts.rejected:
        return Outcome.DOWNGRADED, facts.rejected[name]
    judged = _JUDGES[name](value, facts) if name in _JUDGES else None
    if judged is not None:
        return judged
    if _NEEDS.get(name) == "NET" and facts.via and facts.gpu_direct is None:
        return Outcome.NOT_VERIFIABLE, "this log shows no channel between hosts, so there was nothing to choose"
    if facts.env and name not in facts.env:
        return (
            Outcome.NOT_VERIFIABLE,
            f"NCCL names {len(facts.env)} other variables that it read, and not this one: did it reach the processes?",
        )
    if name in facts.env and name not in _JUDGES:
        if _same(facts.env[name], value):
            return Outcome.CONFIRMED, "NCCL read it; the log does not say what came of it"
        return Outcome.DOWNGRADED, f"NCCL read {facts.env[name]!r}"
    return Outcome.NOT_VERIFIABLE, _how(asked, facts)


def _same(read: str, asked: str) -> bool:
    """NCCL prints numbers in decimal, whatever they were given in."""
    try:
        return int(read, 0) == int(asked, 0)
    except ValueError:
        return read.strip() == asked.strip()


def _how(asked: Mapping[str, str], facts: NcclFacts) -> str:
    if asked.get("NCCL_DEBUG_FILE"):
        return f"NCCL writes its lines to {asked['NCCL_DEBUG_FILE']}, not to this log: unset NCCL_DEBUG_FILE"
    add = verification_environment(asked)
    if any(asked.get(key) != text for key, text in add.items()):
        settings = " ".join(f"{key}={text}" for key, text in add.items())
        return f"the log has no line that tells: run once with {settings}"
    if facts.lines == 0:
        return "the log has no line of NCCL's: no communicator was made"
    return "NCCL was asked to tell and did not: nothing of this kind ran (SGLang's own all-reduce uses no NCCL)"


def _concerns(warning: str, name: str, value: str) -> bool:
    if "Unrecognized" in warning or "must have a prefix" in warning:
        return name in ("NCCL_ALGO", "NCCL_PROTO") and f'"{value}"' in warning
    if "no algorithm/protocol available" not in warning or name not in ("NCCL_ALGO", "NCCL_PROTO"):
        return False
    return f"{name} was set to" in warning or "was set to" not in warning  # up to 2.23 it names neither


def _allowed(value: str, names: tuple[str, ...]) -> Callable[[str], set[str]]:
    """Function -> what a setting leaves it: ``ring,tree;allgather:^tree`` (src/graph/tuning.cc, parseList)."""
    everything = {canonical(name) for name in names}

    def members(words: str) -> set[str]:
        negated = words.startswith("^")
        listed = {canonical(word) for word in words.removeprefix("^").split(",") if word}
        return everything - listed if negated else listed

    default = everything
    by_function: dict[str, set[str]] = {}
    for entry in filter(None, value.split(";")):
        function, colon, words = entry.partition(":")
        if colon:
            by_function[function.strip().casefold()] = members(words)
        else:
            default = members(function.strip())

    def allowed(function: str) -> set[str]:
        if not function:  # 2.21 and 2.22 print no function and know no prefixes
            return default.union(*by_function.values())
        return by_function.get(function.casefold(), default)

    return allowed


def _choices(value: str, facts: NcclFacts, names: tuple[str, ...], attribute: str) -> _Judged | None:
    if not facts.choices:
        return None
    allowed = _allowed(value, names)
    total = sum(choice.times for choice in facts.choices)
    wrong = [one for one in facts.choices if canonical(getattr(one, attribute)) not in allowed(one.function)]
    if not wrong:
        return Outcome.CONFIRMED, f"all {total} collectives that the log shows"
    times = sum(choice.times for choice in wrong)
    largest = sorted(wrong, key=lambda choice: -choice.times)[:3]
    return Outcome.DOWNGRADED, f"{times} of {total} collectives ran otherwise: {'; '.join(map(str, largest))}"


def _hca(value: str, facts: NcclFacts) -> _Judged | None:
    if not facts.adapters:
        if any("No device found" in text for text in facts.fallbacks) or facts.networks == ("Socket",):
            return Outcome.DOWNGRADED, f"NCCL found no adapter and uses {' and '.join(facts.networks) or 'sockets'}"
        return None
    if facts.networks and "Socket" in facts.networks:
        return Outcome.DOWNGRADED, "a communicator uses the network Socket, not the adapters"
    negated, exact, wanted = _pattern(value)
    problems = []
    for host, adapters in sorted(facts.adapters.items()):
        used = [adapter.rpartition("/")[0] for adapter in adapters]
        if negated:
            wrong = [name for name in used if any(_matches(name, word, exact) for word in wanted)]
            problems += [f"{host} uses {', '.join(wrong)}"] if wrong else []
        else:
            absent = [word for word in wanted if not any(_matches(name, word, exact) for name in used)]
            problems += [f"{host} has no {', '.join(absent)} (it uses {', '.join(used)})"] if absent else []
    if problems:
        return Outcome.DOWNGRADED, "; ".join(problems)
    return Outcome.CONFIRMED, "; ".join(f"{host}: {', '.join(names)}" for host, names in sorted(facts.adapters.items()))


def _socket(value: str, facts: NcclFacts) -> _Judged | None:
    if not facts.sockets:
        return None
    negated, exact, wanted = _pattern(value)
    for host, names in sorted(facts.sockets.items()):
        wrong = [name for name in names if any(_matches(name, word, exact) for word in wanted) == negated]
        if wrong:
            return Outcome.DOWNGRADED, f"{host} uses {', '.join(wrong)}"
    return Outcome.CONFIRMED, "; ".join(f"{host}: {', '.join(names)}" for host, names in sorted(facts.sockets.items()))


def _gpu_direct(value: str, facts: NcclFacts) -> _Judged | None:
    del value
    if facts.gpu_direct is None:
        return None
    shown = ", ".join(f"{times} channels via {name}" for name, times in facts.via.items() if name.startswith("NET/"))
    return (Outcome.CONFIRMED if facts.gpu_direct else Outcome.DOWNGRADED), shown


def _ib_disable(value: str, facts: NcclFacts) -> _Judged | None:
    if not facts.networks:
        return None
    on = value.strip() in ("", "0")
    shown = f"network {' and '.join(facts.networks)}"
    return (Outcome.CONFIRMED if on != ("Socket" in facts.networks) else Outcome.DOWNGRADED), shown


def _pattern(value: str) -> tuple[bool, bool, list[str]]:
    """(excluded, exact, names) of ``^mlx5_3``, ``=mlx5_0:1,mlx5_1:1`` or ``mlx5`` (misc/utils.cc, parseStringList)."""
    negated = value.startswith("^")
    value = value.removeprefix("^")
    exact = value.startswith("=")
    return negated, exact, [word.strip() for word in value.removeprefix("=").split(",") if word.strip()]


def _matches(name: str, word: str, exact: bool) -> bool:
    """``mlx5_1:1`` against a word with or without port; names are prefixes unless ``exact``."""
    device, _, port = name.partition(":")
    wanted, _, wanted_port = word.partition(":")
    return (device == wanted if exact else device.startswith(wanted)) and (not wanted_port or port == wanted_port)


_JUDGES: dict[str, Callable[[str, NcclFacts], _Judged | None]] = {
    "NCCL_ALGO": lambda value, facts: _choices(value, facts, ALGORITHMS, "algorithm"),
    "NCCL_PROTO": lambda value, facts: _choices(value, facts, PROTOCOLS, "protocol"),
    "NCCL_IB_HCA": _hca,
    "NCCL_SOCKET_IFNAME": _socket,
    "NCCL_NET_GDR_LEVEL": _gpu_direct,
    "NCCL_NET_GDR_READ": _gpu_direct,
    "NCCL_IB_DISABLE": _ib_disable,
}


def verified_in(log: Path, asked: Mapping[str, str]) -> tuple[NcclFinding, ...]:
    """:func:`verify` on the log of a run with these variables; a log without them isn't read."""
    if not any(name.startswith("NCCL_") and name not in _OUTPUT_ONLY for name in asked):
        return ()
    reader = NcclReader()
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            reader.feed(line)
    return verify(asked, reader.facts)
