"""Power: against the noncentral t of SciPy where the rule is a fixed-number test, against the judge where it isn't."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cli import cli
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.noise.power import Nights, Setting, fixed_number, power_of, rounds_for, setting_for, simulated
from pytest_r1perf.noise.power_command import power_command
from pytest_r1perf.platform import Noise
from pytest_r1perf.verdict import Reference, Terms, Verdict, judge

if "power" not in cli.commands:
    cli.add_command(power_command)

ALPHA = 0.05 / 40


def setting(*, cv: float = 0.02, session: float = 0.0, baseline: int | None = 20, **terms: float) -> Setting:
    told = Terms(
        tolerance=terms.get("tolerance", 0.01),
        floor=None,
        alpha=terms.get("alpha", ALPHA),
        beta=0.05,
        detect=terms.get("detect"),
        noise_run=(cv, 9),
        noise_between=(session, 9) if session else None,
    )
    return Setting(told, cv, session, baseline)


def exact_power(drop: float, *, rounds: int, baseline: int, cv: float, alpha: float, tolerance: float) -> float:
    """Of a pooled two-sample t test on logarithms, one-sided, by SciPy's noncentral t."""
    df = rounds + baseline - 2
    error = cv * math.sqrt(1 / rounds + 1 / baseline)
    shift = (math.log(1 - drop) - math.log(1 - tolerance)) / error
    return float(stats.nct.cdf(stats.t.ppf(alpha, df), df, shift))


@pytest.mark.parametrize(
    ("rounds", "baseline", "cv", "alpha"),
    [(3, 20, 0.02, ALPHA), (5, 20, 0.02, ALPHA), (10, 10, 0.05, 0.01), (20, 5, 0.01, 0.05), (4, 4, 0.03, 0.001)],
)
def test_the_formula_is_the_noncentral_t(rounds: int, baseline: int, cv: float, alpha: float) -> None:
    found = fixed_number(setting(cv=cv, baseline=baseline, alpha=alpha), rounds)
    power = exact_power(found, rounds=rounds, baseline=baseline, cv=cv, alpha=alpha, tolerance=0.01)
    assert power == pytest.approx(0.95, abs=0.015)


def test_simulated_a_fixed_number_is_the_noncentral_t() -> None:
    # Many rounds a side: there the verdict's choice between the pooled test and Welch's hardly matters.
    nights = simulated(setting(baseline=40), RoundPlan(20, 20), 1000)
    for drop in (0.02, 0.025, 0.03):
        expected = exact_power(drop, rounds=20, baseline=40, cv=0.02, alpha=ALPHA, tolerance=0.01)
        error = math.sqrt(expected * (1 - expected) / 1000)
        assert nights.outcomes(drop)[1] == pytest.approx(expected, abs=4 * error + 0.03)


def test_false_alarms_at_the_tolerance_are_the_error_rate() -> None:
    nights = simulated(setting(alpha=0.1, tolerance=0.05, baseline=10), RoundPlan(4, 6), 1000)
    at_the_edge = nights.outcomes(0.05)[1]
    assert 0.04 < at_the_edge < 0.1 + 4 * math.sqrt(0.1 * 0.9 / 1000)


def test_more_rounds_see_more() -> None:
    found = [power_of(setting(), RoundPlan(rounds, rounds), nights=300) for rounds in (4, 8, 16)]
    drops = [power.detectable for power in found]
    assert None not in drops
    assert drops == sorted(drops, key=lambda drop: -(drop or 0))
    assert [power.fixed for power in found] == sorted((power.fixed for power in found), reverse=True)


@given(st.integers(2, 60), st.integers(2, 60))
def test_the_formula_falls_with_rounds(one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert fixed_number(setting(session=0.005), many) <= fixed_number(setting(session=0.005), few) + 1e-12


def test_power_grows_with_the_drop() -> None:
    nights = simulated(setting(detect=0.05, session=0.004), RoundPlan(2, 6), 200)
    shares = [nights.outcomes(drop / 100) for drop in range(16)]
    assert [share[1] for share in shares] == sorted(share[1] for share in shares)
    assert [share[0] for share in shares] == sorted((share[0] for share in shares), reverse=True)
    for passed, regressed, undecided, rounds in shares:
        assert passed + regressed + undecided == pytest.approx(1)
        assert 2 <= rounds <= 6


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0, 0.3),
    st.floats(0, 0.1),
    st.one_of(st.none(), st.floats(0.1, 0.2)),
    st.sampled_from([(2, 4), (3, 3), (3, 6)]),
    st.one_of(st.none(), st.integers(2, 10)),
)
def test_a_night_ends_as_the_judge_ends_it(
    seed: int, drop: float, tolerance: float, detect: float | None, bounds: tuple[int, int], baseline: int | None
) -> None:
    """One simulated night, told by its limits, and the same rounds less ``drop`` before the judge, look by look."""
    of = setting(cv=0.05, session=0.02, baseline=baseline, tolerance=tolerance, alpha=0.02)
    of = replace(of, terms=replace(of.terms, detect=detect))
    plan = RoundPlan(*bounds)
    rng = random.Random(seed)
    old = [math.exp(rng.gauss(0, 0.05)) for _ in range(baseline or bounds[1])]
    new = [math.exp(rng.gauss(0, 0.05)) for _ in range(bounds[1])]
    nights = Nights(of, plan, [(old, new)])
    verdict, taken = Verdict.UNDECIDED, bounds[1]
    for look in plan.looks:
        grows = baseline is None
        reference = Reference(old[:look] if grows else old, same_session=grows, grows=grows)
        fallen = [value * (1 - drop) for value in new[:look]]
        verdict = judge("total_throughput", fallen, reference, replace(of.terms, looks=plan.looks)).verdict
        if verdict is not Verdict.UNDECIDED:
            taken = look
            break
    passed, regressed, undecided, rounds = nights.outcomes(drop)
    assert (passed, regressed, undecided) == (
        verdict in (Verdict.PASS, Verdict.IMPROVED),
        verdict is Verdict.REGRESSED,
        verdict is Verdict.UNDECIDED,
    )
    assert rounds == taken


