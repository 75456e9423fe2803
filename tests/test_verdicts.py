"""The verdicts of design section 5 and 6, end to end: a marked test, a fake SGLang process, pytest's outcome.

The fake's speeds are total tok/s; 50 rows of 20 + 30 words are 2,500 tokens. The platform's tolerance is 30 %, its
error rate 0.01 a cell, and a round differs from the next by 0.2 %.
"""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.project import Project, lines_with, verdicts

ONE = """
@perf(topology="tp1", n=50)
def test_x(): ...
"""


@pytest.fixture
def measured(r1perf_project: Project) -> Project:
    """One test with a stored baseline of 4,500 tok/s."""
    r1perf_project.write(ONE)
    r1perf_project.control({"speed": 4500})
    stored = r1perf_project.perf("--perf-update-new")
    stored.assert_outcomes(passed=1)
    assert verdicts(stored) == ["BASELINE STORED"]
    return r1perf_project


def failure(result: pytest.RunResult) -> list[str]:
    """The lines of the only failure's section."""
    lines = result.outlines
    start = next(number for number, line in enumerate(lines) if re.match(r"_+ \S+ _+$", line))
    end = next(number for number, line in enumerate(lines[start + 1 :], start + 1) if re.match(r"[=_]{10,}", line))
    return lines[start + 1 : end]


# -- against a baseline ------------------------------------------------------------------------------------


def test_unchanged_passes(measured: Project) -> None:
    result = measured.perf()
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert verdicts(result) == ["PASS"]
    (row,) = lines_with(result, "tp1 default n=50 ")
    assert "4,504" in row


def test_halved_fails_with_a_short_message(measured: Project) -> None:
    measured.control({"speed": 2250})
    result = measured.perf()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    assert verdicts(result) == ["REGRESSED"]
    lines = failure(result)
    assert lines[0] == "REGRESSED: tp1 default n=50 on cpu"
    assert lines[1].startswith(
        "  total_throughput REGRESSED: median 2,249 over 2 rounds; baseline 4,504, ratio 0.499 ["
    )
    assert "surely below the reference less the tolerance" in lines[1]
    assert lines[2] == "  changed since the baseline: nothing in versions, environment or command line"
    assert lines[3].startswith("  log: ")
    assert Path(lines[3].removeprefix("  log: ")).read_text().endswith("=" * 50 + "\n")
    assert lines[4:] == ["  reproduce: pytest test_perf.py::test_x --perf --perf-platform cpu"]


def test_the_reproduce_command_works(measured: Project) -> None:
    measured.control({"speed": 2250})
    (line,) = lines_with(measured.perf("--sglang", measured.environment), "  reproduce: ")
    command = shlex.split(line.removeprefix("reproduce: "))
    assert command[0] == "pytest"
    again = measured.run(*command[1:])
    again.assert_outcomes(failed=1)
    assert verdicts(again) == ["REGRESSED"]
    assert len(measured.calls()) == 6


def test_the_reproduce_command_works_from_another_directory_and_keeps_options(
    measured: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.control({"speed": 4000})
    (measured.root / "sub").mkdir()
    monkeypatch.chdir(measured.root / "sub")
    shown = measured.perf("..", "--perf-tolerance", "0.05", "--sglang", "../env", "--rootdir", "..")
    shown.assert_outcomes(failed=1)
    (line,) = lines_with(shown, "  reproduce: ")
    monkeypatch.chdir(measured.root)
    again = measured.run(*shlex.split(line.removeprefix("reproduce: "))[1:])
    again.assert_outcomes(failed=1)
    assert verdicts(again) == ["REGRESSED"]


def test_doubled_is_improved(measured: Project) -> None:
    measured.control({"speed": 9000})
    result = measured.perf()
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert verdicts(result) == ["IMPROVED"]
    assert lines_with(result, "improved: consider --perf-update")


def test_rounds_that_are_all_equal(r1perf_project: Project) -> None:
    """No spread at all: the interval is a point, and no division by it fails."""
    r1perf_project.write(ONE)
    r1perf_project.control({"jitter": 0})
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=1)
    assert verdicts(r1perf_project.perf()) == ["PASS"]
    r1perf_project.control({"jitter": 0, "speed": 2250})
    assert verdicts(r1perf_project.perf()) == ["REGRESSED"]


