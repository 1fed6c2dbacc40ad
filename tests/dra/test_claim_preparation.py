"""One claim: the devices of its allocation, the sums, the VFs, and what a container gets."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.dra.claim_preparation import CDI_KIND, prepare_claim
from nodeagent.dra.device_taints import taints
from nodeagent.dra.devices import Occupied
from nodeagent.dra.gpu_device import GpuDevice
from nodeagent.dra.prepared_claim import PreparedClaim, holdings
from nodeagent.facts.cdi import spec
from nodeagent.facts.model import CORDONED, Health, Holding, LimitSupport, Reason, Snapshot
from nodeagent.health.cordons import with_cordon
from nodeagent.kinds import Refused
from tests.support.dra_node import (
    CONFIG,
    NODE,
    claim_of,
    decoded,
    devices_of,
    gpus_of,
    machine,
    pfs_of,
    result,
)
from tests.support.kind_machines import SICK


def prepared(
    claim: dict[str, Any],
    snapshot: Snapshot,
    others: tuple[PreparedClaim, ...] = (),
    text: str = CONFIG,
) -> PreparedClaim:
    return prepare_claim(
        decoded(claim),
        node=NODE,
        devices=devices_of(snapshot, text),
        snapshot=snapshot,
        others=others,
        sequence=len(others) + 1,
    )


def env_of(record: PreparedClaim, index: int = 0) -> dict[str, str]:
    return dict(record.edits[f"{record.uid}-{index}"].env)


def test_a_claim_gets_a_share_of_one_gpu_and_a_vf_of_one_pf() -> None:
    facts = machine()
    gpu, pf = gpus_of(facts)[1], pfs_of(facts)[1]
    claim = claim_of("c", result(pf, 1, "rail"), result(gpu, 40 * 1024, "memory/small"))
    record = prepared(claim, facts)
    vf, share = record.devices
    assert (vf.request, vf.device, vf.vfs) == ("rail", pf.name, (pf.vfs[0],))
    assert (share.request, share.device, share.amount) == ("memory", gpu.name, 40960)
    assert vf.cdi_devices == (f"{CDI_KIND}={record.uid}-0",)
    assert share.cdi_devices == (f"{CDI_KIND}={record.uid}-1", f"nodeagent.io/gpu={gpu.gpu.uuid}")
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [device.share_id for device in record.devices] == [it["shareID"] for it in results]
    assert env_of(record)["PCIDEVICE_NVIDIA-DGX-H100_NIC1"] == pf.vfs[0], "as a device plugin gives it"
    assert (
        env_of(record, 1)["NODEAGENT_GPU_MEM_MIB"]
        == env_of(record, 1)["NODEAGENT_GPU_MEM_MIB_MEMORY"]
        == "40960"
    )
    assert [info.name for info in record.device_info] == [f"nvidia-dgx-h100-nic1-{pf.vfs[0]}-device.json"]
    spec(CDI_KIND, record.edits)


def test_the_device_nodes_of_a_vf_are_in_the_spec_of_the_claim() -> None:
    facts = machine(paths=replace(machine().paths, rdma_cm=True))
    record = prepared(claim_of("c", result(pfs_of(facts)[0], 1, "r0")), facts)
    nodes = [node.container_path for node in record.edits[f"{record.uid}-0"].device_nodes]
    assert nodes[0].startswith("/dev/infiniband/uverbs")
    assert nodes[-1] == "/dev/infiniband/rdma_cm"


def test_several_vfs_of_one_request_are_in_the_variables_of_each_of_its_devices() -> None:
    facts = machine()
    pf = pfs_of(facts)[0]
    record = prepared(claim_of("c", result(pf, 1, "r"), result(pf, 2, "r"), result(pf, 1, "other")), facts)
    assert (
        env_of(record, 0)["NODEAGENT_VFS_R"] == env_of(record, 1)["NODEAGENT_VFS_R"] == ",".join(pf.vfs[:3])
    )
    assert env_of(record, 2)["NODEAGENT_VFS_OTHER"] == pf.vfs[3]


def test_a_request_with_several_rails_names_the_vfs_of_all_in_each_of_its_devices() -> None:
    """The runtime merges the variables of a container's CDI devices, and of equal names the last one counts."""
    facts = machine()
    one, two = pfs_of(facts)[:2]
    record = prepared(claim_of("c", result(one, 1, "r"), result(two, 1, "r")), facts)
    vfs = f"{one.vfs[0]},{two.vfs[0]}"
    assert [env_of(record, index)["NODEAGENT_VFS_R"] for index in (0, 1)] == [vfs, vfs]
    admin = claim_of("m", result(one, 0, "all", **ADMIN), result(two, 0, "all", **ADMIN))
    record = prepared(admin, facts)
    pfs = {"NODEAGENT_PFS_ALL": f"{one.pf.pci_address},{two.pf.pci_address}"}
    assert [env_of(record, index) for index in (0, 1)] == [pfs, pfs]


