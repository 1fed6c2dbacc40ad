"""Shares of HCAs by claim: the capacity, its sum, what a container gets, and what a record of them tells."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.dra import hca_device
from nodeagent.dra.claim_preparation import prepare_claim, renewed
from nodeagent.dra.device_attributes import published
from nodeagent.dra.devices import Occupied, plugin_holders
from nodeagent.dra.hca_device import HcaDevice
from nodeagent.dra.offered import held_by_claims
from nodeagent.dra.prepared_claim import PreparedClaim, gone_device, holdings, is_outdated, without_conflicts
from nodeagent.facts.model import Holding, Rdma, Snapshot
from nodeagent.kinds import Refused
from nodeagent.kinds.hca_shares import HcaShares
from tests.support.dra_node import CONFIG, NODE, claim_of, decoded, devices_of, machine, pfs_of, result
from tests.support.kind_machines import SICK, pf_of, vf_of

TEXT = f"{CONFIG}- {{kind: rdma, mode: dra, shares: 3, select: {{drivers: [mlx5_core]}}}}\n"
FACTS = machine()


def hcas_of(snapshot: Snapshot, text: str = TEXT) -> list[HcaDevice]:
    return [device for device in devices_of(snapshot, text) if isinstance(device, HcaDevice)]


def prepared(
    claim: dict[str, Any], snapshot: Snapshot = FACTS, others: tuple[PreparedClaim, ...] = ()
) -> PreparedClaim:
    return prepare_claim(
        decoded(claim),
        node=NODE,
        devices=devices_of(snapshot, TEXT),
        snapshot=snapshot,
        others=others,
        sequence=len(others) + 1,
    )


def changed(snapshot: Snapshot, address: str, **changes: object) -> Snapshot:
    functions = [replace(it, **changes) if it.pci_address == address else it for it in snapshot.functions]
    return replace(snapshot, functions=tuple(functions))


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(hca_device).failed == 0


def test_an_hca_is_a_device_of_its_own_beside_the_pf_of_its_vfs_with_shares_as_capacity() -> None:
    hca = hcas_of(FACTS)[1]
    made = published(hca, FACTS)
    assert made["name"] == "rdma-0000-41-00-0"
    assert made["allowMultipleAllocations"] is True
    policy = {"default": "1", "validRange": {"min": "0", "max": "3", "step": "1"}}
    assert made["capacity"] == {"shares": {"value": "3", "requestPolicy": policy}}
    attributes = made["attributes"]
    assert attributes["kind"] == {"string": "rdma"}, "the class nic selects VFs by this"
    assert (attributes["rail"], attributes["pciAddress"]) == ({"int": 1}, {"string": "0000:41:00.0"})
    names = [device.name for device in devices_of(FACTS, TEXT)]
    assert len(names) == len(set(names))
    assert {pf.pf.pci_address for pf in pfs_of(FACTS)} == {it.pf.pci_address for it in hcas_of(FACTS)}


def test_three_claims_have_one_hca_at_once_and_a_fourth_is_refused() -> None:
    hca = hcas_of(FACTS)[0]
    records: tuple[PreparedClaim, ...] = ()
    for number in range(3):
        records += (prepared(claim_of(f"c{number}", result(hca, 1, "r")), FACTS, records),)
    nodes = {
        tuple(node.host_path for node in record.edits[f"{record.uid}-0"].device_nodes) for record in records
    }
    assert nodes == {("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")}
    env = dict(records[0].edits[f"{records[0].uid}-0"].env)
    assert env["NODEAGENT_HCAS_R"] == hca.parent
    with pytest.raises(Occupied, match="1 of shares, and other claims hold 3 of 3"):
        prepared(claim_of("c4", result(hca, 1, "r")), FACTS, records)
    kept, dropped = without_conflicts(records)
    assert (len(kept), dropped) == (3, ())
    assert [one.device_ids for one in holdings(records)] == [
        (f"{hca.parent}::{record.uid}.0",) for record in sorted(records, key=lambda record: record.name)
    ]


def test_a_sick_hca_and_one_that_is_gone_are_refused_and_a_whole_nic_keeps_it_from_claims() -> None:
    hca = hcas_of(FACTS)[0]
    for change in ({"health": SICK}, {"missing": True}):
        with pytest.raises(Refused):
            prepared(claim_of("c", result(hca, 1, "r")), changed(FACTS, hca.parent, **change))
    whole = replace(FACTS, holdings=(Holding("ml", "p", "c", "x/nic0", (hca.parent,)),))
    assert [one.pod for one in plugin_holders(hca, whole)] == ["p"]
    shared = replace(FACTS, holdings=(Holding("ml", "p", "c", "x/rdma0", (f"{hca.parent}::2",)),))
    assert list(plugin_holders(pfs_of(FACTS)[0], shared)) == [], "its VFs are free of shares"
    record = prepared(claim_of("c", result(hca, 1, "r")))
    kind = HcaShares("x/rdma0", (hca.parent,), 3)
    assert "still holds its devices" in (held_by_claims(kind.hardware(FACTS), holdings((record,))) or "")


def test_a_record_is_outdated_when_the_device_node_of_its_hca_is_another_one() -> None:
    hca = hcas_of(FACTS)[0]
    record = prepared(claim_of("c", result(hca, 1, "r")))
    assert not is_outdated(record, FACTS)
    moved = changed(FACTS, hca.parent, rdma=Rdma("mlx5_0", "/dev/infiniband/uverbs77"))
    assert is_outdated(record, moved)
    again = renewed(record, devices_of(moved, TEXT), moved)
    assert "/dev/infiniband/uverbs77" in {
        node.host_path for node in again.edits[f"{record.uid}-0"].device_nodes
    }
    assert not is_outdated(again, moved)
    gone = changed(FACTS, hca.parent, missing=True)
    assert gone_device(record, gone, ("nic",)) == hca.parent
    with pytest.raises(Refused, match="not there any more"):
        renewed(record, devices_of(gone, TEXT), gone)


class SharesByClaim(RuleBasedStateMachine):
    """Claims come and go, as a scheduler that only counts would place them, and the agent starts again from their
    records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: tuple[PreparedClaim, ...] = ()
        self.number = 0

    def amounts(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for record in self.records:
            for device in record.devices:
                held[device.hca] = held.get(device.hca, 0) + device.amount
        return held

    @rule(index=st.integers(0, 1), amount=st.integers(1, 4))
    def prepare(self, index: int, amount: int) -> None:
        hca = hcas_of(FACTS)[index]
        self.number += 1
        claim = claim_of(f"c{self.number}", result(hca, amount, "r"))
        before = self.amounts().get(hca.parent, 0)
        try:
            self.records += (prepared(claim, FACTS, self.records),)
        except Refused:
            assert before + amount > 3
        else:
            assert before + amount <= 3

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.records) - 1))
        self.records = self.records[:index] + self.records[index + 1 :]

    @rule()
    def restart(self) -> None:
        kept, dropped = without_conflicts(self.records)
        assert dropped == (), "a claim is lost"
        by_uid = {record.uid: record for record in self.records}
        assert kept == by_uid
        again = [renewed(record, devices_of(FACTS, TEXT), FACTS) for record in self.records]
        assert [record.edits for record in again] == [record.edits for record in self.records]

    @invariant()
    def no_hca_has_more_shares_out_than_it_has(self) -> None:
        assert all(amount <= 3 for amount in self.amounts().values())
        held = [id_ for one in holdings(self.records) for id_ in one.device_ids]
        assert len(held) == len(set(held)) == sum(self.amounts().values())


