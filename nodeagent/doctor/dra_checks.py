"""Check the allocation by claims: versions, DeviceClasses, and hardware that is offered twice."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.reads import version
from nodeagent.dra import DRIVER
from nodeagent.dra.devices import GPU, NIC
from nodeagent.facts.model import Snapshot
from nodeagent.kinds.resource_settings import memory_entries, network_entries
from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import RESOURCE_SLICES, Json, Resource, metadata
from nodeagent.kube.server_version import server_version
from nodeagent.offering.offer import Offer

_FLOOR = (1, 36)
"""The first version whose defaults have all that mode dra needs."""
NVIDIA_GPUS = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
"""The resources of whole and time-sliced GPUs of NVIDIA's device plugin."""

CLAIMS_TOPIC = Topic(
    "claims",
    "CLAIMS",
    {
        "published": FACT,
        "version_below_dra": Advice(
            "Before Kubernetes 1.36 consumable capacity, taints and mapped names are off: nothing is published.",
            "upgrade, or set mode: devicePlugin",
        ),
        "offered_twice": Advice(
            "The device plugin and the ResourceSlices offer the same hardware: two pods can get one GPU or VF.",
            "drain the node; wait until no pod and no claim holds a device; set one mode and restart the agent; "
            "wait until the Node reports 0, or has no slices; uncordon it (docs/dra.md)",
        ),
        "offered_by_other_plugin": Advice(
            "NVIDIA's device plugin offers GPUs of this node as whole ones, and ResourceSlices offer GPUs for claims. "
            "Where both have the same GPU, two pods can get it.",
            "remove one of the two from this node, or see that they have different GPUs (select of gpu-mem)",
        ),
        "offered_by_other_driver": Advice(
            "Another DRA driver has hardware of this agent in its ResourceSlices: two pods can get one GPU or VF.",
            "let one of the two offer it: remove the other driver from this node, switch its GPUs off (NVIDIA's: "
            "resources.gpus.enabled=false), or let `select` leave them out here",
        ),
        "class_of_memory": Advice(
            "The scheduler takes the amount of GPU memory for a number of GPUs, and pods that ask for more than 32 "
            "fail in the whole cluster.",
            "remove extendedResourceName from the DeviceClass; pods ask for GPU memory with a claim (nodeagent claim)",
        ),
        "class_of_plugin": Advice(
            "The scheduler of Kubernetes 1.36.2 never binds a pod to this node that asks for such a resource by name "
            "and also has a claim: `nil or empty request mappings`.",
            "use mode dra for the resource too, or remove extendedResourceName from the DeviceClass until all nodes do",
        ),
        "not_published": Advice(
            "The configuration has mode dra, and no ResourceSlice has a device of this node: no claim is allocated.",
            "look at /readyz and the log of the agent; add daemonset/components/dra",
        ),
        "tainted": Advice(
            "A device with such a taint gets no new claim.",
            "`nodeagent health` has the reason and what ends it",
        ),
    },
)