def test_rounds_for_a_drop_are_enough_and_not_one_too_many() -> None:
    of = setting(alpha=0.01)
    needed, formula = rounds_for(of, 0.05, minimum=3)
    assert needed is not None
    assert formula is not None
    assert fixed_number(of, formula) <= 0.05 < fixed_number(of, formula - 1)
    assert simulated(of, RoundPlan(3, needed), 400).outcomes(0.05)[1] >= 0.95
    assert simulated(of, RoundPlan(3, needed - 1), 400).outcomes(0.05)[1] < 0.95


def test_no_number_of_rounds_sees_what_sessions_hide() -> None:
    assert rounds_for(setting(cv=0.01, session=0.05), 0.05, minimum=40, nights=100) == (None, None)


def test_the_same_seed_the_same_answer() -> None:
    plan = RoundPlan(2, 4)
    assert power_of(setting(), plan, nights=100) == power_of(setting(), plan, nights=100)


def test_a_platform_without_noise_is_refused() -> None:
    platform = replace(load_catalog().platform("h200x8"), noise=None)
    with pytest.raises(R1PerfError, match=r"no noise yet: measure it with `r1perf noise --platform h200x8`"):
        setting_for(platform, baseline_rounds=20)
    assert setting_for(platform, baseline_rounds=20, run_cv=0.02).run_cv == 0.02


def test_other_noise_replaces_the_platform_s() -> None:
    platform = replace(load_catalog().platform("h200x8"), noise=Noise(0.03, 12, 0.01, 5, "test"))
    own = setting_for(platform, baseline_rounds=20)
    assert (own.run_cv, own.session_cv) == (0.03, 0.01)
    other = setting_for(platform, baseline_rounds=20, run_cv=0.02, session_cv=0.0)
    assert (other.run_cv, other.session_cv) == (0.02, 0.0)
    assert other.terms.noise_run == (0.02, 11)


# -- the command --------------------------------------------------------------------------------------------


def power(*args: str) -> str:
    result = CliRunner().invoke(cli, ["power", "--nights", "100", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))


H200 = ("--platform", "h200x8", "--cv", "0.02", "--session-cv", "0", "--tolerance", "0.01")


def test_the_command_s_table() -> None:
    output = power(*H200, "--rounds", "3:5", "--round-time", "60")
    row = next(line for line in output.splitlines() if line.lstrip().startswith("3:5 "))
    assert row.rstrip().endswith("s")
    assert "run CV 2.00%, session CV 0.00%; against a baseline of 20 rounds" in output
    assert "two environments" in power(*H200, "--rounds", "3", "--two-environments")


def test_a_budget_is_rounds() -> None:
    output = power(*H200, "--budget", "2h", "--cells", "30", "--round-time", "60")
    assert "2h for 30 cells at 60s a process: 4 rounds a cell" in output
    with pytest.raises(R1PerfError, match="1 round a cell: two are the least"):
        power(*H200, "--budget", "1h", "--cells", "40", "--round-time", "60")
    with pytest.raises(R1PerfError, match="no record tells how long a process takes on 'h200x8'"):
        power(*H200, "--budget", "1h")


def test_a_drop_is_rounds() -> None:
    output = power(*H200, "--drop", "0.1")
    assert output.startswith("a drop of 10 % takes up to ")
    with pytest.raises(R1PerfError, match=r"--drop 0.005 is within the tolerance 0.01"):
        power(*H200, "--drop", "0.005")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--platform", "h200"), "platform 'h200' is not known; did you mean 'h200x"),
        (("--rounds", "1"), "--rounds 1: a spread takes two rounds at least"),
        (("--rounds", "5:3"), "rounds must be MIN:MAX"),
        (("--rounds", "5:300"), "300 rounds: 50 are the most that are simulated: give --rounds 5:50"),
        (("--budget", "soon"), "--budget must be a time"),
    ],
)
def test_wrong_input_is_one_sentence(args: tuple[str, ...], said: str) -> None:
    with pytest.raises(R1PerfError, match=said):
        power(*H200[2:], *args, "--round-time", "60")


@pytest.mark.parametrize("args", [("--cv", "2"), ("--cv", "0"), ("--drop", "5"), ("--tolerance", "1"), ("--cv", "x")])
def test_a_percentage_is_no_fraction(args: tuple[str, str]) -> None:
    result = CliRunner().invoke(cli, ["power", *args])
    assert result.exit_code == 2
    assert f"Invalid value for '{args[0]}'" in result.output
