"""Read what the doctor needs about claims: the version of the API server, DeviceClasses, slices of the Node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeagent.dra import DRIVER
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RESOURCE_SLICES, Json, Resource, metadata
from nodeagent.kube.server_version import server_version

DEVICE_CLASSES: Resource[Json] = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, dict
)


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device in a slice of our driver. ``kind`` is ``gpu`` or ``nic``, ``number`` the index of the GPU or the rail of
    the NIC, ``taint`` the first taint as text."""

    name: str
    kind: str
    number: int | None = None
    taint: str = ""


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


async def read(client: ApiClient, node: str | None, forbidden: Callable[[ApiError, str], None]) -> DraFacts:
    """``forbidden`` notes an object that may not be read; it raises any other error except for a missing one."""

    async def allowed(what: str, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except ApiError as error:
            forbidden(error, what)
            return None

    version = await allowed("the version of the API server", server_version(client))
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
        return DraFacts(version or (0, 0), names)
    specs = [obj.get("spec") or {} for obj in slices.items]
    found = [(str(spec.get("driver")), device) for spec in specs for device in spec.get("devices") or ()]
    return DraFacts(
        version or (0, 0),
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
    )
