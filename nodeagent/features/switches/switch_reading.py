"""The result of reading LLDP from one switch, and the error if that fails."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.fabric.uplinks import SwitchNeighbor

NEIGHBORS_MAX = 4096
TEXT_MAX = 1100
"""An LLDP string has at most 255 octets, and at most four characters for each if escaped."""


class SwitchError(Exception):
    """A switch cannot be read. The message has the reason and never a credential; ``result`` is for counters."""

    def __init__(self, message: str, result: str = "failed") -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """``name`` and ``chassis`` are the switch's own, empty if it does not report them."""

    name: str
    chassis: str
    neighbors: tuple[SwitchNeighbor, ...]
