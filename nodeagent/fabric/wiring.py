"""All the nodes that are cabled alike, as one thing: what is summed over 100,000 nodes is summed over these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.fabric.reports import Report, Shape

if TYPE_CHECKING:
    from nodeagent.fabric.groups import Group


class Wiring:
    """``keys[i]`` is the switch of ``shape[i]``, empty where nobody is heard. ``votes`` counts the links into
    each group, ``best`` is the group with the most of them.
    """

    __slots__ = ("best", "counted", "keys", "leaves", "nodes", "shape", "votes")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: dict[str, Report] = {}
        self.forget()

    def forget(self) -> None:
        """All that is derived."""
        self.keys: tuple[str, ...] = ()
        self.leaves: tuple[str, ...] = ()
        self.counted = 0
        self.votes: dict[Group, int] = {}
        self.best: Group | None = None

    @property
    def easy(self) -> bool:
        """All of its links speak, and for one group."""
        return len(self.votes) == 1 and "" not in self.keys

    @property
    def silent(self) -> int:
        """Links on which nobody is heard, nor was."""
        return self.keys.count("")
