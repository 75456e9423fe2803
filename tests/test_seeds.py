"""docs/seeds.md against what there is, so that its tables can't rot; and the suite against the documents' figures."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

import pytest_r1perf
from perf_tests.questions import acceptance_lengths, allreduces_per_forward
from perf_tests.test_tp8 import STACK
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.cli import cli
from pytest_r1perf.marker import ARGUMENTS, PerfSpec
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.sglang.translate import translate
from tests.test_memory import R1
from tests.tools.releases import table

ROOT = Path(__file__).parents[1]
SEEDS = ROOT / "docs" / "seeds.md"
RUN = ("cpu", "stand-in", "tests", "derived", "no", "-")
WORDS = {
    "command.txt",
    "env",
    "launch: {container: ...}",
    "load_evidence",
    "load_format",
    "min_conclusive_n",
    "model_path",
    "pp_size",
    "protocol",
    "r1-tiny",
}
"""Words in the tables that stand for no name of ours that could go."""
SLIPS = {"ml5_1:1", '"$interface"', "&'.[]"}
"""Quoted from the private-deployment guide's scripts."""
NAMED = re.compile(r"(recipe|rule|topology|platform|workload|metric|gpu|claim) `([^`]+)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Row:
    """One statement of a seed document."""

    line: int
    says: str
    carried: str
    twin: str
    run: str

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"`([^`]+)`", NAMED.sub("", f"{self.carried} {self.twin}"))

    @property
    def nodes(self) -> list[str]:
        return [node(token) for token in self.tokens if "::" in token]

    @property
    def links(self) -> list[str]:
        return LINK.findall(f"{self.carried} {self.twin}")


def node(token: str) -> str:
    return token if token.startswith("tests/") else f"perf_tests/{token}"


