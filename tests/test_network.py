"""Which address, interface and adapters the nodes meet over, and what a user's variables get wrong."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.network import (
    check_base_url,
    check_given,
    hca_list,
    head_address,
    rendezvous_environment,
    socket_interface,
)
from pytest_r1perf.nodeinfo import Interface, NodeInfo
from tests.hosts import ib, node

# The private-deployment guide's adapters: its NCCL_IB_HCA leaves 3 and 4 out.
ADAPTERS = (
    *(ib(f"mlx5_{number}") for number in (0, 1, 2, 5, 6, 7, 8, 9)),
    ib("mlx5_3", layer="Ethernet", rate="100 Gb/sec (4X EDR)"),
    ib("mlx5_4", state="DOWN"),
)


def pair(head: dict[str, str], worker: dict[str, str], **more: Any) -> list[NodeInfo]:
    return [node("head", head, **more), node("worker", worker, **more)]


def test_nodes_of_one_subnet_meet_there() -> None:
    nodes = pair({"eth0": "172.16.0.1/24", "eno2": "10.0.0.1/24"}, {"eth0": "172.17.9.2/24", "eno2": "10.0.0.2/24"})
    assert head_address(nodes) == "10.0.0.1", "the default routes lie in different subnets"
    assert [socket_interface(one, "10.0.0.1") for one in nodes] == ["eno2", "eno2"]


def test_of_two_shared_subnets_the_default_route_then_ethernet() -> None:
    both = {"ib0": "10.0.0.1/24", "eth0": "172.16.0.1/24"}
    other = {"ib0": "10.0.0.2/24", "eth0": "172.16.0.2/24"}
    assert head_address(pair(both, other)) == "172.16.0.1"
    assert head_address(pair(both, other, route=None)) == "172.16.0.1"
    assert head_address(pair(both, other, route="ib0")) == "10.0.0.1"


def test_without_a_shared_subnet_the_default_route() -> None:
    nodes = pair({"eno2": "10.5.0.1/24", "eth0": "172.16.1.1/24"}, {"eth0": "172.16.2.1/24"})
    assert head_address(nodes) == "172.16.1.1"
    assert socket_interface(nodes[1], "172.16.1.1") == "eth0"


def test_a_bridge_of_each_host_is_no_way_between_them() -> None:
    same = {"docker0": "172.17.0.1/16", "ens3": "192.168.7.1/24", "eth0": "10.1.0.4/24"}
    other = {"docker0": "172.17.0.2/16", "ens3": "192.168.7.1/24", "eth0": "10.2.0.4/24"}
    assert head_address(pair(same, other)) == "10.1.0.4", "docker0 by its name, ens3 since both have the same address"


def test_loopback_only_when_all_nodes_are_one_host() -> None:
    here = node("here", {"eth0": "10.0.0.1/24"})
    assert head_address([here]) == "127.0.0.1"
    assert head_address([here, replace(here, hostname="a container of it")]) == "127.0.0.1"
    assert rendezvous_environment([here, here], {}) == {}
    assert socket_interface(here, "127.0.0.1") == "lo"
    assert head_address([here, node("there", {"eth0": "10.0.0.2/24"})]) == "10.0.0.1"


def test_three_nodes_need_one_subnet_of_all() -> None:
    nodes = [*pair({"eth0": "172.16.0.1/24", "eno2": "10.0.0.1/24"}, {"eno2": "10.0.0.2/24", "eth0": "172.16.0.2/24"})]
    nodes.append(node("third", {"eth0": "172.31.0.3/24", "eno2": "10.0.0.3/24"}))
    assert head_address(nodes[:2]) == "172.16.0.1"
    assert head_address(nodes) == "10.0.0.1"


def test_a_head_without_any_address_is_an_error_that_names_it() -> None:
    nodes = pair({"eth0": ""}, {"eth0": "10.0.0.2/24"}, route=None)
    with pytest.raises(R1PerfError, match=r"head has no IPv4 address.*worker") as caught:
        head_address(nodes)
    assert "eth0 up no IPv4" in str(caught.value)
    with pytest.raises(R1PerfError, match="needs a node"):
        head_address([])


def test_an_interface_that_is_down_is_not_taken() -> None:
    head = node("head", {"eth0": "172.16.0.1/24"})
    down = Interface("eno2", "down", 1, ipv4=("10.0.0.1/24",))
    head = replace(head, interfaces=(*(head.interfaces or ()), down))
    worker = node("worker", {"eth0": "172.99.0.1/24", "eno2": "10.0.0.2/24"})
    assert head_address([head, worker]) == "172.16.0.1"


_v4 = st.integers(1, 254)


@given(st.lists(_v4, min_size=2, max_size=6, unique=True), st.integers(0, 255), st.sampled_from([None, "eth0", "ib0"]))
def test_the_head_is_reached_over_an_address_of_its_own(hosts: list[int], third: int, route: str | None) -> None:
    nodes = [
        node(f"n{host}", {"eth0": f"10.{third}.7.{host}/24", "ib0": f"192.168.{host}.1/24"}, route=route)
        for host in hosts
    ]
    address = head_address(nodes)
    assert address == f"10.{third}.7.{hosts[0]}", "ib0 is in a subnet of its own on every node"
    for one in nodes:
        interface = socket_interface(one, address)
        assert interface == "eth0"
        own = next(entry for entry in one.interfaces or () if entry.name == interface)
        assert any(ipaddress.ip_address(address) in ipaddress.ip_interface(text).network for text in own.ipv4)


def test_adapters_are_the_fastest_active_ones_of_one_kind_in_their_order() -> None:
    some = node("n", {}, ib_ports=(ib("mlx5_10"), *ADAPTERS))
    expected = "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_8:1 mlx5_9:1 mlx5_10:1"
    assert hca_list(some) == tuple(expected.split())
    roce = (ib("rocep1", layer="Ethernet", rate="100 Gb/sec"), ib("bnxt_re0", layer="Ethernet", rate="25 Gb/sec"))
    assert hca_list(node("n", {}, ib_ports=roce)) == ("rocep1:1",)
    assert hca_list(node("n", {}, ib_ports=None)) == ()
    assert hca_list(node("n", {}, ib_ports=(ib("mlx5_0", state="INIT"),))) == ()


def test_the_environment_of_two_hosts() -> None:
    nodes = pair({"eth0": "10.0.0.1/24"}, {"eno1": "10.0.0.2/24"}, ib_ports=(ib("mlx5_0"), ib("mlx5_1")))
    hca = "=mlx5_0:1,mlx5_1:1"
    assert rendezvous_environment(nodes, {}) == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": hca,
    }
    assert rendezvous_environment(nodes, {}, rank=1)["GLOO_SOCKET_IFNAME"] == "eno1"
    given_one = rendezvous_environment(nodes, {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5"})
    assert given_one == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert "NCCL_IB_HCA" not in rendezvous_environment(nodes, {"NCCL_IB_DISABLE": "1"})
    assert rendezvous_environment(nodes, {"NCCL_IB_DISABLE": "0"})["NCCL_IB_HCA"] == hca


def test_what_is_filled_in_is_never_complained_about() -> None:
    nodes = pair({"eth0": "10.0.0.1/24"}, {"eno1": "10.0.0.2/24"}, ib_ports=ADAPTERS)
    for rank, one in enumerate(nodes):
        assert check_given(rendezvous_environment(nodes, {}, rank=rank), one) == []


def test_the_guides_adapter_list_has_a_slip() -> None:
    value = "mlx5_0:1,ml5_1:1,mlx5_2:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1"
    (problem,) = check_given({"NCCL_IB_HCA": value}, node("cn01", {}, ib_ports=ADAPTERS))
    assert "'ml5_1:1'" in problem
    assert "cn01" in problem
    assert "did you mean 'mlx5_1:1'?" in problem


@pytest.mark.parametrize("value", ["mlx5", "mlx5_1", "mlx5_1:1,mlx5_2", "=mlx5_0:1", "^mlx5_3", "^=mlx5_4:1"])
def test_adapters_as_nccl_reads_them(value: str) -> None:
    assert check_given({"NCCL_IB_HCA": value}, node("cn01", {}, ib_ports=ADAPTERS)) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("=mlx5", "did you mean 'mlx5_"),
        ("mlx5_0:2", "did you mean 'mlx5_0:1'?"),
        ("mlx5_4", "whose link on cn01 is down (mlx5_4:1 DOWN)"),
        ("ib0", "'ib0', which cn01 does not have"),
    ],
)
def test_adapters_that_are_not_there(value: str, said: str) -> None:
    (problem,) = check_given({"NCCL_IB_HCA": value}, node("cn01", {}, ib_ports=ADAPTERS))
    assert said in problem


def test_a_host_without_adapters_says_so_once() -> None:
    (problem,) = check_given({"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}, node("cn01", {}))
    assert "cn01 shows no adapter at all" in problem
    assert check_given({"NCCL_IB_HCA": "mlx5_0:1"}, node("cn01", {}, ib_ports=None)) == [], "not known"


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"])
@pytest.mark.parametrize("value", ["", " ", ",", "="])
def test_a_variable_that_was_never_set_is_refused(name: str, value: str) -> None:
    (problem,) = check_given({name: value}, node("cn01", {"eth0": "10.0.0.1/24"}, ib_ports=ADAPTERS))
    assert f"{name} is empty" in problem


def test_interfaces_as_gloo_and_nccl_read_them() -> None:
    some = node("cn01", {"eth0": "10.0.0.1/24", "eth10": "10.0.1.1/24", "ib0": ""})
    assert check_given({"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0,eth10"}, some) == []
    assert check_given({"NCCL_SOCKET_IFNAME": "^docker0,lo"}, some) != [], "there is no docker0 to leave out"
    (problem,) = check_given({"GLOO_SOCKET_IFNAME": "eth"}, some)
    assert "did you mean 'eth0'?" in problem, "Gloo knows no prefixes"
    (problem,) = check_given({"NCCL_SOCKET_IFNAME": "=eth1"}, some)
    assert "'eth1', which cn01 does not have" in problem
    (problem,) = check_given({"NCCL_SOCKET_IFNAME": "ib0"}, some)
    assert "has no address" in problem


@pytest.mark.parametrize("text", ["http://10.0.0.1:40000", "https://host/v1", " http://[fe80::1]:30000 "])
def test_good_urls(text: str) -> None:
    assert check_base_url(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.0.0.1:40000", "did you mean 'http://10.0.0.1:40000'?"),
        ("localhost:30000", "did you mean 'http://localhost:30000'?"),
        ("head", "did you mean 'http://head'?"),
        (":40000", "has no host"),
        ("http://:40000", "has no host"),
        ("", "has no host"),
        ("htp://head:1", "scheme 'htp'"),
    ],
)
def test_urls_with_a_slip(text: str, said: str) -> None:
    problem = check_base_url(text)
    assert problem is not None
    assert said in problem
