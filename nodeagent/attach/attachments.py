"""Which VFs are in which pod: follow the sandboxes of the node, move netdevs, and say so in the CDI spec.

* podresources and the records of prepared claims say which pod holds a VF, the kernel where its netdev is, the runtime
  which sandboxes there are. Nothing else decides, and nothing is kept but the names of netdevs on the host and what
  IPAM plugins have given. So this process may end at any moment.
* An address comes before the move and goes after the return, so no netdev has one that is not its own any more.
* The entry of a VF in the CDI spec comes after its move and goes before its return.
* A sandbox of a pod without VFs is answered at once. What cannot be known now is settled later: until then the pod's
  containers are refused for want of their CDI device, and the kubelet tries them again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nodeagent.attach.address_plan import AddressPlanError
from nodeagent.attach.attach_files import AttachCounts, AttachStep, WaitingPod
from nodeagent.attach.attached_spec import AttachedSpec, Entry
from nodeagent.attach.claimed_vfs import ClaimedVf
from nodeagent.attach.leases import Leases
from nodeagent.attach.node_netdevs import NodeNetdevs
from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_netdevs import AttachError
from nodeagent.attach.pod_plan import AttachPlan, PodLink, pod_links
from nodeagent.attach.vf_allocations import VfAllocations
from nodeagent.base.bounded_calls import BoundedCalls, in_thread
from nodeagent.facts.model import Holding, PodNetdev
from nodeagent.host.netlink.message import NetlinkError

log = logging.getLogger(__name__)

_MOVE_S = 30.0
"""A driver may hold the kernel's lock for seconds while VFs are made or firmware is loaded."""
_TEND_S = 10.0
_LISTED_NS = 5_000_000_000
"""The kubelet lists a pod some time after it has allocated its devices: a list that is younger does not tell that a pod
holds nothing."""


class KubeletList(NamedTuple):
    """The pods that the kubelet lists, each by namespace and name, also those without devices; and their devices."""

    pods: frozenset[tuple[str, str]]
    holdings: tuple[Holding, ...]


Holdings = Callable[[], Awaitable[KubeletList]]


class HoldingsError(Exception):
    """The kubelet does not say now what pods hold."""


class _Known(NamedTuple):
    """``stamps`` and ``claims``, the VFs of claims, were read before ``pods`` and ``holdings``, the kubelet's list."""

    stamps: Mapping[str, tuple[str, ...]]
    claims: tuple[ClaimedVf, ...]
    pods: frozenset[tuple[str, str]]
    holdings: tuple[Holding, ...]

    def held(self, sandbox: Sandbox) -> frozenset[str]:
        """The VFs that a pod holds. One without a stamp was allocated before the settings asked for netdevs: it stays
        where it is."""
        pod = sandbox.namespace, sandbox.pod
        of_plugins = (
            one
            for holding in self.holdings
            if (holding.namespace, holding.pod) == pod
            for one in holding.device_ids
        )
        return frozenset(one for one in (*of_plugins, *self.sequences(sandbox)) if self.stamps.get(one))

    def sequences(self, sandbox: Sandbox) -> dict[str, int]:
        """The VFs that a pod holds by claims, with the sequence of the claim. A claim names its pods by their UIDs:
        another pod of the same name may still end."""
        return {
            one.device: one.sequence
            for one in self.claims
            if one.namespace == sandbox.namespace and sandbox.uid in one.pods
        }

    def others(self, device: str, sandbox: Sandbox) -> set[tuple[str, str]]:
        """Namespace and name of the other pods that hold a VF."""
        pod = sandbox.namespace, sandbox.pod
        of_plugins = {(one.namespace, one.pod) for one in self.holdings if device in one.device_ids} - {pod}
        of_claims = {
            (one.namespace, name)
            for one in self.claims
            if one.device == device
            for uid, name in one.pods.items()
            if uid != sandbox.uid
        }
        return of_plugins | (of_claims & self.pods)


