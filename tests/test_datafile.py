"""Strict YAML: what is refused, with which file, line and key, and that nothing else is ever raised."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf import datafile
from pytest_r1perf.datafile import Section, is_finite_number, merged, parse_yaml, read_yaml
from pytest_r1perf.errors import DataError

FILE = Path("some.yaml")


def refusal(text: str) -> str:
    with pytest.raises(DataError) as caught:
        parse_yaml(text, FILE)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: 1\nb: 2\na: 3\n", "some.yaml:3: a: key stands twice (first in line 1)"),
        ("top:\n  in:\n    a: 1\n    a: 1\n", "some.yaml:4: top.in.a: key stands twice (first in line 3)"),
        ("top:\n  - {a: 1}\n  - {a: 1, a: 2}\n", "some.yaml:3: top.a: key stands twice"),
        ("1: x\n'1': y\n", "some.yaml:2: 1: key stands twice"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "some.yaml:3: c: merge keys (<<) are not read"),
        ("- a\n- b\n", "some.yaml:1: file: must be a mapping"),
        ("# remark\njust text\n", "some.yaml:2: file: must be a mapping"),
        ("? [a, b]\n: 1\n", "some.yaml:1: file: a key must be a text"),
        ("a: 1\n? {b: c}\n: 1\n", "some.yaml:2: file: a key must be a text"),
        ("a: 1\n'': 2\n", "some.yaml:2: file: a key must be a text"),
        ("a: 1\n\tb: 2\n", "some.yaml:2: file: not valid YAML"),
        ("a:\n\t- 1\n", "some.yaml:2: file: not valid YAML"),
        ("a: [1, 2\n", "some.yaml:2: file: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "some.yaml:2: file: not valid YAML"),
        ("a: *nowhere\n", "some.yaml:1: file: not valid YAML"),
        ("a: &x [*x]\n", "some.yaml:1: a: is nested too deeply"),
        ("a: 1\nb: 2026-13-45\n", "some.yaml:2: b: is no valid value"),
        ("a: !!bool perhaps\n", "some.yaml:1: a: is no valid value"),
        ("a: !!python/name:os.system x\n", "some.yaml:1: file: not valid YAML"),
        ("a: " + "9" * 5000 + "\n", "some.yaml:1: a: is no valid value"),
        ("a: \x07\n", "some.yaml:1: file: not valid YAML"),
    ],
)
def test_refused(text: str, start: str) -> None:
    assert refusal(text).startswith(start)


def test_aliases_of_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "repeats itself by aliases" in refusal("\n".join(lines))


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_deep_nesting(monkeypatch: pytest.MonkeyPatch, loader: type) -> None:
    """With libyaml and without."""
    monkeypatch.setattr(datafile, "_Loader", loader)
    assert "some.yaml:1" in refusal("a: " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a remark\n", "---\n"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    section = parse_yaml(text, FILE)
    assert list(section) == []
    with pytest.raises(DataError, match=r"^some.yaml:1: file: key 'version' is missing$"):
        section.integer("version")


def test_keys_are_read_as_they_are_written() -> None:
    assert list(parse_yaml("on: 1\nno: 2\n010: 3\n1e3: 4\n~: 5\n2026-01-01: 6\n", FILE)) == [
        *("on", "no", "010", "1e3", "~", "2026-01-01"),
    ]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: two\r\n")
    section = read_yaml(path)
    assert section.integer("a") == 1
    assert section.text("b") == "two"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_yaml(path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: caf\xe9\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_yaml(latin)


def test_anchors_are_read_and_apart() -> None:
    section = parse_yaml("a: &x {n: 1}\nb: *x\n", FILE)
    assert section.section("a").integer("n") == section.section("b").integer("n") == 1
    assert section.section("a") is not section.section("b")


# -- typed getters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["true", "1.5", "'2'", "0", "-3", "null", "[1]", "{a: 1}", ".inf", "2026-01-01", "1e3"]
)
def test_integer_refuses(value: str) -> None:
    with pytest.raises(DataError, match=r"^some.yaml:2: k: must be a whole number of at least 1, got"):
        parse_yaml(f"a: 1\nk: {value}\n", FILE).integer("k")


@pytest.mark.parametrize("value", ["true", "'2'", ".nan", ".inf", "-.inf", "null", "[1]", "1" + "0" * 400])
def test_number_refuses(value: str) -> None:
    with pytest.raises(DataError, match=r"^some.yaml:1: k: must be a number, got"):
        parse_yaml(f"k: {value}\n", FILE).number("k")


@pytest.mark.parametrize(("value", "below"), [("0", 1.0), ("-0.5", 1.0), ("1", 1.0), ("1.5", 1.0), ("0.0", 9.0)])
def test_number_keeps_to_its_bounds(value: str, below: float) -> None:
    with pytest.raises(DataError, match=rf"k: must be above 0 and below {below:g}, got"):
        parse_yaml(f"k: {value}\n", FILE).number("k", below=below)


@pytest.mark.parametrize("value", ["1", "''", "' '", "true", "null", "[a]", "1.5"])
def test_text_refuses(value: str) -> None:
    with pytest.raises(DataError, match=r"k: must be a non-empty text, got"):
        parse_yaml(f"k: {value}\n", FILE).text("k")


@pytest.mark.parametrize("value", ["1", "0", "'true'", "null"])
def test_flag_refuses(value: str) -> None:
    with pytest.raises(DataError, match=r"k: must be true or false, got"):
        parse_yaml(f"k: {value}\n", FILE).flag("k")


def test_section_refuses_what_is_none() -> None:
    with pytest.raises(DataError, match=r"^some.yaml:1: k: must be a mapping, got 3$"):
        parse_yaml("k: 3\n", FILE).section("k")
    missing = parse_yaml("a: 1\n", FILE).section("k")
    with pytest.raises(DataError, match=r"^some.yaml:1: k: key 'name' is missing$"):
        missing.text("name")


def test_an_unread_key_is_refused_with_the_nearest_name() -> None:
    section = parse_yaml("tp_size: 1\ntp_sise: 2\n", FILE)
    section.integer("tp_size")
    with pytest.raises(DataError, match=r"^some.yaml:2: tp_sise: key is not known; did you mean 'tp_size'\?"):
        section.done()


def test_defaults_are_for_absent_keys_only() -> None:
    section = parse_yaml("n:\n", FILE)
    assert section.integer("absent", 7) == 7
    assert section.number("absent", 0.5) == 0.5
    assert section.text("absent", "") == ""
    assert section.flag("absent", True) is True
    with pytest.raises(DataError):
        section.integer("n", 7)


def test_merged_keeps_each_keys_own_place() -> None:
    base = parse_yaml("entry:\n  a: 1\n  b: x\n  deep: {p: 1, q: 2}\n", Path("base.yaml")).section("entry")
    over = parse_yaml("\n\nentry:\n  a: 5\n  deep: {q: nine}\n", Path("over.yaml")).section("entry")
    both = merged(base, over)
    assert both.plain() == {"a": 5, "b": "x", "deep": {"p": 1, "q": "nine"}}
    with pytest.raises(DataError, match=r"^base.yaml:3: entry.b: "):
        both.integer("b")
    with pytest.raises(DataError, match=r"^over.yaml:5: entry.deep.q: "):
        both.section("deep").integer("q")
    with pytest.raises(DataError, match=r"^base.yaml:4: entry.deep.p: "):
        both.section("deep").text("p")
    assert base.plain() == {"a": 1, "b": "x", "deep": {"p": 1, "q": 2}}  # untouched


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((1, True), (0.5, True), (-3, True), (10**300, True)),
        *((True, False), ("1", False), (None, False), (float("nan"), False), (float("inf"), False), (10**400, False)),
    ],
)
def test_is_finite_number(value: object, expected: bool) -> None:
    assert is_finite_number(value) is expected


# -- properties ---------------------------------------------------------------------------------------------

FRAGMENTS = st.sampled_from(
    [
        *("a", "b", "<<", "1", "~", "true", ".nan", "!!int", "!!set", "!"),
        *("&x", "*x", "{", "}", "[", "]", "?", ":", "-", "#"),
        *("'", '"', "|", ">", "---", "...", "%YAML", "=", "2026-01-99", "0x"),
        *(",", "\\", ": ", "- ", "? ", ", ", "\n", "\n  ", "\t"),
    ]
)


@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=30).map("".join)))
def test_nothing_but_a_data_error_is_ever_raised(text: str) -> None:
    """Any other exception fails this test."""
    try:
        section = parse_yaml(text, FILE)
    except DataError as error:
        section, message = Section(FILE, 1, (), {}, {}), str(error)
        assert message.startswith("some.yaml:")
    assert isinstance(section.plain(), dict)


# PyYAML writes Unicode's own line ends bare and reads them as spaces.
WORDS = st.text(st.characters(exclude_characters="\x85\u2028\u2029\ufeff", codec="utf-8"), max_size=8)
KEYS = WORDS.filter(lambda key: key.strip() != "")
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_what_yaml_writes_is_read_back(tree: dict[str, object]) -> None:
    assert parse_yaml(yaml.safe_dump(tree, allow_unicode=True), FILE).plain() == tree
