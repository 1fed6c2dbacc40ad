"""The kernel's log, and lines in it that mean a NIC's firmware is in trouble.

The law of this file: a line counts only where the kernel itself wrote it (facility 0: whatever programs write to
/dev/kmsg has another), and only from its beginning, where the driver's name and the PCI address stand. What
else is in it, and who could put that there, does not matter; no text of it leaves this file unescaped.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EAGAIN, EINVAL, EPIPE
from typing import Self

PATH = "/dev/kmsg"
_RECORD_MAX = 8192  # Documentation/ABI/testing/dev-kmsg; a shorter buffer is an error (EINVAL)
_RECORDS_AT_ONCE = 2000

PATTERNS: dict[str, re.Pattern[bytes]] = {
    "command_leak": re.compile(rb"timeout\. Will cause a leak of a command resource"),
    "firmware_fatal": re.compile(rb"Fatal error \d+ detected"),
    "health_compromised": re.compile(rb"device's health compromised"),
    "unrecoverable": re.compile(rb"unrecoverable hardware error"),
    "insufficient_power": re.compile(rb"[Dd]etected insufficient power on the PCIe slot"),
    "high_temperature": re.compile(rb"High [Tt]emperature"),
    "cable_unplugged": re.compile(rb"Cable unplugged"),
    "register_access": re.compile(rb"ACCESS_REG\(0x805\)[^\n]{0,80}failed"),
    "transmit_timeout": re.compile(rb"TX timeout detected"),
}
"""By key, what stands in a line of mlx5_core after its name and the address (drivers/net/ethernet/mellanox/mlx5)."""

_LINE = re.compile(rb"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])[ :]")
_FACILITY_BITS = 3


class KernelLogError(Exception):
    """The log cannot be read; the message says what would help."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line that matched: of which function, and by the key of which pattern."""

    pci_address: str
    pattern: str


def events_of(record: bytes) -> Iterator[Event]:
    """``priority,sequence,microseconds,flags;text`` and lines of a dictionary, as /dev/kmsg gives it."""
    head, _, rest = record.partition(b";")
    priority = head.partition(b",")[0]
    if not priority.isdigit() or int(priority) >> _FACILITY_BITS:
        return
    text = rest.partition(b"\n")[0]
    line = _LINE.match(text)
    if line is None:
        return
    for key, pattern in PATTERNS.items():
        if pattern.search(text, line.end()):
            yield Event(line[1].decode("ascii"), key)


class KernelLog:
    """Read from the oldest line there is, without waiting. ``overruns`` counts times that lines were lost."""

    def __init__(self, path: str | os.PathLike[str] = PATH) -> None:
        self.overruns = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise KernelLogError(
                f"{os.fspath(path)} cannot be opened: {error.strerror}; the kernel's log takes CAP_SYSLOG and, "
                "in a container, the host's /dev/kmsg"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> tuple[Counter[Event], bool]:
        """What has been written since, and whether there is more to be read at once."""
        found: Counter[Event] = Counter()
        for _ in range(_RECORDS_AT_ONCE):
            try:
                record = os.read(self._fd, _RECORD_MAX)
            except OSError as error:
                if error.errno == EAGAIN:
                    return found, False
                if error.errno == EPIPE:  # the oldest ones are gone, and the next read is of what is left
                    self.overruns += 1
                    continue
                if error.errno == EINVAL:
                    continue
                raise KernelLogError(f"the kernel's log cannot be read: {error.strerror}") from error
            if not record:
                return found, False
            found.update(events_of(record))
        return found, True
