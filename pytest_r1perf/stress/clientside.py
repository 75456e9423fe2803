"""From the command line to what measures a server that is up: the client's environment and command."""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.server_kind import Server, ServerGone, read_server
from pytest_r1perf.stress.bencher import Bencher
from pytest_r1perf.stress.cases import Case
from pytest_r1perf.stress.folder import LOGS
from pytest_r1perf.stress.manifest import DIGEST

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What a run measures with.

    ``conditions``: what of the client changes its numbers. ``notes``: what of it is not as asked.
    """

    bencher: Bencher
    identify: Callable[[], Server]
    conditions: dict[str, str]
    notes: tuple[str, ...] = field(default=())


def client_side(given: Mapping[str, Any], folder: Path) -> ClientSide:
    """For a server that is up. Raises :class:`R1PerfError` for what is wrong, the server's absence first."""
    from pytest_r1perf import devices
    from pytest_r1perf.childenv import compose
    from pytest_r1perf.launch.reap import reap_orphans
    from pytest_r1perf.load import Batch
    from pytest_r1perf.rig.home import home
    from pytest_r1perf.sglang.clientoptions import ClientKind, ask_client
    from pytest_r1perf.sglang.clients import batch_command
    from pytest_r1perf.sglang.environment import local_place, probe
    from pytest_r1perf.sglang.translate_nouns import Note
    from pytest_r1perf.stress.local import LocalBencher

    url = _url(given["base_url"])
    timeout_s = case_timeout_s(given)

    def identify() -> Server:
        try:
            return read_server(url)
        except ServerGone as gone:
            raise R1PerfError(f"the server at {url} is not there: {gone}") from None

    identify()
    sglang, env, dataset = _environment(given)
    cache = home() / "probes"
    environment = probe(local_place(sglang), compose(env), cache=cache)
    client = ask_client(environment, ClientKind.ONE_BATCH, compose(env), cache=cache)
    warm_up, seed = not given["no_warm_up"], 1 if given["seed"] is None else given["seed"]

    def command(case: Case, result: str, notes: list[Note] | None = None) -> tuple[str, ...]:
        return batch_command(
            [environment.python],
            client,
            Batch(case.batch_size, case.input_len, case.output_len),
            base_url=url,
            model=given["tokenizer"],
            tokenizer=given["tokenizer"],
            seed=seed,
            dataset=None if dataset is None else str(dataset),
            result=result,
            warm_up=warm_up,
            notes=notes,
        )

    notes: list[Note] = []
    command(Case(1, 1, 1), "result.jsonl", notes)
    state_dir = devices.lease_directory(given["lease_dir"])
    reap_orphans(state_dir)
    run = run_name()
    return ClientSide(
        bencher=LocalBencher(
            url=url,
            command=lambda case, result: command(case, result),
            env=without_proxy(compose(env), url),
            logs=folder / LOGS / run,
            state_dir=state_dir,
            timeout_s=timeout_s,
            session=run,
        ),
        identify=identify,
        conditions=conditions(environment.version, seed, dataset, warm_up=warm_up),
        notes=tuple(note.text for note in notes),
    )


def run_name() -> str:
    """Of one run of a sweep: its folder of logs, and its processes' mark."""
    return f"{datetime.datetime.now():%Y%m%d.%H%M%S}.{secrets.token_hex(2)}"


def catalog_of(given: Mapping[str, Any]) -> Catalog:
    """The package's data, ``r1perf.yaml`` of this folder, and ``--data``."""
    from pytest_r1perf.catalog import USER_FILE, load_catalog

    return load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *given["files"]])


def case_timeout_s(given: Mapping[str, Any]) -> float:
    """``--case-timeout`` in seconds."""
    from pytest_r1perf.options import parse_time

    return parse_time(given["case_timeout"], "--case-timeout") or 0.0


def without_proxy(env: Mapping[str, str], url: str) -> dict[str, str]:
    """Without a proxy between the client and its server: its time would be measured."""
    from urllib.parse import urlsplit

    names = ("NO_PROXY", "no_proxy")
    direct = ",".join(dict.fromkeys(filter(None, (*map(env.get, names), urlsplit(url).hostname))))
    return {**env, **dict.fromkeys(names, direct)}  # a client that finds both heeds only one


def _url(text: str) -> str:
    """With a scheme: the guide's script says ``HOST:PORT``."""
    url = text.strip().rstrip("/")
    url = url if "://" in url else f"http://{url}"
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2]:
        raise R1PerfError(f"--base-url {text!r} is no address of a server, e.g. http://10.0.0.1:40000")
    return url


def _environment(given: Mapping[str, Any]) -> tuple[str, Mapping[str, str], Path | None]:
    """The client's SGLang, the variables over ours, and its data set."""
    from pytest_r1perf.platform import expand
    from pytest_r1perf.rig.home import home

    sglang, dataset = given["sglang"], given["dataset"]
    if given["platform"] is None:
        if sglang is None:
            raise R1PerfError("--sglang PATH or --platform NAME must say which SGLang has the client")
        return expand(sglang, what="--sglang", home=home()), {}, _absolute(dataset)
    platform = catalog_of(given).platform(given["platform"])
    sglang = sglang or platform.sglang
    if sglang is None:
        raise R1PerfError(f"platform {platform.name!r} names no sglang: give --sglang PATH")
    if dataset is None and "sharegpt" in platform.datasets:
        what = f"platform {platform.name!r}: datasets: sharegpt"
        dataset = Path(expand(platform.datasets["sharegpt"], what=what, home=home()))
        if not dataset.is_file():
            raise R1PerfError(f"{what} is {dataset}, which is no file: give --dataset FILE")
    return expand(sglang, what="sglang", home=home()), platform.env, _absolute(dataset)


def _absolute(path: Path | None) -> Path | None:
    """The client runs elsewhere."""
    return None if path is None else path.absolute()


def conditions(version: str, seed: int, dataset: Path | None, *, warm_up: bool) -> dict[str, str]:
    """What of the client is part of the sweep; a data set is known by its name, size and digest.

    Raises :class:`R1PerfError` where the data set can't be read.
    """
    described = {
        "SGLang": version,
        "prompts": "random token ids",
        "seed": str(seed),
        "warm-up": "the client's own" if warm_up else "none",
    }
    if dataset is None:
        return described
    try:
        raw = dataset.read_bytes()
    except OSError as error:
        raise R1PerfError(f"data set {dataset}: cannot be read ({error.strerror or error}): give another") from None
    described["prompts"] = f"{dataset.name} ({len(raw)} bytes)"
    return {**described, DIGEST: f"sha256 {hashlib.sha256(raw).hexdigest()}"}