TestSharesByClaim = SharesByClaim.TestCase


HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"
WHOLE = HEAD + "- {kind: nic, mode: dra}\n"
NIC = replace(pf_of(0), num_vfs=0)
UNDIVIDED = Snapshot(functions=(NIC,), holdings=())
VFS = tuple(vf_of(pf_of(0), number) for number in range(2))
DIVIDED = replace(UNDIVIDED, functions=(pf_of(0), *VFS))
FORMER = replace(UNDIVIDED, functions=(NIC, *(replace(vf, missing=True, health=SICK) for vf in VFS)))


@pytest.mark.parametrize(
    ("before", "first", "after", "second"),
    [
        (UNDIVIDED, WHOLE, UNDIVIDED, HEAD + "- {kind: rdma, mode: dra}\n"),
        (UNDIVIDED, WHOLE, DIVIDED, HEAD + "- {kind: vf, mode: dra}\n"),
        (UNDIVIDED, WHOLE, DIVIDED, HEAD + "- {kind: vf, mode: dra, vfDevices: true}\n"),
        (UNDIVIDED, HEAD + "- {kind: rdma, mode: dra}\n", UNDIVIDED, WHOLE),
        (DIVIDED, HEAD + "- {kind: vf, mode: dra}\n", FORMER, WHOLE),
    ],
    ids=["its shares", "its VFs", "each VF", "whole after shares", "whole after VFs"],
)
def test_a_nic_that_a_claim_has_whole_and_its_parts_are_never_of_two_claims(
    before: Snapshot, first: str, after: Snapshot, second: str
) -> None:
    """The configuration or the hardware has changed, and the facts of what claims hold come a moment later."""

    def prepare(facts: Snapshot, text: str, *others: PreparedClaim) -> PreparedClaim:
        devices = devices_of(facts, text)
        claim = decoded(claim_of(f"c{len(others)}", result(devices[0], 1, "r")))
        return prepare_claim(
            claim, node=NODE, devices=devices, snapshot=facts, others=others, sequence=len(others) + 1
        )

    one = prepare(before, first)
    with pytest.raises(Occupied, match=r"the claim default/c0 has .* is the whole NIC"):
        prepare(after, second, one)
    prepare(after, second)


def test_parts_of_one_nic_are_of_as_many_claims_as_there_are() -> None:
    text = HEAD + "- {kind: vf, mode: dra}\n- {kind: rdma, mode: dra}\n"
    records: tuple[PreparedClaim, ...] = ()
    for number, device in enumerate([*devices_of(DIVIDED, text)] * 2):
        claim = decoded(claim_of(f"c{number}", result(device, 1, "r")))
        records += (
            prepare_claim(
                claim, node=NODE, devices=devices_of(DIVIDED, text), snapshot=DIVIDED, others=records,
                sequence=number + 1,
            ),
        )  # fmt: skip
    assert len(records) == 4
