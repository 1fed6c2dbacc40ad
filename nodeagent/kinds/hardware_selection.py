"""Which PFs and GPUs a configuration selects. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from nodeagent.config.formats import index_range
from nodeagent.facts.model import Function, Gpu, Link
from nodeagent.kinds.resource_settings import GpuSelect, PfSelect, VfResource

_GLOB = re.compile(r"[*?\[]")


def selected_pf(select: PfSelect, function: Function) -> bool:
    """Whether a PF matches every list that is not empty, and none of ``exclude``."""
    netdev, address, driver = function.netdev or "", function.pci_address, function.driver or ""
    return (
        (not select.vendors or function.vendor in select.vendors)
        and (not select.devices or function.device in select.devices)
        and (not select.drivers or matches(driver, select.drivers))
        and (not select.pci_addresses or matches(address, select.pci_addresses))
        and (not select.netdevs or matches(netdev, select.netdevs))
        and not matches(netdev, select.exclude)
        and not matches(address, select.exclude)
    )


def selected_gpus(select: GpuSelect, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that match every list that is not empty."""
    indexes = [index_range(text) for text in select.indexes]
    return tuple(
        gpu
        for gpu in gpus
        if (not select.uuids or gpu.uuid in select.uuids)
        and (not indexes or any(gpu.index in index for index in indexes))
        and (not select.pci_addresses or matches(gpu.pci_address, select.pci_addresses))
        and (not select.models or matches(gpu.name, select.models))
    )


def literal_addresses(select: PfSelect) -> tuple[str, ...]:
    """Return ``pciAddresses`` if none is a glob: their order is then the order of the rails."""
    if any(_GLOB.search(address) for address in select.pci_addresses):
        return ()
    return select.pci_addresses


def offers_vfs_of(entry: VfResource, function: Function, link: Link | None = None) -> bool:
    """Whether an entry offers the VFs of a PF. Without a ``link`` its last values decide."""
    select = entry.select
    if not selected_pf(select, function):
        return False
    if link is not None and link.default_route:
        return False
    if select.link_types and function.link_type not in select.link_types:
        return False
    if select.rdma is not None and (function.rdma is not None) != select.rdma:
        return False
    # A link that is down has no speed; it stays selected, and its health shows that it is down.
    speed = link.speed_mbps if link is not None else None
    return speed is None or speed >= select.min_speed_mbps


def matches(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)
