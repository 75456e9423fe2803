"""Topologies: the parallel layout of a run."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_r1perf.datafile import Section


@dataclass(frozen=True, slots=True)
class Topology:
    """How a model is laid out over GPUs; sizes are SGLang's own (``tp_size`` and so on).

    ``reference`` names the topology whose champion a risky one is measured against (its own by default).
    """

    name: str
    tp_size: int
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    nnodes: int = 1
    enable_dp_attention: bool = False
    reference: str | None = None
    source: str = ""

    @property
    def gpus_used(self) -> int:
        """GPUs that really hold a part of the model.

        With DP attention the replicas share the tensor-parallel group; without it each is a copy
        (SGLang: "GPUs needed: tp*pp with DP attention, tp*pp*dp without").
        """
        copies = 1 if self.enable_dp_attention else self.dp_size
        return self.tp_size * self.pp_size * copies

    def flags(self) -> dict[str, int | bool]:
        """The logical server flags of this layout; sizes of 1 are SGLang's default and left out."""
        sizes = {
            "tp_size": self.tp_size,
            "pp_size": self.pp_size,
            "dp_size": self.dp_size,
            "ep_size": self.ep_size,
            "nnodes": self.nnodes,
        }
        flags: dict[str, int | bool] = {name: size for name, size in sizes.items() if size > 1}
        if self.enable_dp_attention:
            flags["enable_dp_attention"] = True
        return flags


LAYOUT_FLAGS = frozenset(
    {"tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "node_rank", "dist_init_addr", "enable_dp_attention"}
)
"""Flags that belong to the topology and the launch, never to a recipe or a marker."""


def load_topology(name: str, data: Section) -> Topology:
    """One entry of ``topologies:``."""
    topology = Topology(
        name=name,
        tp_size=data.integer("tp_size"),
        pp_size=data.integer("pp_size", 1),
        dp_size=data.integer("dp_size", 1),
        ep_size=data.integer("ep_size", 1),
        nnodes=data.integer("nnodes", 1),
        enable_dp_attention=data.flag("enable_dp_attention"),
        reference=data.optional_text("reference"),
        source=data.text("source"),
    )
    data.done()
    if topology.gpus_used % topology.nnodes:
        data.fail(f"{topology.gpus_used} GPUs cannot be spread evenly over {topology.nnodes} nodes")
    return topology
