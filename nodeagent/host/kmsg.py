"""Find lines in the kernel log that report a failure of a NIC, of the NVLinks of a GPU, or of an NVSwitch.

A line counts only if the kernel wrote it (facility 0; lines that programs write to /dev/kmsg have another one), and
only if it begins with the driver's name and the PCI address. The rest of the line may be hostile; no text of it
leaves this module but numbers and the names of known units.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from errno import EACCES, EAGAIN, EINVAL, ENOENT, EPERM, EPIPE

from msgspec import Struct

from nodeagent.host.fd import Closing
from nodeagent.host.gpu_driver import DriverMessage

_PATH = "/dev/kmsg"
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
    "command_failed": re.compile(
        rb"failed, status (?:internal error|bad system state)\("
        rb"|canceled on out of queue timeout|failed to allocate command entry|waiting for command semaphore"
    ),
}
"""By key, the text after name and address in a line of mlx5_core (drivers/net/ethernet/mellanox/mlx5)."""

_SUFFICIENT_POWER = re.compile(rb"PCIe slot advertised sufficient power")
_LINE = re.compile(rb"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])[ :]")
_SXID = re.compile(
    rb"nvidia-nvswitch\d{1,3}: SXid \(PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])\): "
    rb"(\d{1,6}), (Fatal|Non-fatal),(?: Link (\d{1,3})\b)?"
)
"""NVIDIA, Fabric Manager User Guide, NVSwitch SXid errors. Further lines of the same error have no severity."""
_UNITS = (
    rb"SAW_MVB|RLW_CTRL|RLW_REMAP|RLW_RSPCOL|RLW_RXPIPE|RLW_SRC_TRACK|RLW_TAGSTATE|TLW_CTRL|TLW_RX|TLW_TX|TREX"
    rb"|NVLPW_CTRL|NVLPW|NETIR_BER_EVENT|NETIR_LINK_EVT|NETIR_MFDE_EVENT|NETIR|MSE_WATCHDOG|MSE"
)
_XID = re.compile(
    rb"NVRM: Xid \(PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f])\): (14[4-9]|150), "
    rb"(?:pid=[^,]{0,24}, name=[^,]{0,64}, )?(" + _UNITS + rb")[A-Z0-9_/]{0,24} (Fatal|Nonfatal) "
    rb"XC\d i\d{1,3} Link (-?\d{1,3}) \(0x([0-9a-f]{1,8})\b"
)
"""NVIDIA, Xid catalog, NVLink 5 errors: the units that report XIDs 144 to 150, severity, containment, injection, link,
``intrinfo`` and further registers."""
_GPU = rb"([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])"
_FALLEN = re.compile(
    rb"NVRM: (?:GPU " + _GPU + rb": GPU has|The NVIDIA GPU " + _GPU + rb"[^.]{0,120}) fallen off the bus\b"
)
_INIT_FAILED = re.compile(
    rb"NVRM: GPU " + _GPU + rb": RmInitAdapter failed! \((0x[0-9a-f]{1,8}:0x[0-9a-f]{1,8}:\d{1,6})\)"
)
"""NVIDIA's open kernel modules 595.45.04, osinit.c and osapi.c. The kernel writes a line break inside of a line as
backslash, x0a."""
_OF_ONE_DEVICE = 16
"""Different messages of one GPU or NVSwitch, of each severity, that are taken in one reading: a flood of one must not
hide another."""
_DEVICES_MAX = 64
_FACILITY_BITS = 3


class KernelLogError(Exception):
    """The log cannot be read; the message has the remedy."""


class KernelLogForbiddenError(KernelLogError):
    """The process may not read the log. A container without the device has no right to it either."""


class FirmwareEvent(Struct, frozen=True):
    """A matching line: the function and the key of the pattern."""

    pci_address: str
    pattern: str


def _kernel_text(record: bytes) -> bytes:
    """The text of ``priority,sequence,microseconds,flags;text`` and dictionary lines of /dev/kmsg; empty if the kernel
    has not written it."""
    head, _, rest = record.partition(b";")
    priority = head.partition(b",")[0]
    if not priority.isdigit() or int(priority) >> _FACILITY_BITS:
        return b""
    return rest.partition(b"\n")[0]


def message_of(record: bytes) -> DriverMessage | None:
    """Decode a line of NVIDIA's drivers about an NVLink error, or about a GPU that the driver does not reach."""
    text = _kernel_text(record)
    if found := _SXID.match(text):
        link = None if found[4] is None else int(found[4])
        return DriverMessage(found[1].decode(), int(found[2]), found[3] == b"Fatal", link, switch=True)
    if found := _FALLEN.match(text):
        return DriverMessage((found[1] or found[2]).decode(), 0, True, words="GPU has fallen off the bus")
    if found := _INIT_FAILED.match(text):
        return DriverMessage(found[1].decode(), 0, True, words=f"RmInitAdapter failed ({found[2].decode()})")
    found = _XID.match(text)
    if found is None:
        return None
    link = None if found[5].startswith(b"-") else int(found[5])
    unit, subcode = found[3].decode(), int(found[6], 16) >> 20 & 0x3F
    return DriverMessage(
        found[1].decode(), int(found[2]), found[4] == b"Fatal", link, unit=unit, subcode=subcode
    )


def events_of(record: bytes) -> Iterator[FirmwareEvent]:
    """Decode a record of /dev/kmsg."""
    text = _kernel_text(record)
    line = _LINE.match(text)
    if line is None:
        return
    for key, pattern in PATTERNS.items():
        if pattern.search(text, line.end()):
            yield FirmwareEvent(line[1].decode("ascii"), key)


def power_of(record: bytes) -> tuple[str, bool] | None:
    """The function that a line about the power of its slot is about, and whether the power is too low (events.c of
    mlx5 writes a line at each change, and one when the driver starts)."""
    text = _kernel_text(record)
    line = _LINE.match(text)
    if line is None:
        return None
    low = PATTERNS["insufficient_power"].search(text, line.end()) is not None
    if not low and not _SUFFICIENT_POWER.search(text, line.end()):
        return None
    return line[1].decode("ascii"), low


class KernelLog(Closing):
    """Reads from the oldest line on, without waiting. ``overruns`` counts how often lines were lost. ``messages`` are
    the different ones of NVIDIA's drivers in the last reading, ``left_out`` those that one device had too many of.
    ``low_power``: whether the slot of a function offers too little power, by its last line."""

    def __init__(self, path: str | os.PathLike[str] = _PATH) -> None:
        self.low_power: dict[str, bool] = {}
        self.overruns = self.left_out = 0
        self.messages: list[DriverMessage] = []
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
        taken: dict[tuple[str, bool], set[DriverMessage]] = {}
        self.messages, self.left_out = [], 0
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
            if (power := power_of(record)) is not None:
                self.low_power[power[0]] = power[1]
            if (message := message_of(record)) is not None:
                self._take(message, taken)
        return events, True

    def _take(self, message: DriverMessage, taken: dict[tuple[str, bool], set[DriverMessage]]) -> None:
        of_device = taken.get((message.pci_address, message.fatal), set())
        if message in of_device:
            return
        if len(of_device) >= _OF_ONE_DEVICE or (not of_device and len(taken) >= _DEVICES_MAX):
            self.left_out += 1
            return
        taken.setdefault((message.pci_address, message.fatal), of_device).add(message)
        self.messages.append(message)
