"""The log reader on recorded logs and hand-made lines. Every expected value was read off the log by eye."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_r1perf.sglang.decode import MAX_POINTS
from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import DecodePoint, LogFacts, Phase
from pytest_r1perf.sglang.log import _NEEDLES, MAX_LINE, TAIL_LINES, LogReader, progress, read_log
from pytest_r1perf.sglang.server_args import parse_record, parse_server_args, resolved_from_server_info

RECORDED = Path(__file__).parent / "recorded"


def read(text: str | bytes) -> LogFacts:
    reader = LogReader()
    reader.feed(text.encode() if isinstance(text, str) else text)
    reader.close()
    return reader.facts


def decode_line(running: int, throughput: float, queue: int = 0, ranks: str = "") -> str:
    return (
        f"[2026-11-30 09:36:04{ranks}] Decode batch, #running-req: {running}, #token: 9, token usage: 0.00, "
        f"cuda graph: True, gen throughput (token/s): {throughput:.2f}, #queue-req: {queue}\n"
    )


BENCHMARK = "[2026-11-30 09:36:02] \nBenchmark...\n"


# --- recorded logs


def test_h200_log() -> None:
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    assert [(m.phase, m.line_no, m.timestamp) for m in facts.phases] == [
        (Phase.START, 1, None),
        (Phase.ARGUMENTS, 5, "2026-11-30 09:55:43"),
        (Phase.LOAD_WEIGHTS, 19, "2026-11-30 09:56:06"),
        (Phase.KV_CACHE, 23, "2026-11-30 09:56:06"),
        (Phase.CUDA_GRAPHS, 25, "2026-11-30 09:56:07"),
        (Phase.READY, 39, "2026-11-30 09:56:10"),
        (Phase.WARMUP, 46, "2026-11-30 09:56:10"),
        (Phase.BENCHMARK, 50, "2026-11-30 09:56:11"),
        (Phase.RESULT, 71, None),  # 0.5.11 says nothing at the shutdown
    ]
    assert facts.workload_tokens == (83185, 99497)
    assert facts.max_total_num_tokens == 19728350
    assert facts.chunked_prefill_size == 32768
    assert facts.max_running_requests == 4096
    assert facts.context_len == 16384
    assert facts.load_weight_s == 0.36
    assert (facts.retracted_reqs, facts.retractions) == (0, 0)
    assert facts.decode.lines == 11
    assert facts.decode.lines_without_graph == 4
    assert facts.decode.points[0] == DecodePoint(59, "2026-11-30 09:56:12", 930, 0, 2787.54)
    assert facts.decode.latest == DecodePoint(69, "2026-11-30 09:56:14", 12, 0, 7198.09)
    assert facts.jit_in_benchmark == ()
    assert facts.causes == ()
    assert [(e.kind, e.line_no, e.count) for e in facts.events] == [
        (EventKind.KV_DTYPE, 22, 1),
        (EventKind.KERNEL_CONFIG, 30, 1),  # behind a progress bar, after a carriage return
        (EventKind.KERNEL_CONFIG, 31, 1),
        (EventKind.PREFILL_GRAPH_DISABLED, 35, 1),
    ]
    assert (facts.kv_cache_dtype, facts.captured) == ("bfloat16", {"decode": 128})
    assert facts.tail[-1] == "=" * 50
    assert len(facts.tail) == TAIL_LINES


def test_server_args_of_0_5_11() -> None:
    args = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log").server_args
    assert args["model_path"] == "/opt/r1/models/r1-slice"
    assert args["tp_size"] == 1
    assert args["quantization"] is None
    assert args["attention_backend"] == "fa3"
    assert args["mm_process_config"] == {}
    assert args["msprobe_dump_config"] is None  # the last one
    assert len(args) == 368


def test_server_args_of_0_5_20() -> None:
    args = read_log(RECORDED / "log_tp2.log").server_args
    assert args["tp_size"] == 2
    assert args["mem_fraction_static"] == 0.3
    graphs = args["cuda_graph_config"]
    assert isinstance(graphs, dict)
    assert graphs["prefill"]["max_bs"] == 2048
    assert args["_radix_eviction_policy_explicitly_set"] is False
    assert args["enable_response_store"] is False  # the last one


def test_tensor_parallel_cpu_log() -> None:
    facts = read_log(RECORDED / "log_tp2.log")
    assert [(m.phase, m.line_no) for m in facts.phases] == [
        (Phase.START, 1),
        (Phase.ARGUMENTS, 10),
        (Phase.LOAD_WEIGHTS, 50),
        (Phase.KV_CACHE, 55),
        (Phase.READY, 63),
        (Phase.WARMUP, 73),
        (Phase.BENCHMARK, 83),
        (Phase.SHUTDOWN, 89),
        (Phase.RESULT, 91),
    ]
    assert facts.workload_tokens == (4516, 3311)
    assert [p.gen_throughput for p in facts.decode.points] == [753.99, 1341.54, 723.71]
    assert facts.decode.lines_without_graph == 0  # "cpu graph: False" is not a batch without its graph
    allreduce = [e for e in facts.events if e.kind is EventKind.ALLREDUCE_FALLBACK]
    assert [(e.line_no, e.count) for e in allreduce] == [(38, 2)]  # TP1 and TP0
    assert facts.causes == ()


def test_compilation_before_the_window_is_an_event_only() -> None:
    facts = read_log(RECORDED / "r1-mini_n500_triton_0.5.11.log")
    jit = [e for e in facts.events if e.kind is EventKind.JIT]
    assert jit[0].text == "Compiling a graph for dynamic shape takes 0.34 s"
    assert jit[0].line_no == 39
    assert facts.jit_in_benchmark == ()
    assert facts.workload_tokens == (44800, 46469)


def test_capacity_capped() -> None:
    facts = read_log(RECORDED / "fail_smalltok.log")
    assert facts.max_total_num_tokens == 64
    assert facts.max_running_requests == 32
    assert [e.line_no for e in facts.events if e.kind is EventKind.RUNNING_CAPPED] == [35]


def test_another_tools_output_has_no_table() -> None:
    facts = read_log(RECORDED / "obs_random_ids.log")
    assert facts.table is None
    assert facts.phase is Phase.START


def test_progress_on_a_recorded_log() -> None:
    data = (RECORDED / "knob_mr8.log").read_bytes()
    at = data.index(b"Decode batch, #running-req: 8, #token: 865")
    reader = LogReader()
    reader.feed(data[: data.index(b"\n", at) + 1])
    now = progress(reader.facts, 50)
    # "#running-req: 8 ... #queue-req: 33"
    assert (now.phase, now.requests_done, now.fraction) == (Phase.BENCHMARK, 9, 9 / 50)
    assert now.gen_throughput == 920.42
    reader.feed(data[data.index(b"\n", at) + 1 :])
    done = progress(reader.facts, 50)
    assert (done.phase, done.requests_done, done.fraction) == (Phase.RESULT, 50, 1.0)


# --- hand-made lines


def test_progress_before_the_window_is_zero() -> None:
    now = progress(read(decode_line(5, 10.0)), 50)
    assert (now.phase, now.requests_done, now.fraction) == (Phase.START, 0, 0.0)
    assert progress(read(BENCHMARK), 50).requests_done == 0


def test_progress_is_not_complete_after_a_crash() -> None:
    facts = read(BENCHMARK + decode_line(40, 10.0) + "[2026-11-30 09:36:09] kill_process_tree called: pid=1\n")
    assert progress(facts, 50).requests_done == 10


def test_progress_never_leaves_its_range() -> None:
    facts = read(BENCHMARK + decode_line(900, 10.0))
    assert progress(facts, 50).requests_done == 0
    with pytest.raises(ValueError, match="num_prompts is 0"):
        progress(facts, 0)


def test_warm_up_decode_is_not_the_windows() -> None:
    facts = read(decode_line(1, 5.0) + BENCHMARK + decode_line(2, 7.0))
    assert facts.decode.lines == 1
    assert facts.decode.latest is not None
    assert facts.decode.latest.gen_throughput == 7.0


@pytest.mark.parametrize(
    "line",
    [
        # 0.4.3, 0.4.6, 0.5.3, 0.5.5 with an iteration, hybrid models, a line glued to a progress bar
        "[2025-02-20 10:00:00 DP0 TP0] Decode batch. #running-req: 7, #token: 9, token usage: 0.00, "
        "gen throughput (token/s): 12.50, #queue-req: 3",
        "[2025-04-20 10:00:00] Decode batch. #running-req: 7, #token: 9, token usage: 0.00, "
        "accept len: 1.00, cuda graph: True, gen throughput (token/s): 12.50, #queue-req: 3",
        "[2025-10-01 10:00:00 DP0 TP0 EP0 PP0] Decode batch. #running-req: 7, #token: 9, token usage: 0.00, "
        "accept rate: 0.5, cuda graph: True, gen throughput (token/s): 12.50, #queue-req: 3, ",
        "[2026-01-01 10:00:00.123 PP0 TP0] Decode batch [120], #running-req: 7, #token: 9, token usage: 0, "
        "gen throughput (token/s): 12.50, #queue-req: 3, est. decode TFLOPS/s (per GPU): 9.5",
        "[2026-01-01 10:00:00 ATTN_CP0 MOE_DP0] Decode batch, #running-req: 7, #full token: 9, "
        "full token usage: 0.1, #swa token: 3, swa token usage: 0.1, gen throughput (token/s): 12.50, "
        "#queue-req: 3, fwd occupancy: 97.1%",
        "50%|x  | 1/2\r\x1b[1;33m[2026-01-01 10:00:00]\x1b[0m Decode batch, #running-req: 7, #token: 9, "
        "gen throughput (token/s): 12.50, #queue-req: 3",
    ],
)
def test_decode_line_of_every_era(line: str) -> None:
    latest = read(BENCHMARK + line + "\n").decode.latest
    assert latest is not None
    assert (latest.running_reqs, latest.queue_reqs, latest.gen_throughput) == (7, 3, 12.5)


def test_dp_ranks_are_summed_and_pp_ranks_are_not() -> None:
    facts = read(
        BENCHMARK
        + decode_line(10, 100.0, 1, " DP0 TP0 PP0")
        + decode_line(20, 200.0, 2, " TP1 DP1 PP0")  # the order of the tokens has changed over time
        + decode_line(11, 110.0, 0, " DP0 TP0 PP1")
    )
    assert facts.decode.latest is not None
    assert facts.decode.latest.running_reqs == 31
    assert facts.decode.latest.queue_reqs == 2
    assert facts.decode.latest.gen_throughput == pytest.approx(310.0)


def test_the_series_is_bounded_and_even() -> None:
    count = 4000
    facts = read(BENCHMARK + "".join(decode_line(n, n) for n in range(count)))
    running = [p.running_reqs for p in facts.decode.points]
    assert 256 <= len(running) <= MAX_POINTS
    assert running == list(range(0, count, 8))
    assert facts.decode.lines == count
    assert facts.decode.latest is not None
    assert facts.decode.latest.running_reqs == count - 1


def test_retractions_count_once_for_all_tp_ranks_and_add_over_dp() -> None:
    old = "Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.1 -> 0.2"
    new = "KV cache pool is full. Retract requests. #retracted_reqs: 5, #new_tokens_gained: 9, x"
    facts = read(
        f"[2026-11-30 09:36:04 DP0 TP0] {old}\n[2026-11-30 09:36:04 DP0 TP1] {old}\n"
        f"[2026-11-30 09:36:05 DP0 TP0] {new}\n[2026-11-30 09:36:05 DP0 TP1] {new}\n"
        f"[2026-11-30 09:36:06 DP1 TP2] {new}\n"
        "[2026-11-30 09:36:07 DP1 TP2] Testing retraction. #retracted_reqs: 70, #new_tokens_gained: 1\n"
    )
    assert facts.retracted_reqs == 3 + 5 + 5
    assert facts.retractions == 3
    assert facts.causes == ()  # not an out-of-memory error
    assert [(e.text, e.count) for e in facts.events] == [(old, 2), (new, 3)]


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-30 09:36:04 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time",
        "[2026-11-30 09:36:04 TP0] Entering DeepGEMM JIT Single Kernel Compile session. And it will makes",
        "DeepGEMM warmup:  12%|#2  | 100/16384 [00:01<02:43, 99.5it/s]\r",
        "[2026-11-30 09:36:04] Compiling a graph for dynamic shape takes 0.34 s",
    ],
)
def test_compilation_in_the_window(line: str) -> None:
    assert read(f"[2026-11-30 09:36:00] Warmup...\n{line}\n{BENCHMARK}").jit_in_benchmark == ()
    facts = read(f"{BENCHMARK}{line}\n")
    assert [e.line_no for e in facts.jit_in_benchmark] == [3]
    after = f"{BENCHMARK}====== Offline Throughput Benchmark Result =======\n{line}\n"
    assert read(after).jit_in_benchmark == ()


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (EventKind.ATTENTION_DEFAULT, "Attention backend not specified. Use fa3 backend by default."),
        (EventKind.ATTENTION_DEFAULT, "MLA optimization is turned on. Use triton backend."),
        (
            EventKind.ATTENTION_FALLBACK,
            "FlashAttention3 only supports fp8_e4m3 if using FP8; Setting attention backend to triton.",
        ),
        (EventKind.PAGE_SIZE, "FlashMLA only supports a page_size of 64, change page_size to 64."),
        (
            EventKind.PAGE_SIZE,
            "TensorRT-LLM MLA only supports page_size of 32 or 64, changing page_size from 1 to 64.",
        ),
        (EventKind.DECODE_GRAPH_DISABLED, "Cuda graph is disabled because deepep_mode=`normal`"),
        (
            EventKind.PREFILL_GRAPH_DISABLED,
            "Disable piecewise CUDA graph due to existing compilation errors",
        ),
        (
            EventKind.PREFILL_GRAPH_DISABLED,
            "Disabling breakable prefill CUDA graph by default for pipeline parallelism.",
        ),
        (
            EventKind.KV_DTYPE_FALLBACK,
            "--kv-cache-dtype falls back to 'auto' because this torch version does not support it",
        ),
        (
            EventKind.KV_CAPPED,
            "max_total_tokens=9 is larger than the profiled value 8. Use the profiled value instead.",
        ),
        (
            EventKind.ALLREDUCE_FALLBACK,
            "Custom allreduce is disabled because this process group spans across nodes.",
        ),
        (
            EventKind.ALLREDUCE_FALLBACK,
            "CustomAllReduceV2 is disabled due to an unsupported world size: 6.",
        ),
        (
            EventKind.FUSION_DISABLED,
            "Failed to initialize FlashInfer: x. Disabling flashinfer allreduce fusion permanently.",
        ),
        (EventKind.FUSION_DISABLED, "FlashInfer workspace preflight probe failed (x). Skipping allreduce fusion."),
        (EventKind.FUSION_ENABLED, "Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for DeepseekV3ForCausalLM"),
        (
            EventKind.DP_CHUNK,
            "DP attention is enabled. The chunked prefill size is adjusted to 1024 to avoid MoE kernel",
        ),
        (EventKind.OVERLAP_DISABLED, "Pipeline parallelism is incompatible with overlap schedule."),
        (EventKind.RADIX_DISABLED, "Disabling Radix Cache for NemotronH as it is not yet supported."),
        (
            EventKind.CHUNKED_PREFILL_DISABLED,
            "Automatically turn of --chunked-prefill-size as it is not supported for x",
        ),
        (
            EventKind.SPECULATIVE_CAP,
            "Max running requests is reset to 48 for speculative decoding. You can override this",
        ),
        (
            EventKind.CLAMPED,
            "WARNING: generated 90 tokens but requested 100; the server clamped max_new_tokens or",
        ),
    ],
)
def test_event(kind: EventKind, line: str) -> None:
    assert [e.kind for e in read(f"[2026-11-30 09:36:04 TP0] {line}\n").events] == [kind]


@pytest.mark.parametrize(
    ("line", "captured"),
    [
        ("Capture cuda graph bs [1, 2, 160]", {"decode": 160}),
        ("Capture cuda graph num tokens [4, 8192]", {"prefill": 8192}),
        ("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 64], avail mem=1.00 GB",
         {"decode": 64}),
        ("Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=4, bs=[1, 2, 48], avail mem=1.00 GB",
         {"decode": 48}),
        ("Capture target decode CUDA graph end. elapsed=1.00 s, bs=[1, 32], mem usage=1.00 GB, avail mem=1.00 GB.",
         {"decode": 32}),
        ("Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 2048], avail mem=1.00 GB",
         {"prefill": 2048}),
        ("Capture draft decode CUDA graph begin. backend=full, bs=[1, 2], avail mem=1.00 GB", {}),
        ("Capture cuda graph begin. This can take up to several minutes.", {}),
        ("Capture cuda graph bs [1, 2, 1", {}),  # cut
    ],
)  # fmt: skip
def test_captured_graphs_of_every_era(line: str, captured: dict[str, int]) -> None:
    assert read(f"[2026-11-30 09:36:04 TP0] {line}\n").captured == captured


def test_the_first_dtypes_are_the_targets() -> None:
    facts = read(
        "Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=1.00 GB\n"
        "Using KV cache dtype: torch.float8_e4m3fn\n"
        "Load weight end. type=DeepseekV3ForCausalLMNextN, dtype=torch.float16, avail mem=1.00 GB\n"
        "Using KV cache dtype: torch.bfloat16\n"
    )
    assert (facts.model_dtype, facts.kv_cache_dtype) == ("bfloat16", "float8_e4m3fn")


def test_a_rank_whose_lines_were_lost_does_not_lower_the_count() -> None:
    line = "KV cache pool is full. Retract requests. #retracted_reqs: 5, x"
    facts = read("".join(f"[2026-11-30 09:36:04 TP{rank}] {line}\n" for rank in (0, 1, 1, 0, 0)))
    assert (facts.retracted_reqs, facts.retractions) == (15, 3)


def test_events_are_bounded_and_repetitions_counted() -> None:
    words = [f"Disabling Radix Cache for {chr(97 + n // 26)}{chr(97 + n % 26)} yet\n" for n in range(100)]
    facts = read("".join(words) + words[0] * 9)
    assert len(facts.events) == 16
    assert facts.events[0].count == 10


def test_first_token_pair_wins() -> None:
    facts = read("#Input tokens: 100\n#Output tokens: 20\n#Input tokens: 4096\n#Output tokens: 256\n")
    assert facts.workload_tokens == (100, 20)
    assert read("#Input tokens: 100\n").workload_tokens is None


def test_phases_never_go_back() -> None:
    facts = read(
        "[2026-11-30 09:36:04 TP0] Memory pool end. avail mem=1.00 GB\n"
        "[2026-11-30 09:36:05 TP1] Load weight begin. avail mem=9.00 GB\n"
    )
    assert [m.phase for m in facts.phases] == [Phase.START, Phase.KV_CACHE]


def test_va_upper_bound_is_no_capacity() -> None:
    facts = read("[2026-11-30 09:36:04] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 99\n")
    assert facts.max_total_num_tokens is None
    assert facts.phase is Phase.START


def test_a_frame_is_no_server_args_line() -> None:
    assert read("    engine = Engine(server_args=server_args)\n").phase is Phase.START


# --- broken input


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\r\r\r\n\n",
        b"\xff\xfe\x00" * 5000,
        b"\x1b[",
        b"[",
        b"server_args=ServerArgs(",
        b"Traceback",
    ],
)
def test_junk_is_read_without_facts(data: bytes) -> None:
    facts = read(data)
    assert facts.server_args == {}
    assert facts.decode.lines == 0
    assert facts.table is None


def test_random_bytes() -> None:
    facts = read(os.urandom(300_000))
    assert facts.phase is Phase.START


def test_crlf_and_invalid_utf8() -> None:
    data = (RECORDED / "log_tp2.log").read_bytes()
    plain = read(data)
    crlf = read(data.replace(b"\n", b"\r\n"))
    assert crlf == plain
    broken = read(data.replace(b"Decode batch", b"\xff\xfe Decode batch"))
    assert broken.decode.lines == 3


def test_every_truncation_is_read() -> None:
    data = (RECORDED / "log_tp2.log").read_bytes()
    lines_seen = 0
    for end in range(0, len(data), 997):
        facts = read(data[:end])
        assert facts.lines >= lines_seen
        lines_seen = facts.lines
        if facts.table is not None:
            assert not facts.table.complete or end > data.index(b"\n" + b"=" * 50)


def test_an_endless_line_is_cut_and_the_next_one_is_read() -> None:
    reader = LogReader()
    for _ in range(40):
        reader.feed(b"x" * (MAX_LINE // 8))
    assert len(reader._pending) == MAX_LINE
    reader.feed(b"\n#Input tokens: 1\n#Output tokens: 2\n")
    assert reader.facts.workload_tokens == (1, 2)
    assert len(reader.facts.tail[0]) == 500


def test_line_numbers_count_newlines_only() -> None:
    facts = read("a\rb\rc\n\n" + BENCHMARK)
    assert facts.phases[-1].line_no == 4
    assert facts.tail == ("c", "[2026-11-30 09:36:02] ", "Benchmark...")


@given(st.lists(st.integers(1, 4000), max_size=60))
@example([1] * 50)
def test_any_chunking_gives_the_same_facts(sizes: list[int]) -> None:
    data = CHUNKED
    reader, at = LogReader(), 0
    for size in sizes:
        reader.feed(data[at : at + size])
        at += size
    reader.feed(data[at:])
    reader.close()
    assert reader.facts == WHOLE


CHUNKED = (
    (RECORDED / "r1-mini_n500_triton_0.5.11.log").read_bytes()[-14000:]
    + (RECORDED / "knob_dpattn.log").read_bytes()[-9000:]
    + b"\r\n50%|\xe2\x96\x88 | 1/2\r100%|\xe2\x96\x88\xe2\x96\x88| 2/2\r[2026-11-30 09:36:04] KV cache "
    b"pool is full. Retract requests. #retracted_reqs: 5, x\nno line end"
)
WHOLE = read(CHUNKED)


# --- the argument scanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=20),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
@example({"a": 'it\'s a "b", c=1', "d": "\\"})
def test_round_trip_of_both_forms(args: dict[str, object]) -> None:
    record = ", ".join(f"{key}={value!r}" for key, value in args.items())
    assert parse_server_args(f"[2026-11-30 09:36:04] server_args=ServerArgs({record}) and more, x=1") == args
    assert parse_server_args(f"server_args={args!r}, y=2") == args


def test_values_that_are_not_python() -> None:
    line = (
        "server_args=ServerArgs(mode=<LoadFormat.AUTO: 'auto'>, limit=inf, graphs=CudaGraphConfig(decode="
        "PhaseConfig(bs=[1, 2], max_bs=2), prefill=None), path='a, b=(c', hook=<function f at 0x7f>, last=-1)"
    )
    assert parse_server_args(line) == {
        "mode": "<LoadFormat.AUTO: 'auto'>",
        "limit": "inf",
        "graphs": "CudaGraphConfig(decode=PhaseConfig(bs=[1, 2], max_bs=2), prefill=None)",
        "path": "a, b=(c",
        "hook": "<function f at 0x7f>",
        "last": -1,
    }


def test_records_within_a_value() -> None:
    text = "CudaGraphConfig(decode=PhaseConfig(backend=<Backend.FULL: 'full'>, bs=[1, 2], max_bs=2), prefill=None)"
    assert parse_record(text) == {
        "decode": {"backend": "<Backend.FULL: 'full'>", "bs": [1, 2], "max_bs": 2},
        "prefill": None,
    }
    assert parse_record("{'decode': {'max_bs': 2}}") == {"decode": {"max_bs": 2}}
    assert parse_record("full") == parse_record("{1, 2}") == {}
    assert parse_record("A(b=" * 50) == {}


@given(st.text(alphabet="()[]{}<>'\"\\,=: ab1", max_size=60))
def test_the_record_reader_never_raises(text: str) -> None:
    parse_record(text)
    parse_record(f"A(b={text}")


@pytest.mark.parametrize("version", ["0.5.9", "0.5.20"])
def test_server_info_is_what_the_log_says(version: str) -> None:
    """Of the two real answers: the same arguments as a log of that release, but for what was asked otherwise."""
    info = json.loads((RECORDED / f"server_info_{version}.json").read_text(encoding="utf-8"))
    resolved = resolved_from_server_info(info)
    logged = read_log(RECORDED / f"rig_{version}.log").server_args
    assert set(resolved) - set(logged) == {"max_total_num_tokens", "effective_max_running_requests_per_dp"}
    assert set(logged) <= set(resolved)
    assert resolved["max_total_num_tokens"] == 16384
    assert resolved["effective_max_running_requests_per_dp"] == 64
    assert resolved["pp_max_micro_batch_size"] == 64  # the scheduler's: None in the launcher's copy
    assert resolved["attention_backend"] == logged["attention_backend"] == "torch_native"


def test_server_info_of_a_release_that_resolves_in_the_scheduler() -> None:
    info = {
        "attention_backend": None,
        "tp_size": 8,
        "version": "0.4.9",
        "internal_states": [{"attention_backend": "fa3"}],
    }
    assert resolved_from_server_info(info) == {"attention_backend": "fa3", "tp_size": 8}
    assert resolved_from_server_info(
        {"tp_size": 8, "max_total_num_tokens": 9, "status": "ready", "version": "0.4.3"}
    ) == {
        "tp_size": 8,
        "max_total_num_tokens": 9,
    }


def test_a_cut_line_gives_no_half_values() -> None:
    assert parse_server_args("server_args=ServerArgs(tp_size=8, mem_fraction_static=0.8") == {"tp_size": 8}
    assert parse_server_args("server_args={'tp_size': 8, 'max_total_tokens': 163") == {"tp_size": 8}
    assert parse_server_args("nothing here") == {}


@given(st.text(alphabet="()[]{}<>'\"\\,=: ab1", max_size=60))
def test_the_scanner_never_raises(text: str) -> None:
    parse_server_args(f"server_args=ServerArgs({text}")
    parse_server_args("server_args={" + text)


def test_lines_of_a_shape_that_was_dull_are_still_read() -> None:
    assert not any(char.isdigit() for needle in _NEEDLES for char in needle)
    facts = read("x #Output tokens\n#Input token5: 3\n#Input tokens: 3\n#Output tokens: 4\n" * 2)
    assert facts.workload_tokens == (3, 4)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", [b"Decode batch", b"huggingface.co ", b"[2026-11-30 09:36:04] ", b"apture ", b"<", b"\r"]
)
def test_a_long_line_that_nearly_matches_costs_no_minutes(piece: bytes) -> None:
    reader = LogReader()
    for start in (b"", b"server_args=ServerArgs(a=", b"Traceback (most recent call last): "):
        reader.feed(start + piece * (2 * MAX_LINE // len(piece)) + b"\n")
    reader.close()
    assert reader.facts.lines == 3
