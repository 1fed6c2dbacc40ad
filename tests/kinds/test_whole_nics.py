"""NICs as a whole: which are offered, beside VFs of the same PF in any order of events, and what a container gets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.facts.model import Function, Holding, Link, Snapshot
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kinds.vf import VfPool
from nodeagent.kubelet.removed_devices import FREE_S, RemovedDevices
from nodeagent.offering.offer import Offer
from tests.support.examples import examples
from tests.support.kind_machines import SICK, pf_of, vf_of

CONFIG = load(
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\n"
    "resources: [{kind: vf}, {kind: nic, name: 'whole{rail}'}]\n",
    name="whole.yaml",
)
NIC = replace(pf_of(0), num_vfs=0)
GONE: dict[str, object] = {"missing": True, "health": SICK}
WHOLE0 = VfPool("x/whole0", (NIC.pci_address,), whole=True)


def machine(*functions: Function, links: tuple[Link, ...] = (), held: tuple[Holding, ...] = ()) -> Snapshot:
    ordered = tuple(sorted(functions, key=lambda it: it.pci_address))
    return Snapshot(functions=ordered, links=links, holdings=held)


def offered(kind: DeviceKind, snapshot: Snapshot) -> list[str]:
    return [name for devices in kind.devices(snapshot) for name in devices.ids]


def test_a_device_is_a_nic_by_its_address_and_its_own_parent() -> None:
    (device,) = WHOLE0.devices(machine(NIC))
    assert (device.parent, device.ids) == (NIC.pci_address, (NIC.pci_address,))
    assert device.numa_nodes == ((NIC.numa_node,) if NIC.numa_node is not None else ())
    assert WHOLE0.hardware(machine(NIC)) == {NIC.pci_address: f"NIC {NIC.pci_address}"}
    assert WHOLE0.devices(machine(replace(NIC, health=SICK)))[0].health is SICK


@pytest.mark.parametrize("num_vfs", [0, None], ids=["a PF without VFs", "a function in a guest"])
def test_a_function_without_vfs_is_a_whole_nic(num_vfs: int | None) -> None:
    nic = replace(NIC, num_vfs=num_vfs, total_vfs=num_vfs and 16)
    assert offered(WHOLE0, machine(nic)) == [nic.pci_address]


def test_a_nic_with_vfs_or_that_the_host_needs_or_under_uio_is_never_offered() -> None:
    link = Link("ens1", NIC.pci_address, None, True, True, "up", 400_000, 9000, default_route=True)
    assert offered(WHOLE0, machine(NIC, links=(link,))) == []
    assert offered(WHOLE0, machine(NIC, links=(replace(link, bonded=True),))) == []
    of_node = replace(link, default_route=False, node_address=True)
    assert offered(WHOLE0, machine(NIC, links=(of_node,))) == []
    assert offered(WHOLE0, machine(replace(NIC, num_vfs=4))) == []
    assert offered(WHOLE0, machine(NIC, vf_of(NIC, 0))) == [], "its files are older than its VFs"
    assert offered(WHOLE0, machine(replace(NIC, driver="uio_pci_generic"))) == []
    assert offered(WHOLE0, machine(vf_of(NIC, 0))) == []


def test_a_nic_whose_netdev_is_in_a_pod_keeps_its_id() -> None:
    assert offered(WHOLE0, machine(replace(NIC, netdev=None))) == [NIC.pci_address]
    assert offered(WHOLE0, machine(replace(NIC, missing=True))) == [NIC.pci_address]


def test_a_container_gets_what_it_gets_of_a_vf() -> None:
    nic, vf = NIC, replace(NIC, parent="0000:3f:00.0")
    whole = WHOLE0.allocate(machine(nic), [nic.pci_address])
    of_vf = VfPool("x/whole0", ("0000:3f:00.0",)).allocate(
        machine(vf, replace(NIC, pci_address="0000:3f:00.0")), [vf.pci_address]
    )
    assert (whole.env, whole.device_nodes) == (of_vf.env, of_vf.device_nodes)
    assert any(node.host_path.startswith("/dev/infiniband/uverbs") for node in whole.device_nodes)
    (ours,), (theirs,) = whole.device_info, of_vf.device_info
    assert ours.name == theirs.name
    content = json.loads(theirs.text)
    del content["pci"]["pf-pci-address"]
    assert json.loads(ours.text) == content


def test_with_attach_a_container_waits_for_its_nic_unless_the_kernel_hides_which_one_it_is() -> None:
    attached, nic = replace(WHOLE0, attach=True), replace(NIC, link_type="ethernet")
    assert attached.attaches
    assert attached.allocate(machine(nic), [nic.pci_address]).cdi_devices == (
        f"nodeagent.io/attached={nic.pci_address}",
    )
    virtio = replace(nic, driver="virtio-pci")
    assert attached.allocate(machine(virtio), [nic.pci_address]).cdi_devices == ()


def test_the_message_of_a_shortage_speaks_of_nics() -> None:
    with pytest.raises(Refused, match="x/whole0: 2 NICs were requested and 1 are available"):
        WHOLE0.prefer(machine(NIC), [NIC.pci_address], [], 2)


class WholeAndDivided(RuleBasedStateMachine):
    """One PF under both kinds: VFs come and go, pods take and give back, the route and the bus change."""

    def __init__(self) -> None:
        super().__init__()
        self.vfs = 0
        self.routed = False
        self.missing = False
        self.away = False
        self.held: dict[str, Holding] = {}
        self.listed: set[str] = set()
        self.now = 0.0
        self.offer, self.removed = Offer(CONFIG), RemovedDevices()
        self.offer.kinds(machine(replace(NIC, num_vfs=2), vf_of(NIC, 0), vf_of(NIC, 1)))

    def snapshot(self) -> Snapshot:
        netdev = None if self.away else NIC.netdev
        nic = replace(NIC, num_vfs=self.vfs, netdev=netdev)
        vfs = [
            replace(vf_of(NIC, index), **(GONE if self.missing or index >= self.vfs else {}))
            for index in range(2)
        ]
        nic = replace(nic, **(GONE if self.missing else {}))
        known = [vf for vf in vfs if not vf.missing or vf.pci_address in self.listed]
        link = Link("ens1", NIC.pci_address, None, True, True, "up", 400_000, 9000, default_route=self.routed)
        links = () if self.away or self.missing else (link,)
        return machine(nic, *known, links=links, held=tuple(self.held.values()))

    def devices(self) -> Iterator[tuple[str, str, bool]]:
        snapshot = self.snapshot()
        for kind in self.offer.kinds(snapshot):
            for device in kind.devices(snapshot):
                yield kind.resource, device.ids[0], device.health.allocatable

    @rule(count=st.integers(0, 2))
    def make_vfs(self, count: int) -> None:
        self.vfs = count

    @rule(routed=st.booleans())
    def route(self, routed: bool) -> None:
        self.routed = routed

    @rule(missing=st.booleans())
    def pull(self, missing: bool) -> None:
        self.missing = missing

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        free = [(name, id_) for name, id_, healthy in self.devices() if healthy and id_ not in self.held]
        if free:
            name, id_ = data.draw(st.sampled_from(free))
            kind = next(kind for kind in self.offer.kinds(self.snapshot()) if kind.resource == name)
            kind.allocate(self.snapshot(), [id_])
            self.held[id_] = Holding("default", f"pod-{id_[-1]}", "main", name, (id_,))
            self.away |= name == "x/whole0"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.held)))
        self.away &= self.held.pop(id_).resource != "x/whole0"

    @rule(seconds=st.sampled_from((1.0, FREE_S)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def a_nic_has_one_owner(self) -> None:
        found = list(self.devices())
        self.listed |= {id_ for _, id_, _ in found}
        whole = [id_ for name, id_, healthy in found if name == "x/whole0" and healthy]
        parts = [id_ for name, id_, healthy in found if name == "x/nic0" and healthy]
        assert not (whole and parts), "it is offered twice"
        assert not (whole and self.vfs and not self.missing)
        assert not (whole and self.routed and not self.away)
        if NIC.pci_address in self.held:
            assert parts == [], "a pod has the whole NIC"
        elif self.held:
            assert whole == [], "a pod has a VF"

    @invariant()
    def a_held_device_stays_on_the_list_and_only_a_held_nic_is_away(self) -> None:
        self.removed.take(self.snapshot(), self.now, {NIC.pci_address})
        assert not self.removed.gone & self.held.keys()
        if self.away and not self.vfs and not self.missing:
            assert (("x/whole0", NIC.pci_address, True)) in set(self.devices()), "a moved NIC is healthy"


TestWholeAndDivided = WholeAndDivided.TestCase
TestWholeAndDivided.settings = settings(max_examples=examples(50), stateful_step_count=20)


def test_a_nic_that_got_vfs_leaves_the_list_once_it_is_free() -> None:
    removed, divided = RemovedDevices(), machine(replace(NIC, num_vfs=1), vf_of(NIC, 0))
    held = replace(divided, holdings=(Holding("default", "worker", "main", "x/whole0", (NIC.pci_address,)),))
    whole = {NIC.pci_address}
    assert removed.take(machine(NIC), 0.0, whole) == frozenset()
    assert removed.take(held, 0.0, whole) == removed.take(held, FREE_S, whole) == frozenset()
    assert removed.take(divided, FREE_S, whole) == frozenset()
    assert removed.take(divided, 2 * FREE_S, whole) == whole
    assert removed.take(machine(NIC), 3 * FREE_S, whole) == frozenset()
    assert removed.gone == frozenset()


@pytest.mark.parametrize(("seen", "whole"), [(True, set()), (False, {NIC.pci_address})])
def test_a_pf_with_vfs_that_was_never_listed_as_a_whole_leaves_no_list(seen: bool, whole: set[str]) -> None:
    removed, divided = RemovedDevices(), machine(replace(NIC, num_vfs=1), vf_of(NIC, 0))
    if seen:
        removed.take(machine(NIC), 0.0, whole)
    assert removed.take(divided, 1.0, whole) == removed.take(divided, 1.0 + FREE_S, whole) == frozenset()
    assert removed.gone == frozenset()
