"""Rules on the parallel layout: what SGLang refuses, and what leaves GPUs idle."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_r1perf.fit import idle
from pytest_r1perf.memory import parsed_partition
from pytest_r1perf.preflight.finding import CheckRule, Finding, Severity, Situation

_SERVER_ARGS = "SGLang's own check of its arguments"


def dp_attention_with_dp_1(now: Situation) -> Iterator[Finding]:
    """DP attention over one rank: three eras of SGLang, three outcomes, none of them DP attention."""
    topology = now.cell.topology
    if not topology.enable_dp_attention or topology.dp_size > 1:
        return
    rule, mend = "dp-attention-with-dp-1", "give the topology a dp_size above 1, or leave enable_dp_attention out"
    if now.holds("<0.4.6.post5"):
        text = f"SGLang 0.4.3 changes dp_size 1 to tp_size {topology.tp_size} under DP attention: {mend}"
        yield Finding(rule, Severity.WARN, text, "SGLang 0.4.3.post2, server_args.py:253")
    text = f"DP attention with dp_size 1 fails with 'AssertionError: Please set a dp-size > 1': {mend}"
    source = "SGLang 0.4.6.post5 to 0.5.1.post3, server_args.py; optimisation notes, what didn't work"
    yield from now.refusal(rule, ">=0.4.6.post5,<=0.5.1.post3", text, source)
    if now.holds(">=0.5.2"):
        text = f"SGLang 0.5.2 and later drops DP attention without a word where dp_size is 1: {mend}"
        yield Finding(rule, Severity.WARN, text, "SGLang 0.5.2, server_args.py:634")


def tp_over_dp(now: Situation) -> Iterator[Finding]:
    """Under DP attention the tensor-parallel group is cut into dp equal parts."""
    topology = now.cell.topology
    if topology.enable_dp_attention and topology.tp_size % topology.dp_size:
        text = (
            f"tp_size {topology.tp_size} cannot be cut into {topology.dp_size} equal DP-attention groups, and SGLang "
            f"fails with an AssertionError that has no text: take a dp_size that divides tp_size"
        )
        yield from now.refusal("tp-over-dp", "", text, f"{_SERVER_ARGS}, 0.4.3 to 0.5.23")


def ranks_over_nodes(now: Situation) -> Iterator[Finding]:
    """Every node holds the same number of ranks of one copy."""
    topology = now.cell.topology
    pp = topology.pp_size
    ranks = topology.tp_size * pp
    source = f"{_SERVER_ARGS}: tp % nnodes in 0.4.3, (tp * pp) % nnodes from 0.4.6.post5"
    if ranks % topology.nnodes:
        text = (
            f"tp_size {topology.tp_size} x pp_size {pp} = {ranks} ranks cannot be spread evenly over "
            f"{topology.nnodes} nodes: change nnodes or a size"
        )
        yield from now.refusal("ranks-over-nodes", "", text, source)


def multi_node_dp(now: Situation) -> Iterator[Finding]:
    """Whole replicas on several nodes are several servers, not one."""
    topology = now.cell.topology
    if topology.nnodes > 1 and topology.dp_size > 1 and not topology.enable_dp_attention:
        text = (
            f"SGLang refuses {topology.dp_size} whole replicas over {topology.nnodes} nodes (multi-node data parallel "
            f"is not supported): enable DP attention, or run one server a node"
        )
        yield from now.refusal("multi-node-dp", "", text, f"{_SERVER_ARGS}, 0.4.6.post5 to 0.5.23")


def pipeline_with_speculation(now: Situation) -> Iterator[Finding]:
    """Pipeline stages and a draft model exclude each other, but for EAGLE on prefill nodes of late releases."""
    algorithm = now.text("speculative_algorithm")
    if now.cell.topology.pp_size == 1 or algorithm is None:
        return
    rule, mend = "pipeline-with-speculation", "leave speculative_algorithm out, or take a topology with pp_size 1"
    text = f"pipeline parallelism is not compatible with speculative decoding ({algorithm}): {mend}"
    yield from now.refusal(rule, "<=0.5.20", text, f"{_SERVER_ARGS}, 0.4.6.post5 to 0.5.20")
    if algorithm.upper() == "EAGLE" and now.text("disaggregation_mode") == "prefill":
        return
    text = (
        f"pipeline parallelism with speculative decoding ({algorithm}) works from SGLang 0.5.21 on with EAGLE "
        f"alone, and only on prefill nodes: {mend}"
    )
    yield from now.refusal(rule, ">=0.5.21", text, f"{_SERVER_ARGS}, 0.5.21 to 0.5.23")


def layer_partition(now: Situation) -> Iterator[Finding]:
    """``SGLANG_PP_LAYER_PARTITION`` names the layers of every stage: one number each, all layers together."""
    given = now.cell.env.get("SGLANG_PP_LAYER_PARTITION")
    if given is None:
        return
    rule, name = "layer-partition", f"SGLANG_PP_LAYER_PARTITION={given}"
    source = "SGLang, distributed/utils.py, get_pp_indices; best-practice guide, playbook B"
    pp, layers = now.cell.topology.pp_size, parsed_partition(given)
    if layers is None or min(layers) < 1:
        text = f"{name} is no list of layer counts: give one number above 0 for each stage, e.g. 32,29"
        yield Finding(rule, Severity.REFUSE, text, source)
    elif pp == 1:
        mend = "leave it out, or take a topology with pp_size above 1"
        text = f"{name} is given without pipeline parallelism, and SGLang takes it for one stage and fails: {mend}"
        yield from now.refusal(rule, "<=0.5.9", text, f"{source} (read in 0.5.9)")
        if now.holds(">0.5.9"):
            text = f"{name} has no effect without pipeline parallelism (older releases fail on it): {mend}"
            yield Finding(rule, Severity.WARN, text, f"{source} (read in 0.5.20)")
    elif len(layers) != pp:
        text = f"{name} has {len(layers)} entries for {pp} pipeline stages, and SGLang fails on it: give {pp} numbers"
        yield Finding(rule, Severity.REFUSE, text, source)
    elif now.shape is not None and sum(layers) != now.shape.num_layers:
        text = (
            f"{name} sums to {sum(layers)}, but the model has {now.shape.num_layers} layers, and SGLang fails "
            f"while it loads: make the numbers sum to {now.shape.num_layers}"
        )
        yield Finding(rule, Severity.REFUSE, text, source)


def expert_parallel_size(now: Situation) -> Iterator[Finding]:
    """Experts are spread over the tensor-parallel ranks; one kernel wants all of them or none."""
    topology, runner = now.cell.topology, now.text("moe_runner_backend")
    ep, tp = topology.ep_size, topology.tp_size
    rule, mend = "expert-parallel-size", f"take ep_size 1 or {tp}"
    if ep > tp:
        text = f"ep_size {ep} is above tp_size {tp}, whose ranks hold the experts: {mend}"
        yield from now.refusal(rule, ">=0.5.10.post1", text, f"{_SERVER_ARGS}, 0.5.10.post1 and later")
    elif runner == "flashinfer_cutlass" and ep not in (1, tp):
        text = f"moe_runner_backend flashinfer_cutlass needs ep_size 1 or tp_size, and ep_size is {ep}: {mend}"
        yield from now.refusal(rule, ">=0.5.1", text, f"{_SERVER_ARGS}, 0.5.1 and later")


def gpus_idle(now: Situation) -> Iterator[Finding]:
    """GPUs that are allocated and hold nothing are paid for, and a figure a GPU is not what it seems."""
    found = idle(now.cell.topology, now.cell.platform)
    if found is not None:
        text = f"{found}, so judge tokps_per_gpu, or take a topology that fills its nodes"
        source = "SGLang: GPUs needed are tp*pp with DP attention, tp*pp*dp without; counted against the platform"
        yield Finding("gpus-idle", Severity.WARN, text, source)


def gpus_missing(now: Situation) -> Iterator[Finding]:
    """SGLang does not count the GPUs itself: asking for too many fails late, in torch or NCCL."""
    if now.gpus_available is None:
        return
    topology, platform = now.cell.topology, now.cell.platform
    unit = "cores" if platform.is_cpu else "GPUs"
    needed = -(-topology.gpus_used // topology.nnodes)
    if needed > now.gpus_available:
        text = (
            f"topology {topology.name!r} takes {needed} {unit} on each of its nodes, and there are "
            f"{now.gpus_available}: take a smaller topology or another host"
        )
        source = "SGLang has no such check of its own (server_args.py, 0.4.3 to 0.5.23)"
        yield Finding("gpus-missing", Severity.REFUSE, text, source)


LAYOUT_RULES: tuple[CheckRule, ...] = (
    dp_attention_with_dp_1,
    tp_over_dp,
    ranks_over_nodes,
    multi_node_dp,
    pipeline_with_speculation,
    layer_partition,
    expert_parallel_size,
    gpus_idle,
    gpus_missing,
)
