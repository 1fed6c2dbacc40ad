"""The agent's Events: one function for each subject, which returns the notices that stand.

    subject                                                             function
    faults of links and GPUs, on the Node and on pods that hold them    ``device_notices``
    pods over their share of GPU memory, processes outside of pods      ``over_use_notices``
    limits of GPU memory that are promised and not in force             ``limit_notices``
    pods that have lost their GPU with its MPS daemon                   ``mps_notices``
    a state folder that cannot be written                               ``state_notices``
    names that another device plugin or DRA driver has registered       ``name_notices``

``AgentEvents`` writes the Events of all of them, so that one limit holds for them together. It derives those of devices
from the snapshot. ``follow``, ``follow_state`` and ``follow_names`` post the others on the ``NoticeBoard``, as the
report and the evictions do.

A device whose state is unknown gets no new Event, and none of its faults ends. The numbers in a notice are those of its
beginning. Its end is the Event ``Recovered``, ``DeviceReleased`` on a pod that does not hold the device any more, or
``DeviceUnused``.

An Event on a pod has its UID, and waits until that is known (``held_pods``). Without the right to read pods it has
none, and the next pod of that name shows it too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.base.supervise import either
from nodeagent.base.unwritable_memory import UnwritableMemory, unwritable_remark
from nodeagent.cluster.affected_devices import (
    QUIET,
    AffectedPod,
    Offered,
    ReportedDevice,
    affected_pods,
    failed_ids,
    reported_devices,
)
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.event_writer import (
    HOURLY_S,
    RECOVERED,
    RELEASED,
    UNUSED,
    Ending,
    EventTarget,
    EventWriter,
    Notice,
    NoticeBoard,
)
from nodeagent.cluster.held_pods import HeldDevice, HeldPods
from nodeagent.dra import DRIVER
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu, Reason, Snapshot, State
from nodeagent.health.device_failure import has_failed
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kubelet.rpc_stats import ResourceStatus
from nodeagent.sharing.cgroup_limits import NOT_IN_FORCE, CgroupLimits
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.mps_watch import MpsWatch

_COMPONENT = "nodeagent"
STATE_LOOK_S = 5.0
"""Between two looks at the state folder, and at the registrations: an Event about a name that was taken comes within a
minute (``kubelet/counted_devices.py``)."""
UNTOLD_MAX = 256
"""Notices that wait for the UID of their pod, the newest, for an hour at most after their beginning."""
READ_FIRST_S, READ_MAX_S = 5.0, 600.0
"""Between two tries to read pods after a failure."""
_GIB = 1 << 30
FAILED, _UNHEALTHY = "DeviceFailed", "DeviceUnhealthy"
"""The reasons of the notices on pods that hold a failed device."""

Source = TypeVar("Source", GpuAccounting, CgroupLimits, MpsWatch)


class AgentEvents:
    """``offered`` returns the devices that each resource has now. ``pods`` finds the UIDs of pods."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        offered: Callable[[Snapshot], Offered],
        *,
        pods: HeldPods,
        board: NoticeBoard | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        self.writer = EventWriter(client, _COMPONENT, node, host=node, delivery=delivery)
        self._board = board or NoticeBoard()
        self._inventory, self._node, self._offered, self._pods = inventory, node, offered, pods
        self._untold: list[Notice] = []
        """Of pods whose UID is not known yet: a fault may end before it is."""
        self._nameless: set[HeldDevice] = set()
        """The pods that were told of without their UID, each with the device; it stays so until the fault ends."""
        self._backoff = Backoff(READ_FIRST_S, READ_MAX_S, jitter=JITTER)
        self._readable_at = float("-inf")
        self._may_read = True

    async def run(self) -> None:
        """Write Events until cancelled."""
        self._post(self._inventory.snapshot)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_devices())
            await self._write()

    def _post(self, snapshot: Snapshot) -> None:
        self._board.post("devices", *device_notices(snapshot, self._node, self._offered(snapshot)))

    async def _follow_devices(self) -> None:
        """Post each fault when it begins: a call of an API server that does not answer lasts longer than some."""
        while True:
            snapshot = self._inventory.snapshot
            self._post(snapshot)
            await self._inventory.changed(snapshot.revision)

    async def _write(self) -> None:
        while True:
            snapshot = self._inventory.snapshot
            self._board.changed.clear()
            standing = {notice.key: notice for notice in (*self._untold, *self._board.take())}
            identified, again_s = await self._identified(standing.values())
            self.writer.ledger.observe(
                identified,
                time.monotonic(),
                time.time(),
                unknown_devices(snapshot),
                endings(snapshot),
                lasting(snapshot, identified),
            )
            written = self.writer.written
            wait = await self.writer.deliver()
            if self.writer.written != written:
                continue  # what has ended meanwhile has an end to tell
            await either(
                self._inventory.changed(snapshot.revision),
                self._board.changed.wait(),
                # An hourly notice becomes due without any change.
                timeout_s=min(again_s, HOURLY_S / 4 if wait is None else wait),
            )

    async def _identified(self, standing: Iterable[Notice]) -> tuple[list[Notice], float]:
        """Return the notices with the UIDs of their pods, without those of pods that are not known yet, and the
        seconds until there may be more."""
        standing = tuple(standing)
        held = {_held(notice): notice.ids for notice in standing if _lacks_uid(notice)}
        self._pods.keep(held)
        self._nameless.intersection_update(held)
        unknown = {one: ids for one, ids in held.items() if one not in self._nameless}
        again_s = await self._read(unknown) if unknown else HOURLY_S
        if not self._may_read:
            self._nameless.update(one for one in unknown if one not in self._pods.uids)
        told, untold = [], []
        for notice in standing:
            if not _lacks_uid(notice) or (one := _held(notice)) in self._nameless:
                told.append(notice)
            elif (uid := self._pods.uids.get(one)) is not None:
                told.append(replace(notice, target=replace(notice.target, uid=uid)))
            elif time.time() - (notice.began or 0) < HOURLY_S:
                untold.append(notice)
        self._untold = untold[-UNTOLD_MAX:]
        return told, again_s

    async def _read(self, held: dict[HeldDevice, tuple[str, ...]]) -> float:
        """Find the UIDs of these pods. Return the seconds until the next try."""
        now = time.monotonic()
        if now < self._readable_at:
            return self._readable_at - now
        try:
            wait = await self._pods.identify(held)
        except ApiError as error:
            self._may_read = error.status != 403
            wait = self._backoff.next_s(error.retry_after_s)
            self._readable_at = time.monotonic() + wait
            return wait
        self._may_read = True
        self._backoff.reset()
        return wait


