"""Names of switches and adapters, from descriptions of any content and from a map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.infiniband.node_names import NameMapError, adapter_name, parse_name_map, switch_name


@pytest.mark.parametrize(
    ("description", "name"),
    [
        (b"MF0;su1-leaf0:MQM9700/U1", "su1-leaf0"),
        (b"MF0;switch-6a91b0:MQM8700/U1", "switch-6a91b0"),
        (b"MF0;director:CS8500/L03/U1", "director/L03/U1"),
        (b"MF0;director:CS8500/S12/U2", "director/S12/U2"),
        (b"MF0;xdr:Q3400/U3", "xdr/U3"),
        (b"Quantum-2 Mellanox Technologies", None),
        (b"Quantum Mellanox Technologies", None),
        (b"Infiniscale-IV Mellanox Technologies", None),
        (b"MF0;:MQM9700/U1", None),
        (b"", None),
        (b"   ", None),
        (b"leaf of rack 7", "leaf of rack 7"),
        (b"\x1b[2Jleaf\xff", "\\x1b[2Jleaf\\xff"),
    ],
)
def test_the_name_of_a_switch_is_in_its_description(description: bytes, name: str | None) -> None:
    assert switch_name(description) == name


@pytest.mark.parametrize(
    ("description", "name"),
    [
        (b"gpu-001 mlx5_0", "gpu-001 mlx5_0"),
        (b"MT4129 ConnectX7 Mellanox Technologies", None),
        (b"MF0;su1-leaf0:MQM9700/U1", "MF0;su1-leaf0:MQM9700/U1"),
    ],
)
def test_an_adapter_never_gets_the_name_of_a_switch(description: bytes, name: str | None) -> None:
    assert adapter_name(description) == name


@given(st.binary(max_size=64))
def test_any_description_is_a_printable_line_or_no_name(description: bytes) -> None:
    for name in (switch_name(description), adapter_name(description)):
        assert name is None or (name and name.isprintable())


def test_a_map_has_the_form_of_opensm() -> None:
    text = b'# switches\n\n0xb83fd20300aa0000 "su1-leaf0"\n  b83fd20300aa0001\t"su1 leaf1"  # rail 1\r\n'
    assert parse_name_map(text) == {0xB83FD20300AA0000: "su1-leaf0", 0xB83FD20300AA0001: "su1 leaf1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'0x1 "a"\nleaf-1\n', "line 2 is not a GUID"),
        (b'0x1 ""\n', "line 1: a name has 1 to 255"),
        (b'0x1 "a"\n0x1 "b"\n', "line 2: the GUID 1 has another name"),
        (b'0x11112222333344445 "a"\n', "line 1 is not a GUID"),
    ],
)
def test_an_error_in_a_map_names_the_line(text: bytes, reason: str) -> None:
    with pytest.raises(NameMapError, match=reason):
        parse_name_map(text)


@given(st.binary(max_size=200))
def test_any_octets_are_a_map_or_an_error_of_it(text: bytes) -> None:
    try:
        names = parse_name_map(text)
    except NameMapError:
        return
    assert all(name.isprintable() for name in names.values())
