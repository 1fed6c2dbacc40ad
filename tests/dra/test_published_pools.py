"""The devices as they are published: attributes, capacity, taints; checked by the rules of the API server."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.dra import device_attributes
from nodeagent.dra.device_attributes import bounded
from nodeagent.dra.offered import DraOffer, OfferedPools
from nodeagent.dra.published_pools import PublishedPools
from nodeagent.dra.slice_layout import wanted_slices, writes
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import (
    CORDONED,
    HEALTHY,
    Function,
    Gpu,
    Health,
    Identifier,
    Neighbor,
    Reason,
    Snapshot,
    State,
)
from nodeagent.health.cordons import with_cordon
from nodeagent.health.health_settings import HealthSettings
from nodeagent.offering.offer import Offer
from nodeagent_lab.sim.apiserver import resource_slices
from tests.support.kind_machines import dgx, gpu_of, pf_of, vf_of

Json = dict[str, Any]
NODE = "gpu-7"
CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resourcePrefix: example.com
resources:
- {kind: vf, mode: dra}
- {kind: gpu-mem, mode: dra}
"""


class Node:
    """The published pools of one node."""

    def __init__(self, facts: Snapshot, config: str = CONFIG, **options: Any) -> None:
        self.inventory, self.offer = Inventory(), DraOffer()
        self.published = PublishedPools(self.inventory, self.offer, NODE, **options)
        self.maker = Offer(load(config, name="test"))
        self.take(facts)

    def take(self, facts: Snapshot, obstacles: dict[str, str] | None = None) -> None:
        parts = ("gpus", "functions", "links", "neighbors")
        self.inventory.publish("test", **{part: getattr(facts, part) for part in parts})
        devices = self.maker.dra_devices(facts)
        pools = {pool: tuple(one for one in devices if one.pool == pool) for pool in ("gpu", "nic")}
        self.offer.update(OfferedPools(pools, obstacles or {}), facts)

    def devices(self, pool: str, stored: list[Json] | None = None) -> list[Json]:
        return list(self.published.pools(stored or []).devices[f"{NODE}/{pool}"])

    def taints(self, pool: str, stored: list[Json] | None = None) -> dict[int, tuple[str, str]]:
        return {
            number: (device["taints"][0]["value"], device["taints"][0]["effect"])
            for number, device in enumerate(self.devices(pool, stored))
            if device.get("taints")
        }

    def stored(self) -> list[Json]:
        planned = writes(NODE, wanted_slices(NODE, self.published.pools([]).devices), {})
        return [
            {"kind": "ResourceSlice", "metadata": {"name": one.name}, "spec": one.spec} for one in planned
        ]


def values(device: Json) -> dict[str, Any]:
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def with_health(facts: Snapshot, health: Health, gpus: int = 0, pfs: int = 0) -> Snapshot:
    """The first GPUs and PFs have this health."""
    changed = tuple(
        replace(one, health=health)
        if one.parent is None and int(one.pci_address[5:7], 16) - 0x40 < pfs
        else one
        for one in facts.functions
    )
    return replace(
        facts,
        gpus=tuple(replace(gpu, health=health) if gpu.index < gpus else gpu for gpu in facts.gpus),
        functions=changed,
    )


def neighbor(rail: int, name: str, **fields: Any) -> Neighbor:
    return Neighbor(
        f"ibp{rail}", Identifier("mac", "02:00"), Identifier("ifname", "1"), system_name=name, **fields
    )


BAD = Health(State.UNHEALTHY, (Reason("xid_79", "off the bus"),), allocatable=False)
DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)
SLOW = Health(
    State.DEGRADED, (Reason("hot", "warm", warning=True), Reason("speed", "200G")), allocatable=True
)


def test_the_doctests_pass() -> None:
    assert doctest.testmod(device_attributes).failed == 0


def test_a_gpu_and_a_pf_have_attributes_of_kind_and_place() -> None:
    node = Node(replace(dgx(), neighbors=(neighbor(3, "su1-leaf04", confirmed=True),)))
    node.published.set_leaf_group("su1")
    gpu, nic = node.devices("gpu")[3], node.devices("nic")[3]
    assert values(gpu) == {
        "kind": "gpu",
        "uuid": "GPU-00000003-aaaa-bbbb-cccc-000000000003",
        "product": "NVIDIA H100 80GB HBM3",
        "index": 3,
        "resource.kubernetes.io/pcieRoot": "pci0000:03",
        "resource.kubernetes.io/pciBusID": "0000:23:00.0",
        "resource.kubernetes.io/numaNode": 0,
        "dra.net/numaNode": 0,
    }
    assert gpu["capacity"]["memory"]["requestPolicy"] == {
        "default": "80896Mi",
        "validRange": {"min": "0", "max": "80896Mi", "step": "1024Mi"},
    }
    assert values(nic) == {
        "kind": "nic",
        "pciAddress": "0000:43:00.0",
        "product": "15b3:1021",
        "rail": 3,
        "linkType": "infiniband",
        "speedMbps": 400_000,
        "rdma": True,
        "whole": False,
        "fabric": "compute",
        "leaf": "su1-leaf04",
        "leafGroup": "su1",
        "resource.kubernetes.io/pcieRoot": "pci0000:03",
        "resource.kubernetes.io/pciBusID": "0000:43:00.0",
        "resource.kubernetes.io/numaNode": 0,
        "dra.net/numaNode": 0,
    }
    assert nic["capacity"]["vfs"]["requestPolicy"]["default"] == "1"


