"""Which VFs are in which pod: follow the sandboxes of the node, move netdevs, and say so in the CDI spec.

* podresources says which pod holds a VF, the kernel where its netdev is, the runtime which sandboxes there are. Nothing
  else decides, and nothing is kept but the names of netdevs on the host. So this process may end at any moment.
* The entry of a VF in the CDI spec comes after its move and goes before its return.
* A sandbox of a pod without VFs is answered at once. What cannot be known now is settled later: until then the pod's
  containers are refused for want of their CDI device, and the kubelet tries them again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nodeagent.attach.address_plan import AddressPlanError
from nodeagent.attach.attach_files import WaitingPod
from nodeagent.attach.attached_spec import AttachedSpec, Entry
from nodeagent.attach.host_names import HostNames
from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_netdevs import (
    HOST_NAMESPACE,
    AttachError,
    DeviceOf,
    OpenNamespace,
    attach,
    devices_in,
    give_back,
    open_namespace,
    pci_device,
    restore_name,
)
from nodeagent.attach.pod_plan import AttachPlan, PodLink, has_our_name, pod_links
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.model import Holding
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.netlink.netdevs import Netdev

log = logging.getLogger(__name__)

_MOVE_S = 30.0
"""A driver may hold the kernel's lock for seconds while VFs are made or firmware is loaded."""
_TEND_S = 10.0

Holdings = Callable[[], Awaitable[tuple[Holding, ...]]]


class HoldingsError(Exception):
    """The kubelet does not say now what pods hold."""


