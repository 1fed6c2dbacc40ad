"""Specs of the Container Device Interface, version 0.6.0: built, checked and read. Pure.

A spec tells the container runtime what ``<kind>=<name>`` means. The agent writes its own only where no
vendor's spec describes the hardware (``vendor_devices`` tells), and under kinds of its own, since two files
that define one device make runtimes refuse both.

What our spec of GPUs does not do is run ``ldconfig`` in the container, which takes a hook program on the
host. The driver's libraries are therefore to be mounted under their sonames (``libcuda.so.1``) into a folder
where the image's dynamic loader looks without a cache: ``/usr/lib/x86_64-linux-gnu`` on Debian's family,
``/usr/lib64`` on Red Hat's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.model import DeviceNode, Mount

VERSION = "0.6.0"
GPU_KIND = "nodeagent.io/gpu"
VF_KIND = "nodeagent.io/vf"

GPU_ENV = (("NVIDIA_VISIBLE_DEVICES", "void"),)
"""Images of CUDA ask for ``all``, and NVIDIA's runtime would give them every GPU beside the one allocated."""

_MOUNT_OPTIONS = ("nosuid", "nodev", "bind")
_DNS_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?")
_CLASS = re.compile(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_DEVICE = re.compile(r"[a-zA-Z0-9]([-_.:a-zA-Z0-9]*[a-zA-Z0-9])?")
_EDITS = {"env", "deviceNodes", "mounts", "hooks"}  # those of version 0.6.0


class CdiError(ValueError):
    """What is wrong with a spec, and where in it."""


@dataclass(frozen=True, slots=True)
class Edits:
    """What a device, or every device of a spec, adds to a container."""

    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


def spec(kind: str, devices: Mapping[str, Edits], shared: Edits | None = None) -> dict[str, object]:
    """A checked spec. ``shared`` goes to every container that gets any of the devices.

    All device nodes and mounts must be on the host: a runtime does not start a container without them.
    """
    document: dict[str, object] = {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(devices[name])} for name in sorted(devices)],
    }
    if shared and (edits := _edits(shared)):
        document["containerEdits"] = edits
    validate(document)
    return document


def text(document: Mapping[str, object]) -> str:
    """Equal specs are equal texts, so that an unchanged file need not be written."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def validate(document: object) -> None:
    """Raises ``CdiError`` for what a container runtime would refuse, the whole file with it."""
    root = _mapping(document, "the spec")
    if root.get("cdiVersion") != VERSION:
        raise CdiError(f"cdiVersion is {root.get('cdiVersion')!r}, not {VERSION}")
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
            raise CdiError(f"devices[{i}].name {name} is there twice")
        seen.add(name)
        where = f"devices[{i}].containerEdits"
        if not _check_edits(device.get("containerEdits"), where):
            raise CdiError(f"{where} is empty: a device without edits is invalid")
    if "containerEdits" in root:
        _check_edits(root["containerEdits"], "containerEdits")


def vendor_devices(documents: Mapping[str, object]) -> dict[str, set[str]]:
    """The device names by kind in the files of the CDI folders: ``{file name: JSON text or parsed YAML}``.

    A file that runtimes do not read, or cannot, defines nothing.
    """
    found: dict[str, set[str]] = {}
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
            found.setdefault(kind, set()).update(name for name in names if isinstance(name, str))
    return found


def _edits(edits: Edits) -> dict[str, object]:
    built: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [
            {
                "path": node.container_path,
                **({"hostPath": node.host_path} if node.host_path != node.container_path else {}),
                "permissions": node.permissions,
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
    """Whether they edit anything."""
    edits = _mapping(value, where)
    if strange := sorted(set(map(str, edits)) - _EDITS):
        raise CdiError(f"{where}.{strange[0]} is not of version {VERSION}")
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