def _lacks_uid(notice: Notice) -> bool:
    return notice.target.kind == "Pod" and not notice.target.uid


def _held(notice: Notice) -> HeldDevice:
    return HeldDevice(notice.target.namespace, notice.target.name, notice.about)


async def follow(
    part: str,
    source: Source,
    notices: Callable[[Source, Sequence[Gpu], str], Iterable[Notice]],
    inventory: Inventory,
    node: str,
    board: NoticeBoard,
) -> None:
    """Post the notices at each change of their source, until cancelled."""
    while True:
        revision = source.revision
        board.post(part, *notices(source, inventory.snapshot.gpus, node))
        await source.changed(revision)


async def follow_state(
    unwritable: Callable[[], Sequence[UnwritableMemory]], node: str, board: NoticeBoard
) -> None:
    """Post the notice about the state folder, every ``STATE_LOOK_S``, until cancelled."""
    while True:
        board.post("state", *state_notices(unwritable(), node))
        await asyncio.sleep(STATE_LOOK_S)


async def follow_names(
    statuses: Callable[[], Sequence[ResourceStatus]],
    rival_driver: Callable[[], str | None],
    node: str,
    board: NoticeBoard,
) -> None:
    """Post the notices about names of others, every ``STATE_LOOK_S``, until cancelled."""
    while True:
        board.post("names", *name_notices(statuses(), rival_driver(), node))
        await asyncio.sleep(STATE_LOOK_S)


# --- devices and the pods that hold them ----------------------------------------------------------------------


def device_notices(snapshot: Snapshot, node: str, offered: Offered) -> tuple[Notice, ...]:
    """The notices about devices that stand at this moment."""
    standing = [notice for device in reported_devices(snapshot) for notice in _faults(_on_node(node), device)]
    standing += [_pod_notice(pod) for pod in affected_pods(snapshot, offered)]
    return tuple({notice.key: notice for notice in standing}.values())


def unknown_devices(snapshot: Snapshot) -> Callable[[str], bool]:
    """Return a function that returns whether the state of a device is unknown in this snapshot."""
    states = {device.key: device.health.state for device in reported_devices(snapshot)}

    def unknown(key: str) -> bool:
        state = states.get(key)
        return state is State.UNKNOWN or (state is None and bool(snapshot.stale_sources))

    return unknown


