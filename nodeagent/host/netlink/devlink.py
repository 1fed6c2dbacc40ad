"""Devlink's health reporters: what a driver says of its own firmware and queues.

A dump names all of them, those of ports too. Needs no capability. Constants: include/uapi/linux/devlink.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from nodeagent.host.netlink.generic import HEADER_BYTES, Generic
from nodeagent.host.netlink.message import attributes, number, text

_REPORTER_GET = 52
_BUS, _DEVICE, _PORT, _REPORTER = 1, 2, 3, 114
_NAME, _STATE, _ERRORS, _RECOVERIES = 115, 116, 117, 118
_STATE_ERROR = 1  # DEVLINK_HEALTH_REPORTER_STATE_ERROR


@dataclass(frozen=True, slots=True)
class Reporter:
    """``pci_address`` is ``None`` for devices on other buses. ``port`` is set for a reporter of a port.

    ``failing``: it has reported an error and not recovered from it.
    """

    pci_address: str | None
    port: int | None
    name: str
    failing: bool
    errors: int
    recoveries: int


class Devlink:
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        self._family = Generic("devlink")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._family.close()

    @property
    def overruns(self) -> int:
        return self._family.overruns

    def reporters(self) -> list[Reporter]:
        return self._family.dump(_REPORTER_GET, b"", reporter_of)


def reporter_of(payload: bytes) -> Reporter:
    told = attributes(payload, HEADER_BYTES)
    mine = attributes(told.get(_REPORTER, b""))
    return Reporter(
        pci_address=text(told.get(_DEVICE)) if text(told.get(_BUS)) == "pci" else None,
        port=number(told.get(_PORT)),
        name=text(mine.get(_NAME)) or "",
        failing=number(mine.get(_STATE)) == _STATE_ERROR,
        errors=number(mine.get(_ERRORS)) or 0,
        recoveries=number(mine.get(_RECOVERIES)) or 0,
    )
