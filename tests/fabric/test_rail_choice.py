"""The choice of partners: rings at a leaf switch and partners across, stable while nodes come and go."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric.rail_choice import ACROSS_MAX, choose
from nodeagent.fabric.rail_partners import PARTNERS_MAX
from nodeagent.fabric.rail_suspects import Leg, RailEnd, RailPlace

Places = dict[RailEnd, RailPlace]
SHAPES = {"two groups": (2, 32, 8, 1), "many": (12, 16, 4, 1), "pods": (12, 16, 2, 3), "small": (3, 2, 1, 1)}


def hall(groups: int, size: int = 8, rails: int = 2, pods: int = 1) -> Places:
    return {
        RailEnd(f"n{group}-{number}", f"nic{rail}"): RailPlace(
            str(rail), f"leaf{group}-{rail}", f"spine{group * pods // groups}", "core" if pods > 1 else ""
        )
        for group in range(groups)
        for number in range(size)
        for rail in range(rails)
    }


def lists(legs: list[Leg]) -> dict[str, set[tuple[bool, Leg]]]:
    """The content of the object of each node: the legs that it sends on, and those that it answers."""
    found: dict[str, set[tuple[bool, Leg]]] = {}
    for leg in legs:
        found.setdefault(leg.writer.node, set()).add((True, leg))
        found.setdefault(leg.partner.node, set()).add((False, leg))
    return found


def test_each_link_has_two_partners_at_its_leaf_and_one_across():
    places = hall(4, 16)
    legs, across = choose(places, {})
    assert set(across) == set(places)
    near = Counter(leg.writer for leg in legs if places[leg.writer].leaf == places[leg.partner].leaf)
    assert set(near) == set(places)
    assert set(near.values()) == {2}
    for leg in legs:
        one, other = places[leg.writer], places[leg.partner]
        assert leg.writer != leg.partner
        assert one.rail == other.rail
    answered = Counter(across.values())
    assert max(answered.values()) <= 2
    assert len(answered) >= 0.9 * len(places), "nearly each answers one link across"


def test_all_rails_of_a_node_have_the_same_partner_nodes():
    legs, _ = choose(hall(3, 8, rails=4), {})
    nodes: dict[str, dict[str, set[str]]] = {}
    for writer, partner in legs:
        nodes.setdefault(writer.node, {}).setdefault(writer.link, set()).add(partner.node)
    assert all(len(set(map(frozenset, of_link.values()))) == 1 for of_link in nodes.values())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_node_that_joins_or_leaves_changes_at_most_nine_lists(shape: str):
    whole = hall(*SHAPES[shape])
    _, across = choose(whole, {})
    for name in sorted({end.node for end in whole})[::3]:
        without = {end: place for end, place in whole.items() if end.node != name}
        left, kept = choose(without, across)
        joined, _ = choose(whole, kept)
        before, after = lists(left), lists(joined)
        assert sum(before.get(node) != after.get(node) for node in before.keys() | after.keys()) <= 9


@given(seed=st.integers(0, 2**64), shape=st.sampled_from(sorted(SHAPES)), links=st.integers(1, 60))
def test_one_report_of_any_links_takes_three_legs_at_most_at_each_leaf_and_none_across(
    seed: int, shape: str, links: int
) -> None:
    chance = random.Random(seed)
    honest = hall(*SHAPES[shape])
    legs, across = choose(honest, {})
    claimed = sorted(set(honest.values()))
    liar = {RailEnd("liar", f"nic{i}"): chance.choice(claimed) for i in range(links)}
    after, then = choose({**honest, **liar}, across)
    assert {end: then[end] for end in across} == across
    lost = Counter(honest[leg.writer].leaf for leg in set(legs) - set(after))
    assert set(lost) <= {place.leaf for place in liar.values()}
    assert max(lost.values(), default=0) <= 3


def test_the_choice_is_the_same_for_any_order_and_stays():
    places = hall(4, 8)
    legs, across = choose(places, {})
    assert set(choose(dict(reversed(places.items())), {})[0]) == set(legs)
    assert choose(places, across) == (legs, across)


def test_every_other_link_below_a_core_has_a_partner_in_another_pod():
    places = hall(16, 16, 1, pods=4)
    _, across = choose(places, {})
    other = sum(places[one].spine != places[far].spine for one, far in across.items())
    assert 0.4 < other / len(across) < 0.6


def test_groups_that_no_tier_joins_have_no_partners_across():
    apart = {end: place._replace(spine="") for end, place in hall(2).items()}
    assert choose(apart, {})[1] == {}
    pods = {end: place._replace(core="") for end, place in hall(2, pods=2).items()}
    assert choose(pods, {})[1] == {}
    _, joined = choose(hall(2), {})
    assert choose(apart, joined)[1] == {}, "a tier that is not known any more"


def test_no_list_grows_beyond_its_bounds():
    large, small = hall(2, 32, 1), {RailEnd("n1-0", "nic0"), RailEnd("n1-1", "nic0")}
    uneven = {end: place for end, place in large.items() if place.leaf == "leaf0-0" or end in small}
    legs, across = choose(uneven, {})
    answered = Counter(across.values())
    assert {answered[end] for end in small} == {ACROSS_MAX}
    assert max(Counter(leg.partner for leg in legs).values()) <= PARTNERS_MAX
    assert choose(uneven, across) == (legs, across)


def test_a_link_alone_has_no_partner():
    assert choose({RailEnd("n", "nic0"): RailPlace("0", "leaf", "spine")}, {}) == ([], {})
