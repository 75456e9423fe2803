"""Whether two environments give the same greedy answers (design section 5: OUTPUTS CHANGED). Pure: takes answers.

Each environment answered the same prompts twice. The share of equal tokens between the two environments is held
against the platform's bound, and where an environment does not even agree with itself, against that as well
(:func:`beyond_own_noise`): kernels whose sums depend on the batch make answers differ for no change at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Tokens = tuple[int, ...]

ALPHA = 0.01
"""How often answers that differ only as an environment does from itself may count as beyond that. Ours: the check is
one a session, and the platform's bound must be missed besides. With it, five prompts must tell (3 ** -5 = 0.004)."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What one environment answered to a set of prompts, in two passes in one engine.

    ``first`` and ``second``: the new tokens, prompt by prompt; the second pass had the prompts in reversed order.
    ``prompts`` is the set's digest, ``input_ids`` what the model's tokenizer made of it (``None`` without one).
    ``dtype``, ``quantization`` and ``load_format`` are as SGLang resolved them. ``texts``: a token's own text.
    """

    prompts: str
    first: tuple[Tokens, ...]
    second: tuple[Tokens, ...]
    input_ids: tuple[Tokens, ...] | None
    dtype: str
    load_format: str
    quantization: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)
    wall_s: float = 0.0
    log: str = ""

    @property
    def dummy(self) -> bool:
        """Whether the weights were made up."""
        return self.load_format == "dummy"

    @property
    def exact(self) -> bool:
        """Whether the arithmetic is float32 throughout."""
        return self.dtype == "float32" and self.quantization is None

    @property
    def passes(self) -> tuple[tuple[Tokens, ...], tuple[Tokens, ...]]:
        """Both passes, in order."""
        return self.first, self.second


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Why an environment was not asked, in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far answers agree, over all pairs of answers to the same prompt.

    ``share_equal`` counts the tokens before the first difference of a pair, over all tokens: after it the two
    answer different texts, and a token that is equal there is so by chance. ``share_in_place`` counts those too.
    ``first_differences`` has a position from 0 a prompt, the earliest of its pairs, ``None`` where all are equal.
    """

    prompts: int
    equal_prompts: int
    share_equal: float
    share_in_place: float
    first_differences: tuple[int | None, ...]

    @property
    def earliest(self) -> int | None:
        """The smallest position of a first difference."""
        return min(self._positions, default=None)

    @property
    def median(self) -> float | None:
        """The median position of the first differences, of the prompts that have one."""
        return statistics.median(self._positions) if self._positions else None

    @property
    def _positions(self) -> list[int]:
        return [position for position in self.first_differences if position is not None]


class OutputsVerdict(str, Enum):
    """What is said of the answers of two environments; only CHANGED fails a test."""

    SAME = "SAME"
    CHANGED = "OUTPUTS CHANGED"
    REPORTED_ONLY = "REPORTED ONLY"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True, slots=True)
class Example:
    """The first prompt whose answers differ between the environments: where (from 0), and the two tokens there.

    ``None`` stands for an answer that had ended, or for a token whose text nobody knows.
    """

    prompt: int
    position: int
    old: int | None
    new: int | None
    old_text: str | None
    new_text: str | None


@dataclass(frozen=True, slots=True)
class OutputsResult:
    """The verdict, why in one sentence, and the numbers that it rests on (``None`` where nothing was compared).

    ``p`` is the probability of so much disagreement between the environments if each of them answered as the other
    does; ``None`` where neither disagrees with itself. ``repeating`` counts prompts whose answer goes round in three
    tokens or fewer, in both environments: as dummy weights do, and nothing but a gross change would show.
    """

    verdict: OutputsVerdict
    sentence: str
    between: Agreement | None = None
    old_itself: Agreement | None = None
    new_itself: Agreement | None = None
    bound: float | None = None
    p: float | None = None
    example: Example | None = None
    repeating: int = 0

    @property
    def fails(self) -> bool:
        """Whether the test fails."""
        return self.verdict is OutputsVerdict.CHANGED

    def as_dict(self) -> dict[str, object]:
        """For the record: the verdict and the numbers, without the tokens."""
        return {
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "bound": self.bound,
            "p": self.p,
            **{
                name: None if one is None else {"share_equal": one.share_equal, "equal_prompts": one.equal_prompts}
                for name, one in (
                    ("between", self.between),
                    ("old_itself", self.old_itself),
                    ("new_itself", self.new_itself),
                )
            },
            "prompts": self.between.prompts if self.between is not None else 0,
            "repeating": self.repeating,
        }


