"""The catalog: the package's data, a user's file over it, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.errors import DataError, R1PerfError
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.platform import expand
from pytest_r1perf.recipe import env_refused, owner_of


def user(folder: Path, text: str, name: str = "r1perf.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_packages_own_names() -> None:
    catalog = load_catalog()
    assert {"tp1", "tp2", "tp8", "pp2", "tp16"} <= set(catalog.topologies)
    assert {"cpu", "h200x1", "h200x2", "h200x8", "h200x16", "h100x16"} == set(catalog.platforms)
    assert {"default", "tp8-champion", "pp2-champion", "tp16-reference"} <= set(catalog.recipes)
    assert {"sharegpt", "sharegpt-like"} == set(catalog.workloads)


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda c: c.topology("pp3"), "topology 'pp3' is not known; did you mean 'pp2'?"),
        (lambda c: c.platform("h200x9"), "platform 'h200x9' is not known; did you mean 'h200x"),
        (lambda c: c.recipe("tp8-chmpion"), "recipe 'tp8-chmpion' is not known; did you mean 'tp8-champion'?"),
        (lambda c: c.workload("sharegtp"), "workload 'sharegtp' is not known; did you mean 'sharegpt'?"),
        (lambda c: c.topology("zzzz"), "topology 'zzzz' is not known; (known: pp2, tp1"),
    ],
)
def test_an_unknown_name(look_up: Callable[[Catalog], object], message: str) -> None:
    with pytest.raises(R1PerfError, match=f"^{re.escape(message)}"):
        look_up(load_catalog())


# -- a user's file ------------------------------------------------------------------------------------------


def test_a_new_entry_and_the_old_ones(tmp_path: Path) -> None:
    text = "topologies:\n  tp4-pp2: {tp_size: 4, pp_size: 2, nnodes: 2, source: ours}\n"
    catalog = load_catalog([user(tmp_path, text)])
    assert catalog.topology("tp4-pp2").gpus_used == 8
    assert catalog.topology("tp8").tp_size == 8


def test_an_entry_of_the_same_name_overrides_the_keys_it_gives(tmp_path: Path) -> None:
    text = "platforms:\n  cpu:\n    tolerance: {value: 0.5, source: ours}\n    flags: {max_total_tokens: 99}\n"
    before, after = load_catalog().platform("cpu"), load_catalog([user(tmp_path, text)]).platform("cpu")
    assert after.tolerance == 0.5
    assert after.flags == {**before.flags, "max_total_tokens": 99}
    assert (after.model_path, after.rounds, after.env) == (before.model_path, before.rounds, before.env)
    assert load_catalog().platform("cpu") == before  # nothing leaks into the next catalog


def test_extends_starts_from_another_entry(tmp_path: Path) -> None:
    text = "platforms:\n  lab:\n    extends: h200x8\n    tolerance: {value: 0.02, source: ours}\n"
    catalog = load_catalog([user(tmp_path, text)])
    assert catalog.platform("lab").gpus_per_node == 8
    assert catalog.platform("lab").tolerance == 0.02
    assert catalog.platform("h200x8").tolerance == 0.05
    assert catalog.platform("lab").name == "lab"


def test_later_files_win(tmp_path: Path) -> None:
    first = user(tmp_path, "workloads:\n  mine: {dataset: sharegpt, seed: 1, source: ours}\n", "a.yaml")
    second = user(tmp_path, "workloads:\n  mine: {seed: 2}\n", "b.yaml")
    assert load_catalog([first, second]).workload("mine").seed == 2
    with pytest.raises(DataError, match="key 'dataset' is missing"):
        load_catalog([second])


RECIPE = "recipes:\n  r:\n    source: x\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topologis: {}\n", ":1: topologis: key is not known; did you mean 'topologies'?"),
        ("topologies:\n  t: {tp_size: 0, source: x}\n", ":2: topologies.t.tp_size: must be a whole number"),
        ("topologies:\n  t: {tp_size: 8}\n", ":2: topologies.t: key 'source' is missing"),
        ("topologies:\n  t: {tp_size: 8, tp: 8, source: x}\n", ":2: topologies.t.tp: key is not known"),
        ("topologies:\n  t: {tp_size: 3, nnodes: 2, source: x}\n", ":2: topologies.t: 3 GPUs cannot be spread"),
        ("topologies:\n  t: {tp_size: 8, reference: no, source: x}\n", ":2: topologies.t.reference: must be"),
        ("topologies:\n  t: {tp_size: 8, reference: tp9, source: x}\n", ":2: topologies.t.reference: topology 'tp9'"),
        ("topologies: [tp8]\n", ":1: topologies: must be a mapping"),
        ("topologies:\n  tp8: 8\n", ":2: topologies.tp8: must be a mapping, got 8"),
        ("topologies:\n  t: {extends: tp9}\n", ":2: topologies.t.extends: 'tp9' is not known; did you mean 'tp8'?"),
        ("topologies:\n  t: {tp_size: 1, source: x}\n  t: {tp_size: 2, source: x}\n", ":3: topologies.t: key stands"),
        ("platforms:\n  cpu:\n    tolerance: 0.5\n", ":3: platforms.cpu.tolerance: must be a mapping, got 0.5"),
        ("platforms:\n  cpu:\n    tolerance: {value: 1}\n", ":3: platforms.cpu.tolerance.value: must be above 0 and"),
        ("platforms:\n  cpu:\n    rounds: {min: 9}\n", ":3: platforms.cpu.rounds: max 6 is below min 9"),
        ("platforms:\n  cpu:\n    rounds: {max: 2.5}\n", ":3: platforms.cpu.rounds.max: must be a whole number"),
        ("platforms:\n  cpu:\n    min_conclusive_n: {value: 0.5}\n", ":3: platforms.cpu.min_conclusive_n.value: must"),
        ("platforms:\n  cpu:\n    error_rate: {per_night: 0.6}\n", ":3: platforms.cpu.error_rate.per_night: must be"),
        ("platforms:\n  cpu:\n    error_rate: {suite_size: 0}\n", ":3: platforms.cpu.error_rate.suite_size: must be"),
        ("platforms:\n  h200x8:\n    noise: {run_cv: 0.02}\n", ":3: platforms.h200x8.noise: key 'runs' is missing"),
        ("platforms:\n  cpu:\n    flags: {tp_size: 2}\n", ":3: platforms.cpu.flags.tp_size: belongs to the topology"),
        ("platforms:\n  cpu:\n    flags: {x: .nan}\n", ":3: platforms.cpu.flags.x: must be a text, a number"),
        ("platforms:\n  cpu:\n    flags: {x: [1]}\n", ":3: platforms.cpu.flags.x: must be a text, a number"),
        ("platforms:\n  cpu:\n    flags: {x: null}\n", ":3: platforms.cpu.flags.x: must be a text, a number"),
        ("platforms:\n  cpu:\n    env: {X: true}\n", ":3: platforms.cpu.env.X: must be a text or a number"),
        ("platforms:\n  cpu:\n    env: {X: .inf}\n", ":3: platforms.cpu.env.X: must be a text or a number"),
        ("platforms:\n  cpu:\n    env: {SPT_NOENV: 0}\n", ":3: platforms.cpu.env.SPT_NOENV: belongs to the plugin"),
        (RECIPE + "    env: {CUDA_DEVICE_ORDER: x}\n", ":4: recipes.r.env.CUDA_DEVICE_ORDER: belongs to the plugin"),
        (RECIPE + "    env: {CUDA_VISIBLE_DEVICES: 0}\n", ":4: recipes.r.env.CUDA_VISIBLE_DEVICES: belongs to the pl"),
        ("platforms:\n  cpu:\n    share_host: 1\n", ":3: platforms.cpu.share_host: must be true or false"),
        ("platforms:\n  cpu:\n    ceilings: {speed: {value: 1}}\n", ":3: platforms.cpu.ceilings.speed: metric 'speed'"),
        ("platforms:\n  h200x8:\n    gpus_per_node: eight\n", ":3: platforms.h200x8.gpus_per_node: must be a whole"),
        (
            "platforms:\n  h200x8:\n    default_recipes: {tp8: none}\n",
            ":3: platforms.h200x8.default_recipes: tp8: none names no known topology and recipe",
        ),
        (
            "platforms:\n  h200x8:\n    default_recipes: {tp1: tp8-champion}\n",
            ":3: platforms.h200x8.default_recipes: recipe 'tp8-champion' is for another topology than 'tp1'",
        ),
        (RECIPE + "    topology: tp9\n", ":4: recipes.r.topology: topology 'tp9' is not known"),
        (RECIPE + "    flags: {tp: 4}\n", ":4: recipes.r.flags.tp: belongs to the topology"),
        (RECIPE + "    flags: {num_prompts: 4}\n", ":4: recipes.r.flags.num_prompts: belongs to the workload"),
        (RECIPE + "    flags: {a: 1, a: 2}\n", ":4: recipes.r.flags.a: key stands twice"),
        (RECIPE + "    protocol: {load_format: dummy}\n", ":4: recipes.r.protocol.load_format: must be a mapping"),
        (RECIPE + "    protocol: {load_format: {value: dummy}}\n", ":4: recipes.r.protocol.load_format: key 'source'"),
        (RECIPE + "    published: {metric: tokps}\n", ":4: recipes.r.published.metric: metric 'tokps' is not known"),
        ("workloads:\n  w: {dataset: d, seed: -1, source: x}\n", ":2: workloads.w.seed: must be a whole number"),
        ("workloads:\n  w: {dataset: d, seed: 1, sharegpt_output_len: 3, source: x}\n", ":2: workloads.w.sharegpt_ou"),
    ],
)
def test_refused_with_file_line_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = user(tmp_path, text)
    with pytest.raises(DataError, match=f"^{re.escape(str(path) + complaint)}"):
        load_catalog([path])


def test_an_empty_user_file_changes_nothing(tmp_path: Path) -> None:
    assert load_catalog([user(tmp_path, "# nothing yet\n")]) == load_catalog()


def test_a_missing_user_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_catalog([tmp_path / "r1perf.yaml"])


def test_environment_numbers_become_texts(tmp_path: Path) -> None:
    text = "platforms:\n  cpu:\n    env: {OMP_NUM_THREADS: 2, SHARE: 0.5}\n"
    env = load_catalog([user(tmp_path, text)]).platform("cpu").env
    assert (env["OMP_NUM_THREADS"], env["SHARE"]) == ("2", "0.5")


def test_the_variables_of_a_runs_mark_are_refused() -> None:
    assert all(env_refused(name) for name in marked_environment(new_mark("test")))
    assert env_refused("NCCL_DEBUG") is None


# -- paths --------------------------------------------------------------------------------------------------


def test_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "/models/r1 {r1perf_home} $OTHER")
    monkeypatch.setenv("HOME", "/home/me")
    home = tmp_path / "odd $name"
    assert expand("{r1perf_home}/x", what="w", home=home) == f"{home}/x"  # the home's own $ is no variable
    assert expand("$MODEL/a", what="w", home=home) == "/models/r1 {r1perf_home} $OTHER/a"  # nor is a value's
    assert expand("${MODEL}", what="w", home=home) == "/models/r1 {r1perf_home} $OTHER"
    assert expand("~/x", what="w", home=home) == "/home/me/x"
    monkeypatch.delenv("MODEL")
    with pytest.raises(R1PerfError, match=r"^the model is '\$MODEL', but the environment variable MODEL is not set"):
        expand("$MODEL", what="the model", home=home)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("~", "~"),
        ("~/models/r1", "~"),
        ("~me/models/r1", "~me"),
        ("$HOME/models/r1", "$HOME"),
        ("${HOME}/models/r1", "${HOME}"),
        ("/home/$USER/r1", "$USER"),
        ("/home/${USER}/r1", "${USER}"),
        ("{r1perf_home}/models/r1", "{r1perf_home}"),
        ("$MINE/r1", "~"),
    ],
)
def test_what_means_this_host_is_no_path_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, part: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("MINE", "~/models")
    with pytest.raises(R1PerfError) as caught:
        expand(text, what="the model", home=tmp_path, elsewhere=True)
    assert str(caught.value).startswith(f"the model is {text!r}, but {part} is this host's and the ranks run on others")
    assert "give the path as it is on the nodes" in str(caught.value)


def test_variables_that_the_user_exports_hold_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODEL", "/models/r1")
    monkeypatch.setenv("HOMES", "/homes")
    for text, path in (
        ("$MODEL/fp8", "/models/r1/fp8"),
        ("$HOMES/r1", "/homes/r1"),
        ("/data/a~b", "/data/a~b"),
    ):
        assert expand(text, what="the model", home=tmp_path, elsewhere=True) == path
    monkeypatch.delenv("MODEL")
    with pytest.raises(R1PerfError, match="the environment variable MODEL is not set"):
        expand("$MODEL", what="the model", home=tmp_path, elsewhere=True)


# -- cells --------------------------------------------------------------------------------------------------


def cell(**changes: object) -> Cell:
    catalog = load_catalog()
    given: dict[str, object] = {"topology": "tp8", "n": 7000, **changes}
    return cell_of(PerfSpec(**given), catalog.platform("h200x8"), catalog)  # type: ignore[arg-type]


def test_precedence_of_flags() -> None:
    made = cell(flags=(("cuda_graph_max_bs", 256), ("load_format", "auto")), env=(("X", "1"),))
    assert made.flags["cuda_graph_max_bs"] == 256  # the marker over the recipe's 2048
    assert made.flags["load_format"] == "auto"  # and over the protocol
    assert made.flags["mem_fraction_static"] == 0.87
    assert made.flags["tp_size"] == 8
    assert made.env == {"X": "1"}
    assert made.key == "h200x8/tp8-champion/sharegpt/n7000/offline/cuda_graph_max_bs=256/load_format=auto/X=1"
    assert made.label == "tp8 tp8-champion n=7000 cuda_graph_max_bs=256 load_format=auto X=1"


def test_a_secret_is_in_no_name() -> None:
    """Keys are committed to git, labels are printed."""
    made = cell(env=(("HF_TOKEN", "hf_verysecret"),))
    assert "hf_verysecret" not in made.key + made.label
    assert made.env["HF_TOKEN"] == "hf_verysecret"


def test_the_fingerprint_is_of_all_that_is_asked_for(tmp_path: Path) -> None:
    same = {cell().fingerprint, cell(recipe="tp8-champion").fingerprint, cell(timeout_s=5.0).fingerprint}
    assert len(same) == 1
    others = [
        *(cell(n=7001), cell(workload="sharegpt-like"), cell(flags=(("x", 1),)), cell(env=(("X", "1"),))),
        *(cell(topology="tp2"), cell(recipe="default")),
    ]
    assert len({*same, *(other.fingerprint for other in others)}) == len(others) + 1
    for text in ("workloads: {sharegpt: {seed: 7}}", "platforms: {h200x8: {model_path: /other}}"):
        changed = load_catalog([user(tmp_path, text)])
        assert cell_of(PerfSpec("tp8", 7000), changed.platform("h200x8"), changed).fingerprint not in same


def test_a_cell_needs_n() -> None:
    with pytest.raises(R1PerfError, match="needs n, the number of prompts"):
        cell(n=None)


def test_the_users_default_recipe_is_the_default(tmp_path: Path) -> None:
    catalog = load_catalog([user(tmp_path, "recipes: {default: {flags: {x: 1}, source: ours}}\n")])
    assert cell_of(PerfSpec("tp1", 10), catalog.platform("cpu"), catalog).flags["x"] == 1


@pytest.mark.parametrize(
    ("flag", "owner"),
    [
        *(("tp_size", "topology"), ("tensor_parallel_size", "topology"), ("pp", "topology"), ("nnodes", "topology")),
        *(("seed", "workload"), ("num_prompts", "workload"), ("model_path", "platform"), ("result_filename", "plugin")),
    ],
)
def test_flags_that_are_set_elsewhere(flag: str, owner: str) -> None:
    found = owner_of(flag)
    assert found is not None
    assert owner in found
    assert owner_of("mem_fraction_static") is None
