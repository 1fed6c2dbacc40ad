"""The names of a cabling plan: one rule for domains and for the forms of interface names."""

from __future__ import annotations

import pytest

from nodeagent.health.cabling import Port, of_node, same_name, same_port


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("leaf1", "leaf1"),
        ("LEAF1", "leaf1.dc1.example.com"),
        ("leaf1.dc1.example.com", "leaf1"),
        ("leaf1.dc1", "leaf1.dc1.example.com."),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_names_of_one_device(one: str, other: str) -> None:
    assert same_name(one, other)
    assert same_name(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("leaf1", "leaf10"),
        ("leaf1.dc1.example.com", "leaf1.dc2.example.com"),
        ("10.0", "10.0.0.1"),
        ("", ""),
        ("", "leaf1"),
    ],
)
def test_names_of_two_devices(one: str, other: str) -> None:
    assert not same_name(one, other)
    assert not same_name(other, one)


@pytest.mark.parametrize(
    ("planned", "port"),
    [
        ("Ethernet1/1", "Eth1/1"),
        ("Et49/1", "Ethernet49/1"),
        ("ethernet 1/1/1", "Eth 1/1/1"),
        ("HundredGigE1/0/1", "Hu1/0/1"),
        ("Twe1/0/1", "TwentyFiveGigE1/0/1"),
        ("XGE1/0/1", "Ten-GigabitEthernet1/0/1"),
        ("Te0/0/0/1", "TenGigE0/0/0/1"),
        ("FH0/0/0/1", "FourHundredGigE0/0/0/1"),
        ("TH0/0/0/1", "TwoHundredGigE0/0/0/1"),
        ("HGE1/0/1", "HundredGigE1/0/1"),
        ("WGE1/0/1", "Twenty-FiveGigE1/0/1"),
        ("XGE0/0/1", "XGigabitEthernet0/0/1"),
        ("Gi1/0/1", "GigE1/0/1"),
        ("Po10", "port-channel10"),
        ("400GE1/0/1", "400ge1/0/1"),
        ("200GE1/0/25:1", "TwoHundredGigE1/0/25:1"),
        ("400GE1/0/8", "FourHundredGigE1/0/8"),
        ("100GE1/0/1", "HGE1/0/1"),
        ("25GE1/0/42", "Twenty-FiveGigE1/0/42"),
        ("FH0/18", "FHGigabitEthernet 0/18"),
        ("TF0/1", "TFGigabitEthernet 0/1"),
        ("Hu0/55", "HundredGigabitEthernet 0/55"),
        ("swp1s0", "SWP1S0"),
        ("et-0/0/0", "et-0/0/0"),
    ],
)
def test_forms_of_one_port(planned: str, port: str) -> None:
    assert same_port(planned, port, None)
    assert same_port(port, "02:00:00:00:00:01", planned)


@pytest.mark.parametrize(
    ("planned", "port"),
    [
        ("Ethernet1/1", "Ethernet1/11"),
        ("Ethernet1/1", "GigabitEthernet1/1"),
        ("Te1/0/1", "Twe1/0/1"),
        ("ge-0/0/0", "GigabitEthernet0/0/0"),
        ("swp1", "Ethernet1"),
        ("HGE1/0/1", "GE1/0/1"),
        ("FH0/0/0/1", "TH0/0/0/1"),
        ("400GE1/0/1", "100GE1/0/1"),
        ("200GE1/0/25:1", "TwoHundredGigE1/0/25:2"),
        ("200GE1/0/25:1", "TwoHundredGigE1/0/25"),
        ("200GE1/0/25", "FourHundredGigE1/0/25"),
        ("GE1/0/1", "10GE1/0/1"),
        ("FH0/18", "TFGigabitEthernet 0/18"),
    ],
)
def test_two_ports(planned: str, port: str) -> None:
    assert not same_port(planned, port, None)


def test_a_node_is_found_with_or_without_its_domain_unless_two_may_be_meant() -> None:
    links = {"eth1": {"switch": "leaf-1", "port": "7"}}
    ports = {"eth1": Port("leaf-1", "7")}
    assert of_node({"gpu-1.example.com": links}, "gpu-1") == ports
    assert of_node({"gpu-1": links}, "gpu-1.example.com") == ports
    assert of_node({"gpu-1.a": links, "gpu-1.b": links}, "gpu-1") == {}
    assert of_node({"gpu-10": links}, "gpu-1") == {}
