"""The numbers of NICs from other memories than the file: the report of the node, and the names of held VFs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds.rail_numbers import HeldRails, Rail, Rails, held_rails, recalled
from nodeagent.offering.offer import Offer
from tests.offering.test_offer import machine, pf

A, B, C = "0000:20:00.0", "0000:30:00.0", "0000:40:00.0"
MAC_A, MAC_B, MAC_C = (f"b8:ce:f6:00:00:0{number}" for number in (1, 2, 3))
VF_A, VF_B, GONE = "0000:20:00.2", "0000:30:00.2", "0000:90:00.2"
PARENTS = {VF_A: A, VF_B: B, A: None}


def held(*pairs: tuple[str, str], template: str = "x/nic{rail}") -> HeldRails:
    return held_rails(pairs, [template], PARENTS)


def test_the_name_under_which_a_pod_holds_a_vf_has_the_number_of_its_pf() -> None:
    assert held(("x/nic7", VF_A), ("x/nic2", VF_B)) == HeldRails({A: 7, B: 2}, frozenset({7, 2}))


def test_the_number_of_a_nic_that_is_gone_is_known_and_its_pf_is_not() -> None:
    assert held(("x/nic7", GONE)) == HeldRails({}, frozenset({7}))


@pytest.mark.parametrize(
    "name", ["y/nic1", "x/nic", "x/nic1a", "x/nic-1", "x/nic1\n", "x/nic12345", "x/gpu-mem"]
)
def test_another_name_tells_nothing(name: str) -> None:
    assert held((name, VF_A)) == HeldRails()


def test_a_name_without_a_number_tells_nothing_and_one_with_a_netdev_does() -> None:
    assert held(("x/rdma", VF_A), template="x/rdma") == HeldRails()
    template = "x/{netdev}.rail{rail}"
    assert held(("x/ens1np0.rail4", VF_A), template=template) == HeldRails({A: 4}, frozenset({4}))


def test_names_that_disagree_tell_no_pf_and_keep_their_numbers() -> None:
    assert held(("x/nic1", VF_A), ("x/nic2", VF_A)) == HeldRails({}, frozenset({1, 2}))
    assert held(("x/nic1", VF_A), ("x/nic1", VF_B)) == HeldRails({}, frozenset({1}))


BOTH = (Rail(0, A, MAC_A), Rail(1, B, MAC_B))


def numbers(
    reported: Rails, of_pf: Mapping[str, int], nics: Mapping[str, str | None]
) -> dict[str | None, int]:
    return {rail.pci_address: rail.number for rail in recalled(reported, of_pf, nics)}


def test_what_is_held_comes_before_the_report_which_loses_both_contradictions() -> None:
    """The report has 0 for A and 1 for B, and a pod holds a VF of A as 1: B has no number that is sure."""
    assert numbers(BOTH, {A: 1}, {A: MAC_A, B: MAC_B}) == {A: 1}
    assert numbers(BOTH, {A: 5}, {A: MAC_A, B: MAC_B}) == {A: 5, B: 1}


def test_a_new_card_in_its_slot_takes_the_number_over_and_both_memories_agree() -> None:
    assert numbers(BOTH, {A: 0}, {A: MAC_C, B: MAC_B}) == {A: 0, B: 1}


def test_a_card_at_another_address_takes_its_reported_number_along_and_held_names_are_of_the_old_card() -> (
    None
):
    """The buses were numbered again: A has the card of B. The kubelet still lists a VF at A as 0."""
    assert numbers(BOTH, {A: 0}, {A: MAC_B, B: MAC_A}) == {A: 1, B: 0}
    assert numbers(BOTH, {A: 0}, {A: MAC_C, C: MAC_A}) == {C: 0, B: 1}


def test_a_missing_nic_keeps_its_reported_number() -> None:
    assert numbers(BOTH, {}, {B: MAC_B}) == {A: 0, B: 1}


# --- any memories ---------------------------------------------------------------------------------------

CARDS = range(1, 7)
ENTRY = load(
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources: [{kind: vf}]\n",
    name="test",
)
ADDRESS = {card: pf(card).pci_address for card in CARDS}


def vf_of(card: int) -> str:
    return f"{ADDRESS[card][:-1]}1"


def seen(present: frozenset[int], names: Mapping[int, int] | None) -> Snapshot:
    """The machine with these cards. ``names``: the number under which a pod holds a VF of each card."""
    snapshot = machine(*(pf(card) for card in sorted(present)))
    if names is None:
        return snapshot
    holdings = tuple(Holding("ns", f"p{card}", "c", f"x/nic{n}", (vf_of(card),)) for card, n in names.items())
    return replace(snapshot, holdings=holdings)


def rails_of(offer: Offer) -> dict[int, int]:
    cards = {address: card for card, address in ADDRESS.items()}
    return {cards[address]: number for address, number in offer.rails.items()}


some_cards = st.frozensets(st.sampled_from(CARDS))


@given(st.permutations(CARDS), some_cards, some_cards, some_cards, st.permutations(CARDS))
def test_no_nic_that_a_memory_knows_changes_its_rail_whatever_is_missing_at_the_restart(
    order: list[int],
    reported: frozenset[int],
    held_cards: frozenset[int],
    missing: frozenset[int],
    back: list[int],
) -> None:
    """Each memory knows a part of the truth, and NICs come back one after the other."""
    rail = {card: number for number, card in enumerate(order)}
    names = {card: rail[card] for card in held_cards}
    offer = Offer(ENTRY)
    offer.recall(
        tuple(sorted((Rail(rail[card], ADDRESS[card]) for card in reported), key=lambda it: it.number))
    )
    offer.recall(awaits_holdings=True)
    present = frozenset(CARDS) - missing
    offer.kinds(seen(present, None))
    assert not present or offer.undecided(ENTRY.resources[0])
    for card in (None, *(card for card in back if card in missing)):
        present |= {card} if card is not None else frozenset()
        offer.kinds(seen(present, names))
        now = rails_of(offer)
        assert {one: now[one] for one in (reported | held_cards) & now.keys()} == {
            one: rail[one] for one in (reported | held_cards) & now.keys()
        }
        assert present <= now.keys()
        assert len(set(now.values())) == len(now)


@given(
    st.dictionaries(st.sampled_from(CARDS), st.integers(0, 7)),
    st.dictionaries(st.sampled_from(CARDS), st.integers(0, 7)),
    some_cards,
)
def test_memories_that_disagree_give_no_name_to_another_network(
    reported: dict[int, int], names: dict[int, int], missing: frozenset[int]
) -> None:
    """A held VF keeps its name where the names agree, and a number that a memory has is given to its NICs alone."""
    offer = Offer(ENTRY)
    offer.recall(tuple(Rail(number, ADDRESS[card]) for card, number in sorted(reported.items())))
    present = frozenset(CARDS) - missing
    offer.kinds(seen(present, names))
    now = rails_of(offer)
    assert len(set(now.values())) == len(now)
    of_present = {card: number for card, number in names.items() if card in present}
    for card, number in of_present.items():
        if [*of_present.values()].count(number) == 1:
            assert now[card] == number
    for card in present:
        claimed_by = {
            one for memory in (reported, names) for one, number in memory.items() if number == now[card]
        }
        assert not claimed_by or card in claimed_by


def test_numbers_of_two_selections_are_recalled_each_for_its_own() -> None:
    one, two, three, four = (f"'{ADDRESS[card][:-4]}*'" for card in range(1, 5))
    text = (
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"
        f"- {{kind: vf, select: {{pciAddresses: [{one}, {two}]}}}}\n"
        f"- {{kind: vf, name: 'storage{{rail}}', select: {{pciAddresses: [{three}, {four}]}}}}\n"
    )
    offer = Offer(load(text, name="test"))
    offer.recall(tuple(Rail(number, ADDRESS[card]) for card, number in ((1, 1), (2, 0), (3, 1), (4, 0))))
    offer.kinds(seen(frozenset((1, 2, 4)), {}))
    assert rails_of(offer) == {1: 1, 2: 0, 4: 0}
    offer.kinds(seen(frozenset((1, 2, 3, 4)), {}))
    assert rails_of(offer) == {1: 1, 2: 0, 3: 1, 4: 0}


def test_a_number_that_one_selection_has_twice_in_the_report_is_given_to_neither() -> None:
    offer = Offer(ENTRY)
    offer.recall((Rail(0, ADDRESS[1]), Rail(0, ADDRESS[2])))
    offer.kinds(seen(frozenset((1, 2)), {}))
    assert rails_of(offer) == {1: 1, 2: 2}


def test_a_number_that_another_nic_got_meanwhile_is_not_given_again() -> None:
    """The holdings of pods were not known when the NIC beside it was numbered."""
    offer = Offer(ENTRY)
    offer.recall((Rail(0, ADDRESS[1]),))
    offer.kinds(seen(frozenset((1, 2)), None))
    offer.kinds(seen(frozenset((1, 2, 3)), {3: 1}))
    assert rails_of(offer) == {1: 0, 2: 1, 3: 2}
