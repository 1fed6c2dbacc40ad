"""Build, check and read specs of the Container Device Interface, version 0.6.0. Pure.

A spec defines ``<kind>=<name>`` for the container runtime. The agent writes a spec only if no spec of a
vendor describes the hardware (see ``vendor_devices``), and uses kinds of its own: runtimes refuse a device that
two files define.

Our spec of GPUs does not run ``ldconfig`` in the container, because that needs a hook program on the host. So the
driver's libraries are mounted under their sonames (``libcuda.so.1``) into a folder that the image's dynamic
loader searches without a cache: ``/usr/lib/x86_64-linux-gnu`` on Debian's family, ``/usr/lib64`` on Red Hat's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.facts.model import DeviceNode, Mount

_VERSION = "0.6.0"
GPU_KIND = "nodeagent.io/gpu"
VF_KIND = "nodeagent.io/vf"
ATTACHED_KIND = "nodeagent.io/attached"
"""A VF whose netdev is in the pod: `nodeagent attach` alone defines these devices."""

DRIVER_LIBRARY = "libcuda.so.1"
"""The library of CUDA's driver API, without which no program uses a GPU."""
GPU_ENV = (("NVIDIA_VISIBLE_DEVICES", "void"),)
"""CUDA images ask for ``all``: NVIDIA's runtime would give them every GPU beside the allocated one."""

_MOUNT_OPTIONS = ("nosuid", "nodev", "bind")
_DNS_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?")
_CLASS = re.compile(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_DEVICE = re.compile(r"[a-zA-Z0-9]([-_.:a-zA-Z0-9]*[a-zA-Z0-9])?")
_EDITS = {"env", "deviceNodes", "mounts", "hooks"}  # those of version 0.6.0


class CdiError(ValueError):
    """A spec is invalid; the message names the place and the cause."""


class ContainerEdits(msgspec.Struct, frozen=True):
    """The additions to a container by one device, or by every device of a spec."""

    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


class CdiDevices(msgspec.Struct, frozen=True):
    """The content of one spec: the edits of each device by name, and the edits that all of them share."""

    devices: Mapping[str, ContainerEdits]
    shared: ContainerEdits | None = None


def spec(
    kind: str, devices: Mapping[str, ContainerEdits], shared: ContainerEdits | None = None
) -> dict[str, object]:
    """Return a checked spec. Every container that gets one of the devices gets ``shared`` too.

    All mounts, and device nodes without a number, must exist on the host: otherwise the runtime does not start the
    container.
    """
    document: dict[str, object] = {
        "cdiVersion": _VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(devices[name])} for name in sorted(devices)],
    }
    if shared and (edits := _edits(shared)):
        document["containerEdits"] = edits
    validate(document)
    return document


def spec_text(document: Mapping[str, object]) -> str:
    """Return the text of a spec. Equal specs have equal texts, so that an unchanged file is not written."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def validate(document: object) -> None:
    """Raise ``CdiError`` if a container runtime would refuse the file."""
    root = _mapping(document, "the spec")
    if root.get("cdiVersion") != _VERSION:
        raise CdiError(f"cdiVersion is {root.get('cdiVersion')!r}, not {_VERSION}")
    _kind(root.get("kind"))
    devices = _list(root.get("devices"), "devices")
    if not devices:
        raise CdiError("devices is empty: a spec without devices is invalid")
    seen: set[str] = set()
    for i, item in enumerate(devices):
        device = _mapping(item, f"devices[{i}]")
        name = device.get("name")
        if not isinstance(name, str) or not _DEVICE.fullmatch(name):
            raise CdiError(
                f"devices[{i}].name {name!r} is not letters, digits and -_.: between letters or digits"
            )
        if name in seen:
            raise CdiError(f"devices[{i}].name {name} is defined twice")
        seen.add(name)
        where = f"devices[{i}].containerEdits"
        if not _check_edits(device.get("containerEdits"), where):
            raise CdiError(f"{where} is empty: a device without edits is invalid")
    if "containerEdits" in root:
        _check_edits(root["containerEdits"], "containerEdits")


def vendor_devices(documents: Mapping[str, object]) -> dict[str, set[str]]:
    """Return the device names by kind in the files of the CDI folders: ``{file name: JSON text or parsed YAML}``.

    A file that runtimes do not read, or cannot read, defines nothing.
    """
    defined: dict[str, set[str]] = {}
    for filename, content in documents.items():
        if not filename.endswith((".json", ".yaml")):
            continue
        document = content
        if isinstance(content, str):
            try:
                document = json.loads(content)
            except (ValueError, RecursionError):
                continue
        if not isinstance(document, Mapping):
            continue
        kind, devices = document.get("kind"), document.get("devices")
        if isinstance(kind, str) and isinstance(devices, list):
            names = (device.get("name") for device in devices if isinstance(device, Mapping))
            defined.setdefault(kind, set()).update(name for name in names if isinstance(name, str))
    return defined


def _edits(edits: ContainerEdits) -> dict[str, object]:
    built: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [
            {
                "path": node.container_path,
                **({"hostPath": node.host_path} if node.host_path != node.container_path else {}),
                "permissions": node.permissions,
                **({"type": "c", "major": node.number[0], "minor": node.number[1]} if node.number else {}),
            }
            for node in edits.device_nodes
        ],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", *_MOUNT_OPTIONS],
            }
            for mount in edits.mounts
        ],
    }
    return {key: value for key, value in built.items() if value}


def _kind(kind: object) -> None:
    if not isinstance(kind, str) or kind.count("/") != 1:
        raise CdiError(f"kind {kind!r} is not <vendor>/<class>")
    vendor, _, name = kind.partition("/")
    labels = vendor.split(".")
    if len(vendor) > 253 or not vendor[:1].isalpha() or not all(_DNS_LABEL.fullmatch(it) for it in labels):
        raise CdiError(f"kind {kind!r}: the vendor {vendor!r} is not a DNS name that begins with a letter")
    if len(name) > 63 or not _CLASS.fullmatch(name):
        raise CdiError(f"kind {kind!r}: the class {name!r} is not letters, digits and -_., at most 63")


def _check_edits(value: object, where: str) -> bool:
    """Check the edits, and return whether they edit anything."""
    edits = _mapping(value, where)
    if strange := sorted(set(map(str, edits)) - _EDITS):
        raise CdiError(f"{where}.{strange[0]} is not of version {_VERSION}")
    for i, item in enumerate(_list(edits.get("env", []), f"{where}.env")):
        if not isinstance(item, str) or item.find("=") < 1:
            raise CdiError(f"{where}.env[{i}] {item!r} is not NAME=value")
    for i, item in enumerate(_list(edits.get("deviceNodes", []), f"{where}.deviceNodes")):
        node, here = _mapping(item, f"{where}.deviceNodes[{i}]"), f"{where}.deviceNodes[{i}]"
        _paths(here, [node.get("path"), node.get("hostPath", node.get("path"))])
        if not set(str(node.get("permissions", ""))) <= set("rwm"):
            raise CdiError(f"{here}.permissions {node['permissions']!r} is not of r, w and m")
    for i, item in enumerate(_list(edits.get("mounts", []), f"{where}.mounts")):
        mount, here = _mapping(item, f"{where}.mounts[{i}]"), f"{where}.mounts[{i}]"
        _paths(here, [mount.get("hostPath"), mount.get("containerPath")])
    return any(edits.values())


def _paths(where: str, paths: Iterable[object]) -> None:
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/"):
            raise CdiError(f"{where}: {path!r} is not an absolute path")


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise CdiError(f"{where} is not a mapping")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise CdiError(f"{where} is not a list")
    return value