def agreement(a: Answers, b: Answers) -> Agreement:
    """Of two environments: first pass with first, second with second, whose batches were alike."""
    return _agreement([(a.first, b.first), (a.second, b.second)])


def agreement_with_itself(answers: Answers) -> Agreement:
    """Of one environment's two passes."""
    return _agreement([(answers.first, answers.second)])


def judge_outputs(old: Answers | NotAsked, new: Answers | NotAsked, bound: float | None) -> OutputsResult:
    """Hold the new environment's answers against the old one's.

    ``bound`` is the platform's least share of equal tokens (0 to 1); ``None`` reports only. Only answers of real
    weights or in float32 can be CHANGED: with dummy weights in a narrower format the best token is a coin toss
    between logits that are nearly equal.
    """
    if isinstance(old, NotAsked) or isinstance(new, NotAsked):
        asked = old if isinstance(old, NotAsked) else new
        assert isinstance(asked, NotAsked)
        return OutputsResult(OutputsVerdict.NOT_CHECKED, asked.reason, bound=bound)
    bar = _cannot_compare(old, new)
    if bar is not None:
        return OutputsResult(OutputsVerdict.NOT_CHECKED, bar, bound=bound)
    between = agreement(old, new)
    own = agreement_with_itself(old), agreement_with_itself(new)
    noisy = any(one.share_equal < 1 for one in own)
    p = beyond_own_noise(old, new) if noisy else None
    verdict, sentence = _verdict(old, new, between, bound, p)
    return OutputsResult(
        verdict,
        sentence,
        between,
        *own,
        bound=bound,
        p=p,
        example=_example(old, new),
        repeating=sum(_repeats(a) and _repeats(b) for a, b in zip(old.first, new.first, strict=True)),
    )


def beyond_own_noise(old: Answers, new: Answers) -> float:
    """The probability of so much agreement within the environments, and so little between, if they were alike.

    Exact and without a model. Were the environments alike, the four answers to a prompt (two a side) would be of
    one kind, and each of the three ways to pair them off equally likely to be the one by environment. The prompts
    are independent, so the sum over prompts of the equal tokens within pairs has a known distribution, and the
    returned value is the probability of a sum at least as large as the one that was seen.
    """
    distribution = {0: 1.0}
    seen = 0
    for o1, o2, n1, n2 in zip(old.first, old.second, new.first, new.second, strict=True):
        ways = (
            _prefix(o1, o2) + _prefix(n1, n2),
            _prefix(o1, n1) + _prefix(o2, n2),
            _prefix(o1, n2) + _prefix(o2, n1),
        )
        seen += ways[0]
        after: dict[int, float] = {}
        for total, probability in distribution.items():
            for tokens in ways:
                after[total + tokens] = after.get(total + tokens, 0.0) + probability / 3
        distribution = after
    return min(1.0, sum(probability for total, probability in distribution.items() if total >= seen))


def shown(share: float) -> str:
    """A share for people; all of them only where it is all.

    >>> shown(0.98765), shown(0.99999), shown(1.0)
    ('98.77 %', '99.99 %', '100 %')
    """
    return "100 %" if share == 1 else f"{min(share * 100, 99.99):.4g} %"


