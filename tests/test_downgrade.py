"""What SGLang did with the flags that were asked for: INVALID where it replaced one, else a remark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.downgrade import MAX_EVENTS, events_of, silently_downgraded
from pytest_r1perf.sglang.events import Effect, Event, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.log import LogReader, read_log

RECORDED = Path(__file__).parent / "recorded"
CPU: dict[str, FlagValue] = {"device": "cpu", "load_format": "dummy", "max_total_tokens": 16384}
STAMP = "[2026-11-30 10:00:00 TP0] "
CAPACITY = (
    "max_total_num_tokens={}, chunked_prefill_size={}, max_prefill_tokens=9, max_running_requests={}, context_len=9"
)


def told(args: str, *lines: str) -> LogFacts:
    reader = LogReader()
    reader.feed(f"server_args=ServerArgs({args})\n".encode())
    for line in lines:
        reader.feed(f"{STAMP}{line}\n".encode())
    reader.close()
    return reader.facts


def found(asked: dict[str, FlagValue], facts: LogFacts) -> list[tuple[Effect, EventKind]]:
    return [(event.effect, event.kind) for event in events_of(asked, facts)]


# --- recorded runs


def test_on_a_recorded_run() -> None:
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    assert facts.server_args["attention_backend"] == "fa3"
    assert silently_downgraded({"attention_backend": "fa3", "disable_radix_cache": True, "dtype": "auto"}, facts) == ()
    (check,) = silently_downgraded({"attention_backend": "flashinfer"}, facts)
    assert check.sentence == "attention_backend was asked for as 'flashinfer', and SGLang resolved 'fa3'"


def test_batches_without_graph_and_a_size_that_was_not_reached() -> None:
    """The log: graphs up to 128, 930 requests running, 4 of 11 decode reports with ``cuda graph: False``."""
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    asked = {"disable_radix_cache": True, "cuda_graph_max_bs": 2048, "disable_piecewise_cuda_graph": True}
    assert [
        (e.effect, e.text, e.line_no) for e in events_of(asked, facts) if e.kind is not EventKind.KERNEL_CONFIG
    ] == [
        (Effect.REMARK, "cuda_graph_max_bs was asked for as 2048, and the largest decode graph is 128", 0),
        (
            Effect.REMARK,
            "4 of 11 decode reports in the window are of batches without a CUDA graph "
            "(the largest graph is for 128 requests)",
            0,
        ),
    ]


def test_a_prefill_graph_that_was_asked_for_and_is_off() -> None:
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    (check,) = silently_downgraded({"enable_piecewise_cuda_graph": True}, facts)
    assert check.sentence == (
        "enable_piecewise_cuda_graph was asked for as True, and SGLang resolved prefill_graph 'off' "
        "(Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set)"
    )
    facts = read_log(RECORDED / "r1-mini_n500_triton_0.5.11.log")  # ignored by 0.5.11, and on
    assert silently_downgraded({"enable_piecewise_cuda_graph": True, "chunked_prefill_size": 8192}, facts) == ()


@pytest.mark.parametrize("name", ["rig_0.5.9.log", "rig_0.5.20.log", "log_tp2.log"])
def test_an_ordinary_run_on_a_cpu_has_no_events(name: str) -> None:
    assert events_of(CPU, read_log(RECORDED / name)) == ()


def test_fewer_running_requests_than_asked_for() -> None:
    facts = read_log(RECORDED / "fail_smalltok.log")
    (event,) = (e for e in events_of({"max_running_requests": 64}, facts) if e.kind is EventKind.RUNNING_CAPPED)
    assert (event.effect, event.line_no) == (Effect.REMARK, 35)
    assert event.text.startswith("max_running_requests was asked for as 64, and 32 can run (max_running_requests was")
    kept = events_of({"max_running_requests": 8}, read_log(RECORDED / "knob_mr8.log"))
    assert EventKind.RUNNING_CAPPED not in {event.kind for event in kept}


def test_dp_attention_divides_the_chunk() -> None:
    """By the log's line: the recorded arguments are cut before the ones that matter."""
    facts = read_log(RECORDED / "knob_dpattn.log")
    asked: dict[str, FlagValue] = {
        "tp_size": 2,
        "dp_size": 2,
        "enable_dp_attention": True,
        "chunked_prefill_size": 4096,
    }
    (event,) = (event for event in events_of(asked, facts) if event.kind is EventKind.DP_CHUNK)
    assert (event.effect, event.line_no) == (Effect.REMARK, 8)
    assert event.text == "DP attention is enabled. chunked prefill size is adjusted from 4096 to 2048."


