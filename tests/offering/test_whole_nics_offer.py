"""The offer of NICs as a whole: rails beside VFs, why nothing is offered, and claims."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.config.file_errors import ConfigError
from nodeagent.dra.device_attributes import published
from nodeagent.facts.model import Function, Snapshot, UnreadValue
from nodeagent.offering.offer import Offer
from tests.offering.test_offer import configured, link, machine, pf, pools

BOTH = "resources: [{kind: vf}, {kind: nic, name: 'whole{rail}'}]\n"
ALONE = "resources: [{kind: nic}]\n"


def said(text: str, snapshot: Snapshot) -> list[str]:
    return [trouble.message for trouble in Offer(configured(text)).troubles(snapshot)]


def guest(*nics: Function) -> Snapshot:
    return machine(*nics, guest=True)


def test_each_nic_of_a_guest_is_a_resource_by_its_rail() -> None:
    made, one, two = Offer(configured(ALONE)), pf(1, vfs=None), pf(2, vfs=None)
    first = {"example.com/nic0": (one.pci_address,), "example.com/nic1": (two.pci_address,)}
    assert pools(made, guest(one, two)) == first
    assert pools(made, guest(two)) == first, "a number stays"
    assert made.troubles(guest(one, two)) == ()


def test_without_a_field_one_resource_holds_all_nics() -> None:
    one, two = pf(1, vfs=0), pf(2, vfs=0)
    assert pools(Offer(configured("resources: [{kind: nic, name: nics}]\n")), machine(one, two)) == {
        "example.com/nics": (one.pci_address, two.pci_address)
    }


def test_nics_whole_and_in_vfs_share_the_numbers_of_the_rails() -> None:
    made, one, two = Offer(configured(BOTH)), pf(1), pf(2, vfs=0)
    assert pools(made, machine(one, two)) == {
        "example.com/nic0": (one.pci_address,),
        "example.com/whole1": (two.pci_address,),
    }
    assert made.rails == {one.pci_address: 0, two.pci_address: 1}
    divided = machine(one, pf(2))
    assert pools(made, divided) == {
        "example.com/nic0": (one.pci_address,),
        "example.com/nic1": (two.pci_address,),
    }, "its VFs have its number, and it is whole no more"


def test_a_nic_that_gets_vfs_by_the_configuration_is_never_whole() -> None:
    text = "vfs: [{select: {netdevs: [ens1np0]}, count: 2}]\n"
    made, one, two = Offer(configured(BOTH + text)), pf(1, vfs=0), pf(2, vfs=0)
    named = pools(made, machine(one, two))
    assert "example.com/whole0" not in named
    assert named["example.com/whole1"] == (two.pci_address,)


def test_a_nic_whose_number_of_vfs_cannot_be_read_waits() -> None:
    made, one = Offer(configured(ALONE)), pf(1, vfs=None)
    unread = (UnreadValue(one.pci_address, "num_vfs", "/sys/x"),)
    assert pools(made, machine(one, unread=unread)) == {}
    assert made.wait(made.config.resources[0]) is not None
    assert list(pools(made, machine(one))) == ["example.com/nic0"]


def _routed(nic: Function) -> Snapshot:
    return replace(machine(nic), links=(link(nic, default_route=True),))


@pytest.mark.parametrize(
    ("text", "snapshot", "sentence"),
    [
        (ALONE, machine(), "nic{rail}: nothing is offered: this machine has no NIC"),
        (
            ALONE,
            _routed(pf(1, vfs=None)),
            "nic{rail}: nothing is offered: the default route of the host goes through 0000:01:00.0 (ens1np0), and "
            "such a NIC is never offered whole",
        ),
        (
            ALONE,
            machine(pf(1)),
            "nic{rail}: nothing is offered: 0000:01:00.0 (ens1np0) has VFs, or gets some by the section vfs, so that "
            "it is not offered whole: kind vf offers its VFs",
        ),
        (
            "resources: [{kind: nic, select: {netdevs: [ens7np0]}}]\n",
            machine(pf(1, vfs=0)),
            "nic{rail}: nothing is offered: no NIC has a name of select.netdevs ens7np0: there are ens1np0",
        ),
        (
            "resources: [{kind: nic, select: {rdma: true}}]\n",
            machine(pf(1, vfs=0, rdma=False)),
            "nic{rail}: nothing is offered: each selected NIC has no RDMA device (select.rdma): 0000:01:00.0 "
            "(ens1np0)",
        ),
        (
            "resources: [{kind: nic, driver: vfio-pci}]\n",
            machine(pf(1, vfs=0)),
            "nic{rail}: no NIC of 0000:01:00.0 is offered: none of them matches driver, or they are under a driver of "
            "user space without an IOMMU",
        ),
        (
            "resources: [{kind: vf}]\n",
            guest(pf(1, vfs=None)),
            "nic{rail}: nothing is offered: 0000:01:00.0 (ens1np0) has no SR-IOV: this is a virtual machine, its host "
            "makes the VFs and passes them through whole. Offer them with kind nic",
        ),
    ],
)
def test_an_empty_offer_says_which_of_its_causes_it_is(text: str, snapshot: Snapshot, sentence: str) -> None:
    assert sentence in said(text, snapshot)


def test_the_wrong_setting_is_named_with_the_right_one() -> None:
    for entry, sentence in (
        ("vfDriver: rdma", "here it is driver; VFs are kind vf"),
        ("select: {vfIndexes: ['0']}", "kind nic offers NICs as a whole; VFs are kind vf"),
        ("vfDevices: true", "leave it out: a NIC as a whole is one device"),
        ("select: {defaultRoute: bond}", "the NIC with the default route is never offered as a whole"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            configured(f"resources: [{{kind: nic, {entry}}}]\n")
    with pytest.raises(ConfigError, match="a NIC is offered twice"):
        configured("resources: [{kind: nic}, {kind: nic, name: other, driver: rdma}]\n")
    assert configured("expect: {nics: 2}\n" + ALONE).expect.nics == 2


def test_claims_have_a_nic_as_a_whole_as_one_device_for_one_claim() -> None:
    text = "resources: [{kind: vf, mode: dra}, {kind: nic, name: 'whole{rail}', mode: dra}]\n"
    facts = machine(pf(1), pf(2, vfs=0))
    vfs, whole = Offer(configured(text)).dra_devices(facts)
    shown = published(whole, facts)
    assert (whole.name, whole.rail, set(whole.hardware)) == ("whole-0000-02-00-0", 1, {"0000:02:00.0"})
    assert shown["attributes"]["whole"] == {"bool": True}
    assert shown["attributes"]["rail"] == {"int": 1}
    assert "pfPciAddress" not in shown["attributes"]
    assert shown.keys() == {"name", "attributes"}, "no capacity: one claim has it"
    assert published(vfs, facts)["attributes"]["whole"] == {"bool": False}


SOME = "select: {pciAddresses: ['0000:02:*', '0000:03:*']}"


@pytest.mark.parametrize(
    "entries",
    [
        f"{{kind: vf, {SOME}}}, {{kind: rdma}}",
        f"{{kind: rdma}}, {{kind: vf, {SOME}}}",
    ],
)
def test_a_nic_with_two_numbers_has_that_of_its_vfs_and_is_named(entries: str) -> None:
    """Otherwise the VFs of nic0 would have the name and the address of rail 1 in pods."""
    made, facts = Offer(configured(f"resources: [{entries}]\n")), machine(pf(1, vfs=0), pf(2), pf(3))
    assert pools(made, facts)["example.com/nic0"] == ("0000:02:00.0",)
    assert (made.rails["0000:02:00.0"], made.rails["0000:03:00.0"]) == (0, 1)
    (said_once,) = [it for it in made.troubles(facts) if "two numbers" in it.message]
    assert not said_once.fatal
    assert "0000:02:00.0" in said_once.message
    assert "one `select`" in said_once.message


def test_claims_have_the_number_of_their_entry() -> None:
    text = f"resources: [{{kind: vf, mode: dra, {SOME}}}, {{kind: rdma, mode: dra}}]\n"
    made = Offer(configured(text)).dra_devices(machine(pf(1, vfs=0), pf(2), pf(3)))
    rails = {device.name: device.rail for device in made}  # type: ignore[attr-defined]
    assert (rails["nic-0000-02-00-0"], rails["rdma-0000-02-00-0"]) == (0, 1)


def test_entries_with_one_selection_have_one_number() -> None:
    facts = machine(pf(1, vfs=0), pf(2), pf(3))
    made = Offer(configured(f"resources: [{{kind: vf, {SOME}}}, {{kind: rdma, {SOME}}}]\n"))
    assert not [it for it in made.troubles(facts) if "two numbers" in it.message]
