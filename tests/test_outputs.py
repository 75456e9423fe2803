"""Agreement of greedy answers, what is made of it, and how it is said."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.outputs.agreement import (
    ALPHA,
    Answers,
    NotAsked,
    OutputsVerdict,
    Tokens,
    agreement,
    agreement_with_itself,
    beyond_own_noise,
    judge_outputs,
)
from pytest_r1perf.report.outputs import outputs_lines

LENGTH = 8


def answers(*first: Tokens, second: tuple[Tokens, ...] | None = None, **changes: Any) -> Answers:
    """Of real weights in bfloat16; both passes alike unless ``second`` is given."""
    ids = tuple((number,) for number in range(len(first)))
    made = Answers("set", first, first if second is None else second, ids, "bfloat16", "auto")
    return replace(made, **changes)


def many(count: int, start: int = 0, **changes: Any) -> Answers:
    """So many prompts, all answers different from one another."""
    return answers(*(tuple(range(start + n, start + n + LENGTH)) for n in range(0, 100 * count, 100)), **changes)


def parted(given: Answers, prompts: int, at: int = 0, token: int = 9999) -> Answers:
    """The same answers but for the first so many prompts, which differ from a place on, in both passes."""

    def changed(one: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
        return tuple(
            (*ids[:at], *(token + place for place in range(LENGTH - at))) if number < prompts else ids
            for number, ids in enumerate(one)
        )

    return replace(given, first=changed(given.first), second=changed(given.second))


def wavering(given: Answers, prompts: int, at: int = 0, token: int = 7777) -> Answers:
    """An environment whose second pass differs from its first in so many prompts."""
    return replace(given, second=parted(given, prompts, at, token).first)


TOKENS = st.lists(st.integers(0, 3), min_size=LENGTH, max_size=LENGTH).map(tuple)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Answers, Answers]:
    count = draw(st.integers(1, 5))
    sides = [answers(*draw(st.tuples(*[TOKENS] * count)), second=draw(st.tuples(*[TOKENS] * count))) for _ in range(2)]
    return sides[0], sides[1]


# -- agreement ------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    """Two prompts of four tokens: one parts at its third token and meets again by chance, the other is equal."""
    one = answers((1, 2, 3, 4), (5, 6, 7, 8))
    other = answers((1, 2, 9, 4), (5, 6, 7, 8))
    found = agreement(one, other)
    assert (found.prompts, found.equal_prompts) == (2, 1)
    assert found.share_equal == 6 / 8
    assert found.share_in_place == 7 / 8
    assert found.first_differences == (2, None)
    assert (found.earliest, found.median) == (2, 2)


def test_the_second_pass_counts() -> None:
    one = answers((1, 2, 3, 4))
    other = answers((1, 2, 3, 4), second=((1, 9, 3, 4),))
    assert agreement(one, other).share_equal == 5 / 8
    assert agreement(one, other).first_differences == (1,)
    assert agreement_with_itself(one).share_equal == 1
    assert agreement_with_itself(other).share_equal == 1 / 4


def test_a_shorter_answer_is_a_difference() -> None:
    found = agreement(answers((1, 2, 3, 4)), answers((1, 2)))
    assert found.share_equal == 1 / 2
    assert found.first_differences == (2,)


def test_the_median_is_of_the_prompts_that_differ() -> None:
    one = many(4)
    other = replace(
        one,
        first=tuple(parted(one, 4, at).first[n] for n, at in enumerate((1, 2, 6))) + one.first[3:],
        second=one.first,
    )
    found = agreement(one, other)
    assert found.first_differences == (1, 2, 6, None)
    assert (found.earliest, found.median) == (1, 2)


@given(pairs())
def test_symmetric(both: tuple[Answers, Answers]) -> None:
    one, other = both
    assert agreement(one, other) == agreement(other, one)
    assert beyond_own_noise(one, other) == pytest.approx(beyond_own_noise(other, one))


@given(pairs())
def test_shares_are_shares(both: tuple[Answers, Answers]) -> None:
    found = agreement(*both)
    assert 0 <= found.share_equal <= found.share_in_place <= 1
    assert (found.share_equal == 1) == (found.equal_prompts == found.prompts) == (found.earliest is None)


@given(pairs())
def test_identical_answers_agree(both: tuple[Answers, Answers]) -> None:
    one = both[0]
    found = agreement(one, one)
    assert (found.share_equal, found.share_in_place, found.equal_prompts) == (1, 1, found.prompts)
    assert judge_outputs(one, one, 1.0).verdict is OutputsVerdict.SAME


# -- beyond the environments' own noise ---------------------------------------------------------------------------


@given(pairs())
def test_the_probability_is_that_of_all_pairings(both: tuple[Answers, Answers]) -> None:
    """Against the definition, counted out: every way to pair off the four answers to each prompt."""

    def prefix(a: Tokens, b: Tokens) -> int:
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=True))))

    old, new = both
    ways = [
        (prefix(a, b) + prefix(c, d), prefix(a, c) + prefix(b, d), prefix(a, d) + prefix(b, c))
        for a, b, c, d in zip(old.first, old.second, new.first, new.second, strict=True)
    ]
    seen = sum(way[0] for way in ways)
    sums = [sum(chosen) for chosen in itertools.product(*ways)]
    assert beyond_own_noise(old, new) == pytest.approx(sum(total >= seen for total in sums) / len(sums))


@pytest.mark.parametrize("differing", range(7))
def test_prompts_that_tell(differing: int) -> None:
    """Each prompt that is steady within and other between leaves one pairing of three."""
    old = many(8)
    assert beyond_own_noise(old, parted(old, differing)) == pytest.approx(3.0**-differing)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_environments_that_are_alike_are_rarely_called_different(rate: float) -> None:
    """Answers that part at a random place with some probability, each time anew: 1000 sessions of 16 prompts."""
    draw = random.Random(20250130)

    def once(prompt: int) -> Tokens:
        at = draw.randrange(LENGTH) if draw.random() < rate else LENGTH
        return tuple(prompt * 100 + n if n < at else draw.randrange(10_000, 10_003) for n in range(LENGTH))

    def side() -> Answers:
        return answers(*map(once, range(16)), second=tuple(map(once, range(16))))

    below = sum(beyond_own_noise(side(), side()) < ALPHA for _ in range(1000))
    assert below <= 24  # 10 expected at most; 4.5 standard deviations


# -- the verdict ---------------------------------------------------------------------------------------------------


def test_an_injected_change_is_found() -> None:
    old = many(16)
    result = judge_outputs(old, parted(old, 4), 0.9)
    assert result.verdict is OutputsVerdict.CHANGED
    assert result.fails
    assert result.between is not None
    assert result.between.share_equal == 0.75
    assert result.p is None
    assert "75 %" in result.sentence
    assert "90 %" in result.sentence


@pytest.mark.parametrize(
    ("prompts", "at", "bound", "verdict"),
    [
        (0, 0, 1.0, OutputsVerdict.SAME),
        (1, LENGTH - 1, 1.0, OutputsVerdict.CHANGED),  # one token of 128
        (1, LENGTH - 1, 0.99, OutputsVerdict.SAME),
        (4, 0, 0.75, OutputsVerdict.SAME),  # exactly the bound
        (5, 0, 0.75, OutputsVerdict.CHANGED),
    ],
)
def test_the_bound_decides_where_each_environment_is_steady(
    prompts: int, at: int, bound: float, verdict: OutputsVerdict
) -> None:
    old = many(16)
    assert judge_outputs(old, parted(old, prompts, at), bound).verdict is verdict


def test_no_stricter_than_an_environment_is_with_itself() -> None:
    """Half of the answers differ between the passes of one environment: then between the environments as well."""
    old = many(16)
    new = wavering(old, 8)
    result = judge_outputs(old, new, 0.9)
    assert result.between is not None
    assert result.between.share_equal == 0.75
    assert (result.verdict, result.fails) == (OutputsVerdict.REPORTED_ONLY, False)
    assert result.p is not None
    assert result.p > 0.5
    assert "differs from itself" in result.sentence


def test_a_change_shows_through_an_environments_own_noise() -> None:
    old = wavering(many(16), 3)
    new = parted(wavering(many(16), 3), 12, token=5555)
    result = judge_outputs(old, new, 0.9)
    assert result.verdict is OutputsVerdict.CHANGED
    assert result.p is not None
    assert result.p < ALPHA


def test_an_environment_that_lost_its_steadiness_is_changed() -> None:
    """The old one always answers the same, the new one never does."""
    old = many(16)
    new = replace(parted(old, 16, token=5555), second=parted(old, 16, token=6666).first)
    assert judge_outputs(old, new, 0.9).verdict is OutputsVerdict.CHANGED


def test_dummy_weights_in_a_narrow_format_only_report() -> None:
    old = many(16, load_format="dummy")
    result = judge_outputs(old, parted(old, 16), 0.9)
    assert (result.verdict, result.fails) == (OutputsVerdict.REPORTED_ONLY, False)
    assert result.between is not None
    assert result.between.share_equal == 0
    assert "dummy weights in bfloat16" in result.sentence


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"load_format": "dummy", "dtype": "float32"}, OutputsVerdict.CHANGED),
        ({"load_format": "dummy", "dtype": "float32", "quantization": "fp8"}, OutputsVerdict.REPORTED_ONLY),
        ({"quantization": "fp8"}, OutputsVerdict.CHANGED),  # real weights
    ],
)
def test_what_can_be_changed(changes: dict[str, Any], verdict: OutputsVerdict) -> None:
    old = many(16, **changes)
    assert judge_outputs(old, parted(old, 16), 0.9).verdict is verdict


def test_another_dtype_of_real_weights_is_compared_and_named() -> None:
    old = many(16, dtype="float32")
    result = judge_outputs(old, parted(replace(old, dtype="bfloat16"), 9), 0.9)
    assert result.verdict is OutputsVerdict.CHANGED
    assert "float32 -> bfloat16" in result.sentence


def test_without_a_bound_it_reports() -> None:
    old = many(16)
    result = judge_outputs(old, parted(old, 16), None)
    assert result.verdict is OutputsVerdict.REPORTED_ONLY
    assert "min_share" in result.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": "other"}, "different prompts"),
        ({"input_ids": tuple((n, 1) for n in range(16))}, "split 16 of 16 prompts differently"),
        ({"input_ids": None}, "only one of the environments has a tokenizer"),
        ({"load_format": "dummy"}, "the weights are not the same"),
    ],
)
def test_what_cannot_be_compared(changes: dict[str, Any], words: str) -> None:
    old = many(16)
    for pair in ((old, replace(old, **changes)), (replace(old, **changes), old)):
        result = judge_outputs(*pair, 0.9)
        assert result.verdict is OutputsVerdict.NOT_CHECKED
        assert words in result.sentence
        assert result.between is None


def test_dummy_weights_of_another_dtype_are_other_weights() -> None:
    old = many(16, load_format="dummy", dtype="float32")
    result = judge_outputs(old, replace(old, dtype="bfloat16"), 0.9)
    assert result.verdict is OutputsVerdict.NOT_CHECKED
    assert "not the same weights" in result.sentence


def test_an_environment_that_was_not_asked() -> None:
    for old, new in ((NotAsked("two nodes"), many(2)), (many(2), NotAsked("two nodes"))):
        result = judge_outputs(old, new, 0.9)
        assert (result.verdict, result.sentence) == (OutputsVerdict.NOT_CHECKED, "two nodes")
        assert outputs_lines(result) == ["greedy answers: NOT CHECKED: two nodes"]


def test_the_record_is_plain() -> None:
    old = many(4)
    written = judge_outputs(old, parted(old, 1, at=4), 1.0).as_dict()
    assert written["verdict"] == "OUTPUTS CHANGED"
    assert written["between"] == {"share_equal": 0.875, "equal_prompts": 3}
    assert written["old_itself"] == {"share_equal": 1.0, "equal_prompts": 4}
    assert (written["prompts"], written["bound"], written["p"]) == (4, 1.0, None)


# -- the report ----------------------------------------------------------------------------------------------------


def test_the_report_names_the_first_difference() -> None:
    old = many(16, texts={103: " the"})
    new = replace(parted(old, 2, at=3), texts={9999: " a"})
    new = replace(new, first=(old.first[0], *new.first[1:]), second=(old.second[0], *new.second[1:]))
    lines = outputs_lines(judge_outputs(old, new, 1.0), "0.5.9", "0.5.20")
    assert lines == [
        "greedy answers: OUTPUTS CHANGED: only 96.09 % of the tokens are equal up to the first difference, the bound "
        "is 100 %, and each environment agrees with itself token for token",
        "  0.5.20 against 0.5.9: 15 of 16 answers equal, 96.09 % of the tokens before the first difference (at token "
        "4 at the earliest, 4 in the median; 96.09 % place by place)",
        "  each with itself, batch reversed: 0.5.9 16 of 16 answers equal, 100 % of the tokens; 0.5.20 16 of 16 "
        "answers equal, 100 % of the tokens",
        "  first in prompt 2, token 4: 0.5.9 103 ' the', 0.5.20 9999 ' a'",
    ]


def test_almost_all_is_not_all() -> None:
    """One token of 80,000: the report never rounds a difference away."""
    old = answers(*(tuple(range(n, n + 20_000)) for n in (0, 1)))
    new = replace(old, first=((*old.first[0][:-1], 7), old.first[1]))
    assert "99.99 %" in outputs_lines(judge_outputs(old, new, 1.0))[1]


def test_answers_that_go_round_are_said_to_show_little() -> None:
    old = answers(*(((7, 8) * 4),) * 3, load_format="dummy", dtype="float32")
    result = judge_outputs(old, old, 1.0)
    assert (result.verdict, result.repeating) == (OutputsVerdict.SAME, 3)
    assert "3 of 3 answers only go round in a few tokens" in outputs_lines(result)[-1]
    assert judge_outputs(many(3), many(3), 1.0).repeating == 0


def test_an_answer_that_ended() -> None:
    lines = outputs_lines(judge_outputs(answers((1, 2, 3)), answers((1, 2)), 0.9))
    assert lines[-1] == "  first in prompt 1, token 3: old 3, new has ended"