class Attachments:
    """Follows the sandboxes of one runtime (``SandboxEvents``). Belongs to one event loop.

    ``plan`` reads the agent's plan, ``None`` if there is none; ``holdings`` asks the kubelet.
    """

    def __init__(
        self,
        plan: Callable[[], AttachPlan | None],
        holdings: Holdings,
        spec: AttachedSpec,
        allocations: VfAllocations,
        netdevs: NodeNetdevs,
        leases: Leases,
    ) -> None:
        self._plan, self._holdings, self._spec = plan, holdings, spec
        self._allocations, self._netdevs, self._leases = allocations, netdevs, leases
        self._sandboxes: dict[str, Sandbox] = {}
        self._entries: dict[str, dict[str, Entry]] = {}
        """By sandbox and device: what the spec defines."""
        self._moving = asyncio.Lock()
        self._calls = BoundedCalls("netdevs", _MOVE_S)
        self._on_host: dict[str, Entry] = {}
        """Entries of an earlier process for pods on the host's network; which pod has which is not known."""
        self._unordered: frozenset[str] = frozenset()
        """The sandboxes that the runtime listed together. Of two others the later one is the newer one."""
        self._unsettled: dict[str, str] = {}
        """Why a sandbox lacks its netdevs, by its ID; empty: not known yet."""
        self._in_doubt = True
        """The kubelet has not said yet what the sandboxes hold."""
        self._told = False
        """The runtime has told of all sandboxes: one that is not known has ended."""
        self.counts = AttachCounts()
        self._listed: tuple[int, _Known] | None = None
        """The state at the kubelet's last list, if the last allocation, whose time stands first, was long before it.
        Until the next allocation pods need no newer one."""

    # --- what the runtime tells ---

    async def synchronize(self, sandboxes: tuple[Sandbox, ...]) -> None:
        async with self._moving:
            self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}
            self._unordered = frozenset(self._sandboxes)
            self._entries = {}
            self._unsettled = {}
            self._in_doubt = self._told = True
            await self._settle()

    async def begin(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.id] = sandbox
        plan, changed_ns = await in_thread(lambda: (self._plan(), self._allocations.changed_ns()))
        if plan is None or not plan.on or not plan.vfs:
            return
        listed = self._listed
        if (
            listed is not None
            and (listed[0], listed[1].stamps.keys()) == (changed_ns, plan.vfs.keys())
            and not listed[1].held(sandbox)
        ):
            return  # nothing was allocated since that list
        async with self._moving:
            try:
                known = await self._known(plan)
            except HoldingsError as error:
                log.warning(
                    "A pod waits for the kubelet's list. pod=%s/%s reason=%r",
                    sandbox.namespace,
                    sandbox.pod,
                    str(error),
                )
                self._in_doubt = True
                return
            if (sandbox.namespace, sandbox.pod) not in known.pods:
                self._in_doubt = True  # the kubelet has just started, and lists its pods one after the other
            elif held := known.held(sandbox):
                try:
                    await self._attach(sandbox, held, plan, known)
                except AttachError as error:
                    self._unsettled[sandbox.id] = str(error)  # the answer may have left
                    self.counts = self.counts.failed(error.step)
                    raise AttachRefused(f"nodeagent attach: {error}") from error

    async def end(self, sandbox: Sandbox) -> None:
        async with self._moving:
            known = self._sandboxes.pop(sandbox.id, None)
            self._unsettled.pop(sandbox.id, None)
            entries = self._entries.pop(sandbox.id, None)
            if entries and known is not None:
                plan = await in_thread(self._plan)
                await self._calls.run(self._write)
                if known.network:
                    with suppress(AttachError):  # the namespace is gone: the kernel has returned its netdevs
                        await self._calls.run(self._netdevs.give_back, known.network, entries.keys(), plan)
            await self._calls.run(self._release, sandbox.id)

    # --- without the runtime ---

    async def settle(self) -> None:
        """Bring every sandbox to what its pod holds, and the VFs of ended pods back to the host."""
        async with self._moving:
            await self._settle()

    async def _settle(self) -> None:
        await self._calls.run(self._release)
        plan = await in_thread(self._plan)
        if plan is None:
            return
        if not plan.on:
            self._in_doubt = False
            self._unsettled = {}
            await self._calls.run(self._keep, plan, self._sandboxes.values())
            await self._calls.run(self._tidy, plan)
            return
        try:
            known = await self._known(plan)
        except HoldingsError as error:
            log.warning("The sandboxes wait for the kubelet's list. reason=%r", str(error))
            await self._calls.run(self._keep, plan, self._sandboxes.values())
            return
        pods = await in_thread(self._alive)
        unclear = [
            one
            for pod, sandboxes in pods.items()
            for one in sandboxes
            if (pod not in known.pods or self._is_unclear(sandboxes)) and one.id not in self._entries
        ]
        self._in_doubt = await self._calls.run(self._keep, plan, unclear)
        for sandboxes in pods.values():
            held = known.held(sandboxes[-1])
            try:
                if held and self._is_unclear(sandboxes):
                    raise AttachError(
                        f"{len(sandboxes)} sandboxes have its name: waiting for the end of one", "sandbox"
                    )
                if held:
                    await self._attach(sandboxes[-1], held, plan, known)
            except AttachError as error:
                self.counts = self.counts.failed(error.step)
                self._lacks(sandboxes, str(error))
            else:
                for one in sandboxes:
                    self._unsettled.pop(one.id, None)
        await self._calls.run(self._write)
        await self._calls.run(self._tidy, plan)

    def _lacks(self, sandboxes: Iterable[Sandbox], reason: str) -> None:
        for one in sandboxes:
            if self._unsettled.get(one.id) != reason:
                log.warning("A pod lacks its NICs. pod=%s/%s reason=%r", one.namespace, one.pod, reason)
            self._unsettled[one.id] = reason

    async def tend(self) -> None:
        """Run until cancelled: look at the netdevs regularly."""
        while True:
            await asyncio.sleep(_TEND_S)
            await self.look()

    async def look(self) -> None:
        """Repeat what failed, name VFs that came back by themselves, and bring back what has left its pod."""
        plan, changed_ns = await in_thread(lambda: (self._plan(), self._allocations.changed_ns()))
        if plan is None:
            async with self._moving:
                await self._calls.run(self._release)
            return
        doubt = self._in_doubt or bool(self._unsettled)
        if not doubt:
            async with self._moving:
                left = await self._calls.run(self._tidy, plan)
                await self._calls.run(self._release)
            allocated = self._listed is None or self._listed[0] != changed_ns
            doubt = plan.on and (left or allocated)
        if doubt:
            await self.settle()

    @property
    def pods(self) -> int:
        """The number of sandboxes with VFs."""
        return sum(map(bool, tuple(self._entries.values())))

    @property
    def netdevs(self) -> tuple[PodNetdev, ...]:
        """The netdevs of VFs in pods, by PCI address."""
        found = [
            PodNetdev(device, sandbox.namespace, sandbox.pod, entry.interface, entry.addresses)
            for id_, entries in tuple(self._entries.items())  # a thread may be at work
            if (sandbox := self._sandboxes.get(id_)) is not None
            for device, entry in tuple(entries.items())
        ]
        return tuple(sorted(found, key=lambda netdev: netdev.device))

    @property
    def waiting(self) -> tuple[WaitingPod, ...]:
        """The pods that lack their netdevs."""
        named = ((self._sandboxes.get(id_), reason) for id_, reason in tuple(self._unsettled.items()))
        return tuple(
            sorted(
                {
                    WaitingPod(f"{one.namespace}/{one.pod}", reason)
                    for one, reason in named
                    if one is not None
                },
                key=lambda waiting: (waiting.pod, waiting.reason),
            )
        )

    def _alive(self) -> dict[tuple[str, str], list[Sandbox]]:
        """The sandboxes of each pod that are not stopped, the newest last: a pod whose sandbox died gets another one.
        Blocks."""
        pods: dict[tuple[str, str], list[Sandbox]] = {}
        for one in tuple(self._sandboxes.values()):
            if one.on_host or (one.network and Path(one.network).exists()):
                pods.setdefault((one.namespace, one.pod), []).append(one)
        return pods

    def _is_unclear(self, sandboxes: Sequence[Sandbox]) -> bool:
        """Whether several sandboxes live of which nobody says which one is the newer: the runtime lists them in any
        order, and the kubelet names pods without their UIDs."""
        return len(sandboxes) > 1 and sandboxes[-1].id in self._unordered

    # --- in a thread ---

    async def _known(self, plan: AttachPlan) -> _Known:
        """Raises ``HoldingsError``."""
        began_ns = time.time_ns()
        try:
            changed_ns = await self._calls.run(self._allocations.changed_ns)
            stamps, claims = await self._calls.run(self._allocations.read, tuple(plan.vfs))
        except OSError as error:
            raise HoldingsError(str(error)) from error
        self._listed = None
        known = _Known(stamps, claims, *await self._holdings())
        if began_ns - changed_ns > _LISTED_NS:
            self._listed = changed_ns, known
        return known

    async def _attach(self, sandbox: Sandbox, held: frozenset[str], plan: AttachPlan, known: _Known) -> None:
        began = time.monotonic()
        try:
            links = pod_links(plan, held, known.sequences(sandbox))
        except AddressPlanError as error:
            if await self._calls.run(self._keep_running, sandbox, held & plan.vfs.keys(), known):
                return
            raise AttachError(str(error), "plan") from error
        try:
            moved, entries = await self._calls.run(self._move, sandbox, links, plan, known)
            self._entries[sandbox.id] = entries
            await self._calls.run(self._write)
        except (OSError, NetlinkError) as error:  # TimeoutError is an OSError
            self._entries.pop(sandbox.id, None)
            self._unsettled[sandbox.id] = str(error)
            raise AttachError(str(error), _step_of(error)) from error
        self._unsettled.pop(sandbox.id, None)
        if moved:
            self.counts = self.counts.attached(time.monotonic() - began)

    def _move(
        self,
        sandbox: Sandbox,
        links: tuple[PodLink, ...],
        plan: AttachPlan,
        known: _Known,
    ) -> tuple[bool, dict[str, Entry]]:
        """Return whether a netdev has moved, and the entries."""
        devices = {link.device for link in links}
        for device in sorted(devices):
            if others := known.others(device, sandbox):
                raise AttachError(f"{device} is held by {'/'.join(min(others))} too", "holder")
        missing = devices - self._netdevs.on_host(plan).keys()
        if sandbox.on_host:
            self._fetch(missing, sandbox, plan)
            there = self._netdevs.on_host(plan)
            on_host = {link.device: there.get(link.parent or link.device) for link in links}
            if lost := [device for device, netdev in on_host.items() if netdev is None]:
                raise AttachError(f"{min(lost)}: its netdev is not on the host", "find")
            return False, {
                one: Entry(netdev.name, "", known.stamps[one])
                for one, netdev in sorted(on_host.items())
                if netdev is not None
            }
        before = self._netdevs.inside(sandbox.network).keys()
        self._fetch(missing - before, sandbox, plan)
        links, new = self._leases.lend(sandbox, links, before, plan.ipam, plan.taken)
        try:
            present = self._netdevs.attach(sandbox.network, links)
            if gone := devices - present.keys():  # its driver was loaded again meanwhile
                raise AttachError(f"{min(gone)}: its netdev has left the pod", "find")
        except (AttachError, NetlinkError, OSError):
            if left := new - self._netdevs.inside(sandbox.network).keys():
                self._leases.release(sandbox.id, left)
            raise
        return not devices <= before, {
            one: Entry(present[one].name, sandbox.network, known.stamps[one], present[one].addresses)
            for one in sorted(devices)
        }

    def _keep_running(self, sandbox: Sandbox, held: frozenset[str], known: _Known) -> bool:
        """Whether a pod has its netdevs with addresses of an earlier plan: then it keeps them, and their entries."""
        present = self._netdevs.inside(sandbox.network)
        if not all(one in present and present[one].addresses for one in held):
            return False
        self._entries[sandbox.id] = {
            one: Entry(present[one].name, sandbox.network, known.stamps[one], present[one].addresses)
            for one in sorted(held)
        }
        self._write()
        self._unsettled.pop(sandbox.id, None)
        return True

    def _fetch(self, missing: set[str], sandbox: Sandbox, plan: AttachPlan) -> None:
        """Take VFs back from the sandboxes of pods that do not hold them any more."""
        for other in tuple(self._sandboxes.values()) if missing else ():
            here = self._netdevs.inside(other.network) if other.id != sandbox.id else {}
            if theirs := missing & here.keys():
                log.info(
                    "VFs leave the sandbox of a pod that does not hold them. pod=%s/%s vfs=%s",
                    other.namespace,
                    other.pod,
                    ",".join(sorted(theirs)),
                )
                for device in theirs:
                    self._entries.get(other.id, {}).pop(device, None)
                self._write()
                self._netdevs.give_back(other.network, theirs, plan)
                self._leases.release(other.id, theirs - self._netdevs.inside(other.network).keys())
                missing = missing - theirs

    def _release(self, ended: str = "") -> None:
        """Give the addresses of ended sandboxes back to their plugins, once their netdevs have left. Before the runtime
        has told which there are, only the sandbox ``ended`` is known to have done so."""
        for of in self._leases.known:
            one = self._sandboxes.get(of.sandbox)
            lives = one is not None and (one.on_host or (one.network and Path(one.network).exists()))
            if lives or (not self._told and of.sandbox != ended):
                self._leases.release_again(of.sandbox)
                continue
            inside = self._netdevs.inside(of.network) if Path(of.network).exists() else {}
            if inside.keys().isdisjoint(lease.device for lease in of.leases):
                self._leases.release(of.sandbox)

    def _keep(self, plan: AttachPlan, sandboxes: Iterable[Sandbox]) -> bool:
        """Keep those entries of an earlier process whose VFs are in the namespaces of these sandboxes. Return whether
        there are any."""
        sandboxes = tuple(sandboxes)
        before, kept = self._spec.entries(), False
        for sandbox in sandboxes:
            present = self._netdevs.inside(sandbox.network)
            if mine := before.keys() & plan.vfs.keys() & present.keys():
                self._entries[sandbox.id] = {
                    one: Entry(present[one].name, sandbox.network, before[one].stamps, present[one].addresses)
                    for one in sorted(mine)
                }
                kept = True
        on_host = any(sandbox.on_host for sandbox in sandboxes)
        self._on_host = {one: entry for one, entry in before.items() if on_host and not entry.network}
        self._write()
        return kept or bool(self._on_host)

    def _write(self) -> None:
        self._spec.write(
            self._on_host | {device: entry for of in self._entries.values() for device, entry in of.items()}
        )

    def _tidy(self, plan: AttachPlan) -> bool:
        """Forget the sandboxes whose namespace is gone, and name the VFs that came back from it by themselves. Return
        whether a VF has left its pod, because its driver was loaded again, or was allocated once more."""
        gone = {
            id_
            for id_, one in tuple(self._sandboxes.items())  # others begin meanwhile
            if one.network and not Path(one.network).exists()
        }
        for id_ in gone:
            self._sandboxes.pop(id_, None)
            self._unsettled.pop(id_, None)
        if held := gone & self._entries.keys():
            for id_ in held:
                del self._entries[id_]
            self._write()
        if any(self._entries.values()) and not self._spec.path.exists():
            self._write()
        with suppress(AttachError, NetlinkError):
            found = self._netdevs.restore_names(plan)
            entries = {device: entry for of in self._entries.values() for device, entry in of.items()}
            inside = {device for device, entry in entries.items() if entry.network}
            stamps, _ = self._allocations.read(entries)
            return bool(inside & found.keys()) or any(entries[one].stamps != stamps[one] for one in entries)
        return False


def _step_of(error: Exception) -> AttachStep:
    match error:
        case TimeoutError():
            return "time-out"
        case OSError():
            return "spec"
    return "find"
