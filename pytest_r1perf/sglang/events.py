"""What a measurement should remember of SGLang's log: silent downgrades, retractions, compilation.

What they mean for a measurement is `downgrade`'s to say. A new signal is one more row of `EVENT_RULES`. The texts
were read from the sources of SGLang 0.4.3.post2 to 0.5.23, or come from recorded logs where the source says so; a
row's ``needles`` are plain pieces of the line, looked for before the pattern because a log has a million lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

TEXT_LIMIT = 300


class EventKind(str, Enum):
    """What an event is about."""

    RETRACTION = "retraction"
    JIT = "jit"
    ATTENTION_DEFAULT = "attention default"
    ATTENTION_FALLBACK = "attention fallback"
    PAGE_SIZE = "page size"
    DECODE_GRAPH_DISABLED = "decode graph disabled"
    PREFILL_GRAPH_DISABLED = "prefill graph disabled"
    GRAPH_CAPPED = "graph capped"
    WITHOUT_GRAPH = "batches without graph"
    KV_DTYPE = "kv dtype"
    KV_DTYPE_FALLBACK = "kv dtype fallback"
    KV_CAPPED = "kv capacity capped"
    RUNNING_CAPPED = "running requests capped"
    ALLREDUCE_FALLBACK = "allreduce fallback"
    FUSION_DISABLED = "allreduce fusion disabled"
    FUSION_ENABLED = "allreduce fusion enabled"
    CHUNK_CHANGED = "chunk changed"
    DP_CHUNK = "dp chunk"
    DP_TWICE = "dp resolved twice"
    OVERLAP_DISABLED = "overlap disabled"
    RADIX_DISABLED = "radix disabled"
    CHUNKED_PREFILL_DISABLED = "chunked prefill disabled"
    FLAG_REPLACED = "flag replaced"
    SPECULATIVE_CAP = "speculative cap"
    KERNEL_CONFIG = "kernel config"
    CLAMPED = "clamped"


class Effect(str, Enum):
    """What an event does to the measurement it was seen in."""

    REMARK = "remark"
    """Recorded, and shown beside the verdict."""
    INVALID = "invalid"
    """A flag that was asked for was replaced in silence: the number is another configuration's (design section 5)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One notable line; ``count`` ranks or repetitions said the same, ``line_no`` (from 1) was the first.

    ``line_no`` is 0 for what no line says: it was found by comparing what was asked with what was resolved.
    """

    kind: EventKind
    text: str
    line_no: int
    count: int = 1
    effect: Effect = Effect.REMARK

    def plain(self) -> dict[str, object]:
        """For a record: the kind and the effect by their values."""
        return {
            "kind": self.kind.value,
            "text": self.text,
            "line_no": self.line_no,
            "count": self.count,
            "effect": self.effect.value,
        }


@dataclass(frozen=True, slots=True)
class EventRule:
    """``pattern`` is searched in lines that hold one of ``needles``; ``source``: where the text is from."""

    kind: EventKind
    pattern: re.Pattern[str]
    needles: tuple[str, ...]
    source: str


def _rule(kind: EventKind, pattern: str, needles: tuple[str, ...], source: str) -> EventRule:
    return EventRule(kind, re.compile(pattern), needles, source)


_K = EventKind
EVENT_RULES: tuple[EventRule, ...] = (
    # "Testing retraction." is a debug setting and is not matched.
    _rule(
        _K.RETRACTION,
        r"(?:Decode out of memory happened|KV cache pool is full).*#retracted_reqs: \d+",
        ("#retracted_reqs",),
        "0.4.3-0.4.6.post5 first text, 0.4.9.post6+ second",
    ),
    _rule(
        _K.JIT,
        r"Entering DeepGEMM JIT (?:Pre-Compile|Single Kernel Compile)"
        r"|DeepGEMM JIT Compiling for|DeepGEMM warmup",
        ("DeepGEMM",),
        "0.4.6-0.5.23; PR #4858: five runs of one benchmark gave 1187 to 11266 tok/s while it compiled",
    ),
    _rule(
        _K.JIT,
        r"Compiling a graph for dynamic shape takes|Compiling num tokens",
        ("Compiling ",),
        "recorded with 0.5.11: piecewise graphs, normally before the warm-up",
    ),
    _rule(
        _K.JIT,
        r"Triton autotuning for function|\[Autotuner\]: Autotuning process starts",
        ("utotun",),
        "Triton with TRITON_PRINT_AUTOTUNING=1; FlashInfer's autotuner",
    ),
    _rule(
        _K.ATTENTION_DEFAULT,
        r"Attention backend not (?:set|specified|explicitly specified)\. Use \S+ backend by default"
        r"|MLA optimization is turned on\. Use \S+ backend",
        ("Attention backend not", "MLA optimization"),
        "0.4.3-0.5.23; PR #18364: a moved default was a regression's root cause",
    ),
    _rule(
        _K.ATTENTION_FALLBACK,
        r"[Ss]etting attention backend to \w+|will fallback to \w+ backend",
        ("etting attention backend", "will fallback to"),
        "0.4.6.post5+; the second recorded with 0.5.20 on a CPU",
    ),
    _rule(
        _K.PAGE_SIZE,
        r"only supports a? ?page_size of .*chang(?:e|ing) page_size",
        ("page_size of",),
        "FlashMLA 0.4.6.post5+, TensorRT-LLM MLA 0.5.1.post3+",
    ),
    _rule(
        _K.DECODE_GRAPH_DISABLED,
        r"Cuda graph is disabled because",
        ("graph is disabled",),
        "0.4.3+",
    ),
    _rule(
        _K.PREFILL_GRAPH_DISABLED,
        r"Disable (?:piecewise|prefill) CUDA graph (?:because|due to)"
        r"|Disabling breakable prefill CUDA graph|disabling prefill CUDA graph",
        ("CUDA graph because", "CUDA graph due to", "prefill CUDA graph"),
        "0.5.6+ piecewise ('due to existing compilation errors' in 0.5.9), 0.5.14+ prefill",
    ),
    _rule(
        _K.KV_DTYPE_FALLBACK,
        r"kv-cache-dtype falls back to",
        ("kv-cache-dtype falls",),
        "0.5.5.post3+: the FP4 cache on an older torch becomes 'auto'",
    ),
    _rule(
        _K.KV_DTYPE,
        r"FP4 \(E2M1\) KV Cache might|Using KV cache dtype: |Setting KV cache dtype to",
        ("KV Cache might", "KV cache dtype"),
        "0.5.3+",
    ),
    _rule(
        _K.KV_CAPPED,
        r"max_total_tokens=\S+ is larger than the profiled value",
        ("larger than the profiled",),
        "all versions",
    ),
    _rule(
        _K.RUNNING_CAPPED,
        r"max_running_requests was reduced from the requested",
        ("max_running_requests was reduced",),
        "0.5.14+ (recorded with 0.5.20); silent before",
    ),
    _rule(
        _K.FUSION_DISABLED,
        r"(?i:flashinfer allreduce fusion) (?:permanently|disabled)|Disabling flashinfer allreduce fusion"
        r"|Skipping allreduce fusion|disabled globally because workspace initialization failed"
        r"|Disable --flashinfer-allreduce-fusion-backend because",
        ("llreduce fusion", "llReduce fusion", "allreduce-fusion", "disabled globally"),
        "0.5.10+; the last in 0.5.20",
    ),
    _rule(
        _K.FUSION_ENABLED,
        r"(?:Auto-enabling|Enable) FlashInfer AllReduce Fusion",
        ("AllReduce Fusion",),
        "0.5.3-0.5.6 on SM100, 0.5.10-0.5.23",
    ),
    _rule(
        _K.ALLREDUCE_FALLBACK,
        r"(?i:all_?reduce\w*) is disabled (?:because|due)|Setup Custom allreduce failed with",
        ("llreduce", "llReduce", "ll_reduce"),
        "0.4.3+; the class name replaces 'Custom allreduce' from 0.5.10.post1: NCCL reduces instead",
    ),
    _rule(
        _K.DP_CHUNK,
        r"DP attention is enabled\. (?:The )?chunked prefill size is adjusted",
        ("DP attention is enabled",),
        "0.4.3+; twice in one log is the double resolution of versions up to 0.5.18",
    ),
    _rule(
        _K.OVERLAP_DISABLED,
        r"Overlap scheduler is disabled|incompatible with overlap schedule|overlap scheduler are disabled",
        ("verlap schedule",),
        "0.4.3-0.5.23",
    ),
    _rule(
        _K.RADIX_DISABLED,
        r"Disabling Radix Cache|radix cache are disabled|Radix cache is disabled|forced as chunk cache",
        ("adix Cache", "adix cache", "forced as chunk"),
        "0.5.5+",
    ),
    _rule(
        _K.CHUNKED_PREFILL_DISABLED,
        r"Automatically turn off? --chunked-prefill-size",  # "turn of" is SGLang's own spelling
        ("Automatically turn of",),
        "0.4.3 'turn off', 0.4.6.post5+ 'turn of'",
    ),
    _rule(
        _K.SPECULATIVE_CAP,
        r"Max running requests is reset to \d+ for speculative decoding",
        ("Max running requests is reset",),
        "0.5.5.post3-0.5.23",
    ),
    _rule(
        _K.KERNEL_CONFIG,
        r"Using default .* kernel config\. Performance might be sub-optimal",
        ("kernel config. Performance",),
        "recorded with 0.5.11 on an H200: no tuned Triton file for this shape",
    ),
    _rule(
        _K.CLAMPED,
        r"generated \d+ tokens but requested \d+; the server clamped",
        ("the server clamped",),
        "bench_one_batch_server 0.5.20+",
    ),
)


def match_event(text: str) -> EventKind | None:
    """The kind of event that ``text`` (one line) is, or None. The first rule wins."""
    for rule in EVENT_RULES:
        if any(needle in text for needle in rule.needles) and rule.pattern.search(text):
            return rule.kind
    return None


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """``text`` on one line, white space squeezed, at most ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
