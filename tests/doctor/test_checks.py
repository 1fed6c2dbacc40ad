"""Each finding of the doctor, from facts. ``CASES`` covers every key with a remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from nodeagent import doctor
from nodeagent.agent_config import Config, load
from nodeagent.attach.attach_files import AttachState, WaitingPod
from nodeagent.doctor import (
    agent_checks,
    attach_checks,
    capabilities,
    cluster_checks,
    configuration_checks,
    dra_checks,
    gpu_checks,
    infiniband_checks,
    kubelet_checks,
    lldp_checks,
    machine_checks,
    mps_checks,
    nic_checks,
    nvsentinel_checks,
    runtime_checks,
)
from nodeagent.doctor.cluster_checks import ClusterFacts, DeniedVerb, NodeFacts
from nodeagent.doctor.dra_checks import DraFacts, ForeignDevice, PublishedDevice
from nodeagent.doctor.driver_process import DriverAnswer
from nodeagent.doctor.finding import Finding
from nodeagent.doctor.rbac import NEEDED_RIGHTS
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import (
    Function,
    Gpu,
    HostPaths,
    Identifier,
    LimitSupport,
    Link,
    MigDevice,
    Neighbor,
    Rdma,
    Remark,
    Snapshot,
    State,
)
from nodeagent.health.explain import DeviceView, RuleView
from nodeagent.health.rules import NIC_RULES
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.sysfs import Tree
from nodeagent.host.umad import UmadReason
from nodeagent.infiniband.asking import IbPortState
from nodeagent.kinds.resource_settings import GpuMemResource, MigResource
from nodeagent.kubelet import rail_memory
from nodeagent.lldp.link_remarks import LinkSide
from nodeagent.offering.offer import Offer
from nodeagent.sources.ib_ports import IbPort
from nodeagent.sources.pci_source import PciFacts


def config(text: str = "") -> Config:
    return load(f"apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n{text}", name="x")


DEFAULT = Config()
UUID = "GPU-11111111-2222-3333-4444-555555555555"
READING = GpuReading(0, UUID, 0, "NVIDIA H100", "0000:1b:00.0", 81559)
MIG_READING = structs.replace(READING, mig=True, mig_devices=(MigDevice("MIG-a", "1g.10gb", 9856, 7, 0),))
SLICES_ONLY = structs.replace(DEFAULT, resources=(GpuMemResource(),))
MIG_CLAIMS = structs.replace(DEFAULT, resources=(MigResource(mode="dra"),))
GPU = Gpu(UUID, 0, 0, "NVIDIA H100", "0000:1b:00.0", 81559, 0)
PF = Function(
    "0000:18:00.0",
    "15b3",
    "1021",
    "mlx5_core",
    "ens1",
    "ethernet",
    Rdma("mlx5_0"),
    None,
    None,
    0,
    (),
    num_vfs=2,
    total_vfs=16,
)
VF = structs.replace(
    PF, pci_address="0000:18:00.1", netdev=None, parent=PF.pci_address, vf_index=0, total_vfs=None
)
ROUTED = Link("ens1", PF.pci_address, None, True, True, "up", 400000, 9000, default_route=True)
SNAPSHOT = Snapshot(product="DGXH100", gpus=(GPU,), functions=(PF, VF))
GOOD_MACHINE = machine_checks.MachineFacts("6.8.0-60", "DGXH100", "a-b", 1.9e9, True)
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
SERVING = kubelet_checks.KubeletFacts("/k", exists=True, locked=True, podresources=True, offered={})
MLX = LinkSide("ens1", "0000:18:00.0", "mlx5_core", "1021")


def of_nics(*functions: Function, **fields: object) -> nic_checks.NicFacts:
    facts = PciFacts(functions=functions or (PF, VF))
    return replace(nic_checks.NicFacts(facts, iommu_groups=3), **fields)


def lag(first: str, device: str = "mlx5_0", **fields: object) -> nic_checks.NicFacts:
    """Two ports of a card of which the first alone has an RDMA device."""
    one = structs.replace(PF, netdev=first, rdma=Rdma(device))
    return of_nics(one, structs.replace(PF, pci_address="0000:18:00.1", netdev="ens2", rdma=None), **fields)


def four_nics() -> PciFacts:
    """Three NICs in Ethernet mode with a link, and one in InfiniBand mode without."""
    pfs = [
        structs.replace(PF, pci_address=f"0000:{bus}:00.0", netdev=f"ens{bus}") for bus in (18, 19, 20, 21)
    ]
    pfs[3] = structs.replace(pfs[3], netdev="ib0", link_type="infiniband")
    up = [structs.replace(ROUTED, netdev=pf.netdev or "", pci_address=pf.pci_address) for pf in pfs]
    up[3] = structs.replace(up[3], carrier=False)
    links = tuple(structs.replace(link, default_route=False) for link in up)
    return PciFacts(functions=tuple(pfs), links=links)


GUID = "0e42:a103:0116:054c"


def ib_vf(guid: str) -> Function:
    """An InfiniBand VF with this node GUID, and a port that is not active."""
    rdma = Rdma("mlx5_8", node_guid=guid, port_active=False)
    return structs.replace(VF, link_type="infiniband", rdma=rdma)


def of_gpus(*readings: GpuReading, version: str = "615.71.09", **fields: object) -> gpu_checks.GpuFacts:
    whole = gpu_checks.GpuFacts(
        {"0000:1b:00.0": "nvidia"},
        DriverAnswer(version, readings or (READING,)),
        None,
        NODES,
        LimitSupport(cgroup2=True),
        5.0,
    )
    return replace(whole, **fields)


def settings(**fields: object) -> runtime_checks.RuntimeFacts:
    return runtime_checks.RuntimeFacts(
        settings=(replace(runtime_checks.RuntimeSettings("/etc/c.toml", 3), **fields),)
    )


def spec(path: str = "/etc/cdi/nvidia.yaml", **fields: object) -> runtime_checks.CdiSpec:
    return replace(runtime_checks.CdiSpec(path, "nvidia.com/gpu", (UUID,)), **fields)


def heard(name: str = "ens1") -> Neighbor:
    return Neighbor(name, Identifier("mac", "00:11"), Identifier("ifname", "swp1"), "leaf-1")


IB = IbPort("ib0", "0000:18:00.0", "mlx5_0", 1, IbPortState(4, 5, 1, 1), "/dev/infiniband/umad0", 1, True)
ASKING = config("infiniband: {query: auto}\n")


def of_infiniband(failure: UmadReason | None = None, **fields: object) -> Iterable[Finding]:
    failures = {} if failure is None else {IB.link: (failure, "/dev/infiniband/umad0: refused")}
    port = replace(IB, **{"has_mads": False, **fields})
    return infiniband_checks.infiniband_findings(infiniband_checks.InfinibandFacts((port,), failures), ASKING)


MEMORY = config("resources: [{kind: gpu-mem}]\n")
BY_CLAIM = config("resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n")
VFIO = config("resources: [{kind: vf, vfDriver: vfio-pci}]\n")
ENVVAR = config("resources: [{kind: gpu-mem, deviceListStrategy: envvar}]\n")
FASTER = config("resources: [{kind: vf, select: {minSpeedMbps: 1, linkTypes: [infiniband]}}]\n")
TINY = config("resources: [{kind: gpu-mem, sliceMiB: 2, reservedMiB: 0}]\n")
STRICT = config("expect: {gpus: 64, nics: 64}\n")
TWICE = config(
    "resources:\n- {kind: gpu-mem, select: {indexes: ['0']}}\n"
    f"- {{kind: gpu, select: {{uuids: [{UUID}]}}}}\n"
)
NO_SPEC = config("resources: [{kind: gpu-mem}]\ncdi: {generate: false}\n")
EIGHT = config("vfs: [{select: {pciAddresses: ['*']}, count: 8}]\n")
MANY = config("vfs: [{select: {pciAddresses: ['*']}, count: 17}]\n")
WITHOUT_ERRORS = DeviceView(
    "0000:18:00.0", "ens1", "nic", State.HEALTHY, True, True, 1.0, (),
    rules=(
        RuleView("flapping", "quiet", State.DEGRADED, True, "penalty 0", 0.0, "≥ 2500 points"),
        RuleView("post_fec_errors", "unknown", State.DEGRADED, True, None, None, "≥ 1e-12 of all bits"),
        RuleView("rail_mtu", "unknown", State.HEALTHY, False, None, None, "≥ 2 nodes"),
    ),
    not_given=("phy_rx_bits", "symbol_errors"),
)  # fmt: skip
TALKING = config("lldp: {transmit: true}\n")

CASES: list[tuple[str, Iterable[Finding]]] = [
    (
        "fix config_unreadable",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", DEFAULT, (), "no"), None
        ),
    ),
    (
        "fix config_fault",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", DEFAULT, ("bad",)), None
        ),
    ),
    (
        "fix config_unfit",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", TWICE), SNAPSHOT
        ),
    ),
    (
        "fix config_short",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", STRICT), SNAPSHOT
        ),
    ),
    (
        "note config_slices",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", TINY), SNAPSHOT
        ),
    ),
    (
        "note config_idle",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", FASTER), SNAPSHOT
        ),
    ),
    (
        "note config_undivided",
        configuration_checks.configuration_findings(
            configuration_checks.ConfigurationFacts("f", MIG_CLAIMS),
            structs.replace(SNAPSHOT, gpus=(structs.replace(GPU, mig=True),)),
        ),
    ),
    ("warn kernel_old", machine_checks.machine_findings(replace(GOOD_MACHINE, kernel="4.9.1"), DEFAULT)),
    ("note kernel_old", machine_checks.machine_findings(replace(GOOD_MACHINE, kernel="5.4.0"), DEFAULT)),
    ("note product_unknown", machine_checks.machine_findings(replace(GOOD_MACHINE, product="KVM"), DEFAULT)),
    ("fix clock_unset", machine_checks.machine_findings(replace(GOOD_MACHINE, now=0.0), DEFAULT)),
    (
        "note clock_unsynchronized",
        machine_checks.machine_findings(replace(GOOD_MACHINE, synchronized=False), DEFAULT),
    ),
    (
        "warn boot_id_unreadable",
        machine_checks.machine_findings(replace(GOOD_MACHINE, boot_id=None), DEFAULT),
    ),
    ("note sriov_absent", nic_checks.nic_findings(of_nics(structs.replace(PF, total_vfs=None)), DEFAULT)),
    (
        "note sriov_guest",
        nic_checks.nic_findings(
            replace(
                nic_checks.NicFacts(PciFacts(guest=True, functions=(structs.replace(PF, total_vfs=None),)))
            ),
            DEFAULT,
        ),
    ),
    ("warn vfs_none", nic_checks.nic_findings(of_nics(structs.replace(PF, num_vfs=0)), DEFAULT)),
    ("warn vfs_differ", nic_checks.nic_findings(of_nics(), EIGHT)),
    ("fix vfs_too_many", nic_checks.nic_findings(of_nics(), MANY)),
    ("warn vf_unbound", nic_checks.nic_findings(of_nics(PF, structs.replace(VF, driver=None)), DEFAULT)),
    ("fix vf_guid_missing", nic_checks.nic_findings(of_nics(PF, ib_vf("0000:0000:0000:0000")), DEFAULT)),
    ("fix vf_guid_missing", nic_checks.nic_findings(of_nics(PF, ib_vf("ffff:ffff:ffff:ffff")), DEFAULT)),
    (
        "warn vf_port_inactive",
        nic_checks.nic_findings(of_nics(facts=PciFacts(None, (PF, ib_vf(GUID)), (ROUTED,))), DEFAULT),
    ),
    (
        "warn vf_link_disabled",
        nic_checks.nic_findings(of_nics(disabled_vfs=(VF.pci_address,)), DEFAULT),
    ),
    (
        "warn vf_mac_missing",
        nic_checks.nic_findings(of_nics(PF, structs.replace(VF, mac="00:00:00:00:00:00")), DEFAULT),
    ),
    ("note default_route", nic_checks.nic_findings(of_nics(facts=PciFacts(None, (PF,), (ROUTED,))), MANY)),
    ("note rdma_missing", nic_checks.nic_findings(of_nics(structs.replace(PF, rdma=None)), DEFAULT)),
    (
        "note netdev_absent",
        nic_checks.nic_findings(of_nics(structs.replace(PF, netdev=None, link_type="infiniband")), DEFAULT),
    ),
    ("note rdma_missing", nic_checks.nic_findings(lag("ens1", masters={"ens2": "bond0"}), DEFAULT)),
    (
        "warn rdma_cm_missing",
        nic_checks.nic_findings(
            of_nics(PF, structs.replace(VF, rdma=Rdma("mlx5_8")), rdma_cm=False), DEFAULT
        ),
    ),
    (
        "fix rdma_exclusive",
        nic_checks.nic_findings(of_nics(PF, rdma_exclusive=True), config("resources: [{kind: rdma}]\n")),
    ),
    ("warn link_mode_differs", nic_checks.nic_findings(of_nics(facts=four_nics()), DEFAULT)),
    ("fix iommu_off", nic_checks.nic_findings(of_nics(iommu_groups=0), VFIO)),
    ("note iommu_off", nic_checks.nic_findings(of_nics(iommu_groups=0), DEFAULT)),
    ("note iommu_translated", nic_checks.nic_findings(of_nics(domains={PF.pci_address: "DMA-FQ"}), DEFAULT)),
    ("fix network_namespace", nic_checks.nic_findings(of_nics(namespace_netdevs=frozenset({"lo"})), DEFAULT)),
    (
        "warn rails_share_subnet",
        nic_checks.nic_findings(of_nics(shared_subnets={"10.0.0.0/24": ("ens1", "ens2")}), DEFAULT),
    ),
    (
        "warn firmware_lldp",
        nic_checks.nic_findings(
            of_nics(structs.replace(PF, driver="i40e"), flags={"ens1": {"disable-fw-lldp": False}}), DEFAULT
        ),
    ),
    (
        "warn firmware_lldp",
        nic_checks.nic_findings(
            of_nics(structs.replace(PF, driver="ice"), flags={"ens1": {"fw-lldp-agent": True}}), DEFAULT
        ),
    ),
    ("note firmware_lldp_unknown", nic_checks.nic_findings(of_nics(), DEFAULT)),
    ("warn firmware_lldp_unknown", nic_checks.nic_findings(of_nics(), TALKING)),
    (
        "note firmware_lldp_unknown",
        nic_checks.nic_findings(of_nics(structs.replace(PF, driver="ice")), DEFAULT),
    ),
    ("warn nic_unreadable", nic_checks.nic_findings(of_nics(facts=PciFacts(unreadable=("x",))), DEFAULT)),
    ("note lldp_not_listened", lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,)), DEFAULT)),
    ("note lldp_unheard", lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,), waited_s=5), DEFAULT)),
    ("warn lldp_unheard", lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,), waited_s=35), DEFAULT)),
    (
        "fix lldp_deaf",
        lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,), error="no CAP_NET_RAW"), DEFAULT),
    ),
    ("note lldp_no_carrier", lldp_checks.lldp_findings(lldp_checks.LldpFacts((), ("ens2",)), DEFAULT)),
    (
        "warn lldp_odd",
        lldp_checks.lldp_findings(
            lldp_checks.LldpFacts((), remarks=(Remark("ens1", "pfc_mismatch", "x"),)), DEFAULT
        ),
    ),
    (
        "note ib_not_asked",
        infiniband_checks.infiniband_findings(infiniband_checks.InfinibandFacts((IB,)), DEFAULT),
    ),
    ("fix ib_no_module", of_infiniband(umad=None)),
    ("fix ib_no_smi", of_infiniband(umad=None, has_mads=True)),
    ("fix ib_no_smi", of_infiniband(UmadReason.NO_SMI)),
    ("fix ib_no_device", of_infiniband(UmadReason.NO_DEVICE)),
    ("fix ib_device_cgroup", of_infiniband(UmadReason.CGROUP)),
    ("fix ib_device_mode", of_infiniband(UmadReason.MODE)),
    ("fix ib_device_fails", of_infiniband(UmadReason.FAILED)),
    ("warn lldp_two_speakers", lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,), lldpd=True), TALKING)),
    (
        "fix driver_absent",
        gpu_checks.gpu_findings(of_gpus(answer=DriverAnswer(error="none", absent=True)), DEFAULT),
    ),
    ("fix driver_refused", gpu_checks.gpu_findings(of_gpus(answer=DriverAnswer(error="mismatch")), DEFAULT)),
    ("fix driver_hung", gpu_checks.gpu_findings(of_gpus(answer=None), DEFAULT)),
    (
        "fix driver_crashed",
        gpu_checks.gpu_findings(of_gpus(answer=DriverAnswer(crashed="signal 11")), DEFAULT),
    ),
    ("warn driver_other", gpu_checks.gpu_findings(of_gpus(on_bus={"0000:1b:00.0": "nouveau"}), DEFAULT)),
    ("note driver_other", gpu_checks.gpu_findings(of_gpus(on_bus={"0000:1b:00.0": "vfio-pci"}), DEFAULT)),
    ("fix gpu_missing", gpu_checks.gpu_findings(of_gpus(on_bus={"0000:43:00.0": "nvidia"}), DEFAULT)),
    (
        "note gpu_excluded",
        gpu_checks.gpu_findings(
            of_gpus(
                on_bus={"0000:43:00.0": "nvidia"},
                answer=DriverAnswer("615", (READING,), frozenset({"0000:43:00.0"})),
            ),
            DEFAULT,
        ),
    ),
    ("fix gpu_fault", gpu_checks.gpu_findings(of_gpus(structs.replace(READING, fault="ECC")), DEFAULT)),
    ("fix gpu_fault", gpu_checks.gpu_findings(of_gpus(structs.replace(READING, lost=True)), DEFAULT)),
    (
        "fix gpu_recovery",
        gpu_checks.gpu_findings(of_gpus(structs.replace(READING, recovery_action="gpu_reset")), DEFAULT),
    ),
    ("note recovery_untold", gpu_checks.gpu_findings(of_gpus(version="535.129.03"), DEFAULT)),
    (
        "warn mig_not_offered",
        gpu_checks.gpu_findings(of_gpus(structs.replace(READING, mig=True)), SLICES_ONLY),
    ),
    ("warn mig_empty", gpu_checks.gpu_findings(of_gpus(structs.replace(READING, mig=True)), DEFAULT)),
    ("warn gpu_nodes", gpu_checks.gpu_findings(of_gpus(nodes=()), DEFAULT)),
    (
        "note persistence_off",
        gpu_checks.gpu_findings(
            of_gpus(answer=DriverAnswer("615", (READING,), not_persistent=(0,))), DEFAULT
        ),
    ),
    ("warn gpudirect_missing", gpu_checks.gpu_findings(of_gpus(rdma=True, taint="POE"), DEFAULT)),
    ("warn gpudirect_missing", gpu_checks.gpu_findings(of_gpus(rdma=True, taint="OE"), DEFAULT, "5.11.22")),
    (
        "note imex_missing",
        gpu_checks.gpu_findings(of_gpus(structs.replace(READING, nvlink_domain="a.1")), DEFAULT),
    ),
    (
        "note memory_limits_inert",
        gpu_checks.gpu_findings(of_gpus(support=LimitSupport(cgroup2=False)), DEFAULT),
    ),
    ("note memory_limits_inert", gpu_checks.gpu_findings(of_gpus(version="614.99.99"), DEFAULT)),
    ("note runtime_unseen", runtime_checks.runtime_findings(runtime_checks.RuntimeFacts(), DEFAULT, ())),
    ("fix runtime_config_broken", runtime_checks.runtime_findings(settings(broken="line 3"), DEFAULT, ())),
    ("fix cdi_off", runtime_checks.runtime_findings(settings(cdi=False), DEFAULT, ())),
    ("note cdi_maybe_off", runtime_checks.runtime_findings(settings(version=2), DEFAULT, ())),
    ("fix cdi_folder_unread", runtime_checks.runtime_findings(settings(folders=("/etc/cdi",)), DEFAULT, ())),
    (
        "warn cdi_broken",
        runtime_checks.runtime_findings(
            runtime_checks.RuntimeFacts(specs=(runtime_checks.CdiSpec("/etc/cdi/x", broken="y"),)),
            DEFAULT,
            (),
        ),
    ),
    (
        "fix cdi_conflict",
        runtime_checks.runtime_findings(
            runtime_checks.RuntimeFacts(specs=(spec(), spec("/etc/cdi/b.json"))), DEFAULT, (GPU,)
        ),
    ),
    (
        "fix cdi_stale",
        runtime_checks.runtime_findings(
            runtime_checks.RuntimeFacts(specs=(spec(missing=("/usr/lib/x",)),)), DEFAULT, (GPU,)
        ),
    ),
    ("fix cdi_undefined", runtime_checks.runtime_findings(settings(), NO_SPEC, (GPU,))),
    ("fix nvidia_runtime_absent", runtime_checks.runtime_findings(settings(handlers=("runc",)), ENVVAR, ())),
    ("note kubelet_none", kubelet_checks.kubelet_findings(kubelet_checks.KubeletFacts("/k"), DEFAULT, None)),
    (
        "fix kubelet_forbidden",
        kubelet_checks.kubelet_findings(replace(SERVING, forbidden="no"), DEFAULT, None),
    ),
    (
        "fix kubelet_silent",
        kubelet_checks.kubelet_findings(replace(SERVING, unreachable="it is not there"), DEFAULT, None),
    ),
    (
        "fix kubelet_folder_unwritable",
        kubelet_checks.kubelet_findings(replace(SERVING, unwritable="full"), DEFAULT, None),
    ),
    (
        "note agent_not_asked",
        agent_checks.agent_findings(agent_checks.AgentFacts("/s", error="no"), recorded=False),
    ),
    (
        "warn agent_withdraws",
        agent_checks.agent_findings(
            agent_checks.AgentFacts(
                "/s", (DeviceView("0000:18:00.0", "ens1", "nic", State.DOWN, False, True, 1.0, ()),)
            ),
            recorded=False,
        ),
    ),
    (
        "warn agent_waits",
        agent_checks.agent_findings(
            agent_checks.AgentFacts("/s", (), waiting=("listen", "web.hostNames")), recorded=False
        ),
    ),
    (
        "note rules_blind",
        agent_checks.agent_findings(agent_checks.AgentFacts("/s", (WITHOUT_ERRORS,)), recorded=False),
    ),
    (
        "fix mps_not_running",
        mps_checks.mps_findings(mps_checks.MpsFacts(runs=False, gpus=((UUID, "ended"),))),
    ),
    ("warn mps_not_asked", mps_checks.mps_findings(mps_checks.MpsFacts(runs=True))),
    ("fix mps_daemon", mps_checks.mps_findings(mps_checks.MpsFacts(runs=True, gpus=((UUID, "ended"),)))),
    (
        "fix attach_not_running",
        attach_checks.attach_findings(attach_checks.AttachFacts(runs=False)),
    ),
    (
        "fix attach_runtime",
        attach_checks.attach_findings(
            attach_checks.AttachFacts(
                runs=True, state=AttachState(obstacle="nri.sock: No such file or directory")
            )
        ),
    ),
    (
        "fix attach_pod",
        attach_checks.attach_findings(
            attach_checks.AttachFacts(
                runs=True,
                state=AttachState(
                    "containerd 2.1.9", pods=1, waiting=(WaitingPod("default/trainer", "busy"),)
                ),
            )
        ),
    ),
    (
        "fix attach_address",
        attach_checks.attach_findings(
            attach_checks.AttachFacts(
                runs=True,
                state=AttachState("containerd 2.1.9"),
                vfs=1,
                refusals=(("0000:18:00.2", "no number"),),
            )
        ),
    ),
    (
        "note attach_rdma_exclusive",
        attach_checks.attach_findings(attach_checks.AttachFacts(runs=True, rdma_exclusive=True)),
    ),
    (
        "note attach_unreadable",
        attach_checks.attach_findings(attach_checks.AttachFacts(runs=False, error="denied")),
    ),
    ("note mps_unreadable", mps_checks.mps_findings(mps_checks.MpsFacts(runs=False, error="denied"))),
    (
        "warn nvsentinel_absent",
        nvsentinel_checks.nvsentinel_findings(nvsentinel_checks.NvSentinelFacts("/s")),
    ),
    ("note agent_absent", kubelet_checks.kubelet_findings(replace(SERVING, locked=False), DEFAULT, None)),
    (
        "warn plugin_stale",
        kubelet_checks.kubelet_findings(replace(SERVING, sockets={"old.sock": False}), DEFAULT, None),
    ),
    (
        "warn plugin_rival",
        kubelet_checks.kubelet_findings(replace(SERVING, sockets={"nvidia-gpu.sock": True}), DEFAULT, None),
    ),
    (
        "fix resource_claimed",
        kubelet_checks.kubelet_findings(
            replace(SERVING, offered={"nvidia-dgx-h100/gpu-mem": ("GPU-9::0",)}), MEMORY, SNAPSHOT
        ),
    ),
    (
        "fix resource_claimed",
        kubelet_checks.kubelet_findings(
            replace(SERVING, locked=False, offered={"nvidia-dgx-h100/gpu-mem": (f"{UUID}::0",)}),
            MEMORY,
            SNAPSHOT,
        ),
    ),
    (
        "fix device_promised_twice",
        kubelet_checks.kubelet_findings(
            replace(SERVING, offered={"nvidia.com/gpu": (f"{UUID}::3",)}), MEMORY, SNAPSHOT
        ),
    ),
    (
        "fix device_promised_twice",
        kubelet_checks.kubelet_findings(
            replace(SERVING, offered={"openshift.io/mlxnics": (VF.pci_address,)}), BY_CLAIM, SNAPSHOT
        ),
    ),
    (
        "fix device_promised_twice",
        kubelet_checks.kubelet_findings(
            replace(SERVING, offered={"nvidia.com/gpu": (f"{UUID}::3",)}), BY_CLAIM, SNAPSHOT
        ),
    ),
    (
        "warn podresources_absent",
        kubelet_checks.kubelet_findings(replace(SERVING, podresources=False), DEFAULT, None),
    ),
    (
        "note podresources_off",
        kubelet_checks.kubelet_findings(SERVING, config("kubelet: {podResources: false}\n"), None),
    ),
    (
        "warn podresources_refused",
        kubelet_checks.kubelet_findings(replace(SERVING, podresources_error="x"), DEFAULT, None),
    ),
    ("fix net_raw_missing", capabilities.rights_findings(capabilities.ProcessRights(), DEFAULT)),
    ("note net_admin_missing", capabilities.rights_findings(capabilities.ProcessRights(), DEFAULT)),
    (
        "note syslog_missing",
        capabilities.rights_findings(
            capabilities.ProcessRights(kernel_log="/dev/kmsg cannot be opened"), DEFAULT
        ),
    ),
    ("warn not_root", capabilities.rights_findings(capabilities.ProcessRights(uid=1000), DEFAULT)),
    (
        "warn state_unwritable",
        capabilities.rights_findings(
            capabilities.ProcessRights(state=capabilities.StateDirectory("/s", "full")), DEFAULT
        ),
    ),
    (
        "warn state_broken",
        capabilities.rights_findings(
            capabilities.ProcessRights(
                state=capabilities.StateDirectory("/s", broken={"rails.json": "no JSON"})
            ),
            DEFAULT,
        ),
    ),
    (
        "warn history_lost",
        capabilities.rights_findings(
            capabilities.ProcessRights(lost_history="it is mounted read-only"),
            config("history: {file: /var/lib/nodeagent/history.json}\n"),
        ),
    ),
    (
        "fix cordons_broken",
        capabilities.rights_findings(
            capabilities.ProcessRights(state=capabilities.StateDirectory("/s", broken_cordons="no JSON")),
            DEFAULT,
        ),
    ),
    (
        "note sys_read_only",
        capabilities.rights_findings(capabilities.ProcessRights(sys_read_only=True), DEFAULT),
    ),
    (
        "fix folder_unwritable",
        capabilities.rights_findings(capabilities.ProcessRights(folders={"/var/run/cdi": "full"}), DEFAULT),
    ),
]


GOOD_NODE = NodeFacts("dgx-1", "v1.36.2", "containerd://2.1.4", {})
GOOD_CLUSTER = ClusterFacts(
    "https://10.0.0.1",
    served={
        "nodeagent.io": ("v1alpha1", ("nodelinks",)),
        "topology.volcano.sh": ("v1alpha1", ("hypernodes",)),
        "scheduling.volcano.sh": ("v1beta1", ("podgroups",)),
        "kueue.x-k8s.io": ("v1beta2", ("topologies",)),
    },
    checked=("agent",),
    reported=True,
)


def of_cluster(node: NodeFacts | None = None, **fields: object) -> Iterable[Finding]:
    seen = replace(GOOD_CLUSTER, node=node, **fields)
    return cluster_checks.cluster_findings(seen, MEMORY, SNAPSHOT)


def of_node(**fields: object) -> Iterable[Finding]:
    return of_cluster(replace(GOOD_NODE, **fields))


def phantoms_of(
    allocatable: dict[str, str],
    offered: dict[str, tuple[str, ...]] | None = None,
    *,
    locked: bool = True,
    earlier: Collection[str] = (),
) -> list[Finding]:
    """Of a Node with these resources, while the agent offers slices alone."""
    kubelet = replace(SERVING, offered={} if offered is None else offered, locked=locked)
    cluster = replace(GOOD_CLUSTER, node=replace(GOOD_NODE, allocatable=allocatable))
    return list(cluster_checks.phantoms(cluster, kubelet, SLICES_ONLY, SNAPSHOT, earlier=earlier))


def test_devices_under_an_earlier_prefix_are_named_as_far_as_the_agent_remembers_it(tmp_path: Path) -> None:
    (tmp_path / "slices.json").write_text('{"old.example.com/gpu-mem": 1024, "bare": 1024}')
    (tmp_path / "rails.json").write_text(
        f'{{"version": {rail_memory.RAILS_FORM.version}, "names": {{"other.example.com/nic0": ["0000:18:00.1"]}}}}'
    )
    config = structs.replace(DEFAULT, health=structs.replace(DEFAULT.health, state_directory="/"))
    target = Target(Tree(tmp_path), config, recorded=True, kubelet_dir=None)
    earlier = nic_checks.read_stored_nics(target).prefixes
    assert earlier == {"old.example.com", "other.example.com"}
    node = {
        "old.example.com/nic0": "8",
        "other.example.com/nic0": "4",
        "third.example.com/x": "1",
        "cpu": "96",
    }
    assert [it.what.partition(":")[0] for it in phantoms_of(node, earlier=earlier)] == [
        "old.example.com/nic0",
        "other.example.com/nic0",
    ]
    assert not phantoms_of(node)


@pytest.mark.parametrize(
    ("resource", "amount", "offered", "locked", "found"),
    [
        ("nic0", "8", {}, True, True),  # a name that is not offered any more
        ("nic0", "8", {"nvidia-dgx-h100/nic0": ()}, True, True),
        (
            "nic0",
            "0",
            {},
            True,
            False,
        ),  # the kubelet has set it to 0: all are Unhealthy, or it has dropped it
        ("nic0", "8", {"nvidia-dgx-h100/nic0": ("0000:18:00.1",)}, True, False),
        ("gpu-mem", "79", {}, True, False),  # an agent that serves it is about to register it
        ("gpu-mem", "79", {}, False, True),  # no agent runs
    ],
)
def test_devices_that_only_the_node_has_are_named(
    resource: str, amount: str, offered: dict[str, tuple[str, ...]], locked: bool, found: bool
) -> None:
    made = phantoms_of({f"nvidia-dgx-h100/{resource}": amount}, offered, locked=locked)
    assert [one.key for one in made] == ["phantom_devices"] * found
    assert not phantoms_of({f"example.com/{resource}": amount}, offered, locked=locked)


def test_without_an_answer_of_the_kubelet_no_device_is_called_a_phantom() -> None:
    cluster = replace(GOOD_CLUSTER, node=replace(GOOD_NODE, allocatable={"nvidia-dgx-h100/nic0": "8"}))
    for kubelet in (None, replace(SERVING, offered=None)):
        assert not list(cluster_checks.phantoms(cluster, kubelet, SLICES_ONLY, SNAPSHOT))


def serving(**groups: tuple[str, tuple[str, ...]] | None) -> dict[str, tuple[str, tuple[str, ...]] | None]:
    names = {"ours": "nodeagent.io", "volcano": "topology.volcano.sh", "scheduling": "scheduling.volcano.sh"}
    changed = {names.get(name, "kueue.x-k8s.io"): served for name, served in groups.items()}
    return {**GOOD_CLUSTER.served, **changed}


PUBLISHED = DraFacts((1, 36), {}, (PublishedDevice("gpu-0", "gpu"), PublishedDevice("nic-0", "nic", 3)))


def of_claims(
    facts: DraFacts = PUBLISHED,
    configured: Config = BY_CLAIM,
    kubelet: str = "v1.36.2",
    **allocatable: str,
) -> list[Finding]:
    amounts = {f"nvidia-dgx-h100/{name.replace('_', '-')}": amount for name, amount in allocatable.items()}
    return list(dra_checks.claim_findings(facts, configured, amounts, kubelet))


def beside_driver(configured: Config, value: str) -> list[Finding]:
    """NVIDIA's driver has a device with this attribute, and one that is not of this machine."""
    foreign = tuple(
        ForeignDevice("gpu.nvidia.com", name, frozenset({text.lower(), "hopper"}))
        for name, text in (("gpu-7", value), ("gpu-8", "GPU-other"))
    )
    hardware = dra_checks.hardware_words(Offer(configured), SNAPSHOT)
    return list(
        dra_checks.claim_findings(replace(PUBLISHED, foreign=foreign), configured, None, "", hardware)
    )


