"""The protocol's keys mean the same in every release: one configuration, told in the words of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.log import LogReader, read_log
from pytest_r1perf.sglang.protocol import chunk, differences, effective, protocol_of
from pytest_r1perf.workload import SampledWorkload

RECORDED = Path(__file__).parent / "recorded"
BASELINES = Path(__file__).parent.parent / "baselines"


def told(text: str) -> dict[str, object]:
    reader = LogReader()
    reader.feed(text.encode())
    reader.close()
    return effective(reader.facts.server_args, reader.facts)


# --- one configuration in the words of each release (read in their sources; none of these ran on a GPU of ours)

WANTED = {
    "device": "cuda",
    "load_format": "dummy",
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "bfloat16",
    "attention_backend": "fa3",
    "prefill_attention_backend": "fa3",
    "decode_attention_backend": "fa3",
    "moe_runner_backend": "auto",
    "moe_a2a_backend": "none",
    "decode_graph": "full",
    "decode_graph_max_bs": 160,
    "prefill_graph": "off",
    "chunked_prefill_size": 8192,
    "disable_radix_cache": True,
    "speculative_algorithm": None,
    "enable_dp_attention": False,
    "page_size": 1,
    "allreduce_fusion": "off",
}
COMMON = (
    "device='cuda', load_format='dummy', dtype='auto', quantization=None, kv_cache_dtype='auto', tp_size=8, "
    "chunked_prefill_size=8192, disable_radix_cache=True, enable_dp_attention=False, speculative_algorithm=None, "
)
CAPACITY = "[2026-11-30 10:00:00 TP0] max_total_num_tokens=9, chunked_prefill_size=8192, max_running_requests=4\n"
GRAPHS = (
    "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend={0!r}, max_bs=160, bs=[1, 2, 160]), "
    "prefill=PhaseConfig(backend={1!r}, max_bs=2048, bs=[4, 2048])), "
)
ERAS = {
    "0.4.3.post2": (
        f"server_args=ServerArgs({COMMON}dp_size=1, attention_backend='fa3', disable_cuda_graph=False, "
        "cuda_graph_max_bs=160, cuda_graph_bs=None, enable_ep_moe=False)\n"
        "[2025-02-20 10:00:00 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=1 GB\n"
    ),
    "0.4.6.post5": (
        f"server_args=ServerArgs({COMMON}dp_size=1, attention_backend=None, disable_cuda_graph=False, page_size=1, "
        "cuda_graph_max_bs=None, cuda_graph_bs=None, enable_deepep_moe=False)\n"
        "[2025-05-20 10:00:00 TP0] Attention backend not set. Use fa3 backend by default.\n"
        "[2025-05-20 10:00:00 TP0] Load weight end. type=T, dtype=torch.bfloat16, avail mem=1 GB, mem usage=2 GB.\n"
        "[2025-05-20 10:00:00 TP0] Capture cuda graph bs [1, 2, 4, 8, 160]\n"
    ),
    "0.5.3.post3": (
        f"server_args=ServerArgs({COMMON}dp_size=1, attention_backend=None, prefill_attention_backend=None, "
        "decode_attention_backend=None, disable_cuda_graph=False, page_size=1, cuda_graph_max_bs=160, "
        "cuda_graph_bs=[1, 160], moe_a2a_backend='none', moe_runner_backend='auto', enable_piecewise_cuda_graph=False, "
        "enable_flashinfer_allreduce_fusion=False)\n"
        "[2025-10-20 10:00:00 TP0] Attention backend not explicitly specified. Use fa3 backend by default.\n"
        "[2025-10-20 10:00:00 TP0] Using KV cache dtype: torch.bfloat16\n"
    ),
    "0.5.12.post1": (
        f"server_args=ServerArgs({COMMON}dp_size=1, attention_backend='fa3', prefill_attention_backend=None, "
        "decode_attention_backend=None, disable_cuda_graph=False, page_size=1, cuda_graph_max_bs=160, "
        "cuda_graph_bs=[1, 160], moe_a2a_backend='none', moe_runner_backend='auto', "
        "disable_piecewise_cuda_graph=False, enable_breakable_cuda_graph=False, "
        "enable_flashinfer_allreduce_fusion=True)\n"
        "[2026-05-20 10:00:00 TP0] Using KV cache dtype: torch.bfloat16\n"
        "[2026-05-20 10:00:00 TP0] Failed to initialize FlashInfer workspace: x. Disabling flashinfer allreduce fusion "
        "permanently.\n"
        "[2026-05-20 10:00:00 TP0] Disable piecewise CUDA graph because the model is not a language model\n"
    ),
    "0.5.14": (
        f"server_args=ServerArgs({COMMON}dp_size=1, attention_backend='fa3', prefill_attention_backend=None, "
        f"decode_attention_backend=None, disable_cuda_graph=False, page_size=1, {GRAPHS.format('full', 'disabled')}"
        "moe_a2a_backend='none', moe_runner_backend='auto', enable_flashinfer_allreduce_fusion=False, "
        "flashinfer_allreduce_fusion_backend=None)\n"
        "[2026-06-20 10:00:00 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, KV size: 1 GB\n"
    ),
    "0.5.22": (
        "server_args={'device': 'cuda', 'load_format': 'dummy', 'dtype': 'auto', 'quantization': None, "
        "'kv_cache_dtype': 'auto', 'tp_size': 8, 'dp_size': 1, 'attn_dp_size': 1, 'chunked_prefill_size': 8192, "
        "'disable_radix_cache': True, 'enable_dp_attention': False, 'speculative_algorithm': None, "
        "'attention_backend': 'fa3', 'prefill_attention_backend': None, 'decode_attention_backend': None, "
        "'page_size': 1, 'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 160, 'bs': [1, 160]}, "
        "'prefill': {'backend': 'disabled', 'max_bs': 2048}}, 'disable_cuda_graph': False, 'moe_a2a_backend': 'none', "
        "'moe_runner_backend': 'auto', 'flashinfer_allreduce_fusion_backend': None}\n"
        "[2026-11-20 10:00:00 TP0] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 9\n"
    ),
}


@pytest.mark.parametrize("version", ERAS)
def test_one_configuration_in_every_release(version: str) -> None:
    assert told(ERAS[version] + CAPACITY) == WANTED


@pytest.mark.parametrize(
    ("version", "old", "new", "key", "value"),
    [
        ("0.4.3.post2", "attention_backend='fa3'", "attention_backend='triton'", "attention_backend", "triton"),
        ("0.4.3.post2", "disable_cuda_graph=False", "disable_cuda_graph=True", "decode_graph", "off"),
        ("0.4.3.post2", "disable_cuda_graph=False", "disable_cuda_graph=True", "decode_graph_max_bs", None),
        ("0.4.6.post5", "enable_deepep_moe=False", "enable_deepep_moe=True", "moe_a2a_backend", "deepep"),
        ("0.4.6.post5", "Use fa3 backend", "Use triton backend", "decode_attention_backend", "triton"),
        ("0.4.6.post5", "8, 160]", "8, 512]", "decode_graph_max_bs", 512),
        ("0.4.6.post5", "dtype=torch.bfloat16", "dtype=torch.float16", "kv_cache_dtype", "float16"),
        ("0.5.3.post3", "piecewise_cuda_graph=False", "piecewise_cuda_graph=True", "prefill_graph", "tc_piecewise"),
        ("0.5.3.post3", "torch.bfloat16", "torch.float8_e4m3fn", "kv_cache_dtype", "fp8_e4m3"),
        ("0.5.3.post3", "decode_attention_backend=None", "decode_attention_backend='flashinfer'",
         "decode_attention_backend", "flashinfer"),
        ("0.5.3.post3", "allreduce_fusion=False", "allreduce_fusion=True", "allreduce_fusion", "flashinfer"),
        ("0.5.12.post1", "Disable piecewise CUDA", "Piecewise CUDA", "prefill_graph", "tc_piecewise"),
        ("0.5.12.post1", "Disabling flashinfer allreduce", "Keeping", "allreduce_fusion", "flashinfer"),
        ("0.5.14", "'disabled'", "<Backend.BREAKABLE: 'breakable'>", "prefill_graph", "breakable"),
        ("0.5.14", "backend='full'", "backend='disabled'", "decode_graph", "off"),
        ("0.5.14", "bs=[1, 2, 160]", "bs=[1, 2, 320]", "decode_graph_max_bs", 320),
        ("0.5.14", "fusion_backend=None", "fusion_backend='auto'", "allreduce_fusion", "flashinfer"),
        ("0.5.14", "fusion_backend=None", "fusion_backend='mnnvl'", "allreduce_fusion", "flashinfer mnnvl"),
        ("0.5.14", "speculative_algorithm=None", "speculative_algorithm='NEXTN'", "speculative_algorithm", "EAGLE"),
        ("0.5.22", "'attn_dp_size': 1", "'attn_dp_size': 8", "enable_dp_attention", True),
        ("0.5.22", "'page_size': 1", "'page_size': 64", "page_size", 64),
    ],
)  # fmt: skip
def test_a_real_difference_shows(version: str, old: str, new: str, key: str, value: object) -> None:
    assert old in ERAS[version]
    now = told(ERAS[version].replace(old, new) + CAPACITY)
    assert now[key] == value
    assert f"{key}: {WANTED[key]} -> {value}" in differences(WANTED, now)


def test_a_backend_told_after_the_arguments_beats_them() -> None:
    args = "server_args=ServerArgs(attention_backend='flashinfer', prefill_attention_backend=None)\n"
    late = "[2025-02-20 10:00:00 TP0] MLA optimization is turned on. Use triton backend.\n"
    assert told(args + late)["attention_backend"] == "triton"
    assert told(late + args)["attention_backend"] == "flashinfer"  # 0.5.5 on: resolved before they are printed


def test_a_kv_cache_that_fell_back_is_what_it_became() -> None:
    args = "server_args=ServerArgs(kv_cache_dtype='fp4_e2m1')\n"
    assert told(args)["kv_cache_dtype"] == "fp4_e2m1"
    assert told(args + "[2026-01-20 10:00:00] Using KV cache dtype: torch.bfloat16\n")["kv_cache_dtype"] == "bfloat16"
    line = "[2026-01-20 10:00:00] KV Cache is allocated. dtype: torch.uint8, #tokens: 9, KV size: 1 GB\n"
    assert told(args + line)["kv_cache_dtype"] == "fp4_e2m1"  # packed into bytes


def test_the_schedulers_chunk_counts() -> None:
    """Up to 0.5.18 the arguments may be resolved twice; the capacity line is the scheduler's own."""
    facts = LogFacts(server_args={"chunked_prefill_size": 1024}, chunked_prefill_size=128)
    assert chunk(facts.server_args, facts) == 128
    assert [chunk({"chunked_prefill_size": size}, LogFacts()) for size in (None, -1, 0, 4096)] == [*["off"] * 3, 4096]


