"""Sessions that end in every way: killed, interrupted, resumed, without room to write, or with a wrong environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import Project, lines_with, make_environment, sharegpt, verdicts

ONE = """
@perf(topology="tp1", n=50, min_tokps=100, rounds="3:3")
def test_x(): ...
"""
# Whatever a signal does, a perf test after it must not be started.
TWO = ONE + '\n@perf(topology="tp1", n=60, min_tokps=100)\ndef test_y(): ...\n'


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    r1perf_project.write(TWO)
    return r1perf_project


def output(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=120)
    return text


def test_the_record_has_one_line_a_round_with_everything(project: Project) -> None:
    project.perf("-k", "test_x").assert_outcomes(passed=1, deselected=1)
    records = project.records()
    assert [line["kind"] for line in records] == ["start", "sample", "sample", "sample", "verdict", "end"]
    first = records[1]
    assert first["format"] == 1
    assert first["round"] == 1
    assert first["nodeid"] == "test_perf.py::test_x"
    assert first["topology"] == "tp1"
    assert first["cell"] == "cpu/default/sharegpt/n50/offline"
    assert round(first["metrics"]["total_throughput"]) == 4500
    assert first["metrics"]["total_latency"] == pytest.approx(2500 / 4500)
    assert first["versions"]["sglang"] == "0.5.20"
    assert first["protocol"]["num_prompts"] == 50
    assert first["resolved"]["attention_backend"] == "torch_native"
    assert "--num-prompts" in first["command"]
    assert Path(first["log"]).read_text().startswith("The current platform does not support Intel AMX")
    assert (Path(first["log"]).parent / "command.txt").read_text().startswith("OMP_NUM_THREADS=1 ")
    assert records[-1]["exitstatus"] == 0


def test_a_round_is_on_the_disk_before_the_next_starts(project: Project) -> None:
    project.control({"mode": ["ok", "hang-benchmark"]})
    with project.started("-k", "test_x"):
        project.reached("benchmark", calls=2)
        assert [sample["round"] for sample in project.samples()] == [1]


def test_killed_in_the_second_round_and_resumed(project: Project) -> None:
    project.control({}, n50={"mode": ["ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    assert [sample["round"] for sample in project.samples()] == [1]
    result = project.perf("--perf-resume")
    result.assert_outcomes(passed=2)
    assert len(project.calls("n50")) == 2 + 2  # the first, the killed one, and the two that were missing
    assert [sample["round"] for sample in project.samples() if sample["cell"].endswith("n50/offline")] == [1, 2, 3]
    assert len(list(project.out.iterdir())) == 1
    again = project.perf("--perf-resume", "-k", "test_x")  # that one has ended: a new session
    again.assert_outcomes(passed=1, deselected=1)
    assert len(project.calls("n50")) == 4 + 3
    assert len(list(project.out.iterdir())) == 2


def test_resuming_a_session_that_is_older_than_the_wall_time(project: Project) -> None:
    """Its samples tell the time of their processes, though not as a metric: a limit holds for them as well."""
    project.write('@perf(topology="tp1", n=50, max_wall_time=1000)\ndef test_x(): ...\n')
    project.control({}, n50={"mode": ["ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    (path,) = project.out.glob("*/samples-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for metric in ("wall_time", "startup_time"):
            line.get("metrics", {}).pop(metric, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    project.perf("--perf-resume").assert_outcomes(passed=1)
    assert ["wall_time" in sample["metrics"] for sample in project.samples()] == [False, True]
    assert len(project.calls("n50")) == 3


def test_resuming_says_what_it_found_and_leaves_a_living_session_alone(project: Project) -> None:
    project.control({}, n50={"mode": ["ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        living = project.perf("--perf-resume", "-k", "test_y", "-o", "perf_lease_dir=other-leases")
        process.kill()
        process.wait()
    assert lines_with(living, "nothing to resume") != []
    assert len(list(project.out.iterdir())) == 2  # its own session, not the living one's
    project.nothing_left_soon()
    ended = project.perf("--perf-resume", "-k", "test_y")  # the newest session ended by itself
    assert lines_with(ended, "nothing to resume") != []
    assert len(list(project.out.iterdir())) == 3


def test_resuming_after_a_line_was_cut_in_two(project: Project) -> None:
    project.control({"mode": ["ok", "ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=3)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    (path,) = project.out.glob("*/samples-main.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    project.perf("--perf-resume", "-k", "test_x").assert_outcomes(passed=1, deselected=1)
    assert [sample["round"] for sample in project.samples()] == [1, 2, 3]
    assert len(project.calls()) == 3 + 2
    kinds = [line["kind"] for line in project.records()]
    assert kinds == ["start", "sample", "start", "sample", "sample", "verdict", "end"]


def test_resuming_does_not_retry_a_broken_cell(project: Project) -> None:
    project.control({}, n50={"mode": ["sigquit", "ok"]}, n60={"mode": ["hang-start", "ok"]})
    with project.started() as process:
        project.reached("start", calls=2)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    result = project.perf("--perf-resume")
    result.assert_outcomes(failed=1, passed=1)
    assert len(project.calls("n50")) == 1
    assert verdicts(result) == ["CRASH", "PASS"]


def test_resuming_with_another_data_set_measures_anew(project: Project) -> None:
    project.control({"mode": ["ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    project.dataset.write_text(sharegpt(120, prompt=40))
    project.perf("--perf-resume", "-k", "test_x").assert_outcomes(passed=1, deselected=1)
    assert len(project.calls()) == 2 + 3


@pytest.mark.parametrize(
    "options", [("--sglang", "env2"), ("--perf-sglang-defaults",)], ids=["another folder", "other defaults"]
)
def test_resuming_with_another_command_measures_anew(project: Project, options: tuple[str, ...]) -> None:
    """The same version in another folder, or without the stated defaults: rounds of the two are not one measurement."""
    make_environment(project.root / "env2", control=project.control_file)
    project.control({"mode": ["ok", "hang-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        process.kill()
        process.wait()
    project.nothing_left_soon()
    project.perf("--perf-resume", "-k", "test_x", *options).assert_outcomes(passed=1, deselected=1)
    assert len(project.calls()) == 2 + 3
    assert [sample["round"] for sample in project.samples()] == [1, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["start", "warm-up", "benchmark", "result"])
def test_interrupted_in_a_run(project: Project, stage: str, number: signal.Signals) -> None:
    project.control({"mode": ["ok", f"hang-{stage}"]})
    with project.started() as process:
        project.reached(stage, calls=2)
        process.send_signal(number)
        text = output(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    project.nothing_left()
    assert len(project.calls()) == 2
    assert [sample["round"] for sample in project.samples()] == [1]
    assert "performance (r1perf)" in text
    assert "interrupted: the rounds measured so far are kept, and --perf-resume goes on from them" in text
    assert ("KeyboardInterrupt" if number == signal.SIGINT else "Exit: SIGTERM") in text
    assert "Traceback" not in text


def test_the_table_has_the_tests_before_the_interrupt(project: Project) -> None:
    project.control({}, n60={"mode": "hang-benchmark"})
    with project.started() as process:
        project.reached("benchmark", calls=4)
        process.send_signal(signal.SIGINT)
        text = output(process)
    assert "tp1 default n=50 " in text
    assert text.count(" PASS\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_waits_for_the_device(project: Project, number: signal.Signals) -> None:
    project.control({}, n50={"mode": "hang-benchmark"})
    with project.started("-k", "test_x") as holder:
        project.reached("benchmark")
        with project.started("-k", "test_y") as waiter:
            assert waiter.stdout is not None
            lines = []
            for line in waiter.stdout:
                lines.append(line)
                if "r1perf: waiting for the device held by pid" in line:
                    break
            assert f"held by pid {holder.pid} of " in lines[-1]
            assert "test_perf.py::test_x" in lines[-1]
            waiter.send_signal(number)
            assert "performance (r1perf)" in output(waiter)
            assert waiter.returncode == pytest.ExitCode.INTERRUPTED
    project.nothing_left_soon()
    assert len(project.calls()) == 1


def test_sigterm_is_only_taken_while_perf_tests_may_run(project: Project) -> None:
    project.write("""
        import signal

        @perf(topology="tp1", n=50, min_tokps=100)
        def test_perf(): assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

        def test_plain(): assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """)
    project.perf().assert_outcomes(passed=1, deselected=1)
    project.run().assert_outcomes(passed=1, deselected=1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_two_sessions_take_turns(project: Project) -> None:
    project.control({"mode": "slow"})
    with project.started("-k", "test_x") as first, project.started("-k", "test_y") as second:
        outputs = output(first), output(second)
    assert (first.returncode, second.returncode) == (0, 0), outputs
    cells = [call["cell"] for call in project.calls()]
    assert cells in (["n50"] * 3 + ["n60"] * 2, ["n60"] * 2 + ["n50"] * 3)
    assert len(list(project.out.iterdir())) == 2


def test_leftovers_of_a_killed_session_whose_guard_died_too_are_ended_by_the_next(project: Project) -> None:
    project.control({}, n50={"mode": "hang-benchmark"})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark")
        guards = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _is_guard_of(entry, process.pid)
        ]
        assert len(guards) == 1
        os.kill(guards[0], signal.SIGKILL)
        process.kill()
        process.wait()
    (bench,) = {call["pid"] for call in project.calls()}
    result = project.perf("-k", "test_y")
    result.assert_outcomes(passed=1, deselected=1)
    project.nothing_left()
    ended = lines_with(result, "r1perf: ended a leftover of a dead session: ")
    # Any session of this user on this host does it: another test's may have been quicker.
    assert not ended or f"r1perf: ended a leftover of a dead session: pid {bench}" in ended


def _is_guard_of(entry: Path, owner: int) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"guard.py") for word in words) and any(f"-{owner}-".encode() in word for word in words)


# -- places that cannot be written -------------------------------------------------------------------------


def test_out_that_is_a_file(project: Project) -> None:
    blocked = project.root / "blocked"
    blocked.write_text("")
    for args in (["--perf"], ["test_perf.py::test_x"], ["--perf", "-n1"]):
        result = project.run(*args, "--perf-out", "blocked")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
        assert line == f"ERROR: --perf-out {blocked}: cannot be written (File exists): choose another directory" or (
            line == f"ERROR: --perf-out {blocked}: cannot be written (Not a directory): choose another directory"
        )
    assert project.calls() == []


@pytest.fixture
def small_disk(project: Project) -> Iterator[Path]:
    """A disk of 256 KiB for the results."""
    folder = project.root / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("this host lets nobody mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_running(project: Project, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (240 * 1024))
    result = project.perf("--perf-out", "small", "-k", "test_x")
    result.assert_outcomes(failed=1, deselected=1)
    assert verdicts(result) == ["INFRA"]
    (cause,) = lines_with(result, "  cause: ")
    assert "No space left on device" in cause or "full" in cause
    assert "Traceback" not in str(result.stdout)
    project.nothing_left()


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_between_tests(project: Project) -> None:
    project.write("""
        from pathlib import Path

        @perf(topology="tp1", n=50, min_tokps=100, rounds="1:1")
        def test_a():
            Path("small/ballast").write_bytes(b"x" * 4096 * next(n for n in range(64, 0, -1) if _fits(n)))

        @perf(topology="tp1", n=60, min_tokps=100)
        def test_b(): ...

        def _fits(pages):
            try:
                Path("small/ballast").write_bytes(b"x" * 4096 * pages)
            except OSError:
                return False
            return True
        """)
    result = project.perf("--perf-out", "small")
    assert verdicts(result) == ["INFRA", "UNDECIDED"]
    assert "Traceback" not in str(result.stdout)
    project.nothing_left()


def test_a_read_only_lease_directory(project: Project) -> None:
    (project.root / "leases").write_text("a file")
    result = project.perf("-k", "test_x")
    result.assert_outcomes(failed=1, deselected=1)
    assert lines_with(result, f"cause: the lease directory {project.root / 'leases'} is no directory; remove it, or ")
    assert "Traceback" not in str(result.stdout)


# -- environments and data that are wrong ------------------------------------------------------------------


def test_sglang_option_that_leads_nowhere(project: Project) -> None:
    nothing = project.root / "nothing"
    empty = project.root / "empty"
    empty.mkdir()
    bare = make_environment(project.root / "bare", control=project.control_file, version=None)
    old = make_environment(project.root / "old", control=project.control_file, version="0.4.2")
    plain = project.root / "plain.txt"
    plain.write_text("hello")
    true = Path("/bin/true")
    for path, sentence in (
        (nothing, f"ERROR: --sglang {nothing}: does not exist: name a virtual environment or an interpreter"),
        (
            empty,
            f"ERROR: --sglang {empty}: this folder has no bin/python: name a virtual environment or an interpreter",
        ),
        (bare, f"ERROR: --sglang {bare}/bin/python: Python 3."),
        (old, f"ERROR: --sglang {old}/bin/python: sglang 0.4.2 is older than 0.4.3, the first that is supported"),
        (plain, f"ERROR: --sglang {plain}: is not executable: name a Python interpreter"),
        (true, "ERROR: --sglang /bin/true: is no working Python ("),
    ):
        result = project.perf("--sglang", path)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
        assert line.startswith(sentence)
    assert project.calls() == []


def test_sglang_as_interpreter_relative_path_variable_and_ini(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.platform(sglang="/nowhere")
    monkeypatch.setenv("MY_RIG", str(project.root))
    for args in (["--sglang", "env"], ["--sglang", "env/bin/python"], ["--sglang", "$MY_RIG/env"]):
        project.perf("-k", "test_y", *args).assert_outcomes(passed=1, deselected=1)
    project.ini.write_text(project.ini.read_text() + "perf_sglang = env\n")
    (project.root / "sub").mkdir()
    monkeypatch.chdir(project.root / "sub")
    project.perf("..", "-k", "test_y").assert_outcomes(passed=1, deselected=1)


def test_the_platforms_environment_is_wrong(project: Project) -> None:
    project.platform(sglang=str(project.root / "nothing"))
    result = project.perf()
    result.assert_outcomes(failed=2)
    assert verdicts(result) == ["CONFIG", "CONFIG"]
    assert lines_with(result, f"cause: --sglang {project.root / 'nothing'}: does not exist")


def test_an_unset_variable_is_named(project: Project) -> None:
    project.platform(model_path="$NO_SUCH_MODEL")
    result = project.perf("-k", "test_x")
    result.assert_outcomes(failed=1, deselected=1)
    assert lines_with(result, "but the environment variable NO_SUCH_MODEL is not set: export it")


def test_data_sets_that_are_wrong(project: Project) -> None:
    for text, sentence in (
        (sharegpt(49), "gives 49 usable prompts, and n=50 asks for more: take a longer one"),
        ("", "is not JSON: it must be in ShareGPT's format"),
        ("[]", "is empty or no list: it must be in ShareGPT's format"),
        ("{}", "is empty or no list: it must be in ShareGPT's format"),
        (json.dumps([{"prompt": "a"}] * 60), "entry 0 has no 'conversations' with 'value' texts"),
        (None, "cannot be read (No such file or directory): give the platform's dataset path"),
    ):
        project.dataset.unlink(missing_ok=True)
        if text is not None:
            project.dataset.write_text(text)
        result = project.perf("-k", "test_x")
        result.assert_outcomes(failed=1, deselected=1)
        assert verdicts(result) == ["CONFIG"]
        (cause,) = lines_with(result, "  cause: ")
        assert cause.startswith(f"cause: data set {project.dataset}")
        assert sentence in cause
    assert project.calls() == []


def test_models_that_are_wrong(project: Project) -> None:
    (project.model / "config.json").unlink()
    no_config = project.perf("-k", "test_x")
    assert lines_with(no_config, f"cause: model {project.model} has no config.json: it is not a model's folder")
    project.platform(model_path=str(project.root / "nothing"))
    missing = project.perf("-k", "test_x")
    missing.assert_outcomes(failed=1, deselected=1)
    assert lines_with(missing, f"cause: model {project.root / 'nothing'} is not a folder on this host")
    assert project.calls() == []


def test_a_model_without_a_tokenizer(project: Project) -> None:
    (project.model / "tokenizer.json").unlink()
    result = project.perf("-k", "test_x")
    assert verdicts(result) == ["CONFIG"]
    assert lines_with(result, "Can't load tokenizer for")


def killed_in_round_two(project: Project) -> Path:
    """A session whose pytest was killed when one round was known; its record."""
    project.control(n50={"mode": ["ok", "wait-benchmark", "ok"]})
    with project.started("-k", "test_x") as process:
        project.reached("benchmark", calls=2)
        process.kill()
        process.wait()
    (record,) = project.out.glob("*/samples-main.jsonl")
    return record


def test_rounds_from_before_the_host_changed_are_not_pooled(project: Project) -> None:
    record = killed_in_round_two(project)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    (sample,) = [line for line in lines if line["kind"] == "sample"]
    sample["host"]["kernel"] = "5.10.0-before"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = project.perf("--perf-resume", "-k", "test_x")
    result.assert_outcomes(passed=1, deselected=1)
    assert len(project.calls("n50")) == 2 + 3  # two of the killed session, and all three rounds anew
    (remark,) = lines_with(result, "1 earlier rounds are not used: since then the host changed (kernel 5.10.0-before")
    assert remark


def test_rounds_that_were_not_measured_alike_are_invalid(project: Project) -> None:
    project.control(n50={"resolved": [{}, {"attention_backend": "intel_amx"}]})
    result = project.perf("-k", "test_x")
    result.assert_outcomes(failed=1, deselected=1)
    assert lines_with(result, "INVALID: tp1 default n=50")
    assert lines_with(result, "round 2 was not measured like those before it: attention_backend: torch_native -> intel")
