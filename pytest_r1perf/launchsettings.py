"""A platform's ``launch:`` section: how its nodes are got and reached, and in which container SGLang runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_r1perf.childenv import secret_in
from pytest_r1perf.datafile import Section
from pytest_r1perf.errors import did_you_mean

AUTO = "auto"
LAUNCHERS = (AUTO, "local", "ssh", "slurm", "pbs")
ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The container that SGLang runs in.

    ``engine`` is ``docker`` or ``podman``, the first one installed when it is ``None``; ``options`` go to its
    ``run`` as they are; ``mounts`` are further ``SOURCE:TARGET[:ro]`` beside the model, the data set and the
    run's own folder. ``python`` is the interpreter in the image.
    """

    image: str | None = None
    engine: str | None = None
    python: str = "python3"
    options: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How the ranks of a run come to their nodes.

    ``by``: ``local`` (this host; several nodes are several ranks here), ``ssh`` (``hosts``), ``slurm`` (inside
    an allocation, or one is waited for), ``pbs`` (inside a job), or ``auto`` (:meth:`chosen`). ``options`` go to
    ``ssh``, ``salloc`` or ``mpiexec`` as they are, ``step_options`` to ``srun``. ``python`` starts our agent on
    another node (3.10 or newer; default: the one that has SGLang, or ``python3`` beside a container).
    ``dist_port`` fixes the rendezvous port (default: a free one is looked for on the head).
    """

    by: str = AUTO
    hosts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    step_options: tuple[str, ...] = ()
    python: str | None = None
    dist_port: int | None = None
    container: ContainerSettings = field(default_factory=ContainerSettings)

    def chosen(self, nnodes: int, environ: Mapping[str, str]) -> str:
        """The launcher for a topology.

        ``auto`` is the batch system whose job we are in, for several nodes; and for one where we are not on a node of
        the job (the shell of ``salloc`` on a login node).
        """
        if self.by != AUTO:
            return self.by
        if "SLURM_JOB_ID" in environ and (nnodes > 1 or "SLURMD_NODENAME" not in environ):
            return "slurm"
        return "pbs" if nnodes > 1 and "PBS_NODEFILE" in environ else "local"


def load_launch(data: Section) -> LaunchSettings:
    """The ``launch:`` section; absent is this host, without a container."""
    by = data.text("by", AUTO)
    if by not in LAUNCHERS:
        data.fail(f"launcher {by!r} is not known; {did_you_mean(by, LAUNCHERS)}", "by")
    hosts = data.texts("hosts")
    if (by == "ssh") != bool(hosts):
        data.fail("is for `by: ssh` only" if hosts else "`by: ssh` needs the hosts' names", "hosts")
    if len(set(hosts)) != len(hosts):
        data.fail("names a host twice: one rank runs on each", "hosts")
    settings = LaunchSettings(
        by=by,
        hosts=hosts,
        options=data.texts("options"),
        step_options=data.texts("step_options"),
        python=data.optional_text("python"),
        dist_port=data.integer("dist_port") if "dist_port" in data else None,
        container=_container(data.section("container")),
    )
    if settings.dist_port is not None and not 1024 <= settings.dist_port < 65536:
        data.fail("must be a port from 1024 to 65535", "dist_port")
    data.done()
    return settings


def _container(data: Section) -> ContainerSettings:
    engine = data.optional_text("engine")
    if engine is not None and engine not in ENGINES:
        data.fail(f"engine {engine!r} is not known; {did_you_mean(engine, ENGINES)}", "engine")
    settings = ContainerSettings(
        image=data.optional_text("image"),
        engine=engine,
        python=data.text("python", "python3"),
        options=data.texts("options"),
        mounts=data.texts("mounts"),
    )
    secret = secret_in(settings.options)
    if secret is not None:
        data.fail(
            f"{secret} looks like a secret, and a command line is seen by all: give it in the platform's env", "options"
        )
    data.done()
    return settings