def test_undecided_is_skipped_and_says_what_would_decide(measured: Project) -> None:
    measured.control({"speed": [0, 0, 4500, 2200]})
    result = measured.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert verdicts(result) == ["UNDECIDED"]
    (line,) = lines_with(result, "SKIPPED [1]")
    assert line.startswith("SKIPPED [1] test_perf.py:5: UNDECIDED: tp1 default n=50: total_throughput UNDECIDED")
    assert re.search(r"\d+ rounds would decide it|more rounds alone would not decide it", line)
    assert lines_with(result, "nothing was decided: the session exits non-zero")


def test_gate_by_option_and_by_ini(measured: Project) -> None:
    measured.control({"speed": [0, 0, 4500, 2200, 4500, 2200]})
    result = measured.perf("--perf-gate")
    result.assert_outcomes(failed=1)
    assert failure(result)[0] == "UNDECIDED: tp1 default n=50 on cpu"
    measured.ini.write_text(measured.ini.read_text() + "perf_gate = true\n")
    measured.perf().assert_outcomes(failed=1)


def test_no_baseline_is_skipped_and_exits_non_zero(r1perf_project: Project) -> None:
    r1perf_project.write(ONE)
    result = r1perf_project.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert verdicts(result) == ["NO BASELINE"]
    assert lines_with(result, "SKIPPED [1] test_perf.py:5: NO BASELINE: tp1 default n=50: nothing is stored")
    gated = r1perf_project.perf("--perf-gate")
    gated.assert_outcomes(failed=1)


def test_one_decided_cell_makes_the_session_green(r1perf_project: Project) -> None:
    r1perf_project.write(ONE + '\n@perf(topology="tp1", n=60, min_tokps=100)\ndef test_floor(): ...\n')
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0


def test_incomparable_by_protocol(measured: Project) -> None:
    measured.edit("chunked_prefill_size: 4096", "chunked_prefill_size: 8192")
    measured.edit("num_prompts: 50", "num_prompts: 51")
    result = measured.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert verdicts(result) == ["INCOMPARABLE"]
    (line,) = lines_with(result, "SKIPPED [1]")
    assert (
        "INCOMPARABLE: tp1 default n=50: protocol: num_prompts: 51 -> 50; protocol: chunked_prefill_size: 8192 -> 4096"
        in (line)
    )
    measured.perf("--perf-gate").assert_outcomes(failed=1)


def test_a_version_bump_is_a_note_and_no_bar(measured: Project) -> None:
    measured.edit("sglang: 0.5.20", "sglang: 0.5.18")
    measured.control({"speed": 2250})
    result = measured.perf()
    result.assert_outcomes(failed=1)
    assert "  changed since the baseline: versions: sglang: 0.5.18 -> 0.5.20" in failure(result)


def test_incomparable_by_hardware(measured: Project) -> None:
    path = measured.baseline_file()
    other = measured.baselines / "cpu-another-8c" / path.name
    other.parent.mkdir()
    text = path.read_text()
    other.write_text(re.sub(r"  name: .*\n  count: \d+", "  name: Another CPU\n  count: 8", text))
    path.unlink()
    result = measured.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert verdicts(result) == ["INCOMPARABLE"]
    (line,) = lines_with(result, "SKIPPED [1]")
    assert "INCOMPARABLE: tp1 default n=50: hardware: Another CPU, 8 -> " in line
    assert line.endswith(": store a baseline of this hardware with --perf-update-new")
    stored = measured.perf("--perf-update-new")
    assert verdicts(stored) == ["BASELINE STORED"]
    assert "--perf-update-new" not in stored.stdout.str()


