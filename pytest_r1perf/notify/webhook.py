"""One JSON for any receiver: ``text`` for people, as Slack and Mattermost show it, and our fields under ``r1perf``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_r1perf.document.model import Cell, Document
from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.http import Client
from pytest_r1perf.notify.limits import asked_wait
from pytest_r1perf.report.message import failure_message
from pytest_r1perf.report.plain import clipped, plain
from pytest_r1perf.report.table import counted
from pytest_r1perf.results import finite

FORMAT = 1
"""Of the fields under ``r1perf``."""
MOST_TEXT = 3_000
"""Characters of ``text``. Slack cuts at 40,000, and asks for 4,000 at most."""
MOST_CELLS = 100
_MOST_SHOWN = 5
_MOST_A_CELL = 900


@dataclass(frozen=True, slots=True)
class Webhook:
    """``client`` is ``None`` where it is only shown. ``only_failed`` tells nothing of a session that is well."""

    client: Client | None
    only_failed: bool = False
    run_url: str = ""
    repository: str = ""

    def shown(self, document: Document) -> Iterator[str]:
        """The JSON, laid out for people."""
        if self._is_silent(document):
            yield _SILENT
            return
        yield json.dumps(self.payload(document), indent=1, allow_nan=False)

    def send(self, document: Document) -> Iterator[str]:
        """Post it, once."""
        if self._is_silent(document):
            yield _SILENT
            return
        assert self.client is not None
        answer = self.client.ask("POST", data=self.payload(document))
        host, status = self.client.host, answer.status
        if 200 <= status < 300:
            yield f"webhook of {host} told"
            return
        if status in (429, 503):
            wait = asked_wait(status, answer.headers, answer.body, self.client.clock.now())
            when = f"in {wait:.0f} s" if wait is not None else "later"
            raise NotifyError(f"the webhook's {host} answered {status} and has no time now: run the same again {when}")
        advice = {
            400: "it does not take this JSON: see docs/notify.md for the fields",
            401: "the address is no longer valid: set R1PERF_WEBHOOK_URL to a new one",
            403: "the address may not be used: set R1PERF_WEBHOOK_URL to a new one, or ask who runs the receiver",
            404: "the address is no longer there: set R1PERF_WEBHOOK_URL to a new one",
            410: "the address is no longer there: set R1PERF_WEBHOOK_URL to a new one",
            413: "it takes no message of this size: ask who runs the receiver",
        }.get(status, "see the receiver's log" if status >= 500 else "see what the receiver takes")
        raise NotifyError(f"the webhook's {host} answered {status}: {advice}")

    def payload(self, document: Document) -> dict[str, Any]:
        """Plain data without NaN; failed cells first, and no more than :data:`MOST_CELLS`."""
        cells = sorted(document.cells, key=lambda cell: not cell.result.failed)
        fields = {
            "format": FORMAT,
            "tool": document.tool,
            "session": plain(document.session),
            "created": document.created,
            "exitstatus": document.exitstatus,
            "failed": len(document.failed),
            "verdicts": dict(Counter(cell.result.verdict.value for cell in document.cells)),
            "sglang": list(dict.fromkeys(plain(one.sglang) for one in document.environments)),
            "repository": self.repository,
            "run_url": self.run_url,
            "cells": [_fields(cell) for cell in cells[:MOST_CELLS]],
            "cells_left_out": max(0, len(cells) - MOST_CELLS),
        }
        payload: dict[str, Any] = finite({"text": self.text(document), "r1perf": fields})
        return payload

    def text(self, document: Document) -> str:
        """What a chat shows: how many failed, then the first of them with what to do."""
        failed = [cell.result for cell in document.failed]
        cells = "1 cell" if len(document.cells) == 1 else f"{len(document.cells)} cells"
        counts = counted(cell.result.verdict for cell in document.cells) or "nothing measured"
        trouble = f"{document.trouble}; " if document.trouble else ""
        head = f"*{len(failed)} of {cells} failed*" if failed else f"*{trouble}none of {cells} failed*"
        if not document.cells:
            head = f"*{document.trouble}*"
        blocks = [f"{head}: {counts}"]
        for result in failed[:_MOST_SHOWN]:
            block = f"```\n{_inert(failure_message(result))}\n```"
            if sum(map(len, blocks)) + len(block) > MOST_TEXT - 300:
                break
            blocks.append(block)
        more = len(failed) - (len(blocks) - 1)
        if more > 0:
            blocks.append(f"and {more} more")
        if self.run_url:
            blocks.append(self.run_url)
        return "\n".join(blocks)

    def _is_silent(self, document: Document) -> bool:
        return self.only_failed and not document.failed and not document.trouble


_SILENT = "nothing failed: nothing is sent (--when failed)"


def _fields(cell: Cell) -> dict[str, Any]:
    result = cell.result
    return {
        "nodeid": _text(result.nodeid),
        "cell": _text(cell.name),
        "label": _text(result.label),
        "platform": _text(result.platform),
        "hardware": _text(result.hardware),
        "verdict": result.verdict.value,
        "failed": result.failed,
        "quarantined": result.quarantined,
        "cause": _text(result.cause),
        "rounds": result.rounds,
        "metrics": [
            {
                "metric": item.metric,
                "verdict": item.verdict.value,
                "median": item.median,
                "baseline": item.baseline,
                "ratio": item.ratio.estimate if item.ratio is not None else None,
                "lower": item.ratio.lower if item.ratio is not None else None,
                "upper": item.ratio.upper if item.ratio is not None else None,
                "tolerance": item.tolerance,
                "floor": item.floor,
            }
            for item in result.judgements[:10]
        ],
        "changed": [_text(note) for note in result.changed[:12]],
        "reproduce": plain(result.reproduce)[:2_000],
    }


def _text(text: str) -> str:
    return clipped(plain(text), 500)


def _inert(text: str) -> str:
    """In a code block, where a chat calls nobody; ``&``, ``<`` and ``>`` as Slack wants them escaped."""
    if len(text) > _MOST_A_CELL:
        text = f"{text[: _MOST_A_CELL - 300]}\n  ...\n{text[-290:]}"
    text = text.replace("`", "'")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
