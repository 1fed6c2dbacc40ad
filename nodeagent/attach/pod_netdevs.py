"""Move the netdevs of VFs into the network namespace of a pod, and back. Every call blocks.

* A VF is found by its PCI address in the host's namespace or in the pod's, never by a name.
* All VFs of a pod come or none: what this call has moved goes back if a step fails. Each step may be repeated.
* The RDMA device of a VF goes with its netdev (``PodRdma``).
* A netdev that is in the pod under another name was moved by somebody else, such as a CNI plugin: it stays as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from errno import EEXIST, ENOENT
from ipaddress import ip_interface
from typing import NamedTuple

from nodeagent.attach.address_plan import VfAddress
from nodeagent.attach.attach_files import AttachStep
from nodeagent.attach.host_names import HostState
from nodeagent.attach.pod_plan import PodLink
from nodeagent.attach.pod_rdma import PodRdma
from nodeagent.attach.share_netdevs import is_share, share_group, share_of
from nodeagent.base.bounded_calls import enter
from nodeagent.host.netlink.addresses import addresses_by_ifindex
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.namespaces import ARP_ANNOUNCE, ARP_IGNORE, NamespaceNetdevs
from nodeagent.host.netlink.netdevs import Netdev

log = logging.getLogger(__name__)

DeviceOf = Callable[[Netdev], str | None]
"""The PCI address of the VF that a netdev belongs to. The kernel names it since Linux 5.14."""
_SYSCTLS = {ARP_IGNORE: 1, ARP_ANNOUNCE: 2}
"""Each NIC answers for its own addresses only: by default each one answers for all addresses of the pod."""
_FREE_NAME = "dev%d"
HOST_NAMESPACE = "/proc/self/ns/net"


class AttachError(Exception):
    """A netdev could not be moved. The message names the VF, the step and the cause; ``step`` is for the metrics."""

    def __init__(self, message: str, step: AttachStep) -> None:
        super().__init__(message)
        self.step = step


def pci_device(netdev: Netdev) -> str | None:
    return netdev.pci_address or share_of(netdev)


class OpenNamespace(NamedTuple):
    """The netdevs of one namespace, with its descriptor."""

    descriptor: int
    netdevs: NamespaceNetdevs


@contextmanager
def open_namespace(path: str) -> Iterator[OpenNamespace]:
    """Open a network namespace. Raises ``AttachError``."""
    enter(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise AttachError(
            f"the network namespace {path} cannot be opened: {error.strerror}", "namespace"
        ) from error
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            place = OpenNamespace(descriptor, stack.enter_context(NamespaceNetdevs(descriptor)))
        except (NetlinkError, TimeoutError) as error:
            raise AttachError(f"{path}: {error}", "namespace") from error
        yield place


def attach(
    host: OpenNamespace,
    pod: OpenNamespace,
    links: Iterable[PodLink],
    names: Mapping[str, str],
    device_of: DeviceOf,
    rdma: PodRdma,
) -> int:
    """Give a pod these netdevs. ``names`` are those on the host, by PCI address. Return how many have moved. Raises
    ``AttachError``."""
    moved: list[str] = []
    step: AttachStep = "find"
    link = None
    try:
        on_host, inside = devices_in(host, device_of), devices_in(pod, device_of)
        for link in links:
            step = "find"
            there = inside.get(link.device)
            if there is None:
                here = on_host.get(link.parent or link.device)
                if here is None:
                    raise NetlinkError(_nowhere(link))
                moved.append(link.device)
                step = "move"
                enter(f"move {link.device}")
                _bring(host, pod, here, link)
                there = _find(pod, link.device, device_of)
                if there is None:
                    raise NetlinkError("its netdev left the host and is not in the pod")
            elif there.name == names.get(link.device):  # an end between the two halves of a move
                step = "name"
                pod.netdevs.rename(there.ifindex, link.name)
            elif there.name != link.name:
                continue
            if link.parent is None:
                step = "rdma"
                enter(f"move the RDMA device of {link.device}")
                rdma.bring(host.descriptor, pod.descriptor, link.device)
            step = "set up"
            enter(f"set up {link.device}")
            pod.netdevs.set_up(there.ifindex, link.mtu, _SYSCTLS)
            step = "address"
            _give_addresses(pod, there, link)
        return len(moved)
    except NetlinkError as error:
        if link is None:
            raise AttachError(str(error), step) from error
        for device in reversed(moved):
            give_back(host, pod, device, names.get(device), device_of, rdma)
        raise _failure(link, step, error) from error


def _failure(link: PodLink, step: AttachStep, error: NetlinkError) -> AttachError:
    taken = _taken(error) and step in ("move", "name")
    why = f"; the pod has a netdev {link.name} already" if taken else ""
    return AttachError(f"{link.device} as {link.name}: {step}: {error}{why}", step)


def _give_addresses(pod: OpenNamespace, netdev: Netdev, link: PodLink) -> None:
    """Give a netdev in a pod the addresses that it lacks, with their routes and rules."""
    for address in _lacking(pod, netdev, link.addresses):
        pod.netdevs.add_address(netdev.ifindex, address)
        pod.netdevs.route_by_source(netdev.ifindex, address, link.table)
        for route in link.routes:
            if route.destination.version == address.version:
                pod.netdevs.add_route(netdev.ifindex, route.destination, route.gateway, address, link.table)


def _nowhere(link: PodLink) -> str:
    if link.parent is not None:
        return f"the netdev of {link.parent} is not on the host"
    return "its netdev is neither on the host nor in the pod"


def _bring(host: OpenNamespace, pod: OpenNamespace, here: Netdev, link: PodLink) -> None:
    """Move the netdev of a VF into a pod, or make that of a share there on the PF's."""
    if link.parent is None:
        host.netdevs.move(here.ifindex, pod.descriptor, link.name)
        return
    group = share_group(link.device)
    if group is None:
        raise NetlinkError(
            "the PCI domain of its HCA is above 1f: netdevs of such shares cannot be told apart"
        )
    mac = bytes.fromhex(link.mac.replace(":", ""))
    host.netdevs.add_macvlan(here.ifindex, pod.descriptor, link.name, mac, group)


