"""Credentials from the files of a folder, as a Secret is mounted; read when they are needed and kept nowhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from nodeagent.switches.answers import SwitchError

NAMES = (
    "community",
    "username",
    "password",
    "authPassword",
    "privPassword",
    "ca.crt",
    "tls.crt",
    "tls.key",
)
SIZE_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class Secret:
    """``folder`` is for messages. The values show in no repr."""

    folder: str
    values: dict[str, bytes] = field(repr=False)
    faults: dict[str, str] = field(default_factory=dict)
    """Why a file that is there cannot be read."""

    def raw(self, name: str) -> bytes | None:
        if name in self.faults:
            raise SwitchError(f"{self.folder}/{name} cannot be read: {self.faults[name]}", "refused")
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        """Without the line's end, which editors leave behind."""
        found = self.raw(name)
        if found is None:
            return None
        try:
            return found.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise SwitchError(f"{self.folder}/{name} is not text in UTF-8", "refused") from None

    def need(self, name: str) -> str:
        found = self.text(name)
        if not found:
            state = "is not there" if found is None else "is empty"
            raise SwitchError(
                f"{self.folder}/{name} {state}: mount the Secret that switches.credentials names, with this key",
                "refused",
            )
        return found


def secrets(folder: str) -> Secret:
    """All that is there."""
    values: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    for name in NAMES:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                values[name] = file.read(SIZE_MAX)
        except FileNotFoundError:
            continue
        except OSError as error:
            faults[name] = error.strerror or str(error)
    return Secret(folder, values, faults)
