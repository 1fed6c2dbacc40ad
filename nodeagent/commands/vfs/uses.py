"""Who uses a VF. Taking it away would take it from them, and the kernel does not ask.

* a pod: the kubelet's podresources API names the VF among its devices;
* a network namespace: the VF's netdev or RDMA device is gone from here, while the folder that the kernel
  keeps for it is still there, empty;
* a program: its VFIO group or vhost-vdpa device is open. Of a UIO driver that cannot be told, nor of a VFIO
  group without access to its device node: such a VF counts as used;
* the host: its netdev lies under another one (a bond, a bridge, a VLAN), or is up with an IP address.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from nodeagent.host.sriov import BUS, VfNetlink, is_open
from nodeagent.host.sysfs import NET, Tree
from nodeagent.model import Function, Holding

log = logging.getLogger(__name__)

POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
_IFF_UP = 1


class Uses:
    """Asks the kubelet once, and only when something is to be taken away."""

    def __init__(self, tree: Tree, links: VfNetlink | None) -> None:
        self._tree, self._links = tree, links
        self._holders: dict[str, str] | None = None
        self.silence: str | None = None

    def of(self, vf: Function) -> tuple[str, ...]:
        """Sentences that begin with a verb; none where nobody uses the VF. Raises ``SriovError`` and
        ``SysfsError`` where that cannot be told."""
        found = [*self._pod(vf), *self._namespace(vf), *self._program(vf)]
        return tuple(found + (self._host(vf.netdev) if vf.netdev else []))

    def _pod(self, vf: Function) -> list[str]:
        if self._holders is None:
            socket = self._tree.path(POD_RESOURCES)
            holdings = self._ask(socket) if socket.is_socket() else ()
            self._holders = {
                device: f"is held by pod {holding.namespace}/{holding.pod} (container {holding.container})"
                for holding in holdings
                for device in holding.device_ids
            }
        holder = self._holders.get(vf.pci_address)
        return [holder] if holder else []

    def _ask(self, socket: Path) -> tuple[Holding, ...]:
        from nodeagent.kubelet import holdings

        try:
            return asyncio.run(holdings.once(socket))
        except holdings.PodResourcesError as error:
            self.silence = f"which pods hold VFs is not known: {error}"
            return ()

    def _namespace(self, vf: Function) -> list[str]:
        folder = f"{BUS}/devices/{vf.pci_address}"
        names = self._tree.names(folder)
        return [
            f"has lent its {what} to another network namespace"
            for name, what in (("net", "netdev"), ("infiniband", "RDMA device"))
            if vf.driver is not None and name in names and not self._tree.names(f"{folder}/{name}")
        ]

    def _program(self, vf: Function) -> list[str]:
        if vf.driver is not None and "uio" in vf.driver:
            return [f"is bound to {vf.driver}, and who uses it cannot be told; unbind it first"]
        nodes = [f"/dev/vfio/{vf.vfio_group}"] if vf.vfio_group else []
        found = []
        for node in nodes + ([vf.vdpa] if vf.vdpa else []):
            answer = is_open(self._tree, node)
            if answer is None:
                found.append(
                    f"is bound to {vf.driver}, and whether a program has {node} open cannot be told; unbind it first"
                )
            elif answer:
                found.append(f"is held by a program that has {node} open")
        return found

    def _host(self, netdev: str) -> list[str]:
        names = self._tree.names(f"{NET}/{netdev}")
        found = [
            f"has a netdev, {netdev}, that lies under {name.removeprefix('upper_')}"
            for name in names
            if name.startswith("upper_")
        ]
        if self._links is not None and (self._tree.integer(f"{NET}/{netdev}/flags") or 0) & _IFF_UP:
            addresses = self._links.addresses(netdev)
            if addresses:
                found.append(f"has a netdev, {netdev}, that is up with {', '.join(addresses)}")
        return found