def rows() -> list[Row]:
    found = []
    for number, line in enumerate(SEEDS.read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 3 or cells[0] == "the document says" or set(line) <= set("| -") or cells[0].startswith("**"):
            continue
        assert len(cells) == 4, f"docs/seeds.md:{number} has {len(cells)} cells"
        found.append(Row(number, *cells))
    return found


ROWS = rows()
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line{row.line}")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def collected(*arguments: str) -> list[str]:
    """Node ids of the repository's own perf tests."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "--collect-only", "-q"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def suite() -> set[str]:
    return {line.partition("[")[0] for line in collected("--perf", "perf_tests")}


@pytest.fixture(scope="module")
def options() -> str:
    command = [sys.executable, "-m", "pytest", "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


@cache
def claims() -> frozenset[str]:
    path = Path(pytest_r1perf.__file__).parent / "data" / "claims.yaml"
    return frozenset(yaml.safe_load(path.read_text(encoding="utf-8"))["claims"])


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(entry.name for entry in ast.walk(tree) if isinstance(entry, ast.FunctionDef))


def test_the_table_is_there() -> None:
    assert len(ROWS) > 140


@each_row
def test_what_a_row_names_is_there(row: Row, suite: set[str], catalog: Catalog, options: str) -> None:
    known = {
        "recipe": catalog.recipes,
        "rule": catalog.rules,
        "topology": catalog.topologies,
        "platform": catalog.platforms,
        "workload": catalog.workloads,
        "metric": METRICS,
        "gpu": catalog.gpus,
        "claim": claims(),
    }
    for kind, name in NAMED.findall(f"{row.carried} {row.twin}"):
        assert name in known[kind], f"{kind} {name}"
    for link in row.links:
        assert (SEEDS.parent / link).exists(), link
    for token in row.tokens:
        assert is_there(token, suite, options), token


def is_there(token: str, suite: set[str], options: str) -> bool:
    if "::" in token:
        path, _, function = node(token).partition("::")
        return node(token) in suite if path.startswith("perf_tests/") else function in functions_of(ROOT / path)
    if token.startswith("tests/"):
        return (ROOT / token).exists()
    if token.startswith("r1perf "):
        return isinstance(cli, click.Group) and token.split()[1] in cli.commands
    if token.startswith("--"):
        return token.partition(" ")[0] in options
    if re.fullmatch(r"\w+(=.*)?", token):
        return token.partition("=")[0] in {*ARGUMENTS, *METRICS} | WORDS
    return token in WORDS | SLIPS


@each_row
def test_a_row_says_what_carries_it_and_what_was_run(row: Row) -> None:
    assert row.run in RUN
    assert row.carried
    named = bool(NAMED.search(row.carried) or row.nodes or row.links or row.tokens)
    if row.run == "-":
        return
    assert named or row.carried.startswith(("the same", "122: as above")), "nothing carries it, and something was run"
    if row.run in ("cpu", "stand-in"):
        assert row.twin.startswith(("the same", "`twins/")), "it was run on the CPU, but by which test?"
    if row.run == "no":
        assert "`twins/" not in row.twin, "it has a twin, and that was run"


def test_every_perf_test_is_in_the_table(suite: set[str]) -> None:
    named = {name for row in ROWS for name in row.nodes}
    own = {name for name in suite if not name.startswith("perf_tests/test_cpu.py")}
    assert own - named == set()


def test_every_recipe_rule_and_claim_of_the_seeds_is_in_the_table(catalog: Catalog) -> None:
    named = {found for row in ROWS for found in NAMED.findall(row.carried)}
    assert {("recipe", name) for name in catalog.recipes if name != "default"} - named == set()
    assert {("rule", name) for name in catalog.rules if not name.startswith("cpu-")} - named == set()
    assert {("claim", name) for name in claims()} - named == set()


def test_a_name_that_is_gone_is_found(suite: set[str], options: str) -> None:
    assert not is_there("test_tp8.py::test_tp8_chmpion", suite, options)
    assert not is_there("tests/test_memory.py::test_gone", suite, options)
    assert not is_there("r1perf reccomend", suite, options)
    assert not is_there("--perf-deploymnt", suite, options)
    assert not is_there("max_wal_time", suite, options)


@pytest.mark.parametrize(
    ("topology", "least"), [("tp8", 20), ("pp2", 12), ("tp16", 100), ("tp4-dp4-pp2", 7), ("tp4-dp4-pp2-one-node", 8)]
)
def test_collecting_a_topology_reads_like_a_table_of_contents(topology: str, least: int) -> None:
    lines = collected("-m", "perf", "--topology", topology, "perf_tests")
    assert len(lines) >= least
    assert all("twins" not in line for line in lines)


def test_the_main_job_is_the_cpu_file_alone() -> None:
    lines = collected("-m", "perf", "--topology", "tp1")
    assert {line.partition("::")[0] for line in lines} == {"perf_tests/test_cpu.py"}


# The documents' figures, typed by hand: recipe, topology, platform, N, published, test, floor.
FIGURES = [
    ("tp8-champion", "tp8", 22854, "perf_tests/test_tp8.py::test_tp8_champion", 22000),
    ("tp8-baseline", "tp8", 12021, "perf_tests/test_tp8.py::test_tp8_baseline", 11540),
    ("pp2-champion", "pp2", 29426, "perf_tests/test_pp2.py::test_pp2_champion", 28250),
    ("tp16-reference", "tp16", 21416, "perf_tests/test_tp16.py::test_tp16_reference", 20560),
    ("notes-winner", "tp4-dp4-pp2", 17032, "perf_tests/test_notes.py::test_notes_winner_on_two_nodes", 16350),
    (
        "notes-winner-one-node",
        "tp4-dp4-pp2-one-node",
        17417,
        "perf_tests/test_notes.py::test_notes_winner_on_one_node",
        16720,
    ),
]


@pytest.mark.parametrize(("recipe", "topology", "published", "test", "floor"), FIGURES)
def test_floors_are_the_published_figures_less_4_percent(
    catalog: Catalog, recipe: str, topology: str, published: float, test: str, floor: float
) -> None:
    found = catalog.recipe(recipe)
    assert found.topology == topology
    assert found.published is not None
    assert found.published.value == published
    assert 0.96 * published == pytest.approx(floor, abs=75)
    path, _, name = test.partition("::")
    assert floor_of(ROOT / path, name) == floor


@pytest.mark.parametrize(
    ("path", "test", "published", "floor"),
    [
        ("test_tp8.py", "test_tp8_efficiency", 2857, 2742),
        ("test_pp2.py", "test_pp2_efficiency", 1839, 1765),
        ("test_tp16.py", "test_tp16_efficiency", 1338, 1284),
    ],
)
def test_floors_of_a_gpu(path: str, test: str, published: float, floor: float) -> None:
    assert 0.96 * published == pytest.approx(floor, abs=1)
    assert floor_of(ROOT / "perf_tests" / path, test) == floor


def floor_of(path: Path, test: str) -> object:
    for entry in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(entry, ast.FunctionDef) and entry.name == test:
            calls = [one for one in entry.decorator_list if isinstance(one, ast.Call)]
            values = [key.value for call in calls for key in call.keywords if key.arg == "min_tokps"]
            return ast.literal_eval(values[0]) if values else None
    return None


def test_the_stack_changes_one_flag_a_step(catalog: Catalog) -> None:
    steps = [dict(catalog.recipe(name).flags) for name in STACK]
    assert [set(new.items()) - set(old.items()) for old, new in itertools.pairwise(steps)] == [
        {("mem_fraction_static", 0.87)},
        {("schedule_policy", "lof")},
        {("moe_runner_backend", "cutlass")},
        {("enable_piecewise_cuda_graph", True)},
        {("decode_attention_backend", "flashinfer")},
        {("enable_flashinfer_allreduce_fusion", True)},
        {("chunked_prefill_size", 32768)},
        {("cuda_graph_max_bs", 2048)},
        {("disable_radix_cache", True)},
    ]
    assert all(set(old) <= set(new) for old, new in itertools.pairwise(steps))


def test_the_partition_comes_first_then_cache_and_chunk(catalog: Catalog) -> None:
    """Guide, playbook B, operational notes."""
    mf, partition, cache_off, champion = (
        catalog.recipe(name) for name in ("pp2-stack-mf", "pp2-stack-partition", "pp2-stack-cache", "pp2-champion")
    )
    assert (dict(mf.flags), dict(mf.env)) == ({"mem_fraction_static": 0.83}, {})
    assert (partition.flags, dict(partition.env)) == (mf.flags, {"SGLANG_PP_LAYER_PARTITION": "32,29"})
    assert dict(cache_off.flags) == {**mf.flags, "disable_radix_cache": True}
    assert dict(champion.flags) == {**cache_off.flags, "chunked_prefill_size": 32768}
    assert champion.env == cache_off.env == partition.env


def test_the_notes_winner_is_word_for_word(catalog: Catalog) -> None:
    """Notes, the config that won; model, data set, N and seed are platform's and workload's."""
    found, topology = catalog.recipe("notes-winner"), catalog.topology("tp4-dp4-pp2")
    assert dict(found.flags) == {
        "enable_torch_compile": True,
        "enable_dp_lm_head": True,
        "attention_backend": "fa3",
        "mem_fraction_static": 0.85,
        "cuda_graph_max_bs": 256,
        "warmups": "compile-deep-gemm",
        "trust_remote_code": True,
    }
    assert dict(found.protocol) == {"load_format": "dummy", "dtype": "bfloat16"}
    assert topology.flags() == {"tp_size": 4, "dp_size": 4, "pp_size": 2, "nnodes": 2, "enable_dp_attention": True}
    assert catalog.topology("tp4-dp4-pp2-one-node").gpus_used == topology.gpus_used == 8


@pytest.mark.parametrize("version", ["0.5.5.post3", "0.5.9", "0.5.17", "0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    "recipe", ["tp8-stack-cgbs", "pp2-stack-cache", "tp16-baseline", "notes-winner", "private-deployment"]
)
def test_the_recipes_can_be_said_to_the_releases(catalog: Catalog, recipe: str, version: str) -> None:
    topology = catalog.recipe(recipe).topology or "tp16"
    cell = cell_of(PerfSpec(topology, 2000, recipe=recipe), catalog.platform("h200x16"), catalog)
    assert translate(cell.flags, cell.env, table(version)).argv


def test_122_all_reduces_in_r1() -> None:
    """Guide: '122 cross-node AllReduce operations per forward path (2 per layer x 61)'."""
    assert allreduces_per_forward(dict(R1)) == 122


def test_acceptance_lengths_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "Decode batch, #running-req: 9, accept len: 1.02, accept rate: 0.26, cuda graph: True\n"
        "Decode batch. #running-req: 9, accept len: 3, cuda graph: True\nDecode batch, #running-req: 9\n"
    )
    assert acceptance_lengths(str(log)) == [1.02, 3.0]
