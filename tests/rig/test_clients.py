"""The real serving clients, asked for their options: they are what the recorded tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_r1perf.place import LocalPlace
from pytest_r1perf.sglang.clientoptions import ClientKind, ask_client
from pytest_r1perf.sglang.environment import probe
from tests.tools.client_releases import client, own_entries

pytestmark = pytest.mark.rig


@pytest.mark.parametrize("release", ["0.5.9", "0.5.20"])
def test_the_real_clients_are_the_recorded_ones(release: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = request.getfixturevalue("rig_python" if release == "0.5.20" else "older_rig_python")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    environment = probe(LocalPlace(str(python), "the rig"), env, cache=tmp_path)
    for kind in ClientKind:
        asked = ask_client(environment, kind, env, cache=tmp_path)
        recorded = client(kind, release)
        assert asked.module == recorded.module
        for entry in own_entries(kind, release):
            option = asked.options.get(entry["opts"][0])
            assert option is not None, entry
            assert option == recorded.options.get(entry["opts"][0])
        if kind is ClientKind.SERVING:
            assert len(asked.options.options) == len(own_entries(kind, release))
