"""Models of nodes in a leaf group. Nodes are compared with nodes of their model alone.

A node with fewer links than the others is of another model if it has less than half as many. It is too if three nodes
or more have this number, and at least two links are fewer. Otherwise its other links are absent.
"""

from __future__ import annotations

from collections import Counter

from nodeagent.fabric.groups import CablingPattern, SwitchGroup

NODES_MIN = 3
"""The fewest nodes with two links fewer that are a model: of one or two nodes, NICs may be broken."""


class NodeModels:
    """The models of a group, each by the number of links that its nodes have. ``several``: there is more than one."""

    def __init__(self, group: SwitchGroup) -> None:
        self._nodes: Counter[int] = Counter()
        for pattern in group.voters:
            self._nodes[len(pattern.shape)] += len(pattern.nodes)
        self._models: list[int] = []
        for links in sorted(self._nodes, reverse=True):
            if self._of(links) == links:
                self._models.append(links)
        self.several = len(self._models) > 1

    def of(self, pattern: CablingPattern) -> int:
        """The model of the nodes of a pattern."""
        return self._of(len(pattern.shape))

    @property
    def usual(self) -> int:
        """The model of most nodes."""
        nodes: Counter[int] = Counter()
        for links, count in self._nodes.items():
            nodes[self._of(links)] += count
        return max(nodes, key=lambda model: (nodes[model], model), default=0)

    def _of(self, links: int) -> int:
        for model in self._models:
            absent = model - links
            if absent < 2 or (2 * links >= model and self._nodes[links] < NODES_MIN):
                return model
        return links