def test_what_is_not_told_equals_nothing() -> None:
    args = "server_args=ServerArgs(device='cuda', attention_backend=None, disable_cuda_graph=False, tp_size=8)\n"
    silent = told(args)
    assert (silent["attention_backend"], silent["decode_graph_max_bs"], silent["disable_radix_cache"]) == (
        "unknown",
        "unknown",
        "unknown",
    )
    known = told(args + "[2025-05-20 10:00:00] Attention backend not set. Use fa3 backend by default.\n")
    assert "attention_backend: unknown -> fa3" in differences(silent, known)
    assert differences(silent, silent) == ()


# --- the real ones


def test_two_releases_on_the_cpu_rig_are_comparable() -> None:
    """0.5.9 and 0.5.20 run the same here, and their arguments do not look it.

    0.5.9 resolves disable_cuda_graph=True and cuda_graph_max_bs=8, 0.5.20 a full decode graph up to 32.
    """
    logs = [read_log(RECORDED / f"rig_{version}.log") for version in ("0.5.9", "0.5.20")]
    old, new = (effective(facts.server_args, facts) for facts in logs)
    assert differences(old, new) == ()
    assert old == {
        **WANTED,
        "device": "cpu",
        "attention_backend": "torch_native",
        "prefill_attention_backend": "torch_native",
        "decode_attention_backend": "torch_native",
        "decode_graph": "off",
        "decode_graph_max_bs": None,
        "chunked_prefill_size": 2048,
        "disable_radix_cache": False,
    }


