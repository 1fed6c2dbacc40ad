"""Switches of a storage or management network join no leaf groups, also while most cables of a hall are missing."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, FabricRules, compute
from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.outcome import PlanOutcome
from tests.support.examples import examples
from tests.support.fabrics import partition
from tests.support.random_halls import Cabling, draw_cabling, reports

NOW = FabricRules(hysteresis=IMMEDIATE)
SEED = st.integers(0, 2**64)


def plan(cabling: Cabling, published: tuple[HyperNode, ...] = ()) -> PlanOutcome:
    return compute(reports(cabling), published=published, rules=NOW)


def unit(number: int, count: int) -> set[str]:
    return {f"su{number}-n{n:02}" for n in range(count)}


def one_switch_and_two_readings(witnesses: int) -> Cabling:
    """12 nodes have ``first``, three of them ``second`` too; 8 others have ``third`` alone, of the same rail as
    ``second``. So many of the 12 have ``third`` in place of ``second``.

    Either ``first`` is a leaf switch of the 12, and the witnesses are wrong cables or lies; or it is a storage switch,
    and they are nodes of the 8. Other cables are missing.
    """
    return {
        **{
            f"su0-n{n:02}": (
                (0, "first"),
                (1, "second" if n < 3 else "third" if n >= 12 - witnesses else ""),
            )
            for n in range(12)
        },
        **{f"su1-n{n:02}": ((0, ""), (1, "third")) for n in range(8)},
    }


@pytest.mark.parametrize("witnesses", [0, 1, 2])
def test_a_wrong_cable_and_a_lie_take_no_leaf_switch_out(witnesses: int) -> None:
    """No rule can do with two witnesses: one may be a wrong cable, and one report may say anything."""
    outcome = plan(one_switch_and_two_readings(witnesses))
    assert partition(outcome) == {frozenset(unit(0, 12)), frozenset(unit(1, 8))}
    assert {(str(odd.kind), odd.node) for odd in outcome.anomalies} == {
        ("foreign-leaf", f"su0-n{n:02}") for n in (11, 10)[:witnesses]
    }


@pytest.mark.parametrize("witnesses", [3, 4])
def test_three_witnesses_take_a_shared_switch_out_while_most_nodes_are_silent(witnesses: int) -> None:
    """Published nodes keep their place; the others wait for their cables."""
    outcome = plan(one_switch_and_two_readings(witnesses))
    others = unit(1, 8) | {f"su0-n{n:02}" for n in range(12 - witnesses, 12)}
    assert partition(outcome) == {frozenset(unit(0, 3)), frozenset(others)}
    assert [(str(odd.kind), odd.switch) for odd in outcome.anomalies] == [("shared-switch", "first")]
    assert {one.node for one in outcome.unplaced} == unit(0, 12 - witnesses) - unit(0, 3)
    before = plan(one_switch_and_two_readings(2)).hypernodes
    after = plan(one_switch_and_two_readings(witnesses), before)
    assert partition(after) == {frozenset(unit(0, 12 - witnesses)), frozenset(others)}


@settings(max_examples=examples(100))
@example(seed=27)
@example(seed=463)
@example(seed=2000930)
@given(seed=SEED)
def test_units_of_many_nodes_stay_apart_while_half_of_all_cables_are_missing(seed: int) -> None:
    """With storage and management switches that no entry of ``fabrics`` takes out. Where these are most of the switches
    that each unit has, they could as well be the leaf switches of one unit whose first rail is divided. A node with as
    many cables to a border switch as to its unit may be with the other nodes of that switch."""
    chance = random.Random(seed)
    cabling = draw_cabling(
        chance, chance.randint(2, 6), sizes=range(12, 33), holes=chance.choice((0.3, 0.4, 0.5))
    )
    links = chain.from_iterable(cabling.values())
    shared = {switch for _, switch in links if switch.startswith(("storage", "management"))}
    leaves = {switch for _, switch in cabling["su0-n00"] if switch.startswith("su")}
    assume(0 < len(shared) < 3 or len(leaves) > 2)
    ends = {node: Counter(switch[:2] for _, switch in links) for node, links in cabling.items()}
    placed = {node for node, counts in ends.items() if counts["su"] > counts["bo"]}
    for group in partition(plan(cabling)):
        assert len({node.partition("-")[0] for node in group & placed}) < 2


@pytest.mark.parametrize("rail", [None, 40, 41])
def test_nodes_with_another_rail_at_a_border_switch_are_no_witnesses(rail: int | None) -> None:
    """Three nodes of a unit have a NIC on a border switch. One report names it on a rail of few nodes: then it serves
    that rail too, and most nodes of the unit have no neighbor there."""
    unit_leaves = ((0, "leafa"), (1, "leafb"))
    cabling: Cabling = {f"su0-n{n:02}": unit_leaves for n in range(20)}
    cabling |= {f"su0-n{n:02}": (*unit_leaves, (2, "leaf2")) for n in range(4)}
    cabling |= {f"su0-n{n:02}": (*unit_leaves, (40, "border")) for n in (4, 5)}
    cabling["su0-n06"] = (*unit_leaves, (rail, "border"))
    cabling["liar"] = ((0, "leafa"), (2, "border"))
    outcome = plan(cabling)
    assert partition(outcome) == {frozenset(cabling)}
    assert not any(str(odd.kind) == "shared-switch" for odd in outcome.anomalies)