def _verdict(
    old: Answers, new: Answers, between: Agreement, bound: float | None, p: float | None
) -> tuple[OutputsVerdict, str]:
    share = "all tokens are equal"
    if between.share_equal < 1:
        share = f"{shown(between.share_equal)} of the tokens are equal up to the first difference"
    if old.dtype != new.dtype or old.quantization != new.quantization:
        share += f" (dtype {_kind(old)} -> {_kind(new)})"
    if old.dummy and not old.exact:
        return (
            OutputsVerdict.REPORTED_ONLY,
            f"{share}; dummy weights in {_kind(old)} decide nothing: the best tokens are nearly equal",
        )
    if bound is None:
        return OutputsVerdict.REPORTED_ONLY, f"{share}; the platform states no bound (outputs: min_share)"
    if between.share_equal >= bound:
        return OutputsVerdict.SAME, f"{share}, the bound is {shown(bound)}"
    if p is None:
        return (
            OutputsVerdict.CHANGED,
            f"only {share}, the bound is {shown(bound)}, and each environment agrees with itself token for token",
        )
    if p < ALPHA:
        return (
            OutputsVerdict.CHANGED,
            f"only {share}, the bound is {shown(bound)}, and the environments agree better with themselves "
            f"(p = {p:.2g})",
        )
    return (
        OutputsVerdict.REPORTED_ONLY,
        f"{share}, below the bound of {shown(bound)}, but an environment differs from itself as well: "
        f"no more than that is shown (p = {p:.2g})",
    )


def _cannot_compare(old: Answers, new: Answers) -> str | None:
    """Why answers of two environments say nothing about each other, in one sentence."""
    if old.prompts != new.prompts or len(old.first) != len(new.first):
        return f"the environments were asked different prompts ({old.prompts} and {new.prompts})"
    if old.input_ids != new.input_ids:
        if old.input_ids is None or new.input_ids is None:
            return "only one of the environments has a tokenizer for this model: the prompts are not the same tokens"
        pairs = zip(old.input_ids, new.input_ids, strict=True)
        other = [number for number, (a, b) in enumerate(pairs, 1) if a != b]
        return (
            f"the tokenizers of the environments split {len(other)} of {len(old.input_ids)} prompts differently "
            f"(the first is prompt {other[0]}): compare transformers and the model's tokenizer files"
        )
    if old.dummy != new.dummy:
        return f"the weights are not the same: load format {old.load_format} and {new.load_format}"
    if old.dummy and _kind(old) != _kind(new):
        return f"dummy weights in {_kind(old)} and in {_kind(new)} are not the same weights"
    return None


def _kind(answers: Answers) -> str:
    return answers.dtype if answers.quantization is None else f"{answers.dtype} with {answers.quantization}"


def _agreement(passes: Iterable[tuple[Sequence[Tokens], Sequence[Tokens]]]) -> Agreement:
    tokens = equal = in_place = 0
    firsts: dict[int, int] = {}
    prompts = 0
    for ours, theirs in passes:
        prompts = len(ours)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            longest, prefix = max(len(a), len(b)), _prefix(a, b)
            tokens += longest
            equal += prefix
            in_place += sum(x == y for x, y in zip(a, b, strict=False))
            if prefix < longest:
                firsts[number] = min(prefix, firsts.get(number, prefix))
    return Agreement(
        prompts=prompts,
        equal_prompts=prompts - len(firsts),
        share_equal=equal / tokens if tokens else 1.0,
        share_in_place=in_place / tokens if tokens else 1.0,
        first_differences=tuple(firsts.get(number) for number in range(prompts)),
    )


def _prefix(a: Tokens, b: Tokens) -> int:
    """How many tokens are equal before the first difference."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _example(old: Answers, new: Answers) -> Example | None:
    for number, (a, b) in enumerate(zip(old.first + old.second, new.first + new.second, strict=True)):
        if a != b:
            at = _prefix(a, b)
            ours, theirs = (one[at] if at < len(one) else None for one in (a, b))
            texts = {**old.texts, **new.texts}
            return Example(number % len(old.first), at, ours, theirs, _text(texts, ours), _text(texts, theirs))
    return None


def _text(texts: Mapping[int, str], token: int | None) -> str | None:
    return None if token is None else texts.get(token)


def _repeats(tokens: Tokens) -> bool:
    half = tokens[len(tokens) // 2 :]
    return len(half) > 3 and len(set(half)) <= 3
