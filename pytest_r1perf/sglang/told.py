"""What the log tells of the engine beside its resolved arguments: backends, data types, captured graphs.

Up to SGLang 0.5.3.post3 the attention backend is chosen after the arguments are logged, ``auto`` stays ``auto`` in
them in every release, and how far graphs were captured stands in the log only.
"""

from __future__ import annotations

import re

DECODE = "decode"
PREFILL = "prefill"

_ATTENTION = re.compile(
    r"Attention backend not (?:set|specified|explicitly specified)\. Use (\w+) backend by default"
    r"|MLA optimization is turned on\. Use (\w+) backend"
    r"|[Ss]etting attention backend to (\w+)"
    r"|will fallback to (\w+) backend"
)
_KV = re.compile(r"Using KV cache dtype: (?:torch\.)?(\w+)|KV [Cc]ache (?:is )?allocated\. dtype: (?:torch\.)?(\w+)")
_WEIGHTS = re.compile(r"Load weight end\..*?\bdtype=(?:torch\.)?(\w+)")
_SIZES = r"\[(\d[\d, ]*)\]"
_CAPTURED: tuple[tuple[str, re.Pattern[str]], ...] = (
    (DECODE, re.compile(rf"Capture (?:cuda|cpu|npu) graph bs {_SIZES}")),  # 0.4.6.post5 to 0.5.13.post1
    (PREFILL, re.compile(rf"Capture cuda graph num tokens {_SIZES}")),  # 0.5.3.post3 to 0.5.13.post1
    # 0.5.14+; 0.5.23 has the sizes in the "end" line. "verify" is the decode graph of a run with speculation.
    (DECODE, re.compile(rf"Capture target (?:decode|verify) \w+ graph (?:begin|end)\..*?\bbs={_SIZES}", re.IGNORECASE)),
    (PREFILL, re.compile(rf"Capture target prefill \w+ graph (?:begin|end)\..*?\bnum_tokens={_SIZES}", re.IGNORECASE)),
)


class ToldReader:
    """Takes notable lines; of each fact the first line counts, of the attention backend the last one."""

    def __init__(self) -> None:
        self.kv_cache_dtype: str | None = None
        self.model_dtype: str | None = None
        self.captured: dict[str, int] = {}
        self._attention: str | None = None
        self._after_arguments = False

    def arguments(self) -> None:
        """The arguments were logged: what is told of the backend after them overrides them."""
        self._after_arguments = False

    def feed(self, text: str) -> None:
        """Take one line."""
        if "backend" in text and (found := _ATTENTION.search(text)):
            self._attention = next(name for name in found.groups() if name)
            self._after_arguments = True
        if self.kv_cache_dtype is None and (found := _KV.search(text)):
            self.kv_cache_dtype = found[1] or found[2]
        if self.model_dtype is None and (found := _WEIGHTS.search(text)):
            self.model_dtype = found[1]
        if "apture " in text:
            for phase, pattern in _CAPTURED:
                if phase not in self.captured and (found := pattern.search(text)):
                    self.captured[phase] = max(int(size) for size in found[1].replace(",", " ").split())

    def attention_backend(self, resolved: object) -> str | None:
        """The backend in use where ``resolved``, the argument, does not say so itself; else None."""
        return self._attention if self._after_arguments or resolved is None else None
