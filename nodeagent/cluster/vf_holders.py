"""The pods that hold VFs, for the report of a node. Pure.

The time of a pod is that at which the agent saw it first, and it stays as long as the pod holds VFs. So a report
changes only when a pod comes or goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.fabric.nodelinks import HeldVf, NodeLinks, VfHolder
from nodeagent.facts.model import Snapshot

HOLDERS_MAX = 128
"""Pods of a report, above the 110 that a kubelet runs by default; the definition has the same bound."""
HELD_VFS_MAX = 128
"""VFs of one pod."""


def vf_holders(
    snapshot: Snapshot, names: Mapping[str, str], before: NodeLinks | None, stamp: str
) -> tuple[VfHolder, ...]:
    """The pods with VFs, in the order of their names. ``names``: the names of the links by the address of the PF."""
    last = () if before is None else before.holders
    if snapshot.holdings is None:
        return last
    since = {(holder.namespace, holder.pod): holder.since for holder in last}
    links = {
        function.pci_address: names[function.parent]
        for function in snapshot.functions
        if function.parent is not None and function.parent in names
    }
    held: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for holding in snapshot.holdings:
        vfs = {(links[id_], id_) for id_ in holding.device_ids if id_ in links}
        if vfs and holding.pod:  # a claim may have no pod yet
            held.setdefault((holding.namespace, holding.pod), set()).update(vfs)
    return tuple(
        VfHolder(
            namespace=namespace,
            pod=pod,
            vfs=tuple(HeldVf(link=link, pci_address=id_) for link, id_ in sorted(vfs)[:HELD_VFS_MAX]),
            since=since.get((namespace, pod), stamp),
        )
        for (namespace, pod), vfs in sorted(held.items())[:HOLDERS_MAX]
    )