def test_devices_of_another_driver_in_the_claim_are_not_touched() -> None:
    facts = machine()
    foreign = {"request": "g", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    record = prepared(claim_of("c", foreign, result(pfs_of(facts)[0], 1, "r")), facts)
    assert [device.request for device in record.devices] == ["r"]
    assert prepared(claim_of("c", foreign), facts).devices == ()


def test_the_sum_of_all_claims_never_exceeds_a_gpu_or_a_pf() -> None:
    facts = machine()
    gpu, pf = gpus_of(facts)[0], pfs_of(facts)[0]
    first = prepared(claim_of("a", result(gpu, 60 * 1024, "g"), result(pf, 3, "r")), facts)
    with pytest.raises(Occupied, match=r"memory, and other claims hold 61440Mi of 80896Mi"):
        prepared(claim_of("b", result(gpu, 20 * 1024, "g")), facts, (first,))
    with pytest.raises(Occupied, match=r"has 2 of vfs, and other claims hold 3 of 4"):
        prepared(claim_of("c", result(pf, 1, "x"), result(pf, 1, "y")), facts, (first,))
    second = prepared(claim_of("d", result(gpu, 19 * 1024, "g"), result(pf, 1, "r")), facts, (first,))
    assert second.devices[1].vfs == (pf.vfs[3],)


def test_a_claim_on_a_device_that_has_shrunk_names_no_other_claim() -> None:
    """VFs were removed, or a smaller GPU or slice is in its place."""
    facts = machine()
    gpu, pf = gpus_of(facts)[0], pfs_of(facts)[0]
    with pytest.raises(Refused, match=r"has 5 of vfs, more than the 4 that the device has now") as refused:
        prepared(claim_of("a", result(pf, 5, "r")), facts)
    assert not isinstance(refused.value, Occupied), "no other claim is the cause"
    other = prepared(claim_of("b", result(gpu, 1024, "g")), facts)
    with pytest.raises(Refused, match=r"more than the 80896Mi that the device has now"):
        prepared(claim_of("c", result(gpu, 81920, "g")), facts, (other,))


def test_a_gpu_in_mig_mode_is_refused_with_this_reason() -> None:
    facts = machine()
    gpu, other = gpus_of(facts)
    claim = claim_of("c", result(gpu, 1024, "g"))
    switched = replace(facts, gpus=tuple(replace(it, mig=it.uuid == gpu.gpu.uuid) for it in facts.gpus))
    assert [device.name for device in gpus_of(switched)] == [other.name]
    with pytest.raises(Refused, match="is in MIG mode now, and claims share whole GPUs alone"):
        prepared(claim, switched)


MPS = CONFIG.replace("{kind: gpu-mem, mode: dra}", "{kind: gpu-mem, mode: dra, enforcement: mps}")


def test_a_gpu_without_its_mps_daemon_has_a_taint_and_is_refused_until_the_daemon_is_ready() -> None:
    facts = machine()
    uuids = [gpu.uuid for gpu in facts.gpus]
    facts = replace(facts, mps_obstacles=((uuids[0], "its daemon ended: exit status 1"), (uuids[1], "")))
    sick, ready = (device for device in devices_of(facts, MPS) if isinstance(device, GpuDevice))
    assert taints([sick, ready]) == {
        sick.name: [{"key": "nodeagent.io/unhealthy", "value": "mps_daemon", "effect": "NoSchedule"}]
    }
    with pytest.raises(Refused, match="unhealthy: its daemon ended: exit status 1"):
        prepared(claim_of("a", result(sick, 1024, "g")), facts, text=MPS)
    record = prepared(claim_of("b", result(ready, 1024, "g")), facts, text=MPS)
    env, mounts = env_of(record), record.edits[f"{record.uid}-0"].mounts
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] in [mount.container_path for mount in mounts]


