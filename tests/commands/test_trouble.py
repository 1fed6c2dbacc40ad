"""trouble: links of one cause are one trouble, pods and remedies, the order, the forms, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from nodeagent.cli import main
from nodeagent.commands.plan import trouble
from nodeagent.commands.plan.objects import store_object
from nodeagent.commands.plan.preview import Preview, make_objects, make_preview
from nodeagent.fabric import NodeLinks
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.link_faults import LinkFault
from nodeagent.fabric.nodelinks import HeldVf, NodeLink, VfHolder
from nodeagent.fabric.troubles import FabricTrouble, _one_cause, troubles
from nodeagent.facts.remedies import remedy_of
from nodeagent.health.rules.links import LINK_RULES
from tests.commands.test_cabling import hall, write
from tests.support.halls import Hall
from tests.support.manifests import ROOT

NOW = 1_800_000_000.0
AT = "2027-01-15T07:54:43Z"
"""317 s before ``NOW``."""


def at_once(second: int) -> str:
    return f"2027-01-15T07:54:{43 + second}Z"


def changed(made: Hall, fault: Callable[[str, NodeLink], NodeLink]) -> list[NodeLinks]:
    return [
        structs.replace(report, links=tuple(fault(report.node_name, link) for link in report.links))
        for report in made.reports()
    ]


def preview(reports: list[NodeLinks], folder: Path) -> Preview:
    read = make_objects(FabricRules())
    read.reports = {}
    for item in json.loads(write(folder / "reports.json", reports).read_text())["items"]:
        assert store_object(item, read)
    return make_preview(read)


def found(reports: list[NodeLinks], folder: Path) -> list[FabricTrouble]:
    return troubles(preview(reports, folder).plan)


def down(link: NodeLink, at: str = AT) -> NodeLink:
    neighbor = None if link.neighbor is None else structs.replace(link.neighbor, stale=True)
    return structs.replace(
        link,
        state="down",
        reasons=("carrier_down",),
        reason_details=("no carrier",),
        last_transition_time=at,
        neighbor=neighbor,
    )


def test_a_hall_without_faults_has_no_trouble(tmp_path: Path) -> None:
    made = preview(hall().reports(), tmp_path)
    assert troubles(made.plan) == []
    assert trouble.as_text(made, [], NOW) == "No trouble in 16 nodes with 64 links."


def test_the_links_of_a_dead_switch_are_one_trouble(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link, at_once(int(node[-1]) % 2)) if dead else link

    (one,) = found(changed(hall(), fault), tmp_path)
    assert (one.where, one.what) == ("su0-leaf2", "8 links of 8 nodes went down at once")
    assert len(one.links) == 8
    assert one.reasons == ("carrier_down",)
    assert "check the switch su0-leaf2" in one.remedy


def test_a_dead_switch_is_one_trouble_although_the_clocks_of_its_nodes_differ(tmp_path: Path) -> None:
    def fault(alive: str, node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2" and node != alive
        return down(link, f"2027-01-15T07:00:{7 * int(node[-1]):02}Z") if dead else link

    (one,) = found(changed(hall(), partial(fault, "")), tmp_path)
    assert (one.where, one.what) == ("su0-leaf2", "8 links of 8 nodes went down at once")
    several = found(changed(hall(), partial(fault, "su0-n03")), tmp_path)
    assert len(several) == 7, "a switch with a link that is up is not dead: the times decide"


def test_links_of_a_switch_that_went_down_one_by_one_are_troubles_of_their_own(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link, f"2027-01-15T0{int(node[-1])}:00:00Z") if dead else link

    assert len(found(changed(hall(), fault), tmp_path)) == 8


def test_the_links_of_a_node_that_went_down_at_once_are_one_trouble(tmp_path: Path) -> None:
    reports = changed(hall(), lambda node, link: down(link) if node == "su1-n03" else link)
    (one,) = found(reports, tmp_path)
    assert (one.where, one.what, one.details) == (
        "su1-n03",
        "4 links went down at once",
        ("rail0", "rail1", "rail2", "rail3"),
    )


def test_a_dead_switch_takes_its_link_from_a_node_and_leaves_the_others(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link) if dead or node == "su0-n01" else link

    switch, node = found(changed(hall(), fault), tmp_path)
    assert (switch.where, len(switch.links)) == ("su0-leaf2", 8)
    assert (node.where, node.details) == ("su0-n01", ("rail0", "rail1", "rail3"))


def test_what_concerns_most_pods_comes_first_with_its_remedy(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        if (node, link.name) == ("su0-n00", "rail1"):
            return down(link, "2027-01-15T07:00:00Z")
        if (node, link.name) == ("su0-n05", "rail3"):
            return structs.replace(
                link,
                netdev="enp220s0np0",
                state="degraded",
                reasons=("flapping",),
                reason_details=("3 losses in 10 min",),
                last_transition_time=AT,
            )
        return link

    reports = changed(hall(), fault)
    held = tuple(
        VfHolder(
            namespace="team-a",
            pod=f"train-{n}",
            vfs=(HeldVf(link="rail3", pci_address=f"0000:1b:00.{n}"),),
            since="2027-01-15T07:00:00Z",
        )
        for n in range(10)
    )
    reports = [
        structs.replace(report, holders=held) if report.node_name == "su0-n05" else report
        for report in reports
    ]
    made = preview(reports, tmp_path)
    first, second = troubles(made.plan)
    assert first.pods[:2] == ("team-a/train-0", "team-a/train-1")
    assert second.where == "su0-n00 rail1 to su0-leaf1 Eth1/1"
    assert trouble.as_text(made, [first], NOW).splitlines() == [
        "su0-n05 rail3 (enp220s0np0) to su0-leaf3 Eth1/6: degraded, for 5 min 17 s",
        "  3 losses in 10 min",
        "  pods: " + ", ".join(f"team-a/train-{n}" for n in range(8)) + ", and 2 more",
        "  do: reseat or replace cable and optics",
        "",
        "1 trouble in 16 nodes with 64 links.",
    ]


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "yesterday"])
def test_a_time_that_no_clock_shows_stops_no_list(at: str, tmp_path: Path) -> None:
    """One node writes it, and everybody reads the list."""
    made = preview(
        changed(hall(), lambda node, link: down(link, at) if node == "su0-n00" else link), tmp_path
    )
    found = troubles(made.plan)
    (since,) = {one["since"] for one in trouble.document(made, found, "x", NOW)["troubles"]}
    assert since is None
    assert len([one for one in found if one.what == "down"]) == 4


def test_a_hall_without_power_is_listed_in_the_time_of_its_links() -> None:
    """Each fault is compared a few times, however many switches and nodes there are."""
    compared = 0

    class Counted(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    faults = [
        LinkFault(Counted(f"n{n}"), f"rail{rail}", "", "down", f"leaf{n // 4}-{rail}", "", NOW, (), (), ())
        for n in range(100)
        for rail in range(4)
    ]
    assert len(list(_one_cause(faults, ()))) == 100
    assert compared < 10 * len(faults)


def test_a_wrong_cable_is_told_once(tmp_path: Path) -> None:
    made = hall()
    made.cables["su0-n00", 2] = "su1-leaf2"
    (one,) = found(made.reports(), tmp_path)
    assert (one.what, one.where, one.remedy) == (
        "miscabled",
        "su0-n00 rail2",
        "move the cable to the switch in the message",
    )
    miscabled = changed(
        made,
        lambda node, link: (
            structs.replace(link, state="miscabled", reasons=("miscabled",))
            if (node, link.name) == ("su0-n00", "rail2")
            else link
        ),
    )
    assert len(found(miscabled, tmp_path)) == 1


@pytest.mark.parametrize(("form", "expected"), [([], "1 trouble in 16"), (["--json"], '"troubles": [')])
def test_the_verb_fails_if_anything_is_wrong(
    form: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = changed(
        hall(), lambda node, link: down(link) if (node, link.name) == ("su0-n00", "rail1") else link
    )
    source = str(write(tmp_path / "bad.json", bad))
    assert main(["trouble", "--from", source, *form]) == 1
    printed = capsys.readouterr().out
    assert expected in printed
    if form:
        document = json.loads(printed)
        assert {*document} == {"cluster", "fabric", "time", "source", "nodes", "links", "troubles"}
        assert document["source"] == source
        (one,) = document["troubles"]
        assert one["since"] == AT
        assert one["links"] == [{"node": "su0-n00", "link": "rail1"}]
    none = str(write(tmp_path / "none.json", []))
    assert main(["trouble", "--from", none, *form]) == 2
    good = str(write(tmp_path / "good.json", hall().reports()))
    assert main(["trouble", "--from", good, *form]) == 0


def test_each_fault_of_a_link_by_facts_has_a_remedy() -> None:
    assert [rule.key for rule in LINK_RULES if remedy_of(rule.key) is None] == []


def test_watching_ends_with_the_reader_of_its_pipe() -> None:
    words = ["trouble", "--watch", "1", "--from", str(ROOT / "docs/samples/nodelinks.yaml")]
    with subprocess.Popen([sys.executable, "-m", "nodeagent", *words], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.wait(60) == 0
