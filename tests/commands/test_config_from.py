"""``config from``: what is written offers what the other program offers, and the rest is named.

``offered_there`` is what sriov-network-device-plugin offers, by the filters in its source (pkg/netdevice,
pkg/resources) and without our converter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.agent_config import check, load
from nodeagent.cli import main
from nodeagent.commands.config_from.foreign_documents import UnreadableFile
from nodeagent.commands.config_from.foreign_keys import (
    HAS_COUNTERPART,
    NVIDIA_FLAGS,
    SRIOV_NIC_SELECTOR,
    SRIOV_POLICY,
    SRIOVDP_RESOURCE,
    SRIOVDP_SELECTORS,
)
from nodeagent.commands.config_from.from_nvidia import slice_size
from nodeagent.commands.config_from.from_sriovdp import draft_of_sriovdp
from nodeagent.commands.config_from.vf_selection import machine_vfs
from nodeagent.facts.model import Function, Snapshot
from nodeagent.kinds.vf import VfPool
from nodeagent.offering.offer import Offer
from tests.support.examples import examples
from tests.support.kind_machines import WITH_DRIVER, dgx, gpu_of, pf_of, vf_of


class Converted:
    """The output of the verb."""

    def __init__(self, code: int, text: str, named: str) -> None:
        self.code, self.text, self.named = code, text, named
        self.lost = [line for line in named.splitlines() if ": lost: " in line]


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call the verb with a text as its file; what it writes must pass ``config check``."""

    def call(program: str, content: object, *options: str) -> Converted:
        path = tmp_path / "theirs"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        capsys.readouterr()
        code = main(["config", "from", program, str(path), *options])
        out, named = capsys.readouterr()
        if code == 2:
            assert out == ""
            assert len(named.splitlines()) == 1, named
        else:
            check(out, name="out")
            assert bool([line for line in named.splitlines() if ": lost: " in line]) == (code == 1), named
        return Converted(code, out, named.replace(str(path), "FILE"))

    return call


# What is offered: a machine with NICs of two vendors, and some of their VFs for DPDK.


def two_vendors() -> Snapshot:
    """Four PFs of ConnectX-7 with RDMA and two of an XXV710, eight VFs each; VFs 6 and 7 of each are for DPDK."""
    pfs = [replace(pf_of(rail), netdev=f"enp{rail}s0", link_type="ethernet") for rail in range(4)]
    pfs += [
        replace(pf_of(rail), vendor="8086", device="158b", driver="i40e", netdev=f"ens{rail}f0", rdma=None)
        for rail in (4, 5)
    ]
    pfs[5] = replace(pfs[5], link_type="ethernet")
    vfs = []
    for pf in pfs:
        for index in range(8):
            vf = vf_of(pf, index)
            if pf.vendor == "8086":
                vf = replace(vf, device="154c", driver="iavf", rdma=None)
            if index > 5:
                vf = replace(vf, driver="vfio-pci", netdev=None, rdma=None)
            vfs.append(vf)
    return Snapshot(revision=1, functions=tuple(sorted((*pfs, *vfs), key=lambda one: one.pci_address)))


MACHINE = two_vendors()
PFS = {function.pci_address: function for function in MACHINE.functions if function.parent is None}
VFS = [function for function in MACHINE.functions if function.parent is not None]


