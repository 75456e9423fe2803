"""`launch.hold`: leases on other nodes are the same as those of sessions there. Real processes, no network."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pytest_r1perf import devices
from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.hold import Leases, lease_on
from tests.elsewhere import Elsewhere, Unreachable
from tests.processes import identity, noted, running, started, wait_until

GPU_A, GPU_B = "GPU-0b1f2c3d-0000-0000-0000-00000000000a", "GPU-0b1f2c3d-0000-0000-0000-00000000000b"


class Site:
    """Here, and a lease directory there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = devices.lease_directory(folder / "leases")
        self.said: list[str] = []

    def lease(
        self,
        by_rank: dict[int, list[str]],
        *,
        allocation: Elsewhere | None = None,
        share_host: bool = False,
        waiting: Callable[[str], None] | None = None,
        directory: Path | None = None,
    ) -> AbstractContextManager[Leases]:
        return lease_on(
            allocation or Elsewhere(len(by_rank)),
            by_rank,
            python=sys.executable,
            session="night",
            test="test_r1.py::test_pp2",
            folder=self.folder,
            state_dir=self.folder / "state",
            share_host=share_host,
            waiting=waiting or self.said.append,
            directory=str(directory or self.there),
        )

    def acquire(self, *names: str, share_host: bool = False) -> devices.Lease:
        """As a session on that node would."""
        return devices.acquire(
            names, directory=self.there, share_host=share_host, timeout_s=0, waiting=lambda _: None, test="local"
        )

    def records(self) -> list[Path]:
        return [*self.folder.glob("state/launches-*/*"), *self.there.glob("launches-*/*")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_sessions_there_are_kept_out_while_we_hold_it(site: Site) -> None:
    with site.lease({0: [GPU_A]}) as leases:
        with pytest.raises(devices.LeaseError, match=r"host is leased by pid .*test_r1.py::test_pp2"):
            site.acquire(GPU_B)
        with pytest.raises(devices.LeaseError, match=GPU_A):
            site.acquire(GPU_A, share_host=True)
        holder = devices.read_holder(site.there, GPU_A)
        assert holder is not None
        assert (holder.session, holder.stale) == ("night", False)
        assert leases.lost() is None
    site.acquire(GPU_A).release()
    assert not running((holder.pid, holder.start))
    assert (site.said, site.records()) == ([], [])
    assert devices.read_holder(site.there, GPU_A) is None


def test_we_wait_for_a_session_there_and_say_for_whom(site: Site) -> None:
    local = site.acquire(GPU_A)

    def waiting(sentence: str) -> None:
        site.said.append(sentence)
        local.release()

    with site.lease({0: [GPU_A]}, waiting=waiting), pytest.raises(devices.LeaseError):
        site.acquire(GPU_A)
    assert len(site.said) == 1
    assert site.said[0].startswith(f"node0: host is leased by pid {os.getpid()} of ")
    assert ", local, since " in site.said[0]


def test_disjoint_devices_of_a_shared_host(site: Site) -> None:
    with site.lease({0: [GPU_A]}, share_host=True):
        site.acquire(GPU_B, share_host=True).release()


def test_ctrl_c_while_we_wait_leaves_nothing(site: Site) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with site.acquire(GPU_B, share_host=True):
        with pytest.raises(KeyboardInterrupt), site.lease({0: [GPU_A, GPU_B]}, share_host=True, waiting=interrupt):
            pytest.fail("it was not ours to have")
        # The first of the two, which was free.
        site.acquire(GPU_A, share_host=True).release()
    assert site.records() == []


def test_nodes_are_leased_in_the_order_of_their_names(site: Site) -> None:
    # Whatever the ranks: two sessions that want the same nodes must not wait for each other.
    allocation = Elsewhere(2, hosts={0: "zebra", 1: "ant"})
    local = site.acquire(GPU_A, GPU_B, share_host=True)

    def waiting(sentence: str) -> None:
        site.said.append(sentence)
        local.release()

    with site.lease({0: [GPU_A], 1: [GPU_B]}, allocation=allocation, share_host=True, waiting=waiting):
        assert {device for device in (GPU_A, GPU_B) if devices.read_holder(site.there, device)} == {GPU_A, GPU_B}
    assert site.said[0].startswith(f"ant: {GPU_B} is leased by ")


def test_a_node_that_cannot_be_reached(site: Site) -> None:
    with (
        pytest.raises(LaunchError, match=r"^node0 cannot be reached$"),
        site.lease({0: [GPU_A]}, allocation=Unreachable(1)),
    ):
        pytest.fail("nothing was leased")
    assert site.records() == []


def test_a_lease_directory_that_is_unfit(site: Site) -> None:
    unfit = site.folder / "unfit"
    unfit.write_text("")
    with (
        pytest.raises(LaunchError, match=r"no lease on node0: .*unfit is no directory"),
        site.lease({0: [GPU_A]}, directory=unfit),
    ):
        pytest.fail("nothing was leased")


def test_a_lease_that_was_lost_is_told(site: Site) -> None:
    with site.lease({0: [GPU_A]}) as leases:
        holder = devices.read_holder(site.there, GPU_A)
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)
        wait_until(leases.lost, "the end of the connection")
        assert str(leases.lost()).startswith("the lease on node0 was lost: ")
        site.acquire(GPU_A).release()
        wait_until(lambda: not list(site.there.glob("launches-*/*")), "the agent's guard")


OWNER = """
from tests.elsewhere import Elsewhere
from pytest_r1perf.launch.hold import lease_on
folder = Path(NOTES).parent
with lease_on(Elsewhere(1), {{0: [{gpu!r}]}}, python=sys.executable, session="s", test="t", folder=folder,
              state_dir=folder / "state", share_host=False, waiting=print, directory=str(folder / "leases")):
    note("held")
    time.sleep(600)
"""


def test_when_pytest_is_killed_the_lease_is_free(site: Site) -> None:
    notes = site.folder / "notes"
    root = str(Path(__file__).parent.parent)
    with started(f"sys.path.insert(0, {root!r})" + OWNER.format(gpu=GPU_A), notes) as process:
        wait_until(lambda: "held" in noted(notes), "the lease")
        holder = devices.read_holder(site.there, GPU_A)
        assert holder is not None
        assert identity(holder.pid) == (holder.pid, holder.start)
        process.kill()
        process.wait()
        wait_until(lambda: not running((holder.pid, holder.start)), "the end of the agent")
        site.acquire(GPU_A).release()
        wait_until(lambda: site.records() == [], "the end of the guards")