TAINTED = (PublishedDevice("gpu-0", "gpu", taint="xid_79:NoSchedule"),)
DRA_CASES: list[tuple[str, Iterable[Finding]]] = [
    ("fix version_below_dra", of_claims(replace(PUBLISHED, version=(1, 35)))),
    ("fix version_below_dra", of_claims(kubelet="v1.35.9")),
    ("fix offered_twice", of_claims(gpu_mem="632", nic3="0")),
    ("fix offered_twice", of_claims(nic3="8")),
    (
        "fix offered_twice",
        of_claims(
            DraFacts((1, 36), {}, (PublishedDevice("gpu-2", "gpu", 2),)),
            config("resources:\n- {kind: gpu-mem, name: 'gpu-mem{gpu}'}\n"),
            gpu_mem2="79",
        ),
    ),
    (
        "warn offered_by_other_plugin",
        list(dra_checks.claim_findings(PUBLISHED, BY_CLAIM, {"nvidia.com/gpu": "8"}, "v1.36.2")),
    ),
    ("fix offered_by_other_driver", beside_driver(DEFAULT, UUID)),
    ("fix offered_by_other_driver", beside_driver(DEFAULT, GPU.pci_address.upper())),
    ("fix offered_by_other_driver", beside_driver(BY_CLAIM, UUID)),
    ("fix offered_by_other_driver", beside_driver(BY_CLAIM, VF.pci_address)),
    ("fix class_of_memory", of_claims(replace(PUBLISHED, classes={"x/gpu-mem": "c", "x/nic0": "nic0"}))),
    (
        "warn class_of_plugin",
        of_claims(replace(PUBLISHED, classes={"nvidia-dgx-h100/nic7": "nic7"}), nic7="8"),
    ),
    ("fix not_published", of_claims(replace(PUBLISHED, devices=()))),
    ("note tainted", of_claims(replace(PUBLISHED, devices=TAINTED))),
]


