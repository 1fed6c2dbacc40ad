"""The DRA driver of one node, composed: records of claims, the API client, and the service for the kubelet.

It runs while a kind has mode ``dra``, and as long as a claim is prepared: after a change of the mode the kubelet still
has to end the claims, and no pod with one can terminate without the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.base.bounded_calls import BoundedCalls, within
from nodeagent.base.file_writing import make_folder
from nodeagent.base.stored_file import boot_id
from nodeagent.base.supervise import either, end_tasks, keep
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claim_mending import ClaimMending
from nodeagent.dra.claim_mig import MIG_S, ClaimMig
from nodeagent.dra.claims import PreparedClaims
from nodeagent.dra.devices import pool_name
from nodeagent.dra.mig_instances import MigInstances
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import ClaimFigures
from nodeagent.dra.resource_claim import ResourceClaim
from nodeagent.facts.model import Holding
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import Refused
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import RESOURCE_CLAIMS
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.node_lock import node_lock
from nodeagent.kubelet.rpc_stats import RpcStats

if TYPE_CHECKING:
    from nodeagent.dra.kubelet_service import DraService

log = logging.getLogger(__name__)

DISK_S = 5.0
"""For the files of one claim. A local file is written in a millisecond; a disk that takes longer hangs."""
START_S = 2.0
READ_AGAIN_S = 5.0
API_S = 8.0
"""For one call to the API server: several fit into the time that the kubelet waits."""
LINGER_S = 1.0
"""The answer to the last Unprepare must leave before the service ends."""
CLAIMS = RESOURCE_CLAIMS.typed(ResourceClaim)
METADATA_FOLDER = "dra-device-metadata"
"""In the driver's folder of the kubelet, whose path is the same on the host and in the agent's container."""


class DraDriver:
    """``access`` is how the API server is reached (a ``kube.access.Access``). ``None``: it is not; then no claim can be
    prepared, and those of an earlier agent can end. ``node`` is the name of this Node. ``metadata``: containers get
    files with the metadata of their devices. ``on_change`` is called when a claim was prepared or ended. ``tree`` is
    the machine."""

    def __init__(
        self,
        access: Access | None,
        node: str,
        offer: DraOffer,
        *,
        kubelet_dir: Path,
        record_folder: Path,
        cdi_folder: Path,
        device_info: DeviceInfoFiles,
        stats: RpcStats,
        metadata: bool = False,
        on_change: Callable[[], object] = lambda: None,
        tree: Tree | None = None,
    ) -> None:
        self._node, self._offer = node, offer
        self._kubelet_dir, self._stats = kubelet_dir, stats
        self._on_change = on_change
        self._files = ClaimFiles(
            record_folder,
            cdi_folder,
            device_info,
            boot_id(),
            kubelet_dir / "plugins" / DRIVER / METADATA_FOLDER,
            gives_metadata=metadata,
        )
        self._changed = asyncio.Event()
        self._loaded = False
        self._client = None if access is None else ApiClient(access, timeout_s=API_S)
        self.claims = PreparedClaims(
            node,
            offer,
            self._files,
            BoundedCalls("files of claims", DISK_S),
            self._read,
            self._take_change,
            mig=ClaimMig(MigInstances(tree or Tree()), BoundedCalls("MIG devices", MIG_S)),
        )
        self._mending = ClaimMending(self.claims, self._files, offer)
        self.service: DraService | None = None
        """``None`` while the driver is not needed."""

    @property
    def figures(self) -> ClaimFigures:
        return ClaimFigures(len(self.claims.records), self.claims.conflicts)

    @property
    def has_api_server(self) -> bool:
        return self._client is not None

    def pool_name(self, pool: str) -> str:
        """The name of a pool in slices and claims."""
        return pool_name(self._node, pool)

    @property
    def unregistered(self) -> str | None:
        """Why the kubelet does not know the driver."""
        if self.service is None:
            return "the driver has not started yet"
        return self.service.rival or (None if self.service.registered else self.service.reason)

    @property
    def rival(self) -> str | None:
        """A sentence about another driver of our name."""
        return None if self.service is None else self.service.rival

    @property
    def holdings(self) -> tuple[Holding, ...] | None:
        """The devices that prepared claims hold; ``None`` before their records could be read."""
        return self.claims.holdings if self._loaded else None

    def read_records(self) -> None:
        """Read the records now, before any device is offered. Blocks; a disk without an answer is left to ``run``."""
        try:
            self.claims.take(within("records of claims", START_S, self._files.read))
            self._loaded = True
        except OSError as error:
            log.warning("The records of prepared claims cannot be read yet. reason=%r", str(error))

    async def run(self) -> None:
        """Serve while it is needed, until cancelled."""
        try:
            if not self._loaded:
                await self._load()
            while True:
                await self._while(needed=False)
                await self._serve()
        finally:
            if self._client is not None:
                await self._client.close()

    async def _load(self) -> None:
        """Read the records, again and again until this succeeds."""
        while True:
            try:
                await self.claims.load()
                self._loaded = True
                return
            except OSError as error:
                log.error("The records of prepared claims cannot be read. reason=%r", str(error))
                await asyncio.sleep(READ_AGAIN_S)

    async def _read(self, namespace: str, name: str) -> ResourceClaim:
        if self._client is None:
            raise Refused("the agent reads claims from the API server, and it has none: set cluster.access")
        return await self._client.get(CLAIMS, name, namespace=namespace)

    async def _serve(self) -> None:
        from nodeagent.dra.kubelet_service import DraService  # noqa: PLC0415 - protobuf: 43 ms and 1.4 MiB

        service = DraService(self._kubelet_dir, self._node, self.claims, self._offer, self._stats)
        make_folder(service.folder, 0o750)

        def say(sentence: str) -> None:
            if service.reason != sentence:
                log.warning("The DRA driver waits. reason=%r", sentence)
            service.reason = sentence

        self.service = service
        self._offer.serve()
        try:
            async with node_lock(service.folder, say, say):
                await self._load()  # an agent that held the lock until now may have written records
                await self.claims.remove_leftovers()
                tasks = [asyncio.create_task(keep("dra-service", service.run))]
                if self._client is not None:
                    tasks.append(asyncio.create_task(keep("dra-claims", self.claims.follow)))
                    files = partial(self.claims.writes.follow, lambda: self.claims.records)
                    tasks.append(asyncio.create_task(keep("dra-files", files)))
                    tasks.append(asyncio.create_task(keep("dra-mend", self._mending.follow)))
                try:
                    while self._needed:
                        await self._while(needed=True)
                        await asyncio.sleep(LINGER_S)
                finally:
                    await end_tasks(tasks)
        finally:
            self.service = None

    @property
    def _needed(self) -> bool:
        return bool(self._offer.current.pools) or bool(self.claims.records)

    async def _while(self, *, needed: bool) -> None:
        """Wait while the driver is needed, or while it is not."""
        while self._needed is needed:
            self._changed.clear()
            await either(self._offer.changed(self._offer.revision), self._changed.wait())

    def _take_change(self) -> None:
        self._changed.set()
        self._on_change()
