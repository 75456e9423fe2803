"""Workloads sampled beforehand: what is known of them, and how often an SGLang is started for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.sglang.environment import SglangEnvironment, local_place, probe
from pytest_r1perf.sglang.sampling import Sampling, look_at, sample
from pytest_r1perf.workload import SampledWorkload, Workload
from tests.project import Project, make_environment, sharegpt

PLAIN = Workload("sharegpt", "sharegpt", 1, None, None, "test")
SHORT = Workload("short", "sharegpt", 1, 7, None, "test")
ELSEWHERE = Workload("other", "other", 1, None, None, "test")


class Desk:
    """The fake SGLang, a model and a data set of 20 prompts of 20 words, each answered by 30."""

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache"
        self.starts_file = root / "starts"
        control = root / "control.json"
        control.write_text("{}")
        folder = make_environment(root / "env", control=control)
        self.environment: SglangEnvironment = probe(local_place(str(folder)), {}, cache=root / "probes")
        assert isinstance(self.environment.place, LocalPlace)
        (root / "model").mkdir()
        (root / "model" / "tokenizer.json").write_text("{}")
        (root / "model" / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
        (root / "data.json").write_text(sharegpt(20))
        self.model = root / "model"
        self.inputs = look_at(self.environment, str(self.model), str(root / "data.json"), {})
        python = folder / "bin" / "python"
        python.write_text(python.read_text().replace("exec", f"echo start >> {self.starts_file}\nexec", 1))

    def sample(self, workload: Workload, n: int, *also: Sampling) -> SampledWorkload:
        return sample(
            workload,
            n,
            environment=self.environment,
            given=self.inputs,
            cache=self.cache,
            env={"PATH": "/usr/bin:/bin"},
            also=lambda: also,
        )

    @property
    def starts(self) -> int:
        return len(self.starts_file.read_text().splitlines()) if self.starts_file.exists() else 0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_what_a_workload_comes_to(desk: Desk) -> None:
    found = desk.sample(PLAIN, 3)
    assert (found.num_prompts, found.total_input_tokens, found.total_output_tokens) == (3, 60, 90)
    assert found.longest_tokens == 50
    assert desk.sample(SHORT, 3).total_output_tokens == 21


def test_fifteen_workloads_are_one_process(desk: Desk) -> None:
    coming = [(workload, n) for workload in (PLAIN, SHORT) for n in range(1, 9)][:15]
    told = [desk.sample(*one, *coming) for one in coming]
    assert desk.starts == 1
    assert [found.total_input_tokens for found in told] == [20 * n for _, n in coming]
    assert [found.total_output_tokens for found in told] == [(30 if one is PLAIN else 7) * n for one, n in coming]
    assert len({found.digest for found in told}) == 15


def test_one_by_one_each_is_a_process_and_gives_the_same(desk: Desk, tmp_path: Path) -> None:
    together = [desk.sample(PLAIN, n, (PLAIN, 2), (PLAIN, 5)) for n in (2, 5)]
    kept = {path.name: json.loads(path.read_text()) for path in desk.cache.iterdir()}
    assert (desk.starts, len(kept)) == (1, 2)
    desk.cache = tmp_path / "another"
    assert [desk.sample(PLAIN, n) for n in (2, 5)] == together
    assert desk.starts == 3
    assert {path.name: json.loads(path.read_text()) for path in desk.cache.iterdir()} == kept


def test_what_is_in_the_cache_is_not_sampled_again(desk: Desk) -> None:
    desk.sample(PLAIN, 2)
    before = {path.name: path.stat().st_mtime_ns for path in desk.cache.iterdir()}
    desk.sample(PLAIN, 3, (PLAIN, 2))
    assert {path.name: path.stat().st_mtime_ns for path in desk.cache.iterdir()}.items() > before.items()

    def never() -> list[Sampling]:
        raise AssertionError("asked for what else is needed")

    given, cache = desk.inputs, desk.cache
    sample(PLAIN, 3, environment=desk.environment, given=given, cache=cache, env={}, also=never)
    assert desk.starts == 2


def test_another_data_sets_workload_is_left_to_its_turn(desk: Desk) -> None:
    desk.sample(PLAIN, 2, (ELSEWHERE, 4))
    assert len(list(desk.cache.iterdir())) == 1


def test_what_else_can_not_be_sampled_spoils_nothing(desk: Desk) -> None:
    """More prompts than there are is told in its turn; one that the sampler dies of is not kept at all."""
    broken = Workload("broken", "sharegpt", 1, None, "x", "test")  # type: ignore[arg-type]
    assert desk.sample(PLAIN, 3, (PLAIN, 500), (broken, 3), (SHORT, 3)).total_input_tokens == 60
    with pytest.raises(R1PerfError, match="gives 20 usable prompts, and n=500"):
        desk.sample(PLAIN, 500)
    assert desk.sample(SHORT, 3).total_output_tokens == 21
    assert desk.starts == 1
    with pytest.raises(R1PerfError, match="could not be sampled"):
        desk.sample(broken, 3)
    assert desk.starts == 2


def test_a_model_without_a_tokenizer_is_one_sentence(desk: Desk) -> None:
    (desk.model / "tokenizer.json").unlink()
    with pytest.raises(R1PerfError, match=r"could not be sampled by sglang 0\.5\.20 .*Can't load tokenizer"):
        desk.sample(PLAIN, 3, (PLAIN, 4))
    assert not desk.cache.exists()


@pytest.mark.parametrize("options", [(), ("--perf-plan",)], ids=["measured", "planned"])
def test_a_session_starts_one_sampler_for_all_its_cells(r1perf_project: Project, options: tuple[str, ...]) -> None:
    """Fifteen cells, each of another N: five offline, ten in one engine."""
    project = r1perf_project
    project.platform(rounds={"min": 1, "max": 1})
    project.write("""
        import pytest

        @perf(topology="tp1", n=1, min_tokps=1)
        @pytest.mark.parametrize("n", range(50, 55))
        def test_offline(n): ...

        @perf(topology="tp1", n=1, min_tokps=1, mode="engine")
        @pytest.mark.parametrize("n", range(60, 70))
        def test_engine(n): ...
        """)
    starts = project.root / "starts"
    python = project.environment / "bin" / "python"
    python.write_text(python.read_text().replace("exec", f'echo "$1" >> {starts}\nexec', 1))
    project.perf(*options)
    scripts = [Path(line).name for line in starts.read_text().splitlines()]
    assert scripts.count("sample_workload.py") == 1
    if not options:
        assert len(project.samples()) == 15
