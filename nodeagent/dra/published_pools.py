"""The devices of each pool as this node publishes them: attributes, capacity, and the health as taints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from nodeagent.base.supervise import either
from nodeagent.dra.device_attributes import LinkMemory, published
from nodeagent.dra.device_taints import blocked, marked_no_execute, taints
from nodeagent.dra.devices import MIG, DraDevice, pool_name
from nodeagent.dra.mig_counters import counter_sets
from nodeagent.dra.offered import DraOffer
from nodeagent.facts.inventory import Inventory
from nodeagent.health.health_settings import HealthSettings

_Json = dict[str, Any]


class SlicePools(msgspec.Struct, frozen=True):
    """The devices of each pool by its name, and the pools whose facts are not known yet."""

    devices: Mapping[str, Sequence[_Json]]
    unknown: tuple[str, ...] = ()
    counters: Mapping[str, Sequence[_Json]] = {}
    """The counter sets that the devices of a pool consume."""


class PublishedPools:
    """``health`` returns the settings in force: ``no_execute`` are globs on the keys of reasons, ``guard.share`` is
    that of ``device_taints``. ``near_nodes`` are the NUMA nodes near each one, to be published as lists; empty: as
    one number."""

    def __init__(
        self,
        inventory: Inventory,
        offer: DraOffer,
        node: str,
        *,
        health: Callable[[], HealthSettings] = HealthSettings,
        near_nodes: Mapping[int, tuple[int, ...]] = {},
    ) -> None:
        self._inventory, self._offer, self._node = inventory, offer, node
        self._health = health
        self.near_nodes = near_nodes
        self._links = LinkMemory()
        self._adopted = False
        self._seen = (-1, -1)
        self._leaf_group_changed = asyncio.Event()

    def set_leaf_group(self, leaf_group: str | None) -> None:
        """Publish another leaf group of this node; ``None`` keeps the last one."""
        self._links.leaf_group = leaf_group or self._links.leaf_group
        self._leaf_group_changed.set()

    async def changed(self) -> None:
        """Wait until the facts or the devices differ from those of the last ``pools``."""
        revision, offered = self._seen
        await either(
            self._inventory.changed(revision), self._offer.changed(offered), self._leaf_group_changed.wait()
        )

    def pools(self, stored: Sequence[_Json]) -> SlicePools:
        """The pools of now. ``stored`` are the slices on the API server: after a start, values that are not known yet
        are taken from them."""
        snapshot, current = self._inventory.snapshot, self._offer.current
        self._seen = (snapshot.revision, self._offer.revision)
        self._leaf_group_changed.clear()
        if not self._adopted:
            self._links.adopt(stored)
            self._adopted = True
        places = self._links.places(snapshot)
        for_multus = any(it.vf is not None for it in current.known())
        before = marked_no_execute(stored)
        known: dict[str, list[_Json]] = {}
        unknown = []
        for pool, devices in current.pools.items():
            name = pool_name(self._node, pool)
            if devices is None:
                unknown.append(name)
                continue
            found = taints(
                devices, no_execute=self._keys(devices), share=self._health().guard.share, before=before
            )
            for device in devices:
                if device.name in current.obstacles:
                    found.setdefault(device.name, blocked())
            known[name] = [
                published(
                    device,
                    snapshot,
                    places,
                    self._links.leaf_group,
                    for_multus=for_multus,
                    near_nodes=self.near_nodes,
                )
                | ({"taints": found[device.name]} if device.name in found else {})
                for device in devices
            ]
        divided = (device.divided_gpu for device in current.devices())
        counters = {pool_name(self._node, MIG): counter_sets(divided, self._offer.mig_slots)}
        return SlicePools(known, tuple(unknown), counters)

    def _keys(self, devices: Sequence[DraDevice]) -> frozenset[str]:
        """The keys of present reasons that match a glob of ``no_execute``."""
        keys = {reason.key for device in devices for reason in device.health.reasons}
        return frozenset(
            key for key in keys if any(fnmatchcase(key, glob) for glob in self._health().no_execute)
        )
