"""Permanent MAC addresses are read once for a netdev, and a NIC that moved is not missing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nodeagent.facts.card_identity import ethernet_mac, mac_and_guid, valid_identity
from nodeagent.facts.model import Link, Rdma
from nodeagent.sources.nic_identity import NicIdentities
from tests.offering.test_offer import link, pf, vf_of

ONE, TWO = pf(1), pf(2)
MAC = "b8:3f:d2:00:00:01"
IPOIB = "80:00:00:48:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:01"


class Kernel:
    """The answers of the kernel, and how often it was asked."""

    def __init__(self, **macs: str) -> None:
        self.macs: dict[str, str | None] = dict(macs)
        self.reads = 0

    async def read(self) -> Mapping[str, str | None]:
        self.reads += 1
        return dict(self.macs)


async def test_the_kernel_is_asked_at_the_start_and_for_a_new_netdev() -> None:
    kernel = Kernel(**{ONE.pci_address: MAC})
    nics = NicIdentities(kernel.read)
    links = (replace(link(ONE), mac="02:00:00:00:00:01"),)  # a bond has changed it
    await nics.start()
    assert [one.permanent_mac for one in nics.identified(links)] == [MAC]
    assert not await nics.learn(links)
    assert not await nics.learn(links)
    assert kernel.reads == 1
    kernel.macs[ONE.pci_address] = "b8:3f:d2:00:00:99"
    replaced = (replace(links[0], mac="b8:3f:d2:00:00:99"),)
    assert await nics.learn(replaced)
    assert [one.permanent_mac for one in nics.identified(replaced)] == ["b8:3f:d2:00:00:99"]
    assert kernel.reads == 2


async def test_a_kernel_that_does_not_answer_is_asked_again() -> None:
    kernel = Kernel()
    nics = NicIdentities(kernel.read)
    await nics.start()
    assert not await nics.learn((link(ONE),))
    assert nics.identified((link(ONE),))[0].permanent_mac is None
    kernel.macs[ONE.pci_address] = MAC
    assert await nics.learn((link(ONE),))
    assert nics.identified((link(ONE),))[0].permanent_mac == MAC


async def test_a_recorded_machine_has_its_current_addresses() -> None:
    nics = NicIdentities()
    assert not await nics.learn((link(ONE),))
    assert nics.identified((replace(link(ONE), mac=MAC.upper()),))[0].permanent_mac == MAC


def test_an_address_of_ipoib_or_of_zeros_identifies_no_card() -> None:
    assert [ethernet_mac(mac) for mac in (None, "", IPOIB, "00:00:00:00:00:00", MAC)] == [None] * 4 + [MAC]


def test_a_nic_that_moved_or_is_forgotten_is_not_missing() -> None:
    nics = NicIdentities()
    known = (ONE, vf_of(ONE, 0))
    macs = {ONE.pci_address: MAC}
    at_two = (replace(link(TWO), permanent_mac=MAC),)
    assert nics.known(known, macs, (TWO,), at_two, first=False) == ((), {TWO.pci_address: MAC})
    other = (replace(link(TWO), permanent_mac="b8:3f:d2:00:00:02"),)
    kept, found = nics.known(known, macs, (TWO,), other, first=False)
    assert kept == known
    assert found == {ONE.pci_address: MAC, TWO.pci_address: "b8:3f:d2:00:00:02"}
    nics.forgotten.add(ONE.pci_address)
    assert nics.known(known, macs, (TWO,), other, first=False)[0] == ()


def test_an_infiniband_nic_is_its_node_guid_with_and_without_a_netdev() -> None:
    guid = "0c42:a103:0016:054c"
    one, two = (
        replace(nic, link_type="infiniband", rdma=Rdma("mlx5_0", node_guid=guid)) for nic in (ONE, TWO)
    )
    links: tuple[Link, ...] = ()
    for links in ((), (replace(link(TWO), permanent_mac=None, mac=IPOIB),)):
        assert NicIdentities().known((one,), {one.pci_address: guid}, (two,), links, first=True) == (
            (),
            {two.pci_address: guid},
        )
    unread = replace(two, rdma=Rdma("mlx5_0", node_guid="0000:0000:0000:0000"))
    kept, found = NicIdentities().known((one,), {one.pci_address: guid}, (unread,), links, first=True)
    assert (kept, found) == ((one,), {one.pci_address: guid})


def test_a_stored_identity_of_ipoib_is_none() -> None:
    wanted = (None, "", IPOIB, MAC, "0c42:a103:0016:054c", "0000:0000:0000:0000")
    assert [valid_identity(text) for text in wanted] == [None, None, None, MAC, "0c42:a103:0016:054c", None]
    assert mac_and_guid(MAC) == (MAC, None)


def test_the_vfs_of_an_earlier_agent_stay_only_with_a_pf_that_is_missing() -> None:
    nics = NicIdentities()
    known = (ONE, vf_of(ONE, 0))
    assert nics.known(known, {}, (ONE,), (), first=True)[0] == (ONE,)
    assert nics.known(known, {}, (ONE,), (), first=False)[0] == known
    assert nics.known(known, {}, (), (), first=True)[0] == known
