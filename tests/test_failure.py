"""Classification of broken runs: recorded ones, and signatures of public threads as hand-made logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_r1perf.sglang.facts import LogFacts, Phase
from pytest_r1perf.sglang.failure import Failure, FailureClass, classify
from pytest_r1perf.sglang.log import LogReader, read_log

RECORDED = Path(__file__).parent / "recorded"
OOM, HANG, INFRA, CONFIG, CRASH = (
    FailureClass.OOM,
    FailureClass.HANG,
    FailureClass.INFRA,
    FailureClass.CONFIG,
    FailureClass.CRASH,
)
STAMP = "[2026-11-30 09:36:04 TP0] "
LOADING = STAMP + "Load weight begin. avail mem=139.11 GB\n"
WINDOW = "[2026-11-30 09:36:04] \nBenchmark...\n"


def facts_of(text: str) -> LogFacts:
    reader = LogReader()
    reader.feed(text.encode())
    reader.close()
    return reader.facts


def failure(text: str, returncode: int | None = -9, timed_out: bool = False) -> Failure:
    return classify(facts_of(text), returncode=returncode, timed_out=timed_out)


def traceback(exception: str, file: str = "/x/sglang/srt/managers/scheduler.py", first: str = "") -> str:
    return (
        f"{first}Traceback (most recent call last):\n"
        f'  File "{file}", line 10, in run\n'
        '    raise RuntimeError("CUDA out of memory, EADDRINUSE, No space left on device")\n'
        "          ^^^^^^^^\n"
        f"{exception}\n"
    )


SCHEDULER = STAMP + "Scheduler hit an exception: "


# --- recorded


@pytest.mark.parametrize(
    ("name", "returncode", "kind", "line_no", "phase", "cause"),
    [
        (
            "fail_badchoice",
            2,
            CONFIG,
            24,
            Phase.START,
            "argument --attention-backend: invalid choice: 'bogus'",
        ),
        ("fail_badflag", 2, CONFIG, 24, Phase.START, "error: unrecognized arguments: --no-such-flag 1"),
        ("fail_missingval", 2, CONFIG, 24, Phase.START, "--tp-size/--tensor-parallel-size: expected one"),
        ("fail_badds", 1, CONFIG, 62, Phase.READY, "No such file or directory: '/opt/rig/none.json'"),
        ("fail_badlf", -9, CONFIG, 78, Phase.LOAD_WEIGHTS, "Cannot find any model weights with `m_dsv3`"),
        ("fail_badmodel", 1, CONFIG, 14, Phase.START, "HFValidationError: Repo id must be in the form"),
        ("fail_nocfg", 1, CONFIG, 42, Phase.START, "ValueError: Unrecognized model in m_nocfg."),
        ("fail_smalltok", 1, CONFIG, 50, Phase.WARMUP, "Input length (256 tokens) exceeds the maximum"),
        ("knob_dpattn", -9, CRASH, 118, Phase.WARMUP, "AttributeError: 'TorchNativeAttnBackend' object has"),
    ],
)
def test_recorded(name: str, returncode: int, kind: FailureClass, line_no: int, phase: Phase, cause: str) -> None:
    found = classify(read_log(RECORDED / f"{name}.log"), returncode=returncode, timed_out=False)
    assert (found.kind, found.line_no, found.phase) == (kind, line_no, phase)
    assert cause in found.cause
    assert len(found.cause) <= 300
    assert "\n" not in found.cause
    assert found.hint
    # The exit code has no say when the log has a cause, and neither has a later timeout.
    assert classify(read_log(RECORDED / f"{name}.log"), returncode=0, timed_out=True) == found


@pytest.mark.parametrize("name", ["log_tp2", "knob_mr8", "r1-slice_n1000_fa3_fresh2", "r1-mini_n500_triton_0.5.11"])
def test_good_logs_have_no_cause(name: str) -> None:
    facts = read_log(RECORDED / f"{name}.log")
    assert facts.causes == ()
    assert classify(facts, returncode=-9, timed_out=False).cause == "no cause in the log; exit code -9 (SIGKILL)"


# --- signatures of public threads (SGLang's numbers unless said otherwise)


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        # 5285, 1455
        (OOM, STAMP + "Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB\n"),
        (
            OOM,
            traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", first=SCHEDULER),
        ),
        (OOM, traceback("torch.cuda.OutOfMemoryError: CUDA out of memory.")),
        (OOM, traceback("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")),
        (
            OOM,
            traceback("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction"),
        ),
        (OOM, traceback("MemoryError")),
        (OOM, traceback("OSError: [Errno 12] Cannot allocate memory")),
        (
            OOM,
            LOADING + "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit\n",
        ),
        (
            OOM,
            LOADING + "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks\n",
        ),
        # 7553, 17941, 3932
        (HANG, STAMP + "Watchdog timeout (self.watchdog_timeout=300)\npy-spy: command not found\n"),
        (HANG, STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"),
        (
            HANG,
            "[rank3]:[E1130 09:36:04 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=151721, OpType=_ALLGATHER_BASE, Timeout(ms)=600000) ran for 600 ms\n",
        ),
        # 37215, 5386, 14407
        (INFRA, traceback("torch.distributed.DistNetworkError: The server socket has failed: EADDRINUSE")),
        (INFRA, traceback("OSError: [Errno 98] Address already in use")),
        (
            INFRA,
            traceback("ValueError: Port 30000 is not available in 30 seconds. It is used by a process already"),
        ),
        (
            INFRA,
            traceback("huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/datasets"),
        ),
        (
            INFRA,
            traceback(
                'requests.exceptions.ConnectionError: (MaxRetryError("HTTPSConnectionPool('
                "host='huggingface.co', "
                'port=443): Max retries exceeded"))'
            ),
        ),
        (INFRA, traceback("OSError: [Errno 28] No space left on device")),
        (INFRA, traceback("PermissionError: [Errno 13] Permission denied: '/root/.cache'")),
        (INFRA, traceback("RuntimeError: No CUDA GPUs are available")),
        (INFRA, traceback("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.")),
        (INFRA, traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
        (
            INFRA,
            traceback(
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:328, unhandled error\n"
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\n"
                "Last error:\nsocketStartConnect: Connect to 10.0.0.1<41000> failed : No route to host"
            ),
        ),
        (
            INFRA,
            traceback("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2"),
        ),
        (
            INFRA,
            traceback("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other"),
        ),
        (INFRA, traceback("RuntimeError: No accelerator (CUDA, XPU, HPU) is available.")),
        # argparse, moved modules, the configuration
        (CONFIG, "bench.py: error: ambiguous option: --pp could match --pp-size, --pp-async-batch-depth\n"),
        (CONFIG, "/opt/venv/bin/python: No module named sglang.bench_offline_throughput\n"),
        (CONFIG, traceback("ModuleNotFoundError: No module named 'sglang'")),
        (CONFIG, traceback("AssertionError: Please use dp_size > 1", "/x/sglang/srt/server_args.py")),
        (CONFIG, traceback("ValueError: deepep needs ep", "/x/sglang/srt/arg_groups/moe_hook.py")),
        (CONFIG, traceback("AssertionError: 129280 is not divisible by 3", first=SCHEDULER)),
        (CONFIG, traceback('ValueError: Please set backend to either "engine" or "runtime"')),
        # 9706, and what nobody knows yet
        (CRASH, traceback("Exception: Capture cuda graph failed: invalid argument", first=SCHEDULER)),
        (CRASH, traceback("RuntimeError: CUDA error: an illegal memory access was encountered")),
        (CRASH, traceback("AssertionError", "/x/sglang/srt/layers/moe/ep_moe/layer.py", SCHEDULER)),
        (CRASH, "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"),
        (
            CRASH,
            LOADING + STAMP + "Received sigquit from a child proces. It usually means the child failed.\n",
        ),
        (
            CRASH,
            LOADING + "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3). If exit "
            "code is -9 (SIGKILL), a common cause is the OS OOM killer.\n",
        ),
    ],
)
def test_signature(kind: FailureClass, log: str) -> None:
    found = failure(log)
    assert found.kind is kind, found
    assert found.line_no is not None


# --- which cause is the first


def test_source_code_in_frames_is_not_searched() -> None:
    found = failure(traceback("KeyError: 'layers.0'", first=SCHEDULER))
    assert (found.kind, found.cause, found.line_no) == (CRASH, "KeyError: 'layers.0'", 5)


def test_oom_on_one_rank_beats_the_other_ranks_timeouts() -> None:
    log = (
        traceback("torch.OutOfMemoryError: CUDA out of memory.", first=SCHEDULER)
        + "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
        + traceback("EOFError")
    )
    assert failure(log).kind is OOM
    assert failure(log, timed_out=True).kind is OOM


def test_a_crash_before_a_timeout_is_a_crash() -> None:
    log = traceback("KeyError: 1", first=SCHEDULER) + "[E] Watchdog caught collective operation timeout: x\n"
    assert failure(log).kind is CRASH


def test_a_line_after_the_message_is_not_part_of_it() -> None:
    log = traceback("KeyError: 1", first=SCHEDULER) + "\nWatchdog caught collective operation timeout: x\n"
    assert failure(log).cause == "KeyError: 1"


def test_another_ranks_line_inside_a_traceback_is_not_part_of_it() -> None:
    lines = traceback("KeyError: 1", first=SCHEDULER).splitlines(keepends=True)
    log = "".join([*lines[:2], STAMP + "Watchdog timeout (self.watchdog_timeout=3)\n", *lines[2:]])
    found = failure(log)
    assert (found.cause, found.line_no) == ("KeyError: 1", 6)


def test_shutting_down_is_not_surviving() -> None:
    log = (
        LOADING
        + traceback("KeyError: 1")
        + "[2026-11-30 09:36:09] kill_process_tree called: pid=1\n"
        + traceback("EOFError")
    )
    assert failure(log).cause == "KeyError: 1"


def test_colours() -> None:
    found = failure(traceback("\x1b[31mKeyError: 1\x1b[0m", first="\x1b[1m" + SCHEDULER))
    assert (found.kind, found.cause) == (CRASH, "KeyError: 1")


def test_chained_exceptions_are_one_event() -> None:
    log = (
        traceback("KeyError: 'x'")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("OSError: [Errno 98] Address already in use")
    )
    found = failure(log)
    assert (found.kind, found.line_no) == (INFRA, 13)


def test_separate_exceptions_are_not_chained() -> None:
    log = traceback("KeyError: 'x'", first=SCHEDULER) + "\n" * 3 + traceback("OSError: [Errno 98] EADDRINUSE")
    assert failure(log).kind is CRASH


def test_parents_report_comes_before_the_childs_traceback() -> None:
    log = (
        STAMP + "Received sigquit from a child process. It usually means the child failed.\n"
        "Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
        + traceback("EOFError")
        + traceback("ValueError: bad weights", first=SCHEDULER)
    )
    assert failure(log).cause == "ValueError: bad weights"


def test_interleaved_ranks_and_torchs_prefix() -> None:
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        f"{STAMP}Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): 1.00, #queue-req: 0\n"
        '[rank1]:   File "/x/model.py", line 10, in run\n'
        "[rank1]:     boom()\n"
        "[rank1]: IndexError: list index out of range\n"
    )
    found = failure(log)
    assert (found.kind, found.cause, found.line_no) == (CRASH, "IndexError: list index out of range", 5)


def test_a_survived_traceback_is_not_the_cause() -> None:
    log = traceback("ImportError: no optional thing") + LOADING + WINDOW
    assert failure(log + "CUDA out of memory\n").kind is OOM
    assert failure(log, timed_out=True).kind is HANG
    assert failure(log).cause == "ImportError: no optional thing"  # better than nothing


def test_a_scheduler_exception_is_never_survived() -> None:
    log = traceback("KeyError: 1", first=SCHEDULER) + LOADING + STAMP + "Watchdog timeout (self.watchdog_timeout=3)\n"
    assert failure(log).cause == "KeyError: 1"


def test_the_oom_killers_word_beats_a_bare_traceback_only() -> None:
    killer = "[1.5] Out of memory: Killed process 77 (sglang::schedul) total-vm:9kB\n"
    assert failure(traceback("KeyError: 1") + killer).kind is OOM
    assert failure(traceback("OSError: [Errno 98] EADDRINUSE") + killer).kind is INFRA


def test_exit_code_minus_nine_of_a_child_is_oom_only_without_another_reason() -> None:
    dead = STAMP + "Subprocess scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
    assert failure(LOADING + dead).kind is OOM
    assert failure(traceback("KeyError: 1", first=SCHEDULER) + dead).kind is CRASH
    # SGLang's own clean-up, and ours after a timeout, kill children too.
    ended = "[2026-11-30 09:36:04] kill_process_tree called: parent_pid=1\n"
    assert failure(LOADING + ended + dead).kind is CRASH
    assert failure(LOADING + dead, timed_out=True).kind is HANG


@pytest.mark.parametrize(
    "line",
    [
        "Please set proper `--max-total-tokens` to avoid the out-of-memory error.",
        "Ignore import error when loading sglang.srt.models.x: No module named 'sglang.srt.gone'",
        "OpenAI Responses API disabled: init failed (ModuleNotFoundError: No module named 'openai_harmony')",
        "Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.1 -> 0.2",
        "multimem all-gather disabled (Torch not compiled with CUDA enabled)",
        "resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown",
        "usage: x [--watchdog-timeout WATCHDOG_TIMEOUT] error: none",
    ],
)
def test_lines_that_only_sound_like_causes(line: str) -> None:
    assert facts_of(STAMP + line + "\n").causes == ()


def test_an_endpoint_that_is_left_out_is_no_cause() -> None:
    """As 0.5.9's server logs it where a package of one of its endpoints is not there; it then serves."""
    left_out = "[2026-12-01 02:22:10] Can not initialize OpenAIServingResponses, error: "
    text = traceback("ModuleNotFoundError: No module named 'openai_harmony'", first=left_out)
    assert facts_of(text).causes == ()
    assert failure(text).cause.startswith("no cause in the log")
    assert failure(text + traceback("KeyError: 1")).cause == "KeyError: 1"


