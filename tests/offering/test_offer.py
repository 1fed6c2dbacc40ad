"""The offer of a node: the configuration applied to facts, and stable rails."""

from __future__ import annotations

import doctest

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import Config, load
from nodeagent.facts.model import (
    Function,
    Gpu,
    GpuFunction,
    Holding,
    HostPaths,
    Link,
    MigDevice,
    Rdma,
    Snapshot,
)
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.vf import VfPool
from nodeagent.kinds.whole_gpu import WholeGpus
from nodeagent.offering import offer
from nodeagent.offering.offer import Offer, prefix
from tests.support.kind_machines import WITH_DRIVER

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: example.com\n"


def configured(text: str) -> Config:
    return load(HEAD + text, name="test.yaml")


def pf(number: int, *, vfs: int | None = 2, driver: str = "mlx5_core", rdma: bool = True) -> Function:
    address = f"0000:{number:02x}:00.0"
    return Function(
        pci_address=address,
        vendor="15b3",
        device="1021",
        driver=driver,
        netdev=f"ens{number}np0",
        link_type="ethernet",
        rdma=Rdma(f"mlx5_{number}") if rdma else None,
        vfio_group=None,
        vdpa=None,
        numa_node=0,
        pci_path=(f"pci0000:{number:02x}", address),
        num_vfs=vfs,
        total_vfs=None if vfs is None else 16,
    )


def link(function: Function, *, speed: int | None = 400_000, default_route: bool = False) -> Link:
    netdev = function.netdev or ""
    return Link(netdev, function.pci_address, None, True, speed is not None, "up", speed, 9000, default_route)


def vf_of(parent: Function, index: int) -> Function:
    address = parent.pci_address[:-1] + str(index + 1)
    return replace(
        parent,
        pci_address=address,
        netdev=None,
        parent=parent.pci_address,
        vf_index=index,
        num_vfs=None,
        total_vfs=None,
    )


def machine(*pfs: Function, gpus: int = 0, **facts: object) -> Snapshot:
    functions = [
        function for one in pfs for function in (one, *(vf_of(one, i) for i in range(one.num_vfs or 0)))
    ]
    return Snapshot(
        functions=tuple(sorted(functions, key=lambda f: f.pci_address)),
        links=tuple(link(one) for one in pfs),
        gpus=tuple(
            Gpu(f"GPU-{i}", i, i, "NVIDIA H100 80GB HBM3", f"0000:{i}b:00.0", 81559, 0) for i in range(gpus)
        ),
        **{"paths": WITH_DRIVER, **facts},
    )