def test_an_h200_with_piecewise_graphs() -> None:
    facts = read_log(RECORDED / "r1-mini_n500_triton_0.5.11.log")
    now = effective(facts.server_args, facts)
    assert (now["decode_graph"], now["decode_graph_max_bs"], now["prefill_graph"]) == ("full", 256, "tc_piecewise")
    assert facts.captured == {"decode": 256, "prefill": 2048}
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    now = effective(facts.server_args, facts)
    assert (now["decode_graph"], now["decode_graph_max_bs"], now["prefill_graph"]) == ("full", 128, "off")
    assert (now["kv_cache_dtype"], now["attention_backend"]) == ("bfloat16", "fa3")


def test_the_whole_protocol_is_plain_and_complete() -> None:
    catalog = load_catalog()
    cell = cell_of(PerfSpec(topology="tp1", n=50), catalog.platform("cpu"), catalog)
    facts = read_log(RECORDED / "rig_0.5.20.log")
    made = protocol_of(cell, SampledWorkload(50, 4821, 3419, "d1"), facts.server_args, "m1", facts)
    assert (made["workload"], made["model_config"], made["tp_size"]) == ("d1", "m1", 1)
    assert yaml.safe_load(yaml.safe_dump(made)) == made
    assert set(WANTED) < set(made)


