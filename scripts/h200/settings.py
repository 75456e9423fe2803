"""The sizes of the measurement on an H200, and of its rehearsal on the CPU rig.

python settings.py NAME      prints one of them, for the shell: a list as words, and ``pair_processes``
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

Flags = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Settings:
    """One scale. Loads are numbers of prompts.

    ``loads`` are the cells behind one engine start, ``classes`` what of them counts as low, middle and high load in the
    summary. ``slow_requests`` is the cap on running requests that is injected at ``slow_loads``. ``held_mib`` of GPU
    memory, and no less, say that an engine is up and may be killed. ``hang_s`` is the time limit of a start-up that
    ``hang_env`` makes longer than that.
    """

    platform: str
    loads: tuple[int, ...]
    classes: tuple[tuple[str, int, int], ...]
    gate_loads: tuple[int, ...]
    slow_loads: tuple[int, ...]
    slow_requests: int
    noise_loads: tuple[int, ...]
    noise_windows: int
    offline_n: int
    pairs: int
    ablation_n: int
    ablation: Flags
    held_mib: int
    hang_s: float
    hang_env: dict[str, str]
    windows: int = 3
    engine_rounds: int = 10
    two_platform: str = "h200x2"
    flags: Flags = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def pair_processes(self) -> int:
        """Processes of all pairs."""
        return 2 * self.pairs


FULL = Settings(
    platform="h200x1",
    # On one H200 a window takes about 0.9 s and 2.9 ms a prompt (R1's layer shapes, 4 layers): 35 s for all of these.
    loads=(50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 1000, 1500),
    classes=(("low", 50, 250), ("middle", 300, 500), ("high", 600, 1500)),
    gate_loads=(100, 200, 500, 1000),
    slow_loads=(100, 200),
    slow_requests=4,
    noise_loads=(100, 500, 1000),
    noise_windows=10,
    offline_n=1000,
    pairs=5,
    ablation_n=1000,
    ablation={"cuda_graph_max_bs": 1024},
    held_mib=100_000,
    # DeepGEMM compiles 65,536 shapes beforehand unless it is told not to: over five minutes (sglang 0.5.11).
    hang_s=75,
    hang_env={"SGLANG_ENABLE_JIT_DEEPGEMM": "1"},
    flags={
        "load_format": "dummy",
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 0.87,
        "chunked_prefill_size": 32768,
        "cuda_graph_max_bs": 128,
        "disable_radix_cache": True,
    },
    env={
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    },
)

REHEARSAL = Settings(
    platform="cpu",
    loads=(4, 6, 8),
    classes=(("low", 4, 4), ("middle", 6, 6), ("high", 8, 8)),
    gate_loads=(4, 8),
    slow_loads=(8,),
    slow_requests=1,
    noise_loads=(4, 8),
    noise_windows=5,
    offline_n=8,
    pairs=1,
    ablation_n=8,
    ablation={"chunked_prefill_size": 2048},
    held_mib=0,
    hang_s=4,
    hang_env={"MALLOC_ARENA_MAX": "2"},
    two_platform="cpu",
    engine_rounds=2,
)


def chosen() -> Settings:
    """The scale that ``H200_REHEARSE`` asks for."""
    return REHEARSAL if os.environ.get("H200_REHEARSE") else FULL


if __name__ == "__main__":
    value = getattr(chosen(), sys.argv[1])
    print(*value) if isinstance(value, tuple) else print(value)