# --- no cause in the log


def test_timeout_names_the_phase_and_the_last_line() -> None:
    found = failure(WINDOW + "nothing more\n", timed_out=True)
    assert (found.kind, found.line_no, found.phase) == (HANG, None, Phase.BENCHMARK)
    assert found.cause == "no end in time, in phase BENCHMARK; last line: nothing more"


def test_a_start_up_that_deepgemm_compiled_in_names_how_far_it_was() -> None:
    """The end of a real log: one H200, SGLang 0.5.11, ended after 75 s in the capture of the first graph."""
    found = classify(read_log(RECORDED / "deepgemm_0.5.11.log"), returncode=-15, timed_out=True)
    assert (found.kind, found.phase) == (HANG, Phase.CUDA_GRAPHS)
    assert found.cause == (
        "no end in time, in phase CUDA_GRAPHS, while DeepGEMM was compiling: "
        "1025 of 65536 sizes of GEMM_NT_F8F8BF16 N=2112, K=7168"
    )
    for way in ("sglang.compile_deep_gemm", "timeout", "SGLANG_JIT_DEEPGEMM_PRECOMPILE"):
        assert way in found.hint


BAR = "DeepGEMM warmup:  12%|#2  | {}/16384 [00:01<02:43, 99.5it/s]\r"
CAPTURE = STAMP + "Capture cuda graph begin. This can take up to several minutes.\n"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (CAPTURE + BAR.format(100) + BAR.format(300), "compiling: 300 of 16384 sizes"),
        (CAPTURE + BAR.format(100) + BAR.format(16384), None),
        (CAPTURE + BAR.format(100) + "\n" + WINDOW, None),
        (CAPTURE + BAR.format(100) + "\n[2026-11-30 09:36:09] SIGTERM received. Draining\n", "100 of 16384 sizes"),
    ],
)
def test_only_what_was_being_compiled_at_the_end_is_named(log: str, said: str | None) -> None:
    found = failure(log, timed_out=True)
    if said is None:
        assert "DeepGEMM was compiling" not in found.cause
    else:
        assert found.cause.endswith(said)
        assert found.phase is Phase.CUDA_GRAPHS


