"""The scripts that keep the history, find a release and propose it: real git and pip, a stand-in for ``gh``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[1]
SCRIPTS = REPO / "scripts"

# Notes its arguments and the text that it was given. To a list it answers from the file `pulls` as `gh` does: whatever
# has a branch of that name (a fork's, too), the newest 30 unless told, and only the fields that were asked for.
GH = """#!/bin/sh
cd "$GH_FOLDER" || exit 9
n=$(ls calls | grep -vc body)
printf '%s\\n' "$@" >"calls/$n"
limit=30
while [ $# -gt 0 ]; do
    case $1 in
        --body-file) cp "$2" "calls/$n.body" ;;
        --head) head=$2 ;;
        --limit) limit=$2 ;;
        --json) fields=$2 ;;
        --jq) filter=$2 ;;
    esac
    shift
done
[ "$(sed -n 2p "calls/$n")" = list ] || exit 0
jq -r --arg head "$head" "map(select(.headRefName == \\$head))[:$limit] | map({$fields}) | $filter" pulls
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(GH)
    gh.chmod(0o755)
    (tmp_path / "calls").mkdir()
    (tmp_path / "pulls").write_text("[]")
    ours = ("GIT", "GH_", "PIP_", "BUMP_", "R1PERF_", "PROPOSE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "PATH": f"{gh.parent}:{os.environ['PATH']}",
        "GH_FOLDER": str(tmp_path),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "HOME": str(tmp_path),
    }


def need_jq() -> None:
    """`gh` has one inside; its stand-in needs that of the machine."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq here")


def pulls(folder: Path, *numbers: int, branch: str = "sglang-bump/0.5.23-tp8", forks: int = 0) -> None:
    """The pull requests from ``branch``: the forks' are the newest."""
    there = [{"number": 900 + n, "headRefName": branch, "isCrossRepository": True} for n in range(forks)]
    there += [{"number": number, "headRefName": branch, "isCrossRepository": False} for number in numbers]
    (folder / "pulls").write_text(json.dumps(there))


