"""The commands that launchers build, and what they refuse: nothing is started. `tests/cluster` runs them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import container, slurm, ssh
from pytest_r1perf.launch.launcher import Launcher, Node, RankCommand
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.launch.mark import new_mark
from pytest_r1perf.launch.pbs import PbsAllocation, PbsLauncher, job_hosts, job_script
from pytest_r1perf.launch.slurm import SlurmAllocation, SlurmLauncher
from pytest_r1perf.launch.ssh import SshLauncher
from pytest_r1perf.launchsettings import ContainerSettings

ARGV = ["/opt/py", "-c", "print('a b')", ""]
WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=6)


def test_all_of_them_are_launchers(tmp_path: Path) -> None:
    launchers: list[Launcher] = [
        LocalLauncher(),
        SshLauncher(("a",)),
        SlurmLauncher("s", tmp_path),
        PbsLauncher(),
    ]
    assert [one.name for one in launchers] == ["local", "ssh", "slurm", "pbs"]


def test_local_ranks_are_all_here() -> None:
    with LocalLauncher().allocate(2, print) as allocation:
        assert allocation.nodes == (Node(0, "127.0.0.1"), Node(1, "127.0.0.1"))
        assert not allocation.remote
        assert allocation.connect(allocation.nodes[1], ARGV) == tuple(ARGV)


# -- ssh -------------------------------------------------------------------------------------------------------


@given(WORDS)
def test_the_remote_shell_gets_one_word_that_it_takes_apart_again(words: list[str]) -> None:
    with SshLauncher(("node1",)).allocate(1, print) as allocation:
        *_, host, text = allocation.connect(allocation.nodes[0], ["/opt/py", *words])
    assert host == "node1"
    assert shlex.split(text) == ["exec", "/opt/py", *words]


@given(WORDS)
def test_sh_itself_takes_it_apart(words: list[str]) -> None:
    with SshLauncher(("node1",)).allocate(1, print) as allocation:
        tell = "import json, sys; print(json.dumps(sys.argv[1:]))"
        text = allocation.connect(allocation.nodes[0], [sys.executable, "-S", "-c", tell, *words])[-1]
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True, env={"PYTHONUTF8": "1"})
    assert json.loads(done.stdout) == words


def test_the_users_ssh_options_come_before_our_defaults_and_after_what_must_be() -> None:
    with SshLauncher(("node1",), ("-p", "2222", "-o", "ConnectTimeout=5")).allocate(1, print) as allocation:
        argv = allocation.connect(allocation.nodes[0], ["true"])
    options = [argv[i + 1] for i, word in enumerate(argv) if word == "-o"]
    # ssh takes the first of two values.
    assert options.index("BatchMode=yes") < options.index("ConnectTimeout=5") < options.index("ConnectTimeout=20")
    assert any(option.startswith("ServerAliveInterval=") for option in options)
    assert argv[-3] == "-T"
    assert "-tt" not in argv


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "", "a b", "a\nb"])
def test_a_host_that_ssh_would_misread_is_refused(host: str) -> None:
    with pytest.raises(R1PerfError, match="no host's name"):
        SshLauncher(("node1", host))


@pytest.mark.parametrize("option", ["-t", "-tt", "-n", "-f", "-N", "-W"])
def test_an_ssh_option_that_takes_a_stream_away_is_refused(option: str) -> None:
    with pytest.raises(R1PerfError, match=option):
        SshLauncher(("node1",), (option,))


def test_more_nodes_than_hosts() -> None:
    with pytest.raises(R1PerfError, match=r"2 nodes are needed .* lists 1 hosts \(node1\)"):
        SshLauncher(("node1",)).allocate(2, print).__enter__()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        # OpenSSH's and shells' own words; tests/cluster/test_ssh.py has those that a lab can bring about.
        ("ssh: connect to host node1 port 22: No route to host", "cannot be reached"),
        ("ssh: connect to host node1 port 22: Connection timed out", "cannot be reached"),
        ("Timeout, server node1 not responding.", "broke"),
        ("client_loop: send disconnect: Broken pipe", "broke"),
        ("Connection to node1 closed by remote host.", "broke"),
        ("bash: line 1: exec: /opt/py: not found", "Python"),
        ("zsh:1: no such file or directory: /opt/py", "Python"),
        ("/opt/py: Command not found.", "Python"),
        ("Received disconnect: Too many authentication failures", "keys"),
    ],
)
def test_what_ssh_says_is_understood(said: str, cause: str) -> None:
    sentence = ssh.diagnose(f"Warning: something\n{said}\n", "node1")
    assert sentence is not None
    assert cause in sentence
    assert "node1" in sentence


def test_what_the_program_says_is_not_taken_for_sshs() -> None:
    said = "FileNotFoundError: [Errno 2] No such file or directory: '/model'\nPermissionError: Permission denied: 'x'"
    assert ssh.diagnose(said, "node1") is None


# -- Slurm -----------------------------------------------------------------------------------------------------


def test_a_step_is_one_task_on_one_node_with_all_its_cpus() -> None:
    allocation = SlurmAllocation("7", (Node(0, "n1"), Node(1, "n2")), ("--gres=gpu:8",), ours=True)
    argv = allocation.connect(allocation.nodes[1], ARGV)
    assert argv[0] == "srun"
    assert argv[-5:] == ("--gres=gpu:8", *ARGV)
    assert {"--jobid=7", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none"} <= set(argv)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        # Slurm 22.05.8, recorded.
        (
            "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
            "slurmstepd-node2: error: *** STEP 6.0 ON node2 CANCELLED AT 2026-11-30T14:45:08 DUE TO TIME LIMIT ***\n"
            "srun: error: node2: task 0: Terminated\n",
            "ran out of time",
        ),
        (
            "slurmstepd-node1: error: *** STEP 5.0 ON node1 CANCELLED AT 2026-11-30T14:44:03 DUE TO PREEMPTION ***\n",
            "preempted",
        ),
        ("srun: error: Node failure on node1\n", "failed"),
        ("slurmstepd-node1: error: execve(): /opt/py: No such file or directory\n", "Python"),
        ("srun: error: Slurm job 2 has expired\n", "is over"),
        (
            "srun: error: Unable to create step for job 1: Requested node configuration is not available\n",
            "cannot start a step",
        ),
        ("slurmstepd-n: error: *** STEP 2.4 ON node1 CANCELLED AT 2026-11-30T14:43:32 ***\n", "cancelled the step"),
    ],
)
def test_what_srun_says_is_understood_when_slurm_knows_the_job_no_more(
    said: str, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = SlurmAllocation("7", (Node(0, "node1"),), (), ours=True).diagnose({0: said})
    assert sentence is not None
    assert cause in sentence


def test_an_srun_that_we_signalled_is_no_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = (
        "srun: forcing job termination\nsrun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
        "slurmstepd-node1: error: *** STEP 2.0 ON node1 CANCELLED AT 2026-11-30T14:43:14 ***\n"
    )
    assert SlurmAllocation("7", (Node(0, "node1"),), (), ours=True).diagnose({0: said}) is None


def test_reasons_that_wait_for_ever_are_slurms_names() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", reason) for reason in slurm._HOPELESS)


# -- PBS -------------------------------------------------------------------------------------------------------


def test_hosts_of_a_job_are_those_of_the_node_file_each_once(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n2\nn2\nn1\nn2\nn3\n")
    assert job_hosts({"PBS_NODEFILE": str(nodes)}) == ("n2", "n1", "n3")


def test_pbs_outside_a_job_says_to_submit_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    with pytest.raises(R1PerfError, match=r"no PBS job .*submit pytest as one"):
        PbsLauncher().allocate(1, print).__enter__()
    with pytest.raises(R1PerfError, match="cannot read"):
        job_hosts({"PBS_NODEFILE": str(tmp_path / "none")})
    (tmp_path / "empty").touch()
    with pytest.raises(R1PerfError, match="is empty"):
        job_hosts({"PBS_NODEFILE": str(tmp_path / "empty")})
    (tmp_path / "one").write_text("n1\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "one"))
    with pytest.raises(R1PerfError, match=r"2 nodes are needed and this PBS job has 1 \(n1\)"):
        PbsLauncher().allocate(2, print).__enter__()


def test_a_job_script_asks_for_whole_nodes_and_runs_the_command(tmp_path: Path) -> None:
    tell = "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))"
    words = ["a b", "$HOME", "`id`", "it's", "é", ""]
    text = job_script(
        [sys.executable, "-c", tell, *words], nodes=2, ncpus=96, ngpus=8, walltime_s=3725, queue="gpu", project="r1"
    )
    directives = re.findall(r"(?m)^#PBS (.*)$", text)
    assert directives == [
        "-N r1perf",
        "-l select=2:ncpus=96:ngpus=8:mpiprocs=1",
        "-l place=scatter:excl",
        "-l walltime=01:02:05",
        "-j oe",
        "-q gpu",
        "-P r1",
    ]
    assert text.startswith("#!/bin/sh\n#PBS")
    work = tmp_path / "work dir"
    work.mkdir()
    script = tmp_path / "job.sh"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["sh", script], capture_output=True, check=True, env={"PBS_O_WORKDIR": str(work), "PYTHONUTF8": "1"}
    )
    assert json.loads(done.stdout) == [str(work), *words]
    assert subprocess.run(["sh", script], capture_output=True, check=False, env={}).returncode != 0


def test_a_job_script_without_gpus_asks_for_none() -> None:
    assert "ngpus" not in job_script(["true"], nodes=1, ncpus=1, ngpus=0, walltime_s=60)


@pytest.mark.parametrize("value", ["a b", "a\n#PBS -q other", "", "-x", "$(id)"])
def test_what_a_directive_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="does not fit on a #PBS line"):
        job_script(["true"], nodes=1, ncpus=1, ngpus=0, walltime_s=60, queue=value)


def test_mpiexec_gets_no_argument_that_it_would_take_for_its_own() -> None:
    node = Node(0, "n1")
    with pytest.raises(ValueError, match="':'"):
        PbsAllocation((node,), ()).connect(node, [":"])
    argv = PbsAllocation((node,), ()).connect(node, ARGV)
    assert argv[0] == "mpiexec"
    assert argv[-len(ARGV) :] == tuple(ARGV)


# -- containers ------------------------------------------------------------------------------------------------


def wrapped(command: RankCommand | None = None, engine: str = "docker", **changes: Any) -> RankCommand:
    command = command or RankCommand(1, ("python3", "-m", "x", "--flag"), {"A": "1", "PATH": "/p"}, "/data/run")
    settings = ContainerSettings(
        image="org/sglang:1",
        options=changes.pop("options", ()),
        mounts=changes.pop("mounts", ()),
    )
    return container.wrap(command, settings, engine=engine, mark=new_mark("test"), **changes)


def values(argv: tuple[str, ...], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_the_program_is_the_entry_point_and_its_arguments_follow_the_image() -> None:
    argv = wrapped(options=("--device", "/dev/infiniband")).argv
    assert argv[:3] == ("docker", "run", "--rm")
    assert argv[-8:] == ("--device", "/dev/infiniband", "--entrypoint", "python3", "org/sglang:1", "-m", "x", "--flag")
    assert (values(argv, "--network"), values(argv, "--ipc"), values(argv, "-w")) == (["host"], ["host"], ["/data/run"])
    assert values(argv, "--pull") == ["never"]
    assert not {"-d", "--privileged", "--shm-size"} & set(argv)


def test_values_of_variables_are_not_on_the_command_line() -> None:
    secret = "hf_\n'secret'"
    env = {
        "HF_TOKEN": secret,
        "NCCL_DEBUG": "INFO",
        "PATH": "/p",
        "HOME": "/h",
        "BASH_FUNC_x%%": "()",
        "SLURM_JOB_ID": "3",
    }
    command = wrapped(RankCommand(0, ("python3",), env, "/w"))
    assert not any(secret in word for word in command.argv)
    assert {"HF_TOKEN", "NCCL_DEBUG", "R1PERF_RUN_ID", "SPT_NOENV"} == set(values(command.argv, "-e"))
    assert command.env == env
    (closer,) = command.closers
    assert secret not in str(closer)


def test_only_named_variables_when_they_are_named() -> None:
    assert values(wrapped(names=["PATH"]).argv, "-e") == ["PATH", "R1PERF_RUN_ID", "SPT_NOENV"]


@pytest.mark.parametrize(
    ("engine", "gpus", "words"),
    [
        ("docker", ("GPU-a", "GPU-b"), ["--gpus", '"device=GPU-a,GPU-b"']),
        ("docker", None, ["--gpus", "all"]),
        ("docker", (), []),
        (
            "/usr/bin/podman",
            ("GPU-a", "GPU-b"),
            ["--device", "nvidia.com/gpu=GPU-a", "--device", "nvidia.com/gpu=GPU-b"],
        ),
        ("podman", None, ["--device", "nvidia.com/gpu=all"]),
    ],
)
def test_gpus(engine: str, gpus: tuple[str, ...] | None, words: list[str]) -> None:
    argv = wrapped(engine=engine, gpus=gpus).argv
    found = [(word, argv[i + 1]) for i, word in enumerate(argv) if word in ("--gpus", "--device")]
    assert [word for pair in found for word in pair] == words
    assert ("--ulimit" in argv) == (gpus != ())


def test_every_run_and_rank_has_a_name_of_its_own_and_a_closer_for_it() -> None:
    commands = [wrapped(), wrapped(), wrapped(RankCommand(0, ("python3",), {}, "/w"))]
    names = [values(command.argv, "--name")[0] for command in commands]
    assert len(set(names)) == 3
    for name, command in zip(names, commands, strict=True):
        assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name)
        assert command.closers[-1].argv == ("docker", "rm", "-f", name)


def test_paths_that_a_mount_can_express() -> None:
    argv = wrapped(read_only=["/m:odel x"], mounts=("/a:/b:ro", "/c:/d")).argv
    assert values(argv, "--mount") == [
        "type=bind,source=/m:odel x,target=/m:odel x,readonly",
        "type=bind,source=/data/run,target=/data/run",
        "type=bind,source=/a,target=/b,readonly",
        "type=bind,source=/c,target=/d",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"read_only": ["/a,b"]}, "comma"),
        ({"read_only": ['/a"b']}, "comma"),
        ({"read_only": ["model"]}, "from / on"),
        ({"mounts": ("/a",)}, "SOURCE:TARGET"),
        ({"mounts": ("/a:/b:z",)}, "SOURCE:TARGET"),
        ({"options": ("-d",)}, "keep us from ending"),
        ({"options": ("--name=x",)}, "keep us from ending"),
    ],
)
def test_what_an_engine_cannot_express_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(R1PerfError, match=words):
        wrapped(**changes)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(R1PerfError, match="not valid UTF-8"):
        wrapped(RankCommand(0, ("python3", "\udcff"), {}, "/w"))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            'docker: Error response from daemon: No such image: org/sglang:1.\nSee "docker run --help".',
            "pull it there first",
        ),
        (
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "start it",
        ),
        (
            "docker: permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "group",
        ),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "toolkit",
        ),
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "toolkit"),
        (
            'docker: Error response from daemon: Conflict. The container name "/r1perf-x" is already in use by',
            "still there",
        ),
    ],
)
def test_what_an_engine_says_is_understood(said: str, cause: str) -> None:
    assert cause in str(container.diagnose(said, "org/sglang:1"))


def test_what_the_program_in_a_container_says_is_not_taken_for_the_engines() -> None:
    said = "ValueError: image not known\nno space left on device\nOSError: no such image"
    assert container.diagnose(said, "i") is None


def test_the_first_engine_that_is_installed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(R1PerfError, match="no docker or podman is installed"):
        container.find_engine(ContainerSettings(image="i"))
    for name in ("podman", "docker"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
        assert container.find_engine(ContainerSettings(image="i")) == name
    assert container.find_engine(ContainerSettings(image="i", engine="podman")) == "podman"
