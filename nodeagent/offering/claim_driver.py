"""The claims of this node, and what pods hold through them and through device plugins.

The DRA driver is made once a kind has mode ``dra``, or at the start if an earlier agent left prepared claims.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.base.bounded_calls import within
from nodeagent.cluster.agent_tasks import NodeAccess
from nodeagent.cluster.deliveries import SLICES, Deliveries
from nodeagent.dra.offered import DraOffer, PoolStatus
from nodeagent.dra.prepared_claim import ClaimFigures, PreparedClaim, container_shares
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import ClaimUser, Holding
from nodeagent.host.sysfs import Tree
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.withheld import UnwritableFile
from nodeagent.offering.readiness import pool_statuses

if TYPE_CHECKING:
    from nodeagent.dra.driver import DraDriver

log = logging.getLogger(__name__)

_START_S = 1.0


class ClaimDriver:
    """``changed`` is called when a claim was prepared or ended. ``records`` is the folder of prepared claims.
    ``tree``: the machine, for the device nodes of MIG devices."""

    def __init__(
        self,
        inventory: Inventory,
        offer: DraOffer,
        changed: Callable[[], object],
        *,
        kubelet_dir: Path,
        records: Path,
        cdi_folder: Path,
        device_info: DeviceInfoFiles,
        stats: RpcStats,
        deliveries: Deliveries,
        metadata: bool,
        tree: Tree | None = None,
    ) -> None:
        self.driver: DraDriver | None = None
        self._inventory = inventory
        self._offer = offer
        self._changed = changed
        self._kubelet_dir = kubelet_dir
        self._records = records
        self._cdi_folder = cdi_folder
        self._device_info = device_info
        self._stats = stats
        self._deliveries = deliveries
        self._metadata = metadata
        self._tree = tree
        self._of_plugins: tuple[Holding, ...] | None = None
        self._users: Iterable[ClaimUser] = ()

    def holdings(self) -> tuple[Holding, ...] | None:
        """Return what prepared claims hold, ``None`` while their records cannot be read."""
        return () if self.driver is None else self.driver.holdings

    def unwritable(self) -> UnwritableFile | None:
        """Return the file that keeps every claim from being prepared, if there is one."""
        return None if self.driver is None else self.driver.claims.writes.unwritable

    def rival(self) -> str | None:
        """Return a sentence about another DRA driver of our name, if there is one."""
        return None if self.driver is None else self.driver.rival

    def written(self) -> Mapping[str, PreparedClaim]:
        """Return the prepared claims whose files are on the disk, by UID."""
        return {} if self.driver is None else self.driver.claims.written

    def figures(self) -> ClaimFigures | None:
        return None if self.driver is None else self.driver.figures

    def pools(self) -> tuple[PoolStatus, ...]:
        """Return the state of each pool that claims allocate from."""
        return tuple(pool_statuses(self._offer, self.driver, self._deliveries.of(SLICES)))

    def publish_holdings(self, of_plugins: tuple[Holding, ...], users: Iterable[ClaimUser] = ()) -> None:
        """The kubelet has listed what pods hold through device plugins, and which containers use claims."""
        self._of_plugins, self._users = of_plugins, users
        self._publish("pods", of_plugins)

    def recover(self, access: NodeAccess | None) -> None:
        """Make the driver if an earlier agent left prepared claims. Blocks for at most ``_START_S``.

        A disk that hangs must not keep a node without claims from serving: with a kind of mode dra the driver reads the
        records later.
        """
        try:
            found = within("records of claims", _START_S, lambda: any(self._records.glob("*")))
        except OSError as error:
            log.warning(
                "Records of claims of an earlier agent cannot be looked for. folder=%s reason=%r",
                self._records,
                str(error),
            )
            return
        if found:
            self._open(access)

    async def run(self, access: NodeAccess | None) -> None:
        """Run the driver once it is needed, until cancelled."""
        while self.driver is None and not self._offer.current.pools:
            await self._offer.changed(self._offer.revision)
        await (self.driver or self._open(access)).run()

    def _open(self, access: NodeAccess | None) -> DraDriver:
        """Make the driver, and read what claims of an earlier agent hold. Without an API server it only ends them."""
        if access is None:
            log.warning(
                "Resources with mode dra are not offered, and no claim is prepared: the agent has no API server, or "
                "not the name of this Node. Pods with claims of an earlier agent can end."
            )
        from nodeagent.dra.driver import DraDriver  # noqa: PLC0415 - 100 ms and 3 MiB with urllib3

        self.driver = DraDriver(
            None if access is None else access.access,
            socket.gethostname() if access is None else access.node,
            self._offer,
            kubelet_dir=self._kubelet_dir,
            record_folder=self._records,
            cdi_folder=self._cdi_folder,
            device_info=self._device_info,
            stats=self._stats,
            metadata=self._metadata,
            on_change=self._take_change,
            tree=self._tree,
        )
        self.driver.read_records()
        return self.driver

    def _take_change(self) -> None:
        if self._of_plugins is not None:
            self._publish("claims", self._of_plugins)
        self._changed()

    def _publish(self, source: str, of_plugins: tuple[Holding, ...]) -> None:
        claims = None if self.driver is None else self.driver.claims
        held = (*of_plugins, *(() if claims is None else claims.holdings))
        self._inventory.publish(
            source,
            holdings=tuple(sorted(held, key=lambda it: (it.namespace, it.pod))),
            claim_shares=()
            if claims is None
            else tuple(container_shares(claims.records.values(), self._users)),
        )