def offered_there(resources: list[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The VFs of each resource by the plugin's filters; a VF belongs to the first resource that selects it."""
    taken: set[str] = set()
    offered: dict[str, set[str]] = {}
    for resource in resources:
        selectors = resource["selectors"]
        for selector in selectors if isinstance(selectors, list) else [selectors]:
            chosen = {vf.pci_address for vf in VFS if _selected_there(selector, vf)} - taken
            taken |= chosen
            offered.setdefault(
                f"{resource.get('resourcePrefix', 'intel.com')}/{resource['resourceName']}", set()
            )
            offered[f"{resource.get('resourcePrefix', 'intel.com')}/{resource['resourceName']}"] |= chosen
    return {name: ids for name, ids in offered.items() if ids}


def _selected_there(selector: Mapping[str, Any], vf: Function) -> bool:
    pf = PFS[vf.parent or ""]

    def listed(key: str, value: str | None) -> bool:
        return not selector.get(key) or value in selector[key]

    def of_pf(key: str, name: str) -> bool:
        item = next((it for it in selector.get(key, ()) if it.partition("#")[0] == name), None)
        if item is None:
            return not selector.get(key)
        _, sign, ranges = item.partition("#")
        return not sign or any(
            int(part.split("-")[0]) <= (vf.vf_index or 0) <= int(part.split("-")[-1])
            for part in ranges.split(",")
        )

    return (
        listed("vendors", vf.vendor)
        and listed("devices", vf.device)
        and listed("drivers", vf.driver)
        and listed("pciAddresses", vf.pci_address)
        and listed("linkTypes", {"ethernet": "ether"}.get(vf.link_type or "", vf.link_type))
        and of_pf("pfNames", pf.netdev or "")
        and of_pf("rootDevices", pf.pci_address)
        and not selector.get("pKeys")
        and (not selector.get("isRdma") or vf.rdma is not None)
    )


def offered_here(text: str) -> dict[str, set[str]]:
    """The VFs of each resource by the agent with this configuration."""
    kinds = Offer(load(text, name="out")).kinds(MACHINE)
    pools = [kind for kind in kinds if isinstance(kind, VfPool)]
    offered = {pool.resource: {id_ for one in pool.devices(MACHINE) for id_ in one.ids} for pool in pools}
    return {name: ids for name, ids in offered.items() if ids}


def test_what_is_compared_is_not_empty() -> None:
    assert {
        name: len(ids)
        for name, ids in offered_there([{"resourceName": "a", "selectors": {"vendors": ["15b3"]}}]).items()
    } == {"intel.com/a": 32}


def lists_of(*values: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True)


NETDEVS = [pf.netdev or "" for pf in PFS.values()]
RANGES = ("", "#0-3", "#0-3,6", "#6-7", "#2")
SELECTORS = st.fixed_dictionaries(
    {},
    optional={
        "vendors": lists_of("15b3", "8086"),
        "devices": lists_of("101e", "154c"),
        "drivers": lists_of("mlx5_core", "iavf", "vfio-pci"),
        "pfNames": lists_of(
            *(f"{name}{sign}" for name in (NETDEVS[0], NETDEVS[1], NETDEVS[4]) for sign in RANGES)
        ),
        "rootDevices": lists_of(*(f"{name}{sign}" for name in (*PFS,)[:2] for sign in RANGES)),
        "pciAddresses": lists_of(VFS[0].pci_address, VFS[9].pci_address),
        "linkTypes": lists_of("ether", "infiniband"),
        "pKeys": lists_of("0x8001"),
        "isRdma": st.booleans(),
    },
)
RESOURCES = st.lists(
    st.one_of(SELECTORS, st.lists(SELECTORS, min_size=1, max_size=2)), min_size=1, max_size=3
).map(
    lambda selectors: [
        {"resourceName": f"r{i}", "selectors": selector} for i, selector in enumerate(selectors)
    ]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300))
@given(RESOURCES)
def test_what_no_line_names_as_lost_offers_the_same_vfs(resources: list[Mapping[str, Any]]) -> None:
    from nodeagent.commands.config import converted_text

    draft = converted_text("sriovdp", [("theirs", json.dumps({"resourceList": resources}))])
    text = draft.text()
    check(text, name="out")
    there = offered_there(resources)
    if not draft.lost:
        here = offered_here(text)
        assert here == there, text
    elif not any("it may select VFs" in str(remark) for remark in draft.remarks):
        for name, ids in offered_here(text).items():
            assert ids <= there.get(name, set()), (name, text)


# Real files: shapes that people have, and what becomes of each.

_POLICY: dict[str, Any] = {
    "apiVersion": "sriovnetwork.openshift.io/v1",
    "kind": "SriovNetworkNodePolicy",
    "metadata": {"name": "p", "namespace": "sriov"},
}


def policy(nic: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    fields = {"resourceName": "r", "nodeSelector": {"sriov": "true"}, "numVfs": 8, "nicSelector": nic, **spec}
    return {**_POLICY, "spec": fields}


def resource(selectors: Any, **more: Any) -> dict[str, Any]:
    return {"resourceList": [{"resourceName": "r", "selectors": selectors, **more}]}


def config_map(content: Any, **more: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.json": json.dumps(content), **more}}


SHARE: dict[str, Any] = {"resourceName": "a", "rdmaHcaMax": 63}


def shared(selectors: Any, **more: Any) -> dict[str, Any]:
    return {"configList": [{**SHARE, "selectors": selectors, **more}]}


SHARED = {"name": "nvidia.com/gpu", "replicas": 4}
MEMORY = ("--gpu-memory", "81559")
SHAPES: list[tuple[str, str, object, tuple[str, ...], int, str]] = [
    # name, program, file, options, number of lost keys, a line of the result
    (
        "of one vendor",
        "sriovdp",
        config_map(resource({"vendors": ["15b3"], "isRdma": True})),
        (),
        0,
        "vfDriver: rdma",
    ),
    (
        "by driver",
        "sriovdp",
        resource({"vendors": ["8086"], "devices": ["154c"], "drivers": ["i40evf", "iavf"]}),
        (),
        0,
        "drivers: [i40e, ice]",
    ),
    (
        "for DPDK",
        "sriovdp",
        resource({"drivers": ["vfio-pci"], "pfNames": ["ens1f0#0-3,7"]}),
        (),
        0,
        'vfIndexes: ["0-3", "7"]',
    ),
    ("with vhost", "sriovdp", resource([{"pfNames": ["a"], "needVhostNet": True}]), (), 0, "vhostNet: true"),
    (
        "empty lists",
        "sriovdp",
        resource(
            {
                "vendors": ["15b3"],
                "devices": [],
                "drivers": [],
                "pfNames": [],
                "rootDevices": [],
                "linkTypes": [],
                "isRdma": True,
            }
        ),
        (),
        0,
        "vfDriver: rdma",
    ),
    (
        "two like selectors",
        "sriovdp",
        resource([{"pfNames": ["a"]}, {"pfNames": ["b"]}]),
        (),
        0,
        "netdevs: [a, b]",
    ),
    (
        "two unlike selectors",
        "sriovdp",
        resource([{"pfNames": ["a"]}, {"vendors": ["8086"]}]),
        (),
        1,
        "netdevs: [a]",
    ),
    (
        "host devices",
        "sriovdp",
        resource({"vendors": ["15b3"], "pciAddresses": ["0000:1a:00.0"]}),
        (),
        1,
        "# - kind: vf",
    ),
    (
        "DDP profiles",
        "sriovdp",
        resource([{"pfNames": ["a"], "ddpProfiles": ["GTPv1-C/U IPv4/IPv6 payload"]}]),
        (),
        1,
        "resources: []",
    ),
    ("an FPGA", "sriovdp", resource({"vendors": ["8086"]}, deviceType="accelerator"), (), 1, "resources: []"),
    (
        "sub-functions",
        "sriovdp",
        resource([{"auxTypes": ["sf"]}], deviceType="auxNetDevice"),
        (),
        1,
        "resources: []",
    ),
    ("vDPA", "sriovdp", resource({"pfNames": ["a"], "vdpaType": "vhost"}), (), 1, "# - kind: vf"),
    ("without topology", "sriovdp", resource({"pfNames": ["a"]}, excludeTopology=True), (), 1, "- kind: vf"),
    (
        "more variables",
        "sriovdp",
        resource({"pfNames": ["a"]}, additionalInfo={"*": {"token": "x"}}),
        (),
        1,
        "- kind: vf",
    ),
    (
        "UIO",
        "sriovdp",
        resource({"drivers": ["igb_uio", "vfio-pci"], "pfNames": ["a"]}),
        (),
        1,
        "vfDriver: vfio-pci",
    ),
    (
        "mlx5_ib as a driver",
        "sriovdp",
        resource({"vendors": ["15b3"], "drivers": ["mlx5_ib"]}),
        (),
        0,
        "# - kind: vf",
    ),
    (
        "a short address",
        "sriovdp",
        resource({"rootDevices": ["1a:00.0"]}),
        (),
        0,
        'pciAddresses: ["0000:1a:00.0"]',
    ),
    (
        "YAML in a playbook",
        "sriovdp",
        "resourceList:\n- resourceName: virtio\n  selectors: {vendors: [1af4], devices: ['1000']}\n",
        (),
        1,
        "# - kind: vf",
    ),
    (
        "a NicClusterPolicy",
        "sriovdp",
        {
            "kind": "NicClusterPolicy",
            "spec": {
                "sriovDevicePlugin": {
                    "config": json.dumps(resource({"vendors": ["15b3"]}, resourcePrefix="nvidia.com"))
                }
            },
        },
        (),
        0,
        "resourcePrefix: nvidia.com",
    ),
    (
        "a policy for a whole NIC's VFs",
        "sriov-operator",
        policy({"vendor": "15b3", "deviceID": "101d", "pfNames": ["p2"]}, isRdma=True, mtu=9000),
        (),
        0,
        "  mtu: 9000",
    ),
    (
        "a policy by address",
        "sriov-operator",
        policy({"rootDevices": ["0000:5c:00.0"]}, deviceType="vfio-pci"),
        (),
        0,
        "  driver: vfio-pci",
    ),
    (
        "a part of the VFs",
        "sriov-operator",
        policy({"pfNames": ["ens1#0-3"]}, deviceType="vfio-pci"),
        (),
        0,
        '  vfIndexes: ["0-3"]',
    ),
    (
        "InfiniBand",
        "sriov-operator",
        policy({"vendor": "15b3"}, linkType="IB", isRdma=True),
        (),
        0,
        "  guid: auto",
    ),
    (
        "offload",
        "sriov-operator",
        policy({"pfNames": ["a"]}, eSwitchMode="switchdev", bridge={"ovs": {}}),
        (),
        2,
        "- kind: vf",
    ),
    (
        "a cloud's network",
        "sriov-operator",
        policy({"netFilter": "openstack/NetworkID:x"}),
        (),
        1,
        "# - kind: vf",
    ),
    (
        "made by something else",
        "sriov-operator",
        policy({"pfNames": ["a"]}, externallyManaged=True),
        (),
        0,
        "- kind: vf",
    ),
    ("pfName in place of pfNames", "sriov-operator", policy({"pfName": ["a"]}), (), 1, "# - kind: vf"),
    (
        "whole GPUs",
        "nvidia",
        {"version": "v1", "flags": {"migStrategy": "none", "plugin": {"deviceListStrategy": "cdi-cri"}}},
        (),
        0,
        "  deviceListStrategy: cdi",
    ),
    (
        "time slicing",
        "nvidia",
        {"version": "v1", "sharing": {"timeSlicing": {"resources": [SHARED]}}},
        MEMORY,
        0,
        "  sliceMiB: 20261",
    ),
    (
        "time slicing without a memory",
        "nvidia",
        {"version": "v1", "sharing": {"timeSlicing": {"resources": [SHARED]}}},
        (),
        1,
        "  sliceMiB: 20261",
    ),
    (
        "one replica for each",
        "nvidia",
        {
            "version": "v1",
            "sharing": {
                "timeSlicing": {
                    "failRequestsGreaterThanOne": True,
                    "renameByDefault": True,
                    "resources": [SHARED],
                }
            },
        },
        MEMORY,
        1,
        "  name: gpu.shared",
    ),
    (
        "MPS",
        "nvidia",
        {"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 10}]}}},
        MEMORY,
        0,
        "  enforcement: mps",
    ),
    (
        "MIG devices in time slices",
        "nvidia",
        {
            "version": "v1",
            "flags": {"migStrategy": "mixed"},
            "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 2}]}},
        },
        (),
        1,
        '  name: "mig-{profile}"',
    ),
    (
        "NICs without VFs by the ID of PFs",
        "sriovdp",
        resource({"vendors": ["15b3"], "devices": ["1021"], "drivers": ["mlx5_core"], "isRdma": True}),
        (),
        0,
        "- kind: nic",
    ),
    (
        "a PF's ID beside one of VFs",
        "sriovdp",
        resource({"vendors": ["15b3"], "devices": ["1021", "101e"]}),
        (),
        1,
        "- kind: vf",
    ),
    ("a policy without VFs", "sriov-operator", policy({"pfNames": ["a"]}, numVfs=0), (), 0, "- kind: nic"),
    (
        "an HCA for many",
        "rdma-shared",
        config_map(shared({"ifNames": ["ens1f0"]}, resourcePrefix="example.com")),
        (),
        0,
        "    defaultRoute: always",
    ),
    (
        "NICs of AMD",
        "sriovdp",
        resource({"vendors": ["1dd8"], "devices": ["1003"], "drivers": ["ionic"], "isRdma": True}),
        (),
        0,
        'devices: ["1002"]',
    ),
    (
        "whole NICs of AMD",
        "sriovdp",
        resource({"vendors": ["1dd8"], "devices": ["1002"], "drivers": ["ionic"], "isRdma": True}),
        (),
        0,
        "  driver: rdma",
    ),
    ("by devices", "rdma-shared", {"configList": [{**SHARE, "devices": ["ib0"]}]}, (), 0, "  shares: 63"),
    ("several HCAs", "rdma-shared", shared({"vendors": ["15b3"]}), (), 1, "- kind: rdma"),
    ("shares of VFs", "rdma-shared", shared({"deviceIDs": ["1018"]}), (), 1, "# - kind: rdma"),
    (
        "more shares than pods",
        "rdma-shared",
        shared({"ifNames": ["ib0"], "linkTypes": ["infiniband"]}, rdmaHcaMax=2000),
        (),
        1,
        "  shares: 1000",
    ),
    (
        "in a NicClusterPolicy",
        "rdma-shared",
        {
            "kind": "NicNodePolicy",
            "spec": {"rdmaSharedDevicePlugin": {"config": json.dumps(shared({"ifNames": ["ib0"]}))}},
        },
        (),
        0,
        "resourcePrefix: rdma",
    ),
    (
        "one HCA in two resources",
        "rdma-shared",
        {
            "configList": [
                {**SHARE, "devices": ["ib0"]},
                {**SHARE, "resourceName": "b", "selectors": {"ifNames": ["ib0"]}},
            ]
        },
        (),
        2,
        "- kind: rdma",
    ),
    (
        "GDS and IMEX",
        "nvidia",
        {
            "version": "v1",
            "flags": {"gdsEnabled": True, "migStrategy": "single"},
            "imex": {"channelIDs": [0]},
        },
        (),
        3,
        "- kind: gpu",
    ),
]


@pytest.mark.parametrize(
    ("program", "content", "options", "lost", "line"),
    [row[1:] for row in SHAPES],
    ids=[row[0] for row in SHAPES],
)
def test_a_shape_that_people_have(
    convert: Any, program: str, content: object, options: tuple[str, ...], lost: int, line: str
) -> None:
    made = convert(program, content, *options)
    assert len(made.lost) == lost, made.named
    assert line in made.text, made.text


LOST = [
    *(("sriovdp", "resource", key) for key, why in SRIOVDP_RESOURCE.items() if why != HAS_COUNTERPART),
    *(("sriovdp", "selector", key) for key, why in SRIOVDP_SELECTORS.items() if why != HAS_COUNTERPART),
    *(("sriov-operator", "policy", key) for key, why in SRIOV_POLICY.items() if why != HAS_COUNTERPART),
    *(("sriov-operator", "nic", key) for key, why in SRIOV_NIC_SELECTOR.items() if why != HAS_COUNTERPART),
    *(("nvidia", "flags", key) for key, why in NVIDIA_FLAGS.items() if why != HAS_COUNTERPART),
]


@pytest.mark.parametrize(("program", "where", "key"), LOST)
def test_a_key_without_counterpart_is_named_while_it_is_in_use(
    convert: Any, program: str, where: str, key: str
) -> None:
    def with_value(value: object) -> object:
        more = {key: value}
        return {
            "resource": lambda: resource({"pfNames": ["a"]}, **more),
            "selector": lambda: resource({"pfNames": ["a"], **more}),
            "policy": lambda: policy({"pfNames": ["a"]}, **more),
            "nic": lambda: policy({"pfNames": ["a"], **more}),
            "flags": lambda: {"version": "v1", "flags": more},
        }[where]()

    used = convert(program, with_value("x"))
    assert [line for line in used.lost if f".{key}: lost: " in line], used.named
    for unused in (None, False, "", []):
        assert convert(program, with_value(unused)).lost == [], unused


@pytest.mark.parametrize("case", ["RESOURCELIST", "resourcelist"])
def test_keys_of_sriovdp_have_no_case_as_in_its_reader(convert: Any, case: str) -> None:
    made = convert(
        "sriovdp", {case: [{"ResourceName": "r", "SELECTORS": {"pfnames": ["a"], "ISRDMA": True}}]}
    )
    assert (made.code, "netdevs: [a]" in made.text, "vfDriver: rdma" in made.text) == (0, True, True)


def test_a_name_with_the_signs_of_a_glob_is_that_name(convert: Any) -> None:
    made = convert("sriovdp", resource({"pfNames": ["rail[0]*"]}))
    select = load(made.text, name="out").resources[0].select  # type: ignore[union-attr]
    assert select.netdevs == ("rail[[]0][*]",)


def test_the_first_resource_keeps_the_pfs_that_the_second_selects_too(convert: Any) -> None:
    resources = [
        {"resourceName": "a", "selectors": {"pfNames": [NETDEVS[0]]}},
        {"resourceName": "b", "selectors": {"vendors": ["15b3"]}},
    ]
    made = convert("sriovdp", {"resourceList": resources})
    assert made.code == 0
    assert offered_here(made.text) == offered_there(resources)


# VFs by address, on the machine that has them.


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(200))
@example([VFS[0].pci_address], {"vendors": ["15b3"], "drivers": ["iavf", "vfio-pci"]})
@given(
    st.lists(st.sampled_from([vf.pci_address for vf in VFS]), min_size=1, max_size=12, unique=True), SELECTORS
)
def test_vfs_by_address_are_those_of_this_machine(addresses: list[str], selector: dict[str, Any]) -> None:
    resources = [{"resourceName": "r", "selectors": {**selector, "pciAddresses": addresses}}]
    made = draft_of_sriovdp(
        [("theirs", json.dumps({"resourceList": resources}))], None, None, machine_vfs(MACHINE.functions)
    )
    there = offered_there(resources)
    here = offered_here(made.text())
    if made.lost:
        assert here.get("intel.com/r", set()) <= there.get("intel.com/r", set()), made.text()
    else:
        assert here == there, made.text()


def test_an_address_that_is_no_vf_of_this_machine_is_named(convert: Any, tmp_path: Path) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    theirs = resource({"pciAddresses": ["0000:aa:00.1"]})
    made = convert("sriovdp", theirs, "--root", str(tmp_path / "root"))
    assert (made.code, "--root /" in made.named) == (1, True), "a machine without VFs is none to ask"
    assert convert("sriovdp", theirs, "--root", str(tmp_path / "none")).code == 2
    machine = machine_vfs(MACHINE.functions)
    lost = [
        str(remark) for remark in draft_of_sriovdp([("f", json.dumps(theirs))], None, None, machine).remarks
    ]
    assert '"0000:aa:00.1" is not a VF of this machine' in lost[0]


def test_an_id_of_vfs_that_no_table_has_is_that_of_this_machine() -> None:
    machine = machine_vfs([replace(one, device="9999") if one.parent else one for one in MACHINE.functions])
    made = draft_of_sriovdp([("f", json.dumps(resource({"devices": ["9999"]})))], None, None, machine)
    assert (made.lost, made.resources[0].settings["select"]) == (False, {"devices": ["1021", "158b"]})


# NICs without VFs: that plugin offers them as it does VFs.


def whole_nics() -> Snapshot:
    """The PFs of ``MACHINE``, without VFs."""
    return replace(MACHINE, functions=tuple(replace(pf, num_vfs=0) for pf in PFS.values()))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({"pciAddresses": [*PFS][:2]}, [*PFS][:2]),
        ({"vendors": ["15b3"], "isRdma": True}, [*PFS][:4]),
        ({"vendors": ["8086"], "devices": ["158b"], "drivers": ["i40e"]}, [*PFS][4:]),
        ({"pfNames": ["enp1s0"], "linkTypes": ["ether"]}, [*PFS][1:2]),
        ({"rootDevices": [*PFS][:2], "pciAddresses": [*PFS][1:3]}, [*PFS][1:2]),
        ({"drivers": ["vfio-pci"]}, []),
    ],
)
def test_nics_without_vfs_are_offered_whole_on_their_machine(
    selector: Mapping[str, Any], names: list[str]
) -> None:
    machine = whole_nics()
    theirs = json.dumps(resource(selector))
    made = draft_of_sriovdp([("theirs", theirs)], None, None, machine_vfs(machine.functions))
    assert not made.lost, made.remarks
    kinds = Offer(load(made.text(), name="out")).kinds(machine)
    assert [id_ for kind in kinds for devices in kind.devices(machine) for id_ in devices.ids] == names
    assert {kind.resource for kind in kinds if list(kind.devices(machine))} == (
        {"intel.com/r"} if names else set()
    )


def test_nics_with_and_without_vfs_are_no_one_entry() -> None:
    whole, *others = MACHINE.functions
    functions = [replace(whole, num_vfs=0), *(one for one in others if one.parent != whole.pci_address)]
    theirs = json.dumps(resource({"pciAddresses": [whole.pci_address, VFS[9].pci_address]}))
    made = draft_of_sriovdp([("theirs", theirs)], None, None, machine_vfs(functions))
    assert [remark.lost for remark in made.remarks] == [True, False]
    assert "is a NIC without VFs, beside VFs" in made.remarks[0].text


def test_shares_of_one_hca_are_as_many_as_there(convert: Any) -> None:
    made = convert("rdma-shared", shared({"ifNames": [NETDEVS[1]]}, resourcePrefix="nvidia.com"))
    machine = replace(MACHINE, paths=WITH_DRIVER)
    (kind,) = Offer(load(made.text, name="out")).kinds(machine)
    assert (made.code, kind.resource) == (0, "nvidia.com/a")
    assert [(devices.parent, len(devices.ids)) for devices in kind.devices(machine)] == [([*PFS][1], 63)]


# The operator.


def test_policies_for_several_kinds_of_nodes_ask_for_the_labels_of_one(convert: Any) -> None:
    policies = {
        "kind": "List",
        "items": [
            policy({"pfNames": ["a"]}, resourceName="one", nodeSelector={"role": "x"}),
            policy({"pfNames": ["b"]}, resourceName="two", nodeSelector={"role": "y", "zone": ""}),
        ],
    }
    made = convert("sriov-operator", policies)
    assert (made.code, "--labels" in made.named, "role=x; role=y,zone=" in made.named) == (2, True, True)
    made = convert("sriov-operator", policies, "--labels", "role=y,zone=,more=1")
    assert (made.code, "name: two" in made.text, "name: one" in made.text) == (0, True, False)
    assert convert("sriov-operator", policies, "--labels", "role=z").code == 2


def test_policies_with_one_resource_name_are_one_resource_as_there(convert: Any) -> None:
    documents = [
        policy({"pfNames": ["a#0-3"]}, resourceName="x"),
        policy({"pfNames": ["b#0-3"]}, resourceName="x"),
    ]
    made = convert("sriov-operator", "\n---\n".join(map(json.dumps, documents)))
    assert made.code == 0
    config = load(made.text, name="out")
    assert [entry.select.netdevs for entry in config.resources] == [("a", "b")]  # type: ignore[union-attr]
    assert [(entry.select.netdevs, entry.count) for entry in config.vfs] == [(("a",), 8), (("b",), 8)]


def test_two_policies_of_one_pf_with_different_counts_are_not_both_written(convert: Any) -> None:
    documents = [
        policy({"pfNames": ["a#0-3"]}, resourceName="x", numVfs=4),
        policy({"pfNames": ["a#4-7"]}, resourceName="y", numVfs=8),
    ]
    made = convert("sriov-operator", "\n---\n".join(map(json.dumps, documents)))
    assert made.code == 1
    assert [entry.count for entry in load(made.text, name="out").vfs] in ([4], [8])


def test_networks_and_other_objects_are_named(convert: Any) -> None:
    network = {"kind": "SriovNetwork", "metadata": {"name": "net"}, "spec": {"resourceName": "r"}}
    items = [network, {"kind": "Namespace"}, policy({"pfNames": ["a"]})]
    made = convert("sriov-operator", {"kind": "List", "items": items})
    assert "FILE: net: lost: the operator makes a NetworkAttachmentDefinition" in made.named
    assert '"Namespace" is not read' in made.named


# NVIDIA's plugin: as many devices of each GPU as there are replicas.


@pytest.mark.parametrize("memory", [15360, 23034, 40960, 81559, 143771])
@pytest.mark.parametrize("replicas", [2, 3, 4, 7, 10, 16, 48])
def test_a_gpu_offers_as_many_devices_as_it_has_replicas(convert: Any, memory: int, replicas: int) -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": replicas}]}}
    made = convert("nvidia", {"version": "v1", "sharing": sharing}, "--gpu-memory", str(memory))
    assert made.code == 0
    gpus = Snapshot(gpus=tuple(gpu_of(index, memory_mib=memory) for index in range(2)), paths=WITH_DRIVER)
    (kind,) = Offer(load(made.text, name="out")).kinds(gpus)
    assert kind.resource == "nvidia.com/gpu"
    assert [len(devices.ids) for devices in kind.devices(gpus)] == [replicas, replicas]


def test_whole_gpus_are_offered_under_the_same_name(convert: Any) -> None:
    made = convert("nvidia", {"version": "v1", "flags": {"migStrategy": "none"}})
    machine = replace(dgx(), paths=WITH_DRIVER)
    (kind,) = Offer(load(made.text, name="out")).kinds(machine)
    assert (kind.resource, sum(len(devices.ids) for devices in kind.devices(machine))) == (
        "nvidia.com/gpu",
        8,
    )


def test_no_slice_fits_more_replicas_than_there_is_memory() -> None:
    assert slice_size(612, 100) == 1
    assert slice_size(612, 101) is None
    assert slice_size(100, 1) is None


# Bad files: one line, exit 2, nothing on stdout.

NINE_TO_THE_NINTH = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
BAD: dict[str, tuple[str, str]] = {
    "nothing": ("sriovdp", ""),
    "no YAML": ("sriovdp", "{a: [}"),
    "a list": ("sriovdp", "[1]"),
    "a text": ("nvidia", "hello"),
    "not this program": ("sriovdp", "version: v1\nflags: {}\n"),
    "nor this": ("nvidia", '{"resourceList": []}'),
    "nor a policy": ("sriov-operator", "kind: Pod\n"),
    "a resource without keys": ("sriovdp", '{"resourceList": [1]}'),
    "a resource without a name": ("sriovdp", '{"resourceList": [{"selectors": {}}]}'),
    "a name twice": ("sriovdp", json.dumps({"resourceList": resource({})["resourceList"] * 2})),
    "no selector": ("sriovdp", json.dumps(resource([]))),
    "a list that is a text": ("sriovdp", json.dumps(resource({"vendors": "15b3"}))),
    "a selector that is a text": ("sriovdp", json.dumps(resource("15b3"))),
    "a wrong truth": ("sriovdp", json.dumps(resource({"isRdma": "maybe"}))),
    "a wrong type": ("sriovdp", json.dumps(resource({}, deviceType="gpu"))),
    "a wrong prefix": ("sriovdp", json.dumps(resource({"pfNames": ["a"]}, resourcePrefix="a b"))),
    "aliases": ("sriovdp", NINE_TO_THE_NINTH),
    "an alias to itself": ("sriovdp", "resourceList: &a [*a]\n"),
    "deep": ("sriovdp", "[" * 5000),
    "control characters": ("sriovdp", "resourceList: \x1b[2J\x00\n"),
    "a key that is a list": ("nvidia", "version: v1\n? [a]\n: b\n"),
    "a ConfigMap of several": ("nvidia", "kind: ConfigMap\ndata: {a: 'version: v1', b: 'version: v1'}\n"),
    "a ConfigMap of none": ("nvidia", "kind: ConfigMap\ndata: {}\n"),
    "a ConfigMap with a list": ("sriovdp", "kind: ConfigMap\ndata: {a: '[]'}\n"),
    "a NicClusterPolicy without it": ("sriovdp", "kind: NicClusterPolicy\nspec: {}\n"),
    "another version": ("nvidia", "version: v2\n"),
    "replicas of no resource": ("nvidia", "version: v1\nsharing: {timeSlicing: {replicas: 4}}\n"),
    "one replica": (
        "nvidia",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}\n",
    ),
    "too many replicas": (
        "nvidia",
        "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 999999999}]}}\n",
    ),
    "both ways": (
        "nvidia",
        "version: v1\nsharing: {timeSlicing: &way {resources: [{name: gpu, replicas: 2}]}, mps: *way}\n",
    ),
    "a wrong strategy": ("nvidia", "version: v1\nflags: {plugin: {deviceListStrategy: [x]}}\n"),
    "shares of nothing": ("rdma-shared", json.dumps(shared({}))),
    "shares twice named": ("rdma-shared", json.dumps(shared({"ifNames": ["a"]}, devices=["a"]))),
    "shares of another program": ("rdma-shared", '{"resourceList": []}'),
    "a policy without a name": ("sriov-operator", json.dumps(policy({"pfNames": ["a"]}, resourceName=""))),
    "a count that is no number": ("sriov-operator", json.dumps(policy({"pfNames": ["a"]}, numVfs="many"))),
    "a policy for another link": ("sriov-operator", json.dumps(policy({"pfNames": ["a"]}, linkType="fc"))),
    "a policy without a spec": ("sriov-operator", json.dumps(_POLICY)),
}


