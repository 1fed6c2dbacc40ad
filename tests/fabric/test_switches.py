"""Which announcements are one switch: names, chassis IDs per port, duplicate names, replaced and renamed switches."""

from __future__ import annotations

import pytest

from nodeagent.fabric import IMMEDIATE, AnomalyKind, FabricRules, PlanOutcome, compute
from nodeagent.fabric.naming import HYPERNODE_NAME_MAX, free_name
from nodeagent.fabric.switch_keys import chassis_key, safe_key
from tests.support.fabrics import Cables, Cluster, End, links, partition, rails

NOW = FabricRules(hysteresis=IMMEDIATE)


def plan(cables: Cables) -> PlanOutcome:
    return compute([links(node, row) for node, row in cables.items()], rules=NOW)


def switches(outcome: PlanOutcome) -> set[str]:
    return {switch for one in outcome.hypernodes for switch in one.switches}


def on(switch: str, count: int, prefix: str = "n", **more: object) -> Cables:
    return {f"{prefix}{i}": (End(switch, f"1/{prefix}{i}", **more),) for i in range(count)}


def test_the_domain_is_stripped_if_only_one_domain_has_the_name() -> None:
    cables = {
        **on("leaf01.dc1.example.com", 2),
        **on("LEAF01", 2, "m", chassis="chassis of leaf01.dc1.example.com"),
    }
    assert switches(plan(cables)) == {"leaf01"}


def test_one_name_in_two_domains_is_two_switches() -> None:
    outcome = plan({**on("leaf01.dc1.example.com", 2), **on("leaf01.dc2.example.com", 2, "m")})
    assert switches(outcome) == {"leaf01.dc1.example.com", "leaf01.dc2.example.com"}
    assert len(partition(outcome)) == 2


def test_an_address_as_name_stays_whole() -> None:
    assert switches(plan({**on("10.0.0.1", 2), **on("10.0.0.2", 2, "m")})) == {"10.0.0.1", "10.0.0.2"}


@pytest.mark.parametrize("name", ["sonic", "OS10", "DellOS10", "8325", "srlinux", "HUAWEI", "Amnesiac"])
def test_a_factory_default_name_gives_way_to_the_chassis_id(name: str) -> None:
    outcome = plan({**on(name, 2, chassis="aa:00"), **on(name, 2, "m", chassis="bb:00")})
    assert switches(outcome) == {"chassis:mac:aa:00", "chassis:mac:bb:00"}
    assert not outcome.anomalies


def test_a_switch_without_a_name_is_known_by_its_chassis_id() -> None:
    assert switches(plan(on("", 2, chassis="aa:bb"))) == {"chassis:mac:aa:bb"}


def test_a_chassis_id_for_each_port_is_one_switch() -> None:
    """NX-OS announces such chassis IDs."""
    cables = {f"n{i}": (End("n9k", f"Eth1/{i}", chassis=f"50:87:89:a1:d8:{i:02x}"),) for i in range(8)}
    outcome = plan(cables)
    assert switches(outcome) == {"n9k"}
    assert len(partition(outcome)) == 1
    assert not outcome.anomalies


def test_two_switches_with_one_name_are_identified_by_chassis_id() -> None:
    cables = {
        **{f"n{i}": (End("leaf-x", f"swp{i}", chassis="aa"),) for i in range(4)},
        **{f"m{i}": (End("leaf-x", f"swp{i}", chassis="bb"),) for i in range(4)},
    }
    outcome = plan(cables)
    assert len(partition(outcome)) == 2
    (odd,) = outcome.anomalies
    assert (odd.kind, odd.switch) == (AnomalyKind.DUPLICATE_SYSTEM_NAME, "leaf-x")


def test_ports_without_names_of_their_own_are_ambiguous_from_the_second_node_on() -> None:
    """The links of one node are to a switch each, as far as anybody can know."""
    first = {"n0": (End("switch", "swp1", chassis="aa"), End("switch", "swp2", chassis="bb"))}
    outcome = plan(first)
    assert switches(outcome) == {"chassis:mac:aa", "chassis:mac:bb"}
    assert not outcome.anomalies
    outcome = plan(
        {**first, "n1": (End("switch", "swp3", chassis="cc"), End("switch", "swp4", chassis="dd"))}
    )
    assert not outcome.hypernodes
    assert [odd.kind for odd in outcome.anomalies] == [AnomalyKind.AMBIGUOUS_SWITCH]


