"""What the seed documents say loses: the guide's table "What not to do", and the notes' "What didn't work".

A test whose cell matches a rule of kind `slower` or `oom` (docs/antipatterns.md) is xfail: the loss is measured
against the reference of the same topology and N, and shown beside the published cost. One that stops losing fails.
"""

from __future__ import annotations

from perf_tests.conftest import Say
from perf_tests.questions import Flags, acceptance_lengths, attempted, factorial, per_gpu
from pytest_r1perf import perf
from pytest_r1perf.evidence import LoadEvidence
from pytest_r1perf.lab import PerfLab, PerfResult

EAGLE: Flags = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
"""R1's own multi-token prediction as the draft; the sizes are ours, the guide names none."""

# --- best-practice guide, "What Not To Do"


@perf(
    topology="tp8",
    n=5000,
    platform="h200x8",
    flags={"kv_cache_dtype": "fp4_e2m1", "attention_backend": "flashinfer"},
)
def test_fp4_kv_cache(fp4_spelling: str, say: Say) -> None:
    """Published: up to -78 %.

    MLA refuses FP4 on fa3, so the attention backend is flashinfer, which the reference has for decoding only: a part of
    the loss may be its.
    """
    say(f"FP4 KV was asked for as {fp4_spelling}")


@perf(topology="tp8", n=5000, platform="h200x8", flags=EAGLE)
def test_speculative_decoding_in_a_saturated_batch(perf_result: PerfResult, say: Say) -> None:
    """Published: up to -69 %. With dummy weights a draft is hardly ever right: a larger loss than with R1's own."""
    lengths = acceptance_lengths(perf_result.log)
    say(
        f"acceptance length {min(lengths):.2f} to {max(lengths):.2f} (1 is: no draft token was accepted)"
        if lengths
        else "acceptance length: not in the log"
    )


@perf(topology="pp2", n=5000, platform="h200x16", flags={"attention_backend": "flashinfer"})
def test_flashinfer_on_pp2() -> None:
    """Published: for example -18.5 %."""


@perf(topology="tp8-ep8", n=5000, platform="h200x8")
def test_expert_parallelism_on_one_node() -> None:
    """Published: -34 % to -40 %, on single-node FP8. The notes: 'lost to TP + DP'."""


@perf(topology="tp8-ep8", n=5000, platform="h200x8", flags={"moe_a2a_backend": "deepep"})
def test_expert_parallelism_with_deepep() -> None:
    """Published: -34 % to -40 %; the notes' flags are '--ep-size 8 --moe-a2a-backend deepep'."""


@perf(topology="pp2", n=5000, platform="h200x16", flags={"pp_max_micro_batch_size": 16})
def test_manual_small_micro_batch() -> None:
    """Published: up to a tenth; the guide names no size, 16 is ours."""


@perf(topology="tp8", n=1000, recipe="tp8-stack-cgbs", platform="h200x8")
def test_deciding_from_low_load_only(perf_lab: PerfLab, load_evidence: LoadEvidence) -> None:
    """Published: 'False ranking and direction flips' at N = 1000. A conclusion from that alone is xfailed."""
    off, on = (perf_lab.measure(n=1000, flags={"disable_radix_cache": value}) for value in (True, False))
    load_evidence("radix cache off wins", (off, on))


@perf(topology="tp8", n=1000, recipe="tp8-stack-cgbs", platform="h200x8")
def test_the_load_reverses_the_ranking(perf_lab: PerfLab, load_evidence: LoadEvidence) -> None:
    """Published: 'Load reversal appears at higher N': the ranking at the highest load counts, a flip is reported."""
    pairs = [
        tuple(perf_lab.measure(n=n, flags={"disable_radix_cache": value}) for value in (True, False))
        for n in (1000, 7000)
    ]
    load_evidence("radix cache off wins", *((off, on) for off, on in pairs))


# --- optimisation notes, "What didn't work"


@perf(topology="tp4-dp2", n=2000, platform="h100x16", flags={"load_format": "dummy"})
def test_pure_data_parallelism_does_not_fit() -> None:
    """'R1 does not fit twice in 80 GB x 8': must run out of memory. On H200 (141 GB) it is another matter."""


@perf(topology="tp8-dpa1", n=2000, platform="h200x8")
def test_dp_attention_with_dp_1(perf_lab: PerfLab, say: Say) -> None:
    """'Asserts during init. The error message is opaque': refused up to SGLang 0.5.1, ignored from 0.5.2 on."""
    say(attempted(perf_lab, ("CONFIG", "CRASH")))


@perf(topology="tp8", n=5000, platform="h200x8", flags={"chunked_prefill_size": -1})
def test_chunked_prefill_off() -> None:
    """'Hurts throughput without helping latency at our batch sizes'. Published without a figure."""


@perf(topology="tp8", n=5000, platform="h200x8")
def test_max_running_requests_sky_high(perf_lab: PerfLab, say: Say) -> None:
    """'KV cache fills and you OOM mid-benchmark': an attempt, since SGLang takes requests back since then."""
    say(attempted(perf_lab, ("OOM",), flags={"max_running_requests": 16384}))


@perf(topology="tp4-dp4-pp2", n=2000, recipe="notes-shape", platform="h200x16")
def test_memory_pair_moved_alone(perf_lab: PerfLab) -> None:
    """'If you tune them independently you will either OOM or leave throughput on the floor': each alone, and both."""
    factorial(perf_lab, {"mem_fraction_static": 0.70}, {"cuda_graph_max_bs": 1024})


@perf(topology="tp8-ep8", n=2000, platform="h200x8")
def test_expert_parallelism_alone_against_tp_and_dp(perf_lab: PerfLab) -> None:
    """'Competitive, but lost to TP + DP on our network topology': EP against the shape that won, 8 GPUs each."""
    flags = {"load_format": "dummy", "dtype": "bfloat16", "mem_fraction_static": 0.85, "cuda_graph_max_bs": 256}
    winner = {"topology": "tp4-dp4-pp2-one-node", "recipe": "notes-winner-one-node"}
    per_gpu(perf_lab, [winner, {"topology": "tp8-ep8", "recipe": "default", "flags": flags}])