@pytest.mark.parametrize(("program", "content"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_line_and_exit_code_2(convert: Any, program: str, content: str) -> None:
    made = convert(program, content)
    assert made.code == 2
    assert made.named.startswith(("FILE", "the converted configuration")), made.named
    assert made.named.isprintable() or made.named.rstrip("\n").isprintable()


def test_a_key_of_a_config_map_is_chosen(convert: Any) -> None:
    maps = {
        "kind": "ConfigMap",
        "data": {"a": "version: v1\n", "b": "version: v1\nflags: {migStrategy: mixed}\n"},
    }
    assert "kind: mig" in convert("nvidia", maps, "--key", "b").text
    made = convert("nvidia", maps, "--key", "c")
    assert (made.code, 'there are "a", "b"' in made.named) == (2, True)


def test_a_missing_file_is_an_error_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "from", "sriovdp", str(tmp_path / "none")]) == 2
    assert "none: cannot be read: No such file or directory" in capsys.readouterr().err


def test_no_text_of_a_file_ends_a_comment_of_the_result(convert: Any) -> None:
    name = "x\nkind: evil\u2028kind: more\x85listen: ':1'"
    made = convert("sriov-operator", {**policy({"pfNames": ["a"]}), "metadata": {"name": name}})
    assert "listen" not in re.sub("(?m)#.*$", "", made.text)


def test_an_unreadable_file_says_where() -> None:
    from nodeagent.commands.config import converted_text

    with pytest.raises(UnreadableFile, match=r"^theirs:2:\d+: cannot be read: "):
        converted_text("nvidia", [("theirs", "version: v1\n  flags: {\n")])
