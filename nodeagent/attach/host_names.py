"""The names that the netdevs of VFs have on the host, kept over restarts: a VF goes back under its name there.

They are those of one boot. After it no VF is in a pod, and the machine may name its netdevs in another way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import boot_id

log = logging.getLogger(__name__)

HOST_NAMES = f"{ATTACH_FOLDER}/host-names.json"


class StoredNames(msgspec.Struct, frozen=True):
    """By PCI address, in one boot. ``away`` are the VFs that have left for a pod and are not seen back under their
    names."""

    boot_id: str | None
    names: dict[str, str]
    away: list[str] = []


class HostNames:
    """By PCI address. Each name is on the disk before the first move of its VF."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HOST_NAMES
        self.known: Mapping[str, str] = {}
        self.away: frozenset[str] = frozenset()
        """The VFs that have left for a pod. The kernel returns one from a namespace that dies under any name."""
        self._boot = boot_id()
        try:
            stored = msgspec.json.decode(read_regular(self.path), type=StoredNames)
            if stored.boot_id == self._boot:
                self.known, self.away = stored.names, frozenset(stored.away)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning(
                "The names of VFs on the host cannot be read; VFs in pods come back under others. file=%s reason=%r",
                self.path,
                str(error),
            )

    def learn(self, seen: Mapping[str, str]) -> None:
        """Take the present names of VFs on the host; one that was away has its own name or none of its own. Blocks;
        raises ``OSError``."""
        new = {device: name for device, name in seen.items() if not self.is_foreign(device, name)}
        self._keep({**self.known, **new}, self.away - new.keys())

    def leave(self, devices: Iterable[str]) -> None:
        """These VFs are about to leave for a pod. Blocks; raises ``OSError``."""
        self._keep(self.known, self.away | {device for device in devices if device in self.known})

    def is_foreign(self, device: str, name: str) -> bool:
        """Whether a VF came back from a pod under a name that is not its own."""
        return device in self.away and name != self.known.get(device, name)

    def _keep(self, known: Mapping[str, str], away: frozenset[str]) -> None:
        if (known, away) != (self.known, self.away):
            stored = StoredNames(self._boot, dict(known), sorted(away))
            replace_changed_file(self.path, msgspec.json.encode(stored, order="sorted") + b"\n")
            self.known, self.away = known, away
