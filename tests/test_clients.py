"""The serving clients' command lines, against the parsers of the real releases, and how an environment is asked."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.errors import EnvironmentBroken
from pytest_r1perf.load import Batch, Traffic
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.sglang.clientoptions import Client, ClientKind, ask_client
from pytest_r1perf.sglang.clients import batch_command, serving_command
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.translate_nouns import CannotExpress, Note
from pytest_r1perf.workload import Workload
from tests.tools.client_releases import RELEASES, client, parse, since

PYTHON = ("/opt/venv/bin/python",)
URL = "http://127.0.0.1:31000"
ALL_AT_ONCE = Traffic()
WORKLOAD = Workload("w", "sharegpt", 7, sharegpt_output_len=64, sharegpt_context_len=None, source="test")


def batch(release: str, notes: list[Note] | None = None, **changed: Any) -> Namespace:
    """A batch's command as the release itself understands it, and ``module``."""
    given: dict[str, Any] = {"model": "/m", "tokenizer": "/m", "seed": 7, "dataset": "/d.json", "result": "r.jsonl"}
    asked = client(ClientKind.ONE_BATCH, release)
    argv = batch_command(PYTHON, asked, Batch(4, 128, 256), base_url=URL, notes=notes, **{**given, **changed})
    assert argv[:2] == (*PYTHON, "-m")
    return Namespace(module=argv[2], argv=argv, **vars(parse(ClientKind.ONE_BATCH, release, argv[3:])))


def serving(release: str, traffic: Traffic = ALL_AT_ONCE, notes: list[Note] | None = None, **changed: Any) -> Namespace:
    given: dict[str, Any] = {"n": 20, "workload": WORKLOAD, "model": "/m", "tokenizer": None, "dataset": "/d.json"}
    asked = client(ClientKind.SERVING, release)
    given |= {"base_url": URL, "result": "r.jsonl", "notes": notes, **changed}
    argv = serving_command(PYTHON, asked, traffic, **given)
    assert argv[:2] == (*PYTHON, "-m")
    return Namespace(module=argv[2], argv=argv, **vars(parse(ClientKind.SERVING, release, argv[3:])))


def texts(notes: list[Note], *, matters: bool | None = None) -> list[str]:
    return [f"{note.flag}: {note.text}" for note in notes if matters is None or note.matters is matters]


# --- one batch


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_is_told_the_batch(release: str) -> None:
    """The release's own parser, abbreviations allowed, finds every value where it was meant."""
    got = batch(release, run_name="mine")
    assert (got.batch_size, got.input_len, got.output_len) == ([4], [128], [256])
    assert (got.base_url, got.result_filename, got.run_name) == (URL, "r.jsonl", "mine")
    assert got.skip_warmup is True
    assert not batch(release, warm_up=True).skip_warmup


@pytest.mark.parametrize("release", since("0.5.3"))
def test_what_moved_or_may_move_is_stated(release: str) -> None:
    got = batch(release)
    assert (got.seed, got.temperature, got.dataset_name, got.dataset_path) == (7, 0.0, "random", "/d.json")
    for option in ("--temperature", "--client-stream-interval", "--cache-hit-rate", "--backend", "--seed"):
        assert (option in got.argv) == (option in client(ClientKind.ONE_BATCH, release).options), option


def test_the_module_moved() -> None:
    assert batch("0.5.10").module == "sglang.bench_one_batch_server"
    assert batch("0.5.14").module == "sglang.benchmark.one_batch_server"
    assert serving("0.5.14").module == "sglang.bench_serving"
    assert serving("0.5.16").module == "sglang.benchmark.serving"


@pytest.mark.parametrize("release", ["0.4.3.post2", "0.4.4.post4", "0.4.6"])
def test_the_oldest_have_neither_seed_nor_data_set_nor_tokenizer(release: str) -> None:
    notes: list[Note] = []
    got = batch(release, notes)
    assert "--seed" not in got.argv
    assert got.model_path == "/m"
    assert texts(notes, matters=True) == [
        f"seed: bench_one_batch_server of SGLang {release}: seed 7 left out: the prompts are drawn anew in every run",
        f"dataset: bench_one_batch_server of SGLang {release}: the prompts are random token ids, not of the data set",
    ]
    assert batch(release, model=None, tokenizer=None, dataset=None).model_path == "None"  # as the guide's script


