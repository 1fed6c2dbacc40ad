"""Which NIC has which rail: every row of the table in docs/rails.md, and any history of cards and slots.

The slots are letters in place of PCI addresses, and the cards are numbers in place of MAC addresses. A machine is a
text: ``a1 b2 c-`` has card 1 in slot a, card 2 in slot b, and in slot c a card whose MAC address cannot be read.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kinds.rail_numbers import Rail, Rails, added, changes, exchanged, identified, match

BEFORE = "a1 b2 c3"

CASES = {
    "nothing changed": ("a1 b2 c3", "a1 b2 c3"),
    "a NIC is missing": ("a1 c3", "a1 b2 c3"),
    "all NICs are missing": ("", "a1 b2 c3"),
    "a card was replaced in its slot": ("a1 b9 c3", "a1 b9 c3"),
    "two cards were replaced": ("a1 b8 c9", "a1 b8 c9"),
    "a card was moved to a free slot": ("a1 c3 d2", "a1 d2 c3"),
    "two cards were exchanged": ("a1 b3 c2", "a1 c2 b3"),
    "the whole bus was numbered one higher": ("b1 c2 d3", "b1 c2 d3"),
    "the bus was numbered higher and a card is missing": ("b1 d3", "b1 ?2 d3"),
    "a card was moved and a new card is in its slot": ("a1 b9 c3 d2", "a1 d2 c3 +b9"),
    "a card is additional": ("a1 b2 c3 d4", "a1 b2 c3 +d4"),
    "a MAC address cannot be read": ("a1 b- c3", "a1 b2 c3"),
    "no MAC address can be read": ("a- b- c-", "a1 b2 c3"),
    "a MAC address cannot be read, and the card has moved": ("a1 c3 d-", "a1 b2 c3 +d-"),
    "two NICs have one MAC address": ("a1 b1 c3", "a1 b2 c3"),
    "a missing card's slot has a card without MAC address, and another card moved there": (
        "b1 c3",
        "b1 ?2 c3",
    ),
}


def nics(text: str) -> dict[str, str | None]:
    return {entry[0]: entry[1] if entry[1] != "-" else None for entry in text.split()}


def rails(text: str) -> Rails:
    """The rails in order: ``?2`` is card 2 at an unknown address."""
    return tuple(
        Rail(number, None if slot == "?" else slot, None if card == "-" else card)
        for number, (slot, card) in enumerate(text.split())
    )


def numbered(before: Rails, machine: dict[str, str | None]) -> Rails:
    """The rails with a number for each NIC that is new, as the offer adds them."""
    now = match(before, machine)
    for slot in sorted(machine.keys() - {rail.pci_address for rail in now}):
        now = added(now, slot, machine[slot])
    return now


@pytest.mark.parametrize("name", CASES)
def test_a_rail_stays_with_its_nic(name: str) -> None:
    machine, expected = CASES[name]
    assert numbered(rails(BEFORE), nics(machine)) == rails(expected.replace("+", ""))


def test_a_mac_address_that_was_never_read_is_added_when_it_can_be_read() -> None:
    assert match(rails("a- b2"), nics("a1 b2")) == rails("a1 b2")


def test_a_rail_without_any_identity_is_dropped() -> None:
    assert match(rails("a- b2"), nics("a2")) == (Rail(1, "a", "2"),)


def test_a_free_number_is_used_before_a_higher_one() -> None:
    assert added((Rail(0, "a", "1"), Rail(2, "c", "3")), "d", "4") == rails("a1 d4 c3")


def test_configured_rails_follow_the_addresses_and_not_the_cards() -> None:
    assert identified(rails("a1 b2"), nics("a2 b1")) == rails("a2 b1")
    assert identified(rails("a1 b2"), nics("a1")) == rails("a1 b2")


def test_a_late_number_is_one_only_while_another_nic_is_missing() -> None:
    late = added(rails("a1 b2"), "d", "4", late=True)
    assert match(late, nics("a1 d4")) == late
    assert [rail.late for rail in match(late, nics("a1 b2 d4"))] == [False, False, False]
    assert exchanged(late, {"a", "d"}) == ((late[1],), (late[2],))
    assert exchanged(late, {"d"}) == ((), ())
    assert exchanged(late, {"a", "b", "d"}) == ((), ())
    assert exchanged(rails("a1 b2 c3"), {"b", "c"}) == ((), ())


def test_changes_are_described() -> None:
    assert list(changes(rails("a1 b2 ?3"), rails("d1 b9 c3"))) == [
        "rail 0: NIC 1 moved from a to d",
        "rail 1: NIC 2 at b was replaced by 9, which takes the rail over",
        "rail 2: NIC 3 moved from an address that another NIC has now to c",
    ]
    assert list(changes(rails("a1 b-"), rails("a1 b2 c3"))) == []


@given(st.lists(st.permutations("12345678").map(lambda cards: cards[:4]), min_size=1, max_size=8), st.data())
def test_a_known_card_never_changes_its_rail(machines: list[list[str]], data: st.DataObject) -> None:
    """Any cards in any slots, one machine after the other."""
    now: Rails = ()
    number: dict[str, int] = {}
    for cards in machines:
        slots = data.draw(st.permutations("abcdef"))
        now = numbered(now, dict(zip(slots, cards, strict=False)))
        known = {rail.identity: rail.number for rail in now}
        for card, rail in number.items():
            # A card that is gone may lose its rail to its replacement, and to no other.
            assert known.get(card, rail) == rail
        number = {card: rail for card, rail in known.items() if card is not None}
        for part in ("number", "pci_address", "identity"):
            values = [getattr(rail, part) for rail in now if getattr(rail, part) is not None]
            assert len(values) == len(set(values))
        assert match(now, dict(zip(slots, cards, strict=False))) == now
