"""The kinds of device that a node offers, one file each, and the code that they share.

A kind is a pure function of one snapshot: it has no memory, reads no clock and no file, and imports no other kind.
``nodeagent.kubelet`` keeps IDs that were offered once on the device list.

``available`` comes from the kubelet and is newer than ``Snapshot.holdings``: podresources may still list a pod that
has ended. So a device of this resource that the kubelet calls available is free. Holdings add what the kubelet's
list lacks: that another resource holds the same hardware.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import ClassVar

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.facts.affinity import affinity
from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.cdi import CdiDevices
from nodeagent.facts.model import CORDONED, Function, Gpu, Health, Holding, Reason, Snapshot

_SHOWN_MAX = 63  # characters: the longest device id that the kubelet's own documentation allows
_NAMED_MAX = 3

DEVICE_INFO_FILES = "device-info"
"""The files that CNI plugins read, one for each allocated VF."""
TELL_FILE = "tell"
"""The script of ``kinds.tell_script``."""


class Question(msgspec.Struct, frozen=True):
    """A question of the kubelet for a container: ``size`` of the ``free`` IDs, ``must`` among them.

    ``near`` are NICs that the same container probably has. ``later_sizes`` are the sizes to which earlier requests of
    this size grew, ``None`` if there was no request of this size.
    """

    free: frozenset[str]
    must: frozenset[str]
    size: int
    near: Sequence[Function]
    later_sizes: Sequence[int] | None

    @property
    def rest(self) -> int:
        """How many IDs are to be chosen beside the required ones."""
        return self.size - len(self.must)


class DeviceKind(msgspec.Struct, frozen=True):
    """One resource: its devices, and how they are allocated.

    What a method returns here holds for a kind whose devices have no size, no level and no CDI spec of the agent.
    """

    source: ClassVar[str]
    """The source whose facts the devices come from, ``pci`` or ``gpus``. Before it publishes, none is offered."""

    @property
    def resource(self) -> str:
        """The name that a pod asks for: ``nvidia-dgx-h100/nic0``."""
        raise NotImplementedError

    @property
    def device_mib(self) -> int | None:
        """The GPU memory of one device; ``None`` if a device is not a share of memory."""
        return None

    @property
    def number(self) -> int | None:
        """The index of the one GPU that has this resource, if the name of the resource has it."""
        return None

    @property
    def tells(self) -> tuple[str, ...]:
        """The programs that a script in the container tells of its devices (``kinds.tell_script``)."""
        return ()

    @property
    def attaches(self) -> bool:
        """Whether `nodeagent attach` moves netdevs of its devices into pods."""
        return False

    @property
    def whole_nics(self) -> tuple[str, ...]:
        """The PFs that are its devices themselves while they have no VFs, by PCI address."""
        return ()

    def resized(self, device_mib: int) -> DeviceKind:  # noqa: ARG002
        """Return this kind with devices of another size; a kind without a size returns itself."""
        return self

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        raise NotImplementedError

    def made_of(self, snapshot: Snapshot) -> object:
        """Return the facts that ``devices`` reads: while they are equal, so are the devices."""
        return snapshot

    def free(self, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return the healthy devices that no pod holds, by parent; ``None`` before podresources has answered."""
        if snapshot.holdings is None:
            return None
        held = {
            id_
            for holding in snapshot.holdings
            if holding.resource == self.resource
            for id_ in holding.device_ids
        }
        free: Counter[str] = Counter()
        for entry in self.devices(snapshot):
            free[entry.parent] += sum(id_ not in held for id_ in entry.ids) if entry.health.allocatable else 0
        return dict(free)

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Return the VFs or GPUs behind the devices: an ID, and words for a message. Two kinds must not share one."""
        raise NotImplementedError

    def selects(self, snapshot: Snapshot) -> bool:
        """Whether the configuration selects any PF or GPU of this machine."""
        raise NotImplementedError

    def lacking(self, snapshot: Snapshot) -> str | None:  # noqa: ARG002
        """Return why this node cannot keep programs within their share as configured, if it cannot."""
        return None

    def refusal(self, snapshot: Snapshot) -> str | None:  # noqa: ARG002
        """Return why the kubelet would refuse the device list, if it would."""
        return None

    def obstacle(self, snapshot: Snapshot) -> str | None:  # noqa: ARG002
        """Return what the host lacks now for each container with a device, and how to mend it."""
        return None

    def level(self, snapshot: Snapshot) -> str | None:  # noqa: ARG002
        """Return what keeps programs within their share (``kinds.enforcement``); ``None`` if a device is no share."""
        return None

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
        later_sizes: Sequence[int] | None = (),
    ) -> list[str]:
        """Return ``size`` of the available IDs, ``must_include`` first. Raises ``Refused``. See ``Question``."""
        free, must = preference(self.resource, available, must_include, size)
        return [*must_include, *self.choose(snapshot, Question(free, must, size, near, later_sizes))]

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose the IDs beside the required ones. Raises ``Refused``."""
        raise NotImplementedError

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        """Return what a container with these devices gets. Raises ``Refused``."""
        raise NotImplementedError

    def cdi_specs(self, snapshot: Snapshot) -> Mapping[str, CdiDevices]:  # noqa: ARG002
        """Return the entries that the agent's own CDI specs need, by CDI kind."""
        return {}

    def needed_files(self, snapshot: Snapshot) -> frozenset[str]:  # noqa: ARG002
        """Return what must be writable for an allocation: ``DEVICE_INFO_FILES``, ``TELL_FILE``, CDI kinds of ours."""
        return frozenset()


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A request is not granted; the message is one short sentence for the author of the pod.

    ``invalid``: the request can never be granted (INVALID_ARGUMENT). Otherwise this node cannot grant it now
    (FAILED_PRECONDITION). ``later``: a fact that it needs may arrive within a second.
    """

    def __init__(self, message: str, *, invalid: bool = False, later: bool = False) -> None:
        super().__init__(message)
        self.invalid, self.later = invalid, later


def requested(resource: str, ids: Sequence[str]) -> frozenset[str]:
    """Return the IDs of a request: at least one, none twice."""
    if not ids:
        raise Refused(f"{resource}: the request names no device", invalid=True)
    return _distinct(resource, ids)


def preference(
    resource: str, available: Iterable[str], must_include: Sequence[str], size: int
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the available and the required IDs of a valid request for a preference."""
    if size < 1:
        raise Refused(f"{resource}: {size} devices cannot be requested", invalid=True)
    free, must = frozenset(available), _distinct(resource, must_include)
    if len(must) > size:
        raise Refused(f"{resource}: {len(must)} devices must be among {size}", invalid=True)
    if not must <= free:
        raise Refused(f"{resource}: {named(must - free)} must be chosen but is not available", invalid=True)
    return free, must


