"""The deciders, a file each. A new one is a file and a line here."""

from __future__ import annotations

from gate.decider import Decider, Tunable
from gate.deciders.asv import Asv
from gate.deciders.github_action import GithubAction
from gate.deciders.otava import Otava
from gate.deciders.ours import Ours
from gate.deciders.pyperf import Pyperf
from gate.deciders.pytest_benchmark import PytestBenchmark
from gate.deciders.reframe import Reframe
from gate.deciders.sglang_floor import SglangFloor
from gate.deciders.tensorrt_llm import TensorrtLlm

OURS = Ours()
STRICT = Ours(detect=None)

AS_THEY_COME: tuple[Decider, ...] = (
    OURS,
    STRICT,
    PytestBenchmark("mean", 5),
    PytestBenchmark("min", 5),
    Asv(1.1),
    Asv(1.05),
    Otava(rounds=1),
    Otava(rounds=5),
    Pyperf(),
    SglangFloor(),
    TensorrtLlm(0.05),
    TensorrtLlm(0.10),
    GithubAction(2.0),
    GithubAction(1.1),
    GithubAction(1.05),
    Reframe(),
)
"""With the thresholds that their projects use or default to."""

TUNABLE: tuple[Tunable, ...] = (
    PytestBenchmark("mean"),
    PytestBenchmark("min"),
    Asv(),
    Otava(),
    Pyperf(),
    SglangFloor(),
    TensorrtLlm(),
    GithubAction(),
    Reframe(),
)
"""Those whose one threshold can be moved until they hold a false-alarm rate."""
