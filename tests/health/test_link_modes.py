"""A port that is in another mode than the other NICs of its kind."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import Function, Link
from nodeagent.health.link_modes import ports_in_another_mode
from tests.support.kind_machines import gpu_of, pf_of

MODES = ("ethernet", "ethernet", "ethernet", "infiniband")


def hall(*modes: str, down: tuple[int, ...] = (3,)) -> tuple[list[Function], list[Link]]:
    pfs = [replace(pf_of(rail), link_type=mode) for rail, mode in enumerate(modes)]
    links = [
        Link(pf.netdev or "", pf.pci_address, None, True, rail not in down, "up", None, None)
        for rail, pf in enumerate(pfs)
    ]
    return pfs, links


def test_a_port_left_in_infiniband_mode_is_named_with_the_remedy() -> None:
    pfs, links = hall(*MODES)
    ((pf, sentence),) = ports_in_another_mode(pfs, links, ())
    assert pf is pfs[3]
    assert sentence == (
        "0000:43:00.0 (ibp3) is in InfiniBand mode and has no link, and the other 3 NICs of its model are in Ethernet "
        "mode: mlxconfig -d 0000:43:00.0 set LINK_TYPE_P1=2 and reset the NIC (mlxfwreset), or reboot"
    )


def test_an_ethernet_port_in_an_infiniband_hall_too_and_a_second_port_is_p2() -> None:
    pfs, links = hall("infiniband", "infiniband", "infiniband", "ethernet")
    pfs[3] = replace(pfs[3], pci_address="0000:43:00.1")
    links[3] = replace(links[3], pci_address="0000:43:00.1")
    ((_, sentence),) = ports_in_another_mode(pfs, links, ())
    assert "0000:43:00.1 set LINK_TYPE_P2=1" in sentence


@pytest.mark.parametrize(
    ("modes", "down"),
    [
        (MODES, ()),  # it works
        (MODES, (2, 3)),  # two others that work are no evidence
        (("ethernet", "ethernet", "infiniband", "infiniband"), (2,)),
        (("ethernet",) * 4, (3,)),
    ],
)
def test_a_port_that_works_or_that_is_not_alone_is_not_named(
    modes: tuple[str, ...], down: tuple[int, ...]
) -> None:
    assert ports_in_another_mode(*hall(*modes, down=down), ()) == ()


def test_storage_in_infiniband_beside_ethernet_for_compute_is_correct() -> None:
    """The compute NICs are behind the PCIe switches of the GPUs."""
    pfs, links = hall(*MODES)
    assert ports_in_another_mode(pfs, links, [gpu_of(rail, root=rail) for rail in range(3)]) == ()


def test_another_model_is_no_twin() -> None:
    pfs, links = hall(*MODES)
    pfs[3] = replace(pfs[3], device="1023")
    assert ports_in_another_mode(pfs, links, ()) == ()
