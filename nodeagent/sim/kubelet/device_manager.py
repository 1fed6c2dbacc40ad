"""The device manager's memory: what plugins list, what is handed out, what the Node shows.

The law of this file: it keeps the same sets as the kubelet and changes them at the same moments, the
unfortunate ones included, since what a plugin must survive comes from their disagreement:

* ``listed`` is what each plugin's latest message said; the end of its stream does not touch it.
* ``healthy`` and ``unhealthy`` are what is counted; the end of the stream moves all to ``unhealthy``.
* ``allocated`` is what must not be handed out. It may hold more than ``holdings`` does (a choice that was
  given up), until something regenerates it from there.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.sim.kubelet import checkpoint
from nodeagent.sim.kubelet.checkpoint import WITHOUT_NUMA, Held, Holdings
from nodeagent.sim.kubelet.journal import Journal
from nodeagent.sim.kubelet.plugin_clients import Client
from nodeagent.sim.kubelet.pods import KubeletPanic, PodSpec, Update

HEALTHY = "Healthy"


@dataclass(slots=True)
class Endpoint:
    """The plugin of a resource; without a client it is only remembered from the checkpoint."""

    client: Client | None
    options: pb.DevicePluginOptions
    stopped_at: float | None = None


class Listed:
    """One message's devices. Protobuf's own objects are kept, and read when asked: a list may be long."""

    def __init__(self, devices: Iterable[pb.Device]) -> None:
        self.by_id = {device.ID: device for device in devices}
        self._numa: dict[str, tuple[int, ...]] | None = None
        self._order: list[str] | None = None

    def numa(self, device: str) -> tuple[int, ...]:
        return tuple(node.ID for node in self.by_id[device].topology.nodes)

    def by_numa(self, ids: Iterable[str]) -> dict[tuple[int, ...], set[str]]:
        """These devices, by the combination of NUMA nodes that they are on."""
        if self._numa is None:
            self._numa = {device: self.numa(device) for device in self.by_id}
        found: defaultdict[tuple[int, ...], set[str]] = defaultdict(set)
        for device in ids:
            found[self._numa[device]].add(device)
        return found

    def count(self, ids: Iterable[str]) -> Counter[tuple[int, ...]]:
        return Counter({nodes: len(devices) for nodes, devices in self.by_numa(ids).items()})

    def has_numa(self) -> bool:
        return any(device.topology.nodes for device in self.by_id.values())

    def scrambled(self, rng: random.Random, like: Listed | None) -> list[str]:
        """All IDs in an order that has nothing to do with the plugin's, kept while the IDs stay the same."""
        if self._order is None:
            if like is not None and like._order is not None and like.by_id.keys() == self.by_id.keys():
                self._order = like._order
            else:
                self._order = sorted(self.by_id, key=lambda _: rng.random())
        return self._order