def unknown(resource: str, ids: Iterable[str]) -> Refused:
    return Refused(f"{resource} has no device {named(ids)}", invalid=True)


def unhealthy(resource: str, name: str, health: Health) -> Refused:
    if health.only_cordoned:
        why = next(reason.detail for reason in health.reasons if reason.key == CORDONED)
        return Refused(f"{resource}: {ascii_name(name)} is {ascii_name(why)}")
    why = f": {ascii_name(health.reasons[0].detail)}" if health.reasons else ""
    return Refused(f"{resource}: {ascii_name(name)} is {health.state}{why}")


def held_by(resource: str, name: str, holding: Holding) -> Refused:
    return Refused(f"{resource}: {ascii_name(name)} is held by {_holder(holding)}")


def _holder(holding: Holding) -> str:
    """Return ``NAMESPACE/POD through RESOURCE``."""
    return f"{ascii_name(holding.namespace)}/{ascii_name(holding.pod)} through {ascii_name(holding.resource)}"


def held_elsewhere(
    snapshot: Snapshot, name: str, resource: str, ours: Collection[str] = ()
) -> Holding | None:
    """Return what a pod holds of this VF, GPU or MIG device through another resource. ``ours`` are resources of the
    same kind.

    The other resource is another plugin's that offers the same hardware, or this agent's: it had the device before its
    name was changed, or the device moved to another entry. All these plugins' IDs are ``<name>`` or ``<name>::<n>``.
    """
    by_resource = snapshot.holders.get(name, {})
    others = (holding for other, holding in by_resource.items() if other != resource and other not in ours)
    return next(others, None)


def unless_held(health: Health, holding: Holding | None) -> Health:
    """The health of a device that a pod may hold through another resource. Then no other pod can have it, which is no
    fault of the device: its state stays."""
    if holding is None or not health.allocatable:
        return health
    detail = f"{_holder(holding)} holds it; it is healthy again after the end of that pod"
    reason = Reason("held_elsewhere", detail, warning=True)
    return msgspec.structs.replace(health, reasons=(reason, *health.reasons), allocatable=False)


def obstacle(resource: str, name: str, health: Health, elsewhere: Holding | None) -> Refused | None:
    """Return why a device cannot be allocated. ``elsewhere`` is what a pod holds of it through another resource."""
    if not health.allocatable:
        return unhealthy(resource, name, health)
    return None if elsewhere is None else held_by(resource, name, elsewhere)


def named(ids: Iterable[str]) -> str:
    """Return the first few IDs, printable: a client of the socket may send anything."""
    names = tuple(ids)
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(ascii_name(name) for name in nsmallest(_NAMED_MAX, names)) + more


def ascii_name(text: str) -> str:
    """Return the text, printable and short."""
    return one_line(text, _SHOWN_MAX, ascii_only=True)


def distance(device: Gpu | Function, near: Sequence[Function]) -> tuple[int, int]:
    """Return a sort key: the functions on another NUMA node, then the PCIe hops to all of them."""
    remote = sum(device.numa_node is None or device.numa_node != function.numa_node for function in near)
    hops = sum(
        affinity(device.pci_path, device.numa_node, function.pci_path, function.numa_node)
        for function in near
    )
    return remote, hops


def _distinct(resource: str, ids: Sequence[str]) -> frozenset[str]:
    names = frozenset(ids)
    if len(names) != len(ids):
        twice = [name for name, count in Counter(ids).items() if count > 1]
        raise Refused(f"{resource}: {named(twice)} is named more than once", invalid=True)
    return names