# --- every kind, in the words of the release it is from

GPU = "device='cuda', tp_size=8, "
INVALID_CASES: list[tuple[str, dict[str, FlagValue], LogFacts, EventKind]] = [
    ("0.4.3: the MLA default overrides an explicit backend", {"attention_backend": "flashinfer"},
     told("attention_backend='flashinfer'", "MLA optimization is turned on. Use triton backend."),
     EventKind.ATTENTION_FALLBACK),
    ("0.5.9: fa3 cannot do e5m2", {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e5m2"},
     told("attention_backend='triton', kv_cache_dtype='fp8_e5m2'"), EventKind.ATTENTION_FALLBACK),
    ("a runner replaced", {"moe_runner_backend": "cutlass"}, told("moe_runner_backend='triton'"),
     EventKind.FLAG_REPLACED),
    ("the fused all-reduce failed at run time", {"enable_flashinfer_allreduce_fusion": True},
     told(GPU + "enable_flashinfer_allreduce_fusion=True",
          "Failed to initialize FlashInfer workspace: x. Disabling flashinfer allreduce fusion permanently."),
     EventKind.FUSION_DISABLED),
    ("0.5.14: the fused all-reduce was resolved away", {"enable_flashinfer_allreduce_fusion": True},
     told(GPU + "enable_flashinfer_allreduce_fusion=False, flashinfer_allreduce_fusion_backend=None"),
     EventKind.FUSION_DISABLED),
    ("0.5.9: piecewise graphs and pipeline parallelism", {"enable_piecewise_cuda_graph": True},
     told(GPU + "disable_cuda_graph=False, enable_piecewise_cuda_graph=True",
          "Disable piecewise CUDA graph because piecewise_cuda_graph does not support PP"),
     EventKind.PREFILL_GRAPH_DISABLED),
    ("0.5.14: no decode graphs, sizes or not", {"cuda_graph_max_bs": 512},
     told(GPU + "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='disabled', max_bs=512))"),
     EventKind.DECODE_GRAPH_DISABLED),
    ("0.4.6: DeepEP in normal mode has none", {"cuda_graph_max_bs": 512},
     told(GPU + "disable_cuda_graph=True", "Cuda graph is disabled because deepep_mode=`normal`"),
     EventKind.DECODE_GRAPH_DISABLED),
    ("graphs on though switched off", {"disable_cuda_graph": True},
     told(GPU + "disable_cuda_graph=False, cuda_graph_max_bs=8"), EventKind.FLAG_REPLACED),
    ("a chunk without DP attention", {"chunked_prefill_size": 8192},
     told("chunked_prefill_size=2048, enable_dp_attention=False, dp_size=8"), EventKind.CHUNK_CHANGED),
    ("chunked prefill turned off", {"chunked_prefill_size": 8192},
     told("chunked_prefill_size=-1", "Automatically turn of --chunked-prefill-size as it is not supported for x"),
     EventKind.CHUNKED_PREFILL_DISABLED),
    ("chunked prefill on though switched off", {"chunked_prefill_size": -1}, told("chunked_prefill_size=8192"),
     EventKind.CHUNK_CHANGED),
    ("the radix cache stays on", {"disable_radix_cache": True}, told("disable_radix_cache=False"),
     EventKind.FLAG_REPLACED),
    ("pages of 64 instead of 1", {"page_size": 1},
     told("page_size=64", "FlashMLA only supports a page_size of 64, change page_size to 64."), EventKind.PAGE_SIZE),
    ("DeepEP takes the expert size over", {"ep_size": 4}, told("ep_size=8, moe_a2a_backend='deepep'"),
     EventKind.FLAG_REPLACED),
    ("DP attention dropped with dp 8", {"enable_dp_attention": True, "dp_size": 8},
     told("enable_dp_attention=False, dp_size=8"), EventKind.FLAG_REPLACED),
    ("the FP4 cache fell back, by the pool's dtype", {"kv_cache_dtype": "fp4_e2m1"},
     told("kv_cache_dtype='fp4_e2m1'", "Using KV cache dtype: torch.bfloat16"), EventKind.KV_DTYPE_FALLBACK),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "facts", "kind"), [case[1:] for case in INVALID_CASES], ids=[c[0] for c in INVALID_CASES]
)
def test_a_replaced_flag_is_invalid(asked: dict[str, FlagValue], facts: LogFacts, kind: EventKind) -> None:
    assert [found_kind for effect, found_kind in found(asked, facts) if effect is Effect.INVALID] == [kind]
    assert len(silently_downgraded(asked, facts)) == 1


