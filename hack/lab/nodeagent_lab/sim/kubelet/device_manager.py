"""The state of the device manager: what plugins list, what is allocated, what the Node shows.

It keeps the same sets as the kubelet and changes them at the same moments. The faults that a plugin must survive come
from their differences:

* ``listed`` is the latest message of each plugin; the end of its stream does not change it.
* ``healthy`` and ``unhealthy`` are counted; the end of the stream moves all devices to ``unhealthy``.
* ``allocated`` is not allocated again. It may contain more than ``holdings`` (an abandoned choice), until it is
  regenerated from there.
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
from nodeagent_lab.sim.kubelet import checkpoint
from nodeagent_lab.sim.kubelet.checkpoint import WITHOUT_NUMA, Held, Holdings
from nodeagent_lab.sim.kubelet.plugin_clients import PluginClient
from nodeagent_lab.sim.kubelet.pods import DeviceListUpdate, Journal, KubeletPanic, PodSpec

HEALTHY = "Healthy"


@dataclass(slots=True)
class PluginEndpoint:
    """The plugin of a resource; without a client it is only known from the checkpoint."""

    client: PluginClient | None
    options: pb.DevicePluginOptions
    stopped_at: float | None = None


class Listed:
    """The devices of one message. Protobuf's objects are kept and read on demand: a list may be long."""

    def __init__(self, devices: Iterable[pb.Device]) -> None:
        self.by_id = {device.ID: device for device in devices}
        self._numa: dict[str, tuple[int, ...]] | None = None
        self._order: list[str] | None = None

    def numa(self, device: str) -> tuple[int, ...]:
        return tuple(node.ID for node in self.by_id[device].topology.nodes)

    def by_numa(self, ids: Iterable[str]) -> dict[tuple[int, ...], set[str]]:
        """Return these devices by their NUMA nodes."""
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
        """Return all IDs in an order that is independent of the plugin's, and stays while the IDs stay the same."""
        if self._order is None:
            if like is not None and like._order is not None and like.by_id.keys() == self.by_id.keys():
                self._order = like._order
            else:
                self._order = sorted(self.by_id, key=lambda _: rng.random())
        return self._order


class DeviceManager:
    """The device manager without its connections to plugins."""

    def __init__(self, directory: Path, journal: Journal, rng: random.Random, stop_grace_s: float) -> None:
        self.directory = directory
        self.stop_grace_s = stop_grace_s
        self.node: dict[str, tuple[int, int]] = {}  # the last status at the API server: capacity, allocatable
        self.active: dict[str, PodSpec] = {}  # pods bound to this node, by UID
        self._journal = journal
        self._rng = rng
        self.forget()

    def forget(self) -> None:
        """Drop the memory of the process. The Node, the pods and the checkpoint are outside of it."""
        self.listed: dict[str, Listed] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.holdings: Holdings = {}
        self.sources_ready = False
        self._orders: dict[str, Listed] = {}

    # What plugins do.

    def connected(self, client: PluginClient, options: pb.DevicePluginOptions) -> None:
        self.endpoints[client.resource] = PluginEndpoint(client, options)

    def disconnected(self, resource: str) -> None:
        """The stream ended: no device can be allocated, and the grace period begins."""
        endpoint = self.endpoints.get(resource)
        if endpoint is not None:
            self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
            if resource in self.healthy:
                self.healthy[resource] = set()
            endpoint.stopped_at = time.monotonic()
        self.refresh_node()
        self._journal.changed()

    def received(self, resource: str, message: bytes, at: float, *, repeated: bool) -> None:
        """Replace the state of the resource by this message, and rewrite the checkpoint."""
        listed = Listed(pb.ListAndWatchResponse.FromString(message).devices)
        healthy = {name for name, device in listed.by_id.items() if device.health == HEALTHY}
        self.listed[resource] = listed
        self.healthy[resource] = healthy
        self.unhealthy[resource] = listed.by_id.keys() - healthy
        self.save()
        self.refresh_node()
        update = DeviceListUpdate(
            at, resource, len(healthy), len(listed.by_id) - len(healthy), len(message), repeated
        )
        self._journal.updates.append(update)
        self._journal.changed()

    # What pods do.

    def manages(self, resource: str) -> bool:
        """Whether the limit counts: a resource that was never listed is skipped without an error."""
        return resource in self.healthy or resource in self.allocated

    def update_allocated(self) -> None:
        """Free the devices of ended pods. If there is none, return early and change nothing."""
        if not self.sources_ready:
            return
        gone = self.holdings.keys() - self.active.keys()
        if gone:
            for uid in gone:
                del self.holdings[uid]
            self.regenerate()

    def regenerate(self) -> None:
        """Set ``allocated`` to exactly what containers hold."""
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
        """Raises ``KubeletPanic`` for a device that is no longer listed, as Go does for the nil pointer."""
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
        """Yield these IDs as Go iterates over a map: in a fixed order, from a random position in it."""
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
        """Update the Node. After the grace period, the resource of a plugin without a stream stays with zeros."""
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
        """Start from the checkpoint: allocations stay, resources count zero until their plugins register.

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
            self.endpoints[resource] = PluginEndpoint(None, pb.DevicePluginOptions(), now)
        self.refresh_node()