def lasting(snapshot: Snapshot, standing: Iterable[Notice]) -> Callable[[Notice], bool]:
    """Return a function that returns whether the notice of a pod goes on although none of its device is ``standing``:
    the pod still holds it, it has failed, and its resource is not offered any more. Unknown holdings are those of
    before."""
    held = _held_ids(snapshot)
    told = {(it.target, it.about) for it in standing if it.reason in (FAILED, _UNHEALTHY)}

    def lasts(notice: Notice) -> bool:
        if notice.reason not in (FAILED, _UNHEALTHY) or (notice.target, notice.about) in told:
            return False
        pod = notice.target.namespace, notice.target.name
        ids = [id_ for id_ in notice.ids if snapshot.holdings is None or (*pod, id_) in held]
        return bool(failed_ids(snapshot, ids))

    return lasts


def endings(snapshot: Snapshot) -> Callable[[Notice], Ending]:
    """Return a function that returns how the faults of a device have ended for the target of a notice."""
    holdings = snapshot.holdings
    ids = _held_ids(snapshot)
    unused = {pf.pci_address for pf in snapshot.functions if pf.health.state is State.UNUSED}
    pods = {it[:2] for it in ids} | {(share.namespace, share.pod) for share in snapshot.claim_shares}

    def ending(notice: Notice) -> Ending:
        pod = notice.target.namespace, notice.target.name
        over = UNUSED if notice.about in unused else RECOVERED
        if notice.target.kind != "Pod" or holdings is None:
            return over
        holds = any((*pod, id_) in ids for id_ in notice.ids) if notice.ids else pod in pods
        return over if holds else RELEASED

    return ending


def _held_ids(snapshot: Snapshot) -> frozenset[tuple[str, str, str]]:
    """The namespace and name of each pod with each device that it holds."""
    return frozenset(
        (holding.namespace, holding.pod, id_)
        for holding in snapshot.holdings or ()
        for id_ in holding.device_ids
    )


def _faults(target: EventTarget, device: ReportedDevice) -> Iterator[Notice]:
    health = device.health
    for reason in health.reasons:
        if health.state in (State.UNKNOWN, State.UNUSED):
            continue
        minor = reason.warning or health.state is State.HEALTHY
        message = f"{device.title}: {reason.detail}"
        event_reason = _event_reason(reason, device)
        yield Notice(target, device.key, event_reason, message, not minor, hourly=minor, title=device.title)
    if not health.reasons and health.state not in QUIET:
        reason = Reason(health.state.value, "")
        message = f"{device.title} is {health.state.value}"
        yield Notice(target, device.key, _event_reason(reason, device), message, title=device.title)


def _pod_notice(pod: AffectedPod) -> Notice:
    device, health = pod.device, pod.device.health
    first, more = pod.device_ids[0], len(pod.device_ids) - 1
    ids = f"{first} and {more} more" if more else first
    held = f"held by the claim {pod.claim}" if pod.claim else f"held as {pod.resource} ({ids})"
    reasons = [reason.detail for reason in health.reasons if not reason.warning]
    failed = has_failed(health)
    state = "has failed" if failed else f"is {health.state.value}"
    message = f"{device.title}, {held}, {state}: {'; '.join(reasons) or health.state.value}"
    target = EventTarget("Pod", pod.namespace, pod.pod)
    reason = FAILED if failed else _UNHEALTHY
    return Notice(target, device.key, reason, message, title=device.title, ids=pod.device_ids)


def _event_reason(reason: Reason, device: ReportedDevice) -> str:
    """``LinkCarrierDown`` for the reason ``carrier_down`` of a link."""
    words = "".join(part.capitalize() for part in reason.key.replace("-", "_").split("_"))
    return f"{'Link' if device.link else 'Gpu'}{words}"


# --- shares of GPUs -------------------------------------------------------------------------------------------


