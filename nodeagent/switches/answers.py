"""What a switch says of itself and of its neighbors, and the one way in which asking it fails."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.fabric.uplinks import SwitchNeighbor

NEIGHBORS_MAX = 4096
TEXT_MAX = 1100
"""An LLDP string has 255 octets at most, four characters for each where they are escaped."""


class SwitchError(Exception):
    """A switch that cannot be read; the message says why, and holds nothing secret. ``result`` is for counting."""

    def __init__(self, message: str, result: str = "failed") -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, slots=True)
class Reading:
    """``name`` and ``chassis`` are the switch's own, empty where it does not tell."""

    name: str
    chassis: str
    neighbors: tuple[SwitchNeighbor, ...]