def pools(made: Offer, snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    return {kind.resource: tuple(kind.pfs) for kind in made.kinds(snapshot) if isinstance(kind, VfPool)}


def test_the_doctests_pass() -> None:
    assert doctest.testmod(offer).failed == 0


@pytest.mark.parametrize(
    ("product", "head"),
    [
        ("DGXH100", "nvidia-dgx-h100"),
        ("DGXA100 920-23687-2530-000", "nvidia-dgx-a100"),
        ("NVIDIA DGX H200", "nvidia-dgx-h200"),
        ("Standard PC (Q35 + ICH9, 2009)", "nodeagent.io"),
        ("To Be Filled By O.E.M.", "nodeagent.io"),
        ("SYS-821GE-TNHR", "sys-821ge-tnhr"),
        ("***", "nodeagent.io"),
        (None, "nodeagent.io"),
    ],
)
def test_the_prefix_is_derived_from_the_product_name(product: str | None, head: str) -> None:
    assert prefix(Config(), product) == head
    assert prefix(configured(""), product) == "example.com"


def test_rails_have_pci_order_and_stay_when_a_nic_disappears() -> None:
    made = Offer(configured(""))
    one, two, three = pf(1), pf(2), pf(3)
    first = {"example.com/nic0": (one.pci_address,), "example.com/nic1": (two.pci_address,)}
    assert pools(made, machine(one, two)) == first
    assert pools(made, machine(two)) == first
    assert pools(made, machine(one, two, three)) == first | {"example.com/nic2": (three.pci_address,)}


def test_a_nic_that_gets_vfs_later_gets_the_next_rail() -> None:
    made = Offer(configured(""))
    late = pf(1, vfs=0)
    assert pools(made, machine(late, pf(2))) == {"example.com/nic0": ("0000:02:00.0",)}
    assert pools(made, machine(pf(1), pf(2)))["example.com/nic1"] == ("0000:01:00.0",)


def test_a_pf_with_configured_vfs_keeps_its_rail_without_vfs() -> None:
    """An agent that starts in that hour has no history, and must not give its name to another NIC."""
    text = "vfs: [{select: {drivers: [mlx5_core]}, count: 2}]\n"
    bereft = machine(pf(1, vfs=0), pf(2))
    assert pools(Offer(configured(text)), bereft) == {
        "example.com/nic0": ("0000:01:00.0",),
        "example.com/nic1": ("0000:02:00.0",),
    }
    none_wanted = text.replace("count: 2", "count: 0")
    assert pools(Offer(configured(none_wanted)), bereft) == {"example.com/nic0": ("0000:02:00.0",)}


def test_literal_addresses_fix_the_rails() -> None:
    text = "resources: [{kind: vf, select: {pciAddresses: ['0000:03:00.0', '0000:01:00.0']}}]\n"
    assert pools(Offer(configured(text)), machine(pf(1))) == {"example.com/nic1": ("0000:01:00.0",)}


def test_a_reloaded_configuration_keeps_the_rails_of_entries_that_did_not_change() -> None:
    before = Offer(configured(""))
    pools(before, machine(pf(1), pf(2)))
    after = Offer(configured("scanSeconds: 5\n"), before=before)
    assert pools(after, machine(pf(2)))["example.com/nic1"] == ("0000:02:00.0",)


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        ("{}", [1, 2, 3]),
        ("{netdevs: ['ens[12]np0']}", [1, 2]),
        ("{exclude: ['ens2*', '0000:03:00.0']}", [1]),
        ("{drivers: ['ice']}", [3]),
        ("{vendors: ['8086']}", []),
        ("{rdma: true}", [1, 2]),
        ("{minSpeedMbps: 500000}", []),
        ("{linkTypes: [infiniband]}", []),
    ],
)
def test_a_selected_pf_matches_every_list_that_is_not_empty(select: str, chosen: list[int]) -> None:
    snapshot = machine(pf(1), pf(2), pf(3, driver="ice", rdma=False))
    made = pools(Offer(configured(f"resources: [{{kind: vf, select: {select}}}]\n")), snapshot)
    assert [address for pfs in made.values() for address in pfs] == [f"0000:{n:02x}:00.0" for n in chosen]


def test_the_nic_of_the_default_route_and_nics_without_vfs_are_never_offered() -> None:
    routed = pf(1)
    snapshot = replace(
        machine(routed, pf(2, vfs=0), pf(3, vfs=None)), links=(link(routed, default_route=True),)
    )
    assert pools(Offer(configured("")), snapshot) == {}


def test_vfs_of_the_ports_of_a_bond_with_the_default_route_are_offered_by_a_setting() -> None:
    first, second, alone = pf(1), pf(2), pf(3)
    bonded = [replace(link(one, default_route=True), bonded=True) for one in (first, second)]
    snapshot = replace(machine(first, second, alone), links=(*bonded, link(alone, default_route=True)))
    assert pools(Offer(configured("")), snapshot) == {}
    made = Offer(configured("resources: [{kind: vf, select: {defaultRoute: bond}}]\n"))
    assert pools(made, snapshot) == {
        "example.com/nic0": ("0000:01:00.0",),
        "example.com/nic1": ("0000:02:00.0",),
    }
    offered = [id_ for kind in made.kinds(snapshot) for entry in kind.devices(snapshot) for id_ in entry.ids]
    assert offered == [vf_of(one, index).pci_address for one in (first, second) for index in range(2)]
    before = replace(snapshot, links=tuple(link(one) for one in (first, second, alone)))
    never = Offer(configured("resources: [{kind: vf}]\n"))
    assert len(pools(never, before)) == 3
    listed = {kind.resource: kind.devices(snapshot) for kind in never.kinds(snapshot)}
    assert set(listed.values()) == {()}, "the bond got the route after the NICs had their rails"


def test_a_link_that_is_down_passes_the_minimum_speed() -> None:
    one = pf(1)
    snapshot = replace(machine(one), links=(link(one, speed=None),))
    assert pools(Offer(configured("resources: [{kind: vf, select: {minSpeedMbps: 100000}}]\n")), snapshot)


def test_a_name_without_a_field_pools_all_nics_and_always_exists() -> None:
    made = Offer(configured("resources: [{kind: vf, name: vfs}]\n"))
    assert pools(made, machine()) == {"example.com/vfs": ()}
    assert pools(made, machine(pf(1), pf(2))) == {"example.com/vfs": ("0000:01:00.0", "0000:02:00.0")}


