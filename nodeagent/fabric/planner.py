"""Placeholder of the planner's signatures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Outcome
from nodeagent.fabric.rules import IMMEDIATE, Rules


class Planner:
    """See the package."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def report(self, name: str, links: NodeLinks | None) -> None:
        """A NodeLinks object, by ``metadata.name``."""
        raise NotImplementedError

    def refuse(self, name: str, why: str) -> None:
        """A NodeLinks object that could not be decoded."""
        raise NotImplementedError

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        """A Node and its labels. Until the first one, every reported node is taken to exist."""
        raise NotImplementedError

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        """A HyperNode as the API server has it, of whichever owner."""
        raise NotImplementedError

    def uplinks(self, heard: Mapping[str, tuple[str, ...]]) -> None:
        """Which switches each switch hears above it, by system name."""
        raise NotImplementedError

    def plan(self, now: float, *, full: bool = False) -> Outcome:
        """What should be, and the writes that lead there."""
        raise NotImplementedError


def compute(
    reports: Iterable[NodeLinks],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    published: Iterable[HyperNode] = (),
    rules: Rules | None = None,
) -> Outcome:
    """One plan without waiting."""
    _ = IMMEDIATE, reports, nodes, published, rules
    raise NotImplementedError
