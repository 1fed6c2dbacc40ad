"""Find the users of a VF. The kernel removes a VF without a check for users.

* a pod: the kubelet's podresources API lists the VF among its devices;
* a network namespace: the VF's netdev or RDMA device is not here, but the kernel's folder for it still exists,
  empty;
* a program: the VF's VFIO group or vhost-vdpa device is open. This is unknown for a UIO driver, and for a VFIO group
  without access to its device node: such a VF counts as used, except with ``force``;
* the host: the VF's netdev is below another one (a bond, a bridge, a VLAN), or up with an IP address.

A VF of the first three kinds is *held*. The host's own use prevents a removal and another driver, not a setting.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from nodeagent.console.options import KUBELET_DIR
from nodeagent.facts.model import Function
from nodeagent.host.sriov import BUS, VfNetlink, is_open
from nodeagent.host.sysfs import NET, Tree, is_live

log = logging.getLogger(__name__)

POD_RESOURCES = "pod-resources/kubelet.sock"
_IFF_UP = 1


class PodHolders:
    """The VFs that pods hold, read from the kubelet once, and only if a VF that exists would be removed or changed.

    ``wait_s``: how long to wait for a kubelet that restarts. ``kubelet_dir``: its root, in the tree or, in the agent's
    own container, outside of it.
    """

    def __init__(self, tree: Tree, wait_s: float = 0.0, kubelet_dir: Path = Path(KUBELET_DIR)) -> None:
        self._tree, self._wait_s, self._socket = tree, wait_s, kubelet_dir / POD_RESOURCES
        self._holders: dict[str, str] | None = None
        self.error: str | None = None
        """Why the pods that hold VFs are unknown; known after the first question."""

    def of(self, vf: Function) -> str | None:
        if self._holders is None:
            self._holders = self._read()
        return self._holders.get(vf.pci_address)

    def _read(self) -> dict[str, str]:
        from nodeagent.kubelet import holdings

        socket = self._tree.path(str(self._socket))
        if not socket.is_socket() and self._socket.is_socket() and is_live(self._tree):
            # In the agent's own container the kubelet's folder is not below the host's root.
            socket = self._socket
        try:
            held = asyncio.run(holdings.settled(socket, self._wait_s))
        except holdings.PodResourcesError as error:
            root = "" if socket.is_socket() else "; --kubelet-dir takes another --root-dir of the kubelet"
            self.error = f"the pods that hold VFs are unknown: {error}{root}"
            return {}
        return {
            device: f"is held by pod {holding.namespace}/{holding.pod} (container {holding.container})"
            for holding in held
            for device in holding.device_ids
        }


class VfUsers:
    """The users of VFs. ``force``: a VF whose users are unknown counts as unused; a VF with a known user never does."""

    def __init__(
        self, tree: Tree, netlink: VfNetlink | None, holders: PodHolders | None = None, *, force: bool = False
    ) -> None:
        self._tree, self._netlink, self.force = tree, netlink, force
        self._holders = holders or PodHolders(tree)

    @property
    def error(self) -> str | None:
        """Why the pods that hold VFs are unknown; known after the first question."""
        return self._holders.error

    def of(self, vf: Function) -> tuple[str, ...]:
        """Sentences that begin with a verb; empty if no user is known. Raises ``SriovError`` and ``SysfsError`` if
        the machine cannot be read."""
        return (*self.holders(vf), *(self._host(vf.netdev) if vf.netdev else ()))

    def holders(self, vf: Function) -> tuple[str, ...]:
        """As ``of``, without the host's own use."""
        return (*self._pod(vf), *self._namespace(vf), *self._program(vf))

    def _pod(self, vf: Function) -> list[str]:
        holder = self._holders.of(vf)
        return [holder] if holder else []

    def _namespace(self, vf: Function) -> list[str]:
        folder = f"{BUS}/devices/{vf.pci_address}"
        names = self._tree.names(folder)
        return [
            f"has its {what} in another network namespace"
            for name, what in (("net", "netdev"), ("infiniband", "RDMA device"))
            if vf.driver is not None and name in names and not self._tree.names(f"{folder}/{name}")
        ]

    def _program(self, vf: Function) -> list[str]:
        unknown = "unbind it first, or add --force"
        if vf.driver is not None and "uio" in vf.driver and not self.force:
            return [f"is bound to {vf.driver}, and its users are unknown; {unknown}"]
        nodes = [f"/dev/vfio/{vf.vfio_group}"] if vf.vfio_group else []
        uses = []
        for node in nodes + ([vf.vdpa] if vf.vdpa else []):
            in_use = is_open(self._tree, node)
            if in_use is None and not self.force:
                uses.append(
                    f"is bound to {vf.driver}, and it is unknown whether a program has {node} open; {unknown}"
                )
            elif in_use:
                uses.append(f"is held by a program that has {node} open")
        return uses

    def _host(self, netdev: str) -> list[str]:
        names = self._tree.names(f"{NET}/{netdev}")
        uses = [
            f"has a netdev, {netdev}, that is below {name.removeprefix('upper_')}"
            for name in names
            if name.startswith("upper_")
        ]
        if self._netlink is not None and (self._tree.integer(f"{NET}/{netdev}/flags") or 0) & _IFF_UP:
            addresses = self._netlink.addresses(netdev)
            if addresses:
                uses.append(f"has a netdev, {netdev}, that is up with {', '.join(addresses)}")
        return uses
