"""Devices that did not change cost nothing: their list is not made again when another device changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Health, Holding, Link, Snapshot, State
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.hca_shares import HcaShares
from nodeagent.kinds.vf import VfPool
from nodeagent.kubelet.grown_requests import RequestNotes
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.rpc_stats import RpcStats
from tests.support.kind_machines import SICK, dgx, pf_of, vf_of

MADE: Counter[str] = Counter()
"""How often the devices of each resource were made."""


class CountedPool(VfPool, frozen=True):
    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        MADE[self.resource] += 1
        return super().devices(snapshot)


POOLS = tuple(CountedPool(f"x/nic{rail}", (pf_of(rail).pci_address,)) for rail in range(8))


@pytest.fixture
def plugins(tmp_path: Path) -> DevicePlugins:
    made = DevicePlugins(tmp_path, files=cast("Any", None), stats=RpcStats(), requests=RequestNotes(tmp_path))
    made.update(POOLS, dgx())
    MADE.clear()
    return made


def unhealthy(plugins: DevicePlugins) -> dict[str, int]:
    """The Unhealthy devices of each resource that has some."""
    lists = {one.plugin.resource: one.plugin.device_list for one in plugins._resources.values()}
    counts = {name: shown.counts() for name, shown in lists.items()}
    return {name: total - healthy for name, (healthy, total) in counts.items() if healthy < total}


def sick(snapshot: Snapshot, rail: int) -> Snapshot:
    """The machine with a fault of one NIC, as the judge of health publishes it: new functions for its own."""
    pf = pf_of(rail).pci_address
    judged = tuple(
        replace(it, health=SICK) if pf in (it.pci_address, it.parent) else it for it in snapshot.functions
    )
    return replace(snapshot, functions=judged, revision=snapshot.revision + 1)


def test_a_fault_of_a_gpu_makes_the_devices_of_no_nic(plugins: DevicePlugins) -> None:
    snapshot = dgx()
    lost = Health(State.DOWN, allocatable=False)
    gpus = (replace(snapshot.gpus[0], health=lost), *snapshot.gpus[1:])
    plugins.update(POOLS, replace(snapshot, gpus=gpus, revision=7))
    assert not MADE


def test_a_fault_of_a_nic_makes_its_own_devices_alone(plugins: DevicePlugins) -> None:
    plugins.update(POOLS, sick(dgx(), 3))
    assert dict(MADE) == {"x/nic3": 1}
    assert unhealthy(plugins) == {"x/nic3": 8}
    plugins.update(POOLS, dgx())
    assert dict(MADE) == {"x/nic3": 2}
    assert unhealthy(plugins) == {}


def test_a_scan_without_news_makes_no_devices(plugins: DevicePlugins) -> None:
    snapshot = dgx()
    plugins.update(POOLS, replace(snapshot, functions=tuple(map(replace, snapshot.functions)), revision=9))
    assert not MADE


def test_the_names_of_the_hardware_make_no_devices() -> None:
    MADE.clear()
    names = [list(pool.hardware(dgx())) for pool in POOLS]
    assert not MADE
    assert names == [[it.ids[0] for it in pool.devices(dgx())] for pool in POOLS]


def test_a_removed_device_leaves_a_list_whose_facts_did_not_change(plugins: DevicePlugins) -> None:
    vf = vf_of(pf_of(0), 0).pci_address
    gone = replace(dgx(), functions=tuple(it for it in dgx().functions if it.pci_address != vf))
    plugins.update(POOLS, gone)
    assert unhealthy(plugins) == {"x/nic0": 1}
    plugins.update(POOLS, gone, frozenset({vf}))
    assert unhealthy(plugins) == {}


def test_the_answers_to_requests_have_the_latest_facts(plugins: DevicePlugins) -> None:
    """GPUs are no part of the list of a NIC, and decide which VF is preferred."""
    snapshot = replace(dgx(), gpus=(), revision=8)
    plugins.update(POOLS, snapshot)
    assert all(one.plugin._snapshot is snapshot for one in plugins._resources.values())


PFS = (replace(pf_of(0), num_vfs=2), replace(pf_of(1), num_vfs=0))
ROUTE = Link("ens1", PFS[0].pci_address, None, True, True, "up", 400_000, 9000, default_route=True)
FUNCTIONS = (*PFS, vf_of(PFS[0], 0), vf_of(PFS[0], 1))
NAMES = tuple(it.pci_address for it in FUNCTIONS)
CHANGES: tuple[dict[str, object], ...] = (
    {}, {"health": SICK}, {"missing": True}, {"driver": "vfio-pci", "rdma": None}, {"rdma": None}, {"num_vfs": 0},
)  # fmt: skip
PFS_NAMES = tuple(it.pci_address for it in PFS)
KINDS: tuple[DeviceKind, ...] = (
    VfPool("x/nic", PFS_NAMES),
    VfPool("x/nic", PFS_NAMES, vf_driver="rdma"),
    VfPool("x/nic", PFS_NAMES, over_bonds=True),
    VfPool("x/nic", PFS_NAMES, whole=True),
    HcaShares("x/nic", PFS_NAMES, shares=2),
)


@st.composite
def machines(draw: st.DrawFn) -> Snapshot:
    functions = [
        replace(function, **draw(st.sampled_from(CHANGES)))
        for function in FUNCTIONS
        if draw(st.sampled_from((True, True, True, False)))
    ]
    links = draw(st.sampled_from(((), (ROUTE,), (replace(ROUTE, bonded=True),))))
    ids = draw(st.lists(st.sampled_from((*NAMES, f"{NAMES[0]}::0")), max_size=2, unique=True))
    resource = draw(st.sampled_from(("x/nic", "other/nic")))
    holdings = draw(st.sampled_from((None, (), (Holding("ml", "job-0", "main", resource, tuple(ids)),))))
    return Snapshot(functions=tuple(functions), links=links, holdings=holdings)


@given(machines(), machines())
@example(Snapshot(functions=FUNCTIONS), Snapshot(functions=FUNCTIONS, links=(ROUTE,)))
@example(
    Snapshot(functions=FUNCTIONS, holdings=()),
    Snapshot(functions=FUNCTIONS, holdings=(Holding("ml", "a", "main", "other/nic", NAMES[2:]),)),
)
def test_equal_facts_of_a_kind_have_equal_devices(one: Snapshot, other: Snapshot) -> None:
    for kind in KINDS:
        if kind.devices(one) != kind.devices(other):
            assert kind.made_of(one) != kind.made_of(other), kind