def test_baseline_moved_to_another_hardwares_folder_is_refused(measured: Project) -> None:
    measured.edit("count: ", "count: 9")
    result = measured.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["CONFIG"]
    assert "move the file, or measure anew with --perf-update" in str(result.stdout)
    assert len(measured.calls()) == 2


# -- floors ------------------------------------------------------------------------------------------------


def test_floors(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp1", n=50, min_tokps=4000)
        def test_held(): ...

        @perf(topology="tp1", n=60, min_tokps=5000)
        def test_broken(): ...

        @perf(topology="tp1", n=70, min_tokps=4500)
        def test_near(): ...

        @perf(topology="tp1", n=80, min_tokps=80, metric="request_throughput")
        def test_other_unit(): ...
        """)
    result = r1perf_project.perf(
        "-rA"
    )  # in the summary, since a message of ours may stand in the middle of a line of -v
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    for said in (
        "PASSED *::test_held",
        "PASSED *::test_other_unit",
        "FAILED *::test_broken*",
        "SKIPPED * test_perf.py:*",
    ):
        result.stdout.fnmatch_lines([said])
    assert lines_with(result, "floor 5,000, mean 4,50")
    assert lines_with(result, "surely below the floor")


def test_a_floor_holds_on_the_platform_that_the_file_names(r1perf_project: Project) -> None:
    r1perf_project.write("""
        perf_platform = "h200x8"

        @perf(topology="tp1", n=50, min_tokps=22000)
        def test_elsewhere(): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1)
    assert verdicts(result) == ["NO BASELINE"]
    assert lines_with(result, "the floor 22000 is for platform 'h200x8': not applied here")