def give_back(
    host: OpenNamespace,
    pod: OpenNamespace,
    device: str,
    name: str | None,
    device_of: DeviceOf,
    rdma: PodRdma,
) -> bool:
    """Put a netdev of a pod back to the host, down, under its name there or a free one, after the RDMA device of its
    VF; remove that of a share. Return whether it is there now, or removed; it never was in the pod, or cannot leave it,
    otherwise."""
    if not is_share(device):
        try:
            rdma.give_back(host.descriptor, pod.descriptor, device)
        except NetlinkError as error:  # the kernel returns it at the end of the namespace
            log.warning("An RDMA device does not leave its pod. vf=%s reason=%r", device, str(error))
    with suppress(NetlinkError):
        there = _find(pod, device, device_of)
        if is_share(device):
            if there is not None:
                pod.netdevs.remove(there.ifindex)
            return True
        for target in (name, _FREE_NAME):
            if there is None:
                break
            if target is not None:
                with suppress(NetlinkRefusedError):
                    pod.netdevs.move(there.ifindex, host.descriptor, target)
            there = _find(pod, device, device_of)
        here = _find(host, device, device_of)
        if here is not None and name is not None and here.name != name:
            _rename(host, here, name)
        return here is not None
    return False


def host_state(host: OpenNamespace, netdev: Netdev) -> HostState:
    """Return what a NIC as a whole has on the host. Raises ``NetlinkError``."""
    own = addresses_by_ifindex(host.netdevs, lasting=True).get(netdev.ifindex, ())
    kept = tuple(str(one) for one in own if not one.is_link_local)
    return HostState(kept, netdev.mtu, netdev.admin_up)


def restore_state(host: OpenNamespace, netdev: Netdev, state: HostState) -> None:
    """Give a NIC as a whole on the host what it had there: MTU, up, addresses. The kernel adds the routes of these."""
    try:
        if state.up:
            host.netdevs.set_up(netdev.ifindex, state.mtu, {})
        for address in state.addresses:
            host.netdevs.add_address(netdev.ifindex, ip_interface(address))
        log.info("A NIC is on the host again. netdev=%s addresses=%s", netdev.name, ",".join(state.addresses))
    except NetlinkRefusedError as error:
        log.warning("A NIC does not get back what it had. netdev=%s reason=%r", netdev.name, str(error))


def restore_name(host: OpenNamespace, netdev: Netdev, name: str | None) -> None:
    """Give a VF on the host its name there: the kernel returns the netdevs of a namespace that died under the pod's
    name, or as ``dev0``. If another netdev has the name now, it stays as it is."""
    if name not in (None, netdev.name):
        _rename(host, netdev, name)


def devices_in(place: OpenNamespace, device_of: DeviceOf) -> dict[str, Netdev]:
    """The netdevs of a namespace that belong to a device, by PCI address. Raises ``NetlinkError``."""
    found = {device_of(netdev): netdev for netdev in place.netdevs.read()}
    return {device: netdev for device, netdev in found.items() if device is not None}


def _lacking(pod: OpenNamespace, netdev: Netdev, addresses: tuple[VfAddress, ...]) -> tuple[VfAddress, ...]:
    """Those of the addresses that a netdev in a pod is to get. One that has another IPv4 address, from an earlier plan,
    keeps it until its pod ends: connections would break. IPv6 addresses are given in any case, because the pod may have
    others by router advertisements."""
    if not addresses:
        return ()
    present = addresses_by_ifindex(pod.netdevs).get(netdev.ifindex, ())
    own = {one for one in present if one.version == 4 and not one.is_link_local}
    return tuple(one for one in addresses if one.version == 6 or one in own or not own.difference(addresses))


def _find(place: OpenNamespace, device: str, device_of: DeviceOf) -> Netdev | None:
    return devices_in(place, device_of).get(device)


def _rename(host: OpenNamespace, netdev: Netdev, name: str) -> None:
    try:
        host.netdevs.rename(netdev.ifindex, name)
        log.info("A VF has its name on the host again. netdev=%s was=%s", name, netdev.name)
    except NetlinkRefusedError as error:
        if error.code != EEXIST:
            log.warning("A VF cannot be renamed. netdev=%s name=%s reason=%r", netdev.name, name, str(error))


def _taken(error: NetlinkError) -> bool:
    return isinstance(error, NetlinkRefusedError) and error.code in (EEXIST, ENOENT)