def call(env: dict[str, str], folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], env=env, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def git(env: dict[str, str], folder: Path, *arguments: str) -> str:
    done = call(env, folder, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def remote(env: dict[str, str], tmp_path: Path) -> Path:
    git(env, tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "remote.git")
    return tmp_path / "remote.git"


def night(folder: Path, name: str, text: str = "{}") -> Path:
    session = folder / name
    session.mkdir(parents=True)
    (session / "samples-main.jsonl").write_text(text)
    (session / "log.txt").write_text("long")
    return folder


def test_history_keeps_the_records_of_all_nights(env: dict[str, str], remote: Path, tmp_path: Path) -> None:
    env = {**env, "HISTORY_REMOTE": str(remote)}
    script = SCRIPTS / "history.sh"
    for number in (1, 2, 3):
        out = night(tmp_path / f"out{number}" / "nightly-tp8" / "out", f"2026110{number}.010000.abcd", str(number))
        done = call({**env, "HISTORY_NIGHTS": "2"}, tmp_path, script, f"history{number}", out)
        assert done.returncode == 0, done.stderr
    kept = git(env, remote, "ls-tree", "-r", "--name-only", "r1perf-history").split()
    assert kept == ["20261102.010000.abcd/samples-main.jsonl", "20261103.010000.abcd/samples-main.jsonl"]
    assert git(env, remote, "show", "r1perf-history~2:20261101.010000.abcd/samples-main.jsonl") == "1"
    assert (tmp_path / "history3" / "20261102.010000.abcd" / "samples-main.jsonl").read_text() == "2"
    again = call(env, tmp_path, script, "again", tmp_path / "out3")
    assert (again.returncode, again.stdout) == (0, "history.sh: nothing new for r1perf-history\n")


def test_history_that_moved_meanwhile_is_joined(env: dict[str, str], remote: Path, tmp_path: Path) -> None:
    """The first push is refused: by a hook that lets another night in before."""
    env = {**env, "HISTORY_REMOTE": str(remote)}
    other = night(tmp_path / "other", "20261101.010000.0001")
    hook = remote / "hooks" / "pre-receive"
    hook.write_text(f"""#!/bin/sh
[ ! -e {tmp_path}/moved ] || exit 0
: >{tmp_path}/moved
unset GIT_DIR GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
cd {tmp_path} && HISTORY_REMOTE={remote} {SCRIPTS}/history.sh meanwhile {other} >&2
exit 1
""")
    hook.chmod(0o755)
    done = call(env, tmp_path, SCRIPTS / "history.sh", "history", night(tmp_path / "out", "20261102.010000.0002"))
    assert done.returncode == 0, done.stderr
    assert "could not be pushed" in done.stderr
    kept = git(env, remote, "ls-tree", "--name-only", "r1perf-history").split()
    assert kept == ["20261101.010000.0001", "20261102.010000.0002"]


def test_history_is_not_begun_anew_when_the_remote_does_not_answer(env: dict[str, str], tmp_path: Path) -> None:
    out = night(tmp_path / "out", "20261102.010000.0002")
    done = call({**env, "HISTORY_REMOTE": str(tmp_path / "none")}, tmp_path, SCRIPTS / "history.sh", "history", out)
    assert done.returncode != 0


@pytest.fixture
def checkout(env: dict[str, str], remote: Path, tmp_path: Path) -> Path:
    need_jq()
    git(env, tmp_path, "clone", "--quiet", str(remote), "checkout")
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir()
    (folder / "scripts" / "sglang.version").write_text("0.5.20\n")
    git(env, folder, "add", ".")
    git(env, folder, "commit", "--quiet", "-m", "begin")
    git(env, folder, "push", "--quiet", "origin", "HEAD:main")
    return folder


def propose(env: dict[str, str], checkout: Path, outcome: str, **given: str) -> str:
    """What it says on the standard error; ``given`` are variables."""
    reports = checkout.parent / "reports"
    reports.mkdir(exist_ok=True)
    (reports / "outcome.txt").write_text(outcome)
    (reports / "report.md").write_text("# the table `$(reboot)` é\n" + "x" * 100_000)
    git(env, checkout, "switch", "--quiet", "main")
    done = call({**env, **given}, checkout, SCRIPTS / "propose.sh", "0.5.23", reports)
    assert done.returncode == 0, done.stderr
    return done.stderr


def calls(folder: Path) -> list[list[str]]:
    numbered = sorted((int(path.name), path) for path in (folder / "calls").iterdir() if path.suffix != ".body")
    return [path.read_text().splitlines() for _, path in numbered]


def test_a_bump_is_proposed_then_updated(env: dict[str, str], remote: Path, checkout: Path, tmp_path: Path) -> None:
    env = {**env, "GIT_AUTHOR_EMAIL": "me@localhost", "GIT_COMMITTER_EMAIL": "me@localhost"}
    propose(env, checkout, "regressed: 2 cells: 1 PASS, 1 REGRESSED\n")
    change = git(env, remote, "diff", "main", "sglang-bump/0.5.23-tp8")
    assert [line for line in change.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        "-0.5.20",
        "+0.5.23",
    ]
    _, created = calls(tmp_path)
    assert created[:2] == ["pr", "create"]
    assert "SGLang 0.5.20 -> 0.5.23 on tp8: regressed" in created
    assert "--draft" in created
    (body,) = (tmp_path / "calls").glob("*.body")
    assert "# the table `$(reboot)` é" in body.read_text()
    assert len(body.read_text()) < 65_536

    pulls(tmp_path, 17)
    git(env, checkout, "switch", "--quiet", "main")
    git(env, checkout, "commit", "--quiet", "--allow-empty", "-m", "main went on")
    propose(env, checkout, "green: 2 cells: 2 PASS\n")
    assert git(env, remote, "rev-parse", "sglang-bump/0.5.23-tp8~1") == git(env, checkout, "rev-parse", "main")
    edited, ready = calls(tmp_path)[-2:]
    assert edited[:5] == ["pr", "edit", "17", "--title", "SGLang 0.5.20 -> 0.5.23 on tp8: green"]
    assert ready == ["pr", "ready", "17"]
    assert "Not ready" not in body_of(tmp_path)


def body_of(folder: Path) -> str:
    """The text that was given last."""
    return max((folder / "calls").glob("*.body"), key=lambda path: int(path.stem)).read_text()


GREEN = "green: 2 cells: 2 PASS\n"


def test_a_forks_pull_request_is_not_taken_for_ours(env: dict[str, str], checkout: Path, tmp_path: Path) -> None:
    pulls(tmp_path, forks=1)
    propose(env, checkout, GREEN)
    assert [words[:2] for words in calls(tmp_path)] == [["pr", "list"], ["pr", "create"]]
    pulls(tmp_path, 17, forks=40)
    propose(env, checkout, GREEN)
    assert [words[:3] for words in calls(tmp_path)[-2:]] == [["pr", "edit", "17"], ["pr", "ready", "17"]]


def test_what_was_gated_with_another_release_than_the_pinned_is_a_draft(
    env: dict[str, str], checkout: Path, tmp_path: Path
) -> None:
    propose(env, checkout, GREEN, BUMP_OLD="0.5.9")
    created = calls(tmp_path)[-1]
    assert "SGLang 0.5.9 -> 0.5.23 on tp8: green" in created
    assert "--draft" in created
    assert "the step from 0.5.20 to 0.5.23 was not gated" in body_of(tmp_path)
    pulls(tmp_path, 17)
    propose(env, checkout, GREEN, BUMP_OLD="0.5.9")
    assert calls(tmp_path)[-1] == ["pr", "ready", "17", "--undo"]
    propose(env, checkout, GREEN, BUMP_OLD="0.5.20")
    assert calls(tmp_path)[-1] == ["pr", "ready", "17"]


def test_another_topology_leaves_the_verdict_of_tp8_alone(
    env: dict[str, str], remote: Path, checkout: Path, tmp_path: Path
) -> None:
    propose(env, checkout, "regressed: 2 cells: 1 PASS, 1 REGRESSED\n")
    pulls(tmp_path, 17)
    before = git(env, remote, "rev-parse", "sglang-bump/0.5.23-tp8")
    propose(env, checkout, GREEN, R1PERF_TOPOLOGY="pp2")
    created = calls(tmp_path)[-1]
    assert created[:6] == ["pr", "create", "--base", "main", "--head", "sglang-bump/0.5.23-pp2"]
    assert "SGLang 0.5.20 -> 0.5.23 on pp2: green" in created
    assert "--draft" in created
    assert "measured on pp2, and tp8 decides" in body_of(tmp_path)
    assert git(env, remote, "rev-parse", "sglang-bump/0.5.23-tp8") == before


def test_what_a_person_added_is_not_pushed_over(
    env: dict[str, str], remote: Path, checkout: Path, tmp_path: Path
) -> None:
    branch = "sglang-bump/0.5.23-tp8"
    propose(env, checkout, GREEN)
    pulls(tmp_path, 17)
    (checkout / "more").touch()
    git(env, checkout, "add", "more")
    git(env, checkout, "commit", "--quiet", "-m", "by a person")
    git(env, checkout, "push", "--quiet", "origin", f"HEAD:{branch}")
    theirs = git(env, remote, "rev-parse", branch)
    assert "it is not pushed to, only the text is new" in propose(env, checkout, GREEN)
    assert git(env, remote, "rev-parse", branch) == theirs
    edited, draft = calls(tmp_path)[-2:]
    assert (edited[:3], draft) == (["pr", "edit", "17"], ["pr", "ready", "17", "--undo"])
    assert f"The branch has commits of others (up to {theirs[:12]})" in body_of(tmp_path)


def test_what_a_person_adds_meanwhile_is_not_pushed_over(
    env: dict[str, str], remote: Path, checkout: Path, tmp_path: Path
) -> None:
    """Between the look and the push: from a hook that git calls when it commits."""
    git(env, checkout, "branch", "theirs")
    git(env, checkout, "switch", "--quiet", "theirs")
    git(env, checkout, "commit", "--quiet", "--allow-empty", "-m", "by a person")
    theirs = git(env, checkout, "rev-parse", "HEAD")
    git(env, checkout, "switch", "--quiet", "main")
    hook = checkout / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexec git push --quiet origin theirs:sglang-bump/0.5.23-tp8\n")
    hook.chmod(0o755)
    done = call(env, checkout, SCRIPTS / "propose.sh", "0.5.23", tmp_path / "reports")
    assert done.returncode == 1
    assert "could not be pushed; if it moved meanwhile, run the same again" in done.stderr
    assert git(env, remote, "rev-parse", "sglang-bump/0.5.23-tp8") == theirs
    assert calls(tmp_path) == []


@pytest.mark.parametrize("given", [{"BUMP_OLD": "/opt/mine"}, {"R1PERF_TOPOLOGY": "../tp8"}], ids=str)
def test_what_was_gated_must_have_a_name(
    env: dict[str, str], checkout: Path, tmp_path: Path, given: dict[str, str]
) -> None:
    done = call({**env, **given}, checkout, SCRIPTS / "propose.sh", "0.5.23", tmp_path)
    assert (done.returncode, calls(tmp_path)) == (2, [])
    assert f"propose.sh: {next(iter(given))} is '{next(iter(given.values()))}'" in done.stderr


def test_the_workflow_proposes_what_it_gated() -> None:
    jobs = yaml.safe_load((REPO / ".github/workflows/sglang-bump.yml").read_text(encoding="utf-8"))["jobs"]
    told = jobs["propose"]["steps"][-1]["env"]
    for name in ("BUMP_OLD", "BUMP_NEW", "R1PERF_TOPOLOGY"):
        assert told[name] == jobs["gate"]["env"][name]
    asked = next(step for step in jobs["release"]["steps"] if step.get("id") == "due")
    assert asked["env"]["R1PERF_TOPOLOGY"] == jobs["gate"]["env"]["R1PERF_TOPOLOGY"]


def test_a_bump_without_a_report_is_a_draft(env: dict[str, str], checkout: Path, tmp_path: Path) -> None:
    done = call(env, checkout, SCRIPTS / "propose.sh", "0.5.23", tmp_path / "nothing")
    assert done.returncode == 0, done.stderr
    assert "--draft" in calls(tmp_path)[-1]
    assert "SGLang 0.5.20 -> 0.5.23 on tp8: broken" in calls(tmp_path)[-1]


@pytest.fixture
def index(env: dict[str, str], tmp_path: Path) -> Path:
    """A folder of wheels in the index's place; a pre-release is the newest."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("0.5.9", "0.5.20", "0.5.23", "0.6.0rc1"):
        with zipfile.ZipFile(wheels / f"sglang-{version}-py3-none-any.whl", "w") as wheel:
            folder = f"sglang-{version}.dist-info"
            wheel.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
            wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{folder}/RECORD", "")
    env.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_CONFIG_FILE="/dev/null", BUMP_PYTHON=sys.executable)
    return wheels


def due(env: dict[str, str], folder: Path, pinned: str) -> subprocess.CompletedProcess[str]:
    (folder / "pin").write_text(pinned)
    return call({**env, "SGLANG_PIN": str(folder / "pin")}, folder, SCRIPTS / "bump_due.sh")


@pytest.mark.usefixtures("index")
def test_the_newest_release_is_due_once(env: dict[str, str], tmp_path: Path) -> None:
    need_jq()
    pulls(tmp_path, forks=40)  # of no concern
    env["GITHUB_OUTPUT"] = str(tmp_path / "output")
    assert due(env, tmp_path, "0.5.20\n").stdout == "old=0.5.20\nnew=0.5.23\n"
    assert (tmp_path / "output").read_text() == "old=0.5.20\nnew=0.5.23\n"
    pulls(tmp_path, 17, forks=40)
    assert due(env, tmp_path, "0.5.20\n").stdout == "old=0.5.20\nnew=\n"
    assert due({**env, "R1PERF_TOPOLOGY": "pp2"}, tmp_path, "0.5.20\n").stdout == "old=0.5.20\nnew=0.5.23\n"
    pulls(tmp_path)
    assert due(env, tmp_path, "0.5.23\n").stdout == "old=0.5.23\nnew=\n"


def test_a_wanted_release_must_be_one(env: dict[str, str], tmp_path: Path) -> None:
    assert due({**env, "BUMP_NEW": "0.5.21"}, tmp_path, "0.5.20\n").stdout == "old=0.5.20\nnew=0.5.21\n"
    for wrong in ("main", "0.5.21\nnew=x", "0.5.21;reboot", "../../etc"):
        done = due({**env, "BUMP_NEW": wrong}, tmp_path, "0.5.20\n")
        assert (done.returncode, done.stdout) == (2, "")


def test_an_index_that_does_not_answer_is_no_release(env: dict[str, str], index: Path, tmp_path: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    done = due(env, tmp_path, "0.5.20\n")
    assert done.returncode == 1
    assert "new_release.py: pip does not say which sglang is the newest" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("index")
def test_an_environment_is_made_and_one_that_was_interrupted_again(env: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "sglang-0.5.20"
    place.mkdir()
    (place / "half").touch()
    (tmp_path / "sglang-0.5.20.being-made").touch()
    env["SGLANG_PYTHON"] = sys.executable
    done = call(env, tmp_path, SCRIPTS / "sglang_env.sh", "0.5.20", place)
    assert done.returncode == 0, done.stderr
    assert len(list(place.glob("lib/python*/site-packages/sglang-0.5.20.dist-info"))) == 1
    assert not (place / "half").exists()
    assert not (tmp_path / "sglang-0.5.20.being-made").exists()
    assert call(env, tmp_path, SCRIPTS / "sglang_env.sh", "0.5.20", place).stdout == f"{place} is there\n"
    assert call(env, tmp_path, SCRIPTS / "sglang_env.sh", "0.5;20", tmp_path / "x").returncode == 2
