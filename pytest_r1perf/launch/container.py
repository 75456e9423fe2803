"""A command in a container, run by docker or podman on the node where the command would have run.

A wrapper, not a launcher: it composes with all of them, since the client that it puts before the command is
itself a command. The engine's own client stays in the foreground, so output, exit code and end are the
container's; when the client is killed the container lives on (measured with podman 4.3), and a closer with
its name ends it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.launcher import Closer, RankCommand
from pytest_r1perf.launch.mark import RunMark, marked_environment
from pytest_r1perf.launchsettings import ENGINES, ContainerSettings

ULIMITS = ("memlock=-1:-1", "stack=67108864:67108864")
"""As NVIDIA's containers ask for when they start: pinned host memory and RDMA need memlock."""

_GONE = r"no such container|no container with|removal of container .* is already in progress"

# These describe the host, or the program that started us, and are wrong in another file system.
_HOST_ONLY = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|_|HOSTNAME|MAIL|TMPDIR|TEMP|TMP|TERM|COLUMNS|LINES|DISPLAY"
    r"|LS_COLORS|MANPATH|INFOPATH|LD_.*|PYTHON(?:PATH|HOME|STARTUP|USERBASE|PYCACHEPREFIX)|VIRTUAL_ENV.*|CONDA.*|_CE_.*"
    r"|PYENV_.*|XDG_.*|DBUS_.*|SSH_.*|SUDO_.*|DOCKER_.*|CONTAINER_.*|CONTAINERS_.*|CUDA_HOME|CUDA_PATH"
    r"|(?:__)?LMOD.*|_?MODULE.*|LOADEDMODULES|SLURM.*|SALLOC_.*|SRUN_.*|SBATCH_.*|PBS_.*|OMPI_.*|PMI_.*|PMIX_.*|HYDI?_.*"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the client needs to find its daemon or storage again.
_CLIENT_NEEDS = re.compile(
    r"PATH|HOME|XDG_RUNTIME_DIR|DOCKER_(?:HOST|CONTEXT|CONFIG|CERT_PATH|TLS_VERIFY)|CONTAINER_HOST"
)


def find_engine(settings: ContainerSettings) -> str:
    """The engine's program on this host: as set, else docker, else podman. Raises ``LaunchError``."""
    wanted = (settings.engine,) if settings.engine else ENGINES
    for name in wanted:
        if shutil.which(name):
            return name
    raise LaunchError(
        f"no {' or '.join(wanted)} is installed here to run the image {settings.image}; install one, or set `engine`"
    )


def container_name(mark: RunMark, rank: int) -> str:
    """The one container of this rank of this run, anywhere."""
    return f"r1perf-{mark}-rank{rank}"


def wrap(
    command: RankCommand,
    settings: ContainerSettings,
    *,
    engine: str,
    mark: RunMark,
    gpus: Sequence[str] | None = None,
    read_only: Sequence[str] = (),
    names: Collection[str] | None = None,
    ulimits: Sequence[str] = ULIMITS,
) -> RankCommand:
    """``command`` in a new container of ``settings.image`` that is gone when it ends.

    ``command.argv[0]`` is a program in the image. ``gpus``: UUIDs, ``()`` for none, ``None`` for all.
    ``read_only``: directories or files (model, data set) that are seen at the same path; ``command.cwd`` is
    too, and may be written. ``names``: which variables of ``command.env`` the container gets (default: all
    but those that describe the host, such as ``PATH`` and ``HOME``); only their names are on the command line.
    ``ulimits`` count where there are GPUs. Network and shared memory are the host's: ranks and their workers
    meet there. An image is never pulled here: that may take an hour, and another one the next day.

    Raises ``LaunchError`` for an option or a path that cannot be.
    """
    if settings.image is None:
        raise LaunchError("no container image is named; set `image` in the platform's `launch: container`")
    _refuse(settings.options)
    _refuse_bytes(command)
    name = container_name(mark, command.rank)
    mounts = [_mount(path, path, read_only=True) for path in dict.fromkeys(read_only)]
    mounts.append(_mount(command.cwd, command.cwd, read_only=False))
    mounts.extend(_user_mount(text) for text in settings.mounts)
    passed = [*(_passed(command.env) if names is None else names), *marked_environment(mark)]
    argv = (
        # By the time that the closer comes SIGTERM was sent and waited for; podman would wait 10 s once more.
        *(
            engine,
            "run",
            "--rm",
            "--name",
            name,
            "--stop-timeout",
            "1",
            "--pull",
            "never",
            "--network",
            "host",
            "--ipc",
            "host",
        ),
        *_gpu_options(engine, gpus),
        *(word for limit in (ulimits if gpus != () else ()) for word in ("--ulimit", limit)),
        *(word for mount in mounts for word in ("--mount", mount)),
        *("-w", command.cwd),
        *(word for variable in dict.fromkeys(passed) for word in ("-e", variable)),
        *settings.options,
        *("--entrypoint", command.argv[0], settings.image, *command.argv[1:]),
    )
    client = {variable: value for variable, value in command.env.items() if _CLIENT_NEEDS.fullmatch(variable)}
    closer = Closer((engine, "rm", "-f", name), client, _GONE)
    return replace(command, argv=argv, closers=(*command.closers, closer))