def test_a_name_with_the_netdev_stays_while_the_netdev_is_away() -> None:
    made = Offer(configured("resources: [{kind: vf, name: 'nic-{netdev}'}]\n"))
    here, away = machine(pf(1)), machine(replace(pf(1), netdev=None), pf(2))
    assert [*pools(made, here)] == ["example.com/nic-ens1np0"]
    assert [*pools(made, away)] == ["example.com/nic-ens1np0", "example.com/nic-ens2np0"]


def test_the_vendors_cdi_kind_is_used_where_it_defines_all_gpus() -> None:
    made = Offer(
        configured(
            "resources: [{kind: gpu-mem, select: {indexes: ['0-1']}}, {kind: gpu, select: {indexes: ['2']}}]\n"
        )
    )
    snapshot = machine(gpus=3, paths=HostPaths(vendor_gpus=frozenset({"GPU-2"})))
    slices, whole = made.kinds(snapshot)
    assert isinstance(slices, GpuMemory)
    assert isinstance(whole, WholeGpus)
    assert (slices.gpus, slices.cdi_kind) == (frozenset({"GPU-0", "GPU-1"}), "nodeagent.io/gpu")
    assert (whole.gpus, whole.cdi_kind) == (frozenset({"GPU-2"}), "nvidia.com/gpu")


def test_a_gpu_offered_twice_is_fatal_and_belongs_to_the_first_entry() -> None:
    made = Offer(
        configured(
            "resources: [{kind: gpu-mem, select: {models: ['*H100*']}}, {kind: gpu, select: {models: ['*80GB*']}}]\n"
        )
    )
    snapshot = machine(gpus=1)
    fatal = [trouble.message for trouble in made.troubles(snapshot) if trouble.fatal]
    assert fatal == [
        "GPU 0 (GPU-0) is offered twice, as example.com/gpu-mem and as example.com/gpu; "
        "let the two resources select different GPUs"
    ]
    slices, whole = made.kinds(snapshot)
    assert len(slices.devices(snapshot)[0].ids) == 79
    assert whole.devices(snapshot) == ()


def test_only_gpus_that_are_not_kept_for_virtual_machines_are_missed() -> None:
    made = Offer(configured("resources: [{kind: gpu-mem}]\n"))
    of_guest, of_pods = GpuFunction("0000:1b:00.0", "vfio-pci"), GpuFunction("0000:1c:00.0", "nvidia")
    (trouble,) = made.troubles(Snapshot(gpu_functions=(of_guest,)))
    assert trouble.ready
    (trouble,) = made.troubles(Snapshot(gpu_functions=(of_guest, of_pods)))
    assert not trouble.ready
    assert "the PCI bus has the GPUs 0000:1c:00.0, and NVML" in trouble.message


def test_a_name_with_the_index_makes_one_resource_for_each_gpu_which_it_keeps_while_the_gpu_is_lost() -> None:
    config = configured("resources:\n- {kind: gpu-mem, name: 'gpu-mem{gpu}', select: {indexes: ['1-2']}}\n")
    snapshot = machine(gpus=3)
    (gone, left) = snapshot.gpus[1:]
    lost = replace(snapshot, gpus=(snapshot.gpus[0], replace(gone, lost=True), left))
    for facts in (snapshot, lost):
        made = Offer(config).kinds(facts)
        parents = {kind.resource: [it.parent for it in kind.devices(facts)] for kind in made}
        assert parents == {"example.com/gpu-mem1": ["GPU-1"], "example.com/gpu-mem2": ["GPU-2"]}
    (trouble,) = Offer(config).troubles(machine())
    assert trouble.message == "gpu-mem{gpu}: nothing is offered: this machine has no GPU"


def test_one_selection_may_be_sliced_and_divided_because_the_mode_of_each_gpu_decides() -> None:
    made = Offer(configured("resources: [{kind: gpu-mem}, {kind: mig}]\n"))
    gpus = machine(gpus=2).gpus
    divided = replace(gpus[0], mig=True, mig_devices=(MigDevice("MIG-a", "1g.10gb", 9856, 7, 0),))
    snapshot = Snapshot(gpus=(divided, gpus[1]), paths=WITH_DRIVER)
    lists = {kind.resource: [it.parent for it in kind.devices(snapshot)] for kind in made.kinds(snapshot)}
    assert lists == {"example.com/gpu-mem": ["GPU-1"], "example.com/mig-1g.10gb": ["GPU-0"]}
    assert made.troubles(snapshot) == ()
    assert [kind.resource for kind in made.kinds(machine(gpus=2))] == ["example.com/gpu-mem"]
    twice = Offer(configured("resources: [{kind: mig}, {kind: mig, name: 'part-{profile}'}]\n"))
    (trouble,) = twice.troubles(snapshot)
    assert trouble.fatal
    assert "MIG-a of GPU 0 is offered twice" in trouble.message


