"""trouble and explain name a link that loses packets, from the reports and the lists of partners of the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs, to_builtins

from nodeagent.cli import main
from nodeagent.fabric import FabricRules, Planner
from nodeagent.fabric.fabric_settings import IMMEDIATE, TierSettings
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks, RailLeg
from nodeagent.fabric.rail_anomalies import RailJudge
from nodeagent.fabric.rail_partners import rail_partners_object
from tests.support.halls import Hall

DEAD = "su1-n03"


def written(folder: Path, *, partners: bool, reasons: tuple[str, ...] = ()) -> str:
    made = Hall([[f"su{unit}-leaf{rail}" for rail in range(4)] for unit in range(3)], 8)
    rules = FabricRules(hysteresis=IMMEDIATE, tiers=TierSettings(assume_full_bisection=True))

    def addressed(node: str, link: NodeLink) -> NodeLink:
        unit, number = node.removeprefix("su").split("-n")
        return structs.replace(link, addresses=(f"10.{link.rail}.{unit}.{int(number) + 1}/24",))

    reports = [
        structs.replace(report, links=tuple(addressed(report.node_name, link) for link in report.links))
        for report in made.reports()
    ]
    planner, watch = Planner(rules), RailJudge()
    for report in reports:
        planner.report(report.node_name, report)
    watch.plan(planner.prepare(0.0)())
    lists = list(watch.lists.each())
    bad = [leg for leg in watch.lists.checked.legs if (DEAD, "rail2") in leg]

    def losing(report: NodeLinks, link: NodeLink) -> NodeLink:
        legs = (
            RailLeg(node=leg.partner.node, nic=leg.partner.link, level=100)
            for leg in bad
            if leg.writer == (report.node_name, link.name)
        )
        if reasons and (report.node_name, link.name) == (DEAD, "rail2"):
            link = structs.replace(link, state="degraded", reasons=reasons, reason_details=reasons)
        return structs.replace(link, legs=tuple(legs))

    items = [
        {"kind": "NodeLinks"}
        | to_builtins(structs.replace(report, links=tuple(losing(report, link) for link in report.links)))
        for report in reports
    ]
    items += [rail_partners_object(one) for one in lists] if partners else []
    file = folder / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return str(file)


def test_a_link_that_loses_packets_is_a_trouble_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, partners=True)
    assert main(["trouble", "--from", source]) == 1
    told = capsys.readouterr().out
    assert "link-loss" in told
    assert f"{DEAD} rail2" in told
    assert "change the cable" in told
    assert main(["explain", DEAD, "--from", source]) == 0
    assert "loses all packets: 7 of 7 legs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ((), "healthy: if it counts no errors, look at the port first"),
        (
            ("pre_fec_ber", "crc_errors"),
            "degraded (pre_fec_ber, crc_errors), which points to the cable or its optics",
        ),
        (("pause_storm",), "degraded (pause_storm), which points to the host"),
        (("crc_errors", "host_stall"), "which points to the cable or its optics and to the host"),
        (("speed_reduced",), "degraded: if it counts no errors, look at the port first"),
    ],
)
def test_the_counters_of_the_nic_say_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reasons: tuple[str, ...], words: str
) -> None:
    assert main(["explain", DEAD, "--from", written(tmp_path, partners=True, reasons=reasons)]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_without_the_lists_of_partners_no_place_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trouble", "--from", written(tmp_path, partners=False)]) == 0
    assert "link-loss" not in capsys.readouterr().out