def test_a_gpu_has_the_island_of_nvlinks_that_it_is_in() -> None:
    machine = dgx()
    joined = tuple(replace(gpu, nvlink_island="0000:20:00.0") for gpu in machine.gpus[:4])
    node = Node(replace(machine, gpus=(*joined, *machine.gpus[4:])))
    found = [values(device).get("nvlinkIsland") for device in node.devices("gpu")]
    assert found == ["0000:20:00.0"] * 4 + [None] * (len(machine.gpus) - 4)


def test_functions_below_one_pcie_switch_have_its_upstream_port_in_common() -> None:
    path = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
    gpu = replace(gpu_of(0), pci_path=(*path, "0000:17:01.0", "0000:20:00.0"))
    pf = pf_of(0, 2)
    pf = replace(pf, pci_path=(*path, "0000:17:02.0", pf.pci_address))
    node = Node(Snapshot(gpus=(gpu,), functions=(pf, vf_of(pf, 0), vf_of(pf, 1))))
    (one,), (other,) = node.devices("gpu"), node.devices("nic")
    assert values(one)["pcieSwitch"] == values(other)["pcieSwitch"] == "0000:16:00.0"


@given(
    st.lists(st.tuples(st.integers(0, 3 * 1024), st.text(max_size=80)), max_size=10),
    st.lists(st.tuples(st.integers(1, 20), st.text(min_size=1, max_size=90), st.booleans()), max_size=8),
    st.sampled_from([HEALTHY, BAD, DOWN, SLOW]),
)
def test_the_api_server_accepts_the_devices_of_any_machine(
    gpus: list[tuple[int, str]], nics: list[tuple[int, str, bool]], health: Health
) -> None:
    functions: list[Function] = []
    for rail, (vfs, _, missing) in enumerate(nics):
        pf = pf_of(rail, vfs, missing=missing, health=health)
        functions += [pf, *(vf_of(pf, index) for index in range(vfs))]
    facts = Snapshot(
        gpus=tuple(
            replace(gpu_of(index, memory_mib=memory + 512), name=name or "x", health=health)
            for index, (memory, name) in enumerate(gpus)
        ),
        functions=tuple(sorted(functions, key=lambda one: one.pci_address)),
        links=tuple(replace(link) for link in dgx().links[: len(nics)]),
        neighbors=tuple(neighbor(rail, name) for rail, (_, name, _) in enumerate(nics)),
    )
    for obj in Node(facts).stored():
        resource_slices.prepare(obj, resource_slices.SINCE_1_36)
        assert list(resource_slices.errors(obj, None)) == []


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_bounded_text_has_at_most_64_bytes_and_stays_distinct(a: str, b: str) -> None:
    assert max(len(bounded(a).encode()), len(bounded(b).encode())) <= 64
    assert (a == b) == (bounded(a) == bounded(b))


def test_health_is_a_taint_that_goes_with_its_fault() -> None:
    node = Node(with_health(dgx(), BAD, gpus=1, pfs=0))
    assert node.taints("gpu") == {0: ("xid_79", "NoSchedule")}
    node.take(with_health(dgx(), SLOW, gpus=1, pfs=2))
    assert node.taints("gpu") == {0: ("speed", "None")}
    assert node.taints("nic") == {0: ("speed", "None"), 1: ("speed", "None")}
    node.take(with_health(dgx(), Health(State.UNKNOWN, (), allocatable=False), gpus=1))
    assert node.taints("gpu") == {0: ("unknown", "NoSchedule")}, "without a reason the state is one"
    node.take(dgx())
    assert node.taints("gpu") == node.taints("nic") == {}


def test_a_cordon_is_a_taint_beside_that_of_a_fault() -> None:
    why = Reason(CORDONED, "cordoned by ann")
    for health, faults in ((HEALTHY, []), (SLOW, ["degraded"]), (BAD, ["unhealthy"])):
        node = Node(with_health(dgx(), with_cordon(health, why), gpus=1, pfs=1))
        for pool in ("gpu", "nic"):
            found = [(it["key"], it["effect"]) for it in node.devices(pool)[0].get("taints", ())]
            expected = [
                (f"nodeagent.io/{fault}", "None" if fault == "degraded" else "NoSchedule") for fault in faults
            ]
            assert found == [*expected, ("nodeagent.io/cordoned", "NoSchedule")]
            assert "taints" not in node.devices(pool)[1]


