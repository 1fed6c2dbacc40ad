"""Read the switches' credentials from a mounted Secret for each round; they are not kept longer."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from nodeagent.base.regular_file import read_regular
from nodeagent.features.switches.switch_reading import SwitchError

NAMES = ("community", "username", "authPassword", "privPassword")
SIZE_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class SwitchCredentials:
    """``folder`` is for messages. The repr omits the values."""

    folder: str
    values: dict[str, bytes] = field(repr=False)
    faults: dict[str, str] = field(default_factory=dict)
    """By file name, why an existing file cannot be read."""

    def text(self, name: str) -> str | None:
        """The text without a final newline, which editors add."""
        if name in self.faults:
            raise SwitchError(f"{self.folder}/{name} cannot be read: {self.faults[name]}", "refused")
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return value.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise SwitchError(f"{self.folder}/{name} is not text in UTF-8", "refused") from None

    def need(self, name: str) -> str:
        value = self.text(name)
        if not value:
            state = "does not exist" if value is None else "is empty"
            raise SwitchError(
                f"{self.folder}/{name} {state}: mount the Secret that switches.credentials names, with this key",
                "refused",
            )
        return value


def read_credentials(folder: str) -> SwitchCredentials:
    """Read all files of the mounted Secret."""
    values: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    for name in NAMES:
        try:
            values[name] = read_regular(os.path.join(folder, name), SIZE_MAX)
        except FileNotFoundError:
            continue
        except OSError as error:
            faults[name] = error.strerror or str(error)
    return SwitchCredentials(folder, values, faults)
