"""Devlink's health reporters: the faults that a driver reports for its firmware and queues.

One dump lists all reporters, including those of ports. Needs no capability.
Constants: include/uapi/linux/devlink.h.
"""

from __future__ import annotations

from msgspec import Struct

from nodeagent.host.netlink.message import attribute_text, attributes, number
from nodeagent.host.netlink.socket import HEADER_BYTES, GenericSocket

_REPORTER_GET = 52
_BUS, _DEVICE, _PORT, _REPORTER = 1, 2, 3, 114
_NAME, _STATE, _ERRORS, _RECOVERIES = 115, 116, 117, 118
_STATE_ERROR = 1  # DEVLINK_HEALTH_REPORTER_STATE_ERROR


class HealthReporter(Struct, frozen=True):
    """``pci_address`` is ``None`` for devices on other buses. ``port`` is set for a reporter of a port.

    ``failing``: it has reported an error from which the device has not recovered.
    """

    pci_address: str | None
    port: int | None
    name: str
    failing: bool
    errors: int
    recoveries: int


class Devlink(GenericSocket):
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        super().__init__("devlink")

    def reporters(self) -> list[HealthReporter]:
        return self.dump_command(_REPORTER_GET, b"", reporter_of)


def reporter_of(payload: bytes) -> HealthReporter:
    attrs = attributes(payload, HEADER_BYTES)
    reporter = attributes(attrs.get(_REPORTER, b""))
    return HealthReporter(
        pci_address=attribute_text(attrs.get(_DEVICE)) if attribute_text(attrs.get(_BUS)) == "pci" else None,
        port=number(attrs.get(_PORT)),
        name=attribute_text(reporter.get(_NAME)) or "",
        failing=number(reporter.get(_STATE)) == _STATE_ERROR,
        errors=number(reporter.get(_ERRORS)) or 0,
        recoveries=number(reporter.get(_RECOVERIES)) or 0,
    )
