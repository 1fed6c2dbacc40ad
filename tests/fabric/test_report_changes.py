"""Changes of reports: states of links and switch ports, each with the names by which people ask."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.base.change_log import CONTROLLER_MAX, Change, ChangeLog
from nodeagent.fabric import FabricRules
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks
from nodeagent.fabric.report_changes import report_changes
from nodeagent.fabric.reports import InternPool, ReportReader
from tests.support.fabrics import links, rails

((NODE, ROW),) = rails(1, 1).items()
REPORT = links(NODE, ROW)
LINK = REPORT.links[0]
assert LINK.neighbor is not None
SWITCH = LINK.neighbor.system_name
MOVED = replace(LINK.neighbor, system_name="other-leaf", port_id=replace(LINK.neighbor.port_id, value="Eth9"))


def changed(before: NodeLinks, after: NodeLinks) -> list[Change]:
    reader = ReportReader(FabricRules(), InternPool())
    return list(report_changes(reader.read(NODE, before), reader.read(NODE, after), after, 5.0))


def with_link(**parts: Any) -> NodeLinks:
    return replace(REPORT, links=(replace(LINK, **parts), *REPORT.links[1:]))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"state": "down", "reasons": ("carrier_down",), "reason_details": ("no carrier",)},
         [("nic", LINK.state, "down", ("no carrier",))]),
        ({"neighbor": MOVED}, [("neighbor", f"{SWITCH} {LINK.neighbor.port_id.value}", "other-leaf Eth9", ())]),
        ({"neighbor": replace(MOVED, stale=True)}, []),
        ({"neighbor": None}, []),
        ({"reasons": ("crc_errors",)}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_a_change_is_an_entry(parts: dict[str, Any], expected: list[Any]) -> None:
    found = changed(REPORT, with_link(**parts))
    assert [(it.what, it.before, it.after, it.details) for it in found] == expected
    for entry in found:
        assert (entry.node, entry.where, entry.at) == (NODE, LINK.name, 5.0)
        assert entry.is_about(NODE)
        assert entry.is_about(f"{NODE}/{LINK.name}".lower())
        assert entry.is_about(str(SWITCH).lower())


def test_a_cable_that_was_out_for_a_while_and_comes_back_elsewhere_is_an_entry() -> None:
    assert LINK.neighbor is not None
    out = with_link(state="down", neighbor=replace(LINK.neighbor, stale=True))
    assert [it.what for it in changed(out, with_link(neighbor=MOVED))] == ["nic", "neighbor"]


def test_a_new_link_and_one_that_is_gone_are_no_changes() -> None:
    more = replace(REPORT, links=(*REPORT.links, NodeLink(name="storage0", state="down")))
    assert changed(REPORT, more) == changed(more, REPORT) == []


def test_the_bound_of_the_controller_is_hard() -> None:
    log = ChangeLog(CONTROLLER_MAX)
    (entry,) = changed(REPORT, with_link(state="down"))
    log.add(entry for _ in range(CONTROLLER_MAX + 10))
    assert len(log.changes) == CONTROLLER_MAX


@pytest.mark.parametrize("others", [(), (replace(LINK, name="nic0", state="healthy"),)])
def test_the_rail_is_no_name_of_a_link_where_another_link_has_it(others: tuple[NodeLink, ...]) -> None:
    """Two entries of the configuration number their NICs: both first ones have the rail 0."""
    second = replace(LINK, name="nic0.1", rail=0)
    before = replace(REPORT, links=(*others, second))
    (change,) = changed(before, replace(REPORT, links=(*others, replace(second, state="down"))))
    assert change.is_about("nic0.1")
    assert change.is_about("nic0") is (not others)
