"""The variable NCCL_IB_HCA of a claim: the RDMA devices of its VFs with their rails and planes. Pure.

An entry is ``<device>:<port>:<rail>:<plane>``. NCCL reads rail and plane since 2.30, and skips them before; without a
port, versions before 2.30 would match no device. A VF has one port. The list filters and tells the rails; NCCL puts
the devices in the order of their PCI addresses, whatever the order of the list (``src/transport/net_ib/init.cc``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nodeagent.dra.devices import DraDevice
from nodeagent.facts.model import Function


def ib_hca(vfs: Collection[str], devices: Iterable[DraDevice], functions: Iterable[Function]) -> str | None:
    """Return the value for the VFs of a claim, by rail and plane; ``None`` if none has an RDMA device.

    ``devices`` are all devices of the node: the PFs of one rail are its planes, numbered in PCI order.
    """
    rails = {device.parent: device.rail for device in devices if device.rail is not None}
    planes = {pf: [it for it in sorted(rails) if rails[it] == rail].index(pf) for pf, rail in rails.items()}
    several = {rails[pf] for pf, plane in planes.items() if plane}
    entries = []
    for vf in functions:
        if vf.pci_address in vfs and vf.rdma is not None and vf.vdpa is None:
            pf = vf.parent or vf.pci_address
            rail, plane = rails.get(pf, -1), planes.get(pf, -1)
            tags = [] if rail < 0 else [rail, plane] if rail in several else [rail]
            entries.append((rail, plane, vf.pci_address, ":".join(map(str, (vf.rdma.device, 1, *tags)))))
    return "=" + ",".join(entry for *_, entry in sorted(entries)) if entries else None