def test_a_daemon_has_so_many_clients() -> None:
    text = MPS + "gpu: {mps: {clients: 2}}\n"
    facts = machine()
    facts = replace(facts, mps_obstacles=tuple((gpu.uuid, "") for gpu in facts.gpus))
    gpu, other, *_ = devices_of(facts, text)
    claims: tuple[PreparedClaim, ...] = ()
    for name in ("a", "b"):
        claims += (prepared(claim_of(name, result(gpu, 1024, "g")), facts, claims, text=text),)
    with pytest.raises(Occupied, match=r"has 2 claims, and gpu\.mps\.clients is 2"):
        prepared(claim_of("c", result(gpu, 1024, "g")), facts, claims, text=text)
    prepared(claim_of("d", result(other, 1024, "g")), facts, claims, text=text)
    with pytest.raises(Refused, match="one MPS daemon"):
        prepared(claim_of("e", result(gpu, 1024, "x"), result(other, 1024, "y")), facts, text=text)


ADMIN = {"adminAccess": True}


def test_an_administrator_sees_devices_that_are_full_sick_or_held_and_takes_nothing_of_them() -> None:
    """A monitoring pod must start on the node whose devices are in trouble."""
    facts = machine()
    (gpu, other), (pf, _) = gpus_of(facts), pfs_of(facts)
    whole = prepared(claim_of("a", result(gpu, 80896, "g"), result(pf, 4, "r")), facts)
    holding = Holding("default", "p", "c", "nvidia-dgx-h100/gpu-mem", (f"{other.gpu.uuid}::0",))
    sick = tuple(replace(it, health=SICK) for it in facts.gpus)
    facts = replace(facts, gpus=sick, holdings=(holding,))
    results = (
        result(gpu, 0, "all", **ADMIN),
        result(other, 0, "all", **ADMIN),
        result(pf, 0, "nics", **ADMIN),
    )
    record = prepared(claim_of("m", *results), facts, (whole,))
    uuids = f"{gpu.gpu.uuid},{other.gpu.uuid}"
    assert env_of(record) == {"NODEAGENT_GPU_UUID": uuids, "NODEAGENT_GPU_UUID_ALL": uuids}
    assert [it.cdi_devices[1:] for it in record.devices] == [
        (f"nodeagent.io/gpu={gpu.gpu.uuid}",),
        (f"nodeagent.io/gpu={other.gpu.uuid}",),
        (),
    ]
    assert env_of(record, 2) == {"NODEAGENT_PFS_NICS": pf.pf.pci_address}
    assert len(record.edits[f"{record.uid}-2"].device_nodes) >= 4, "the RDMA nodes of the VFs"
    assert (holdings((record,)), record.device_info) == ((), ())
    spec(CDI_KIND, record.edits)
    again = machine()
    prepared(claim_of("b", result(gpu, 80896, "g"), result(pf, 4, "r")), again, (record,))


def test_an_administrator_has_no_limit_and_is_no_client_of_the_mps_daemon() -> None:
    text = MPS + "gpu: {mps: {clients: 1}}\n"
    facts = machine()
    facts = replace(facts, mps_obstacles=tuple((gpu.uuid, "") for gpu in facts.gpus))
    gpu, other, *_ = devices_of(facts, text)
    claim = claim_of("m", result(gpu, 0, "all", **ADMIN), result(other, 0, "all", **ADMIN))
    record = prepared(claim, facts, text=text)
    assert set(env_of(record)) == {"NODEAGENT_GPU_UUID", "NODEAGENT_GPU_UUID_ALL"}
    assert record.edits[f"{record.uid}-0"].mounts == ()
    prepared(claim_of("a", result(gpu, 1024, "g")), facts, (record,), text=text)


def test_a_gpu_that_is_gone_is_left_out_of_what_an_administrator_sees() -> None:
    facts = machine()
    gpu, other = gpus_of(facts)
    gone = replace(facts, gpus=tuple(replace(it, lost=it.uuid == gpu.gpu.uuid) for it in facts.gpus))
    claim = claim_of("m", result(gpu, 0, "all", **ADMIN), result(other, 0, "all", **ADMIN))
    record = prepared(claim, gone)
    assert env_of(record)["NODEAGENT_GPU_UUID"] == other.gpu.uuid
    assert len(record.devices[0].cdi_devices) == 1, "its node does not exist"
    spec(CDI_KIND, record.edits)


