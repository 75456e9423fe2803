"""Rules on single flags and variables: what this SGLang asserts, changes or does not promise."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_r1perf.memory import FP4_KV, default_chunk
from pytest_r1perf.preflight.finding import CheckRule, Finding, Severity, Situation

_HOPPER = ("NVIDIA H100", "NVIDIA H200", "NVIDIA H20")
_DOUBLED = "<=0.5.18"
_KV4_MLA = ("cutlass_mla", "flashinfer", "trtllm_mla", "flashmla")
_PAGES = {"flashmla": 64, "cutlass_mla": 128}
"""Attention backend -> the page size it forces (SGLang 0.4.6.post5 and later)."""


def effective_chunk(chunk: int, divisor: int, passes: int) -> int:
    """``chunked_prefill_size`` after ``passes`` resolutions of the arguments, each of which divides it.

    By dp_size under DP attention (SGLang 0.4.6.post5 and later, ``_handle_data_parallelism``), by 2 in 0.4.3.
    """
    for _ in range(passes):
        chunk //= divisor
    return chunk


def chunk_over_pages(now: Situation) -> Iterator[Finding]:
    """A chunk is whole pages, after DP attention has divided it."""
    chunk, page = _chunk(now), _page_size(now)
    if chunk is None or page <= 1 or now.text("disaggregation_mode") == "decode":
        return
    actual = effective_chunk(chunk, _divisor(now), _passes(now))
    if actual % page == 0:
        return
    became = "" if actual == chunk else f" (which becomes {actual} under DP attention)"
    text = f"chunked_prefill_size {chunk}{became} is no multiple of page_size {page}: take a multiple of it"
    yield from now.refusal("chunk-over-pages", ">=0.4.6.post5", text, "SGLang's own check, 0.4.6.post5 to 0.5.23")


def arguments_resolved_twice(now: Situation) -> Iterator[Finding]:
    """The offline benchmark resolved its arguments twice up to 0.5.18, so DP attention scaled the chunk twice."""
    chunk, divisor = _chunk(now), _divisor(now)
    if chunk is None or not _passes(now):
        return
    once, twice = (effective_chunk(chunk, divisor, passes) for passes in (1, 2))
    by = f"DP attention divides chunked_prefill_size {chunk} by {divisor}"
    if _passes(now) == 2:
        text = (
            f"{by} twice in the offline benchmark of SGLang up to 0.5.18, so {twice} tokens are in force (and "
            f"schedule_conservativeness is scaled by 0.09): 0.5.19 and a server have {once}, and a bump across "
            f"0.5.18 changes the configuration"
        )
    else:
        text = f"{by}, so {once} tokens are in force (up to 0.5.18 the offline benchmark had {twice})"
    source = "SGLang, bench_offline_throughput: Engine(**asdict(server_args)) resolves a second time up to 0.5.18"
    yield Finding("arguments-resolved-twice", Severity.NOTE, text, source)


def fp4_kv_backend(now: Situation) -> Iterator[Finding]:
    """FP4 KV with MLA runs on some attention backends only, and FA3, Hopper's default, is none of them."""
    kind = now.text("kv_cache_dtype")
    if kind not in FP4_KV or (now.shape is not None and not now.shape.is_mla):
        return
    hopper = now.cell.platform.accelerator.startswith(_HOPPER)
    rule = "fp4-kv-backend"
    if kind == "nvfp4" and hopper:
        text = (
            f"kv_cache_dtype nvfp4 needs a Blackwell GPU, and this is {now.cell.platform.accelerator}: take "
            f"fp4_mx_block16, or keep auto"
        )
        yield from now.refusal(rule, ">=0.5.20", text, "SGLang, kv_cache_hook.py, 0.5.20 and 0.5.23")
    chosen = now.text("attention_backend") or ("fa3" if hopper else None)
    prefill, decode = (now.text(f"{phase}_attention_backend") or chosen for phase in ("prefill", "decode"))
    if chosen is None or prefill != decode or chosen in (*_KV4_MLA, "fa4"):
        return
    default = "" if now.text("attention_backend") else ", Hopper's default"
    text = (
        f"kv_cache_dtype {kind} with MLA expects attention_backend to be one of {', '.join(_KV4_MLA)}, and it is "
        f"{chosen}{default}: give attention_backend flashinfer, or keep kv_cache_dtype auto"
    )
    source = "SGLang's own check of KV4, 0.5.8.post1 and later (0.5.20 leaves flashinfer and trtllm_mla)"
    yield from now.refusal(rule, ">=0.5.8.post1", text, source)


def micro_batch_size(now: Situation) -> Iterator[Finding]:
    """A micro-batch of no requests."""
    size = now.number("pp_max_micro_batch_size")
    if size is not None and size <= 0:
        text = f"pp_max_micro_batch_size must be above 0, got {size:g}: leave it out, and SGLang computes it"
        yield from now.refusal("micro-batch-size", ">=0.5.12.post1", text, "SGLang's own check, 0.5.12.post1 to 0.5.23")


def conservativeness(now: Situation) -> Iterator[Finding]:
    """A negative reserve for running requests."""
    value = now.number("schedule_conservativeness")
    if value is not None and value < 0:
        text = f"schedule_conservativeness must not be negative, got {value:g}: 1.0 is SGLang's own"
        yield from now.refusal("conservativeness", ">=0.5.5.post3", text, "SGLang's own check, 0.5.5.post3 and later")


def nccl_requests(now: Situation) -> Iterator[Finding]:
    """NCCL takes an algorithm or protocol for a wish and downgrades without a word."""
    env = now.cell.env
    asked = [f"{name}={env[name]}" for name in ("NCCL_ALGO", "NCCL_PROTO") if name in env]
    if not asked:
        return
    seen = env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")
    mend = "look for it in the NCCL_DEBUG=INFO lines of the log" if seen else "run once with NCCL_DEBUG=INFO to see it"
    text = f"{' and '.join(asked)} is a request that NCCL may drop silently: {mend}"
    source = "optimisation notes, NCCL tuning: 'NCCL silently downgrades if it doesn't like your topology'"
    yield Finding("nccl-requests", Severity.NOTE, text, source)


def _chunk(now: Situation) -> int | None:
    """The chunk that is asked for, or SGLang's default by the GPU's memory; ``None`` when off or not known."""
    asked = now.number("chunked_prefill_size")
    if asked is None:
        return default_chunk(now.gpu_bytes) if now.gpu_bytes is not None else None
    return int(asked) if asked > 0 else None


def _divisor(now: Situation) -> int:
    return 2 if now.version is not None and now.holds("<0.4.6.post5") else now.cell.topology.dp_size


def _passes(now: Situation) -> int:
    """How often the arguments are resolved under DP attention; an unknown SGLang is taken for a new one."""
    topology = now.cell.topology
    if not topology.enable_dp_attention or topology.dp_size == 1:
        return 0
    return 2 if now.cell.mode == "offline" and now.version is not None and now.holds(_DOUBLED) else 1


def _page_size(now: Situation) -> int:
    """The page size in force: forced by the attention backend, else as given, else 1."""
    flags = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")
    forced = max(_PAGES.get(now.text(flag) or "", 1) for flag in flags)
    return forced if forced > 1 else int(now.number("page_size") or 1)


FLAG_RULES: tuple[CheckRule, ...] = (
    chunk_over_pages,
    arguments_resolved_twice,
    fp4_kv_backend,
    micro_batch_size,
    conservativeness,
    nccl_requests,
)
