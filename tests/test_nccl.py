"""NCCL's own lines: recorded ones of 2.28.9, and lines written by the formats in NCCL's sources for other versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.sglang.nccl import ALGORITHMS, MAX_KINDS, MAX_TEXTS, PROTOCOLS, NcclFacts, NcclReader, nccl_facts
from pytest_r1perf.sglang.nccl_verify import Outcome, verification_environment, verify

RECORDED = Path(__file__).parent / "recorded"
INFO = "cn01:7:9 [0] NCCL INFO "


def recorded(name: str) -> NcclFacts:
    with (RECORDED / f"nccl_{name}_2.28.9.log").open() as file:
        return nccl_facts(file)


def said(*lines: str) -> NcclFacts:
    return nccl_facts(INFO + line for line in lines)


def outcome(asked: dict[str, str], facts: NcclFacts) -> tuple[Outcome, str]:
    """Of the one setting that is asked for."""
    (finding,) = verify(asked, facts)
    return finding.outcome, finding.text


def test_ring_and_ll128_were_chosen() -> None:
    facts = recorded("ring_ll128")
    assert (facts.version, facts.networks, facts.channels) == ("2.28.9", ("Socket",), 24)
    assert facts.sockets == {"vm": ("eth0",)}
    assert set(facts.via) == {"P2P/CUMEM"}
    assert facts.env["NCCL_ALGO"] == "Ring"
    assert facts.env["NCCL_NVLS_ENABLE"] == "0"
    assert {(one.function, one.algorithm, one.protocol, one.times) for one in facts.choices} == {
        (function, "Ring", "LL128", 3) for function in ("AllReduce", "AllGather", "ReduceScatter")
    }
    assert {(one.smallest, one.largest) for one in facts.choices} == {(512, 8388608)}
    assert outcome({"NCCL_ALGO": "Ring"}, facts) == (Outcome.CONFIRMED, "all 9 collectives that the log shows")
    assert outcome({"NCCL_PROTO": "LL128"}, facts)[0] is Outcome.CONFIRMED
    assert outcome({"NCCL_PROTO": "ll128,simple"}, facts)[0] is Outcome.CONFIRMED
    result, text = outcome({"NCCL_PROTO": "^LL128"}, facts)
    assert result is Outcome.DOWNGRADED
    assert text.startswith("9 of 9 collectives ran otherwise")


def test_nccls_own_choice_is_not_ll128() -> None:
    facts = recorded("default")
    result, text = outcome({"NCCL_PROTO": "LL128"}, facts)
    assert result is Outcome.DOWNGRADED
    assert "AllReduce of 512 to 131072 bytes by Ring/LL" in text
    assert outcome({"NCCL_ALGO": "Ring"}, facts)[0] is Outcome.CONFIRMED


def test_a_choice_that_nccl_refuses() -> None:
    result, text = outcome({"NCCL_ALGO": "Tree"}, recorded("tree"))
    assert result is Outcome.DOWNGRADED
    assert "no algorithm/protocol available for function AllGather" in text


def test_an_adapter_that_is_not_there_falls_back_to_sockets() -> None:
    facts = recorded("ring_ll128")
    assert "NET/IB : No device found." in facts.fallbacks
    assert outcome({"NCCL_IB_HCA": "mlx5"}, facts) == (
        Outcome.DOWNGRADED,
        "NCCL found no adapter and uses Socket",
    )


def test_without_the_tuning_lines_nothing_is_claimed() -> None:
    asked = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128", "NCCL_DEBUG": "INFO"}
    for finding in verify(asked, recorded("without_tuning")):
        assert finding.outcome is Outcome.NOT_VERIFIABLE
        assert "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING" in finding.text
    assert [finding.variable for finding in verify(asked, NcclFacts())] == ["NCCL_ALGO", "NCCL_PROTO"]


def test_what_was_asked_for_and_never_printed() -> None:
    asked = {"NCCL_ALGO": "Ring", **verification_environment({"NCCL_ALGO": "Ring"})}
    assert "no line of NCCL's" in outcome(asked, NcclFacts())[1]
    quiet = said("Using network IB", "NCCL_ALGO set by environment to Ring")
    assert "SGLang's own all-reduce uses no NCCL" in outcome(asked, quiet)[1]
    elsewhere = {**asked, "NCCL_DEBUG_FILE": "/tmp/nccl.%h"}
    assert "/tmp/nccl.%h" in outcome(elsewhere, NcclFacts())[1]


def test_a_variable_that_did_not_reach_the_processes() -> None:
    result, text = outcome({"NCCL_ALGO": "Ring"}, recorded("default"))
    assert result is Outcome.CONFIRMED, "whatever it read: the log shows Ring"
    result, text = outcome({"NCCL_BUFFSIZE": "8388608"}, recorded("default"))
    assert (result, "did it reach the processes?" in text) == (Outcome.NOT_VERIFIABLE, True)
    assert outcome({"NCCL_NVLS_ENABLE": "0x0"}, recorded("default"))[0] is Outcome.CONFIRMED
    result, text = outcome({"NCCL_NVLS_ENABLE": "1"}, recorded("default"))
    assert (result, "'0'" in text) == (Outcome.DOWNGRADED, True)


@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("524288 Bytes -> Algo 1 proto 1 time 31.400000", ""),  # 2.21.5 src/enqueue.cc:1534
        ("AllReduce: 524288 Bytes -> Algo 1 proto 1 time 31.400000", "AllReduce"),  # 2.23.4 src/enqueue.cc:1855
        ("AllReduce: 524288 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}", "AllReduce"),  # 2.24.3
    ],
)
def test_the_choice_in_every_version(line: str, function: str) -> None:
    (choice,) = said(line).choices
    assert (choice.function, choice.algorithm, choice.protocol) == (function, "Ring", "LL128")
    assert (choice.smallest, choice.largest, choice.times) == (524288, 524288, 1)


@pytest.mark.parametrize(
    ("printed", "name"),
    [("COLLNET_DIRECT", "CollNetDirect"), ("NVLS_TREE", "NVLSTree"), ("PAT", "PAT"), ("5", "NVLSTree"), ("9", "9")],
)
def test_names_and_numbers_of_algorithms(printed: str, name: str) -> None:
    assert said(f"AllReduce: 8 Bytes -> Algo {printed} proto SIMPLE").choices[0].algorithm == name


def test_settings_for_one_function() -> None:
    facts = said("AllReduce: 8 Bytes -> Algo TREE proto LL", "AllGather: 8 Bytes -> Algo RING proto SIMPLE")
    good = {"NCCL_ALGO": "ring;allreduce:tree,ring", "NCCL_PROTO": "^LL128;AllReduce:LL"}
    assert {finding.outcome for finding in verify(good, facts)} == {Outcome.CONFIRMED}
    result, text = outcome({"NCCL_ALGO": "ring;allreduce:^tree"}, facts)
    assert (result, "AllReduce of 8 bytes by Tree/LL" in text) == (Outcome.DOWNGRADED, True)
    assert "AllGather" not in text


@given(
    st.lists(st.sampled_from(ALGORITHMS), min_size=1, max_size=4, unique=True),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(ALGORITHMS), st.sampled_from(PROTOCOLS)), min_size=1, max_size=12),
)
def test_confirmed_only_when_every_collective_is_allowed(
    words: list[str], negated: bool, ran: list[tuple[str, str]]
) -> None:
    facts = said(*(f"AllReduce: 8 Bytes -> Algo {algorithm.upper()} proto {proto.upper()}" for algorithm, proto in ran))
    allowed = all((algorithm in words) != negated for algorithm, _ in ran)
    asked = {"NCCL_ALGO": ("^" if negated else "") + ",".join(words)}
    assert outcome(asked, facts)[0] is (Outcome.CONFIRMED if allowed else Outcome.DOWNGRADED)
    assert sum(choice.times for choice in facts.choices) == len(ran)


# 2.21.5 src/transport/net_ib.cc:538: single and merged adapters; 2.28.9 has the first form.
USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
MERGED = "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [RO]; OOB eth0:10.0.0.1<0>"


@pytest.mark.parametrize("line", [USING, MERGED])
def test_the_adapters_of_a_host(line: str) -> None:
    facts = said(line, "Using network IB")
    assert facts.adapters == {"cn01": ("mlx5_0:1/IB", "mlx5_1:1/IB")}
    for value in ("mlx5", "=mlx5_0:1,mlx5_1:1", "mlx5_1", "^mlx5_7"):
        assert outcome({"NCCL_IB_HCA": value}, facts)[0] is Outcome.CONFIRMED, value
    result, text = outcome({"NCCL_IB_HCA": "mlx5_0:1,ml5_1:1"}, facts)
    assert (result, text) == (Outcome.DOWNGRADED, "cn01 has no ml5_1:1 (it uses mlx5_0:1, mlx5_1:1)")
    assert outcome({"NCCL_IB_HCA": "=mlx5"}, facts)[0] is Outcome.DOWNGRADED
    assert outcome({"NCCL_IB_HCA": "^mlx5_1"}, facts)[0] is Outcome.DOWNGRADED
    assert outcome({"NCCL_IB_DISABLE": "1"}, facts)[0] is Outcome.DOWNGRADED
    assert outcome({"NCCL_IB_DISABLE": "0"}, facts)[0] is Outcome.CONFIRMED


def test_adapters_are_told_apart_by_host() -> None:
    lines = [f"cn01:7:9 [0] NCCL INFO {USING}", "cn02:8:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB e:1<0>"]
    facts = nccl_facts([*lines, f"{INFO}Using network IB"])
    assert facts.adapters["cn02"] == ("mlx5_0:1/RoCE",)
    result, text = outcome({"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}, facts)
    assert (result, text) == (Outcome.DOWNGRADED, "cn02 has no mlx5_1:1 (it uses mlx5_0:1)")


@pytest.mark.parametrize(
    ("channel", "direct", "kind"),
    [
        ("[send] via NET/IB/0/GDRDMA", True, "NET/IB/GDRDMA"),
        ("[receive] via NET/IB/3(8)/GDRDMA(PCI)/Shared", True, "NET/IB/GDRDMA/Shared"),
        ("[send] via NET/IB/0", False, "NET/IB"),
        ("via P2P/CUMEM/read", None, "P2P/CUMEM/read"),
    ],
)
def test_gpu_direct(channel: str, direct: bool | None, kind: str) -> None:
    facts = said(f"Channel 00/0 : 0[0] -> 8[0] {channel}", f"Channel 01/0 : 0[0] -> 8[0] {channel}")
    assert dict(facts.via) == {kind: 2}
    assert facts.gpu_direct is direct
    expected = {True: Outcome.CONFIRMED, False: Outcome.DOWNGRADED, None: Outcome.NOT_VERIFIABLE}[direct]
    assert outcome({"NCCL_NET_GDR_LEVEL": "5"}, facts)[0] is expected


def test_values_and_words_that_nccl_does_not_know() -> None:
    # src/misc/param.cc and src/graph/tuning.cc (2.24 and later), the warning as src/debug.cc writes it
    facts = nccl_facts(
        [
            f"{INFO}Invalid value lots for NCCL_BUFFSIZE, using default -2.",
            "",
            'cn01:7:9 [0] graph/tuning.cc:99 NCCL WARN Unrecognized element token "LL127" when parsing "LL127"',
        ]
    )
    assert outcome({"NCCL_BUFFSIZE": "lots"}, facts) == (
        Outcome.DOWNGRADED,
        "NCCL read 'lots' and used its default -2",
    )
    result, text = outcome({"NCCL_PROTO": "LL127"}, facts)
    assert (result, "Unrecognized element token" in text) == (Outcome.DOWNGRADED, True)
    assert outcome({"NCCL_ALGO": "Ring"}, facts)[0] is Outcome.NOT_VERIFIABLE, "the warning is about another setting"


def test_the_old_warning_names_no_setting() -> None:
    facts = nccl_facts(["cn01:7:9 [0] enqueue.cc:1528 NCCL WARN Error : no algorithm/protocol available"])
    asked = {"NCCL_ALGO": "CollNet", "NCCL_PROTO": "LL", "NCCL_IB_HCA": "mlx5"}
    found = {finding.variable: finding.outcome for finding in verify(asked, facts)}
    assert found["NCCL_ALGO"] is found["NCCL_PROTO"] is Outcome.DOWNGRADED
    assert found["NCCL_IB_HCA"] is Outcome.NOT_VERIFIABLE


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ({}, {}),
        ({"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN"}, {}),
        ({"NCCL_ALGO": "Ring"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}),
        ({"NCCL_IB_HCA": "mlx5"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}),
        (
            {"NCCL_PROTO": "LL", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "GRAPH,env"},
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "GRAPH,ENV,INIT,TUNING"},
        ),
        ({"NCCL_PROTO": "LL", "NCCL_DEBUG_SUBSYS": "all"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}),
        (
            {"NCCL_PROTO": "LL", "NCCL_DEBUG_SUBSYS": "^TUNING"},
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"},
        ),
    ],
)
def test_what_to_add_so_that_the_log_tells(asked: dict[str, str], added: dict[str, str]) -> None:
    assert verification_environment(asked) == added


def test_a_million_lines_stay_small() -> None:
    def lines() -> Iterator[str]:
        for number in range(20_000):
            host = f"cn{number}:7:9 [0] NCCL"
            yield f"[2026-11-30 09:43:01 TP0] Decode batch. #running-req: {number}"
            yield f"{host} INFO F{number}: {number} Bytes -> Algo A{number} proto P{number}"
            yield f"{host} INFO NET/IB : Using [0]mlx5_{number}:1/IB ; OOB eth0:1<0>"
            yield f"{host} INFO NET/Socket : Using [0]eth{number}:10.0.0.1<0>"
            yield f"{host} INFO Channel 00/0 : 0[0] -> 1[1] via NET/N{number}"
            yield f"{host} INFO NCCL_V{number} set by environment to {number}."
            yield f"{host} INFO Using network N{number}"
            yield f"{host} WARN word{'x' * (number % 500)}"

    facts = nccl_facts(lines())
    assert facts.lines == 7 * 20_000
    for table in (facts.choices, facts.via, facts.networks, facts.env):
        assert len(table) == MAX_KINDS
    assert len(facts.adapters) <= MAX_KINDS + 1
    assert all(len(names) <= MAX_KINDS for names in itertools.chain(facts.adapters.values(), facts.sockets.values()))
    assert len(facts.warnings) == MAX_TEXTS


@given(st.lists(st.text(max_size=80).map(lambda text: f"{INFO}{text}") | st.text(max_size=80), max_size=8))
def test_no_line_is_an_error(lines: list[str]) -> None:
    reader = NcclReader()
    for line in lines:
        reader.feed(line)
    asked = {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "x", "NCCL_SOCKET_IFNAME": "=y", "NCCL_NET_GDR_LEVEL": "5"}
    assert len(verify(asked, reader.facts)) == 4


def test_a_plugin_network_has_a_name_of_its_own() -> None:
    assert said("Using network AWS Libfabric", "Using network IBext_v8").networks == ("AWS Libfabric", "IBext_v8")
