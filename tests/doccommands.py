"""The commands that README.md and docs/ show, as data: where they stand and their words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"\s*(`{3,})\{?([\w-]*)")
_SHELLS = frozenset({"sh", "bash", "shell", "console"})
_NO_COMMANDS = (
    "@perf(",
    "perf(topology",
    "T = max(",
    "gpus:",
    "platforms:",
    "tolerance: {",
    "INFRA: ",
    "CUDA_DEVICE_ORDER=",
    "r1perf.yaml:3: ",
    "GLOO_SOCKET_IFNAME=",
    "moe_runner_backend=",
    "a default of SGLang's own",
    '"kind": ',
    "NCCL was asked",
    "python -m sglang.",
)
"""How indented blocks begin that show something else. A new one is better fenced, with its language."""


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command; ``line`` counts from 1."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        """For a test's id and for a failure."""
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: ``language`` is ``None`` where it is indented, and empty where its fence names none."""

    page: str
    line: int
    language: str | None
    lines: tuple[str, ...]

    @property
    def is_shell(self) -> bool:
        """Whether its lines are commands. A script of its own (``#!``) is a file's text."""
        if self.lines and self.lines[0].startswith("#!"):
            return False
        return self.language in _SHELLS or (self.language is None and not self.lines[0].startswith(_NO_COMMANDS))

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced and indented code blocks of a page, in order."""
    name = str(page.relative_to(ROOT))
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is not None:
            start, inner = number, []
            number += 1
            while number < len(lines) and not lines[number].strip().startswith(fence[1]):
                inner.append(lines[number])
                number += 1
            margin = len(lines[start]) - len(lines[start].lstrip())
            yield Block(name, start + 2, fence[2], tuple(line[margin:] for line in inner))
        elif lines[number].startswith("    ") and not _before(lines, number):
            start, inner = number, []
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                inner.append(lines[number][4:])
                number += 1
            yield Block(name, start + 1, None, tuple("\n".join(inner).rstrip().split("\n")))
            continue
        number += 1


def _before(lines: list[str], number: int) -> str:
    return lines[number - 1].strip() if number else ""


def commands(page: Path) -> Iterator[Command]:
    """Every simple command of a page's shell blocks: split at pipes, ``&&`` and ``;``, redirections taken away."""
    for block in blocks(page):
        if block.is_shell:
            for offset, text in _whole_lines(block.lines):
                for first, *rest in simple(text):
                    program = first.rpartition("/bin/")[2]  # whatever environment it is in
                    yield Command(block.page, block.line + offset, (program, *rest))


def _whole_lines(lines: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(offset, text): continued lines as one, prompts taken away, the text of a here-document left out."""
    pending, begun, until = "", 0, ""
    for offset, line in enumerate(lines):
        if until:
            until = "" if line.strip() == until else until
            continue
        begun = offset if not pending else begun
        pending += line.strip().removeprefix("$ ")
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        here = re.search(r"<<-?\s*['\"]?(\w+)", pending)
        until = here[1] if here else ""
        yield begun, pending
        pending = ""


def simple(line: str) -> list[tuple[str, ...]]:
    """The simple commands of a line, without comments, redirections and leading assignments.

    >>> simple("FOO=1 a b > f && c | d  # e")
    [('a', 'b'), ('c',), ('d',)]
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if set(word) <= set("|&;"):
            found.append([])
        elif set(word) <= set("<>&"):
            next(words, None)
            if found[-1] and found[-1][-1] in ("1", "2"):
                found[-1].pop()
        elif found[-1] or not re.fullmatch(r"\w+=.*", word, re.S):
            found[-1].append(word)
    return [tuple(one) for one in found if one]
