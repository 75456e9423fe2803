"""The closing pass: the same cells with the deployment's own weights and traffic file (``--perf-deployment``).

The best-practice guide: "For production service sizing, run a final validation pass with your deployment weight mode
and traffic profile." Its result is another thing than the benchmark's (dummy weights, ShareGPT) and is kept apart: the
cell's key has a part of its own, so it has its own baselines, a floor of the benchmark does not hold, and a published
figure is no yardstick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_r1perf.datafile import Section
from pytest_r1perf.errors import R1PerfError

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog
    from pytest_r1perf.platform import Platform
    from pytest_r1perf.recipe import FlagValue

OPTION = "--perf-deployment"
KEY = "deployment"
"""The part of a cell's key (and word of its label) that keeps the pass apart."""
_AFTER_MODE = 5
"""Where it stands in a key: behind platform, recipe, workload, N and mode."""
DUMMY = "dummy"
NOT_THE_BENCHMARK = "the benchmark's: not compared with the deployment's own weights and traffic"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served in production: a platform's ``deployment:`` section.

    ``model_path`` and ``dataset`` (the traffic, in ShareGPT's format) are paths as the platform's own.
    ``load_format`` is SGLang's, by default ``auto``: the weights as they lie there.
    """

    model_path: str
    dataset: str
    load_format: str = "auto"

    @property
    def flags(self) -> Mapping[str, FlagValue]:
        """The logical flags that it sets over those of every recipe."""
        return {"load_format": self.load_format}


def load_deployment(data: Section) -> Deployment:
    """A platform's ``deployment:`` section; dummy weights are refused, since they are the benchmark's."""
    deployment = Deployment(
        model_path=data.text("model_path"), dataset=data.text("dataset"), load_format=data.text("load_format", "auto")
    )
    data.done()
    if deployment.load_format in (DUMMY, ""):
        data.fail(f"is {deployment.load_format!r}, but a deployment has weights of its own: e.g. auto", "load_format")
    return deployment


def deployed(platform: Platform) -> Platform:
    """The platform as its deployment has it: every cell of it is then measured with that model and traffic.

    Raises :class:`R1PerfError` where it has no ``deployment:``.
    """
    own = platform.deployment
    if own is None:
        raise R1PerfError(
            f"{OPTION}: platform {platform.name!r} has no 'deployment:' section: give model_path, dataset and "
            f"load_format of what you serve there, in your r1perf.yaml"
        )
    datasets = dict.fromkeys(platform.datasets, own.dataset)
    return replace(platform, model_path=own.model_path, datasets=datasets, deployed=True)


def deployed_catalog(catalog: Catalog) -> Catalog:
    """The catalog with every platform that has a ``deployment:`` section as that section has it."""
    platforms = {
        name: platform if platform.deployment is None else deployed(platform)
        for name, platform in catalog.platforms.items()
    }
    return replace(catalog, platforms=platforms)


def is_of_deployment(key: str) -> bool:
    """Whether a cell's key is one of the closing pass.

    >>> is_of_deployment("h200x8/tp8-champion/sharegpt/n7000/offline/deployment")
    True
    """
    return key.split("/")[_AFTER_MODE : _AFTER_MODE + 1] == [KEY]


def deployment_note(platform: Platform) -> str:
    """The sentence that every result of the pass carries."""
    own = platform.deployment
    assert own is not None
    return (
        f"closing pass: weights {own.model_path} ({own.load_format}), traffic {own.dataset}; kept apart from the "
        f"benchmark's dummy weights and prompts, and compared with its own baselines only"
    )


def bound_note(bound: str) -> str:
    """Why a floor or a limit of the benchmark is not applied; ``bound`` is ``the floor 22000``."""
    return f"{bound} is the benchmark's (dummy weights, ShareGPT): not applied to the deployment's own"
