"""The devices of a cell while it is measured: leased, wherever they are, and cleared of what dead sessions left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pytest_r1perf import devices
from pytest_r1perf.cell import Cell
from pytest_r1perf.devices import Holder
from pytest_r1perf.launch.hold import lease_on
from pytest_r1perf.launch.reap import reap_orphans
from pytest_r1perf.site import Site, fresh_folder


@contextlib.contextmanager
def leased(
    site: Site,
    cell: Cell,
    test: str,
    *,
    waiting: Callable[[Holder | None], None],
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Hold what the cell uses; ``waiting`` and ``tell`` hear who else holds it and what was cleared.

    On this host that is a lock a GPU, elsewhere the same lock there: also on a batch system's nodes, which two
    sessions (or two xdist workers) of one job share. Raises :class:`R1PerfError`.
    """
    with contextlib.ExitStack() as stack:
        if not site.remote:
            stack.enter_context(
                devices.acquire(
                    site.local_gpus(cell.topology.gpus_used) or site.hardware.devices,
                    directory=site.session.state_dir,
                    share_host=cell.platform.share_host,
                    timeout_s=None,
                    waiting=waiting,
                    session=site.session.name,
                    test=test,
                )
            )
        # Under the lease: what holds the devices now is a leftover. Other hosts' agents do it there themselves.
        for victim in reap_orphans(site.session.state_dir, tell=tell):
            tell(f"ended a leftover of a dead session: pid {victim.pid}")
        if site.remote:
            gpus = cell.topology.gpus_used // cell.topology.nnodes
            leases = stack.enter_context(
                lease_on(
                    site.allocation,
                    {ranks[0]: _all(site, ranks, gpus) for ranks in site.hosts.values()},
                    python=site.agent_python,
                    session=site.session.name,
                    test=test,
                    folder=fresh_folder(site.session.folder, "leases"),
                    state_dir=site.session.state_dir,
                    share_host=cell.platform.share_host,
                    waiting=tell,
                    directory=None if site.session.lease_dir is None else str(site.session.lease_dir),
                )
            )
            site.lost_lease = leases.lost
        yield


def _all(site: Site, ranks: tuple[int, ...], gpus: int) -> tuple[str, ...]:
    """What the ranks of one host use; two ranks must not wait for each other's locks."""
    return tuple(dict.fromkeys(device for rank in ranks for device in site.devices(rank, gpus)))
