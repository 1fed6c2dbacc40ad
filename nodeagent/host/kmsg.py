"""Find lines in the kernel log that report a failure of a NIC's firmware.

A line counts only if the kernel wrote it (facility 0; lines that programs write to /dev/kmsg have another one), and
only if it begins with the driver's name and the PCI address. The rest of the line may be hostile; no text of it
leaves this module.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from errno import EACCES, EAGAIN, EINVAL, ENOENT, EPERM, EPIPE

from msgspec import Struct

from nodeagent.host.fd import Closing

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
"""By key, the text after name and address in a line of mlx5_core (drivers/net/ethernet/mellanox/mlx5)."""

_LINE = re.compile(rb"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])[ :]")
_FACILITY_BITS = 3


class KernelLogError(Exception):
    """The log cannot be read; the message has the remedy."""


class KernelLogForbiddenError(KernelLogError):
    """The process may not read the log. A container without the device has no right to it either."""


class FirmwareEvent(Struct, frozen=True):
    """A matching line: the function and the key of the pattern."""

    pci_address: str
    pattern: str


def events_of(record: bytes) -> Iterator[FirmwareEvent]:
    """Decode ``priority,sequence,microseconds,flags;text`` and dictionary lines of /dev/kmsg."""
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
            yield FirmwareEvent(line[1].decode("ascii"), key)


class KernelLog(Closing):
    """Reads from the oldest line on, without waiting. ``overruns`` counts how often lines were lost."""

    def __init__(self, path: str | os.PathLike[str] = PATH) -> None:
        self.overruns = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            forbidden = error.errno in (EACCES, EPERM, ENOENT)
            raise (KernelLogForbiddenError if forbidden else KernelLogError)(
                f"{os.fspath(path)} cannot be opened: {error.strerror}; the kernel log needs CAP_SYSLOG and, "
                "in a container, the host's /dev/kmsg"
            ) from error

    def close(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> tuple[Counter[FirmwareEvent], bool]:
        """The events since the last call, and whether there are more to read."""
        events: Counter[FirmwareEvent] = Counter()
        for _ in range(_RECORDS_AT_ONCE):
            try:
                record = os.read(self._fd, _RECORD_MAX)
            except OSError as error:
                if error.errno == EAGAIN:
                    return events, False
                if error.errno == EPIPE:  # the oldest lines are lost; the next read returns the rest
                    self.overruns += 1
                    continue
                if error.errno == EINVAL:
                    continue
                raise KernelLogError(f"the kernel log cannot be read: {error.strerror}") from error
            if not record:
                return events, False
            events.update(events_of(record))
        return events, True