def test_one_chassis_id_under_three_names_is_a_factory_default_and_under_two_may_be_a_renamed_switch() -> (
    None
):
    cables = {f"n{i}": (End(f"leaf{i}", f"swp{i}", chassis="aa"),) for i in range(3)}
    outcome = plan(cables)
    assert switches(outcome) == {"leaf0", "leaf1", "leaf2"}
    assert [odd.kind for odd in outcome.anomalies] == [AnomalyKind.SHARED_CHASSIS_ID]
    del cables["n2"]
    outcome = plan(cables)
    assert switches(outcome) == {"leaf0"}
    assert not outcome.anomalies


def test_two_switches_with_one_name_stay_apart_while_one_of_them_reboots() -> None:
    cluster = Cluster(FabricRules())
    cluster.hear({f"n{i}": (End("leaf-x", f"swp{i}", chassis="aa"),) for i in range(4)})
    cluster.hear({f"m{i}": (End("leaf-x", f"swp{i}", chassis="bb"),) for i in range(4)})
    cluster.rest()
    cluster.hear({f"m{i}": (End("leaf-x", f"swp{i}", stale=True, chassis="bb"),) for i in range(4)})
    assert cluster.rest(600) == 0
    cluster.restart()
    assert cluster.rest(600) == 0


def test_a_replaced_switch_keeps_its_key() -> None:
    cluster = Cluster(FabricRules())
    cluster.hear(on("leaf1", 6, chassis="old"))
    cluster.rest()
    cluster.hear(on("leaf1", 6, chassis="old", stale=True))
    assert cluster.rest(600) == 0
    cluster.hear(on("leaf1", 3, chassis="new"))
    assert cluster.rest(600) == 0
    assert [one.kind for one in cluster.outcome.anomalies] == [AnomalyKind.REPLACED_SWITCH]
    cluster.hear(on("leaf1", 6, chassis="new"))
    assert cluster.rest(600) == 0
    assert not cluster.outcome.anomalies


def test_a_renamed_switch_keeps_its_key_after_a_restart() -> None:
    cluster = Cluster(FabricRules())
    cluster.hear(on("leaf1", 4, chassis="aa"))
    cluster.rest()
    cluster.hear(on("core-rack-7", 2, chassis="aa"))
    assert cluster.rest(600) == 1  # the alias, once
    (one,) = cluster.outcome.hypernodes
    assert one.switches == ("leaf1",)
    assert one.note("nodeagent.io/aliases") == "core-rack-7=leaf1"
    cluster.hear(on("core-rack-7", 4, chassis="aa"))
    assert cluster.rest(600) == 0
    cluster.restart()
    assert cluster.rest(600) == 0


def test_a_name_that_moved_to_another_chassis_is_a_key_again() -> None:
    cluster = Cluster(FabricRules())
    cluster.hear(on("leaf1", 4, chassis="aa"))
    cluster.rest()
    cluster.hear({**on("leaf9", 4, chassis="aa"), **on("leaf1", 4, "m", chassis="bb")})
    cluster.rest(600)
    found = {one.switches: one.nodes[0][0] for one in cluster.outcome.hypernodes}
    assert found == {("leaf9",): "n", ("leaf1",): "m"}


def test_hostile_names_become_safe_and_distinct_keys() -> None:
    names = [
        "a,b",
        "a b",
        "\x1b[2J",
        "ü" * 300,
        "x" * 255,
        "x" * 254 + "y",
        "..",
        "-",
        "a\nb",
        "%61",
        "=",
        "chassis:mac:1",
    ]
    cables = {f"n{i}": (End(name, "1"), End(name, "2")) for i, name in enumerate(names)}
    outcome = plan(cables)
    assert len(partition(outcome)) == len(names)
    for one in outcome.hypernodes:
        assert len(one.name) <= HYPERNODE_NAME_MAX
        text = str(dict(one.annotations))
        assert text.isascii()
        assert text.isprintable()
    assert len(switches(outcome)) == len(names)


def test_names_are_safe_unique_and_short() -> None:
    assert safe_key("Leaf-01") == "leaf-01"
    assert safe_key("a,b\n") == "a%2cb"
    assert chassis_key("mac=AA:bb") == "chassis:mac:aa:bb"
    first = free_name("compute", 1, "x" * 300, lambda name: False)
    second = free_name("compute", 1, "x" * 300, lambda name: name == first)
    assert len(first) <= HYPERNODE_NAME_MAX
    assert first != second


def test_a_frame_from_the_node_itself_is_ignored() -> None:
    cables = rails(1, 4)
    cables["su000-n000"] = (End("su000-n000", "eth0"), *cables["su000-n000"][1:])
    outcome = plan(cables)
    assert "su000-n000" not in switches(outcome), "a node is not its own neighbor"
