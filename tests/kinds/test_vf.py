"""VFs: which are offered, which are preferred, and the answer of Allocate, name for name."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, DeviceNode, Function, Holding, Link, Snapshot
from nodeagent.kinds import Refused
from nodeagent.kinds.vf import VfPool
from nodeagent.kubelet.cdi_files import needed_by
from tests.support.kind_machines import SICK, answer_of, as_json, dgx, pf_of, vf_of

RESOURCE = "nvidia-dgx-h100/nic0"
PF = pf_of(0)
NIC0 = VfPool(RESOURCE, (PF.pci_address,))


def machine(*functions: Function, links: tuple[Link, ...] = ()) -> Snapshot:
    return Snapshot(functions=tuple(sorted(functions, key=lambda it: it.pci_address)), links=links)


def offered(kind: VfPool, snapshot: Snapshot) -> list[str]:
    return [name for devices in kind.devices(snapshot) for name in devices.ids]


def addresses(*vfs: Function) -> list[str]:
    return [vf.pci_address for vf in vfs]


def test_a_device_is_a_vf_by_its_address_with_its_pf_as_parent() -> None:
    snapshot = dgx()
    devices = NIC0.devices(snapshot)
    assert [it.ids for it in devices[:2]] == [("0000:40:00.1",), ("0000:40:00.2",)]
    assert len(devices) == 8
    assert {it.parent for it in devices} == {"0000:40:00.0"}
    assert {it.numa_nodes for it in devices} == {(0,)}
    lost = machine(PF, vf_of(PF, 0, health=SICK, numa_node=None))
    assert NIC0.devices(lost)[0].health is SICK
    assert NIC0.devices(lost)[0].numa_nodes == ()


def test_vfs_of_the_default_route_of_a_lost_pf_or_under_uio_are_never_offered() -> None:
    vf = vf_of(PF, 0)
    assert offered(NIC0, machine(PF, vf)) == [vf.pci_address]
    link = Link("ibp0", PF.pci_address, None, True, True, "up", 400_000, 9000, default_route=True)
    assert offered(NIC0, machine(PF, vf, links=(link,))) == []
    assert offered(NIC0, machine(vf)) == []
    assert offered(NIC0, machine(PF)) == []
    assert offered(NIC0, machine(PF, replace(vf, driver="uio_pci_generic"))) == []


def test_vf_indexes_restrict_a_pool() -> None:
    kind = structs.replace(NIC0, vf_indexes=(range(2), range(6, 7)))
    vfs = [vf_of(PF, index) for index in range(8)]
    assert offered(kind, machine(PF, *vfs)) == addresses(vfs[0], vfs[1], vfs[6])
    assert offered(kind, machine(PF, vf_of(PF, 0, vf_index=None))) == []


BOUND = {
    "net": vf_of(PF, 0),
    "net in a pod": vf_of(PF, 1, netdev=None, rdma=None),
    "vfio": vf_of(PF, 2, driver="vfio-pci", netdev=None, rdma=None),
    "mlx5 vfio": vf_of(PF, 3, driver="mlx5_vfio_pci", netdev=None, rdma=None),
    "unbound": vf_of(PF, 4, driver=None, netdev=None, rdma=None),
    "vdpa": vf_of(PF, 5, vdpa="/dev/vhost-vdpa-2"),
}


@pytest.mark.parametrize(
    ("vf_driver", "which"),
    [
        ("any", list(BOUND)),
        ("netdevice", ["net", "net in a pod"]),
        ("rdma", ["net"]),
        ("vfio-pci", ["vfio", "mlx5 vfio"]),
    ],
)
def test_a_pool_has_the_vfs_bound_to_its_driver(vf_driver: str, which: list[str]) -> None:
    kind = structs.replace(NIC0, vf_driver=vf_driver)
    snapshot = machine(PF, *BOUND.values())
    assert offered(kind, snapshot) == [BOUND[name].pci_address for name in which]
    for name, vf in BOUND.items():
        if name not in which:
            with pytest.raises(Refused) as refused:
                kind.allocate(snapshot, [vf.pci_address])
            assert not refused.value.invalid  # it may be a matter of time


def test_a_vf_whose_rdma_device_is_still_in_a_pod_is_refused_for_that_reason() -> None:
    snapshot = machine(PF, BOUND["net in a pod"])
    with pytest.raises(Refused, match="may still be in the namespace of an earlier pod"):
        structs.replace(NIC0, vf_driver="rdma").allocate(snapshot, addresses(BOUND["net in a pod"]))


def test_spread_takes_vfs_of_as_many_pfs_as_there_are_then_the_emptiest_then_by_index() -> None:
    pfs = [pf_of(rail) for rail in range(3)]
    vfs = {(rail, index): vf_of(pfs[rail], index) for rail in range(3) for index in range(3)}
    snapshot = machine(*pfs, *vfs.values())
    kind = VfPool("x/nic", frozenset(addresses(*pfs)))

    def picked(size: int, *without: tuple[int, int], must: tuple[tuple[int, int], ...] = ()) -> list[object]:
        free = [vf.pci_address for key, vf in reversed(vfs.items()) if key not in without]
        chosen = kind.prefer(snapshot, free, [vfs[key].pci_address for key in must], size)
        return [key for name in chosen for key, vf in vfs.items() if vf.pci_address == name]

    assert picked(4) == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert picked(1, (0, 0)) == [(1, 0)]
    assert picked(2, (0, 0), (1, 0)) == [(2, 0), (0, 1)]
    assert picked(3, must=((1, 2),)) == [(1, 2), (0, 0), (2, 0)]


def test_pack_fills_the_pf_with_the_fewest_free_vfs_first() -> None:
    pfs = [pf_of(rail) for rail in range(3)]
    vfs = {(rail, index): vf_of(pfs[rail], index) for rail in range(3) for index in range(3)}
    snapshot = machine(*pfs, *vfs.values())
    kind = VfPool("x/nic", frozenset(addresses(*pfs)), preferred="pack")
    free = [vf.pci_address for key, vf in vfs.items() if key not in ((1, 0), (2, 0), (2, 1))]
    assert kind.prefer(snapshot, free, [], 4) == addresses(vfs[2, 2], vfs[1, 1], vfs[1, 2], vfs[0, 0])
    must = addresses(vfs[0, 2])
    assert kind.prefer(snapshot, free, must, 3) == [*must, *addresses(vfs[0, 0], vfs[0, 1])]


def test_between_equal_pfs_the_one_nearest_to_the_last_nics_wins() -> None:
    pfs = [pf_of(0), pf_of(4)]
    vfs = [vf_of(pf, 0) for pf in pfs]
    snapshot = machine(*pfs, *vfs)
    for preferred in ("spread", "pack"):
        kind = VfPool("x/nic", frozenset(addresses(*pfs)), preferred=preferred)
        assert kind.prefer(snapshot, addresses(*vfs), [], 1) == addresses(vfs[0])
        assert kind.prefer(snapshot, addresses(*vfs), [], 1, (pf_of(5),)) == addresses(vfs[1])


def test_an_unhealthy_vf_is_skipped_and_refused_with_the_reason() -> None:
    vfs = [vf_of(PF, 0, health=SICK), vf_of(PF, 1)]
    snapshot = machine(PF, *vfs)
    assert NIC0.prefer(snapshot, addresses(*vfs), [], 1) == addresses(vfs[1])
    with pytest.raises(Refused, match="2 VFs were requested and 1 are available") as refused:
        NIC0.prefer(snapshot, addresses(*vfs), [], 2)
    assert not refused.value.invalid
    with pytest.raises(Refused, match=r"0000:40:00\.1 is unhealthy: XID") as refused:
        NIC0.allocate(snapshot, addresses(vfs[0]))
    assert not refused.value.invalid


@pytest.mark.parametrize(
    "names", [[], ["0000:40:00.1"] * 2, ["0000:41:00.1"], ["0000:40:00.0"], ["GPU-1::0"], ["x" * 10_000]]
)
def test_invalid_ids_get_a_short_refusal(names: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        NIC0.allocate(dgx(), names)
    assert refused.value.invalid
    assert len(str(refused.value)) < 200
    with pytest.raises(Refused) as refused:
        NIC0.prefer(dgx(), names, [*names, "unheard-of"], 9)
    assert refused.value.invalid


def test_an_rdma_vf_of_a_dgx_is_allocated_as_the_network_device_plugin_does() -> None:
    expected = json.loads(
        r"""{
          "env": {
            "PCIDEVICE_NVIDIA-DGX-H100_NIC0": "0000:40:00.3",
            "PCIDEVICE_NVIDIA_DGX_H100_NIC0": "0000:40:00.3",
            "PCIDEVICE_NVIDIA-DGX-H100_NIC0_INFO": "INFO",
            "PCIDEVICE_NVIDIA_DGX_H100_NIC0_INFO": "INFO"
          },
          "mounts": [],
          "devices": [
            ["/dev/infiniband/uverbs1126", "/dev/infiniband/uverbs1126", "rw"],
            ["/dev/infiniband/umad1126", "/dev/infiniband/umad1126", "rw"],
            ["/dev/infiniband/issm1126", "/dev/infiniband/issm1126", "rw"],
            ["/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm", "rw"]
          ],
          "annotations": {},
          "cdi_devices": [],
          "device_info": {
            "nvidia-dgx-h100-nic0-0000:40:00.3-device.json": {
              "type": "pci",
              "version": "1.1.0",
              "pci": {
                "pci-address": "0000:40:00.3",
                "pf-pci-address": "0000:40:00.0",
                "rdma-device": "mlx5_1126"
              }
            }
          }
        }"""
    )
    info = (
        '{"0000:40:00.3":{"generic":{"deviceID":"0000:40:00.3"},"rdma":{"issm":"/dev/infiniband/issm1126",'
        '"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_1126","umad":"/dev/infiniband/umad1126",'
        '"uverbs":"/dev/infiniband/uverbs1126"}}}'
    )
    expected["env"] = {key: value.replace("INFO", info) for key, value in expected["env"].items()}
    assert as_json(NIC0.allocate(dgx(), ["0000:40:00.3"])) == expected


def test_several_vfs_are_listed_in_order_and_shared_nodes_are_listed_once() -> None:
    allocation = NIC0.allocate(dgx(), ["0000:40:00.5", "0000:40:00.2"])
    env = dict(allocation.env)
    assert env["PCIDEVICE_NVIDIA_DGX_H100_NIC0"] == "0000:40:00.2,0000:40:00.5"
    assert list(json.loads(env["PCIDEVICE_NVIDIA_DGX_H100_NIC0_INFO"])) == ["0000:40:00.2", "0000:40:00.5"]
    counts = Counter(node.host_path for node in allocation.device_nodes)
    assert set(counts.values()) == {1}
    assert "/dev/infiniband/rdma_cm" in counts
    assert len(allocation.device_info) == 2


def test_a_name_that_a_shell_can_read_is_set_once() -> None:
    kind = VfPool("nodeagent.io/nic0", (PF.pci_address,))
    names = [name for name, _ in kind.allocate(dgx(), ["0000:40:00.1"]).env]
    assert names == ["PCIDEVICE_NODEAGENT_IO_NIC0", "PCIDEVICE_NODEAGENT_IO_NIC0_INFO"]


def shape(kind: VfPool, vf: Function) -> tuple[object, object, object]:
    """Device nodes, the details of _INFO and the device-info file of one allocated VF."""
    allocation = kind.allocate(machine(PF, vf), [vf.pci_address])
    nodes = [(it.host_path, it.container_path) for it in allocation.device_nodes]
    info = json.loads(dict(allocation.env)["PCIDEVICE_NVIDIA_DGX_H100_NIC0_INFO"])
    return nodes, info[vf.pci_address], json.loads(allocation.device_info[0].text)


def test_a_container_names_the_cdi_device_of_each_netdev_that_is_to_be_in_its_pod() -> None:
    """`nodeagent attach` alone defines these devices, so a runtime refuses the container until then."""
    pool, ids = replace(NIC0, attach=True), ["0000:40:00.5", "0000:40:00.2"]
    node = on_ethernet()
    allocation = pool.allocate(node, ids)
    assert allocation.cdi_devices == tuple(f"nodeagent.io/attached={id_}" for id_ in sorted(ids))
    assert needed_by(allocation) == frozenset(), "the agent's own specs do not define them"
    assert NIC0.allocate(node, ids).cdi_devices == ()


def on_ethernet(**changes: object) -> Snapshot:
    functions = (
        replace(it, **({"link_type": "ethernet"} | changes)) if it.parent else it for it in dgx().functions
    )
    return replace(dgx(), functions=tuple(functions))


@pytest.mark.parametrize(
    "changes",
    [
        {"driver": "vfio-pci", "vfio_group": "7", "rdma": None, "netdev": None},
        {"vdpa": "/dev/vhost-vdpa-0"},
        {"link_type": "infiniband"},
    ],
)
def test_a_vf_without_a_netdev_of_ethernet_names_none(changes: dict[str, object]) -> None:
    allocation = replace(NIC0, attach=True).allocate(on_ethernet(**changes), ["0000:40:00.2"])
    assert allocation.env
    assert allocation.cdi_devices == ()


def test_a_plain_netdevice_gets_no_device_nodes() -> None:
    nodes, info, file = shape(NIC0, vf_of(PF, 0, rdma=None))
    assert nodes == []
    assert info == {"generic": {"deviceID": "0000:40:00.1"}}
    assert file["pci"] == {"pci-address": "0000:40:00.1", "pf-pci-address": "0000:40:00.0"}


def test_a_vfio_vf_gets_its_group_and_without_an_iommu_under_the_name_programs_look_for() -> None:
    vf = vf_of(PF, 0, driver="vfio-pci", vfio_group="45")
    nodes, info, file = shape(NIC0, vf)
    assert nodes == [("/dev/vfio/vfio", "/dev/vfio/vfio"), ("/dev/vfio/45", "/dev/vfio/45")]
    assert info["vfio"] == {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/45"}
    assert "rdma" not in info
    assert "rdma-device" not in file["pci"]
    nodes, info, _ = shape(NIC0, replace(vf, vfio_group="noiommu-45"))
    assert nodes[1] == ("/dev/vfio/noiommu-45", "/dev/vfio/45")
    assert info["vfio"]["dev-mount"] == "/dev/vfio/45"
    with pytest.raises(Refused, match="has no IOMMU group"):
        shape(NIC0, replace(vf, vfio_group=None))
    assert NIC0.devices(machine(PF, replace(vf, vfio_group=None)))


def test_a_vdpa_vf_gets_its_character_device_and_a_device_info_of_that_type() -> None:
    nodes, info, file = shape(NIC0, BOUND["vdpa"])
    assert nodes == [("/dev/vhost-vdpa-2", "/dev/vhost-vdpa-2")]
    assert info == {"generic": {"deviceID": "0000:40:00.6"}, "vdpa": {"mount": "/dev/vhost-vdpa-2"}}
    assert file == {
        "type": "vdpa",
        "version": "1.1.0",
        "vdpa": {
            "driver": "vhost",
            "path": "/dev/vhost-vdpa-2",
            "pci-address": "0000:40:00.6",
            "pf-pci-address": "0000:40:00.0",
        },
    }


def test_vhost_net_and_a_host_without_rdma_cm_are_settings() -> None:
    kind = structs.replace(NIC0, vhost_net=True, rdma_cm=False)
    nodes, info, _ = shape(kind, vf_of(PF, 0))
    assert [host for host, _ in nodes][-2:] == ["/dev/vhost-net", "/dev/net/tun"]
    assert "/dev/infiniband/rdma_cm" not in [host for host, _ in nodes]
    assert "rdma_cm" not in info["rdma"]
    assert info["vhost"] == {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}
    assert kind.allocate(machine(PF, vf_of(PF, 0, rdma=None)), ["0000:40:00.1"]).device_nodes == (
        DeviceNode("/dev/vhost-net", "/dev/vhost-net"),
        DeviceNode("/dev/net/tun", "/dev/net/tun"),
    )


@st.composite
def pools(draw: st.DrawFn) -> tuple[VfPool, Snapshot]:
    pfs = [pf_of(rail) for rail in range(draw(st.integers(1, 3)))]
    vfs = [
        replace(
            draw(st.sampled_from(list(BOUND.values()))),
            pci_address=vf_of(pf, index).pci_address,
            parent=pf.pci_address,
            vf_index=index,
            health=draw(st.sampled_from((HEALTHY, HEALTHY, SICK))),
            vfio_group=draw(st.sampled_from(("45", "noiommu-0", None))),
        )
        for pf in pfs
        for index in range(draw(st.integers(0, 4)))
    ]
    kind = VfPool(
        RESOURCE,
        tuple(addresses(*pfs)),
        vf_driver=draw(st.sampled_from(("any", "netdevice", "vfio-pci", "rdma"))),
        preferred=draw(st.sampled_from(("spread", "pack"))),
    )
    return kind, machine(*pfs, *vfs)


@given(pools(), st.data())
def test_a_preferred_choice_can_be_allocated_and_only_a_shortage_is_refused(
    pool: tuple[VfPool, Snapshot], data: st.DataObject
) -> None:
    kind, snapshot = pool
    listed = [it for it in kind.devices(snapshot) if data.draw(st.booleans())]
    free = [it.ids[0] for it in listed]
    vfs = {vf.pci_address: vf for vf in snapshot.functions}
    usable = [
        it.ids[0]
        for it in listed
        if it.health.allocatable
        and not ("vfio" in str(vfs[it.ids[0]].driver) and vfs[it.ids[0]].vfio_group is None)
    ]
    must = data.draw(st.lists(st.sampled_from(usable), unique=True)) if usable else []
    size = data.draw(st.integers(max(1, len(must)), len(free) + 1))
    chosen = answer_of(lambda: kind.prefer(snapshot, free, must, size))
    if isinstance(chosen, Refused):
        assert not chosen.invalid
        assert len(usable) < size
        return
    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= set(usable)
    if kind.preferred == "spread":
        # No PF gives two more than another that had one left.
        given_ = Counter(vfs[name].parent for name in chosen)
        fresh = Counter(vfs[name].parent for name in chosen if name not in must)
        spare = {vfs[name].parent for name in usable if name not in chosen}
        assert all(given_[pf] <= given_[other] + 1 for pf in fresh for other in spare)
    assert len(kind.allocate(snapshot, chosen).device_info) == size
    assert kind.prefer(snapshot, sorted(free), must, size) == chosen


def test_a_vf_that_a_pod_holds_through_another_resource_is_not_allocated_again() -> None:
    (one, two), old = addresses(vf_of(PF, 0), vf_of(PF, 1)), "example.com/renamed"
    held = replace(
        machine(PF, vf_of(PF, 0), vf_of(PF, 1)), holdings=(Holding("default", "worker", "main", old, (one,)),)
    )
    assert NIC0.prefer(held, [one, two], [], 1) == [two]
    assert NIC0.allocate(held, [two])
    with pytest.raises(Refused, match=f"{one} is held by default/worker through {old}"):
        NIC0.allocate(held, [one])


def test_an_rdma_vf_in_a_pod_stays_in_its_pool_and_is_not_allocated_again() -> None:
    kind, vf = structs.replace(NIC0, vf_driver="rdma"), vf_of(PF, 0, netdev=None, rdma=None)
    snapshot = machine(PF, vf)
    assert offered(kind, snapshot) == []
    held = replace(snapshot, holdings=(Holding("default", "worker", "main", RESOURCE, (vf.pci_address,)),))
    assert offered(kind, held) == [vf.pci_address]
    with pytest.raises(Refused, match="may still be in the namespace of an earlier pod"):
        kind.allocate(held, [vf.pci_address])
