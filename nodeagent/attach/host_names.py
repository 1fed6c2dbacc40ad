"""The names that the netdevs of VFs have on the host, kept over restarts: a VF goes back under its name there.

A NIC as a whole gets its addresses and its MTU again too, and is set up if it was.

They are those of one boot. After it no VF is in a pod, and the machine may name its netdevs in another way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import boot_id

log = logging.getLogger(__name__)

HOST_NAMES = f"{ATTACH_FOLDER}/host-names.json"


class HostState(msgspec.Struct, frozen=True):
    """The addresses, MTU and state of a NIC as a whole on the host, before it left for a pod."""

    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    up: bool = False


class StoredNames(msgspec.Struct, frozen=True):
    """By PCI address, in one boot. ``away`` are the VFs that have left for a pod and are not seen back under their
    names; ``left`` those of them that are NICs as a whole."""

    boot_id: str | None
    names: dict[str, str]
    away: list[str] = []
    left: dict[str, HostState] = {}


class HostNames:
    """By PCI address. Each name is on the disk before the first move of its VF."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HOST_NAMES
        self.known: Mapping[str, str] = {}
        self.away: frozenset[str] = frozenset()
        """The VFs that have left for a pod. The kernel returns one from a namespace that dies under any name."""
        self.left: Mapping[str, HostState] = {}
        """NICs as a whole that have left and are not seen back under their names."""
        self._boot = boot_id()
        if (stored := _read(self.path, self._boot)) is not None:
            self.known, self.away, self.left = stored.names, frozenset(stored.away), stored.left

    def learn(self, seen: Mapping[str, str]) -> None:
        """Take the present names of VFs on the host; one that was away has its own name or none of its own. Blocks;
        raises ``OSError``."""
        new = {device: name for device, name in seen.items() if not self.is_foreign(device, name)}
        left = {device: state for device, state in self.left.items() if device not in new}
        self._keep({**self.known, **new}, self.away - new.keys(), left)

    def leave(self, devices: Iterable[str], nics: Mapping[str, HostState] = MappingProxyType({})) -> None:
        """These VFs are about to leave for a pod, and NICs as a whole that have this on the host. What one had when it
        left before, and has not got again, stands. Blocks; raises ``OSError``."""
        away = self.away | {device for device in devices if device in self.known}
        self._keep(self.known, away, {**nics, **self.left})

    def is_foreign(self, device: str, name: str) -> bool:
        """Whether a VF came back from a pod under a name that is not its own."""
        return device in self.away and name != self.known.get(device, name)

    def _keep(self, known: Mapping[str, str], away: frozenset[str], left: Mapping[str, HostState]) -> None:
        if (known, away, left) != (self.known, self.away, self.left):
            stored = StoredNames(self._boot, dict(known), sorted(away), dict(left))
            replace_changed_file(self.path, msgspec.json.encode(stored, order="sorted") + b"\n")
            self.known, self.away, self.left = known, away, left


def read_left(folder: Path) -> Mapping[str, HostState]:
    """Read what NICs as a whole had on the host that are in pods now, by PCI address. ``folder`` is the state
    directory. Blocks."""
    stored = _read(folder / HOST_NAMES, boot_id())
    return {} if stored is None else stored.left


def _read(path: Path, boot: str | None) -> StoredNames | None:
    try:
        stored = msgspec.json.decode(read_regular(path), type=StoredNames)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning(
            "The names of VFs on the host cannot be read; VFs in pods come back under others. file=%s reason=%r",
            path,
            str(error),
        )
        return None
    return stored if stored.boot_id == boot else None