def test_a_claim_without_an_amount_gets_the_whole_gpu_and_one_vf() -> None:
    facts = machine()
    bare = {"consumedCapacity": None, "shareID": None}
    record = prepared(
        claim_of("c", result(gpus_of(facts)[0], 1, "g", **bare), result(pfs_of(facts)[0], 1, "r", **bare)),
        facts,
    )
    assert [(device.amount, device.share_id) for device in record.devices] == [(80896, None), (1, None)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pool": "other-node/gpu"}, "is no device of this node"),
        ({"pool": f"{NODE}/nic"}, "is no device of this node"),
        ({"device": "gpu-gone"}, "is no device of this node"),
        ({"consumedCapacity": {"memory": "-1Gi"}}, "no amount of memory"),
        (
            {"consumedCapacity": {"memory": "0"}},
            "0 is no amount of memory: ask for more in capacity.requests",
        ),
        ({"consumedCapacity": {"memory": "a" * 10_000}}, "no amount of memory"),
        ({"consumedCapacity": {"memory": "1e99"}}, "more than the 80896Mi that the device has now"),
    ],
)
def test_an_allocation_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    facts = machine()
    with pytest.raises(Refused, match=words) as refused:
        prepared(claim_of("c", result(gpus_of(facts)[0], 1024, "g", **change)), facts)
    assert len(str(refused.value)) < 300


def test_opaque_parameters_are_refused_and_never_repeated() -> None:
    facts = machine()
    claim = claim_of("c", result(gpus_of(facts)[0], 1024, "g"))
    hostile = {"driver": "nodeagent.io", "parameters": {"\x1b[2J" * 1000: [[[{}]]]}}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": hostile}]
    with pytest.raises(Refused, match="opaque parameters") as refused:
        prepared(claim, facts)
    assert "\x1b" not in str(refused.value)
    claim["status"]["allocation"]["devices"]["config"][0]["opaque"]["driver"] = "gpu.nvidia.com"
    assert prepared(claim, facts).devices


def test_an_unhealthy_device_is_refused_unless_the_request_tolerates_its_taint() -> None:
    facts = machine()
    sick = replace(
        facts,
        gpus=tuple(replace(gpu, health=SICK) for gpu in facts.gpus),
        functions=tuple(replace(function, health=SICK) for function in facts.functions),
    )
    toleration = {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}
    for device in (gpus_of(facts)[0], pfs_of(facts)[0]):
        with pytest.raises(Refused, match="XID 79"):
            prepared(claim_of("c", result(device, 1, "g")), sick)
        assert prepared(claim_of("c", result(device, 1, "g", **toleration)), sick).devices


UNHEALTHY_KEY, CORDONED_KEY = "nodeagent.io/unhealthy", "nodeagent.io/cordoned"
CORDONED_ALONE = with_cordon(Health(), Reason(CORDONED, "cordoned by ann"))
CORDONED_AND_SICK = with_cordon(SICK, Reason(CORDONED, "cordoned by ann"))


@pytest.mark.parametrize(
    ("health", "tolerations", "granted"),
    [
        (CORDONED_ALONE, [{"key": CORDONED_KEY, "operator": "Exists"}], True),
        (CORDONED_ALONE, [{"key": CORDONED_KEY, "value": CORDONED}], True),
        (CORDONED_ALONE, [{"key": CORDONED_KEY}], False),
        (CORDONED_ALONE, [{"key": CORDONED_KEY, "operator": "", "value": CORDONED}], True),
        (CORDONED_ALONE, [{"key": CORDONED_KEY, "operator": "Like", "value": CORDONED}], False),
        (CORDONED_ALONE, [{"key": CORDONED_KEY, "operator": "Exists", "effect": "NoExecute"}], False),
        (CORDONED_ALONE, [{"key": UNHEALTHY_KEY, "operator": "Exists"}], False),
        (SICK, [{"key": CORDONED_KEY, "operator": "Exists"}], False),
        (SICK, [{"key": "nodeagent.io/degraded", "operator": "Exists"}], False),
        (SICK, [{"key": UNHEALTHY_KEY, "operator": "Exists"}], True),
        (SICK, [{"key": UNHEALTHY_KEY, "operator": "Exists", "effect": "NoExecute"}], True),
        (SICK, [{"key": UNHEALTHY_KEY, "operator": "Equal", "value": SICK.reasons[0].key}], True),
        (SICK, [{"key": UNHEALTHY_KEY, "operator": "Equal", "value": "other"}], False),
        (CORDONED_AND_SICK, [{"key": CORDONED_KEY, "operator": "Exists"}], False),
        (CORDONED_AND_SICK, [{"key": UNHEALTHY_KEY, "operator": "Exists"}], False),
        (CORDONED_AND_SICK, [{"key": key, "operator": "Exists"} for key in (CORDONED_KEY, UNHEALTHY_KEY)], True),
        (CORDONED_AND_SICK, [{"operator": "Exists"}], True),
    ],
)  # fmt: skip
def test_each_taint_needs_its_toleration(
    health: Health, tolerations: list[dict[str, str]], granted: bool
) -> None:
    facts = machine()
    ill = replace(
        facts,
        gpus=tuple(replace(gpu, health=health) for gpu in facts.gpus),
        functions=tuple(replace(function, health=health) for function in facts.functions),
    )
    for device, of_facts in ((gpus_of(ill)[0], ill), (pfs_of(ill)[0], ill)):
        claim = claim_of("c", result(device, 1, "g", tolerations=tolerations))
        if granted:
            assert prepared(claim, of_facts).devices
        else:
            with pytest.raises(Refused):
                prepared(claim, of_facts)