def test_a_release_that_reads_the_tokenizer_from_its_own_arguments() -> None:
    notes: list[Note] = []
    got = batch("0.4.6.post5", notes, tokenizer="/t")
    assert (got.model_path, got.tokenizer_path) == ("/m", "/t")
    assert any("/tmp/ShareGPT_V3_unfiltered_cleaned_split.json" in text for text in texts(notes, matters=True))
    assert batch("0.4.6.post5", tokenizer=None).tokenizer_path == "/m"
    with pytest.raises(CannotExpress, match=r"bench_one_batch_server of SGLang 0\.4\.6\.post5 needs the model's token"):
        batch("0.4.6.post5", model=None, tokenizer=None)


def test_the_model_is_none_where_a_release_knows_that_word() -> None:
    """Before, the server's arguments would read the configuration of a model called None."""
    assert batch("0.5.3.post3").model_path == "/m"
    assert {batch(release).model_path for release in since("0.5.4.post3")} == {"None"}


def test_the_tokenizer() -> None:
    notes: list[Note] = []
    assert batch("0.5.14", tokenizer="/t").local_tokenizer_path == "/t"
    assert batch("0.5.14", tokenizer=None).local_tokenizer_path == ""
    batch("0.5.9", notes, tokenizer="/t")
    assert texts(notes) == [
        "tokenizer: bench_one_batch_server of SGLang 0.5.9: it takes the tokenizer that the server names"
    ]


def test_without_a_data_set() -> None:
    notes: list[Note] = []
    assert batch("0.5.14", notes, dataset=None).dataset_name == "random-ids"
    assert "random token ids" in texts(notes)[-1]
    with pytest.raises(CannotExpress, match=r"of SGLang 0\.5\.9 would download ShareGPT .*: give a data set's path"):
        batch("0.5.9", dataset=None)


# --- traffic


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_is_told_the_traffic(release: str) -> None:
    got = serving(release, Traffic(request_rate=2.5, max_concurrency=8))
    assert (got.backend, got.base_url, got.model, got.tokenizer) == ("sglang", URL, "/m", "/m")
    assert (got.dataset_name, got.dataset_path, got.num_prompts, got.seed) == ("sharegpt", "/d.json", 20, 7)
    assert (got.sharegpt_output_len, got.sharegpt_context_len) == (64, None)
    assert (got.request_rate, got.max_concurrency, got.output_file) == (2.5, 8, "r.jsonl")
    assert (got.disable_ignore_eos, got.disable_stream, got.disable_tqdm) == (False, False, True)
    everything = serving(release)
    assert (everything.request_rate, everything.max_concurrency) == (float("inf"), None)


@pytest.mark.parametrize("release", since("0.4.4"))
def test_warm_up_and_flush_are_stated(release: str) -> None:
    got = serving(release, warm_up=3)
    assert (got.warmup_requests, got.flush_cache) == (3, True)
    assert getattr(got, "ready_check_timeout_sec", 0) == 0
    assert getattr(got, "temperature", 0.0) == 0.0


def test_0_4_3_warms_up_and_flushes_by_itself() -> None:
    notes: list[Note] = []
    serving("0.4.3.post2", notes=notes, details=False)
    assert notes == []
    serving("0.4.3.post2", notes=notes, details=False, warm_up=4)
    (text,) = texts(notes, matters=True)
    assert text.endswith("4 warm-up requests left out: it always sends one")


def test_goodput_needs_details() -> None:
    slo = Traffic(slo=(("ttft_ms", 100.0),))
    notes: list[Note] = []
    assert serving("0.4.6.post5", slo, notes).output_details is True
    assert notes == []
    assert "--output-details" not in serving("0.4.6", slo, notes).argv
    assert texts(notes, matters=True) == [
        "output_details: bench_serving of SGLang 0.4.6: no numbers of single requests (first in "
        "0.4.6.post5): refused ones can't be told, and no goodput"
    ]
    assert serving("0.5.20", slo, details=False).output_details is False


def test_what_a_release_lacks_altogether_is_refused() -> None:
    """A context length is no default that may be left out: other requests would be sent."""
    asked = client(ClientKind.SERVING, "0.5.20")
    kept = tuple(option for option in asked.options.options if "--sharegpt-context-len" not in option.names)
    cut = Client(asked.kind, asked.module, type(asked.options)(kept, "0.9"))
    workload = Workload("w", "sharegpt", 7, sharegpt_output_len=None, sharegpt_context_len=512, source="test")
    with pytest.raises(CannotExpress, match=r"bench_serving of SGLang 0\.9 .* no option --sharegpt-context-len"):
        serving_command(
            PYTHON,
            cut,
            Traffic(),
            n=2,
            workload=workload,
            base_url=URL,
            model="/m",
            tokenizer=None,
            dataset="/d",
            result="r",
        )


