"""A stress sweep: real files, a real server and real clients; what is kept, what is measured again, what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.childenv import compose
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.server_kind import Server, ServerGone, differences, read_server, server_of
from pytest_r1perf.sglang.skips import skip_reason
from pytest_r1perf.stress.bencher import Bencher, Done
from pytest_r1perf.stress.cases import BATCH_SIZES, INPUT_LENS, OUTPUT_LENS, Case, case_named, grid, in_order, numbers
from pytest_r1perf.stress.clientside import without_proxy
from pytest_r1perf.stress.folder import contents
from pytest_r1perf.stress.local import LocalBencher
from pytest_r1perf.stress.manifest import Asked, read_manifest
from pytest_r1perf.stress.rows import skip_row
from pytest_r1perf.stress.run import Ended, run_sweep
from tests.processes import identity, running, wait_until
from tests.stresses import SWEEP, PlainBencher, StressLab, guide_row, stress_lab, write_rows

FOUR = grid((1, 4), (16,), (8, 32))
ONE = FOUR[0]


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[StressLab]:
    with stress_lab(tmp_path / "lab") as lab:
        yield lab


class Runs:
    """Runs a sweep into one folder, and keeps what it said."""

    def __init__(self, lab: StressLab, tmp_path: Path) -> None:
        self.lab = lab
        self.folder = tmp_path / "results"
        self.state = tmp_path / "state"
        self.said: list[str] = []
        self.number = 0

    def bencher(self, timeout_s: float | None) -> Bencher:
        if timeout_s is None:
            return PlainBencher(self.lab.port, self.lab.control, self.lab.folder)
        self.number += 1
        logs = self.folder / "logs" / str(self.number)
        return LocalBencher(self.lab.url, self.lab.command, compose({}), logs, self.state, timeout_s)

    def run(
        self, cases: Sequence[Case] = FOUR, repeats: int = 1, *, timeout_s: float | None = None, **asked: Any
    ) -> Ended:
        """With a ``timeout_s`` by the bencher for servers that are up, which supervises its clients; else plainly."""
        self.said = []
        wanted = Asked(tuple(cases), repeats, **asked)
        return run_sweep(
            self.folder, wanted, self.bencher(timeout_s), lambda: read_server(self.lab.url), self.said.append
        )

    def file(self, case: Case) -> Path:
        return self.folder / f"{case.name}.jsonl"

    def rows(self, case: Case) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file(case).read_text().splitlines()]

    def counts(self) -> dict[str, int]:
        return {path.name: len(path.read_text().splitlines()) for path in sorted(self.folder.glob("*.jsonl"))}


@pytest.fixture(name="runs")
def _runs(lab: StressLab, tmp_path: Path) -> Runs:
    return Runs(lab, tmp_path)


# --- the grid


def test_the_guides_grid_has_90_cases() -> None:
    cases = grid(BATCH_SIZES, INPUT_LENS, OUTPUT_LENS)
    assert len(cases) == len(set(cases)) == 90
    assert (cases[0].name, cases[1].name, cases[-1].name) == ("1-128-256", "1-128-512", "32-512-8192")
    assert grid((4, 4), (1,), (1,)) == (Case(4, 1, 1),)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_case_is_found_by_its_files_name(batch: int, inputs: int, outputs: int) -> None:
    assert case_named(f"{batch}-{inputs}-{outputs}") == Case(batch, inputs, outputs)


@given(st.text(alphabet="0123456789-. x", max_size=12))
def test_no_other_name_is_a_cases(name: str) -> None:
    case = case_named(name)
    assert case is None or case.name == name


@given(
    st.sets(st.tuples(st.integers(1, 99), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40),
    st.text("0123456789abcdef", min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 39),
)
def test_a_repeats_order_outlives_what_is_taken_away(
    keys: set[tuple[int, int, int]], sweep: str, repeat: int, left: int
) -> None:
    """A killed sweep goes on in the order that it had, whatever it has done."""
    cases = [Case(*key) for key in keys]
    whole = in_order(cases, "shuffled", sweep, repeat)
    assert sorted(whole) == sorted(cases)
    assert in_order(whole[left:], "shuffled", sweep, repeat) == whole[left:]
    assert in_order(cases, "document", sweep, repeat) == sorted(cases)


def test_each_repeat_has_another_order() -> None:
    cases = grid(BATCH_SIZES, INPUT_LENS, OUTPUT_LENS)
    orders = {tuple(in_order(cases, "shuffled", "5f", repeat)) for repeat in (1, 2, 3)}
    assert len(orders) == 3


@pytest.mark.parametrize(
    ("text", "part"), [("1,x", "'x'"), ("0", "'0'"), ("1,-4", "'-4'"), ("", "empty"), ("1.5", "'1.5'")]
)
def test_numbers_that_are_none(text: str, part: str) -> None:
    with pytest.raises(R1PerfError, match=part):
        numbers(text, "--batch-sizes")
    assert numbers("1, 4 8", "--batch-sizes") == (1, 4, 8)


# --- a whole sweep


def test_one_file_a_case_and_one_row_a_repeat(runs: Runs) -> None:
    ended = runs.run(repeats=2)
    assert (ended.new, ended.kept, ended.skipped, ended.missing, ended.why) == (8, 0, 0, 0, None)
    assert runs.counts() == {"1-16-8.jsonl": 2, "1-16-32.jsonl": 2, "4-16-8.jsonl": 2, "4-16-32.jsonl": 2}
    manifest = read_manifest(runs.folder)
    assert manifest is not None
    for case in FOUR:
        rows = runs.rows(case)
        assert [row["r1perf"]["repeat"] for row in rows] == [1, 2]
        assert {row["r1perf"]["sweep"] for row in rows} == {manifest.sweep}
        assert rows[0]["latency"] == pytest.approx(case.output_len * (0.02 + 0.001 * case.batch_size), abs=1e-4)
    assert runs.said[-1].startswith("[repeat 2 of 2, 4 of 4] ")
    again = runs.run(repeats=2)
    assert (again.new, again.kept, again.missing) == (0, 8, 0)
    assert runs.said == []


def test_the_manifest_says_which_server(runs: Runs) -> None:
    runs.run([ONE], conditions={"SGLang": "0.5.20"})
    text = (runs.folder / "sweep.json").read_text()
    data = json.loads(text)
    assert (data["server"]["model"], data["server"]["version"]) == ("/models/r1", "0.5.20")
    assert data["server"]["arguments"]["tp_size"] == "16"
    assert data["server"]["arguments"]["attention_backend"] == "fa3"  # only the scheduler knew it
    assert data["cases"] == ["1-16-8"]
    assert len(data["starts"]) == 1
    assert "sesame" not in text
    assert "port" not in data["server"]["arguments"]


def test_a_larger_grid_and_more_repeats_are_added(runs: Runs) -> None:
    runs.run(FOUR[:2])
    ended = runs.run(FOUR[1:], repeats=2)
    assert (ended.cases, ended.new, ended.kept, ended.missing) == (4, 6, 2, 0)
    assert set(runs.counts().values()) == {2}


# --- files that do not count


def cut(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def cut_at_the_end(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def doubled(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def of_another_case(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def changed(old: str, new: str) -> Callable[[Path, Path], None]:
    def change(path: Path, _: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def marked(**mark: Any) -> Callable[[Path, Path], None]:
    def change(path: Path, _: Path) -> None:
        row = json.loads(path.read_text())
        row["r1perf"].update(mark)
        path.write_text(json.dumps(row) + "\n")

    return change


def unmarked(path: Path, _: Path) -> None:
    write_rows(path.parent, ONE, guide_row(ONE, 0.5))


@pytest.mark.parametrize(
    ("breaks", "fault", "says"),
    [
        (cut, "truncated", "line 1 has no end"),
        (cut_at_the_end, "truncated", "line 1 has no end"),
        (emptied, "truncated", "is empty"),
        (doubled, "duplicated", "has repeat 1 2 times"),
        (of_another_case, "other-case", "line 1 is of another case: 1-16-32"),
        (marked(sweep="0123456789abcdef"), "other-run", "is of another run (sweep 0123456789abcdef"),
        (marked(server="fedcba987654"), "other-server", "is of another server (start fedcba987654"),
        (unmarked, "unmarked", "has rows without a mark"),
        (changed('"latency": 0.168', '"latency": 0.368'), "contradiction", "line 1: output_throughput 52.91 is above"),
        (
            changed('"latency": 0.168', '"latency": 0.1'),
            "contradiction",
            "line 1: overall_throughput is 142.86, and batch",
        ),
        (changed("52.91", "42.91"), "contradiction", "line 1: output_throughput is 42.91, and output tokens"),
        (changed('"latency": 0.168', '"latency": 0.168, "latency": 0.2'), "garbled", "line 1 has the key 'latency'"),
        (changed('"latency"', '"lateness"'), "garbled", "line 1: has no latency"),
        (marked(repeat="1"), "garbled", "its mark is"),
        (changed('"batch_size": 1', '"batch_size": 1.0'), "garbled", "names no case"),
    ],
)
def test_a_file_that_does_not_count_is_set_aside_and_measured_again(
    runs: Runs, breaks: Callable[[Path, Path], None], fault: str, says: str
) -> None:
    runs.run(FOUR[:2])
    others = runs.file(FOUR[1]).read_bytes()
    breaks(runs.file(ONE), runs.file(FOUR[1]))
    broken = runs.file(ONE).read_bytes()
    ended = runs.run(FOUR[:2])
    assert (ended.new, ended.kept, ended.missing) == (1, 1, 0)
    assert says in runs.said[0]
    assert runs.said[0].startswith("1-16-8.jsonl ")
    assert (runs.folder / "aside" / f"1-16-8.{fault}.jsonl").read_bytes() == broken
    assert contents(runs.folder).files[ONE].flaw is None
    assert runs.counts() == {"1-16-8.jsonl": 1, "1-16-32.jsonl": 1}
    assert runs.file(FOUR[1]).read_bytes() == others


def test_nothing_that_was_set_aside_is_overwritten(runs: Runs) -> None:
    for text in (b"first", b"second"):
        runs.run([ONE])
        runs.file(ONE).write_bytes(text)
    runs.run([ONE])
    aside = runs.folder / "aside"
    assert (aside / "1-16-8.truncated.jsonl").read_bytes() == b"first"
    assert (aside / "1-16-8.truncated.2.jsonl").read_bytes() == b"second"


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"rows": {"1-16-8": {"output_throughput": 1e6}}}, "output_throughput 1000000.0 is above"),
        ({"rows": {"1-16-8": {"output_len": 9}}}, "is of another case: 1-16-9"),
        ({"rows": {"1-16-8": {"latency": float("nan")}}}, "cannot be stored"),
        ({"lines": {"1-16-8": 2}}, "2 rows for one case"),
    ],
)
def test_a_clients_row_that_contradicts_itself_is_not_kept(
    runs: Runs, lab: StressLab, told: dict[str, Any], says: str
) -> None:
    lab.tell(**told)
    ended = runs.run(FOUR[:2])
    assert (ended.new, ended.missing) == (1, 1)
    assert ended.why is not None
    assert says in ended.why
    assert not runs.file(ONE).exists()
    lab.tell()
    assert runs.run(FOUR[:2]).missing == 0


# --- cases that a server can't take


def test_a_skipped_case_is_kept_with_its_reason(runs: Runs, lab: StressLab) -> None:
    lab.tell(max_running=2)
    ended = runs.run(timeout_s=60)
    assert (ended.new, ended.skipped, ended.missing, ended.why) == (2, 2, 0, None)
    (row,) = runs.rows(FOUR[2])
    assert row["skipped"] == "max running requests limit: batch_size=4 > skip_max_running_requests_threshold=2"
    again = runs.run(timeout_s=60)
    assert (again.new, again.kept, again.skipped, again.missing) == (0, 2, 2, 0)
    assert "latency" not in row


def test_answers_that_the_server_cut_are_no_measurement(runs: Runs, lab: StressLab) -> None:
    lab.tell(short=["4-16-8"])
    ended = runs.run()
    assert (ended.new, ended.skipped, ended.missing) == (3, 1, 0)
    (row,) = runs.rows(FOUR[2])
    assert row["skipped"].startswith("the server generated 31 of 32 tokens")


def test_a_case_that_was_measured_and_then_skipped_keeps_its_row(runs: Runs, lab: StressLab) -> None:
    runs.run(timeout_s=60)
    lab.tell(max_running=2)
    ended = runs.run(repeats=2, timeout_s=60)
    assert (ended.new, ended.kept, ended.skipped, ended.missing) == (2, 4, 0, 2)
    assert ended.why is not None
    assert "4-16-8: was measured before, and now: max running requests limit" in ended.why


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "========Skip benchmark batch_size=64 * (input_len=128 + output_len=8192) = 532480 > "
            "skip_token_capacity_threshold=16384 due to kv cache limit.========\n\nResults are saved to x\n",
            "kv cache limit: batch_size=64 * (input_len=128 + output_len=8192) = 532480 > "
            "skip_token_capacity_threshold=16384",
        ),
        ("Results are saved to result.jsonl\n", None),
        ("", None),
    ],
)
def test_sglangs_reasons(said: str, reason: str | None) -> None:
    assert skip_reason(said) == reason


def test_a_client_that_wrote_nothing_and_says_nothing_has_not_skipped(runs: Runs, lab: StressLab) -> None:
    lab.tell(silent=["1-16-8"])
    ended = runs.run(timeout_s=60)
    assert (ended.new, ended.skipped, ended.missing) == (3, 0, 1)
    assert ended.why is not None
    assert "1-16-8: its client ended well, wrote no row and named no reason" in ended.why


# --- clients and servers that break


def test_a_client_that_fails_stops_only_its_case(runs: Runs, lab: StressLab) -> None:
    lab.tell(fail=["1-16-32"])
    ended = runs.run(timeout_s=60)
    assert (ended.new, ended.missing) == (3, 1)
    assert ended.why is not None
    assert ended.why.startswith("1 of 4 cases failed: 1-16-32: its client ended with 1 (RuntimeError: Request has")
    lab.tell()
    assert (runs.run(timeout_s=60).new, runs.run(timeout_s=60).missing) == (1, 0)


def test_a_case_that_always_fails_does_not_keep_the_next_repeat_back(runs: Runs, lab: StressLab) -> None:
    lab.tell(fail=["1-16-32"])
    ended = runs.run(FOUR[:2], repeats=2, timeout_s=60)
    assert (ended.new, ended.missing) == (2, 2)
    assert ended.why is not None
    assert ended.why.startswith("repeat 1: 1 of 2 cases failed: 1-16-32: ")
    assert "; repeat 2: 1 of 2 cases failed: 1-16-32: " in ended.why


def test_clients_that_all_fail_end_the_run(runs: Runs, lab: StressLab) -> None:
    lab.tell(fail=[case.name for case in FOUR])
    ended = runs.run(timeout_s=60)
    assert ended.why is not None
    assert ended.why.startswith("3 clients failed one after another")
    assert ended.missing == 4


def test_a_server_that_dies_loses_nothing(runs: Runs, lab: StressLab) -> None:
    lab.tell(die_at=3)
    ended = runs.run(order="document", timeout_s=60)
    assert (ended.new, ended.missing) == (2, 2)
    assert ended.why is not None
    assert f"the server at {lab.url} was lost during 4-16-8: nothing answers there" in ended.why
    before = [runs.file(case).read_bytes() for case in FOUR[:2]]
    with pytest.raises(R1PerfError, match="nothing answers there"):
        runs.run(timeout_s=60)
    lab.tell(info={"random_seed": 8})
    lab.start()
    ended = runs.run(order="document", timeout_s=60)
    assert (ended.new, ended.kept, ended.missing) == (2, 2, 0)
    assert [runs.file(case).read_bytes() for case in FOUR[:2]] == before
    manifest = read_manifest(runs.folder)
    assert manifest is not None
    marks = {runs.rows(case)[0]["r1perf"]["server"] for case in FOUR}
    assert marks == set(manifest.starts)
    assert len(marks) == 2


def test_a_server_that_hangs_ends_the_run(runs: Runs, lab: StressLab) -> None:
    lab.tell(hang_at=2)
    ended = runs.run(timeout_s=3, order="document")
    assert (ended.new, ended.missing) == (1, 3)
    assert ended.why is not None
    assert ended.why.startswith(f"1-16-32 was not over after 3 s: the server at {lab.url} hangs")


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"version": "0.5.19"}, "version 0.5.20 there, 0.5.19 here"),
        ({"model_path": "/models/v3"}, "model /models/r1 there, /models/v3 here"),
        ({"tp_size": 8}, "tp_size 16 there, 8 here"),
    ],
)
def test_another_servers_results_are_not_mixed_in(runs: Runs, lab: StressLab, info: dict[str, Any], says: str) -> None:
    runs.run(FOUR[:1])
    before = {path.name: path.read_bytes() for path in runs.folder.glob("*.json*")}
    lab.tell(info=info)
    with pytest.raises(R1PerfError, match=says):
        runs.run()
    assert {path.name: path.read_bytes() for path in runs.folder.glob("*.json*")} == before


def test_the_same_server_on_another_port_is_the_same(runs: Runs, lab: StressLab) -> None:
    runs.run(FOUR[:1])
    lab.tell(info={"port": 40001, "random_seed": 9, "served_model_name": "other"})
    assert runs.run().missing == 0


def test_another_client_is_another_sweep(runs: Runs) -> None:
    runs.run([ONE], conditions={"SGLang": "0.5.20", "seed": "1"})
    with pytest.raises(R1PerfError, match=r"with SGLang 0\.5\.20, not 0\.5\.21"):
        runs.run([ONE], conditions={"SGLang": "0.5.21", "seed": "1"})


def test_a_folder_of_before_data_sets_had_a_digest_goes_on(runs: Runs) -> None:
    old = {"prompts": "sharegpt.json (9 bytes)"}
    runs.run([ONE], conditions=old)
    with pytest.raises(R1PerfError, match="with prompts sharegpt"):
        runs.run([ONE], conditions={"prompts": "sharegpt.json (8 bytes)", "data set": "sha256 1"})
    assert runs.run([ONE], conditions={**old, "data set": "sha256 1"}).missing == 0
    manifest = json.loads((runs.folder / "sweep.json").read_text())
    assert manifest["conditions"] == old, "its first rows were measured with nobody knows which bytes"


def test_a_server_that_changes_under_a_sweep_ends_it(runs: Runs, lab: StressLab) -> None:
    """Two servers on one port, or one that was started anew: the case that it fell into is not kept."""
    lab.tell(changes_at=2)
    ended = runs.run(order="document", timeout_s=60)
    assert (ended.new, ended.missing) == (1, 3)
    assert ended.why is not None
    assert f"another start of it, answers at {lab.url} since 1-16-32" in ended.why
    assert not runs.file(FOUR[1]).exists()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"answer": {"status": "ok"}}, "it is no SGLang server"),
        ({"answer": ["x"]}, "it is no SGLang server"),
        ({"path": "/nowhere"}, "status 404"),
    ],
)
def test_what_is_no_sglang_server(lab: StressLab, told: dict[str, Any], says: str) -> None:
    lab.tell(**told)
    with pytest.raises(ServerGone, match=says):
        read_server(lab.url)


@pytest.mark.parametrize(
    ("command", "device", "counts"),
    [
        ("--model-path m --device cpu", "cpu", False),
        ("--model-path m --mem-fraction-static 0.8", "cuda", True),
        (None, "cpu", False),
        (None, "cuda", True),
    ],
)
def test_a_memory_fraction_that_sglang_computed_is_no_other_server(
    command: str | None, device: str, counts: bool
) -> None:
    """Seen between two starts of 0.5.20 on a CPU: 0.769 and 0.807, by the memory that was free."""
    recorded = json.loads((Path(__file__).parent / "recorded" / "server_info_0.5.20.json").read_text())
    told = {**recorded, "launch_command": command, "device": device}
    one, two = (server_of({**told, "mem_fraction_static": value}) for value in (0.769, 0.807))
    assert bool(differences(one, two)) is counts
    assert len(one.arguments) > 100
    assert one.start == two.start


def test_cases_that_a_bencher_says_nothing_of(runs: Runs, lab: StressLab) -> None:
    class Silent:
        def measure(self, cases: Sequence[Case], done: Done) -> str | None:
            done(cases[0], [skip_row(cases[0], "no room")])
            return None

    said: list[str] = []
    asked = Asked(FOUR, 1, "document")
    ended = run_sweep(runs.folder, asked, Silent(), lambda: read_server(lab.url), said.append)
    assert ended.missing == 3
    assert ended.why == ("3 of 4 cases of repeat 1 were not measured, and nothing says why: 1-16-32, 4-16-8, 4-16-32")


@pytest.mark.parametrize("told", [[], [{}, {}]])
def test_a_case_without_exactly_one_row_is_measured_again(
    runs: Runs, lab: StressLab, told: list[dict[str, Any]]
) -> None:
    class Odd:
        def measure(self, cases: Sequence[Case], done: Done) -> str | None:
            for case in cases:
                done(case, told)
            return None

    def identify() -> Server:
        return read_server(lab.url)

    ended = run_sweep(runs.folder, Asked(FOUR[:1], 1), Odd(), identify, lambda text: None)
    assert (ended.skipped, ended.missing) == (0, 1)
    assert ended.why == f"1-16-8: SGLang's client wrote {len(told)} rows for one case"
    assert runs.run(FOUR[:1]).missing == 0


def test_no_proxy_of_both_spellings_is_kept() -> None:
    env = without_proxy(
        {"NO_PROXY": "hub.local", "no_proxy": "10.0.0.1", "http_proxy": "http://p:1"}, "http://10.0.0.1:40000"
    )
    assert env["NO_PROXY"] == env["no_proxy"] == "hub.local,10.0.0.1"


def test_a_proxy_is_passed_by(lab: StressLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert read_server(lab.url).model == "/models/r1"


def test_the_old_name_of_the_servers_answer(lab: StressLab) -> None:
    lab.tell(path="/get_server_info")
    assert read_server(lab.url).version == "0.5.20"


# --- interrupted and killed


def start_sweep(runs: Runs, cases: Sequence[Case], *, plain: bool = False) -> subprocess.Popen[str]:
    names = [case.name for case in cases]
    state = "plain" if plain else str(runs.state)
    arguments = [str(runs.folder), str(runs.lab.port), str(runs.lab.control), state, "1", *names]
    root = Path(__file__).parents[1]
    return subprocess.Popen([sys.executable, "-c", SWEEP, *arguments], stdout=subprocess.PIPE, text=True, cwd=root)


def test_a_sweep_of_90_killed_at_case_37_goes_on(runs: Runs, lab: StressLab) -> None:
    cases = grid((1, 4, 8, 16, 32), (1, 2, 3), (1, 2, 4, 8, 16, 32))
    slept = lab.folder / "slept"
    lab.tell(sleep=[sorted(cases)[36].name], slept=str(slept))
    process = start_sweep(runs, cases, plain=True)
    try:
        wait_until(lambda: slept.exists() and slept.read_text(), "case 37")
    finally:
        process.kill()
        os.kill(int(slept.read_text()), signal.SIGKILL)  # an orphan that has our pipe
        process.communicate()
    before = {path.name: path.read_bytes() for path in runs.folder.glob("*.jsonl")}
    assert len(before) == 36
    lab.tell()
    ended = runs.run(cases, order="document")
    assert (ended.new, ended.kept, ended.missing, ended.why) == (54, 36, 0, None)
    assert {name: (runs.folder / name).read_bytes() for name in before} == before
    assert not (runs.folder / "aside").exists()
    assert runs.counts() == {f"{case.name}.jsonl": 1 for case in cases}


def test_a_killed_run_leaves_no_client(runs: Runs, lab: StressLab) -> None:
    slept = lab.folder / "slept"
    lab.tell(sleep=["1-16-32"], slept=str(slept))
    process = start_sweep(runs, FOUR)
    try:
        wait_until(lambda: slept.exists() and slept.read_text(), "the second case")
        client = identity(int(slept.read_text()))
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not running(client), "the watcher ends the client")
    assert runs.counts() == {"1-16-8.jsonl": 1}
    lab.tell()
    assert (runs.run(order="document").new, runs.run(order="document").missing) == (3, 0)


def test_ctrl_c_leaves_whole_files_and_no_client(runs: Runs, lab: StressLab) -> None:
    slept = lab.folder / "slept"
    lab.tell(sleep=["4-16-8"], slept=str(slept))
    process = start_sweep(runs, FOUR)
    try:
        wait_until(lambda: slept.exists() and slept.read_text(), "the third case")
        client = identity(int(slept.read_text()))
        process.send_signal(signal.SIGINT)
        process.communicate()
    finally:
        process.kill()
    assert process.returncode != 0
    assert not running(client)
    assert runs.counts() == {"1-16-8.jsonl": 1, "1-16-32.jsonl": 1}
    lab.tell()
    assert runs.run(order="document").new == 2


def test_two_runs_in_one_folder(runs: Runs, lab: StressLab) -> None:
    slept = lab.folder / "slept"
    lab.tell(sleep=["1-16-8"], slept=str(slept))
    process = start_sweep(runs, FOUR)
    try:
        wait_until(lambda: slept.exists() and slept.read_text(), "the first case")
        with pytest.raises(R1PerfError, match="another run measures into it"):
            runs.run()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


# --- the folder


def test_results_of_nobodys_sweep_are_left_alone(runs: Runs) -> None:
    """Those of the guide's script, or a folder whose manifest is gone: measuring again would be for a new folder."""
    runs.folder.mkdir()
    path = write_rows(runs.folder, ONE, guide_row(ONE, 0.5))
    with pytest.raises(R1PerfError, match=r"has 1 result files and no sweep\.json"):
        runs.run()
    assert path.exists()
    assert not (runs.folder / "sweep.json").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is no object"),
        ('{"format": 99}', "newer pytest-r1perf"),
        ('{"format": 1}', "lacks or garbles"),
    ],
)
def test_a_damaged_manifest_is_named(runs: Runs, text: str, says: str) -> None:
    runs.run([ONE])
    (runs.folder / "sweep.json").write_text(text)
    with pytest.raises(R1PerfError, match=says):
        runs.run([ONE])
    assert runs.counts() == {"1-16-8.jsonl": 1}


@given(data=st.data())
def test_any_damage_to_a_manifest_is_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = {
        "format": 1,
        "sweep": "5f",
        "made": "2026-11-30T00:00:00+00:00",
        "server": {"model": "m", "version": "1", "arguments": {}},
        "starts": [],
        "cases": ["1-2-3"],
        "repeats": 1,
        "order": "shuffled",
        "conditions": {},
    }
    key = data.draw(st.sampled_from(sorted(whole)))
    junk = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.lists(st.none(), max_size=2))
    whole[key] = data.draw(junk)
    folder = tmp_path_factory.mktemp("manifest")
    (folder / "sweep.json").write_text(json.dumps(whole))
    said = ""
    try:
        found = read_manifest(folder)
    except R1PerfError as error:
        found, said = None, str(error)
    assert (found is None) == said.startswith(f"{folder / 'sweep.json'}: ")
    assert "\n" not in said