def _refuse(options: Sequence[str]) -> None:
    for option in options:
        if re.match(r"(?:-d|--detach|--name|--rm|--cidfile|--restart)(?:=|$)", option):
            raise LaunchError(
                f"the container option {option!r} would keep us from ending the container; take it out of `options`"
            )


def _refuse_bytes(command: RankCommand) -> None:
    for text in (*command.argv, command.cwd):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise LaunchError(
                f"the argument {text!r} is not valid UTF-8, and a container gets no other; rename the file"
            ) from None


def _passed(env: Mapping[str, str]) -> list[str]:
    return [name for name in env if _PLAIN_NAME.fullmatch(name) and not _HOST_ONLY.fullmatch(name)]


def _gpu_options(engine: str, gpus: Sequence[str] | None) -> tuple[str, ...]:
    if gpus is not None and not gpus:
        return ()
    if "podman" in PurePosixPath(engine).name:
        # Names of the container device interface, which `nvidia-ctk cdi generate` writes.
        wanted = gpus if gpus is not None else ("all",)
        return tuple(word for gpu in wanted for word in ("--device", f"nvidia.com/gpu={gpu}"))
    # The quotes belong to the value: docker reads it as CSV, where a comma would begin another key.
    return ("--gpus", "all" if gpus is None else f'"device={",".join(gpus)}"')


def _user_mount(text: str) -> str:
    parts = text.split(":")
    if len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw")):
        return _mount(parts[0], parts[1], read_only=parts[2:] == ["ro"])
    raise LaunchError(f"the mount {text!r} is not SOURCE:TARGET or SOURCE:TARGET:ro; correct `mounts`")


def _mount(source: str, target: str, *, read_only: bool) -> str:
    """As ``--mount`` takes it. ``-v`` would split at colons, and make a source that is missing."""
    for path in (source, target):
        if not PurePosixPath(path).is_absolute():
            raise LaunchError(f"the path {path!r} cannot be mounted in a container: give it from / on")
        if re.search(r'[,"\n\r]', path):
            raise LaunchError(
                f"the path {path!r} cannot be mounted in a container: docker and podman take no comma, quote or "
                "newline there; rename it or make a link"
            )
    return f"type=bind,source={source},target={target}" + (",readonly" if read_only else "")


_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"permission denied while trying to connect to the docker|dial unix .*: permission denied",
        "this user may not use the container engine; add them to the `docker` group, or use podman",
    ),
    (
        r"cannot connect to the (?:docker daemon|podman socket)|is the docker daemon running"
        r"|unable to connect to podman|failed to connect to the docker api",
        "the container engine's daemon does not run; start it, or correct DOCKER_HOST",
    ),
    (
        r"no such image|image not known|unable to find image|image .* not found|does not exist locally",
        "the image {image} is not on this host, and is not pulled during a measurement; pull it there first",
    ),
    (
        r"could not select device driver|unresolvable cdi devices|nvidia-container-cli"
        r"|unknown or invalid runtime name: nvidia",
        "the container engine cannot give GPUs; install the NVIDIA container toolkit (for podman, run nvidia-ctk cdi "
        "generate)",
    ),
    (
        r"exec: \"?.*?\"?: (?:executable file not found|stat .*no such file|no such file)|executable file .* not found",
        "the program to be run is not in the image {image}; set `python` in `launch: container` to its Python",
    ),
    (
        r"bind source path does not exist|statfs .*: no such file or directory|invalid mount config",
        "a path that the container needs is not on this host; is the model there, and are `mounts` right?",
    ),
    (
        r"is already in use by|name .* is in use",
        "a container of this run is still there; `docker ps -a` (or podman) shows it, under r1perf-",
    ),
    (
        r"error setting rlimit|ulimit .* operation not permitted|rlimit.*operation not permitted",
        "the container engine may not raise a limit here; give a lower --ulimit in `launch: container: options`",
    ),
    (
        r"no space left on device",
        "the container engine has no room for a container; free some space where it keeps its images",
    ),
)


def diagnose(said: str, image: str) -> str | None:
    """Why no container came up, judging by what the engine's client wrote; ``None`` when it did not say."""
    # Only the client's own words: "docker: ..." or "Error: ..."; a program in the container may say anything.
    words = "\n".join(
        line
        for line in said.splitlines()
        if re.match(r"\s*(?:docker|podman|error|time=|\S*unable to find image)", line, re.I)
    )
    for pattern, sentence in _REASONS:
        if re.search(pattern, words, re.IGNORECASE):
            return sentence.format(image=image)
    return None
