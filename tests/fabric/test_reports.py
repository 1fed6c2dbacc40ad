"""Compact reports: equal values are shared, and the memory for that is bounded."""

from __future__ import annotations

import pytest
from msgspec import structs

from nodeagent.fabric import FabricRules
from nodeagent.fabric.nodelinks import NodeLink
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


@pytest.mark.parametrize("state", ["unused", "missing", "down", "unknown"])
def test_a_link_that_is_not_up_delays_no_node_and_counts_for_no_minimum(state: str) -> None:
    """An uncabled NIC has no neighbor, and never gets one: its node must not wait for it."""
    ((node, row),) = rails(1, 1).items()
    report = links(node, row)
    idle = NodeLink(name="nic8", rail=8, fabric="compute", state=state)
    reader = ReportReader(FabricRules(), InternPool())
    read = reader.read(node, structs.replace(report, links=(*report.links, idle)))
    assert not read.incomplete
    assert read.up == len(report.links)
    up = structs.replace(idle, state="healthy")
    assert reader.read(node, structs.replace(report, links=(*report.links, up))).incomplete