class Attachments:
    """Follows the sandboxes of one runtime (``SandboxEvents``). Belongs to one event loop.

    ``plan`` reads the agent's plan, ``None`` if there is none; ``holdings`` asks the kubelet.
    ``device_of`` is the kernel's own word, except in tests and the laboratory."""

    def __init__(
        self,
        plan: Callable[[], AttachPlan | None],
        holdings: Holdings,
        spec: AttachedSpec,
        names: HostNames,
        device_of: DeviceOf = pci_device,
        host: str = HOST_NAMESPACE,
    ) -> None:
        self._plan, self._holdings, self._spec, self._names = plan, holdings, spec, names
        self._device_of = device_of
        self._host = host
        self._sandboxes: dict[str, Sandbox] = {}
        self._entries: dict[str, dict[str, Entry]] = {}
        """By sandbox and device: what the spec defines."""
        self._moving = asyncio.Lock()
        self._calls = BoundedCalls("netdevs", _MOVE_S)
        self._unsettled: dict[str, str] = {}
        """Why a sandbox lacks its netdevs, by its ID; empty: not known yet."""
        self._in_doubt = True
        """The kubelet has not said yet what the sandboxes hold."""

    # --- what the runtime tells ---

    async def synchronize(self, sandboxes: tuple[Sandbox, ...]) -> None:
        async with self._moving:
            self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}
            self._entries = {}
            self._unsettled = {}
            self._in_doubt = True
        await self.settle()

    async def begin(self, sandbox: Sandbox) -> None:
        async with self._moving:
            self._sandboxes[sandbox.id] = sandbox
            plan = self._plan()
            if plan is None or not plan.on or not plan.vfs:
                return
            try:
                holdings = await self._holdings()
            except HoldingsError as error:
                log.warning(
                    "A pod waits for the kubelet's list. pod=%s/%s reason=%r",
                    sandbox.namespace,
                    sandbox.pod,
                    str(error),
                )
                self._in_doubt = True
                return
            held = _held(holdings, sandbox, plan)
            if held:
                try:
                    await self._attach(sandbox, held, plan, holdings)
                except AttachError as error:
                    raise AttachRefused(f"nodeagent attach: {error}") from error

    async def end(self, sandbox: Sandbox) -> None:
        async with self._moving:
            known = self._sandboxes.pop(sandbox.id, None)
            self._unsettled.pop(sandbox.id, None)
            entries = self._entries.pop(sandbox.id, None)
            if not entries or known is None:
                return
            await self._calls.run(self._write)
            if known.network:
                with suppress(AttachError):  # the namespace is gone: the kernel has returned its netdevs
                    await self._calls.run(self._return, known, tuple(entries), self._plan())

    # --- without the runtime ---

    async def settle(self) -> None:
        """Bring every sandbox to what its pod holds, and the VFs of ended pods back to the host."""
        async with self._moving:
            plan = self._plan()
            if plan is None:
                return
            if not plan.on:
                self._in_doubt = False
                self._unsettled = {}
                await self._calls.run(self._keep_present, plan)
                await self._calls.run(self._tidy, plan)
                return
            try:
                holdings = await self._holdings()
            except HoldingsError as error:
                log.warning("The sandboxes wait for the kubelet's list. reason=%r", str(error))
                await self._calls.run(self._keep_present, plan)
                return
            self._in_doubt = False
            for sandbox in tuple(self._sandboxes.values()):
                held = _held(holdings, sandbox, plan)
                if not held or not (sandbox.network or sandbox.on_host):
                    continue
                try:
                    await self._attach(sandbox, held, plan, holdings)
                except AttachError as error:
                    if self._unsettled.get(sandbox.id) != str(error):
                        log.warning(
                            "A pod lacks its NICs. pod=%s/%s reason=%r",
                            sandbox.namespace,
                            sandbox.pod,
                            str(error),
                        )
                    self._unsettled[sandbox.id] = str(error)
            await self._calls.run(self._write)
            await self._calls.run(self._tidy, plan)

    async def tend(self) -> None:
        """Run until cancelled: look at the netdevs regularly."""
        while True:
            await asyncio.sleep(_TEND_S)
            await self.look()

    async def look(self) -> None:
        """Repeat what failed, name VFs that came back by themselves, and bring back what has left its pod."""
        plan = self._plan()
        if plan is None:
            return
        left = False
        if not self._in_doubt and not self._unsettled:
            async with self._moving:
                left = await self._calls.run(self._tidy, plan)
        if self._in_doubt or self._unsettled or (left and plan.on):
            await self.settle()

    @property
    def pods(self) -> int:
        """The number of sandboxes with VFs."""
        return sum(1 for entries in self._entries.values() if entries)

    @property
    def waiting(self) -> tuple[WaitingPod, ...]:
        """The pods that lack their netdevs."""
        named = ((self._sandboxes.get(id_), reason) for id_, reason in self._unsettled.items())
        return tuple(
            sorted(
                (
                    WaitingPod(f"{one.namespace}/{one.pod}", reason)
                    for one, reason in named
                    if one is not None
                ),
                key=lambda waiting: waiting.pod,
            )
        )

    # --- in a thread ---

    async def _attach(
        self, sandbox: Sandbox, held: frozenset[str], plan: AttachPlan, holdings: Iterable[Holding]
    ) -> None:
        try:
            links = pod_links(plan, held)
        except AddressPlanError as error:
            raise AttachError(str(error)) from error
        try:
            entries = await self._calls.run(self._move, sandbox, links, plan, _holders(holdings))
            self._entries[sandbox.id] = entries
            await self._calls.run(self._write)
        except (OSError, NetlinkError) as error:  # TimeoutError is an OSError
            self._entries.pop(sandbox.id, None)
            self._unsettled[sandbox.id] = str(error)
            raise AttachError(str(error)) from error
        self._unsettled.pop(sandbox.id, None)

    def _move(
        self,
        sandbox: Sandbox,
        links: tuple[PodLink, ...],
        plan: AttachPlan,
        holders: Mapping[str, set[tuple[str, str]]],
    ) -> dict[str, Entry]:
        pod = (sandbox.namespace, sandbox.pod)
        for link in links:
            if others := holders[link.device] - {pod}:
                raise AttachError(f"{link.device} is held by {'/'.join(min(others))} too")
        with open_namespace(self._host) as host:
            missing = {link.device for link in links} - self._learn(host, plan).keys()
            if sandbox.on_host:
                if missing:
                    self._fetch(missing, sandbox, plan)
                return {
                    link.device: Entry(devices_in(host, self._device_of)[link.device].name, "")
                    for link in links
                }
            with open_namespace(sandbox.network) as there:
                if missing := missing - devices_in(there, self._device_of).keys():
                    self._fetch(missing, sandbox, plan)
                attach(host, there, links, self._names.known, self._device_of)
                present = devices_in(there, self._device_of)
                return {link.device: Entry(present[link.device].name, sandbox.network) for link in links}

    def _fetch(self, missing: set[str], sandbox: Sandbox, plan: AttachPlan) -> None:
        """Take VFs back from the sandboxes of pods that do not hold them any more."""
        for other in tuple(self._sandboxes.values()):
            if other.id != sandbox.id and other.network and missing:
                with suppress(AttachError, NetlinkError), open_namespace(other.network) as place:
                    here = missing & devices_in(place, self._device_of).keys()
                if here:
                    log.info(
                        "VFs leave the sandbox of a pod that does not hold them. pod=%s/%s vfs=%s",
                        other.namespace,
                        other.pod,
                        ",".join(sorted(here)),
                    )
                    for device in here:
                        self._entries.get(other.id, {}).pop(device, None)
                    self._write()
                    self._return(other, tuple(here), plan)
                    missing = missing - here

    def _return(self, sandbox: Sandbox, devices: tuple[str, ...], plan: AttachPlan | None) -> None:
        with open_namespace(self._host) as host, open_namespace(sandbox.network) as pod:
            present = devices_in(pod, self._device_of)
            for device in devices:
                netdev = present.get(device)
                known = plan is not None and device in plan.vfs
                if netdev is None or (
                    known and plan is not None and not has_our_name(plan, device, netdev.name)
                ):
                    continue
                if not give_back(host, pod, device, self._names.known.get(device), self._device_of):
                    log.warning(
                        "A VF does not leave its pod. vf=%s pod=%s/%s", device, sandbox.namespace, sandbox.pod
                    )

    def _keep_present(self, plan: AttachPlan) -> None:
        """Keep those entries of an earlier process whose VFs are in the namespace of a sandbox."""
        before = self._spec.names()
        for sandbox in self._sandboxes.values():
            if sandbox.network:
                with suppress(AttachError, NetlinkError), open_namespace(sandbox.network) as place:
                    present = devices_in(place, self._device_of)
                    if mine := before & plan.vfs.keys() & present.keys():
                        self._entries[sandbox.id] = {
                            one: Entry(present[one].name, sandbox.network) for one in mine
                        }
        self._write()

    def _write(self) -> None:
        self._spec.write({device: entry for of in self._entries.values() for device, entry in of.items()})

    def _tidy(self, plan: AttachPlan) -> bool:
        """Forget the sandboxes whose namespace is gone, and name the VFs that came back from it by themselves. Return
        whether a VF has left its pod: the driver was loaded again."""
        gone = {id_ for id_, one in self._sandboxes.items() if one.network and not Path(one.network).exists()}
        for id_ in gone:
            self._sandboxes.pop(id_, None)
            self._unsettled.pop(id_, None)
        if held := gone & self._entries.keys():
            for id_ in held:
                del self._entries[id_]
            self._write()
        if any(self._entries.values()) and not self._spec.path.exists():
            self._write()
        with suppress(AttachError, NetlinkError), open_namespace(self._host) as host:
            found = self._learn(host, plan)
            for device, netdev in found.items():
                if device in plan.vfs and _is_foreign(plan, device, netdev.name):
                    restore_name(host, netdev, self._names.known.get(device))
            inside = {
                device for of in self._entries.values() for device, entry in of.items() if entry.network
            }
            return bool(inside & found.keys())
        return False

    def _learn(self, host: OpenNamespace, plan: AttachPlan) -> dict[str, Netdev]:
        """Return the netdevs of devices on the host, and keep the names of VFs among them."""
        found = devices_in(host, self._device_of)
        self._names.learn(
            {
                device: netdev.name
                for device, netdev in found.items()
                if device in plan.vfs and not _is_foreign(plan, device, netdev.name)
            }
        )
        return found


def _is_foreign(plan: AttachPlan, device: str, name: str) -> bool:
    """Whether a VF on the host has a name from a pod, or one that the kernel made because that was taken."""
    return has_our_name(plan, device, name) or re.fullmatch(r"dev[0-9]+", name) is not None


def _held(holdings: Iterable[Holding], sandbox: Sandbox, plan: AttachPlan) -> frozenset[str]:
    return frozenset(
        device
        for holding in holdings
        if (holding.namespace, holding.pod) == (sandbox.namespace, sandbox.pod)
        for device in holding.device_ids
        if device in plan.vfs
    )


def _holders(holdings: Iterable[Holding]) -> dict[str, set[tuple[str, str]]]:
    holders: dict[str, set[tuple[str, str]]] = {}
    for holding in holdings:
        for device in holding.device_ids:
            holders.setdefault(device, set()).add((holding.namespace, holding.pod))
    return holders
