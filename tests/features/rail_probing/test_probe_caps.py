"""The bounds of a sender whatever its list says, and the bytes that a stranger can send to it."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent_config import load
from nodeagent.config.faults import ConfigError
from nodeagent.features.rail_probing.probe_caps import (
    ANSWERS_PER_S,
    AnswerCaps,
    Bucket,
    SendCaps,
    own_address,
)
from nodeagent.features.rail_probing.probe_packet import ANSWER, REQUEST, SIZE, ProbePacket, decode_probe


def sent(caps: SendCaps, addresses: list[str], seconds: int, per_second: int) -> int:
    return sum(
        caps.take(address, second + part / per_second)
        for second in range(seconds)
        for part in range(per_second)
        for address in addresses
    )


def test_an_address_that_never_answered_gets_one_packet_a_minute() -> None:
    assert sent(SendCaps(), ["10.0.0.9"], 600, 20) == 10


def test_a_list_that_changes_all_the_time_makes_the_minute_no_shorter() -> None:
    caps = SendCaps()
    count = 0
    for second in range(600):
        caps.keep({"10.0.0.9"} if second % 2 else set())
        count += caps.take("10.0.0.9", float(second))
    assert count == 10


def test_an_address_that_answers_gets_two_a_second() -> None:
    caps = SendCaps()
    caps.answered("10.0.0.9")
    assert sent(caps, ["10.0.0.9"], 60, 20) <= 2 * 60 + 2


def test_all_addresses_together_get_64_a_second() -> None:
    caps, addresses = SendCaps(), [f"10.0.{i // 256}.{i % 256}" for i in range(1024)]
    for address in addresses:
        caps.answered(address)
    assert sent(caps, addresses, 10, 2) <= 64 * 11


def test_a_rail_answers_64_times_a_second() -> None:
    cap = Bucket(ANSWERS_PER_S, ANSWERS_PER_S)
    assert sum(cap.take(i / 1000) for i in range(10_000)) <= 64 * 11


def answered(
    caps: AnswerCaps, senders: list[tuple[str, bool, int]], seconds: int
) -> dict[tuple[str, bool], int]:
    """The answers by address and ticket; each sender has an address, a ticket or none, and packets a second."""
    counts: dict[tuple[str, bool], int] = {}
    for step in range(seconds * 100):
        for address, shown, per_second in senders:
            if step % (100 // per_second) == 0:
                counts.setdefault((address, shown), 0)
                counts[address, shown] += caps.take(address, step / 100, shown=shown)
    return counts


def test_who_sends_with_the_addresses_of_partners_takes_no_answer_from_any_partner() -> None:
    """One such sender made all partners of the rail call the partner dead, and with it the rail."""
    partners = [(f"10.0.0.{i}", True, 2) for i in range(1, 13)]
    forged = [(address, False, 100) for address, _, _ in partners]
    found = answered(AnswerCaps(), [*forged, *partners], 120)
    assert [found[address, True] for address, _, _ in partners] == [240] * 12
    assert sum(found[address, False] for address, _, _ in partners) <= ANSWERS_PER_S * 121


def test_a_ticket_is_of_one_address_one_session_and_one_run_of_the_agent() -> None:
    caps = AnswerCaps()
    tickets = {caps.ticket("10.0.0.1", 1), caps.ticket("10.0.0.2", 1), caps.ticket("10.0.0.1", 2)}
    assert len(tickets | {AnswerCaps().ticket("10.0.0.1", 1), 0}) == 5
    assert caps.ticket("10.0.0.1", 1) in tickets


def test_partners_without_a_ticket_are_answered_at_once_whoever_has_started_again() -> None:
    partners = [(f"10.0.0.{i}", False, 2) for i in range(1, 13)]
    assert set(answered(AnswerCaps(), partners, 60).values()) == {120}


def test_a_partner_whose_host_has_paused_gets_all_answers() -> None:
    caps = AnswerCaps()
    answered(caps, [("10.0.0.1", True, 2)], 30)
    assert all(caps.take("10.0.0.1", 40.0, shown=True) for _ in range(20))


OWN = (ip_interface("10.0.1.3/24"), ip_interface("10.9.0.7/31"), ip_interface("fe80::3/64"))


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("10.0.1.9", "10.0.1.3"),
        ("10.9.0.6", "10.9.0.7"),  # both addresses of a /31 are hosts
        ("fe80::9", "fe80::3"),
        ("10.77.0.1", "10.0.1.3"),  # a configured network
        ("10.0.1.3", None),
        ("10.0.1.255", None),
        ("10.0.1.0", None),
        ("8.8.8.8", None),
        ("224.0.0.1", None),
        ("255.255.255.255", None),
        ("127.0.0.1", None),
        ("0.0.0.0", None),
        ("2001:db8::1", None),
        ("ff02::1", None),
        ("fe80::9%eth0", None),
        ("victim.example", None),
    ],
)
def test_a_target_lies_in_the_prefix_of_the_rail_or_in_a_configured_network(
    target: str, own: str | None
) -> None:
    found = own_address(target, OWN, [ip_network("10.77.0.0/16"), ip_network("fd00::/8")])
    assert (None if found is None else str(found.ip)) == own


U64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from([REQUEST, ANSWER]), U64, U64, U64, st.integers(SIZE, 9000))
def test_a_packet_is_read_as_it_was_written(
    kind: int, session: int, sequence: int, held: int, length: int
) -> None:
    packet = ProbePacket(kind, session, sequence, held)
    raw = packet.encode(length)
    assert len(raw) == length
    assert decode_probe(raw) == packet


@given(st.binary(max_size=100))
def test_other_bytes_are_no_packet(raw: bytes) -> None:
    assert decode_probe(raw) is None
    decode_probe(b"nrp1" + raw)


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ("10.200.0.0/16", None),
        ("fd00:12::/48", None),
        ("10.0.0.0/99", "is no network such as"),
        ("10.200.0.1/16", "has host bits set"),
        ("999.1.1.0/24", "is no network such as"),
        (":::/64", "is no network such as"),
        ("0.0.0.0/0", "is too wide"),
        ("::/0", "is too wide"),
        ("rail0", "is no network such as"),
    ],
)
def test_the_networks_of_the_rails_are_read_from_a_file(network: str, complaint: str | None) -> None:
    text = (
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresources:\n- kind: vf\n"
        f"rails: {{probe: true, networks: ['{network}']}}\n"
    )
    if complaint is None:
        assert load(text, name="file").rails.networks == (network,)
    else:
        with pytest.raises(ConfigError, match=complaint):
            load(text, name="file")


@pytest.mark.parametrize(
    "address", ["240.0.0.1", "0.1.2.3", "255.255.255.255", "::ffff:10.200.0.9", "10.200.7.255"]
)
def test_an_address_that_no_single_host_has_is_no_target_in_any_network(address: str) -> None:
    own = [ip_interface("10.200.7.1/24"), ip_interface("fd00::1/64")]
    networks = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert own_address(address, own, networks) is None