@pytest.mark.parametrize(
    ("asked", "args"),
    [
        # 0.5.20's serving_hook clears the switch and sets a backend: not a downgrade
        ({"enable_flashinfer_allreduce_fusion": True},
         GPU + "enable_flashinfer_allreduce_fusion=False, flashinfer_allreduce_fusion_backend='auto'"),
        ({"enable_flashinfer_allreduce_fusion": True}, "tp_size=1, enable_flashinfer_allreduce_fusion=False"),
        ({"cuda_graph_max_bs": 512},
         GPU + "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='full', max_bs=512)), "
         "cuda_graph_max_bs_decode=None"),
        ({"enable_piecewise_cuda_graph": True},
         GPU + "cuda_graph_config=CudaGraphConfig(prefill=PhaseConfig(backend='breakable'), "
         "decode=PhaseConfig(backend='full'))"),
        ({"disable_piecewise_cuda_graph": True},
         GPU + "cuda_graph_config=CudaGraphConfig(prefill=PhaseConfig(backend='disabled'), "
         "decode=PhaseConfig(backend='full'))"),
        ({"disable_cuda_graph": True},
         GPU + "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='disabled'))"),
        ({"enable_dp_attention": True, "dp_size": 8}, "enable_dp_attention=False, dp_size=1, attn_dp_size=8"),
        ({"decode_attention_backend": "fa3"}, "attention_backend='fa3', decode_attention_backend=None"),
        ({"kv_cache_dtype": "bf16"}, "kv_cache_dtype='bfloat16'"),
        ({"dtype": "half"}, "dtype='float16'"),
        ({"speculative_algorithm": "NEXTN"}, "speculative_algorithm='EAGLE'"),
        ({"moe_a2a_backend": "none"}, "moe_a2a_backend=None"),
        ({"attention_backend": "nsa"}, "attention_backend='dsa'"),
        ({"chunked_prefill_size": -1}, "chunked_prefill_size=None"),
        ({"attention_backend": "auto", "kv_cache_dtype": "auto"}, "attention_backend='fa3', kv_cache_dtype='fp8_e4m3'"),
        ({"max_prefill_tokens": "16k"}, "max_prefill_tokens=16384"),
        ({"cuda_graph_bs": "1 2 4"}, GPU + "disable_cuda_graph=False, cuda_graph_bs=[1, 2, 4]"),
    ],
)  # fmt: skip
def test_the_same_in_other_words_is_no_event(asked: dict[str, FlagValue], args: str) -> None:
    assert events_of(asked, told(args)) == ()


