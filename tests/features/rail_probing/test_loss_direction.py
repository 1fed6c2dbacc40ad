"""The way on which probes are lost, from the counts in the answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.features.rail_probing.loss_direction import COUNTS, RECENT, LossDirection, count_of, direction
from nodeagent.features.rail_probing.probe_packet import (
    ANSWER,
    CHECK,
    REQUEST,
    SIZE,
    ProbePacket,
    decode_probe,
)

FATES = st.lists(st.sampled_from(["good", "lost there", "lost back"]), max_size=RECENT)


@given(FATES, st.integers(1, 2 * COUNTS))
def test_between_two_answers_each_loss_has_its_way(fates: list[str], before: int) -> None:
    found, received = LossDirection(), before
    answered = [i for i, fate in enumerate(fates) if fate == "good"]
    for number, fate in enumerate(fates):
        received += fate != "lost there"
        if fate == "good":
            found.answered(number, count_of(received))
    known = fates[answered[0] : answered[-1]] if answered else []
    assert found.losses == (known.count("lost there"), known.count("lost back"))


def test_a_late_answer_was_not_lost() -> None:
    found = LossDirection()
    for number, count in ((1, 1), (2, 2), (4, 4), (3, 3), (5, 5)):
        found.answered(number, count)
    assert found.losses == (0, 0)


def test_a_probe_that_was_overtaken_was_not_lost() -> None:
    found = LossDirection()
    for number, count in ((1, 1), (3, 2), (2, 3), (4, 4), (6, 5), (5, 6), (7, 7)):
        found.answered(number, count)
    assert found.losses == (0, 0)


def test_the_direction_is_that_of_the_losses_of_late() -> None:
    """A leg that loses an answer now and then for weeks, and then probes on the way there."""
    found, number, count = LossDirection(), 0, 0
    for there, losses in ((0, 2000), (1, 150)):
        for _ in range(losses):
            for sent, received in ((1, 1), (2, 2 - there)):
                number, count = number + sent, count + received
                found.answered(number, count_of(count))
        assert direction(*found.losses) == ("there" if there else "back")


def test_counts_begin_again_after_an_agent_of_an_earlier_version() -> None:
    found = LossDirection()
    for number, count in ((19, 19), (20, 20), (21, 0), (2000, 0), (2010, 30)):
        found.answered(number, count)
    assert found.losses == (0, 0)


def test_a_restarted_partner_and_one_of_an_earlier_version_tell_nothing() -> None:
    found = LossDirection()
    for number, count in ((1, 900), (2, 901), (5, 1), (6, 2), (7, 0)):
        found.answered(number, count)
    assert found.losses == (0, 0)


def test_a_direction_needs_some_losses_most_of_which_are_on_one_way() -> None:
    assert [direction(*losses) for losses in ((3, 0), (4, 0), (4, 1), (4, 2), (1, 9), (0, 0))] == [
        *("", "there", "there", "", "back", ""),
    ]


def test_the_count_is_in_the_octets_that_were_empty() -> None:
    raw = ProbePacket(ANSWER, 5, 7, 9, received=COUNTS).encode()
    assert (len(raw), raw[5:8]) == (SIZE, b"\xff\xff\xff")
    assert decode_probe(raw) == ProbePacket(ANSWER, 5, 7, 9, received=COUNTS)
    assert decode_probe(raw[:5] + bytes(3) + raw[8:]) == ProbePacket(ANSWER, 5, 7, 9)


def test_a_probe_and_its_answer_carry_a_ticket_where_the_probe_has_room_for_it() -> None:
    probe = ProbePacket(REQUEST, 5, 7, ticket=2**64 - 1)
    assert decode_probe(probe.encode()) == probe
    assert decode_probe(probe.encode(9000)) == probe
    short = probe.encode(SIZE - 8)
    assert (len(short), decode_probe(short)) == (SIZE - 8, probe._replace(ticket=0))
    check = ProbePacket(CHECK, 5, 7, node="gpu-1", ticket=9)
    assert decode_probe(check.encode()) == decode_probe(check.encode(9000)) == check
    assert check.encode() != check._replace(ticket=0).encode(), "in the place of the time that an answer has"
