"""A platform's noise into a user's YAML: the new lines, and not a byte beside them."""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.noise.file import lines_of, own_noise, store_noise, with_noise
from pytest_r1perf.platform import Noise

NOISE = Noise(0.0213, 9, 0.0152, 4, '2026-11-30, host: "a: b" # c', sample_cv=0.11, samples=40, discard=2)
PATH = Path("r1perf.yaml")

FILE = """\
# ours, reviewed by Ann
platforms:
  # the big box
  h200x8:
    model_path: /data/R1    # local disk
    datasets: {sharegpt: "/data/s.json",   other: x}
    source: "a long text
      over two lines"

  # the lab in room 3
  lab:
    extends: h200x8
    gpus_per_node: 4
    noise:   # old
      run_cv: 0.02
      # of last week
      runs: 20
      session_cv: 0.01
      sessions: 3
      source: >
        folded
        text

    tolerance:
        value: 0.05
        source: "four spaces"

# recipes of ours
recipes:
    odd:
        topology: tp8
        flags:
            chunked_prefill_size: 0x2000
        source: |
          kept
            as it is

          to the end
"""


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that went and those that came."""
    lines = list(difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True)))
    return [line[2:] for line in lines if line[0] == "-"], [line[2:] for line in lines if line[0] == "+"]


def block(indent: int, *heads: str) -> list[str]:
    depth = len(heads)
    return [
        *(" " * (indent + 2 * number) + head + "\n" for number, head in enumerate(heads)),
        *(" " * (indent + 2 * depth) + line + "\n" for line in lines_of(NOISE)),
    ]


def test_an_entry_gets_its_noise_and_nothing_else_moves() -> None:
    after = with_noise(FILE, PATH, "h200x8", lines_of(NOISE))
    assert changed(FILE, after) == ([], block(4, "noise:"))
    place = after.splitlines().index("    noise:")
    assert after.splitlines()[place - 1] == '      over two lines"'
    assert after.splitlines()[place + 9 : place + 11] == ["", "  # the lab in room 3"]


def test_an_old_noise_gives_way_where_it_stands() -> None:
    after = with_noise(FILE, PATH, "lab", lines_of(NOISE))
    first = FILE.index("    noise:   # old")
    last = FILE.index("        text\n") + len("        text\n")
    assert after == FILE[:first] + "".join(block(4, "noise:")) + FILE[last:]


def test_a_new_entry_stands_behind_the_last() -> None:
    after = with_noise(FILE, PATH, "cpu", lines_of(NOISE))
    assert changed(FILE, after) == ([], block(2, "cpu:", "noise:"))
    assert after.splitlines()[after.splitlines().index("  cpu:") - 1] == '        source: "four spaces"'


@pytest.mark.parametrize(
    "text",
    ["", "# nothing yet\n", "---\n", "recipes: {}\n", "recipes:\n  a:\n    source: |\n      x\n\n      y\n", "a: 1"],
)
def test_a_file_without_platforms_gets_them_at_its_end(text: str) -> None:
    after = with_noise(text, PATH, "h200x8", lines_of(NOISE))
    end = "" if not text or text.endswith("\n") else "\n"
    assert after == text + end + "".join(block(0, "platforms:", "h200x8:", "noise:"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("platforms:\n# end\n", "platforms:\n  cpu:\n{}# end\n"),
        ("platforms:\n  cpu:\nrecipes:\n", "platforms:\n  cpu:\n{}recipes:\n"),
        ("platforms:\n  cpu:\n    noise: null  # none\n    x: 1\n", "platforms:\n  cpu:\n{}    x: 1\n"),
        ("platforms:\n  cpu:\n    noise: {run_cv: 0.1,\n      runs: 3}\n", "platforms:\n  cpu:\n{}"),
        ("n: &n {a: 1}\nplatforms:\n  cpu:\n    noise: *n\n", "n: &n {{a: 1}}\nplatforms:\n  cpu:\n{}"),
        ('platforms:\n  cpu: &c\n    x: "1"\n', 'platforms:\n  cpu: &c\n    x: "1"\n{}'),
        ("b: &b {c: 1}\nplatforms:\n  cpu:\n    x: *b\n", "b: &b {{c: 1}}\nplatforms:\n  cpu:\n    x: *b\n{}"),
        (
            "platforms:\n  cpu:\n    x:\n    - 1\n    - 2 # two\n  # z\n",
            "platforms:\n  cpu:\n    x:\n    - 1\n    - 2 # two\n{}  # z\n",
        ),
        ("platforms:\n  cpu:\n    x: 1\n...\n", "platforms:\n  cpu:\n    x: 1\n{}...\n"),
        ("platforms:\n  cpu:\n    x: 1", "platforms:\n  cpu:\n    x: 1\n{}"),
    ],
)
def test_other_ways_to_write_it(text: str, expected: str) -> None:
    assert with_noise(text, PATH, "cpu", lines_of(NOISE)) == expected.format("".join(block(4, "noise:")))


def test_line_ends_stay() -> None:
    text = FILE.replace("\n", "\r\n")
    after = with_noise(text, PATH, "lab", lines_of(NOISE))
    assert after == with_noise(FILE, PATH, "lab", lines_of(NOISE)).replace("\n", "\r\n")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "platforms: {}\n",
        "platforms: {cpu: {model_path: x}}\n",
        "platforms:\n  cpu: {model_path: x}\n",
        "base: &base\n  a: 1\nplatforms:\n  cpu: *base\n",
        "platforms:\n  lab: &lab\n    a: 1\n  cpu: *lab\n",
        "platforms:\n  cpu: &cpu\n    a: 1\n  lab: *cpu\n",
        "platforms:\n  cpu: null\n",
        "platforms:\n  cpu:\n    noise: &n {a: 1}\n  lab:\n    noise: *n\n",
        "a: |\n  a line that a line end would be added to",
    ],
)
def test_what_cannot_be_added_to_is_refused_with_what_to_paste(text: str) -> None:
    with pytest.raises(R1PerfError, match=r"r1perf.yaml: cannot be edited .*: put this into it yourself") as caught:
        with_noise(text, PATH, "cpu", lines_of(NOISE))
    pasted = yaml.safe_load(str(caught.value).partition("yourself:\n")[2])
    assert pasted["platforms"]["cpu"]["noise"]["run_cv"] == 0.0213


@pytest.mark.parametrize("text", ["platforms: [", "- 1\n", "platforms:\n  a:\n  a:\n", "platforms:\n\tcpu:\n"])
def test_a_wrong_file_is_refused(text: str) -> None:
    with pytest.raises(R1PerfError, match=r"r1perf.yaml:\d+: "):
        with_noise(text, PATH, "cpu", lines_of(NOISE))


keys = st.text(alphabet="abcxyz", min_size=1, max_size=3)
scalars = st.one_of(st.integers(), st.text(alphabet="ab c#:\n'", max_size=12), st.none(), st.booleans())
trees = st.dictionaries(
    keys, st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(keys, scalars, max_size=3)), max_size=3
)


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(["cpu", "lab"]), trees, min_size=1), trees, st.sampled_from(["cpu", "lab", "new"])
)
def test_only_lines_come_in_and_the_rest_means_what_it_did(
    platforms: dict[str, dict[str, object]], rest: dict[str, object], name: str
) -> None:
    text = yaml.safe_dump({"platforms": platforms, **rest}, default_flow_style=False, sort_keys=False)
    try:
        after = with_noise(text, PATH, name, lines_of(NOISE))
    except R1PerfError:
        return  # an empty entry is written {}
    went, came = changed(text, after)
    assert went == []
    assert "".join(line.strip() for line in came).endswith("".join(lines_of(NOISE)))
    data = yaml.safe_load(after)
    assert data["platforms"][name].pop("noise")["runs"] == 9
    if name not in platforms:
        assert data["platforms"].pop(name) == {}
    assert data == {"platforms": platforms, **rest}


# -- the file itself ----------------------------------------------------------------------------------------


def test_stored_it_is_what_the_catalog_reads(tmp_path: Path) -> None:
    path = tmp_path / "r1perf.yaml"
    store_noise(path, "h200x8", NOISE)
    assert load_catalog([path]).platform("h200x8").noise == NOISE
    assert load_catalog([path]).platform("h200x8").gpus_per_node == 8
    assert own_noise(path, "h200x8")["runs"] == 9
    assert own_noise(path, "cpu") == {}
    assert [entry.name for entry in tmp_path.iterdir()] == ["r1perf.yaml"]


def test_the_package_s_own_noise_is_laid_over(tmp_path: Path) -> None:
    path = tmp_path / "r1perf.yaml"
    path.write_text("platforms:\n  cpu:\n    timeout_s:\n      value: 60\n")
    store_noise(path, "cpu", NOISE)
    assert load_catalog([path]).platform("cpu").noise == NOISE
    assert load_catalog([path]).platform("cpu").timeout_s == 60


def test_mode_and_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "shared" / "ours.yaml"
    real.parent.mkdir()
    real.write_text("# ours\n")
    real.chmod(0o640)
    link = tmp_path / "r1perf.yaml"
    link.symlink_to(real)
    store_noise(link, "cpu", NOISE)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert real.read_text().startswith("# ours\nplatforms:\n")


@pytest.mark.parametrize(
    ("text", "platform", "said"),
    [
        ("platforms:\n  cpu:\n    nodes: none\n", "cpu", r"r1perf.yaml:3: platforms.cpu.nodes"),
        ("platforms:\n  cpu:\n    x: 1\n", "cpu", r"r1perf.yaml:3: .*key is not known"),
        ("platforms: [1\n", "cpu", "not valid YAML"),
        ("", "nobody", r"r1perf.yaml:\d+: platforms.nobody: key 'accelerator' is missing"),
    ],
)
def test_a_file_that_would_be_refused_is_untouched(tmp_path: Path, text: str, platform: str, said: str) -> None:
    path = tmp_path / "r1perf.yaml"
    path.write_text(text)
    before = path.stat().st_ino
    with pytest.raises(R1PerfError, match=said):
        store_noise(path, platform, NOISE)
    assert path.read_text() == text
    assert path.stat().st_ino == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["r1perf.yaml"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(R1PerfError, match="cannot be written"):
        store_noise(tmp_path / "r1perf.yaml", "cpu", NOISE)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(R1PerfError, match=r"none/r1perf.yaml: cannot be written \(No such file"):
        store_noise(tmp_path / "none" / "r1perf.yaml", "cpu", NOISE)
