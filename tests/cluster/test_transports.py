"""What each launcher's local command does with arguments, standard streams and exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_r1perf.launch import container
from pytest_r1perf.launch.launcher import Allocation, RankCommand
from pytest_r1perf.launch.mark import new_mark
from pytest_r1perf.launchsettings import ContainerSettings
from tests.cluster.lab import PodmanLab

pytestmark = pytest.mark.cluster

ODD = [
    *(
        "a b",
        '"',
        "'",
        "$HOME",
        "`id`",
        "\\",
        "x\ny",
        "é☃",
        "",
        "*",
        "~",
        "!x",
        "-n",
        "--",
        "%h",
        "#c",
        "a;b",
        "&",
        "|",
    ),
    *("<x", "(", "[a]", "{a,b}", "a:b", "\t", "$(id)", "'\"'\"'"),
]
NO_TEXT = os.fsdecode(b"\xff")
TELL = "import json, os, sys; print(json.dumps([os.fsencode(item).hex() for item in sys.argv[1:]]))"
EVERYWHERE = pytest.mark.parametrize("allocation", ["local", "ssh", "slurm", "openmpi", "mpich"], indirect=True)


def run(
    argv: Sequence[str], given: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, input=given, capture_output=True, timeout=60, check=False, env=env)


def last_node(allocation: Allocation, *argv: str) -> tuple[str, ...]:
    return allocation.connect(allocation.nodes[-1], argv)


def texts(output: bytes) -> list[str]:
    return [os.fsdecode(bytes.fromhex(item)) for item in json.loads(output)]


@EVERYWHERE
def test_arguments_arrive_as_they_were(allocation: Allocation) -> None:
    done = run(last_node(allocation, sys.executable, "-c", TELL, *ODD, NO_TEXT))
    assert texts(done.stdout) == [*ODD, NO_TEXT], done.stderr


@EVERYWHERE
def test_streams_stay_apart_and_the_exit_code_is_the_commands(allocation: Allocation) -> None:
    script = "import os, sys; os.write(1, bytes(range(256)) * 4000); print('said', file=sys.stderr); sys.exit(7)"
    done = run(last_node(allocation, sys.executable, "-c", script))
    assert (done.returncode, done.stdout) == (7, bytes(range(256)) * 4000)
    assert b"said\n" in done.stderr


@pytest.mark.parametrize(
    ("allocation", "size"),
    # MPICH ends a job whose process does not read at once what it was sent: no more than a pipe holds.
    [("local", 3_000_000), ("ssh", 3_000_000), ("slurm", 3_000_000), ("openmpi", 3_000_000), ("mpich", 60_000)],
    indirect=["allocation"],
)
def test_standard_input_arrives_whole_though_nobody_reads_it_yet(allocation: Allocation, size: int) -> None:
    script = "import hashlib, sys, time; time.sleep(0.5); print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    given = os.urandom(size)
    done = run(last_node(allocation, sys.executable, "-c", script), given)
    assert done.stdout.decode().split() == [hashlib.sha256(given).hexdigest()], done.stderr


@EVERYWHERE
def test_the_end_of_input_is_seen_there_when_it_comes(allocation: Allocation) -> None:
    script = "import sys; print(sys.stdin.readline().strip(), flush=True); sys.stdin.read(); print('over', flush=True)"
    argv = last_node(allocation, sys.executable, "-c", script)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"hello\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.stdout.read() == b"over\n"


@EVERYWHERE
def test_all_cpus_of_the_node_may_be_used(allocation: Allocation) -> None:
    script = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    done = run(last_node(allocation, sys.executable, "-c", script))
    assert json.loads(done.stdout) == sorted(os.sched_getaffinity(0)), done.stderr


@pytest.mark.parametrize("allocation", ["ssh", "slurm", "openmpi", "mpich"], indirect=True)
def test_a_python_that_is_not_there_is_named_as_the_cause(allocation: Allocation) -> None:
    done = run(last_node(allocation, "/nowhere/bin/python3", "-c", "pass"))
    said = {allocation.nodes[-1].rank: done.stderr.decode()}
    sentence = allocation.diagnose(said)
    assert done.returncode != 0
    assert sentence is not None
    assert "the Python that shall run our agent is not on" in sentence, said
    assert allocation.nodes[-1].host in sentence


@EVERYWHERE
def test_a_command_that_fails_by_itself_is_no_launch_that_broke(allocation: Allocation) -> None:
    script = "import sys; sys.exit('python3: No such file or directory: the model')"
    done = run(last_node(allocation, sys.executable, "-c", script))
    assert done.returncode == 1
    assert allocation.diagnose({allocation.nodes[-1].rank: done.stderr.decode()}) is None


# -- containers ------------------------------------------------------------------------------------------------


def contained(lab: PodmanLab, cwd: Path, *args: str, env: dict[str, str] | None = None) -> RankCommand:
    settings = ContainerSettings(image=lab.image, mounts=tuple(f"{path}:{path}:ro" for path in lab.mounts))
    command = RankCommand(0, (lab.python, *args), {**os.environ, **(env or {})}, str(cwd))
    return container.wrap(command, settings, engine="podman", mark=new_mark("test"), gpus=())


def run_command(command: RankCommand) -> subprocess.CompletedProcess[bytes]:
    return run(command.argv, env=dict(command.env))


def test_a_container_gets_arguments_and_values_as_they_were(podman_lab: PodmanLab, tmp_path: Path) -> None:
    values = {"TEST_ODD": "a 'b'\n\"c\" $HOME, =\\é", "TEST_EMPTY": ""}
    script = TELL + "; print(json.dumps([os.environb[name].hex() for name in (b'TEST_ODD', b'TEST_EMPTY')]))"
    command = contained(podman_lab, tmp_path, "-c", script, *ODD, env=values)
    assert not any("$HOME, =" in item for item in command.argv)
    done = run_command(command)
    arguments, variables = done.stdout.splitlines()
    assert (texts(arguments), texts(variables)) == (ODD, list(values.values())), done.stderr


def test_a_container_has_its_own_path_and_home(podman_lab: PodmanLab, tmp_path: Path) -> None:
    script = "import json, os; print(json.dumps([os.environ['PATH'], os.environ['HOME'], os.environ['KEPT']]))"
    done = run_command(contained(podman_lab, tmp_path, "-c", script, env={"HOME": "/h", "PATH": "/p", "KEPT": "yes"}
                                 | {"PATH": os.environ["PATH"] + ":/only-here"}))  # fmt: skip
    path, home, kept = json.loads(done.stdout)
    assert ("/only-here" in path, home, kept) == (False, "/root", "yes")


def test_a_container_writes_into_the_working_directory_and_is_gone(podman_lab: PodmanLab, tmp_path: Path) -> None:
    folder = tmp_path / "with space: and colon"
    folder.mkdir()
    script = "import os, sys; open('made', 'w').write(os.getcwd()); print('said', file=sys.stderr); sys.exit(7)"
    done = run_command(contained(podman_lab, folder, "-c", script))
    assert (done.returncode, done.stderr) == (7, b"said\n")
    assert (folder / "made").read_text() == str(folder)
    assert podman_lab.containers() == []


def test_what_is_mounted_read_only_cannot_be_written(podman_lab: PodmanLab, tmp_path: Path) -> None:
    model, cwd = tmp_path / "model", tmp_path / "cwd"
    model.mkdir()
    cwd.mkdir()
    (model / "config.json").write_text("{}")
    settings = ContainerSettings(
        image=podman_lab.image, mounts=tuple(f"{path}:{path}:ro" for path in podman_lab.mounts)
    )
    script = f"import sys; print(open('{model}/config.json').read()); open('{model}/x', 'w')"
    command = RankCommand(0, (podman_lab.python, "-c", script), dict(os.environ), str(cwd))
    done = run_command(
        container.wrap(command, settings, engine="podman", mark=new_mark("test"), gpus=(), read_only=[str(model)])
    )
    assert done.stdout == b"{}\n"
    assert b"Read-only file system" in done.stderr


def test_the_closer_of_a_container_that_is_gone_is_content(podman_lab: PodmanLab, tmp_path: Path) -> None:
    command = contained(podman_lab, tmp_path, "-c", "pass")
    (closer,) = command.closers
    done = run(closer.argv)
    assert done.returncode == 0 or re.search(closer.gone, (done.stdout + done.stderr).decode(), re.IGNORECASE)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"image": "localhost/none:1"}, "pull it there first"),
        ({"mounts": ("/nowhere/at/all:/x:ro",)}, "a path that the container needs is not on this host"),
    ],
)
def test_a_container_that_cannot_start_says_why(
    podman_lab: PodmanLab, tmp_path: Path, change: dict[str, object], cause: str
) -> None:
    settings = ContainerSettings(**{"image": podman_lab.image, "mounts": (), **change})  # type: ignore[arg-type]
    command = RankCommand(0, ("/usr/bin/true",), dict(os.environ), str(tmp_path))
    done = run_command(container.wrap(command, settings, engine="podman", mark=new_mark("test"), gpus=()))
    assert done.returncode != 0
    sentence = container.diagnose(done.stderr.decode(), str(settings.image))
    assert sentence is not None
    assert cause in sentence, done.stderr


def test_a_program_that_is_not_in_the_image_is_named_as_the_cause(podman_lab: PodmanLab, tmp_path: Path) -> None:
    settings = ContainerSettings(image=podman_lab.image)
    command = RankCommand(0, ("/opt/none/python",), dict(os.environ), str(tmp_path))
    done = run_command(container.wrap(command, settings, engine="podman", mark=new_mark("test"), gpus=()))
    assert "the program to be run is not in the image" in str(container.diagnose(done.stderr.decode(), "x")), (
        done.stderr
    )
