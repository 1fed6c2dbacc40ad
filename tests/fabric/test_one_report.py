"""What one report can do to the groups of others, whatever it says: nothing. The same for one wrong cable.

Halls without wrong cables come from ``tests/support/random_halls.py``, and so does a report of any content.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, FabricRules, PlanOutcome, compute
from nodeagent.fabric.hypernode import HyperNode
from tests.support.examples import examples
from tests.support.fabrics import partition
from tests.support.random_halls import Cabling, Links, draw_cabling, draw_lie, reports

NOW = FabricRules(hysteresis=IMMEDIATE)
SEED = st.integers(0, 2**64)
Groups = set[frozenset[str]]


def plan(cabling: Mapping[str, Links], published: Collection[HyperNode] = ()) -> PlanOutcome:
    return compute(reports(cabling), published=published, rules=NOW)


def units_of(cabling: Iterable[str]) -> Groups:
    """A node's unit is the first part of its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in cabling:
        found[node.partition("-")[0]].add(node)
    return {frozenset(nodes) for nodes in found.values()}


def rail_units(units: int, size: int, rails: int = 8) -> Cabling:
    return {
        f"su{unit}-n{n:02}": tuple((rail, f"su{unit}-leaf{rail}") for rail in range(rails))
        for unit in range(units)
        for n in range(size)
    }


def changes(before: Groups, after: Groups, node: str) -> list[str]:
    """How the report of one node joins or divides groups of others: those of two or more, or of three or more."""
    place = {member: group for group in after for member in group}
    found: list[str] = []
    meets: Counter[frozenset[str]] = Counter()
    for group in (group - {node} for group in before):
        places = {place.get(member) for member in group}
        if len(group) > 2 and (len(places) > 1 or None in places):
            found.append(f"divided: {sorted(group)}")
        if len(group) > 1:
            meets.update(one for one in places if one is not None)
    return found + [f"joined: {sorted(group)}" for group, count in meets.items() if count > 1]


def named(outcome: PlanOutcome) -> set[tuple[str, str, str]]:
    return {(str(odd.kind), odd.node, odd.link) for odd in outcome.anomalies}


@pytest.mark.parametrize("ninth", [8, 20, None], ids=["rail 8", "rail 20", "no rail"])
def test_a_wrong_cable_beside_a_nic_on_a_switch_of_its_own_joins_nothing_and_is_named(
    ninth: int | None,
) -> None:
    cabling = rail_units(10, 16)
    links = list(cabling["su0-n00"])
    links[1] = (1, "su1-leaf1")
    cabling["su0-n00"] = (*links, (ninth, "border"))
    outcome = plan(cabling)
    assert partition(outcome) == units_of(cabling)
    assert named(outcome) == {("foreign-leaf", "su0-n00", "nic1")}


@pytest.mark.parametrize("rail", [2, 8, None], ids=["a common rail", "a rail of its own", "no rail"])
@pytest.mark.parametrize("gateways", [1, 2, 3])
def test_gateways_between_two_units_and_a_border_switch_join_nothing(gateways: int, rail: int | None) -> None:
    """As many gateways as the units have not: 16 nodes each testify that they are apart."""
    cabling = rail_units(2, 16)
    units = units_of(cabling)
    for i in range(gateways):
        cabling[f"gateway-{i}"] = ((0, "su0-leaf0"), (1, "su1-leaf1"), (rail, "border"))
    groups = {
        group - {node for node in group if node.startswith("gateway")} for group in partition(plan(cabling))
    }
    assert groups - {frozenset()} == units


def test_a_report_of_nine_links_joins_no_unit() -> None:
    cabling = rail_units(8, 16)
    units = units_of(cabling)
    cabling["liar"] = (*((unit, f"su{unit}-leaf{unit}") for unit in range(8)), (50, "fake"))
    assert not changes(units, partition(plan(cabling)), "liar")
    cabling["liar"] = (*((50 + unit, f"su{unit}-leaf{unit}") for unit in range(8)), (50, "fake"))
    assert not changes(units, partition(plan(cabling)), "liar")


def test_one_witness_joins_its_own_switches_and_two_join_parts_of_a_unit() -> None:
    """Each node of a unit has one of two cables. Nobody can say that the two leaf switches are apart."""
    half = {f"su0-n{n}": ((n % 2, f"su0-leaf{n % 2}"),) for n in range(6)}
    parts = {frozenset(node for node in half if int(node[-1]) % 2 == side) for side in (0, 1)}
    both = ((0, "su0-leaf0"), (1, "su0-leaf1"))
    assert partition(plan(half)) == parts
    assert not changes(parts, partition(plan({**half, "su0-n0": both})), "su0-n0")
    assert partition(plan({**half, "su0-n0": both, "su0-n1": both})) == {frozenset(half)}
    alone = {"su0-n0": both, "su0-n1": ((1, "su0-leaf1"),)}
    assert partition(plan(alone)) == {frozenset(alone)}


def test_one_witness_joins_what_is_published_together() -> None:
    both = ((0, "su0-leaf0"), (1, "su0-leaf1"))
    half: Cabling = {f"su0-n{n}": ((n % 2, f"su0-leaf{n % 2}"),) for n in range(6)}
    whole = plan(dict.fromkeys(half, both))
    for witness in ({}, {"su0-n0": both}):
        assert partition(plan({**half, **witness}, whole.hypernodes)) == {frozenset(half)}


@settings(max_examples=examples(200))
@given(seed=SEED, units=st.integers(2, 6), small=st.booleans(), replaces=st.booleans())
def test_one_report_of_any_content_joins_and_divides_no_group_of_others(
    seed: int, units: int, small: bool, replaces: bool
) -> None:
    """One more node, or a node of the hall; with the tree that is published, and without. Units of one node that share
    as many switches as they have of their own are one group, or several: such halls prove nothing."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, sizes=range(1, 4) if small else range(1, 33))
    node = chance.choice(sorted(cabling)) if replaces else "liar"
    lie = draw_lie(chance, cabling)
    cabling.pop(node, None)
    before = plan(cabling)
    assume(partition(before) == units_of(cabling))
    for published in ((), before.hypernodes):
        after = plan({**cabling, node: lie}, published)
        assert not changes(partition(before), partition(after), node)


@settings(max_examples=examples(200))
@given(seed=SEED, units=st.integers(2, 6))
def test_one_cable_in_another_unit_joins_nothing_and_is_named(seed: int, units: int) -> None:
    """With and without nodes that have more rails, fewer, or a NIC on a border switch. Other nodes keep their place."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, rails=chance.randint(3, 10), sizes=range(4, 33))
    before = partition(plan(cabling))
    node = chance.choice(sorted(cabling))
    unit = node.partition("-")[0]
    own = [i for i, (_, switch) in enumerate(cabling[node]) if switch.startswith(unit + "-")]
    if len(own) < 3:
        return
    i = chance.choice(own)
    rail, right = cabling[node][i]
    other = chance.choice(
        sorted(
            switch
            for links in cabling.values()
            for at, switch in links
            if at == rail and switch.startswith("su") and not switch.startswith(unit + "-")
        )
        or [right]
    )
    if other == right:
        return
    links = list(cabling[node])
    links[i] = (rail, other)
    after = plan({**cabling, node: tuple(links)})
    assert partition(after) == before
    assert ("foreign-leaf", node, f"nic{i}") in named(after)