NO_LIBRARY = HostPaths(gpu_nodes=("/dev/nvidiactl",))
"""The agent's view where the folder of the driver's libraries is another one, or not mounted."""


@pytest.mark.parametrize(
    "resource",
    [
        "{kind: gpu-mem}",
        "{kind: gpu-mem, name: 'gpu-mem{gpu}'}",
        "{kind: gpu-mem, volcano: true}",
        "{kind: gpu-mem, mode: dra}",
        "{kind: gpu, name: gpu, select: {indexes: ['0-1']}}",
    ],
)
def test_gpus_without_the_library_of_their_driver_are_a_trouble_that_names_the_setting(resource: str) -> None:
    made = Offer(configured(f"resources: [{resource}]\n"))
    found = [it for it in made.troubles(machine(gpus=2, paths=NO_LIBRARY)) if it.source == "paths"]
    assert found
    assert all(not it.ready and not it.fatal for it in found)
    assert all("libcuda.so.1" in it.message and "gpu.driverRoot" in it.message for it in found)
    vendors = HostPaths(vendor_gpus=frozenset({"GPU-0", "GPU-1"}))
    for paths in (WITH_DRIVER, vendors):
        assert all(it.source != "paths" for it in made.troubles(machine(gpus=2, paths=paths)))


def test_the_runtime_brings_the_library_where_no_spec_of_ours_is_used() -> None:
    made = Offer(
        configured(
            "resources: [{kind: gpu, name: gpu, select: {indexes: ['0-1']}, deviceListStrategy: envvar}]\n"
        )
    )
    assert made.troubles(machine(gpus=2, paths=NO_LIBRARY)) == ()


def test_each_resource_of_one_gpu_has_its_own_device_list_and_limit() -> None:
    text = "resources:\n- {kind: gpu-mem, name: 'gpu-mem{gpu}', sliceMiB: SIZE, reservedMiB: 0}\n"
    fits, shared = (configured(text.replace("SIZE", "2").replace("{gpu}", gpu)) for gpu in ("{gpu}", ""))
    assert [it.fatal for it in Offer(fits).troubles(machine(gpus=8))] == [False], "the status of a pod"
    assert any(it.fatal for it in Offer(shared).troubles(machine(gpus=8)))


def test_a_list_too_long_for_the_kubelet_is_fatal_and_names_the_slice_size_that_fits() -> None:
    made = Offer(configured("resources: [{kind: gpu-mem, sliceMiB: 8}]\n"))
    (trouble,) = (trouble for trouble in made.troubles(machine(gpus=8)) if trouble.fatal)
    assert "sliceMiB: 14 is the smallest that fits" in trouble.message


def test_a_host_without_rdma_cm_and_a_port_in_another_mode_are_remarks() -> None:
    nics = tuple(pf(number) for number in range(1, 5))
    vf = replace(nics[0], pci_address="0000:01:00.1", parent=nics[0].pci_address, vf_index=0, netdev=None)
    links = tuple(
        Link(str(it.netdev), it.pci_address, None, True, it is not nics[3], "up", 400_000, 9000)
        for it in nics
    )
    nics = (*nics[:3], replace(nics[3], link_type="infiniband"))
    snapshot = Snapshot(functions=(*nics, vf), links=links)
    made = Offer(configured("resources: [{kind: vf}]\n"))
    made.kinds(snapshot)
    found = {
        (it.source, it.message.partition(",")[0]): (it.fatal, it.ready) for it in made.troubles(snapshot)
    }
    assert found == {
        ("paths", "containers with VFs or shares of HCAs get no /dev/infiniband/rdma_cm"): (False, True),
        ("pci", f"0000:04:00.0 ({nics[3].netdev}) is in InfiniBand mode and has no link"): (False, True),
    }
    able = replace(snapshot, paths=replace(snapshot.paths, rdma_cm=True))
    assert [it.source for it in made.troubles(able)] == ["pci"]


RDMA = "resources: [{kind: rdma, shares: 3}]\n"


