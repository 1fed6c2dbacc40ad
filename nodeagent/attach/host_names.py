"""The names that the netdevs of VFs have on the host, kept over restarts: a VF goes back under its name there.

They are those of one boot. After it no VF is in a pod, and the machine may name its netdevs in another way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import boot_id

log = logging.getLogger(__name__)

HOST_NAMES = f"{ATTACH_FOLDER}/host-names.json"


class StoredNames(msgspec.Struct, frozen=True):
    """By PCI address, in one boot. ``given`` are the names that VFs had in their last pods."""

    boot_id: str | None
    names: dict[str, str]
    given: dict[str, str] = {}


class HostNames:
    """By PCI address. Each name is on the disk before the first move of its VF."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HOST_NAMES
        self.known: Mapping[str, str] = {}
        self.given: Mapping[str, str] = {}
        """The name in a pod that a VF had from us last: with it the kernel returns the VF of a namespace that dies."""
        self._boot = boot_id()
        try:
            stored = msgspec.json.decode(read_regular(self.path), type=StoredNames)
            if stored.boot_id == self._boot:
                self.known, self.given = stored.names, stored.given
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning(
                "The names of VFs on the host cannot be read; VFs in pods come back under others. file=%s reason=%r",
                self.path,
                str(error),
            )

    def learn(self, seen: Mapping[str, str]) -> None:
        """Take the present names of VFs on the host. Blocks; raises ``OSError``."""
        self._keep({**self.known, **seen}, self.given)

    def give(self, names: Mapping[str, str]) -> None:
        """VFs are about to get these names in a pod. Blocks; raises ``OSError``."""
        self._keep(self.known, {**self.given, **names})

    def _keep(self, known: Mapping[str, str], given: Mapping[str, str]) -> None:
        if (known, given) != (self.known, self.given):
            stored = StoredNames(self._boot, dict(known), dict(given))
            replace_changed_file(self.path, msgspec.json.encode(stored, order="sorted") + b"\n")
            self.known, self.given = known, given
