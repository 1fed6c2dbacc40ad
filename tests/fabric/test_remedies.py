"""Doing what the message of an anomaly says ends it, and causes no other one."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
import yaml
from msgspec import structs

from nodeagent.fabric import FabricRules, compute
from nodeagent.fabric.fabric_settings import FabricSelect
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from tests.fabric.test_hall_faults import NOW, ROWS, Row, hall
from tests.support.halls import Hall

MOVED = re.compile(r"move (?:it|this cable) to (\S+?)(?:,|$)")
SWAPPED = re.compile(r"swap it with the cable of (\S+)$")
ENTRIES = re.compile(r"controller's file: (.*)$")
ELSEWHERE = {
    AnomalyKind.NO_LEAVES: "no cable is wrong: DPUs are to forward LLDP",
    AnomalyKind.SHARED_CHASSIS_ID: "a switch is to be configured",
    AnomalyKind.MISSING_RAIL: "the NIC is absent",
    AnomalyKind.SHARED_PORT: "a hub, or a switch that is to be configured",
}


def repaired(of: Hall, anomalies: Iterable[Anomaly]) -> FabricRules:
    """Move the cables as the messages say; the rules with the entries that they want."""
    rules, before = NOW, dict(of.cables)
    for odd in anomalies:
        place = (odd.node, int(odd.link.removeprefix("rail") or 0))
        if found := ENTRIES.search(odd.message):
            entries = yaml.safe_load(found[1])
            added = [FabricSelect(**entry) for entry in (entries if isinstance(entries, list) else [entries])]
            rules = structs.replace(rules, fabrics=(*rules.fabrics, *added))
        elif found := SWAPPED.search(odd.message):
            of.cables[place] = before[odd.node, int(found[1].removeprefix("rail"))]
        elif found := MOVED.search(odd.message):
            of.cables[place] = found[1]
        elif odd.kind in (AnomalyKind.RAIL_SHIFT, AnomalyKind.RAIL_SWAP):  # all cables of these nodes
            for node in odd.nodes or (odd.node,):
                of.cables.update(((node, rail), of.leaf[of.unit[node]][rail]) for rail in range(8))
        else:
            assert odd.kind in ELSEWHERE, odd.message
    return rules


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_the_messages_say_ends_the_anomalies(row: Row) -> None:
    made = hall(row.units, row.size, planes=row.planes)
    row.fault(made)
    rules = repaired(made, compute(made.reports(), rules=NOW).anomalies)
    left = compute(made.reports(), rules=rules).anomalies
    assert not [odd.message for odd in left if odd.kind not in ELSEWHERE]