def test_claims_are_fine_where_a_resource_of_another_rail_or_nothing_is_counted() -> None:
    nics = replace(PUBLISHED, devices=PUBLISHED.devices[1:])
    others = [
        list(dra_checks.claim_findings(facts, BY_CLAIM, {"nvidia.com/gpu": amount}, ""))
        for facts, amount in ((PUBLISHED, "0"), (nics, "8"))
    ]
    for found in (of_claims(nic4="8", gpu_mem="0"), of_claims(kubelet="v1.36.0"), *others):
        assert {one.key for one in found} == {"published"}
    assert of_claims(DraFacts((1, 35), {"nvidia.com/gpu": "gpu"}, ()), DEFAULT) == []


def test_a_class_of_a_name_that_the_device_plugin_offers_is_no_fault_without_devices_for_claims() -> None:
    """Pods with claims do not come to such a node."""
    classes = {f"nvidia-dgx-h100/nic{rail}": f"nic{rail}" for rail in range(8)}
    (finding,) = (
        one
        for one in of_claims(replace(PUBLISHED, classes=classes), nic6="0", nic7="8")
        if one.key == "class_of_plugin"
    )
    assert "nic7" in finding.what
    assert "nic6" not in finding.what
    assert of_claims(DraFacts((1, 36), classes, ()), DEFAULT, nic7="8") == []