def over_use_notices(accounting: GpuAccounting, gpus: Sequence[Gpu], node: str) -> Iterator[Notice]:
    """Yield a notice on the Node for each over-use that has lasted for ``grace_s``, and one on the pod."""
    reason, grace_s = "GpuMemoryExceeded", accounting.grace_s
    for over in accounting.over_uses:
        title = _gpu_title(over.uuid, gpus)
        used = f"{over.used_bytes / _GIB:.1f} GiB"
        if not over.pod:
            message = f"{title}: {used} are used outside of pods for {grace_s:g} s, by {over.processes}"
            yield Notice(_on_node(node), f"{over.uuid} outside", "GpuUsedOutsidePods", message, title=title)
            continue
        fact = f"{used} of {title} for {grace_s:g} s, and its share is {over.granted_bytes / _GIB:.1f} GiB"
        # Without a namespace the kubelet's folder does not name the pod: its UID alone is known.
        name = f"{over.namespace}/{over.pod}" if over.namespace else f"with UID {over.pod}"
        about = f"{over.uuid} {over.namespace}/{over.pod}"
        yield Notice(_on_node(node), about, reason, f"Pod {name} uses {fact}", title=f"Pod {name} on {title}")
        if over.namespace:
            target = EventTarget("Pod", over.namespace, over.pod, uid=over.uid)
            yield Notice(target, over.uuid, reason, f"The pod uses {fact}", title=title)


def limit_notices(limits: CgroupLimits, gpus: Sequence[Gpu], node: str) -> Iterator[Notice]:
    """Yield a notice on the pod and one on the Node for each container that runs without its limit."""
    reason = "GpuMemoryNotLimited"
    for share in limits.limits:
        if share.state != NOT_IN_FORCE:
            continue
        title = _gpu_title(share.uuid, gpus)
        fact = f"{share.size_bytes >> 20} MiB of {title}, and no limit keeps it within them: {share.why}"
        about = f"{share.uuid} {share.namespace}/{share.pod}/{share.container}"
        message = f"Container {share.container} of pod {share.namespace}/{share.pod} has {fact}"
        yield Notice(_on_node(node), about, reason, message, title=title)
        target = EventTarget("Pod", share.namespace, share.pod)
        yield Notice(target, about, reason, f"Container {share.container} has {fact}", title=title)


def mps_notices(watch: MpsWatch, gpus: Sequence[Gpu], node: str) -> Iterator[Notice]:
    """Yield a notice on the pod and one on the Node for each pod that has lost its GPU."""
    reason = "MpsDaemonEnded"
    for hit in watch.hits:
        title = _gpu_title(hit.uuid, gpus)
        fact = f"the MPS daemon of {title} has ended ({hit.how})"
        remedy = "its programs have lost the GPU; those that do not end by themselves must be started again"
        about = f"{hit.uuid} {hit.namespace}/{hit.pod}"
        message = f"Pod {hit.namespace}/{hit.pod}: {fact}, and {remedy}"
        yield Notice(_on_node(node), about, reason, message, recovers=False, title=title)
        target = EventTarget("Pod", hit.namespace, hit.pod)
        message = f"{fact[0].upper()}{fact[1:]}; {remedy}"
        yield Notice(target, hit.uuid, reason, message, recovers=False, title=title)


def _gpu_title(uuid: str, gpus: Sequence[Gpu]) -> str:
    index = next((gpu.index for gpu in gpus if gpu.uuid == uuid), "?")
    return f"GPU {index} ({uuid})"


# --- the node -------------------------------------------------------------------------------------------------


def state_notices(unwritable: Sequence[UnwritableMemory], node: str) -> Iterator[Notice]:
    """Yield a notice about the folder of these files, if there is one."""
    if unwritable:
        folder, text = unwritable[0].path.rpartition("/")[0], unwritable_remark(unwritable)
        message = f"{text[0].upper()}{text[1:]}"
        yield Notice(_on_node(node), folder, "StateUnwritable", message, title=f"Folder {folder}")


def name_notices(statuses: Sequence[ResourceStatus], rival_driver: str | None, node: str) -> Iterator[Notice]:
    """Yield a notice about each resource whose name another device plugin has registered, and about another DRA driver
    of our name, of which ``rival_driver`` is the sentence."""
    for status in statuses:
        if status.taken:
            title, message = f"Resource {status.resource}", f"{status.resource}: {status.reason}"
            yield Notice(_on_node(node), status.resource, "ResourceTaken", message, title=title)
    if rival_driver is not None:
        title, message = f"DRA driver {DRIVER}", f"{rival_driver[0].upper()}{rival_driver[1:]}"
        yield Notice(_on_node(node), DRIVER, "ResourceTaken", message, title=title)


def _on_node(node: str) -> EventTarget:
    return EventTarget("Node", "", node)
