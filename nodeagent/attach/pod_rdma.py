"""The RDMA devices of VFs in pods, in the kernel's exclusive RDMA mode. Every call blocks.

In this mode an RDMA device is in one network namespace, and a program opens only those of its own. So it moves with the
netdev: after it into the pod, before it back. The netdev's return makes others look for VFs, and one without its RDMA
device would be found as such.

Nothing is kept: the verbs node of a VF is in sysfs wherever the RDMA device is, and names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.netlink.namespaces import in_namespace
from nodeagent.host.netlink.rdma_devices import RdmaDevices
from nodeagent.host.rdma_mode import rdma_exclusive
from nodeagent.host.sysfs import SysfsError, Tree

T = TypeVar("T")

log = logging.getLogger(__name__)

_FUNCTION = "/sys/bus/pci/devices/{}"
_MOVE_S = 10.0
"""The kernel takes the device from all its users and gives it to them again, with commands to the firmware."""

OpenRdma = Callable[[], RdmaDevices]


class PodRdma:
    """``tree`` has the ``/sys`` of the host's network namespace. ``connect`` opens a socket in the namespace of the
    thread that calls it; it differs in tests alone."""

    def __init__(self, tree: Tree | None = None, connect: OpenRdma = RdmaDevices) -> None:
        self._tree, self._connect = tree or Tree(), connect

    def bring(self, host: int, pod: int, device: str) -> None:
        """Move the RDMA device of a VF from the host to a pod: descriptors of their network namespaces. Nothing in the
        shared mode, and for a VF without one. Raises ``NetlinkError``, also if it is neither here nor there."""
        if not rdma_exclusive(self._tree):
            return
        for name, node in self._names(device).items():
            if self._is_on_host(device, name):
                self._move(name, host, pod)
                if (now := self._names(device).get(name)) != node:  # the kernel gives the lowest free number
                    log.warning(
                        "The verbs node of a VF has another number now. Containers that were given the old one are "
                        "refused: delete their pod. vf=%s was=%s is=%s",
                        device,
                        node,
                        now,
                    )
            elif not self._has(pod, name):
                raise NetlinkError(f"its RDMA device {name} is neither on the host nor in the pod")

    def give_back(self, host: int, pod: int, device: str) -> None:
        """Move the RDMA device of a VF back, if the pod has it. Raises ``NetlinkError``."""
        if rdma_exclusive(self._tree):
            for name in self._names(device):
                if not self._is_on_host(device, name) and self._has(pod, name):
                    self._move(name, pod, host)

    def _names(self, device: str) -> dict[str, str]:
        """The RDMA devices with a verbs node, and these nodes. Raises ``NetlinkError``."""
        verbs = f"{_FUNCTION.format(device)}/infiniband_verbs"
        try:
            named = {self._tree.text(f"{verbs}/{node}/ibdev"): node for node in self._tree.names(verbs)}
        except (SysfsError, OSError) as error:
            raise NetlinkError(f"its RDMA device is not known: {error}") from error
        return {name: node for name, node in named.items() if name}

    def _is_on_host(self, device: str, name: str) -> bool:
        """Whether it is in the host's namespace, which alone this ``/sys`` shows. Two namespaces may each have a device
        of one name."""
        return self._tree.exists(f"{_FUNCTION.format(device)}/infiniband/{name}")

    def _has(self, namespace: int, name: str) -> bool:
        return self._within(namespace, lambda devices: name in devices.devices())

    def _move(self, name: str, here: int, there: int) -> None:
        try:
            self._within(here, lambda devices: devices.move(devices.devices().get(name, 0), there))
        except NetlinkError as error:
            raise NetlinkError(f"{name}: {error}") from error
        log.info("An RDMA device was moved. device=%s", name)

    def _within(self, namespace: int, call: Callable[[RdmaDevices], T]) -> T:
        """Call ``call`` with a socket of this namespace, by a thread in it."""

        def work() -> T:
            with self._connect() as devices:
                return call(devices)

        try:
            return in_namespace(namespace, work, _MOVE_S)
        except TimeoutError as error:
            raise NetlinkError(f"no answer within {_MOVE_S:g} s") from error
