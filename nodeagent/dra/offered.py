"""The devices that claims may get now: shared by the part that publishes them and the part that prepares claims.

Belongs to one event loop. There is no queue: a slow reader sees the latest devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from nodeagent.dra.devices import DraDevice, plugin_holders
from nodeagent.facts.model import Holding, MigSlot, Snapshot


class OfferedPools(msgspec.Struct, frozen=True):
    """The devices by pool, ``gpu``, ``mig`` and ``nic``. A pool is absent if no entry of its kind has mode ``dra``, and
    ``None`` before its source has published, or before it is known what pods hold.

    ``obstacles``: why a device cannot be handed out now, apart from its health, by the name of the device: a file that
    its containers need cannot be written, or the host lacks it. Do not allocate it until this has ended.
    """

    pools: Mapping[str, tuple[DraDevice, ...] | None] = {}
    obstacles: Mapping[str, str] = {}
    left_out: tuple[DraDevice, ...] = ()
    """Devices that are not published, because a pod holds them through a device plugin."""

    def devices(self) -> Iterator[DraDevice]:
        """Yield every device that is published."""
        for pool in self.pools.values():
            yield from pool or ()

    def known(self) -> Iterator[DraDevice]:
        """Yield every device of this node that claims may have, published now or not."""
        yield from self.devices()
        yield from self.left_out


class PoolStatus(msgspec.Struct, frozen=True):
    """A pool as ``/readyz`` shows it. ``obstacle``: why claims cannot have its devices; ``None`` if they can."""

    pool: str
    devices: int
    healthy: int
    obstacle: str | None


class DraOffer:
    """``current`` is the latest value; ``snapshot`` has the facts that it was made of."""

    def __init__(self) -> None:
        self.current = OfferedPools()
        self.snapshot = Snapshot()
        self.known = False
        """Whether ``current`` is of a configuration, and not the empty value from before."""
        self.revision = 0
        """Grows with each change of ``current``, when the driver begins to serve, when files of a claim are written,
        and when another configuration is in force."""
        self.served = False
        """Whether the driver serves or has served. After a change of the mode it does so without any pool, until the
        last claim ends. Meanwhile the kubelet keeps the slices of an earlier agent, so the agent must delete them."""
        self.mig_slots: frozenset[MigSlot] = frozenset()
        """The places of MIG devices that claims have, or have had a moment ago: GPU instances in others are foreign."""
        self._changed = asyncio.Event()

    def update(self, current: OfferedPools, snapshot: Snapshot) -> None:
        self.snapshot, self.known = snapshot, True
        if current != self.current:
            self.current = current
            self.wake()

    def serve(self) -> None:
        """The driver begins to serve."""
        if not self.served:
            self.served = True
            self.wake()

    async def changed(self, since: int) -> OfferedPools:
        """Wait until the revision is beyond ``since``, and return the latest value."""
        while self.revision <= since:
            await self._changed.wait()
        return self.current

    def wake(self) -> None:
        self.revision += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def without_plugin_holders(
    devices: Iterable[DraDevice], snapshot: Snapshot
) -> tuple[tuple[DraDevice, ...], tuple[DraDevice, ...]]:
    """Return the devices that no pod holds through a device plugin, and the others."""
    free: list[DraDevice] = []
    left_out: list[DraDevice] = []
    for device in devices:
        held = any(plugin_holders(device, snapshot))
        (left_out if held else free).append(device)
    return tuple(free), tuple(left_out)


def held_by_claims(hardware: Collection[str], holdings: Iterable[Holding] | None) -> str | None:
    """Return why a device plugin must not offer this hardware yet: a claim holds a part of it, or may do so.

    ``holdings`` is ``None`` while the records of prepared claims cannot be read.
    """
    if holdings is None:
        return "the records of prepared claims cannot be read, so claims may hold its devices; the log has the reason"
    for holding in holdings:
        if any(id_.partition("::")[0] in hardware for id_ in holding.device_ids):
            return f"the claim {holding.namespace}/{holding.claim} still holds its devices; end the pods of the claim"
    return None
