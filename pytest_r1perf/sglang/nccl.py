"""What NCCL says that it chose: the ``NCCL INFO`` and ``NCCL WARN`` lines of a log, read in bounded memory.

Texts and their places in NCCL 2.21.5 to 2.30.7 (github.com/NVIDIA/nccl, by tag), those marked * also recorded
with 2.28.9 on two H200:

- ``NCCL version 2.28.9+cuda13.0`` * (src/init.cc)
- ``Using network IB`` * (src/init.cc, selectNet), once a communicator
- ``NET/IB : Using [0]mlx5_0:1/IB [1]...; OOB eth0:...`` and ``NET/IB : No device found.`` * (src/transport/net_ib.cc;
  2.29: src/transport/net_ib/init.cc); merged adapters are in braces
- ``NET/Socket : Using [0]eth0:192.0.2.2<0>`` * (src/transport/net_socket.cc)
- ``Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`` (src/transport/net.cc), ``via P2P/CUMEM`` * (p2p.cc),
  ``via SHM/direct/direct`` (shm.cc)
- ``24 coll channels, ...`` * (src/init.cc)
- the choice for a collective (src/enqueue.cc, subsystem TUNING, rank 0 of a communicator only):
  2.21 and 2.22 ``1024 Bytes -> Algo 1 proto 2 time 9.3``; 2.23 the same after ``AllReduce: ``; from 2.24
  ``AllReduce: 512 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..0}`` *
- ``NCCL_X set by environment to V`` * and ``NCCL_X set to V`` * (misc/param.cc, graph/tuning.cc, net_ib.cc; ENV)

How NCCL treats what it was asked (src/graph/tuning.cc, src/enqueue.cc): up to 2.23 an unknown word of NCCL_ALGO or
NCCL_PROTO is passed over, and where nothing allowed is left another choice is taken without a word; from 2.24 both end
the communicator with a warning *.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
"""In the order of NCCL's numbers (src/init.cc, ncclAlgoStr; PAT from 2.23)."""

PROTOCOLS = ("LL", "LL128", "Simple")
"""In the order of NCCL's numbers (src/init.cc, ncclProtoStr)."""

MAX_KINDS = 128  # different choices, hosts, variables, transports: NCCL has a few dozen
MAX_TEXTS = 16
_SEARCHED = 2048  # NCCL's own lines end at 1024 or 2048 characters (src/debug.cc)

