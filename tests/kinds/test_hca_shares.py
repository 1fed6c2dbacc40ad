"""Shares of HCAs: which are offered, which are preferred, and the answer of Allocate."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.facts.model import Function, Holding, HostPaths, Link, Rdma, Snapshot
from nodeagent.kinds import Refused, hca_shares
from nodeagent.kinds.hca_shares import HcaShares, share_ids
from nodeagent.kinds.vf import VfPool
from tests.support.kind_machines import SICK, answer_of, dgx, pf_of, vf_of

PF = pf_of(0)
OTHER = pf_of(1)
RDMA0 = HcaShares("x.com/rdma0", (PF.pci_address,), shares=4)
BOTH = HcaShares("x.com/rdma", (PF.pci_address, OTHER.pci_address), shares=4)


def machine(*functions: Function, holdings: tuple[Holding, ...] = ()) -> Snapshot:
    return Snapshot(functions=tuple(sorted(functions, key=lambda it: it.pci_address)), holdings=holdings)


def held(resource: str, *ids: str) -> tuple[Holding, ...]:
    return (Holding("ml", "job-0", "main", resource, ids),)


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(hca_shares).failed == 0


def test_the_shares_of_an_hca_are_one_value_with_its_numa_node_and_health() -> None:
    (devices,) = RDMA0.devices(dgx())
    assert devices.parent == PF.pci_address
    assert devices.ids == tuple(f"0000:40:00.0::{number}" for number in range(4))
    assert devices.numa_nodes == (0,)
    assert devices.health.allocatable
    sick = RDMA0.devices(machine(replace(PF, health=SICK, numa_node=None)))
    assert (sick[0].health, sick[0].numa_nodes) == (SICK, ())


def test_a_pf_without_an_rdma_device_has_no_share() -> None:
    assert RDMA0.devices(machine(replace(PF, rdma=None))) == ()
    assert RDMA0.hardware(machine(replace(PF, rdma=None))) == {}


def test_a_container_gets_the_verbs_and_the_connection_manager_and_no_management_device() -> None:
    full = Rdma("mlx5_0", "/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/issm0")
    snapshot = machine(replace(PF, rdma=full))
    answer = RDMA0.allocate(snapshot, ["0000:40:00.0::3", "0000:40:00.0::1"])
    paths = ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
    assert [(node.host_path, node.container_path) for node in answer.device_nodes] == [
        (path, path) for path in paths
    ]
    env = dict(answer.env)
    assert env["PCIDEVICE_X_COM_RDMA0"] == "0000:40:00.0"
    assert env["PCIDEVICE_X_COM_RDMA0_INFO"] == (
        '{"0000:40:00.0":{"generic":{"deviceID":"0000:40:00.0"},"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm",'
        '"rdma_dev":"mlx5_0","uverbs":"/dev/infiniband/uverbs0"}}}'
    )
    managed = replace(RDMA0, umad=True, rdma_cm=False).allocate(snapshot, ["0000:40:00.0::0"])
    assert [node.host_path for node in managed.device_nodes] == [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/umad0",
        "/dev/infiniband/issm0",
    ]


def test_three_containers_have_one_hca_at_once_and_a_fourth_share_is_left() -> None:
    snapshot, free = machine(PF), list(share_ids(PF.pci_address, 4))
    nodes = set()
    for pod in range(3):
        (id_,) = RDMA0.prefer(snapshot, free, [], 1)
        nodes.add(tuple(node.host_path for node in RDMA0.allocate(snapshot, [id_]).device_nodes))
        free.remove(id_)
        holdings = (*(snapshot.holdings or ()), Holding("ml", f"p{pod}", "c", RDMA0.resource, (id_,)))
        snapshot = replace(snapshot, holdings=holdings)
    assert nodes == {("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")}
    assert RDMA0.free(snapshot) == {PF.pci_address: 1}


def test_shares_of_a_request_are_of_as_many_hcas_as_possible() -> None:
    snapshot = machine(PF, OTHER)
    everything = [id_ for devices in BOTH.devices(snapshot) for id_ in devices.ids]
    chosen = BOTH.prefer(snapshot, everything, [], 3)
    assert Counter(id_.partition("::")[0] for id_ in chosen) == {PF.pci_address: 2, OTHER.pci_address: 1}
    must = ["0000:40:00.0::2"]
    assert BOTH.prefer(snapshot, everything, must, 2) == [*must, "0000:41:00.0::0"]
    # The HCA with more free shares, and the nearer one of two that are equal.
    assert BOTH.prefer(snapshot, everything[1:], [], 1) == ["0000:41:00.0::0"]
    assert BOTH.prefer(snapshot, everything, [], 1, (OTHER,)) == ["0000:41:00.0::0"]
    assert len(BOTH.prefer(snapshot, everything, [], 8)) == 8


def test_what_no_container_can_have_is_refused_and_shown() -> None:
    snapshot = machine(replace(PF, health=SICK), OTHER)
    everything = [id_ for devices in BOTH.devices(snapshot) for id_ in devices.ids]
    assert isinstance(answer_of(lambda: BOTH.prefer(snapshot, everything, [], 5)), Refused)
    with pytest.raises(Refused, match="unhealthy"):
        BOTH.allocate(snapshot, ["0000:40:00.0::0"])
    for unknown in ("0000:40:00.0::4", "0000:40:00.0", "0000:42:00.0::0"):
        with pytest.raises(Refused, match="has no device"):
            BOTH.allocate(snapshot, [unknown])


def test_shares_and_vfs_of_one_pf_are_free_of_each_other() -> None:
    vf = vf_of(PF, 0)
    pool = VfPool("x.com/nic0", (PF.pci_address,))
    shared = machine(PF, vf, holdings=held(RDMA0.resource, "0000:40:00.0::0"))
    assert pool.devices(shared)[0].health.allocatable
    taken = machine(PF, vf, holdings=held(pool.resource, vf.pci_address))
    assert RDMA0.devices(taken)[0].health.allocatable
    assert RDMA0.hardware(taken).keys().isdisjoint(pool.hardware(taken))


def test_a_pod_with_the_whole_nic_takes_all_shares_and_a_share_takes_the_whole_nic() -> None:
    whole = VfPool("x.com/nic0", (PF.pci_address,), whole=True)
    nic = replace(PF, num_vfs=0)
    assert whole.hardware(machine(nic)).keys() == RDMA0.hardware(machine(nic)).keys()
    taken = machine(nic, holdings=held(whole.resource, PF.pci_address))
    assert not RDMA0.devices(taken)[0].health.allocatable
    with pytest.raises(Refused, match="is held by ml/job-0"):
        RDMA0.allocate(taken, ["0000:40:00.0::0"])
    shared = machine(nic, holdings=held(RDMA0.resource, "0000:40:00.0::0"))
    assert not whole.devices(shared)[0].health.allocatable


def test_the_exclusive_rdma_mode_is_an_obstacle_where_an_hca_is_shared() -> None:
    exclusive = replace(RDMA0, exclusive=True)
    assert "rdma system set netns shared" in (exclusive.obstacle(machine(PF)) or "")
    assert exclusive.obstacle(machine(replace(PF, rdma=None))) is None
    assert RDMA0.obstacle(machine(PF)) is None


class SharesInUse(RuleBasedStateMachine):
    """A kubelet that asks, allocates and lists its pods, an agent that starts again, and HCAs that fall ill."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot()
        self.kind = RDMA0
        self.pods: dict[int, tuple[str, ...]] = {}
        self.number = 0

    @initialize(hcas=st.integers(1, 4), shares=st.integers(1, 5))
    def build(self, hcas: int, shares: int) -> None:
        pfs = tuple(pf_of(rail) for rail in range(hcas))
        links = tuple(
            Link(pf.netdev or "", pf.pci_address, None, True, True, "up", 400_000, 9000) for pf in pfs
        )
        self.snapshot = Snapshot(functions=pfs, links=links, paths=HostPaths(rdma_cm=True))
        self.kind = HcaShares("x.com/rdma", tuple(pf.pci_address for pf in pfs), shares)

    def known(self) -> Snapshot:
        holdings = tuple(
            Holding("ml", f"p{number}", "c", self.kind.resource, ids) for number, ids in self.pods.items()
        )
        return replace(self.snapshot, holdings=holdings)

    def taken(self) -> set[str]:
        return {id_ for ids in self.pods.values() for id_ in ids}

    @rule(size=st.integers(1, 6), lagging=st.booleans())
    def allocate(self, size: int, lagging: bool) -> None:
        """``lagging``: podresources still lists nothing; the kubelet's list of available devices decides."""
        known = replace(self.snapshot, holdings=()) if lagging else self.known()
        available = [
            id_
            for devices in self.kind.devices(known)
            if devices.health.allocatable
            for id_ in devices.ids
            if id_ not in self.taken()
        ]
        chosen = answer_of(lambda: tuple(self.kind.prefer(known, available, [], size)))
        if isinstance(chosen, Refused):
            assert len(available) < size, chosen
            return
        assert len(set(chosen)) == size
        assert set(chosen) <= set(available)
        granted = {node.host_path for node in self.kind.allocate(known, chosen).device_nodes}
        hcas = {id_.partition("::")[0] for id_ in chosen}
        wanted = {
            pf.rdma.uverbs for pf in self.snapshot.functions if pf.pci_address in hcas and pf.rdma is not None
        }
        assert granted == {*wanted, "/dev/infiniband/rdma_cm"}
        self.pods[self.number] = chosen
        self.number += 1

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    @rule(data=st.data())
    def change_health(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.snapshot.functions) - 1))
        functions = list(self.snapshot.functions)
        health = pf_of(0).health if functions[index].health is SICK else SICK
        functions[index] = replace(functions[index], health=health)
        self.snapshot = replace(self.snapshot, functions=tuple(functions))

    @rule()
    def restart(self) -> None:
        """Another agent makes the kind from the same configuration, and reads the machine anew."""
        self.kind = HcaShares(self.kind.resource, self.kind.pfs, self.kind.shares)

    @invariant()
    def no_share_is_in_two_pods_and_each_one_is_on_the_list(self) -> None:
        held = [id_ for ids in self.pods.values() for id_ in ids]
        assert len(held) == len(set(held))
        assert set(held) <= {id_ for devices in self.kind.devices(self.known()) for id_ in devices.ids}

    @invariant()
    def no_hca_has_more_containers_than_shares_and_podresources_accounts_for_each(self) -> None:
        held = Counter(id_.partition("::")[0] for id_ in self.taken())
        assert all(count <= self.kind.shares for count in held.values())
        left = {
            pf.pci_address: self.kind.shares - held[pf.pci_address] if pf.health.allocatable else 0
            for pf in self.snapshot.functions
        }
        assert self.kind.free(self.known()) == left


TestSharesInUse = SharesInUse.TestCase
