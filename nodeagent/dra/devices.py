"""The devices of a node as a DRA driver publishes them, and what differs between their kinds.

Each kind has its file (``gpu_device``, ``mig_place``, ``pf_device``) and its row in ``device_table``. Many claims share
a device, and each consumes a part of its capacity.

Health is no part of the capacity: a sick VF or GPU keeps its place, and the health is published beside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import msgspec

from nodeagent.dra.resource_claim import DeviceResult
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Function, Gpu, Health, Holding, Link, MigSlot, Snapshot
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kinds.mps_clients import MpsShares

GPU, MIG, NIC = "gpu", "mig", "nic"
SOURCES = {GPU: "gpus", MIG: "gpus", NIC: "pci"}
"""The source of the facts of each pool."""
_LABEL_MAX = 63  # characters of a DNS label (RFC 1123), which the name of a device is

Attributes = dict[str, str | int | bool | None]
"""Attributes of a device by name; ``None``: it has none."""


class Capacity(msgspec.Struct, frozen=True):
    """A quantity that claims consume. ``total``, ``default`` and each share are multiples of ``step``.

    ``default`` is the share of a claim that names none. ``unit`` is the suffix of a Kubernetes quantity.
    """

    name: Literal["memory", "vfs", "shares"]
    total: int
    step: int
    default: int
    unit: Literal["Mi", ""] = ""

    def quantity(self, amount: int) -> str:
        """Return an amount as a Kubernetes quantity: ``80896Mi``, ``8``."""
        return f"{amount}{self.unit}"


class LinkEnds(msgspec.Struct, frozen=True):
    """The last known speed of a link in Mbit/s, and the name of its leaf switch."""

    speed_mbps: int | None = None
    leaf: str | None = None


class Occupied(Refused):
    """Another claim, or a pod with a device plugin's device, holds what this claim was given."""