DEVICE_CLASSES: Resource[Json] = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, dict
)


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device in a slice of our driver. ``kind`` is ``gpu`` or ``nic``, ``number`` the index of the GPU or the rail of
    the NIC, ``taint`` the first taint as text. ``of_vf``: it is one VF."""

    name: str
    kind: str
    number: int | None = None
    taint: str = ""
    of_vf: bool = False


@dataclass(frozen=True, slots=True)
class ForeignDevice:
    """A device in a slice of another driver. ``values`` are the texts of its attributes, in lower case: UUIDs and PCI
    addresses are among them, under names that each driver chooses."""

    driver: str
    name: str
    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class DraFacts:
    """``version`` of the API server. ``classes`` maps the names of resources to DeviceClasses.

    ``devices`` are those of the Node in slices of nodeagent, ``foreign`` those in slices of other drivers. ``devices``
    is ``None`` if no Node was asked for, or the slices may not be read.
    """

    version: tuple[int, int] = (0, 0)
    classes: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[PublishedDevice, ...] | None = None
    foreign: tuple[ForeignDevice, ...] = ()


async def read_claims(
    client: ApiClient, node: str | None, allowed: Callable[[str, Awaitable[Any]], Awaitable[Any]]
) -> DraFacts:
    """``allowed`` notes an object that may not be read, and returns ``None`` then and for a missing one. Raises
    ``ApiError``."""
    served = await allowed("the version of the API server", server_version(client))
    classes = await allowed("DeviceClasses", client.list(DEVICE_CLASSES))
    slices = None
    if node is not None:
        slices = await allowed(
            f"the ResourceSlices of {node}", client.list(RESOURCE_SLICES, fields=f"spec.nodeName={node}")
        )
    names = {
        str(name): metadata(obj).name
        for obj in (classes.items if classes is not None else ())
        if (name := (obj.get("spec") or {}).get("extendedResourceName"))
    }
    if slices is None:
        return DraFacts(served or (0, 0), names)
    specs = [obj.get("spec") or {} for obj in slices.items]
    found = [(str(spec.get("driver")), device) for spec in specs for device in spec.get("devices") or ()]
    return DraFacts(
        served or (0, 0),
        names,
        tuple(_device(device) for driver, device in found if driver == DRIVER),
        tuple(_foreign_device(driver, device) for driver, device in found if driver != DRIVER),
    )


def _foreign_device(driver: str, device: Json) -> ForeignDevice:
    texts = (value.get("string") for value in (device.get("attributes") or {}).values())
    values = frozenset(text.lower() for text in texts if isinstance(text, str))
    return ForeignDevice(driver, str(device.get("name", "")), values)


def _device(device: Json) -> PublishedDevice:
    attributes = device.get("attributes") or {}
    kind = str((attributes.get("kind") or {}).get("string", ""))
    number = (attributes.get("index" if kind == "gpu" else "rail") or {}).get("int")
    taint: Json = next(iter(device.get("taints") or ()), {})
    return PublishedDevice(
        str(device.get("name", "")),
        kind,
        number if isinstance(number, int) else None,
        f"{taint.get('value', '')}:{taint.get('effect', '')}" if taint else "",
        "vfIndex" in attributes,
    )


# --- findings -------------------------------------------------------------------------------------------


def claim_findings(
    facts: DraFacts,
    config: Config,
    node: Mapping[str, str] | None,
    kubelet: str,
    hardware: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Finding]:
    """``node`` has the allocatable amounts of the Node by resource, ``kubelet`` its version. ``hardware`` has words for
    each VF and GPU that this agent offers, by PCI address and UUID."""
    by_claim = any(getattr(entry, "mode", "") == "dra" for entry in config.resources)
    if by_claim:
        yield from _floor(facts, kubelet)
    yield from _classes(facts, config)
    if facts.devices is None:
        return
    yield from _offered_twice(facts.devices, config, node or {})
    if facts.devices:
        yield from _classes_of_plugin(facts.classes, node or {})
    yield from _offered_by_others(facts.devices, node or {})
    yield from _offered_by_drivers(facts.foreign, hardware)
    if facts.devices:
        kinds = {kind: sum(device.kind == kind for device in facts.devices) for kind in ("gpu", "nic")}
        nic = "VF" if any(device.of_vf for device in facts.devices) else "PF"
        yield CLAIMS_TOPIC.ok(
            "published", f"{count(kinds['gpu'], 'GPU')} and {count(kinds['nic'], nic)} in ResourceSlices"
        )
    elif by_claim:
        yield CLAIMS_TOPIC.fix("not_published", "no device of this node is in a ResourceSlice")
    if tainted := [f"{device.name} {device.taint}" for device in facts.devices if device.taint]:
        yield CLAIMS_TOPIC.note("tainted", shortened_list(tainted))


def _floor(facts: DraFacts, kubelet: str) -> Iterator[Finding]:
    for part, known in (("the API server", facts.version), ("the kubelet", version(kubelet))):
        if known is not None and (0, 0) < known < _FLOOR:
            yield CLAIMS_TOPIC.fix(
                "version_below_dra", f"{part} has Kubernetes {known[0]}.{known[1]}, mode dra needs 1.36"
            )


def _classes(facts: DraFacts, config: Config) -> Iterator[Finding]:
    names = ["gpu-mem", *(entry.name for entry in memory_entries(config.resources))]
    memory = re.compile("|".join(re.escape(name).replace(r"\{gpu\}", "[0-9]*") for name in names))
    for resource, device_class in sorted(facts.classes.items()):
        if memory.fullmatch(resource.rpartition("/")[2]):
            yield CLAIMS_TOPIC.fix(
                "class_of_memory", f"the DeviceClass {device_class} has the name {resource}"
            )


def _classes_of_plugin(classes: Mapping[str, str], allocatable: Mapping[str, str]) -> Iterator[Finding]:
    if both := [name for name in sorted(classes) if allocatable.get(name, "0") != "0"]:
        yield CLAIMS_TOPIC.warn(
            "class_of_plugin", f"a device plugin offers {shortened_list(both)}, which a DeviceClass maps"
        )


def _offered_twice(
    devices: tuple[PublishedDevice, ...], config: Config, allocatable: Mapping[str, str]
) -> Iterator[Finding]:
    """Resources that the Node can allocate, although devices of this kind and rail are in its slices."""
    counted = {
        name.rpartition("/")[2]: (name, amount) for name, amount in allocatable.items() if amount != "0"
    }
    twice: dict[str, str] = {}
    for device in devices:
        for name in _names(device, config):
            if name in counted:
                twice.setdefault(" ".join(counted[name]), device.name)
    if twice:
        listed = shortened_list(
            [f"{resource} (and {device} in a slice)" for resource, device in twice.items()]
        )
        yield CLAIMS_TOPIC.fix("offered_twice", f"by device plugin: {listed}")


def _offered_by_others(
    devices: tuple[PublishedDevice, ...], allocatable: Mapping[str, str]
) -> Iterator[Finding]:
    counted = [f"{name} {allocatable[name]}" for name in NVIDIA_GPUS if allocatable.get(name, "0") != "0"]
    gpus = sum(device.kind == "gpu" for device in devices)
    if counted and gpus:
        yield CLAIMS_TOPIC.warn(
            "offered_by_other_plugin", f"{', '.join(counted)} beside {count(gpus, 'GPU')} in slices"
        )


def hardware_words(offer: Offer, snapshot: Snapshot) -> dict[str, str]:
    """Words for each VF and GPU of device plugins and claims, by PCI address and UUID."""
    kinds = (*offer.kinds(snapshot), *(device.kind for device in offer.dra_devices(snapshot)))
    hardware = {id_: words for kind in kinds for id_, words in kind.hardware(snapshot).items()}
    for gpu in snapshot.gpus:
        if gpu.uuid in hardware:
            hardware[gpu.pci_address] = hardware[gpu.uuid]
    return hardware


def _offered_by_drivers(devices: tuple[ForeignDevice, ...], hardware: Mapping[str, str]) -> Iterator[Finding]:
    """Devices of other drivers that are hardware of this agent."""
    ours = {id_.lower(): words for id_, words in hardware.items()}
    twice: dict[str, list[str]] = {}
    for device in devices:
        if same := sorted(device.values & ours.keys()):
            twice.setdefault(device.driver, []).append(f"{ours[same[0]]} as {device.name}")
    for driver, found in sorted(twice.items()):
        yield CLAIMS_TOPIC.fix("offered_by_other_driver", f"{driver} has {shortened_list(found)}")


def _names(device: PublishedDevice, config: Config) -> Iterator[str]:
    """The names after the slash under which a device plugin of nodeagent offers this hardware."""
    vfs = [entry.name for entry in network_entries(config.resources)]
    slices = [entry.name for entry in memory_entries(config.resources)]
    names, field = {NIC: (vfs, "{rail}"), GPU: (slices, "{gpu}")}.get(device.kind, ([], ""))
    for template in names:
        name = template if device.number is None else template.replace(field, str(device.number))
        if "{" not in name:
            yield name