REMARK_CASES: list[tuple[str, dict[str, FlagValue], LogFacts, EventKind]] = [
    ("the offline benchmark resolves twice up to 0.5.18",
     {"chunked_prefill_size": 8192, "enable_dp_attention": True, "dp_size": 8},
     told("chunked_prefill_size=128, enable_dp_attention=True, dp_size=8",
          "DP attention is enabled. chunked prefill size is adjusted from 8192 to 1024.",
          "DP attention is enabled. chunked prefill size is adjusted from 1024 to 128."), EventKind.DP_TWICE),
    ("resolved twice, and no chunk was asked for", {"enable_dp_attention": True, "dp_size": 8},
     told("chunked_prefill_size=128, enable_dp_attention=True, dp_size=8",
          "DP attention is enabled. chunked prefill size is adjusted from 8192 to 1024.",
          "DP attention is enabled. chunked prefill size is adjusted from 1024 to 128."), EventKind.DP_TWICE),
    ("0.4.3 halves the chunk", {"chunked_prefill_size": 8192, "enable_dp_attention": True, "dp_size": 8},
     told("chunked_prefill_size=4096, enable_dp_attention=True, dp_size=8"), EventKind.DP_CHUNK),
    ("0.5.22 with attention DP", {"chunked_prefill_size": 8192, "enable_dp_attention": True, "dp_size": 8},
     told("chunked_prefill_size=1024, enable_dp_attention=False, dp_size=1, attn_dp_size=8"), EventKind.DP_CHUNK),
    ("DP attention with dp 1", {"enable_dp_attention": True}, told("enable_dp_attention=False, dp_size=1"),
     EventKind.FLAG_REPLACED),
    ("fewer KV tokens", {"max_total_tokens": 1000},
     told("page_size=1", "max_total_tokens=1000 is larger than the profiled value 900. Use the profiled value instead.",
          CAPACITY.format(900, 8192, 64)), EventKind.KV_CAPPED),
    ("fewer running requests, silently (before 0.5.14)", {"max_running_requests": 512},
     told("enable_dp_attention=False", CAPACITY.format(900, 8192, 64)), EventKind.RUNNING_CAPPED),
    ("the fused all-reduce by default", {}, told(GPU + "enable_flashinfer_allreduce_fusion=True"),
     EventKind.FUSION_ENABLED),
    ("the fused all-reduce by default, by the log", {},
     told(GPU + "x=1", "Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for DeepseekV3ForCausalLM"),
     EventKind.FUSION_ENABLED),
    ("decode graphs off by themselves", {}, told(GPU + "disable_cuda_graph=True"), EventKind.DECODE_GRAPH_DISABLED),
    ("prefill graphs off by themselves", {},
     told(GPU + "disable_cuda_graph=False, disable_piecewise_cuda_graph=True",
          "Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set"),
     EventKind.PREFILL_GRAPH_DISABLED),
    ("the radix cache off by itself", {}, told("disable_radix_cache=True"), EventKind.RADIX_DISABLED),
    ("pipeline parallelism has no overlap", {},
     told("disable_overlap_schedule=True, pp_size=2",
          "Pipeline parallelism is incompatible with overlap schedule."), EventKind.OVERLAP_DISABLED),
    ("NCCL instead of the custom all-reduce", {},
     told(GPU + "x=1", "CustomAllReduceV2 is disabled because this process group spans across nodes."),
     EventKind.ALLREDUCE_FALLBACK),
    ("a fraction that was adjusted", {"mem_fraction_static": 0.9}, told("mem_fraction_static=0.855"),
     EventKind.FLAG_REPLACED),
    ("retractions", {},
     told("page_size=1", "KV cache pool is full. Retract requests. #retracted_reqs: 5, #new_tokens_gained: 9"),
     EventKind.RETRACTION),
    ("a CPU has no graphs, whoever asks", {"cuda_graph_max_bs": 8, "device": "cpu"},
     told("device='cpu', disable_cuda_graph=True"), EventKind.DECODE_GRAPH_DISABLED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "facts", "kind"), [case[1:] for case in REMARK_CASES], ids=[c[0] for c in REMARK_CASES]
)
def test_a_remark(asked: dict[str, FlagValue], facts: LogFacts, kind: EventKind) -> None:
    assert found(asked, facts) == [(Effect.REMARK, kind)]
    assert silently_downgraded(asked, facts) == ()


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("disable_overlap_schedule", told("disable_overlap_schedule=True", "Overlap scheduler is disabled because x")),
        ("disable_radix_cache", told("disable_radix_cache=True", "Disabling Radix Cache for x as it is not yet")),
        ("disable_custom_all_reduce", told(GPU + "x=1", "Custom allreduce is disabled because x")),
        ("disable_cuda_graph", told(GPU + "disable_cuda_graph=True", "Cuda graph is disabled because x")),
    ],
)
def test_what_was_asked_for_is_no_event(flag: str, facts: LogFacts) -> None:
    assert events_of({flag: True}, facts) == ()
    assert len(events_of({}, facts)) == 1