_HOST = re.compile(r"([\w.-]+):\d+:\d+ (?:\[\d+\] )?(?:\S+:\d+ )?NCCL (?:INFO|WARN)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)|is using nccl==(\d+\.\d+(?:\.\d+)?)")
_NETWORK = re.compile(r"Using network (\S.*)")  # a plugin may be called "AWS Libfabric"
_IB = re.compile(r"NET/IB : Using(.*?)(?:; OOB|$)")
_ADAPTER = re.compile(r"([\w.-]+):(\d+)/(IB|RoCE)\b")
_SOCKET = re.compile(r"NET/Socket : Using((?: \[\d+\]\S+)+)")
_SOCKET_NAME = re.compile(r"\[\d+\]([^\s:]+):")
_VIA = re.compile(r"Channel \d+(?:/\d+)? : .* via ([A-Za-z0-9]+(?:/[^\s]+)?)")
_CHANNELS = re.compile(r"(\d+) coll channels")
_ENV = re.compile(r"\b(NCCL_[A-Z0-9_]+) set (?:by environment )?to (\S.*)$")
_BAD_VALUE = re.compile(r"Invalid value (\S+) for (NCCL_[A-Z0-9_]+|[A-Z0-9_]+), using default (-?\d+)")
_CHOICE = re.compile(r"(?:\b(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_FALLBACK = re.compile(
    r"NET/IB : No device found|P2P is disabled between|GPU Direct RDMA Disabled for|Disabling LL128"
    r"|NVLS multicast support is not available|Failed to initialize NET plugin"
)
_WARN = re.compile(r"NCCL WARN (.*)")
_NOT_WORDS = re.compile(r"[^A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Choice:
    """How often a collective ran by one algorithm and protocol; ``function`` is empty in NCCL 2.21 and 2.22.

    Sizes in bytes; ``times`` counts the lines, and a CUDA graph prints one at its capture only.
    """

    function: str
    algorithm: str
    protocol: str
    times: int
    smallest: int
    largest: int

    def __str__(self) -> str:
        size = f"{self.smallest}" if self.smallest == self.largest else f"{self.smallest} to {self.largest}"
        return f"{self.function or 'collective'} of {size} bytes by {self.algorithm}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class NcclFacts:
    """What the lines so far say; every field is bounded.

    ``networks``: as ``Using network`` names them (``IB``, ``Socket``, or a plugin's name). ``adapters``: by host,
    ``mlx5_0:1/IB``. ``sockets``: by host. ``via``: lines by transport, as ``NET/IB/GDRDMA``, ``P2P/CUMEM``.
    ``env``: what NCCL said that it read. ``warnings`` and ``fallbacks`` are first texts, without their repetitions.
    ``lines``: how many NCCL lines there were.
    """

    version: str | None = None
    networks: tuple[str, ...] = ()
    adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sockets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    via: Mapping[str, int] = field(default_factory=dict)
    channels: int | None = None
    choices: tuple[Choice, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    lines: int = 0

    @property
    def gpu_direct(self) -> bool | None:
        """Whether all traffic between hosts goes from GPU to adapter by RDMA; ``None`` when no line tells."""
        net = [name for name in self.via if name.startswith("NET/")]
        return all("GDRDMA" in name for name in net) if net else None


class NcclReader:
    """Takes a log line by line; ``facts`` may be asked for at any time."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._networks: dict[str, None] = {}
        self._adapters: dict[str, dict[str, None]] = {}
        self._sockets: dict[str, dict[str, None]] = {}
        self._via: dict[str, int] = {}
        self._channels: int | None = None
        self._choices: dict[tuple[str, str, str], list[int]] = {}
        self._env: dict[str, str] = {}
        self._rejected: dict[str, str] = {}
        self._warnings: dict[str, str] = {}
        self._fallbacks: dict[str, str] = {}
        self._lines = 0

    def feed(self, line: str) -> None:
        """Take one line; most of a log's lines cost one look for a word."""
        if "NCCL " not in line and "nccl==" not in line:
            return
        line = line[:_SEARCHED].rstrip()
        if self._version is None and (found := _VERSION.search(line)):
            self._version = found[1] or found[2]
        prefix = _HOST.search(line)
        if prefix is None:
            return
        self._lines += 1
        host, said = prefix[1], line[prefix.end() :].strip()
        if prefix[0].endswith("WARN"):
            _remember(self._warnings, said)
        if not self._choice(said) and not self._transport(host, said):
            self._setting(said)
        if _FALLBACK.search(said):
            _remember(self._fallbacks, said)

    def _choice(self, said: str) -> bool:
        found = _CHOICE.search(said)
        if found is None:
            return False
        key = (found[1] or "", _name(found[3], ALGORITHMS), _name(found[4], PROTOCOLS))
        size = int(found[2])
        known = self._choices.get(key)
        if known is not None:
            known[0] += 1
            known[1], known[2] = min(known[1], size), max(known[2], size)
        elif len(self._choices) < MAX_KINDS:
            self._choices[key] = [1, size, size]
        return True

    def _transport(self, host: str, said: str) -> bool:
        if found := _VIA.search(said):
            # NET/IB/0(8)/GDRDMA(PCI)/Shared: the adapter's number and the proxy's rank would make many kinds of one.
            parts = [part for part in found[1].split("/") if not part[0].isdigit()]
            _count(self._via, "/".join(part.partition("(")[0] for part in parts))
        elif found := _NETWORK.search(said):
            _add(self._networks, found[1])
        elif found := _IB.search(said):
            for device, port, layer in _ADAPTER.findall(found[1]):
                _add(_of_host(self._adapters, host), f"{device}:{port}/{layer}")
        elif found := _SOCKET.search(said):
            for name in _SOCKET_NAME.findall(found[1]):
                _add(_of_host(self._sockets, host), name)
        elif found := _CHANNELS.search(said):
            self._channels = max(self._channels or 0, int(found[1]))
        else:
            return False
        return True

    def _setting(self, said: str) -> None:
        if found := _BAD_VALUE.search(said):
            if len(self._rejected) < MAX_KINDS:
                name = found[2] if found[2].startswith("NCCL_") else f"NCCL_{found[2]}"
                self._rejected.setdefault(name, f"NCCL read {found[1]!r} and used its default {found[3]}")
        elif (found := _ENV.search(said)) and len(self._env) < MAX_KINDS:
            self._env.setdefault(found[1], found[2].rstrip(" ."))

    @property
    def facts(self) -> NcclFacts:
        """What the lines so far say."""
        return NcclFacts(
            version=self._version,
            networks=tuple(self._networks),
            adapters={host: tuple(names) for host, names in self._adapters.items()},
            sockets={host: tuple(names) for host, names in self._sockets.items()},
            via=dict(self._via),
            channels=self._channels,
            choices=tuple(Choice(*key, *counts) for key, counts in self._choices.items()),
            env=dict(self._env),
            rejected=dict(self._rejected),
            warnings=tuple(self._warnings.values()),
            fallbacks=tuple(self._fallbacks.values()),
            lines=self._lines,
        )


def nccl_facts(lines: Iterable[str]) -> NcclFacts:
    """The facts of a whole log, line by line: an open file will do."""
    reader = NcclReader()
    for line in lines:
        reader.feed(line)
    return reader.facts


def canonical(word: str) -> str:
    """A name as it is compared: NCCL reads ``NVLSTree`` and prints ``NVLS_TREE``."""
    return word.replace("_", "").casefold()


def _name(word: str, names: tuple[str, ...]) -> str:
    """NCCL's name for the word or number that it printed; the word itself when it is a new one."""
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    return next((name for name in names if canonical(name) == canonical(word)), word)


def _remember(texts: dict[str, str], said: str) -> None:
    """Keep a text unless one that differs in numbers only is known."""
    key = _NOT_WORDS.sub(" ", said)
    if len(texts) < MAX_TEXTS:
        texts.setdefault(key, said[:300])


def _add(names: dict[str, None], name: str) -> None:
    if len(names) < MAX_KINDS:
        names.setdefault(name)


def _count(counts: dict[str, int], name: str) -> None:
    if name in counts or len(counts) < MAX_KINDS:
        counts[name] = counts.get(name, 0) + 1


def _of_host(table: dict[str, dict[str, None]], host: str) -> dict[str, None]:
    """The host's own entry; hosts beyond the bound share one, so that nothing grows without end."""
    return table.setdefault(host if host in table or len(table) < MAX_KINDS else "(other hosts)", {})
