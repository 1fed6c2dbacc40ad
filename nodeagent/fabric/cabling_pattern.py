"""Nodes with identical cabling, treated as one: a sum over 100,000 nodes becomes a sum over a few thousand patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.fabric.reports import CompactReport, Shape

if TYPE_CHECKING:
    from nodeagent.fabric.groups import SwitchGroup


class CablingPattern:
    """All nodes whose reports share one ``shape``.

    ``keys[i]`` is the switch of ``shape[i]``, empty for a link without a neighbor. ``leaves`` are these switches,
    sorted and each once. ``votes`` counts the links into each group; ``best`` is the group with most of them.
    """

    __slots__ = ("best", "keys", "leaves", "nodes", "shape", "votes")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: dict[str, CompactReport] = {}
        self.keys: tuple[str, ...] = ()
        self.leaves: tuple[str, ...] = ()
        self.votes: dict[SwitchGroup, int] = {}
        self.best: SwitchGroup | None = None

    @property
    def unanimous(self) -> bool:
        """Every link has a neighbor, and all of them are in one group."""
        return len(self.votes) == 1 and "" not in self.keys

    @property
    def silent(self) -> int:
        """The number of links that have never had a neighbor."""
        return self.keys.count("")
