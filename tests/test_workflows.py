"""The workflows' rules: a careless edit that lets strangers onto the GPU host, or a text into a shell, fails here."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).parents[1]
WORKFLOWS = REPO / ".github" / "workflows"
Workflow = dict[str, Any]

# All that may start a workflow with a job on our own machines: neither can be caused from a fork or by a pull request.
_TRUSTED = {"schedule", "workflow_dispatch"}
_DEFAULT_BRANCH = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
_PIN = re.compile(r"uses: +[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
_WRITES = {
    ("nightly.yml", "history"): {"contents"},
    ("nightly.yml", "tell"): {"issues"},
    ("sglang-bump.yml", "propose"): {"contents", "pull-requests"},
}


def read(path: Path) -> Workflow:
    workflow: Workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    workflow["on"] = workflow.pop(True)  # type: ignore[call-overload]  # YAML 1.1 reads the key `on` as true
    return workflow


def triggers(workflow: Workflow) -> set[str]:
    on = workflow["on"]
    return {on} if isinstance(on, str) else set(on)


def labels(job: Workflow) -> list[str]:
    runs_on = job.get("runs-on", "self-hosted")  # a called workflow's job could be anywhere
    return [runs_on] if isinstance(runs_on, str) else list(runs_on)


def own_machine(job: Workflow) -> bool:
    return not all(re.fullmatch(r"ubuntu-\d\d\.04", label) for label in labels(job))


def faults(name: str, workflow: Workflow) -> Iterator[str]:
    """Every rule that a workflow breaks, as a sentence."""
    if workflow.get("permissions") != {}:
        yield f"{name}: the workflow itself has permissions"
    if "pull_request_target" in triggers(workflow) or "workflow_run" in triggers(workflow):
        yield f"{name}: is started with rights by what strangers do"
    for key, job in workflow["jobs"].items():
        where = f"{name}: {key}"
        permissions = job.get("permissions")
        if not isinstance(permissions, dict):
            yield f"{where}: states no permissions"
            permissions = {}
        if {scope for scope, level in permissions.items() if level != "read"} - _WRITES.get((name, key), set()):
            yield f"{where}: may write what it need not"
        if "timeout-minutes" not in job:
            yield f"{where}: has no timeout"
        if own_machine(job):
            yield from _faults_on_own_machine(where, workflow, job)
        for step in job["steps"]:
            yield from _faults_of_step(where, step)


def _faults_on_own_machine(where: str, workflow: Workflow, job: Workflow) -> Iterator[str]:
    if not triggers(workflow) <= _TRUSTED:
        yield f"{where}: is on our own machine, and {sorted(triggers(workflow) - _TRUSTED)} start it"
    if labels(job) != ["self-hosted", "gpu", "h200"]:
        yield f"{where}: runs on {labels(job)}"
    if not str(job.get("if", "")).endswith(_DEFAULT_BRANCH):
        yield f"{where}: runs for other branches than the default one"
    if job.get("environment") != "h200":
        yield f"{where}: is not protected by the environment h200"
    if job.get("permissions") != {"contents": "read"}:
        yield f"{where}: has more than the right to read"
    if "secrets." in str(job) or "github.token" in str(job):
        yield f"{where}: is given a secret"
    concurrency = workflow.get("concurrency")
    if concurrency != {"group": "r1perf-h200", "cancel-in-progress": False, "queue": "max"}:
        yield f"{where}: a measurement could be cancelled, or run beside another"


def _faults_of_step(where: str, step: Workflow) -> Iterator[str]:
    told = f"{where}: {step.get('name', step)}"
    if "${{" in str(step.get("run", "")):
        yield f"{told}: an expression in a shell's text"
    if "cache" in str(step.get("uses", "")) or "cache" in step.get("with", {}):
        yield f"{told}: keeps a cache"
    if str(step.get("uses", "")).startswith("actions/checkout@"):
        if step.get("with", {}).get("persist-credentials") is not False:
            yield f"{told}: leaves the token on the disk"
        if "ref" in step.get("with", {}):
            yield f"{told}: checks out another ref"
    if str(step.get("uses", "")).startswith("actions/upload-artifact@"):
        if "retention-days" not in step["with"]:
            yield f"{told}: no retention"
        if own := step["with"]["path"]:
            for line in own.split():
                if line.startswith(("/", "~", ".")):
                    yield f"{told}: uploads {line}"


ALL = sorted(WORKFLOWS.glob("*.y*ml"))


def test_the_three_workflows_are_there() -> None:
    assert [path.name for path in ALL] == ["ci.yml", "nightly.yml", "sglang-bump.yml"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_rules(path: Path) -> None:
    assert list(faults(path.name, read(path))) == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text(encoding="utf-8").splitlines()]
    used = [line for line in lines if line.startswith("uses:")]
    assert used
    assert [line for line in used if not _PIN.fullmatch(line)] == []


def test_an_action_has_one_pin() -> None:
    pins = re.findall(r"uses: (\S+)@(\S+)", "".join(path.read_text(encoding="utf-8") for path in ALL))
    assert len(set(pins)) == len({action for action, _ in pins})


def _measure(workflow: Workflow) -> Workflow:
    job: Workflow = workflow["jobs"]["measure"]
    return job


def _step(workflow: Workflow, name: str) -> Workflow:
    (step,) = (step for step in _measure(workflow)["steps"] if step["name"] == name)
    found: Workflow = step
    return found


CARELESS: list[tuple[str, Callable[[Workflow], object]]] = [
    ("start it", lambda workflow: workflow["on"].update(pull_request=None)),
    ("start it", lambda workflow: workflow["on"].update(issue_comment=None)),
    ("with rights by what strangers do", lambda workflow: workflow["on"].update(pull_request_target=None)),
    ("the workflow itself has permissions", lambda workflow: workflow.update(permissions="write-all")),
    ("states no permissions", lambda workflow: _measure(workflow).pop("permissions")),
    ("may write", lambda workflow: _measure(workflow)["permissions"].update(contents="write")),
    ("other branches", lambda workflow: _measure(workflow).pop("if")),
    ("other branches", lambda workflow: _measure(workflow).update({"if": f"{_DEFAULT_BRANCH} || true"})),
    ("not protected", lambda workflow: _measure(workflow).pop("environment")),
    ("runs on", lambda workflow: _measure(workflow).update({"runs-on": "self-hosted"})),
    ("no timeout", lambda workflow: _measure(workflow).pop("timeout-minutes")),
    ("cancelled", lambda workflow: workflow["concurrency"].update({"cancel-in-progress": True})),
    ("shell's text", lambda workflow: _step(workflow, "Night").update(run="scripts/nightly.sh ${{ inputs.budget }}")),
    ("on the disk", lambda workflow: _step(workflow, "Check out").pop("with")),
    ("another ref", lambda workflow: _step(workflow, "Check out")["with"].update(ref="${{ github.head_ref }}")),
    ("a cache", lambda workflow: _step(workflow, "Night").update(uses="actions/cache@0")),
    ("a secret", lambda workflow: _measure(workflow)["env"].update(KEY="${{ secrets.KEY }}")),
    ("no retention", lambda workflow: _step(workflow, "Keep reports, records and logs")["with"].pop("retention-days")),
]


@pytest.mark.parametrize(("sentence", "edit"), CARELESS, ids=[f"{n}-{told}" for n, (told, _) in enumerate(CARELESS)])
def test_a_careless_edit_is_found(sentence: str, edit: Callable[[Workflow], object]) -> None:
    workflow = copy.deepcopy(read(WORKFLOWS / "nightly.yml"))
    edit(workflow)
    assert [fault for fault in faults("nightly.yml", workflow) if sentence in fault]


@pytest.mark.parametrize("name", ["nightly.yml", "sglang-bump.yml"])
def test_what_a_run_left_is_kept_however_it_ended(name: str) -> None:
    for job in read(WORKFLOWS / name)["jobs"].values():
        if own_machine(job):
            last = job["steps"][-1]
            assert (last["if"], last["with"]["if-no-files-found"]) == ("always()", "error")
            assert last["with"]["path"].split() == [f"{job['env'][key]}/" for key in ("R1PERF_REPORTS", "R1PERF_OUT")]


def _minutes(text: str) -> int:
    return int(text[:-1]) * {"h": 60, "m": 1}[text[-1]]


@pytest.mark.parametrize("name", ["nightly.yml", "sglang-bump.yml"])
def test_the_script_ends_a_run_before_the_workflow_does(name: str) -> None:
    for job in read(WORKFLOWS / name)["jobs"].values():
        if own_machine(job):
            assert _minutes(job["env"]["R1PERF_LIMIT"]) + 60 <= job["timeout-minutes"]


def test_every_command_is_a_script_that_is_there() -> None:
    named = set()
    for path in ALL:
        for job in read(path)["jobs"].values():
            for step in job["steps"]:
                named |= set(re.findall(r"scripts/[\w.]+", step.get("run", "")))
    assert named >= {"scripts/nightly.sh", "scripts/bump.sh", "scripts/history.sh", "scripts/propose.sh"}
    for script in named:
        assert os.access(REPO / script, os.X_OK), script


@pytest.fixture(scope="module")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("there is no systemd-analyze here")
    return found


def test_the_units_are_what_systemd_understands(analyze: str, tmp_path: Path) -> None:
    for path in (REPO / "packaging").glob("r1perf-nightly.[st]*"):
        text = path.read_text(encoding="utf-8").replace("/opt/r1perf", str(REPO))  # the script must be there
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 2
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "r1perf" in line]
    assert ours == []


def test_nothing_survives_the_unit() -> None:
    unit = (REPO / "packaging" / "r1perf-nightly.service").read_text(encoding="utf-8").splitlines()
    assert {"KillMode=control-group", "SendSIGKILL=yes", "TimeoutStopSec=5min", "Type=oneshot"} <= set(unit)
    assert not any(line.startswith(("ExecStopPost", "Delegate=", "PrivateTmp=")) for line in unit)  # leases are in /tmp