def test_a_lost_gpu_and_a_missing_nic_are_tainted_and_stay_published() -> None:
    facts = dgx()
    lost: tuple[Gpu, ...] = (replace(facts.gpus[0], lost=True), *facts.gpus[1:])
    gone = tuple(
        replace(one, missing=True) if one.pci_address == "0000:41:00.0" else one for one in facts.functions
    )
    node = Node(replace(facts, gpus=lost, functions=gone))
    assert node.taints("gpu") == {0: ("missing", "NoSchedule")}
    assert node.taints("nic") == {1: ("missing", "NoSchedule")}
    assert (len(node.devices("gpu")), len(node.devices("nic"))) == (8, 8)


def test_a_device_whose_files_cannot_be_written_gets_no_new_claim() -> None:
    node = Node(dgx())
    name = node.devices("gpu")[2]["name"]
    node.take(dgx(), {name: "/var/run/cdi: no space left"})
    assert node.taints("gpu") == {2: ("file_unwritable", "NoSchedule")}


def test_no_execute_only_where_it_is_asked_for() -> None:
    node = Node(with_health(dgx(), BAD, gpus=1, pfs=1), health=lambda: HealthSettings(no_execute=("xid_*",)))
    assert node.taints("gpu") == {0: ("xid_79", "NoExecute")}
    node.take(with_health(dgx(), DOWN, gpus=0, pfs=1))
    assert node.taints("nic") == {0: ("carrier_down", "NoSchedule")}


@pytest.mark.parametrize(("failed", "effects"), [(4, ["NoExecute"] * 4), (5, ["NoSchedule"] * 5)])
def test_most_devices_of_a_pool_never_get_no_execute_at_once(failed: int, effects: list[str]) -> None:
    node = Node(with_health(dgx(), BAD, gpus=failed), health=lambda: HealthSettings(no_execute=("xid_79",)))
    assert [effect for _, effect in node.taints("gpu").values()] == effects


def test_a_device_that_has_no_execute_keeps_it_when_many_more_fail() -> None:
    node = Node(with_health(dgx(), BAD, gpus=1), health=lambda: HealthSettings(no_execute=("xid_79",)))
    stored = node.stored()
    node.take(with_health(dgx(), BAD, gpus=8))
    effects = [effect for _, effect in node.taints("gpu", stored).values()]
    assert effects == ["NoExecute", *["NoSchedule"] * 7]


def test_a_leaf_changes_only_for_a_confirmed_neighbor_and_stays_without_frames() -> None:
    def leaf(*neighbors: Neighbor) -> str:
        node.take(replace(dgx(), neighbors=neighbors))
        return str(values(node.devices("nic")[3]).get("leaf"))

    node = Node(dgx())
    assert leaf() == "None"
    assert leaf(neighbor(3, "leaf-a")) == "leaf-a"
    assert leaf(neighbor(3, "forged")) == "leaf-a"
    assert leaf() == "leaf-a"
    assert leaf(neighbor(3, "leaf-a", confirmed=True, stale=True)) == "leaf-a"
    assert leaf(neighbor(3, "leaf-b", confirmed=True, stale=True)) == "leaf-a", "frames of an earlier cabling"
    assert leaf(neighbor(3, "leaf-b", confirmed=True)) == "leaf-b"


def test_after_a_restart_the_published_values_stand_until_others_are_known() -> None:
    facts = replace(dgx(), neighbors=(neighbor(3, "leaf-a"),))
    node = Node(facts)
    node.published.set_leaf_group("su1")
    stored = node.stored()
    down = tuple(replace(link, speed_mbps=None, carrier=False) for link in facts.links)
    restarted = Node(replace(facts, links=down, neighbors=()))
    pools = restarted.published.pools(stored)
    assert (
        list(
            writes(NODE, wanted_slices(NODE, pools.devices), {one["metadata"]["name"]: one for one in stored})
        )
        == []
    )


def test_a_pool_is_unknown_before_its_facts() -> None:
    node = Node(dgx())
    node.offer.update(OfferedPools({"gpu": None, "nic": ()}), dgx())
    pools = node.published.pools([])
    assert pools.unknown == (f"{NODE}/gpu",)
    assert pools.devices == {f"{NODE}/nic": []}


def test_a_numa_node_is_a_list_where_this_is_asked_for() -> None:
    node = Node(dgx(), near_nodes={0: (0, 1), 1: (1, 0)})
    for pool in ("gpu", "nic"):
        for device in node.devices(pool):
            attributes = device["attributes"]
            own = attributes["dra.net/numaNode"]["int"]
            assert attributes["resource.kubernetes.io/numaNode"] == {"ints": [own, 1 - own]}
    plain = Node(dgx()).devices("gpu")[0]["attributes"]
    assert plain["resource.kubernetes.io/numaNode"] == plain["dra.net/numaNode"]