def test_a_marker_for_another_platform_is_skipped(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp8", n=50, min_tokps=22000, platform="h200x8")
        def test_pinned(): ...
        """)
    result = r1perf_project.perf("-rs", "--perf-platform", "cpu")
    result.assert_outcomes(skipped=1)
    assert lines_with(result, "is for platform 'h200x8'; this session runs on 'cpu'")
    assert r1perf_project.calls() == []


def test_regressed_beats_a_held_floor(measured: Project) -> None:
    measured.write('@perf(topology="tp1", n=50, min_tokps=1000)\ndef test_x(): ...')
    measured.control({"speed": 2250})
    result = measured.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["REGRESSED"]


def test_incomparable_still_fails_a_broken_floor(measured: Project) -> None:
    measured.write('@perf(topology="tp1", n=50, min_tokps=9000)\ndef test_x(): ...')
    measured.edit("chunked_prefill_size: 4096", "chunked_prefill_size: 8192")
    result = measured.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["REGRESSED"]


# -- tolerance, rounds, budget, quarantine -----------------------------------------------------------------


def test_tolerance_option_over_marker_over_baseline_over_platform(measured: Project) -> None:
    measured.control({"speed": 4000})  # 0.89 of the baseline
    assert verdicts(measured.perf()) == ["PASS"]  # the platform's 30 %
    measured.edit("tolerance: null", "tolerance: 0.05")
    assert verdicts(measured.perf()) == ["REGRESSED"]
    measured.write('@perf(topology="tp1", n=50, tolerance=0.2)\ndef test_x(): ...')
    assert verdicts(measured.perf()) == ["PASS"]
    assert verdicts(measured.perf("--perf-tolerance", "0.02")) == ["REGRESSED"]


def test_rounds_stop_early_when_decided_and_go_on_when_not(measured: Project) -> None:
    measured.control({"speed": 4500})
    assert verdicts(measured.perf("--perf-rounds", "2:4")) == ["PASS"]
    assert len(measured.calls()) == 2 + 2
    measured.control({"speed": [0, 0, 0, 0, 4500, 2200, 4500, 2200]})
    result = measured.perf("--perf-rounds", "2:4")
    assert verdicts(result) == ["UNDECIDED"]
    assert len(measured.calls()) == 4 + 4


def test_no_look_between_the_planned_ones(measured: Project) -> None:
    """Open after two rounds, and four is the next look: the third round decides nothing."""
    measured.control({"speed": [0, 0, 4500, 2200, 4500, 4500, 4500]})
    measured.perf("--perf-rounds", "2:5")
    assert len(measured.calls()) == 2 + 5


def test_marker_rounds_and_option_rounds(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50, rounds="3:3", min_tokps=100)\ndef test_x(): ...')
    r1perf_project.perf().assert_outcomes(passed=1)
    assert len(r1perf_project.calls()) == 3
    r1perf_project.perf("--perf-rounds", "1").assert_outcomes(skipped=1)
    assert len(r1perf_project.calls()) == 4


def test_one_round_says_nothing_of_the_spread(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50, min_tokps=100)\ndef test_x(): ...')
    result = r1perf_project.perf("-rs", "--perf-rounds", "1")
    assert verdicts(result) == ["UNDECIDED"]
    assert lines_with(result, "one round a side says nothing about the spread: measure at least two")


def test_a_spent_budget_starts_no_round(r1perf_project: Project) -> None:
    r1perf_project.write(ONE.replace("n=50", "n=50, min_tokps=100"))
    result = r1perf_project.perf("--perf-budget", "0.001s", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert r1perf_project.calls() == []
    assert verdicts(result) == ["UNDECIDED"]
    assert lines_with(result, "--perf-budget was spent after 0 rounds")
    assert lines_with(result, "SKIPPED [1] test_perf.py:5: UNDECIDED: tp1 default n=50: no round was measured")
    r1perf_project.perf("--perf-budget", "1h").assert_outcomes(passed=1)


def test_quarantine_up_to_the_day_and_not_after(measured: Project) -> None:
    measured.control({"speed": 2250})
    measured.write('@perf(topology="tp1", n=50, quarantine_until="2999-01-01")\ndef test_x(): ...')
    result = measured.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert verdicts(result) == ["REGRESSED"]
    assert lines_with(result, "quarantined REGRESSED: tp1 default n=50")
    assert lines_with(result, "quarantined")
    measured.write('@perf(topology="tp1", n=50, quarantine_until="2020-01-01")\ndef test_x(): ...')
    measured.perf().assert_outcomes(failed=1)


def test_every_failing_metric_is_listed(measured: Project) -> None:
    measured.write('@perf(topology="tp1", n=50, metric=["output_throughput", "total_latency"])\ndef test_x(): ...')
    measured.control({"speed": 2250})
    result = measured.perf()
    result.assert_outcomes(failed=1)
    lines = failure(result)
    assert lines[1].startswith(
        "  output_throughput REGRESSED: median 1,349 over 2 rounds; baseline 2,703, ratio 0.499 ["
    )
    assert lines[2].startswith("  total_latency REGRESSED: median 1.112 over 2 rounds; baseline 0.555, ratio 0.499 [")
    assert verdicts(result) == ["REGRESSED", "REGRESSED"]
    assert lines_with(result, "total_latency in s: ")[0].endswith("less is better")


def test_two_tests_of_one_cell_share_its_rounds(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp1", n=50, min_tokps=100)
        def test_x(): ...

        @perf(topology="tp1", n=50, min_tokps=9000)
        def test_y(): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1, failed=1)
    assert len(r1perf_project.calls()) == 2


# -- broken runs and numbers that are none -----------------------------------------------------------------


def test_numbers_that_are_no_measurement_are_invalid(r1perf_project: Project) -> None:
    wrong = {
        "fewer": "num-prompts: successful_requests is 9; num_prompts is 10",
        "tokens": "total-output-tokens: total_output_tokens is 325; the workload says 330",
        "nan": "not-finite: ",
        "minus-one": "positive: total_throughput is -1.0",
        "zero": "positive: total_throughput is 0.0",
        "wrong-total": "total-throughput: total_throughput is 9000.0",
        "two-lines": "one-result-line: the result file has 2 new lines; one process writes 1",
        "no-line": "table-without-jsonl: the table was printed, and the result file has 0 new lines instead of 1",
        "no-table": "jsonl-without-table: the result file has a new line, and the log has 0 tables instead of 1",
        "garbled": "table-garbled: the table's rows total_throughput cannot be read",
        "truncated": "truncated-line: ",
        "jit": "compilation: kernels were compiled in the timed window",
    }
    numbers = range(10, 10 + len(wrong))
    r1perf_project.control({}, **{f"n{n}": {"mode": mode} for n, mode in zip(numbers, wrong, strict=True)})
    r1perf_project.write(f"""
        @pytest.mark.parametrize("n", {list(numbers)})
        @perf(topology="tp1", min_tokps=100)
        def test_x(n): assert False, "the body of an invalid measurement never runs"
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(failed=len(wrong))
    assert verdicts(result) == ["INVALID"] * len(wrong)
    assert len(r1perf_project.calls()) == len(wrong)
    assert lines_with(result, "the body of an invalid") == []
    causes = lines_with(result, "  cause: ")
    for sentence, cause in zip(wrong.values(), causes, strict=True):
        assert sentence in cause
    heads = [line for line in result.outlines if line.startswith("INVALID: tp1 default n=")]
    assert heads == [f"INVALID: tp1 default n={n} on cpu" for n in numbers]


def test_broken_runs_are_classified_by_their_first_cause(r1perf_project: Project) -> None:
    modes = ["oom", "argparse", "sigquit", "silent-kill"]
    r1perf_project.control({}, **{f"n{n}": {"mode": mode} for n, mode in enumerate(modes, 10)})
    r1perf_project.write("""
        @pytest.mark.parametrize("n", [10, 11, 12, 13])
        @perf(topology="tp1", min_tokps=100)
        def test_x(n): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(failed=4)
    assert verdicts(result) == ["OOM", "CONFIG", "CRASH", "CRASH"]
    causes = lines_with(result, "  cause: ")
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in causes[0]
    assert "unrecognized arguments: --no-such-flag 1" in causes[1]
    assert "RuntimeError: the fake kernel is not there" in causes[2]
    assert "no cause in the log; exit code -9 (SIGKILL)" in causes[3]
    assert r1perf_project.leftovers() == []


def test_a_crash_in_a_later_round_is_not_retried(r1perf_project: Project) -> None:
    r1perf_project.write(ONE.replace("n=50", "n=50, min_tokps=100"))
    r1perf_project.control({"mode": ["ok", "sigquit", "ok"]})
    result = r1perf_project.perf("--perf-rounds", "3")
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["CRASH"]
    assert len(r1perf_project.calls()) == 2


def test_hangs(r1perf_project: Project) -> None:
    r1perf_project.control({}, n10={"mode": "hang-warm-up"}, n11={"mode": "hang-result"})
    r1perf_project.write("""
        @pytest.mark.parametrize("n", [10, 11])
        @perf(topology="tp1", min_tokps=100, rounds="1:1", timeout=1.5)
        def test_x(n): ...
        """)
    result = r1perf_project.perf()
    assert verdicts(result) == ["HANG", "UNDECIDED"]  # the second was measured, once
    assert "no end in time, in phase WARMUP" in lines_with(result, "  cause: ")[0]
    assert lines_with(result, "the result was complete, but the process ran into the timeout and was ended")
    r1perf_project.nothing_left()


def test_good_results_with_a_bad_way_out(r1perf_project: Project) -> None:
    r1perf_project.control({}, n10={"mode": "teardown-kill"}, n11={"mode": "daemon"}, n12={"mode": "retract"})
    r1perf_project.write("""
        @pytest.mark.parametrize("n", [10, 11, 12])
        @perf(topology="tp1", min_tokps=100)
        def test_x(n): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(passed=3)
    assert lines_with(result, "teardown failed (rc -9)")
    assert len(lines_with(result, "n=12: round 1: 3 requests were retracted")) == 1
    daemon = int((r1perf_project.fake / "daemon.pid").read_text())
    assert daemon not in r1perf_project.leftovers()
    r1perf_project.nothing_left()


# -- the body ----------------------------------------------------------------------------------------------


def test_failing_body_and_regression_are_both_reported(measured: Project) -> None:
    measured.write('@perf(topology="tp1", n=50)\ndef test_x(): assert 1 == 2, "the body says no"')
    measured.control({"speed": 2250})
    result = measured.perf()
    result.assert_outcomes(failed=1)
    text = str(result.stdout)
    assert "the body says no" in text
    assert "r1perf verdict" in text
    assert "REGRESSED: tp1 default n=50 on cpu" in text
    assert lines_with(result, "pytest test_perf.py::test_x --perf --perf-platform cpu")


def test_failing_body_beats_a_skip(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50)\ndef test_x(): assert 1 == 2, "the body says no"')
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["NO BASELINE"]
    assert lines_with(result, "the body says no")


def test_the_bodys_own_skip_and_xfail(measured: Project) -> None:
    measured.write("""
        @perf(topology="tp1", n=50)
        def test_skip(): pytest.skip("not today")

        @perf(topology="tp1", n=50)
        def test_xfail(): pytest.xfail("known")
        """)
    result = measured.perf("-rs")
    result.assert_outcomes(skipped=1, xfailed=1)
    assert lines_with(result, "not today")
    measured.control({"speed": 2250})
    worse = measured.perf()
    worse.assert_outcomes(failed=2)
    assert verdicts(worse) == ["REGRESSED", "REGRESSED"]


def test_a_skip_mark_measures_nothing(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.mark.skip(reason="off")
        @perf(topology="tp1", n=50)
        def test_x(): ...

        @pytest.mark.xfail(run=False)
        @perf(topology="tp1", n=50)
        def test_y(): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1, xfailed=1)
    assert r1perf_project.calls() == []
    assert result.ret == 1


def test_perf_result_has_everything_measured(measured: Project) -> None:
    measured.write("""
        @perf(topology="tp1", n=50)
        def test_x(perf_result):
            assert perf_result.verdict == "PASS"
            assert perf_result.num_prompts == 50
            assert perf_result.topology == "tp1"
            assert perf_result.label == "tp1 default n=50"
            assert [sample.round for sample in perf_result.samples] == [1, 2]
            assert [round(value) for value in perf_result.values()] == [4491, 4504]
            assert round(perf_result.median("output_throughput")) == 2699
            assert perf_result.values("total_latency")[0] == pytest.approx(2500 / 4491)
            assert perf_result.versions["sglang"] == "0.5.20"
            assert perf_result.protocol["num_prompts"] == 50
            assert perf_result.resolved["attention_backend"] == "torch_native"
            assert perf_result.log.endswith("round-2/log.txt")
            assert perf_result.judgements[0].metric == "total_throughput"
            assert perf_result.notes == ()
            with pytest.raises(AttributeError):
                perf_result.nonsense
        """)
    measured.perf().assert_outcomes(passed=1)


def test_perf_result_is_lazy(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.fixture
        def early(perf_result):
            return perf_result.verdict

        @perf(topology="tp1", n=50)
        def test_x(early): ...

        def test_unmarked(perf_result): ...
        """)
    result = r1perf_project.run("test_perf.py::test_x", "test_perf.py::test_unmarked")
    result.assert_outcomes(errors=2)
    assert lines_with(result, "perf_result is filled just before the test's body runs: use it there, not in a fixture")
    assert lines_with(result, "perf_result needs a test with a perf marker: add @perf(topology=..., n=...)")
    assert r1perf_project.calls() == []


def test_perf_lab_measures_and_compares(r1perf_project: Project) -> None:
    r1perf_project.control({"speed": 4500})
    r1perf_project.slow_cell(speed=2250)
    r1perf_project.write("""
        @perf(topology="tp1", n=50)
        def test_lab(perf_lab):
            fast = perf_lab.measure()
            slow = perf_lab.measure(flags={"max_running_requests": 8})
            comparison = perf_lab.compare(fast, slow)
            assert comparison.a_wins
            assert not comparison.b_wins
            assert comparison.ratio.estimate == pytest.approx(2.0, rel=0.01)
            assert perf_lab.compare(fast, slow, "total_latency").a_wins
            assert not perf_lab.compare(fast, fast).a_wins
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert verdicts(result) == ["MEASURED", "MEASURED"]
    assert len(r1perf_project.calls()) == 4


def test_perf_lab_mistakes_and_broken_cells(r1perf_project: Project) -> None:
    r1perf_project.control({}, n20={"mode": "oom"})
    r1perf_project.write("""
        @perf(topology="tp1", n=50)
        def test_mistake(perf_lab): perf_lab.measure(toplogy="tp2")

        @perf(topology="tp1", n=50)
        def test_broken(perf_lab):
            perf_lab.measure(n=20)
            raise AssertionError("never here")

        @perf(topology="tp1", n=50)
        def test_no_fit(perf_lab): perf_lab.measure(topology="tp8", platform="h200x8")
        """)
    result = r1perf_project.perf("-rs")
    result.assert_outcomes(failed=2, skipped=1)
    assert lines_with(result, "perf() has no argument 'toplogy'; did you mean 'topology'?")
    assert verdicts(result) == ["OOM"]
    assert lines_with(result, "never here") == []
    assert lines_with(result, "topology 'tp8' needs 8 GPUs on 1 node")


def test_junit_has_failures_and_properties(measured: Project) -> None:
    measured.write(ONE + '\n@perf(topology="tp1", n=60)\ndef test_new(): ...\n')
    measured.control({"speed": 2250})
    measured.perf("--junitxml=junit.xml").assert_outcomes(failed=1, skipped=1)
    suite = ElementTree.parse(measured.root / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "0", "1")
    (case,) = [case for case in suite.iter("testcase") if case.get("name") == "test_x"]
    (failed,) = case.iter("failure")
    assert "REGRESSED: tp1 default n=50 on cpu" in (failed.get("message") or "") + (failed.text or "")
    assert "Traceback" not in (failed.text or "")
    properties = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert properties["r1perf_verdict"] == "REGRESSED"
    assert properties["r1perf_cell"] == "tp1/cpu/default/sharegpt/n50/offline"
    assert float(properties["r1perf_total_throughput"] or 0) == pytest.approx(2249, rel=0.01)


# -- anti-patterns -----------------------------------------------------------------------------------------

SLOWER = """
@perf(topology="tp1", n=50, flags={"max_running_requests": 8})
def test_x(): ...
"""


def test_an_antipattern_that_loses_is_xfailed(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER)
    r1perf_project.slow_cell(speed=2250)
    result = r1perf_project.perf("-rx")
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0
    assert verdicts(result) == ["XFAIL"]
    assert lines_with(result, "XFAIL test_perf.py::test_x - cpu-few-running-requests: eight running requests at most")
    (cost,) = lines_with(result, "cpu-few-running-requests: slower than the reference, as expected: ")
    assert "total_throughput -50% [" in cost
    assert "published -52%" in cost


def test_an_antipattern_that_no_longer_loses_fails(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER)
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["XPASS"]
    assert failure(result)[0] == "XPASS: tp1 default n=50 max_running_requests=8 on cpu"
    assert lines_with(result, "re-validate this rule")


def test_an_antipattern_in_between_is_undecided(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER)
    r1perf_project.slow_cell(speed=[4500, 2250])
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert verdicts(result) == ["UNDECIDED"]


@pytest.mark.parametrize(("mode", "verdict"), [("sigquit", "CRASH"), ("oom", "OOM"), ("nan", "INVALID")])
def test_an_xfail_hides_no_broken_run(r1perf_project: Project, mode: str, verdict: str) -> None:
    r1perf_project.write(SLOWER)
    r1perf_project.slow_cell(mode=mode)
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == [verdict]


def test_a_broken_reference_is_named(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER)
    r1perf_project.control({}, n50={"mode": "sigquit"})
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert lines_with(result, "cause: the reference tp1 default n=50: ")


def test_runxfail_shows_the_loss_as_a_failure_with_the_table(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER)
    r1perf_project.slow_cell(speed=2250)
    result = r1perf_project.perf("--runxfail")
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["XFAIL"]


def test_a_failing_body_of_an_antipattern_fails(r1perf_project: Project) -> None:
    r1perf_project.write(SLOWER.replace("...", "assert 1 == 2"))
    r1perf_project.slow_cell(speed=2250)
    r1perf_project.perf().assert_outcomes(failed=1)


def test_antipatterns_fixture(r1perf_project: Project) -> None:
    r1perf_project.slow_cell(speed=2250)
    r1perf_project.write("""
        @perf(topology="tp1", n=50, flags={"max_running_requests": 8})
        def test_x(antipatterns):
            assert [rule.id for rule in antipatterns.matched] == ["cpu-few-running-requests"]
            assert "fp4-kv-cache" in antipatterns
        """)
    r1perf_project.perf().assert_outcomes(xfailed=1)


def test_an_advisory_is_a_note(r1perf_project: Project) -> None:
    r1perf_project.write(
        '@perf(topology="tp1", n=50, min_tokps=100, flags={"max_running_requests": 9000})\ndef test_x(): ...'
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert lines_with(result, "max-running-requests-high: max-running-requests set very high; instead: ")


EVIDENCE = """
@perf(topology="tp1", n=50)
def test_x(perf_lab, load_evidence):
    pairs = []
    for n in {loads}:
        a = perf_lab.measure(n=n)
        b = perf_lab.measure(n=n, flags={{"schedule_policy": "lof"}})
        pairs.append((a, b))
    ranking = load_evidence("fcfs beats lof", *pairs)
    assert len(ranking.flips) == {flips}
"""


def test_a_conclusion_from_low_loads_only_is_xfailed(r1perf_project: Project) -> None:
    r1perf_project.write(EVIDENCE.format(loads=[10, 20], flips=0))
    result = r1perf_project.perf("-rx")
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0
    (line,) = lines_with(result, "XFAIL test_perf.py::test_x")
    assert "'fcfs beats lof' rests on low loads only (N=20 at most, 40 is the least" in line


def test_with_a_high_load_the_high_load_counts_and_a_flip_is_reported(r1perf_project: Project) -> None:
    # calls per cell alternate: fcfs, fcfs, lof, lof
    r1perf_project.control({}, n10={"speed": [4500, 4500, 2250]}, n50={"speed": [2250, 2250, 4500]})
    r1perf_project.write(EVIDENCE.format(loads=[10, 50], flips=1))
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert len(lines_with(result, "flip: fcfs beats lof: ")) == 1
    assert len(lines_with(result, "(N=10 says the opposite)")) == 1


def test_a_lab_that_measures_nothing_is_no_pass(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @pytest.fixture
        def helper(perf_lab):
            return perf_lab

        @perf(topology="tp1", n=50)
        def test_x(helper): ...
        """)
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["INVALID: the test takes perf_lab and measured nothing*"])


def test_a_secret_among_the_flags_is_refused(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50, flags={"api_key": "sk-1"})\ndef test_x(): ...\n')
    result = r1perf_project.perf()
    result.stdout.fnmatch_lines(["test_x: flags*'api_key'* looks like a secret*use env"])
    result.stdout.no_fnmatch_line("*sk-1*")


def test_quarantine_alone_decides_nothing(r1perf_project: Project) -> None:
    r1perf_project.control({"mode": "sigquit"})
    r1perf_project.write('@perf(topology="tp1", n=50, quarantine_until="2999-12-31")\ndef test_x(): ...\n')
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1)
    assert result.ret == 1


def test_too_few_rounds_are_not_stored(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50, rounds="3")\ndef test_x(): ...\n')
    r1perf_project.perf("--perf-update-new", "--perf-budget", "0.01s").assert_outcomes(skipped=1)
    assert not r1perf_project.baselines.exists()