def test_each_pf_with_an_rdma_device_is_shared_under_the_name_of_its_rail() -> None:
    made = Offer(configured(RDMA))
    snapshot = machine(pf(1), pf(2, rdma=False), pf(3, vfs=None))
    kinds = made.kinds(snapshot)
    assert [kind.resource for kind in kinds] == ["example.com/rdma0", "example.com/rdma1"]
    assert [len(devices.ids) for kind in kinds for devices in kind.devices(snapshot)] == [3, 3]
    assert made.rails == {"0000:01:00.0": 0, "0000:03:00.0": 1}
    assert [trouble for trouble in made.troubles(snapshot) if trouble.fatal] == []


def test_shares_beside_vfs_of_one_selection_leave_the_rails_of_the_vfs_as_they_were() -> None:
    # The first one has no VF, the second one no RDMA device.
    snapshot = machine(pf(1, vfs=None), pf(2, rdma=False), pf(3))
    both = Offer(configured("resources: [{kind: vf}, {kind: rdma}]\n"))
    names = [kind.resource.partition("/")[2] for kind in both.kinds(snapshot)]
    assert names == ["nic0", "nic1", "rdma1", "rdma2"]
    assert both.rails == {"0000:02:00.0": 0, "0000:03:00.0": 1, "0000:01:00.0": 2}
    before = Offer(configured("resources: [{kind: vf}]\n"))
    before.kinds(snapshot)
    later = Offer(both.config, before=before)
    later.kinds(snapshot)
    assert later.rails == both.rails, "nodes that were installed before and after have the same rails"


def test_a_nic_as_a_whole_beside_its_shares_is_refused() -> None:
    made = Offer(
        configured(
            "resources: [{kind: nic, select: {netdevs: ['*']}}, {kind: rdma, select: {drivers: [mlx5_core]}}]\n"
        )
    )
    (fatal,) = [it.message for it in made.troubles(machine(pf(1, vfs=None))) if it.fatal]
    assert fatal == (
        "the HCA 0000:01:00.0 is offered twice, as example.com/nic0 and as example.com/rdma0; "
        "let one resource alone have its shares, and no other one the whole NIC"
    )
    # With VFs the NIC is not offered as a whole.
    assert not [it for it in made.troubles(machine(pf(1))) if it.fatal]


@pytest.mark.parametrize(
    ("select", "nic", "routed", "cause"),
    [
        ("", pf(1, rdma=False), False, "has no RDMA device: load the module of its driver"),
        ("", pf(1), True, "the default route of the host goes through 0000:01:00.0 (ens1np0)"),
        (", select: {netdevs: [ib0]}", pf(1), False, "no NIC has a name of select.netdevs ib0"),
        (", select: {minSpeedMbps: 800000}", pf(1), False, "is slower than select.minSpeedMbps 800000"),
    ],
)
def test_an_empty_selection_of_hcas_says_which_of_its_causes_it_is(
    select: str, nic: Function, routed: bool, cause: str
) -> None:
    made = Offer(configured(f"resources: [{{kind: rdma{select}}}]\n"))
    snapshot = replace(machine(nic), links=(link(nic, default_route=routed),))
    found = [it.message for it in made.troubles(snapshot) if it.key == "idle"]
    assert len(found) == 1
    assert cause in found[0]


def test_the_nic_with_the_default_route_is_shared_only_if_a_person_says_so() -> None:
    nic = pf(1)
    snapshot = replace(machine(nic), links=(link(nic, default_route=True),))
    for value, count in (("never", 0), ("bond", 0), ("always", 1)):
        made = Offer(configured(f"resources: [{{kind: rdma, select: {{defaultRoute: {value}}}}}]\n"))
        assert len(made.kinds(snapshot)) == count, value


def test_shares_in_the_exclusive_rdma_mode_make_the_node_unready() -> None:
    snapshot = machine(pf(1), paths=HostPaths(rdma_cm=True, rdma_exclusive=True))
    (lack,) = Offer(configured(RDMA)).troubles(snapshot)
    assert (lack.fatal, lack.ready, lack.source) == (False, False, "paths")
    assert "exclusive RDMA mode" in lack.message


def test_held_shares_tell_the_numbers_of_rails_after_the_file_is_lost() -> None:
    made = Offer(configured(RDMA))
    made.recall(awaits_holdings=True)
    snapshot = machine(pf(1), pf(2))
    held = Holding("ml", "p", "c", "example.com/rdma5", ("0000:02:00.0::1",))
    made.kinds(replace(snapshot, holdings=(held,)))
    assert made.rails == {"0000:01:00.0": 0, "0000:02:00.0": 5}
