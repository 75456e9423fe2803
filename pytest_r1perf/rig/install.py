"""``r1perf rig install``: a virtual environment with the real SGLang for the CPU.

On plain PyPI the x86-64 ``torch`` is the CUDA build (several GB more). For the CPU build, give pip an index of CPU
wheels, in pip's own configuration or with ``--pip-arg``: ``--extra-index-url=<the index>``.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.rig.home import interpreter
from pytest_r1perf.rig.pins import Pins, load_pins
from pytest_r1perf.rig.record import claim, claimed_version, versions_file, versions_line
from pytest_r1perf.rig.steps import Echo, Step, StepRunner

PYTHONS = ((3, 10), (3, 13))

_RIG = Path(__file__).parent
STANDINS_PACKAGE = "r1perf_standins"

# Imported by no benchmark (the import check compiles what little of it is): they would double the time of that step.
_NOT_COMPILED = (
    "site-packages/(.*/)?(tests?|testing|jedi|networkx|multimodal_gen|setuptools|pip)/"
    "|site-packages/transformers/models/|site-packages/sympy/(?!core)"
)


def install(
    version: str,
    directory: Path,
    *,
    echo: Echo,
    python: str = sys.executable,
    pip_args: Sequence[str] = (),
    verbose: bool = False,
) -> Path:
    """Make the rig of one SGLang version in ``directory`` and return its interpreter.

    Every step leaves a stamp: a killed install goes on where it was, a finished one returns at once. ``pip_args`` are
    passed to both pip commands. ``verbose`` shows the commands.

    Raises:
        R1PerfError: no pins for the version, a host or Python that cannot hold a rig, too little disk, another install
            in the same directory, or a command that failed.
    """
    pins = load_pins(version)
    directory = directory.expanduser().absolute()
    runner = StepRunner(directory, echo=echo, verbose=verbose)
    steps = rig_steps(pins, directory, python=python, pip_args=pip_args)
    if all(runner.is_done(step) for step in steps):
        echo(f"SGLang {version} is already installed in {directory} ({versions_line(directory)})")
        return interpreter(directory)
    check_host(pins, directory, python, echo=echo)
    echo(
        f"SGLang {version} for the CPU goes into {directory}: about {pins.download_mb} MB to download and "
        f"{pins.disk_mb / 1000:.1f} GB on disk (with a CPU build of torch; 5.2 GB with the CUDA build that plain "
        "PyPI has)"
    )
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory.parent / f".{directory.name}.lock", timeout=0):
            claim(directory, version)
            runner.run(steps)
    except Timeout:
        raise R1PerfError(f"another install is at work in {directory}: wait for it, or give another DIR") from None
    echo(f"ready: {interpreter(directory)} ({versions_line(directory)})")
    return interpreter(directory)


def rig_steps(pins: Pins, directory: Path, *, python: str, pip_args: Sequence[str]) -> list[Step]:
    """The steps of an install, in order. ``pip_args`` say where packages come from, not what: no part of a stamp."""
    own = str(interpreter(directory))
    pip = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    # Byte code is made by a later step, on all cores and only of what is imported.
    pip += ["--no-compile", *pip_args]
    standins = {path.name: path.read_text(encoding="utf-8") for path in sorted(_RIG.glob("standins/*.py"))}
    verify = _RIG / "scripts" / "verify_rig.py"

    def repair() -> None:
        forget_half_installed(site_packages(directory))

    return [
        Step("venv", "virtual environment", "venv", [python, "-m", "venv", str(directory)]),
        Step(
            "packages",
            "torch, transformers and what SGLang imports",
            pins.requirements,
            [*pip, *pins.requirements],
            repair=repair,
        ),
        Step(
            "sglang",
            f"SGLang {pins.sglang}, without the CUDA packages it asks for",
            pins.without_dependencies,
            [*pip, "--no-deps", *pins.without_dependencies],
            repair=repair,
        ),
        Step("standins", "stand-ins", standins, action=lambda: copy_standins(site_packages(directory))),
        Step(
            "bytecode",
            "byte code",
            _NOT_COMPILED,
            [own, "-m", "compileall", "-q", "-j", "0", "-x", _NOT_COMPILED, str(directory / "lib")],
        ),
        Step(
            "verify",
            "import check",
            verify.read_text(encoding="utf-8"),
            [own, str(verify), str(versions_file(directory))],
            environment=pins.environment,
        ),
    ]


def check_host(pins: Pins, directory: Path, python: str, *, echo: Echo) -> None:
    """Refuse what cannot hold a rig, before anything is downloaded.

    Raises:
        R1PerfError: not Linux on x86-64, a Python outside `PYTHONS`, a directory with something else in it, or too
            little free disk.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise R1PerfError(f"the CPU rig needs Linux on x86_64, but this is {system} on {machine}: use another host")
    found = _python_version(python)
    if not PYTHONS[0] <= found <= PYTHONS[1]:
        low, high = (".".join(map(str, version)) for version in PYTHONS)
        raise R1PerfError(
            f"the CPU rig needs Python {low} to {high}, but {python} is {found[0]}.{found[1]}: run r1perf with another"
        )
    if pins.verified_python != f"{found[0]}.{found[1]}":
        echo(f"note: the pins were verified with Python {pins.verified_python}, not with {found[0]}.{found[1]}")
    claimed = claimed_version(directory)
    if claimed is None and directory.exists() and any(directory.iterdir()):
        raise R1PerfError(f"{directory} holds something that is not a rig: give an empty or new directory")
    if claimed is not None and claimed != pins.sglang:
        raise R1PerfError(f"{directory} holds SGLang {claimed}, not {pins.sglang}: give another directory")
    exists = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free_mb = shutil.disk_usage(exists).free // 1_000_000
    needed_mb = pins.disk_mb + pins.margin_mb
    if free_mb < needed_mb:
        raise R1PerfError(
            f"{exists} has {free_mb} MB free, but the rig needs {needed_mb} MB while it is installed: make room, or "
            "set R1PERF_HOME to a larger disk"
        )


