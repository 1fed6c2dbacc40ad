"""Compact reports: equal values are shared, and the memory for that is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.fabric import FabricRules
from nodeagent.fabric.inputs import Inputs, Levels
from nodeagent.fabric.nodelinks import NodeLink
from nodeagent.fabric.reports import InternPool, ReportReader
from nodeagent.fabric.topology_file import NO_TOPOLOGY
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


def test_reports_that_differ_in_one_link_have_two_shapes() -> None:
    reader = ReportReader(FabricRules(), InternPool())
    ((node, row),) = rails(1, 1).items()
    report = links(node, row)
    *others, last = report.links
    for change in ({"rail": 99}, {"name": "other"}, {"neighbor": None}, {"fabric": "storage"}):
        changed = structs.replace(report, links=(*others, structs.replace(last, **change)))
        assert reader.read(node, changed).shape != reader.read(node, report).shape
        assert reader.read(node, report).shape is reader.read(node, report).shape


def test_a_plan_keeps_its_inputs_while_reports_change() -> None:
    """It runs in a thread, and the mirror continues meanwhile."""
    inputs = Inputs(FabricRules(), NO_TOPOLOGY)
    (first, row), (second, other) = rails(1, 2).items()
    inputs.report(first, links(first, row))
    inputs.node(first, {})
    levels = inputs.levels()
    inputs.report(second, links(second, other))
    inputs.report(first, None)
    inputs.node(second, {})
    inputs.refuse("third", "is empty")
    assert set(levels.reports) == set(levels.nodes) == {first}
    assert not levels.refused
    later = inputs.levels()
    assert set(later.reports) == {second}
    assert set(later.nodes) == {first, second}
    assert set(later.refused) == {"third"}


@given(
    st.lists(st.tuples(st.sampled_from(["report", "refuse", "node", "levels", "drop"]), st.integers(0, 3)))
)
def test_no_change_reaches_the_inputs_of_a_plan_however_many_plans_have_them(
    steps: list[tuple[str, int]],
) -> None:
    inputs, plans = Inputs(FabricRules(), NO_TOPOLOGY), list[tuple[Levels, list[dict[str, object]]]]()

    def content(levels: Levels) -> list[dict[str, object]]:
        return [dict(part) for part in (levels.reports, levels.refused, levels.nodes)]

    for step, number in steps:
        node = f"n{number}"
        match step:
            case "report":
                inputs.report(node, None if node in inputs.reports else links(node, ()))
            case "refuse":
                inputs.refuse(node, "no")
            case "node":
                inputs.node(node, None if node in inputs.nodes else {})
            case "levels":
                plans.append((inputs.levels(), content(inputs.levels())))
            case "drop" if plans:
                plans.pop(number % len(plans))
        assert all(content(levels) == before for levels, before in plans)
