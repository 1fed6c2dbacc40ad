"""Planned work: what an annotation means, what of it is refused, and what the list of troubles and the map say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from nodeagent.fabric.maintenance import (
    MAINTENANCE_ENTRIES_MAX,
    Maintenance,
    MaintenanceBook,
    ends,
    read_maintenance,
    standing,
    under_maintenance,
    write_maintenance,
)
from nodeagent.fabric.troubles import troubles
from tests.fabric.test_fabric_view import UNIX, published, view_of
from tests.fabric.test_troubles import down

NOW = UNIX
LATER = "2026-01-01T02:00:00Z"
NODE = "su000-n000"


def text(*entries: dict[str, Any]) -> str:
    return json.dumps(entries)


def test_what_is_written_is_read_again_in_any_zone() -> None:
    entry = Maintenance(
        since=datetime.fromtimestamp(NOW, UTC), until=datetime.fromtimestamp(NOW + 7200, UTC), link="nic3",
        netdev="enp1", pci_address="0000:18:00.0", switch="leaf2", author="ann", reason="optics",
    )  # fmt: skip
    assert read_maintenance(write_maintenance([entry])) == ((entry,), "")
    assert write_maintenance([]) is None
    assert entry.sentence == "maintenance of leaf2 until 2026-01-01T02:00:00Z by ann: optics"
    (abroad,), _ = read_maintenance(text({"until": "2026-01-01T04:00:00+02:00"}))
    assert (abroad.end, abroad.link, abroad.sentence) == (entry.end, "", f"maintenance until {LATER}")


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("[", "truncated"),
        ("{}", "Expected `array`"),
        ("[" * 5000, "recursion"),
        (text({"link": "nic3"}), "entry 1: Object missing required field `until`"),
        (text({"until": "tomorrow"}), "entry 1: Invalid RFC3339"),
        (text({"until": "2026-01-01T02:00:00"}), "timezone"),
        (text({"until": 5}), "Expected `datetime`"),
        (text({"until": "9999-12-31T23:59:59-05:00"}), "entry 1"),
        (text({"until": LATER, "reason": []}), "Expected `str`"),
        (text(*[{"until": "x"}] * 2), "entry 1"),
    ],
)
def test_a_value_that_means_nothing_is_named_and_left_out(written: str, fault: str) -> None:
    found, why = read_maintenance(written)
    assert found == ()
    assert fault in why
    assert len(why) <= 200


def test_a_bad_entry_costs_itself_alone_and_too_many_are_cut() -> None:
    found, why = read_maintenance(text({"until": "x"}, {"until": LATER, "link": "nic1", "later": True}))
    assert [entry.link for entry in found] == ["nic1"]
    assert why.startswith("entry 1: ")
    found, why = read_maintenance(text(*[{"until": LATER}] * (MAINTENANCE_ENTRIES_MAX + 1)))
    assert (len(found), why) == (
        MAINTENANCE_ENTRIES_MAX,
        f"it has more than {MAINTENANCE_ENTRIES_MAX} entries",
    )


def test_hostile_text_is_one_short_printable_line() -> None:
    hostile = "\x1b[2J\nnic3<script>" + "a" * 5000
    entry = {"until": LATER, **dict.fromkeys(("link", "netdev", "switch", "author", "reason"), hostile)}
    (found,), _ = read_maintenance(text(entry))
    assert found.sentence.isprintable()
    assert found.link.isprintable()
    assert len(found.sentence) < 400


def test_a_book_takes_each_text_once_and_forgets() -> None:
    book = MaintenanceBook()
    assert not book.take("n", None)
    assert book.take("n", "{")
    assert not book.take("n", "{"), "a heartbeat of the Node is no news"
    assert book.faults["n"]
    assert book.take("n", text({"until": LATER}))
    assert book.faults["n"] == ""
    assert book.take("n", None)
    assert (book.of_node, book.faults) == ({}, {})


def test_an_entry_counts_until_its_end_for_its_link_or_for_the_whole_node() -> None:
    (of_link,), _ = read_maintenance(text({"until": LATER, "link": "nic3", "netdev": "enp1"}))
    (of_node,), _ = read_maintenance(text({"until": LATER}))
    work = {"a": (of_link,), "b": (of_node,)}
    assert under_maintenance(work, "a", "nic3", NOW) is under_maintenance(work, "a", "enp1", NOW) is of_link
    assert under_maintenance(work, "a", "nic4", NOW) is under_maintenance(work, "a", "", NOW) is None
    assert under_maintenance(work, "b", "nic4", NOW) is under_maintenance(work, "b", "", NOW) is of_node
    assert under_maintenance(work, "c", "nic3", NOW) is None
    assert under_maintenance(work, "a", "nic3", of_link.end) is None
    assert [node for node, _ in standing(work, NOW)] == ["a", "b"]
    assert list(standing(work, of_link.end)) == []


def test_two_works_on_one_link_are_one_series_that_ends_with_the_later_one() -> None:
    entries, _ = read_maintenance(
        text(
            {"until": LATER, "link": "nic3", "pciAddress": "0000:18:00.0"},
            {
                "until": "2026-01-01T03:00:00Z",
                "link": "nic3",
                "pciAddress": "0000:18:00.0",
                "switch": "leaf2",
            },
            {"until": "2020-01-01T03:00:00Z"},
        )
    )
    assert ends({"n": entries}, NOW) == {("n", "nic3", "nic3", "0000:18:00.0"): NOW + 3 * 3600}


def test_a_trouble_says_that_it_is_planned_and_comes_last() -> None:
    planner, cables = published()
    for node in (NODE, "su001-n002"):
        planner.report(node, down(node, cables[node], pods=1, links=1))
    planner.report("su001-n001", down("su001-n001", cables["su001-n001"], links=2))
    book = planner.inputs.maintenance
    book.take(NODE, text({"until": LATER, "link": "rail0", "author": "ann", "reason": "optics"}))
    plan = planner.prepare(0.0)()
    found = {one.where.split()[0]: one.maintenance for one in troubles(plan, at=NOW)}
    assert found[NODE] == f"maintenance until {LATER} by ann: optics"
    assert [*found][-1] == NODE
    assert set(found.values()) == {"", found[NODE]}
    assert not any(one.maintenance for one in troubles(plan, at=NOW + 7200)), "its time is over"
    assert len(troubles(plan, at=NOW)) == len(troubles(plan, at=NOW + 7200)), "nothing is hidden"
    book.take("su001-n001", text({"until": LATER}))
    plan = planner.prepare(0.0)()
    assert all(one.maintenance for one in troubles(plan, at=NOW) if one.where.startswith("su001-n001"))


def test_a_joint_trouble_says_how_many_of_its_links_are_planned() -> None:
    planner, cables = published()
    nodes = list(cables)[:4]
    for node in nodes:
        planner.report(node, down(node, cables[node], links=1))
    for node in nodes[:3]:
        planner.inputs.maintenance.take(node, text({"until": LATER, "link": "rail0", "switch": "leaf"}))
    (one,) = (one for one in troubles(planner.prepare(0.0)(), at=NOW) if len(one.links) == 4)
    assert one.maintenance == f"3 of 4 links: maintenance of leaf until {LATER}"


def test_the_document_of_the_map_has_what_stands() -> None:
    planner, cables = published()
    planner.report(NODE, down(NODE, cables[NODE], links=1))
    planner.inputs.maintenance.take(
        NODE, text({"until": LATER, "link": "rail0"}, {"until": "2020-01-01T00:00:00Z"})
    )
    view = view_of(planner, 0.0)
    assert [(one.node, one.link, one.end) for one in view.maintenance] == [(NODE, "rail0", NOW + 7200)]
    assert [one.maintenance for one in view.troubles] == [f"maintenance until {LATER}"]
