"""An SGLang environment that is reached through a site: on another host, or in a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.process import LaunchError
from pytest_r1perf.launchsettings import ContainerSettings
from pytest_r1perf.place import Answer, Place, PlaceBroken
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.environment import local_place
from pytest_r1perf.site import LOG, Site, fresh_folder

IMAGE = "image:"
"""``--sglang image:NAME`` is a container image."""


@dataclass(frozen=True)
class SitePlace:
    """A Python on the site's first node; in a container of ``image``, if there is one."""

    site: Site
    python: str
    label: str
    image: ContainerSettings | None

    def script(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        needs: Sequence[str] = (),
    ) -> Answer:
        """Run it under the same supervision as a benchmark."""
        source = script.read_text(encoding="utf-8")
        folder = fresh_folder(self.site.session.folder, f"script-{script.stem}")
        ended = self.site.run(
            lambda rank: (self.python, "-c", source, *arguments),
            lambda rank: env,
            image=self.image,
            folder=folder,
            timeout_s=timeout_s,
            ranks=1,
            mounts=needs,
        )
        if ended.launch_problem is not None:
            raise LaunchError(ended.launch_problem)
        if ended.exit.ended_by == "timeout":
            raise PlaceBroken(f"{script.name} did not end within {timeout_s:g} s")
        output = (folder / LOG).read_text(encoding="utf-8", errors="replace")
        return Answer(output, "", ended.returncode)


def place_at(site: Site, given: str) -> Place:
    """The SGLang environment that a user named: an interpreter, a virtual environment, or ``image:NAME``.

    Raises :class:`R1PerfError` for one of this host that can't be it.
    """
    container = site.platform.launch.container
    if given.startswith(IMAGE):
        return SitePlace(site, container.python, f"--sglang {given}", named(container, given))
    if site.remote:
        python = interpreter_there(given)
        return SitePlace(site, python, f"--sglang {python} on {site.nodes[0].host}", None)
    return local_place(given)


def named(container: ContainerSettings, given: str) -> ContainerSettings:
    """The container that ``image:NAME`` means."""
    return replace(container, image=given.removeprefix(IMAGE))


def interpreter_there(given: str) -> str:
    """The Python that a path on another host means: it can't be looked at, so its last part tells.

    >>> interpreter_there("/opt/sglang"), interpreter_there("/opt/sglang/bin/python3.12")
    ('/opt/sglang/bin/python', '/opt/sglang/bin/python3.12')
    """
    return given if Path(given).name.startswith("python") else f"{given.rstrip('/')}/bin/python"


def environment_named(platform: Platform, option: str | None, *, elsewhere: bool = False) -> str:
    """The SGLang environment that was named: by ``--sglang``, by the platform's container, or by the platform.

    ``elsewhere``: the path is one of other hosts.

    Raises :class:`R1PerfError` when there is none, or a variable in its path isn't set.
    """
    image = platform.launch.container.image
    given = option or (f"{IMAGE}{image}" if image is not None else platform.sglang)
    if given is None:
        raise R1PerfError(
            f"platform {platform.name!r} names no SGLang environment: give --sglang PATH, ini perf_sglang, "
            f"or sglang: in its entry of your r1perf.yaml"
        )
    if given.startswith(IMAGE):
        return given
    what = "--sglang" if option else f"platform {platform.name!r}: sglang"
    return expand(given, what=what, home=home(), elsewhere=elsewhere)


def agent_python(platform: Platform, option: str | None) -> str:
    """The interpreter that starts our agent on other hosts: as set, else the one with SGLang, unless in a container."""
    if platform.launch.python is not None:
        return platform.launch.python
    given = environment_named(platform, option, elsewhere=True)
    return "python3" if given.startswith(IMAGE) else interpreter_there(given)
