"""The CDI spec of the VFs that are in a pod: the interlock that keeps a container from starting without its NIC.

A container that holds a VF names the CDI device ``nodeagent.io/attached=<PCI address>-<stamp>``. The spec defines it
only while the VF's netdev is in the network namespace of the container's pod, and a runtime refuses an unknown device.

Two things make an entry useless that we could not take back, because we were away: the stamp is that of one allocation,
so the next pod names another device; and the entry mounts the file of the namespace, which the runtime removes with the
sandbox, so a new sandbox of the same pod does not start with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from nodeagent.base.file_writing import PUBLIC_FOLDER, replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.facts import cdi
from nodeagent.facts.cdi import ATTACHED_KIND, ContainerEdits
from nodeagent.facts.model import Mount

_FILE = "nodeagent-attached.json"
_MOUNTED_AT = "/run/nodeagent/network-namespace"


class Entry(Struct, frozen=True):
    """A VF in a pod: its netdev there, the path of the pod's network namespace, empty for that of the node, and the
    stamps of the allocations that it answers. ``addresses`` are those in the pod; the file does not have them."""

    interface: str
    network: str
    stamps: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class _Mounted(Struct):
    path: str = msgspec.field(name="hostPath")


class _Edits(Struct):
    env: list[str] = []
    mounts: list[_Mounted] = []


class _Device(Struct):
    name: str
    edits: _Edits = msgspec.field(name="containerEdits")


class _Spec(Struct):
    devices: list[_Device]


def document(entries: Mapping[str, Entry]) -> dict[str, object]:
    edits = {
        f"{device}-{stamp}": _edits(device, entry)
        for device, entry in entries.items()
        for stamp in entry.stamps
    }
    return cdi.spec(ATTACHED_KIND, edits)


def _edits(device: str, entry: Entry) -> ContainerEdits:
    variable = "NODEAGENT_INTERFACE_" + device.upper().replace(":", "_").replace(".", "_")
    mounts = (Mount(entry.network, _MOUNTED_AT, read_only=True),) if entry.network else ()
    return ContainerEdits(env=((variable, entry.interface),), mounts=mounts)


class AttachedSpec:
    """The file. Each call blocks and raises ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE

    def entries(self) -> dict[str, Entry]:
        """The devices that the file defines now, by PCI address; nothing if it cannot be read."""
        try:
            spec = msgspec.json.decode(read_regular(self.path), type=_Spec)
        except (OSError, ValueError):
            return {}
        entries: dict[str, Entry] = {}
        for one in spec.devices:
            device, _, stamp = one.name.rpartition("-")
            edits = one.edits
            before = entries.get(device)
            entries[device] = Entry(
                edits.env[0].partition("=")[2] if edits.env else "",
                edits.mounts[0].path if edits.mounts else "",
                (*(() if before is None else before.stamps), stamp),
            )
        return entries

    def write(self, entries: Mapping[str, Entry]) -> None:
        """Define these devices and no others. A spec without devices is invalid, so then there is no file."""
        if not any(entry.stamps for entry in entries.values()):
            self.path.unlink(missing_ok=True)
            return
        text = cdi.spec_text(document(entries))
        replace_changed_file(self.path, text.encode(), mode=0o644, folder_mode=PUBLIC_FOLDER)
