"""The netdevs of the VFs of this node, wherever they are: on the host or in a pod. Every call blocks.

Each opens the namespaces that it needs, by their paths, and closes them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from nodeagent.attach.host_names import HostNames
from nodeagent.attach.pod_netdevs import (
    HOST_NAMESPACE,
    AttachError,
    DeviceOf,
    OpenNamespace,
    attach,
    devices_in,
    give_back,
    host_state,
    open_namespace,
    pci_device,
    restore_name,
    restore_state,
)
from nodeagent.attach.pod_plan import AttachPlan, PodLink, has_our_name
from nodeagent.attach.pod_rdma import PodRdma
from nodeagent.attach.share_netdevs import is_share
from nodeagent.host.netlink.addresses import addresses_by_ifindex
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.netdevs import Netdev

log = logging.getLogger(__name__)

_ANSWERS_S = 0.2
"""A NIC of the same L2 network answers within milliseconds; the runtime waits for two seconds."""


class Inside(NamedTuple):
    """A netdev in a pod, with its addresses there."""

    name: str
    addresses: tuple[str, ...]


class NodeNetdevs:
    """``device_of`` is the kernel's own word, and ``host`` the namespace of this process, except in tests and the
    laboratory. Raises ``AttachError`` and ``NetlinkError``."""

    def __init__(
        self,
        names: HostNames,
        device_of: DeviceOf = pci_device,
        host: str = HOST_NAMESPACE,
        rdma: PodRdma | None = None,
    ) -> None:
        self._names, self._device_of, self._host = names, device_of, host
        self._rdma = rdma or PodRdma()

    def on_host(self, plan: AttachPlan) -> dict[str, Netdev]:
        """Return the netdevs of devices on the host, by PCI address, and keep the names of VFs among them."""
        with open_namespace(self._host) as host:
            return self._learn(host, plan)

    def inside(self, network: str) -> dict[str, Inside]:
        """The netdevs of devices in the namespace of a sandbox, by PCI address; none if it is gone."""
        if network:
            with suppress(AttachError, NetlinkError), open_namespace(network) as place:
                return self._inside(place)
        return {}

    def attach(self, network: str, links: Collection[PodLink]) -> dict[str, Inside]:
        """Give a pod these netdevs, and return those that it has then."""
        with open_namespace(self._host) as host, open_namespace(network) as there:
            new = {link.device for link in links} - devices_in(there, self._device_of).keys()
            self._refuse_duplicates(host, [link for link in links if link.device in new])
            here = devices_in(host, self._device_of)
            nics = {
                link.device: host_state(host, here[link.device])
                for link in links
                if link.whole and link.device in new & here.keys()
            }
            self._names.leave({device for device in new if not is_share(device)}, nics)
            attach(host, there, links, self._names.known, self._device_of, self._rdma)
            return self._inside(there)

    def give_back(self, network: str, devices: Collection[str], plan: AttachPlan | None) -> None:
        """Put the netdevs of these VFs that are in a pod by us back to the host."""
        with open_namespace(self._host) as host, open_namespace(network) as pod:
            present = devices_in(pod, self._device_of)
            for device in devices:
                netdev = present.get(device)
                if netdev is None or not self._is_ours(plan, device, netdev.name):
                    continue
                name = self._names.known.get(device)
                if not give_back(host, pod, device, name, self._device_of, self._rdma):
                    log.warning("A VF does not leave its pod. vf=%s namespace=%s", device, network)
            if plan is not None and not self._names.left.keys().isdisjoint(devices):
                self._learn(host, plan)

    def restore_names(self, plan: AttachPlan) -> dict[str, Netdev]:
        """Give VFs that came back by themselves their names on the host. Return the netdevs there, as before."""
        with open_namespace(self._host) as host:
            found = self._learn(host, plan)
            foreign = {
                device: netdev
                for device, netdev in found.items()
                if self._is_known(plan, device) and self._is_foreign(plan, device, netdev.name)
            }
            for device, netdev in foreign.items():
                restore_name(host, netdev, self._names.known.get(device))
            return self._learn(host, plan) if foreign.keys() & self._names.left.keys() else found

    def _refuse_duplicates(self, host: OpenNamespace, links: Collection[PodLink]) -> None:
        """Ask over the PFs, which are up, whether another NIC has one of the addresses."""
        found = devices_in(host, self._device_of)
        asked: dict[tuple[int, IPv4Address | IPv6Address], PodLink] = {}
        try:
            for link in links:
                pf = None if link.asks is None else found.get(link.asks)
                if pf is None:
                    continue
                for own in link.addresses:
                    with suppress(NetlinkRefusedError):  # a PF that is down cannot ask
                        if host.netdevs.ask_for(pf.ifindex, own.ip):
                            asked[pf.ifindex, own.ip] = link
            if asked:
                time.sleep(_ANSWERS_S)
            answers = host.netdevs.answered() if asked else {}
        finally:
            for ifindex, address in asked:
                host.netdevs.forget(ifindex, address)
        for key, link in asked.items():
            vf, mac = found.get(link.device), answers.get(key)
            if mac is not None and (vf is None or mac != vf.mac):
                raise AttachError(
                    f"{link.device} as {link.name}: probe: {key[1]} is in use by the NIC {mac.hex(':')}",
                    "probe",
                )

    def _inside(self, place: OpenNamespace) -> dict[str, Inside]:
        addresses = addresses_by_ifindex(place.netdevs)
        return {
            device: Inside(
                netdev.name,
                tuple(str(one) for one in addresses.get(netdev.ifindex, ()) if not one.is_link_local),
            )
            for device, netdev in devices_in(place, self._device_of).items()
        }

    def _learn(self, host: OpenNamespace, plan: AttachPlan) -> dict[str, Netdev]:
        found = devices_in(host, self._device_of)
        own = {
            device: netdev
            for device, netdev in found.items()
            if self._is_known(plan, device) and not self._is_foreign(plan, device, netdev.name)
        }
        for device in own.keys() & self._names.left.keys():
            restore_state(host, own[device], self._names.left[device])
        self._names.learn({device: netdev.name for device, netdev in own.items()})
        return found

    def _is_known(self, plan: AttachPlan, device: str) -> bool:
        """Whether it is ours to name. A NIC that left by an earlier plan comes back too."""
        return device in plan.vfs or device in self._names.left

    def _is_ours(self, plan: AttachPlan | None, device: str, name: str) -> bool:
        """Whether a netdev in a pod is there by us; the pod may have renamed it, the file of names may be lost."""
        if plan is None or device not in plan.vfs or is_share(device):
            return True
        return device in self._names.away or has_our_name(plan, device, name)

    def _is_foreign(self, plan: AttachPlan, device: str, name: str) -> bool:
        """Whether a VF on the host has a name from a pod, or one that the kernel made because that was taken. The host
        itself may name a NIC as a whole ``rail0``: its name is its own unless it comes from a pod."""
        if device not in plan.vfs or plan.vfs[device].whole:
            return self._names.is_foreign(device, name)
        return (
            self._names.is_foreign(device, name)
            or has_our_name(plan, device, name)
            or re.fullmatch(r"dev[0-9]+", name) is not None
        )