class Devices:
    """The device manager without its conversations."""

    def __init__(self, directory: Path, journal: Journal, rng: random.Random, stop_grace_s: float) -> None:
        self.directory = directory
        self.stop_grace_s = stop_grace_s
        self.node: dict[str, tuple[int, int]] = {}  # what the API server was last told: capacity, allocatable
        self.active: dict[str, PodSpec] = {}  # pods bound to this node, by UID
        self._journal = journal
        self._rng = rng
        self.forget()

    def forget(self) -> None:
        """The process's memory is gone; the Node, the pods and the checkpoint are not in it."""
        self.listed: dict[str, Listed] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.holdings: Holdings = {}
        self.sources_ready = False
        self._orders: dict[str, Listed] = {}

    # What plugins do.

    def connected(self, client: Client, options: pb.DevicePluginOptions) -> None:
        self.endpoints[client.resource] = Endpoint(client, options)

    def disconnected(self, resource: str) -> None:
        """The stream has ended: nothing may be allocated, and the grace period begins."""
        endpoint = self.endpoints.get(resource)
        if endpoint is not None:
            self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
            if resource in self.healthy:
                self.healthy[resource] = set()
            endpoint.stopped_at = time.monotonic()
        self.refresh_node()
        self._journal.changed()

    def received(self, resource: str, message: bytes, at: float, *, repeated: bool) -> None:
        """A message replaces all that was known of the resource, and rewrites the checkpoint."""
        listed = Listed(pb.ListAndWatchResponse.FromString(message).devices)
        healthy = {name for name, device in listed.by_id.items() if device.health == HEALTHY}
        self.listed[resource] = listed
        self.healthy[resource] = healthy
        self.unhealthy[resource] = listed.by_id.keys() - healthy
        self.save()
        self.refresh_node()
        update = Update(at, resource, len(healthy), len(listed.by_id) - len(healthy), len(message), repeated)
        self._journal.updates.append(update)
        self._journal.changed()

    # What pods do.

    def manages(self, resource: str) -> bool:
        """Whether the limit is looked at at all: a resource never listed is passed over in silence."""
        return resource in self.healthy or resource in self.allocated

    def update_allocated(self) -> None:
        """Free the devices of pods that are gone. Returns early where none is, and cleans nothing then."""
        if not self.sources_ready:
            return
        gone = self.holdings.keys() - self.active.keys()
        if gone:
            for uid in gone:
                del self.holdings[uid]
            self.regenerate()

    def regenerate(self) -> None:
        """Let ``allocated`` be exactly what containers hold."""
        self.allocated = {}
        for containers in self.holdings.values():
            for resources in containers.values():
                for resource, held in resources.items():
                    self.allocated.setdefault(resource, set()).update(held.ids())

    def held(self, uid: str, container: str, resource: str) -> Held | None:
        return self.holdings.get(uid, {}).get(container, {}).get(resource)

    def hold(
        self,
        uid: str,
        container: str,
        resource: str,
        ids: Iterable[str],
        response: pb.ContainerAllocateResponse,
    ) -> None:
        by_numa: dict[int, list[str]] = {}
        for device in ids:
            for node in self.numa(resource, device) or (WITHOUT_NUMA,):
                by_numa.setdefault(node, []).append(device)
        of_pod = self.holdings.setdefault(uid, {})
        of_pod.setdefault(container, {})[resource] = Held(by_numa, response)

    def numa(self, resource: str, device: str) -> tuple[int, ...]:
        """Raises ``KubeletPanic`` for a device that is no longer listed, where Go meets a nil pointer."""
        try:
            return self.listed[resource].numa(device)
        except KeyError:
            raise KubeletPanic(
                f"nil pointer: {resource} no longer lists {device}, which is allocated or in flight; "
                f"a plugin must list it as Unhealthy instead"
            ) from None

    def has_numa(self, resource: str) -> bool:
        return resource in self.listed and self.listed[resource].has_numa()

    def at_random(self, resource: str, ids: set[str]) -> Iterator[str]:
        """These IDs as Go iterates over a map: in an order of its own, from a random place in it."""
        listed = self.listed.get(resource)
        if listed is None:
            yield from sorted(ids)
            return
        order = listed.scrambled(self._rng, self._orders.get(resource))
        self._orders[resource] = listed
        start = self._rng.randrange(len(order)) if order else 0
        for device in chain(islice(order, start, None), islice(order, start)):
            if device in ids:
                yield device
        yield from sorted(ids - listed.by_id.keys())

    # What outlives the process.

    def refresh_node(self) -> None:
        """Tell the Node. A plugin gone for longer than the grace period leaves zeros behind, not nothing."""
        expired = False
        for resource in self.healthy.keys() | self.unhealthy.keys():
            endpoint = self.endpoints.get(resource)
            stopped_at = None if endpoint is None else endpoint.stopped_at
            if endpoint is None or (
                stopped_at is not None and time.monotonic() - stopped_at >= self.stop_grace_s
            ):
                self.endpoints.pop(resource, None)
                self.healthy.pop(resource, None)
                self.unhealthy.pop(resource, None)
                self.node[resource] = (0, 0)
                expired = True
            else:
                healthy = len(self.healthy.get(resource, ()))
                self.node[resource] = (healthy + len(self.unhealthy.get(resource, ())), healthy)
        if expired:
            self.save()

    def save(self) -> None:
        checkpoint.write(self.directory, self.holdings, self.healthy)

    def load(self) -> None:
        """Start from the checkpoint: allocations stand, resources count zero until their plugins return.

        Without a file the node counts as new, and the Node's extended resources are zeroed.
        """
        saved = checkpoint.read(self.directory)
        if saved is None:
            self.node = dict.fromkeys(self.node, (0, 0))
            return
        self.holdings = saved.holdings
        self.regenerate()
        now = time.monotonic()
        for resource in saved.resources:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(None, pb.DevicePluginOptions(), now)
        self.refresh_node()