class DraDevice(msgspec.Struct, frozen=True):
    """A device that claims allocate. A kind has a ``name``, which is a DNS label, and the ``kind`` of device plugins
    with the settings of its entry.

    What a method returns here holds for a device that is no network function, has no limit on memory and no MPS daemon,
    and is there before a claim has it.
    """

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def kind(self) -> DeviceKind:
        raise NotImplementedError

    @property
    def pool(self) -> Literal["gpu", "mig", "nic"]:
        raise NotImplementedError

    @property
    def capacity(self) -> Capacity:
        raise NotImplementedError

    @property
    def health(self) -> Health:
        raise NotImplementedError

    @property
    def gone(self) -> bool:
        """Whether it is not on the bus, or lost by its driver, now."""
        raise NotImplementedError

    @property
    def parent(self) -> str:
        """The hardware behind it: the UUID of a GPU, the PCI address of a PF."""
        raise NotImplementedError

    @property
    def hardware(self) -> frozenset[str]:
        """The IDs by which device plugins know what it is made of; a slice has the UUID before ``::``."""
        raise NotImplementedError

    @property
    def own_health(self) -> bool:
        """Whether claims are refused for its health. The VFs of a PF have theirs."""
        return True

    @property
    def order(self) -> tuple[object, ...]:
        """The key that sorts the devices of a node. Devices of one key stay as their entries and the driver have
        them."""
        return ()

    @property
    def divided_gpu(self) -> Gpu | None:
        """The GPU in MIG mode that has the counters of this place."""
        return None

    @property
    def slot(self) -> MigSlot | None:
        """The place of a MIG device."""
        return None

    @property
    def rail(self) -> int | None:
        """The rail of a PF, if its entry names it."""
        return None

    @property
    def vf(self) -> Function | None:
        """The VF that is the device, for one claim."""
        return None

    @property
    def tell(self) -> tuple[str, ...]:
        """The programs that are told of it by variables of the container (``told_pairs``)."""
        return ()

    @property
    def mps(self) -> MpsShares | None:
        """How its shares are granted through an MPS daemon."""
        return None

    def limit_mib(self, amount: int, snapshot: Snapshot) -> int | None:  # noqa: ARG002
        """Return the limit on the memory of ALL GPUs of a container that has this amount."""
        return None

    def slices(self, amount: int) -> int:  # noqa: ARG002
        """Return the number of a device plugin's slices of GPU memory for this amount."""
        return 0

    def attributes(self, link: Link | None, ends: LinkEnds, leaf_group: str | None) -> Attributes:
        """Return its attributes in a ResourceSlice. ``link`` is that of its ``parent``."""
        raise NotImplementedError

    def consumption(self) -> dict[str, Any]:
        """Return the fields of a ResourceSlice that say how claims consume it.

        The least amount is 0, for access as an administrator: the scheduler wants room for the default of the capacity
        even then (allocator_incubating.go, CmpRequestOverCapacity).
        """
        capacity = self.capacity
        total, step = capacity.quantity(capacity.total), capacity.quantity(capacity.step)
        policy = {
            "default": capacity.quantity(capacity.default),
            "validRange": {"min": "0", "max": total, "step": step},
        }
        capacities = {capacity.name: {"value": total, "requestPolicy": policy}}
        return {"allowMultipleAllocations": True, "capacity": capacities}

    def check_place(
        self, own: Mapping[MigSlot, str], others: Iterable[tuple[str, MigSlot]], *, admin: bool
    ) -> None:
        """Refuse a place that does not fit beside those of the same claim (``own``, with names of devices) and of other
        claims (``others``, with names of claims). Raises ``Refused``."""

    def choose(
        self,
        share: GrantedShare,  # noqa: ARG002
        taken: Collection[str],  # noqa: ARG002
        own: Collection[str],  # noqa: ARG002
        snapshot: Snapshot,  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Choose the VFs of a share: none of the ``taken`` ones, near to the claim's ``own``. Raises ``Refused``."""
        return ()

    def grant(self, shares: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:
        """Return what a container gets with these shares, which are granted together. Raises ``Refused``."""
        raise NotImplementedError

    def show(self, devices: Sequence[DraDevice], snapshot: Snapshot) -> Allocation:  # noqa: ARG002
        """Return what a monitoring container gets of these devices of one resource: no share, no limit and no MPS
        daemon. A device that is gone is left out, so that the container starts and sees the others."""
        return Allocation()

    def variables(
        self,
        end: str,
        allocation: Allocation,
        request: Sequence[GrantedShare],
        told: tuple[tuple[str, str], ...],
    ) -> Iterable[tuple[str, str]]:
        """Return the variables that have the name of the request at their ``end``. ``request`` are its shares, of all
        kinds; ``told`` is added for a container that may use the VFs of the claim."""
        raise NotImplementedError


_Kind = TypeVar("_Kind", bound=DraDevice)


class GrantedShare(msgspec.Struct):
    """One result of the allocation, with its device and amount. ``admin``: access as an administrator, which takes
    nothing of the device (``amount`` 0)."""

    result: DeviceResult
    device: DraDevice
    amount: int
    vfs: tuple[str, ...] = ()

    @property
    def admin(self) -> bool:
        return bool(self.result.admin_access)

    @property
    def request(self) -> str:
        return self.result.request.partition("/")[0]


def alike(example: _Kind, devices: Iterable[DraDevice]) -> list[_Kind]:
    """Return devices of one resource, of which this is an example: an entry of ``resources`` makes one kind."""
    return [device for device in devices if isinstance(device, type(example))]


def shared_hca(device: DraDevice) -> str:
    """Return the PCI address of the PF whose shares a device has; empty: it has none."""
    return device.parent if device.capacity.name == "shares" else ""


def pool_name(node: str, pool: str) -> str:
    """Return the name of a pool of this node. Each kind has one: a change of NICs leaves the GPUs as they are."""
    return f"{node}/{pool}"


def gpu_name(uuid: str) -> str:
    """
    >>> gpu_name("GPU-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa")
    'gpu-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa'
    """
    return dns_label(f"gpu-{uuid.removeprefix('GPU-')}")


def plugin_holders(device: DraDevice, snapshot: Snapshot) -> Iterator[Holding]:
    """Yield what pods hold of this hardware through a device plugin: the pods from before a change of the mode.

    The scheduler does not know that they use it, so it must not be published before they end. A share of an HCA,
    ``<PF>::<n>``, leaves its VFs free.
    """
    has_vfs = device.capacity.name == "vfs" and len(device.hardware) > 1
    for holding in snapshot.holdings or ():
        if not holding.claim and any(
            (id_ if has_vfs else id_.partition("::")[0]) in device.hardware for id_ in holding.device_ids
        ):
            yield holding


def dns_label(text: str) -> str:
    """Return a DNS label. Different texts have different labels: what had to be changed has a digest of the text."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if found == text.lower() and len(found) <= _LABEL_MAX:
        return found
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{found[: _LABEL_MAX - 1 - len(digest)]}-{digest}"