def test_the_device_of_another_driver_is_named_and_others_are_no_fault() -> None:
    (finding,) = (one for one in beside_driver(DEFAULT, UUID) if one.key == "offered_by_other_driver")
    assert finding.what == f"gpu.nvidia.com has GPU 0 ({UUID}) as gpu-7"
    slices_of_others = beside_driver(config("resources: [{kind: vf}]\n"), UUID)
    assert not [one for one in slices_of_others if one.key == "offered_by_other_driver"]


@pytest.mark.parametrize(("counted", "differs"), [("1k", False), ("1000", False), ("1001", True)])
def test_a_node_counts_devices_in_the_form_of_the_api_server(counted: str, differs: bool) -> None:
    memory = structs.replace(GPU, memory_mib=1001 * 1024)
    node = replace(GOOD_NODE, capacity={"nvidia-dgx-h100/gpu-mem": counted})
    found = cluster_checks.cluster_findings(
        replace(GOOD_CLUSTER, node=node), MEMORY, structs.replace(SNAPSHOT, gpus=(memory,))
    )
    assert ("capacity_differs" in {one.key for one in found}) is differs


def test_hardware_that_is_offered_twice_is_named_with_the_order_of_steps() -> None:
    (finding,) = (one for one in of_claims(nic3="8", gpu_mem="79") if one.key == "offered_twice")
    assert "nvidia-dgx-h100/gpu-mem 79 (and gpu-0 in a slice)" in finding.what
    assert "nvidia-dgx-h100/nic3 8 (and nic-0 in a slice)" in finding.what
    steps = [
        finding.remedy.index(step) for step in ("drain", "wait until no pod", "set one mode", "uncordon")
    ]
    assert steps == sorted(steps)