# --- older files


def test_a_stored_baseline_of_an_older_file_is_mapped() -> None:
    text = (BASELINES / "cpu-amd-epyc-1c" / "tp1.yaml").read_text(encoding="utf-8")
    (cell,) = yaml.safe_load(text)["cells"].values()
    stored = cell["protocol"]
    facts = read_log(RECORDED / "rig_0.5.20.log")
    same = {key: value for key, value in stored.items() if key not in ("disable_cuda_graph", "cuda_graph_max_bs")}
    measured = {**same, **effective(facts.server_args, facts)}
    assert differences(stored, measured) == ()
    assert differences(stored, {**measured, "kv_cache_dtype": "fp8_e4m3"}) == ("kv_cache_dtype: auto -> fp8_e4m3",)
    assert differences(stored, {**measured, "decode_graph": "full"}) == ("decode_graph: off -> full",)


def test_what_an_older_file_cannot_tell_is_named() -> None:
    stored = {**WANTED, "tp_size": 8, "kv_cache_dtype": "auto", "moe_a2a_backend": None, "chunked_prefill_size": 8192}
    for key in ("decode_graph", "decode_graph_max_bs", "prefill_graph", "allreduce_fusion"):
        del stored[key]
    measured = {**WANTED, "tp_size": 8}
    assert differences({**stored, "disable_cuda_graph": False, "cuda_graph_max_bs": 160}, measured) == (
        "prefill_graph: not recorded -> off",
        "allreduce_fusion: not recorded -> off",
    )
    assert "decode_graph: not recorded -> full" in differences({**stored, "disable_cuda_graph": False}, measured)
    assert "decode_graph: off -> full" in differences({**stored, "disable_cuda_graph": True}, measured)