def test_running_requests_are_a_dp_ranks() -> None:
    """SGLang divides the limit by the DP ranks: 64 of 512 for each of eight is what was asked for."""
    facts = told("enable_dp_attention=True, dp_size=8", CAPACITY.format(900, 8192, 64))
    assert events_of({"max_running_requests": 512}, facts) == ()
    (event,) = events_of({"max_running_requests": 1024}, facts)
    assert event.text == "max_running_requests was asked for as 1024 (128 for each of 8 DP ranks), and 64 can run"


def test_the_fp4_cache_falls_back_after_the_arguments() -> None:
    line = "--kv-cache-dtype falls back to 'auto' because this torch version does not support torch.float4_e2m1fn_x2"
    (check,) = silently_downgraded({"kv_cache_dtype": "fp4_e2m1"}, told("kv_cache_dtype='fp4_e2m1'", line))
    assert check.name == "silent-downgrade"
    assert check.sentence.startswith("kv_cache_dtype was asked for as 'fp4_e2m1' (--kv-cache-dtype falls back")


def test_the_invalid_come_first_and_all_are_bounded() -> None:
    asked: dict[str, FlagValue] = {f"knob_{number}": 1 for number in range(40)}
    facts = told(", ".join(f"{name}=2" for name in asked) + ", dtype='float16'")
    events = events_of({**asked, "dtype": "float32"}, facts)
    assert len(events) == MAX_EVENTS
    assert events[0] == Event(
        EventKind.FLAG_REPLACED,
        "dtype was asked for as 'float32', and SGLang resolved 'float16'",
        0,
        effect=Effect.INVALID,
    )


def test_an_event_in_a_record() -> None:
    (event,) = events_of({"dtype": "float32"}, told("dtype='float16'"))
    assert json.loads(json.dumps(event.plain())) == {
        "kind": "flag replaced",
        "text": "dtype was asked for as 'float32', and SGLang resolved 'float16'",
        "line_no": 0,
        "count": 1,
        "effect": "invalid",
    }


def test_nothing_is_known_without_arguments() -> None:
    assert events_of({"dtype": "float32"}, LogFacts()) == ()


def test_a_fusion_that_was_announced_and_then_kept_off() -> None:
    """Recorded on two H200 with 0.5.11 under --enforce-disable-flashinfer-allreduce-fusion."""
    line = "Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for DeepseekV3ForCausalLM"
    off = GPU + "enable_flashinfer_allreduce_fusion=False, enforce_disable_flashinfer_allreduce_fusion=True"
    assert found({"enable_flashinfer_allreduce_fusion": False}, told(off, line)) == []


def test_off_that_is_on_all_the_same() -> None:
    on = told(GPU + "enable_flashinfer_allreduce_fusion=True, tp_size=2")
    assert found({"enable_flashinfer_allreduce_fusion": False}, on) == [(Effect.INVALID, EventKind.FLAG_REPLACED)]
    graphs = told(
        GPU + "disable_cuda_graph=False, disable_piecewise_cuda_graph=True",
        "Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set",
    )
    assert found({"enable_piecewise_cuda_graph": False}, graphs) == []