NOBODY = serving(volcano=None, scheduling=None, kueue=None)
CLUSTER_CASES: list[tuple[str, Iterable[Finding]]] = [
    ("fix cluster_unreachable", of_cluster(error="no route")),
    ("fix rights_missing", of_cluster(denied=(DeniedVerb("agent", NEEDED_RIGHTS["agent"][0], "create"),))),
    ("note hidden", of_cluster(hidden=("the Node x",))),
    ("warn nodelinks_absent", of_cluster(served=serving(ours=None))),
    ("fix crd_version", of_cluster(served=serving(ours=None), other={"nodeagent.io": ("v1",)})),
    ("warn crd_older", of_cluster(lacking=("links[].mac",))),
    ("warn hypernodes_absent", of_cluster(served=serving(volcano=None))),
    ("note schedulers_absent", of_cluster(served=NOBODY)),
    ("note kueue_topology_absent", of_cluster(served=serving(kueue=("v1beta1", ("workloads",))))),
    ("fix volcano_discovers", of_cluster(discoverers=("ufm",))),
    ("warn hypernodes_foreign", of_cluster(foreign={"ufm": 3})),
    ("note node_absent", of_cluster(absent="dgx-9")),
    ("note report_absent", of_cluster(reported=False)),
    ("warn kubelet_old", of_node(kubelet="v1.29.3")),
    ("note kubelet_race", of_node()),
    ("fix kubelet_without_cdi", of_node(kubelet="v1.28.3")),
    ("fix runtime_without_cdi", of_node(runtime="containerd://1.6.33")),
    ("fix runtime_without_cdi", of_node(runtime="cri-o://1.20.1")),
    ("note runtime_cdi_default", of_node(runtime="containerd://1.7.24")),
    ("fix surge", of_cluster(surge="10%")),
    ("warn capacity_differs", of_node(capacity={"nvidia-dgx-h100/gpu-mem": "80"})),
    (
        "fix phantom_devices",
        phantoms_of(
            {"nvidia-dgx-h100/gpu-mem": "79", "nvidia-dgx-h100/nic0": "8", "example.com/dongle": "1"}
        ),
    ),
    ("warn gpus_counted_twice", of_node(capacity={"nvidia.com/gpu": "8"})),
]


