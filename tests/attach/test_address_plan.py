"""Names and addresses of VFs: no two VFs of a fleet share one, and no VF has an address of a PF."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Interface, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.attach.address_plan import (
    NETDEV_NAME_MAX,
    OF_A_RAIL_MAX,
    RAIL_NUMBER_MAX,
    AddressPlan,
    AddressPlanError,
    interface_complaint,
    interface_name,
    of_rail,
    pattern_complaint,
)

PLAN = AddressPlan("10.{100+rail}.0.0/16", nodes=1000, vfs=8)


def test_a_vf_has_the_number_of_its_node_in_the_part_of_its_index() -> None:
    pf = [ip_interface("10.103.0.7/16")]
    assert [str(PLAN.address(3, index, pf=pf, mac=None)) for index in (0, 1, 7)] == [
        "10.103.16.7/16",
        "10.103.32.7/16",
        "10.103.128.7/16",
    ]


@pytest.mark.parametrize(
    ("pattern", "rail", "text"),
    [
        ("rail{rail}", 3, "rail3"),
        ("{rail+1}.{7+rail}", 2, "3.9"),
        ("10.{100+rail}.0.0/16", 7, "10.107.0.0/16"),
    ],
)
def test_a_term_is_the_number_of_the_rail_or_a_sum(pattern: str, rail: int, text: str) -> None:
    assert pattern_complaint(pattern) is None
    assert of_rail(pattern, rail) == text


@pytest.mark.parametrize(
    "pattern",
    ["{rail*2}", "{rail", "rail}", "{}", "{rail+}", "{rail+1+1}", "{rail-1}", "{rail!r}", "{rail:02}", "{nodes}",
     "{rail+10000}", "{{rail}}", "{rail.real}"],
)  # fmt: skip
def test_anything_else_in_braces_is_refused_and_never_evaluated(pattern: str) -> None:
    assert pattern_complaint(f"{pattern}{{rail}}") == (
        "braces hold the number of the rail: {rail}, {rail+100} or {100+rail}"
    )


def test_a_pattern_without_the_rail_would_give_all_rails_one_prefix() -> None:
    assert list(AddressPlan("10.0.0.0/16", nodes=10, vfs=8).faults()) == [
        "it needs {rail}, so that each rail has its own"
    ]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("rail", "it needs {rail}"),
        ("{rail}", "begins with a letter"),
        ("rail/{rail}", "begins with a letter"),
        ("rail {rail}", "begins with a letter"),
        ("compute-rail{rail}", "compute-rail255b, the name of a second VF, is longer than the kernel's 15"),
    ],
)
def test_a_name_that_no_netdev_can_have_is_refused(pattern: str, why: str) -> None:
    assert why in (interface_complaint(pattern) or "")


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (AddressPlan("10.{rail}.0.0/24", 1000, 8),
         "10.0.0.0/24 has numbers for 14 nodes with 8 VFs of a PF, not for 1000: use a prefix of /18 or shorter, or "
         "lower `nodes` or `vfs`"),
        (AddressPlan("10.{300+rail}.0.0/16", 10, 8), "rail 0: 10.300.0.0/16 is no prefix"),
        (AddressPlan("10.0.{rail+1}.0/16", 10, 8), "rail 0: 10.0.1.0/16 is no prefix: 10.0.1.0/16 has host bits set"),
        (AddressPlan("fd00:{rail}::/80", 10, 8), "use a prefix of /64 or shorter"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_names_the_remedy(plan: AddressPlan, why: str) -> None:
    (fault,) = plan.faults()
    assert why in fault
    with pytest.raises(AddressPlanError):
        plan.address(0, 0, pf=[ip_interface("10.0.0.1/24")], mac="02:00:00:00:00:01")


@pytest.mark.parametrize("bits", range(8, 31))
def test_the_prefix_that_the_refusal_names_does_fit_and_a_longer_one_does_not(bits: int) -> None:
    for nodes, vfs in ((1, 1), (14, 8), (15, 8), (1000, 8), (1022, 3), (1023, 3), (4094, 16)):
        fits = not list(AddressPlan(f"{{rail+10}}.0.0.0/{bits}", nodes, vfs).faults())
        need = (nodes + 1).bit_length() + vfs.bit_length()
        assert fits == (bits <= 32 - need), (nodes, vfs)


@pytest.mark.parametrize(
    ("pf", "why"),
    [
        ([], "rail 0: its PF has no address in 10.100.0.0/16, which gives the node its number"),
        (["192.168.0.1/24", "fe80::1/64"], "has no address in 10.100.0.0/16"),
        (
            ["10.100.0.1/16", "10.100.0.2/16"],
            "has several addresses in 10.100.0.0/16: 10.100.0.1, 10.100.0.2",
        ),
        (
            ["10.100.3.233/16"],
            "10.100.3.233 of its PF is not one of 10.100.0.1 to 10.100.3.232, which number",
        ),
        (["10.100.16.7/16"], "10.100.16.7 of its PF is not one of 10.100.0.1 to 10.100.3.232"),
    ],
)
def test_a_pf_that_gives_no_number_is_named(pf: list[str], why: str) -> None:
    with pytest.raises(AddressPlanError) as refused:
        PLAN.address(0, 0, pf=[ip_interface(one) for one in pf], mac=None)
    assert why in str(refused.value)


def test_a_vf_beyond_the_plan_has_no_address() -> None:
    with pytest.raises(AddressPlanError, match="VF 8 of its PF is beyond `vfs: 8`"):
        PLAN.address(0, 8, pf=[ip_interface("10.100.0.1/16")], mac=None)


def test_an_ipv6_address_is_the_prefix_with_the_mac() -> None:
    plan = AddressPlan("fd00:{rail}::/64", nodes=1, vfs=1)
    # The example of RFC 4291, appendix A, with its universal bit turned round.
    assert plan.address(3, 0, pf=[], mac="34:56:78:9a:bc:de") == IPv6Interface(
        "fd00:3::3656:78ff:fe9a:bcde/64"
    )
    for mac in (None, "", "00:00:00:00:00:00", "01:00:5e:00:00:01"):
        with pytest.raises(AddressPlanError):
            plan.address(3, 0, pf=[], mac=mac)


_PATTERNS = st.builds(
    lambda first, head, low: f"{first}{head}{low}",
    st.text("abcXYZ", min_size=1, max_size=4),
    st.sampled_from(["{rail}", "{rail+1}", "{100+rail}"]),
    st.text("bc1_.", max_size=4),
)


@given(_PATTERNS)
def test_no_two_vfs_of_a_pod_have_one_name(pattern: str) -> None:
    if interface_complaint(pattern):
        return
    names = [
        interface_name(pattern, rail, place) for rail in range(RAIL_NUMBER_MAX + 1) for place in range(3)
    ]
    assert len(set(names)) == len(names)
    assert all(0 < len(name) <= NETDEV_NAME_MAX for name in names)


def test_a_pod_has_no_name_for_the_27th_vf_of_a_rail() -> None:
    assert interface_name("rail{rail}", 0, OF_A_RAIL_MAX - 1) == "rail0z"
    with pytest.raises(AddressPlanError):
        interface_name("rail{rail}", 0, OF_A_RAIL_MAX)


@st.composite
def _fitting_plans(draw: st.DrawFn) -> AddressPlan:
    nodes, vfs = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    room = (nodes + 1).bit_length() + vfs.bit_length()
    bits = draw(st.integers(8, 32 - room))
    octets = "{rail+10}.0.0.0" if bits < 16 else "10.{100+rail}.0.0"
    return AddressPlan(f"{octets}/{bits}", nodes, vfs)


@given(_fitting_plans(), st.data())
def test_no_address_of_a_fleet_is_given_twice_or_is_a_pfs(plan: AddressPlan, data: st.DataObject) -> None:
    """The fleet numbers its PFs in any order; rails have prefixes of their own."""
    rails = range(data.draw(st.integers(1, 3)))
    given_: set[IPv4Address] = set()
    own: set[IPv4Address] = set()
    count = 0
    for rail in rails:
        prefix = plan.of(rail)
        assert isinstance(prefix, IPv4Network)
        for node in range(1, plan.nodes + 1):
            pf = IPv4Interface((int(prefix.network_address) + node, prefix.prefixlen))
            own.add(pf.ip)
            for index in range(plan.vfs):
                address = plan.address(rail, index, pf=[pf], mac=None)
                assert isinstance(address, IPv4Interface)
                assert address.network == ip_network(prefix)
                assert address.ip not in (prefix.network_address, prefix.broadcast_address)
                given_.add(address.ip)
                count += 1
    assert len(given_) == count
    assert not given_ & own
