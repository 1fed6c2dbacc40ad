"""Compact reports: equal values are shared, and the memory for that is bounded."""

from __future__ import annotations

from nodeagent.fabric import FabricRules
from nodeagent.fabric.reports import InternPool, ReportReader
from tests.support.fabrics import links, rails


def test_reports_of_nodes_with_identical_cabling_share_one_shape() -> None:
    reader = ReportReader(FabricRules(), InternPool())
    first, second = (reader.read(node, links(node, row)) for node, row in rails(1, 2).items())
    assert first.shape is second.shape
    assert first.ports != second.ports


def test_a_full_pool_starts_again() -> None:
    """A pool that starts again costs sharing, not correctness: equal shapes are then two patterns."""
    pool = InternPool(size_max=2)
    first, equal, other = ([*"ab"], [*"ab"], [*"cd"])
    shared = pool(tuple(first))
    assert pool(tuple(equal)) is shared
    pool(tuple(other))
    assert pool(tuple(equal)) is not shared
