"""Decide what the kubelet may get: no kind whose source has not published, and no device that a claim may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.dra.devices import SOURCES, DraDevice
from nodeagent.dra.offered import OfferedPools, held_by_claims, without_plugin_holders
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.resource_settings import (
    ResourceSettings,
)
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.kubelet.withheld import UnwritableFile, Withheld
from nodeagent.offering.offer import Offer
from nodeagent.sources.pci_source import PRODUCT_FILE


def decide(
    offer: Offer,
    snapshot: Snapshot,
    inventory: Inventory,
    by_claims: Iterable[Holding] | None,
    rails: RailMemory,
    sizes: SliceSizes,
    *,
    pod_resources: bool,
) -> tuple[list[DeviceKind], list[Withheld]]:
    """Return the kinds that may be offered once their files are written, and the resources that may not.

    ``inventory`` says which sources have published. ``by_claims``: what prepared claims hold, ``None`` while their
    records cannot be read. ``pod_resources``: whether the kubelet says what pods hold.
    """
    offered: list[DeviceKind] = []
    withheld: list[Withheld] = []
    no_claims = by_claims == ()
    for kind in offer.kinds(snapshot):
        settled: DeviceKind | str
        if (missing := _missing_source(offer, kind, snapshot, inventory)) is not None:
            settled = missing
        elif (refusal := kind.refusal(snapshot)) is not None:
            settled = refusal
        elif inventory.has_published("paths") and (lack := kind.obstacle(snapshot)) is not None:
            settled = lack
        elif not no_claims and (claimed := held_by_claims(kind.hardware(snapshot), by_claims)):
            settled = claimed
        elif (obstacle := rails.obstacle(kind, snapshot)) is not None:
            settled = obstacle
        else:
            settled = sizes.settle(kind, snapshot, pod_resources=pod_resources)
        if isinstance(settled, str):
            withheld.append(Withheld(kind.resource, settled))
        else:
            offered.append(settled)
    withheld += _unnamed(offer, snapshot, inventory)
    return offered, withheld


def offered_pools(
    offer: Offer,
    devices: Iterable[DraDevice],
    snapshot: Snapshot,
    inventory: Inventory,
    files: OfferFiles,
    *,
    pod_resources: bool,
    unwritable: UnwritableFile | None = None,
) -> OfferedPools:
    """Return the devices of the pools whose facts are known and that no device plugin's pod holds. ``unwritable`` is a
    file that each claim needs."""
    by_pool: dict[str, list[DraDevice]] = {name: [] for name in sorted(offer.dra_pools)}
    for device in devices:
        by_pool[device.pool].append(device)
    awaited = {"pods"} if pod_resources else set()
    pools: dict[str, tuple[DraDevice, ...] | None] = {}
    left_out: list[DraDevice] = []
    for name, members in by_pool.items():
        pools[name] = None
        if all(inventory.has_published(source) for source in {SOURCES[name]} | awaited):
            pools[name], held = without_plugin_holders(members, snapshot)
            left_out += held
    found = ((device, files.obstacle(device.kind, snapshot) or unwritable) for device in devices)
    obstacles = {device.name: str(file) for device, file in found if file is not None}
    if inventory.has_published("paths"):
        obstacles |= {it.name: lack for it in devices if (lack := it.kind.obstacle(snapshot)) is not None}
    return OfferedPools(pools, obstacles, tuple(left_out))


def _missing_source(offer: Offer, kind: DeviceKind, snapshot: Snapshot, inventory: Inventory) -> str | None:
    """Return why the facts of a kind are not known yet: an empty list would be wrong."""
    # With "auto" the product, which the PCI source publishes, is part of every resource's name.
    auto = offer.config.resource_prefix == "auto"
    by_index = kind.source == "gpus" and any(map(_counts_gpus, offer.config.resources))
    for source in sorted({kind.source, "pci"} if auto or by_index else {kind.source}):
        if not inventory.has_published(source):
            return _why_missing(source, snapshot)
    if auto and snapshot.product is None and any(one.value == "product" for one in snapshot.unread):
        return (
            f"{PRODUCT_FILE} cannot be read, and the product is a part of each resource's name; set "
            "resourcePrefix to offer the devices without it"
        )
    return None


def _counts_gpus(entry: ResourceSettings) -> bool:
    """Whether it takes GPUs by index: the PCI bus shows those that the driver does not count."""
    return "{gpu}" in entry.name or bool(getattr(entry.select, "indexes", ()))


def _unnamed(offer: Offer, snapshot: Snapshot, inventory: Inventory) -> Iterator[Withheld]:
    """Yield the entries whose resources get their names from PFs or GPUs that are not known yet."""
    for entry in offer.config.resources:
        if "{" not in entry.name:
            continue
        if not inventory.has_published(entry.source):
            yield Withheld(entry.name, _why_missing(entry.source, snapshot))
        elif offer.awaits_holdings(entry):
            why = "the file of the rails is gone, and what pods hold, which decides the numbers, is not known yet"
            cause = (entry.reason for entry in snapshot.stale_sources if entry.source == "pods")
            yield Withheld(entry.name, ": ".join((why, *cause)))
        elif (wait := offer.wait(entry)) is not None:
            yield Withheld(entry.name, wait)


def _why_missing(source: str, snapshot: Snapshot) -> str:
    reasons = (entry.reason for entry in snapshot.stale_sources if entry.source == source)
    return next(reasons, f"{source} are not known yet")
