"""Which place loses packets, from legs alone; ``test_rail_hall`` has the same with time and chance."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric.rail_suspects import (
    AGREE_S,
    CheckedLegs,
    ExplainedLegs,
    Leg,
    Scope,
    Suspect,
    agreed,
    gain,
    suspects,
)
from tests.support.rail_hall import RailHall

HALL = RailHall(4, 16, 8)
PODS = RailHall(16, 8, 2, pods=4)
DEAD, LEAF = Suspect(Scope.LINK, "n1-3", "rail2"), Suspect(Scope.LEAF, "leaf2-5")


def named(bad: Iterable[Leg], hall: RailHall = HALL, scopes: Iterable[Scope] = Scope) -> list[Suspect]:
    return [found.suspect for found in suspects(hall.checked, dict.fromkeys(bad, 100), scopes)]


def bad(*places: Suspect, hall: RailHall = HALL) -> list[Leg]:
    return list(dict.fromkeys(leg for place in places for leg in hall.passing(place)))


def of_path(hall: RailHall, suspect: Suspect, step: int = 4) -> list[Leg]:
    """The legs across of a place that have a flow on one of its paths."""
    return hall.passing(suspect)[::step]


def test_each_place_is_named_from_its_legs():
    for place in (DEAD, LEAF, Suspect(Scope.HOST, "n3-1")):
        assert named(bad(place)) == [place]
    uplinks = Suspect(Scope.UPLINKS, "leaf2-5")
    assert named(of_path(HALL, uplinks)) == [uplinks]
    for place in (Suspect(Scope.SPINE, "spine1"), Suspect(Scope.CORE, "")):
        assert named(of_path(PODS, place, 2), PODS) == [place]


def test_faults_at_once_are_named_each():
    other = Suspect(Scope.LINK, "n1-9", "rail2")
    assert set(named(bad(DEAD, other))) == {DEAD, other}, "two links of one leaf are no leaf"
    assert set(named(bad(DEAD, LEAF))) == {DEAD, LEAF}
    several = [Suspect(Scope.LINK, f"n1-{number}", "rail2") for number in range(5)]
    assert set(named(bad(*several))) == set(several), "five dead cables are no leaf either"


def test_a_few_bad_legs_of_a_large_place_prove_nothing():
    spine = HALL.passing(Suspect(Scope.SPINE, "spine0"))
    assert named([spine[0], spine[len(spine) // 2]]) == []
    assert gain(0, 100) == gain(1, 1_000_000) == 0.0


def test_a_link_is_blamed_on_the_word_of_two_other_nodes():
    legs = HALL.passing(DEAD)
    by_partner = {next(end.node for end in leg if end.node != DEAD.name): leg for leg in legs}
    one = next(iter(by_partner))
    assert named([leg for leg in legs if one in {end.node for end in leg}]) == []
    assert named(legs) == [DEAD]


def test_two_nodes_alone_cannot_name_a_link():
    pair = RailHall(1, 2, 1)
    assert pair.legs
    assert named(pair.legs, pair) == []


def test_the_only_rail_of_a_silent_host_is_the_host():
    hall = RailHall(2, 8, 1)
    host = Suspect(Scope.HOST, "n0-3")
    legs = bad(host, hall=hall)
    assert named([leg for leg in legs if leg.writer.node != host.name], hall) == [host]
    assert named(legs, hall) == [Suspect(Scope.LINK, "n0-3", "rail0")], "it runs, and says so"


def test_a_leg_across_says_nothing_about_uplinks_if_its_link_loses_packets_at_the_leaf():
    links = [Suspect(Scope.LINK, f"n2-{number}", "rail5") for number in range(8)]
    assert Scope.UPLINKS not in {found.scope for found in named(bad(*links))}


def test_uplinks_of_two_groups_cannot_be_told_apart_and_both_are_named():
    pair = RailHall(2, 16, 4)
    uplinks = Suspect(Scope.UPLINKS, "leaf0-1")
    (found,) = suspects(pair.checked, dict.fromkeys(of_path(pair, uplinks), 10))
    assert {found.suspect, *found.rivals} == {uplinks, Suspect(Scope.UPLINKS, "leaf1-1")}


def test_large_packets_name_no_host():
    assert named(bad(Suspect(Scope.HOST, "n3-1")), scopes=set(Scope) - {Scope.HOST}) == [
        Suspect(Scope.LINK, "n3-1", f"rail{rail}") for rail in range(8)
    ]


def test_legs_of_unknown_links_count_for_nothing():
    unknown = CheckedLegs((), {})
    assert list(suspects(unknown, dict.fromkeys(HALL.legs, 100))) == []


def test_two_legs_of_one_percent_name_no_link_and_three_do():
    legs = [leg for leg in HALL.passing(DEAD) if HALL.checked.is_near(leg)]
    of_two = [leg for leg in legs if leg.writer.node == DEAD.name][:1] + [
        leg for leg in legs if leg.writer.node != DEAD.name
    ]
    for count, level, expected in ((2, 1, []), (2, 10, [DEAD]), (3, 1, [DEAD])):
        found = suspects(HALL.checked, dict.fromkeys(of_two[:count], level))
        assert [one.suspect for one in found] == expected


def test_a_link_whose_own_node_sees_nothing_is_not_blamed():
    """The host pauses, or boots: only its partners miss answers."""
    silent = [leg for leg in HALL.passing(DEAD) if leg.writer.node != DEAD.name]
    assert named(silent) == []
    host = Suspect(Scope.HOST, DEAD.name)
    assert named([leg for leg in HALL.passing(host) if leg.writer.node != host.name]) == [host]


WRITERS = sorted({leg.writer.node for leg in HALL.legs})


@given(st.sampled_from(WRITERS), st.data())
def test_a_liar_names_only_itself(liar: str, data: st.DataObject):
    own = [leg for leg in HALL.legs if leg.writer.node == liar]
    claimed = data.draw(st.lists(st.sampled_from(own), unique=True))
    assert {suspect.name for suspect in named(claimed)} <= {liar}


def test_a_liar_that_claims_everything_names_itself():
    for liar in WRITERS:
        claimed = [leg for leg in HALL.legs if leg.writer.node == liar]
        assert {suspect.name for suspect in named(claimed)} == {liar}


@given(st.sampled_from(WRITERS), st.integers(0, 31))
def test_a_liar_does_not_hide_or_move_a_fault(liar: str, number: int):
    """A true fault of another node, and the lies of one: the fault is still named, and nobody else but the liar."""
    dead = [DEAD, Suspect(Scope.LINK, f"n3-{number % 16}", f"rail{number % 8}")][number % 2]
    lies = [leg for leg in HALL.legs if leg.writer.node == liar]
    found = named([*dict.fromkeys([*bad(dead), *lies])])
    assert {suspect.name for suspect in found} <= {dead.name, liar}
    assert dead in found or dead.name == liar


def test_two_judgements_agree_before_a_place_is_named():
    def finding(place: Suspect) -> ExplainedLegs:
        return ExplainedLegs(place, (), 1)

    first, since = agreed([finding(DEAD)], {}, 10.0)
    second, since = agreed([finding(DEAD), finding(LEAF)], since, 10.0 + AGREE_S)
    third, since = agreed([finding(LEAF)], since, 10.0 + 2 * AGREE_S)
    assert [[found.suspect for found in shown] for shown in (first, second, third)] == [[], [DEAD], [LEAF]]
    assert set(since) == {LEAF}