def test_a_start_that_we_ended_hung_in_the_start() -> None:
    """A server that gets our SIGTERM says so: no measurement was over then."""
    found = failure(CAPTURE + "[2026-11-30 09:36:09] SIGTERM received. Draining\n", timed_out=True)
    assert found.phase is Phase.CUDA_GRAPHS
    assert "graph capture" in found.hint


def test_what_python_says_of_a_killed_process_is_not_the_last_line() -> None:
    noise = (
        "x/resource_tracker.py:254: UserWarning: leaked\n  warnings.warn('resource_tracker: There appear to be %d '\n"
    )
    found = failure(CAPTURE + noise, timed_out=True)
    assert "resource_tracker" not in found.cause
    assert "Capture cuda graph begin" in found.cause


def test_our_own_ending_of_a_hang_is_no_cause() -> None:
    log = WINDOW + "[2026-11-30 09:36:09] SIGTERM received. Draining\n" + traceback("KeyboardInterrupt")
    assert failure(log, timed_out=True).kind is HANG
    assert failure(log + traceback("RuntimeError: cancelled"), timed_out=True).kind is HANG


def test_hang_in_the_shutdown_says_that_the_result_is_lost() -> None:
    found = failure(WINDOW + "[2026-11-30 09:36:09] kill_process_tree called: pid=1\n", timed_out=True)
    assert found.phase is Phase.SHUTDOWN
    assert "lost" in found.hint


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (-9, "exit code -9 (SIGKILL)"),
        (137, "exit code 137 (SIGKILL)"),
        (3, "exit code 3"),
        (None, "exit code unknown"),
    ],
)
def test_the_exit_code_is_only_reported(returncode: int | None, text: str) -> None:
    found = failure("", returncode)
    assert (found.kind, found.cause) == (CRASH, f"no cause in the log; {text}")


def test_a_traceback_that_was_cut_off() -> None:
    found = failure('Traceback (most recent call last):\n  File "/x/model.py", line 1, in f\n    g(')
    assert (found.kind, found.line_no) == (CRASH, 1)
    assert found.cause == "a traceback that was cut off in /x/model.py"


def test_causes_are_bounded_and_each_rule_is_kept() -> None:
    log = (STAMP + "Input length (9 tokens) exceeds the maximum allowed length (5 tokens).\n") * 200
    facts = facts_of(log + "CUDA out of memory\n")
    assert len(facts.causes) == 33
    assert facts.causes[-1].rule == "gpu-oom"