CASES += DRA_CASES


@pytest.mark.parametrize(("expected", "found"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_facts_give_the_expected_finding(expected: str, found: Iterable[Finding]) -> None:
    assert expected in {f"{one.level} {one.key}" for one in found}


def test_the_ports_of_a_bond_whose_vfs_are_offered_are_not_left_out() -> None:
    bonded = of_nics(facts=PciFacts(None, (PF, VF), (structs.replace(ROUTED, bonded=True),)))
    offering = config("resources: [{kind: vf, select: {defaultRoute: bond}}]\n")
    assert "default_route" in {it.key for it in nic_checks.nic_findings(bonded, DEFAULT)}
    assert "default_route" not in {it.key for it in nic_checks.nic_findings(bonded, offering)}


def test_a_nic_without_netdev_is_named_with_the_rules_that_are_blind_for_its_transceiver() -> None:
    bare = structs.replace(PF, netdev=None, link_type="infiniband")
    (one,) = (it for it in nic_checks.nic_findings(of_nics(bare), DEFAULT) if it.key == "netdev_absent")
    optics = [rule.key for rule in NIC_RULES if "optics" in rule.key]
    assert one.what == (
        f"{PF.pci_address}: no netdev, so no EEPROM of a transceiver is read; unknown: optics_rx_power, optics_laser, "
        "optics_rx_power_warning; and, unless the driver has a hardware monitor (hwmon) of the module: "
        "optics_temperature, optics_temperature_warning"
    )
    assert [key for key in optics if key not in one.what] == []


BOND = {"ens1": "bond0", "ens2": "bond0"}


@pytest.mark.parametrize(
    ("nics", "key"),
    [
        (lag("ens1", masters=BOND), "ok rdma_lag"),
        (lag("ens1", "rocep24s0f0", masters=BOND), "ok rdma_lag"),  # udev has renamed it
        (lag("ens1", "mlx5_bond_0"), "ok rdma_lag"),  # the ports of one E-Switch, without a bond
        (lag("ens1", masters={"ens1": "bond0", "ens2": "bond1"}), "note rdma_missing"),
        (lag("ens1"), "note rdma_missing"),  # the module was loaded for the first port alone
    ],
)
def test_the_second_port_of_a_roce_lag_lacks_no_rdma_device(nics: nic_checks.NicFacts, key: str) -> None:
    found = [
        f"{it.level} {it.key}" for it in nic_checks.nic_findings(nics, DEFAULT) if it.key.startswith("rdma")
    ]
    assert found == [key]


def test_each_remark_about_nics_is_a_finding_of_their_check_alone() -> None:
    modes = four_nics()
    vf = structs.replace(ib_vf(GUID), mac="00:00:00:00:00:00", parent="0000:18:00.0")
    functions, paths = (*modes.functions, vf), HostPaths(rdma_cm=False)
    snapshot = Snapshot(product="DGXH100", functions=functions, links=modes.links, paths=paths)
    facts = configuration_checks.ConfigurationFacts("f", config("resources: [{kind: vf}]\n"))
    remarks = {it.key for it in Offer(facts.config).troubles(snapshot)}
    assert remarks == {"vf_port", "vf_mac", "rdma_cm", "link_mode"}
    nics = of_nics(facts=structs.replace(modes, functions=functions), rdma_cm=False)
    told = {it.key for it in nic_checks.nic_findings(nics, facts.config)}
    assert told >= {"vf_port_inactive", "vf_mac_missing", "rdma_cm_missing", "link_mode_differs"}
    assert [it.key for it in configuration_checks.configuration_findings(facts, snapshot)] == ["config"]


def test_rdma_cm_is_missed_only_where_vfs_with_rdma_are_offered() -> None:
    able = of_nics(PF, structs.replace(VF, rdma=Rdma("mlx5_8")), rdma_cm=False)
    for nics, config in (
        (able, SLICES_ONLY),
        (replace(able, rdma_cm=True), DEFAULT),
        (of_nics(PF, rdma_cm=False), DEFAULT),
    ):
        assert "rdma_cm_missing" not in {it.key for it in nic_checks.nic_findings(nics, config)}


BARE, SECOND = ib_vf("0000:0000:0000:0000"), structs.replace(VF, pci_address="0000:18:00.2", vf_index=1)


@pytest.mark.parametrize(
    ("vfs", "text", "level"),
    [
        ((BARE,), "resources: [{kind: vf}]", "fix"),
        ((BARE,), "resources: [{kind: vf}]\nhealth: {vfGuids: fromCni}", None),
        ((BARE,), "resources: [{kind: gpu-mem}]", "warn"),
        ((BARE,), "resources: [{kind: vf, select: {vendors: ['8086']}}]", "warn"),
        ((BARE, SECOND), "resources: [{kind: vf}]", "warn"),
        ((BARE, SECOND), "resources: [{kind: vf, select: {vfIndexes: ['0']}}]", "fix"),
        ((BARE, SECOND), "resources: [{kind: vf, select: {vfIndexes: ['1']}}]", "warn"),
        ((BARE, structs.replace(SECOND, driver=None)), "resources: [{kind: vf}]", "fix"),
        ((BARE, structs.replace(SECOND, rdma=None)), "resources: [{kind: vf, vfDriver: rdma}]", "fix"),
    ],
)
def test_a_pf_whose_offered_vfs_all_lack_a_guid_must_be_fixed(
    vfs: tuple[Function, ...], text: str, level: str | None
) -> None:
    found = nic_checks.nic_findings(of_nics(PF, *vfs), config(text + "\n"))
    assert [one.level.value for one in found if one.key == "vf_guid_missing"] == ([level] if level else [])


def test_every_finding_with_a_remedy_has_a_case() -> None:
    wanted = {key for topic in doctor.TOPICS for key, entry in topic.entries.items() if entry.why}
    whole_reports = {"check_hung", "check_failed", "not_known", "no_node"}  # tests/doctor/test_doctor.py
    assert {case[0].split()[1] for case in (*CASES, *CLUSTER_CASES)} == wanted - whole_reports, "add a case"


def levels(found: Iterable[Finding]) -> set[str]:
    return {one.level.value for one in found}


def test_nics_that_lack_the_same_counters_are_one_finding_with_the_rules_that_see_nothing() -> None:
    others = (structs.replace(WITHOUT_ERRORS, name=name, watched=name != "ens3") for name in ("ens2", "ens3"))
    facts = agent_checks.AgentFacts(
        "/s", (WITHOUT_ERRORS, *others, structs.replace(WITHOUT_ERRORS, not_given=()))
    )
    _, *found = agent_checks.agent_findings(facts, recorded=False)
    assert [finding.what for finding in found] == [
        "ens1, ens2: no phy_rx_bits, symbol_errors; unknown: post_fec_errors"
    ]


def test_good_facts_give_ok_findings_only() -> None:
    for found in (
        machine_checks.machine_findings(GOOD_MACHINE, DEFAULT),
        nic_checks.nic_findings(
            of_nics(domains={PF.pci_address: "identity"}, namespace_netdevs=frozenset({"ens1"})),
            DEFAULT,
            {"ens1"},
        ),
        lldp_checks.lldp_findings(lldp_checks.LldpFacts((MLX,), waited_s=35, neighbors=(heard(),)), DEFAULT),
        gpu_checks.gpu_findings(of_gpus(), DEFAULT),
        gpu_checks.gpu_findings(of_gpus(MIG_READING), DEFAULT),
        gpu_checks.gpu_findings(of_gpus(structs.replace(READING, mig=True)), MIG_CLAIMS),
        runtime_checks.runtime_findings(
            replace(settings(handlers=("nvidia",)), specs=(spec(),)), MEMORY, (GPU,)
        ),
        kubelet_checks.kubelet_findings(
            replace(SERVING, offered={"nvidia-dgx-h100/gpu-mem": (f"{UUID}::0",)}), MEMORY, SNAPSHOT
        ),
        capabilities.rights_findings(
            capabilities.ProcessRights(capabilities=frozenset(capabilities.CAPABILITIES)), DEFAULT
        ),
    ):
        assert levels(found) == {"ok"}


def test_disabled_parts_have_no_findings() -> None:
    no_lldp = config("lldp: {source: none}\n")
    assert levels(nic_checks.nic_findings(of_nics(), no_lldp)) == {"ok"}
    assert "net_raw_missing" not in {
        one.key for one in capabilities.rights_findings(capabilities.ProcessRights(), no_lldp)
    }
    assert levels(lldp_checks.lldp_findings(lldp_checks.LldpFacts(), no_lldp)) == {"ok"}
    assert levels(gpu_checks.gpu_findings(of_gpus(answer=None), config("gpu: {driver: none}\n"))) == {"ok"}
    blind = replace(SERVING, podresources=False)
    without_podresources = config("kubelet: {podResources: false}\nresources: []\n")
    assert levels(kubelet_checks.kubelet_findings(blind, without_podresources, None)) == {"ok"}


def test_missing_frames_are_explained_by_the_driver_s_firmware() -> None:
    links = (MLX, LinkSide("ens9", None, "i40e", None), LinkSide("ens10", None, "i40e", None))
    found = [
        one
        for one in lldp_checks.lldp_findings(lldp_checks.LldpFacts(links, waited_s=35), DEFAULT)
        if one.key == "lldp_unheard"
    ]
    assert [one.what.split(" received")[0] for one in found] == ["ens1", "ens9, ens10"]
    assert "LLDP_NB_RX_MODE" in found[0].remedy
    assert "disable-fw-lldp on" in found[1].remedy


def test_specs_conflict_within_one_directory_only() -> None:
    seen = runtime_checks.RuntimeFacts(specs=(spec(), spec("/var/run/cdi/nvidia.json")))
    assert "cdi_conflict" not in {one.key for one in runtime_checks.runtime_findings(seen, DEFAULT, (GPU,))}


def test_var_run_is_the_same_directory_as_run() -> None:
    found = runtime_checks.runtime_findings(settings(folders=("/etc/cdi", "/run/cdi")), DEFAULT, ())
    assert "cdi_folder_unread" not in {one.key for one in found}


def test_the_agents_own_spec_is_good_where_no_vendor_spec_exists() -> None:
    assert levels(runtime_checks.runtime_findings(settings(), MEMORY, (GPU,))) == {"ok"}
    assert HostPaths().vendor_gpus == frozenset()


@pytest.mark.parametrize(
    ("kind", "tool"), [("nvidia.com/gpu", "nvidia-ctk cdi generate"), ("nodeagent.io/gpu", "rollout restart")]
)
def test_a_stale_spec_is_written_again_by_its_own_tool(kind: str, tool: str) -> None:
    stale = spec(kind=kind, missing=("/usr/lib/x",))
    findings = runtime_checks.runtime_findings(runtime_checks.RuntimeFacts(specs=(stale,)), DEFAULT, (GPU,))
    (finding,) = (finding for finding in findings if finding.key == "cdi_stale")
    assert tool in finding.remedy
    assert ("nvidia-ctk" in finding.remedy) == (kind == "nvidia.com/gpu")


def test_a_pf_without_a_driver_is_no_vf_without_one() -> None:
    found = nic_checks.nic_findings(of_nics(structs.replace(PF, driver=None), VF), DEFAULT)
    assert "vf_unbound" not in {one.key for one in found}


@pytest.mark.parametrize(("kind", "defines"), [("nvidia.com/gpu", True), ("nodeagent.io/gpu", False)])
def test_only_a_spec_of_the_vendors_kind_defines_its_gpus(kind: str, defines: bool) -> None:
    facts = replace(settings(), specs=(spec(kind=kind),))
    found = {one.key for one in runtime_checks.runtime_findings(facts, NO_SPEC, (GPU,))}
    assert ("cdi" in found, "cdi_undefined" in found) == (defines, not defines)


def test_a_virtual_machine_is_not_told_to_change_the_firmware_of_its_host() -> None:
    facts = nic_checks.NicFacts(PciFacts(guest=True, functions=(structs.replace(PF, total_vfs=None),)))
    told = [finding.key for finding in nic_checks.nic_findings(facts, DEFAULT)]
    assert "sriov_guest" in told
    assert "iommu_off" not in told
    assert "firmware_lldp_unknown" not in told
    speaking = structs.replace(PF, total_vfs=None, driver="i40e")
    facts = nic_checks.NicFacts(
        PciFacts(guest=True, functions=(speaking,)), flags={"ens1": {"disable-fw-lldp": False}}
    )
    assert "firmware_lldp" not in {one.key for one in nic_checks.nic_findings(facts, TALKING)}


def test_a_guest_is_told_which_nics_can_be_offered_as_a_whole_and_which_cannot() -> None:
    nic = structs.replace(PF, total_vfs=None, num_vfs=None)
    for links, sentence in (
        ((), "none of 1 PF has an SR-IOV capability; as a whole can be offered: ens1"),
        ((ROUTED,), "none of 1 PF has an SR-IOV capability; the host keeps ens1 (default route)"),
    ):
        facts = nic_checks.NicFacts(PciFacts(guest=True, functions=(nic,), links=links))
        found = {one.key: one for one in nic_checks.nic_findings(facts, DEFAULT)}
        assert found["sriov_guest"].what == sentence
        assert "kind: nic" in found["sriov_guest"].remedy
        assert "mlxconfig" not in " ".join(one.remedy for one in found.values())
    offered = config("resources: [{kind: nic}]\n")
    found = {one.key: one for one in nic_checks.nic_findings(facts, offered)}
    assert "sriov_guest" not in found
    assert found["default_route"].what == "ens1 has the default route and is not offered"


def test_a_guest_with_a_port_in_the_wrong_mode_is_sent_to_its_host() -> None:
    facts = structs.replace(
        four_nics(),
        guest=True,
        functions=tuple(structs.replace(pf, total_vfs=None) for pf in four_nics().functions),
    )
    found = {one.key: one for one in nic_checks.nic_findings(of_nics(facts=facts), DEFAULT)}
    odd = found["link_mode_differs"]
    assert "mlxconfig" not in odd.what + odd.remedy
    assert "the host of this virtual machine" in odd.what


def test_a_nic_as_a_whole_with_rdma_needs_rdma_cm_too() -> None:
    nic = structs.replace(PF, total_vfs=None, num_vfs=None)
    found = nic_checks.nic_findings(of_nics(nic, rdma_cm=False), config("resources: [{kind: nic}]\n"))
    assert "rdma_cm_missing" in {one.key for one in found}
