"""Serve mode through pytest: tests that share a server, a regression that fails, the plan, two nodes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import yaml

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.grouping import engine_keys
from pytest_r1perf.marker import check
from tests.project import Project, verdicts

SUITE = """
    @perf(topology="tp1", mode="serve", batch_size=4, input_len=128, output_len=16,
          metric=["output_throughput", "decode_throughput"])
    def test_batch(): ...

    @perf(topology="tp1", n=50, mode="serve", slo={"ttft_ms": 100000}, metric=["goodput", "p99_ttft_ms"])
    def test_traffic(): ...
"""


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    r1perf_project.platform(engine={"windows": 1, "source": "test"}, tolerance={"value": 0.05})
    r1perf_project.write(SUITE)
    return r1perf_project


def lines(project: Project, name: str) -> list[dict[str, Any]]:
    path = project.fake / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_tests_share_servers_and_a_regression_fails(project: Project) -> None:
    result = project.perf("--perf-update-new", "--perf-rounds", "2")
    result.assert_outcomes(passed=2)
    assert len(lines(project, "servers.jsonl")) == 2, "two rounds of both"
    assert Counter(client["cell"] for client in lines(project, "clients.jsonl")) == {"b4-128-16": 4, "n50": 4}
    assert {line["discarded"] for line in project.samples()} == {1}
    stored = project.stored()["cells"]
    assert sorted(key.split("/", 3)[3] for key in stored) == [
        "n4/serve/one-batch/in=128/out=16",
        "n50/serve/slo-ttft_ms=100000",
    ]
    project.perf("--perf-rounds", "2").assert_outcomes(passed=2)
    # Half as fast: less goodput, and later first tokens.
    project.control(n50={"speed": 2200.0})
    result = project.perf("--perf-rounds", "2")
    result.assert_outcomes(passed=1, failed=1)
    assert sorted(verdicts(result)) == ["PASS", "PASS", "REGRESSED", "REGRESSED"]
    project.nothing_left()


def test_another_server_is_infra_and_fails_the_test(project: Project) -> None:
    settings = json.loads(project.control_file.read_text())
    project.control_file.write_text(json.dumps({**settings, "server": {"mode": "foreign-sglang"}}))
    result = project.perf("--perf-rounds", "2", "-k", "batch")
    result.assert_outcomes(failed=1, deselected=1)
    assert verdicts(result) == ["INFRA"]
    result.stdout.fnmatch_lines(["*another server answers on port * of this host (one that calls itself*"])


def test_the_plan_has_the_servers_and_the_clients_command(project: Project) -> None:
    result = project.perf("--perf-plan", "-k", "batch")
    text = result.stdout.str()
    assert result.ret == 0, text
    words = text.replace("\\\n", " ").split()
    at = words.index("sglang.launch_server")
    assert words[at - 1] == "-m"
    for flag, value in (("--host", "127.0.0.1"), ("--port", "PORT"), ("--served-model-name", "r1perf-NAME")):
        assert words[words.index(flag) + 1] == value
    assert "sglang.benchmark.one_batch_server" in words
    for flag, value in (("--base-url", "http://127.0.0.1:PORT"), ("--batch-size", "4"), ("--output-len", "16")):
        assert words[words.index(flag) + 1] == value
    result.stdout.fnmatch_lines(["*the client, 1 + 1 times when the server is ready*"])
    assert lines(project, "servers.jsonl") == []


def test_mistakes_are_errors_at_collection(project: Project) -> None:
    project.write('@perf(topology="tp1", mode="serve", n=5, batch_size=4)\ndef test_one(): ...\n')
    result = project.perf("-k", "one")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*batch_size=4 means one batch, which needs input_len and output_len as well*"])


def test_two_nodes(project: Project) -> None:
    """Rank 1 runs a server of its own, with a port of its own, and is ended with rank 0."""
    topologies = {"two": {"tp_size": 2, "nnodes": 2, "source": "test"}}
    path = project.root / "r1perf.yaml"

    data = yaml.safe_load(path.read_text())
    data["platforms"]["cpu"]["nodes"] = 2
    path.write_text(yaml.safe_dump({**data, "topologies": topologies}))
    project.write(
        """
        @perf(topology="two", mode="serve", batch_size=4, input_len=128, output_len=16)
        def test_one(): ...
        """
    )
    result = project.perf("--perf-rounds", "1", "--perf-update-new")
    result.assert_outcomes(passed=1)
    head, other = sorted(lines(project, "servers.jsonl"), key=lambda line: line["cell"])
    assert [head["cell"], other["cell"]] == ["rank0", "rank1"]
    assert head["port"] != other["port"]
    for argv, rank in ((head["argv"], "0"), (other["argv"], "1")):
        assert argv[argv.index("--node-rank") + 1] == rank
    assert (
        head["argv"][head["argv"].index("--dist-init-addr") + 1]
        == (other["argv"][other["argv"].index("--dist-init-addr") + 1])
    )
    assert "--nccl-port" not in head["argv"], "they meet at the rendezvous"
    assert "--served-model-name" not in other["argv"]
    project.nothing_left()


def test_the_other_node_runs_out_of_memory(project: Project) -> None:
    path = project.root / "r1perf.yaml"

    data = yaml.safe_load(path.read_text())
    data["platforms"]["cpu"]["nodes"] = 2
    data["topologies"] = {"two": {"tp_size": 2, "nnodes": 2, "source": "test"}}
    path.write_text(yaml.safe_dump(data))
    project.control_file.write_text(json.dumps({"cells": {}, "server": {"mode": "hang", "rank1": "oom"}}))
    project.write(
        '@perf(topology="two", mode="serve", batch_size=4, input_len=128, output_len=16)\ndef test_one(): ...'
    )
    result = project.perf("--perf-rounds", "1")
    assert verdicts(result) == ["OOM"]
    result.stdout.fnmatch_lines(["*rank 1*ended first*"])
    project.nothing_left()


def test_a_server_and_an_engine_of_the_same_arguments_are_two_groups() -> None:
    catalog = load_catalog()
    key_of = engine_keys(lambda spec: catalog.platform("cpu"), catalog)
    arguments: list[dict[str, Any]] = [
        {"mode": "serve", "n": 50},
        {"mode": "serve", "batch_size": 4, "input_len": 128, "output_len": 16},
        {"mode": "engine", "n": 50},
        {"mode": "serve", "n": 50, "flags": {"max_running_requests": 8}},
        {"mode": "offline", "n": 50},
    ]
    traffic, batch, engine, other, alone = (key_of(check({"topology": "tp1", **one}, catalog)) for one in arguments)
    assert traffic == batch
    assert len({traffic, engine, other}) == 3
    assert alone is None


def test_tests_of_one_server_go_to_one_worker(r1perf_project: Project) -> None:
    r1perf_project.platform(engine={"windows": 1, "source": "test"})
    r1perf_project.write("""
        @perf(topology="tp1", mode="serve", batch_size=4, input_len=128, output_len=16)
        def test_batch(): ...

        @perf(topology="tp1", n=50, mode="engine")
        def test_engine(): ...

        @perf(topology="tp1", n=50, mode="serve")
        def test_traffic(): ...
    """)
    r1perf_project.perf_subprocess("--perf-rounds", "1", "--perf-update-new", "-n", "2").assert_outcomes(passed=3)
    assert len((r1perf_project.fake / "servers.jsonl").read_text().splitlines()) == 1