# --- asking the environment

MAIN = """
import argparse, pathlib
with open(pathlib.Path(__file__).parent / "asked", "a") as file:
    file.write("x")
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dataset-name", choices=["sharegpt", "random"], default="sharegpt")
    parser.add_argument("--rates", type=float, nargs="+")
    parser.add_argument("--flush-cache", action="store_true")
    args = parser.parse_args()
    raise SystemExit("parsed and went on")
"""
SHIM = """
from sglang.inner import cli_main
if __name__ == "__main__":
    cli_main()
"""
INNER = """
def cli_main():
    from argparse import ArgumentParser
    parser = ArgumentParser()
    parser.add_argument("--seed", type=int, default=42)
    parser.parse_args()
"""


class Fake:
    """An environment whose sglang has only the given modules."""

    def __init__(self, folder: Path, modules: dict[str, str]) -> None:
        self.cache = folder / "cache"
        self.package = folder / "site" / "sglang"
        self.env = {"PYTHONPATH": str(folder / "site")}
        metadata = folder / "site" / "sglang-0.5.9.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
        for name, text in {"__init__": "", **modules}.items():
            path = self.package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        names = tuple("sglang." + name.replace("/", ".") for name in modules)
        place = LocalPlace(sys.executable, "--sglang fake")
        self.environment = SglangEnvironment(place, {"sglang": "0.5.9", "python": "3"}, names, ())

    def ask(self, kind: ClientKind = ClientKind.SERVING) -> Client:
        return ask_client(self.environment, kind, self.env, cache=self.cache, timeout_s=60)

    def imports(self) -> int:
        return len((self.package / "asked").read_text())


def test_a_client_is_asked_before_it_parses(tmp_path: Path) -> None:
    got = Fake(tmp_path, {"bench_serving": MAIN}).ask()
    assert (got.module, got.name) == ("sglang.bench_serving", "bench_serving of SGLang 0.5.9")
    options = {option.names[0]: option for option in got.options.options}
    assert set(options) == {"--seed", "--dataset-name", "--rates", "--flush-cache"}
    assert (options["--seed"].default, options["--seed"].number) == ("1", "int")
    assert options["--dataset-name"].choices == ("sharegpt", "random")
    assert options["--rates"].many
    assert not options["--flush-cache"].takes_value


def test_a_shim_leads_to_the_parser_behind_it(tmp_path: Path) -> None:
    got = Fake(tmp_path, {"bench_serving": SHIM, "inner": INNER}).ask()
    seed = got.options.get("--seed")
    assert seed is not None
    assert seed.default == "42"


def test_the_newer_module_is_taken(tmp_path: Path) -> None:
    fake = Fake(tmp_path, {"bench_serving": MAIN, "benchmark/__init__": "", "benchmark/serving": MAIN})
    assert fake.ask().module == "sglang.benchmark.serving"


def test_it_is_asked_once_and_again_when_its_file_changes(tmp_path: Path) -> None:
    fake = Fake(tmp_path, {"bench_serving": MAIN})
    first = fake.ask()
    assert fake.ask() == first
    assert fake.imports() == 1
    (fake.package / "bench_serving.py").write_text(MAIN.replace("default=1)", "default=11)"))
    seed = fake.ask().options.get("--seed")
    assert seed is not None
    assert seed.default == "11"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_library", "cannot be run (ModuleNotFoundError: No module named 'no_such_library')"),
        ("import sys\nsys.exit(3)", "cannot be run (it ended by itself with 3)"),
        ("x = 1", "cannot be run (LookupError: it ended without parsing a command line)"),
        ("import os\nos._exit(9)", "sglang.bench_serving could not be asked (exit code 9)"),
    ],
)
def test_a_broken_client_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(EnvironmentBroken) as raised:
        Fake(tmp_path, {"bench_serving": text}).ask()
    assert str(raised.value).startswith("--sglang fake: ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_client_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match=r"sglang 0\.5\.9 has no bench_one_batch_server in it"):
        Fake(tmp_path, {"bench_serving": MAIN}).ask(ClientKind.ONE_BATCH)
