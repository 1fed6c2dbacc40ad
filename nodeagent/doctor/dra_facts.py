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
class DraFacts:
    """``version`` of the API server. ``classes`` maps the names of resources to DeviceClasses. ``devices`` are those of
    the Node; ``None``: no Node was asked for, or the slices may not be read."""

    version: tuple[int, int] = (0, 0)
    classes: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[PublishedDevice, ...] | None = None


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
        fields = f"spec.nodeName={node},spec.driver={DRIVER}"
        slices = await allowed(f"the ResourceSlices of {node}", client.list(RESOURCE_SLICES, fields=fields))
    names = {
        str(name): metadata(obj).name
        for obj in (classes.items if classes is not None else ())
        if (name := (obj.get("spec") or {}).get("extendedResourceName"))
    }
    devices = None
    if slices is not None:
        devices = tuple(
            _device(device) for obj in slices.items for device in (obj.get("spec") or {}).get("devices") or ()
        )
    return DraFacts(version or (0, 0), names, devices)


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
