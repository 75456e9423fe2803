"""The environment of what we start, and what of it is written down."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

_DROPPED = re.compile(
    r"^(PYTEST_|COV_CORE_|COVERAGE_|PYTHONPATH$|PYTHONHOME$|PYTHONSTARTUP$|PYTHONWARNINGS$|VIRTUAL_ENV$"
    r"|__PYVENV_LAUNCHER__$|SGLANG_IS_IN_CI$)"
)
"""Variables of pytest's own process that would change or trace the benchmark.

``SGLANG_IS_IN_CI`` switches SGLang's own CI behaviour on (reference: field notes, poison list).
"""

_RECORDED = re.compile(
    r"^(SGLANG|SGL_|NCCL_|GLOO_|CUDA_|OMP_|MKL_|TORCH|PYTORCH|TRITON|FLASHINFER|HF_|TRANSFORMERS_|LD_PRELOAD$"
    r"|KMP_|MALLOC_|OPENBLAS|PYTHONPATH$|LD_LIBRARY_PATH$|DG_|NVSHMEM_|UCX_)"
)
# TOKENS and TOKENIZER are SGLang's everyday words (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION): no secrets.
_SECRET = re.compile(
    r"TOKEN(?!S|I[ZS]E)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|_KEY$|AUTH(?!OR_|ORS?$)", re.IGNORECASE
)
# docker's and podman's: `--env NAME=VALUE`, `--env=NAME=VALUE`, `-e NAME=VALUE`, `-eNAME=VALUE`, and switches that
# stand before it in one word (`-te`). Not --env-file: that one is read from a file.
_ENV_OPTION = re.compile(r"(?:--env(?=[=\s]|$)|-[diPqt]*e)[=\s]*(?P<setting>.*)", re.DOTALL)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def compose(own: Mapping[str, str], ambient: Mapping[str, str] | None = None) -> dict[str, str]:
    """The ambient environment without pytest's own parts, then ``own`` over it."""
    base = os.environ if ambient is None else ambient
    return {**{name: value for name, value in base.items() if not _DROPPED.search(name)}, **own}


def recorded(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a measurement, secrets hidden: for the record and for "what changed"."""
    return {name: redact(name, value) for name, value in sorted(env.items()) if _RECORDED.search(name)}


def shown(env: Mapping[str, str]) -> dict[str, str]:
    """All of an environment of our own, secrets hidden."""
    return {name: redact(name, value) for name, value in sorted(env.items())}


def is_secret(name: str) -> bool:
    """Whether a name is one that a secret would have."""
    return _SECRET.search(name) is not None


def redact(name: str, value: str) -> str:
    """The value, or three stars where the name says that it is a secret, and for the login within a URL."""
    return "***" if is_secret(name) else _URL_LOGIN.sub("***", value)


def secret_in(options: Sequence[str]) -> str | None:
    """The name of the first variable that a container engine's options set to a secret; ``None`` without one.

    A command line is seen by everybody on the host. A name alone (``-e HF_TOKEN``) and a file (``--env-file``)
    tell nothing.
    """
    rest = iter(options)
    for option in rest:
        found = _ENV_OPTION.fullmatch(option)
        if found is None:
            continue
        name, _, value = (found["setting"] or next(rest, "")).strip().partition("=")
        if value and redact(name, value) != value:
            return name
    return None