def site_packages(directory: Path) -> Path:
    """Where the packages of the virtual environment in ``directory`` lie."""
    return next(directory.glob("lib/python3.*/site-packages"))


def copy_standins(packages: Path) -> None:
    """Copy ``rig/standins`` to ``packages`` as a package of its own, with the ``.pth`` that starts it."""
    target = packages / STANDINS_PACKAGE
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_RIG / "standins", target, ignore=shutil.ignore_patterns("__pycache__"))
    line = f"import {STANDINS_PACKAGE}; {STANDINS_PACKAGE}.install()\n"
    (packages / f"{STANDINS_PACKAGE}.pth").write_text(line, encoding="utf-8")


def forget_half_installed(packages: Path) -> None:
    """Remove the metadata of packages that a killed pip left half way, so that the next pip installs them again.

    pip writes RECORD and INSTALLER after a package's files, but METADATA, which makes it count as installed, before.
    """
    for metadata in packages.glob("*.dist-info"):
        if not all((metadata / name).is_file() for name in ("RECORD", "INSTALLER")):
            shutil.rmtree(metadata)


def rig_state(directory: Path) -> str:
    """One line on ``directory``: complete, with its versions; or what an install still has to do."""
    version = claimed_version(directory)
    if version is None:
        return "not made by `r1perf rig install`"
    try:
        steps = rig_steps(load_pins(version), directory, python=sys.executable, pip_args=())
    except R1PerfError as error:
        return f"SGLang {version}: {error}"
    missing = [step.says for step in steps if not StepRunner(directory, echo=_silent).is_done(step)]
    if missing:
        return f"incomplete, still to do: {'; '.join(missing)}"
    return f"complete, {versions_line(directory)}"


def _silent(message: str, *, nl: bool = True) -> None:
    """Show nothing."""


def _python_version(python: str) -> tuple[int, int]:
    if python == sys.executable:
        return sys.version_info[:2]
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise R1PerfError(f"{python} is not a Python that runs ({error}): give another") from None
    major, minor = done.stdout.split()
    return int(major), int(minor)