def test_a_vf_with_a_fault_of_its_own_is_not_forgiven_with_the_cordon_of_its_nic() -> None:
    facts = machine()
    pf = pfs_of(facts)[0]
    cordoned = replace(
        facts,
        functions=tuple(
            replace(it, health=CORDONED_AND_SICK if it.pci_address == pf.vfs[0] else CORDONED_ALONE)
            for it in facts.functions
        ),
    )
    toleration = {"tolerations": [{"key": CORDONED_KEY, "operator": "Exists"}]}
    claim = claim_of("c", result(pfs_of(cordoned)[0], 1, "r", **toleration))
    assert prepared(claim, cordoned).devices[0].vfs == (pf.vfs[1],)


def test_a_sick_vf_is_not_chosen_and_a_mig_gpu_is_refused_with_its_reason() -> None:
    facts = machine()
    pf = pfs_of(facts)[0]
    sick = replace(
        facts,
        functions=tuple(
            replace(it, health=SICK) if it.pci_address == pf.vfs[0] else it for it in facts.functions
        ),
    )
    assert prepared(claim_of("c", result(pf, 1, "r")), sick).devices[0].vfs == (pf.vfs[1],)


def test_a_gpu_that_has_vanished_takes_no_new_claim_whatever_is_tolerated() -> None:
    facts = machine()
    lost = replace(facts, gpus=(replace(facts.gpus[0], lost=True, health=SICK), *facts.gpus[1:]))
    toleration = {"tolerations": [{"operator": "Exists"}]}
    with pytest.raises(Refused, match="XID 79"):
        prepared(claim_of("c", result(gpus_of(facts)[0], 1, "g", **toleration)), lost)


def test_hardware_that_a_device_plugin_gave_to_a_pod_is_refused() -> None:
    facts = machine()
    gpu = gpus_of(facts)[0]
    held = replace(facts, holdings=(Holding("ns", "old", "main", "a/gpu-mem", (f"{gpu.gpu.uuid}::1",)),))
    with pytest.raises(Occupied, match="is held by ns/old"):
        prepared(claim_of("c", result(gpu, 1024, "g")), held)


def test_unequal_shares_are_refused_where_one_variable_limits_the_memory() -> None:
    facts = machine(gpu_driver="615.10", limit_support=LimitSupport(cgroup2=True, hidden_processes=""))
    first, second = gpus_of(facts)
    assert prepared(claim_of("c", result(first, 1024, "a"), result(second, 1024, "b")), facts).devices
    with pytest.raises(Refused, match="shares of 1024 MiB and 2048 MiB"):
        prepared(claim_of("c", result(first, 1024, "a"), result(second, 2048, "b")), facts)


def test_two_hundred_vfs_fit_into_one_claim() -> None:
    facts = machine(rails=1, gpus=0, vfs=200)
    pf = pfs_of(facts)[0]
    record = prepared(claim_of("c", result(pf, 200, "all")), facts)
    assert sorted(record.devices[0].vfs) == sorted(pf.vfs)
    assert len(record.device_info) == 200


def test_what_claims_hold_is_a_fact_like_the_holdings_of_plugins() -> None:
    facts = machine()
    gpu, pf = gpus_of(facts)[0], pfs_of(facts)[0]
    record = prepared(claim_of("c", result(gpu, 2560, "g"), result(pf, 1, "r"), pod="trainer"), facts)
    memory, vf = holdings([record])
    assert (memory.pod, memory.claim, memory.resource) == ("trainer", "c", "nvidia-dgx-h100/gpu-mem")
    assert len(set(memory.device_ids)) == 3, "2560 MiB are three slices of 1024 MiB"
    assert vf.device_ids == (pf.vfs[0],)
