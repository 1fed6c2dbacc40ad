"""Which PFs and GPUs a configuration selects. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from nodeagent.config.formats import index_range
from nodeagent.facts.model import Function, Gpu, Link
from nodeagent.kinds.resource_settings import GpuSelect, HcaSelect, NetworkResource, NicSelect, PfSelect

_GLOB = re.compile(r"[*?\[]")


def selected_pf(
    select: PfSelect, function: Function, unread: Collection[str] = (), *, doubt: bool = False
) -> bool:
    """Whether a PF matches every list that is not empty, and none of ``exclude``.

    ``unread`` are the fields whose values are not known; with ``doubt`` they match.
    """
    netdev, address, driver = function.netdev or "", function.pci_address, function.driver or ""

    def met(field: str, is_met: bool) -> bool:
        return doubt if field in unread else is_met

    excluded_names = [glob for glob in select.exclude if ":" not in glob]  # a netdev's name has none
    return (
        (not select.vendors or function.vendor in select.vendors)
        and (not select.devices or function.device in select.devices)
        and (not select.drivers or met("driver", matches(driver, select.drivers)))
        and (not select.pci_addresses or matches(address, select.pci_addresses))
        and (not select.netdevs or met("netdev", matches(netdev, select.netdevs)))
        and (not select.link_types or met("link_type", function.link_type in select.link_types))
        and (not excluded_names or met("netdev", not matches(netdev, excluded_names)))
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


def offers_vfs_of(
    entry: NetworkResource,
    function: Function,
    link: Link | None = None,
    unread: Collection[str] = (),
    *,
    doubt: bool = False,
) -> bool:
    """Whether an entry offers the VFs of a PF, its shares, or the PF as a whole as far as its VFs leave it.

    Without a ``link`` its last values decide. ``unread`` and ``doubt``: see ``selected_pf``.
    """
    select = entry.select
    # A link that is down has no speed; it stays selected, and its health shows that it is down.
    speed = link.speed_mbps if link is not None else None
    kept = link is not None and (is_routed(select, link) or (entry.whole and link.node_address))

    def met(field: str, is_met: bool) -> bool:
        return doubt if field in unread else is_met

    return (
        selected_pf(select, function, unread, doubt=doubt)
        and met("default_route", not kept)
        and (select.rdma is None or met("rdma", (function.rdma is not None) == select.rdma))
        and (not select.min_speed_mbps or met("speed_mbps", speed is None or speed >= select.min_speed_mbps))
    )


def is_routed(select: HcaSelect | NicSelect, link: Link) -> bool:
    """Whether a PF is left out because it carries the default route of the host."""
    kept = select.over_route or (link.bonded and select.over_bonds)
    return link.default_route and not kept


def matches(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)
