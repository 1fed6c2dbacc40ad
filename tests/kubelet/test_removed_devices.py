"""Removed VFs and MIG devices leave the kubelet's list after no pod has held them for a minute."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Gpu, Holding, MigDevice, Snapshot, StaleSource
from nodeagent.kubelet import removed_devices
from nodeagent.kubelet.device_list import DeviceList
from nodeagent.kubelet.removed_devices import FREE_S, RemovedDevices
from tests.support.judged_machine import pf, vf
from tests.support.kind_machines import gpu_of, uuid_of

PF = pf(1)
VFS = [vf(PF, index) for index in range(3)]
HELD = Holding("default", "a", "main", "x/nic0", (VFS[2].pci_address,))
LAST = VFS[2].pci_address


def snapshot(*, holdings: tuple[Holding, ...] | None = (), missing: int = 1, **more: object) -> Snapshot:
    vfs = [replace(function, missing=index >= 3 - missing) for index, function in enumerate(VFS)]
    return Snapshot(functions=(PF, *vfs), holdings=holdings, **more)


def test_a_removed_vf_is_gone_after_a_minute_without_a_pod() -> None:
    removed = RemovedDevices()
    assert removed.take(snapshot(), 10) == frozenset()
    assert removed.take(snapshot(), 9.9 + FREE_S) == frozenset()
    assert removed.take(snapshot(), 10 + FREE_S) == {LAST}
    assert removed.take(snapshot(missing=0), 11 + FREE_S) == frozenset()
    assert removed.gone == frozenset(), "it is back"


@pytest.mark.parametrize(
    "between",
    [
        snapshot(holdings=(HELD,)),
        snapshot(holdings=None),
        snapshot(stale_sources=(StaleSource("pods", "the kubelet does not answer"),)),
        snapshot(missing=0),
    ],
    ids=["held", "unknown", "stale", "back"],
)
def test_the_minute_starts_again_after(between: Snapshot) -> None:
    removed = RemovedDevices()
    removed.take(snapshot(), 0)
    removed.take(between, FREE_S - 1)
    assert removed.take(snapshot(), FREE_S) == frozenset()
    assert removed.take(snapshot(), 2 * FREE_S) == {LAST}


def test_the_vfs_of_a_pf_that_is_missing_or_has_no_driver_stay() -> None:
    for parent in (replace(PF, missing=True), replace(PF, driver=None)):
        facts = Snapshot(functions=(parent, *(replace(one, missing=True) for one in VFS)), holdings=())
        removed = RemovedDevices()
        removed.take(facts, 0)
        assert removed.take(facts, 10 * FREE_S) == frozenset()


def test_a_device_leaves_the_list_unless_it_is_offered_or_held() -> None:
    both = tuple(Devices(PF.pci_address, (name,), (0,)) for name in ("a", "b"))
    listed = DeviceList()
    listed.update(both)
    assert listed.update(both[:1])
    assert listed.counts() == (1, 2), "it stays as Unhealthy"
    assert not listed.update(both[:1], held=["b"], removed=frozenset("b"))
    assert not listed.update(both[:1], held=["a"], removed=frozenset("a"))
    assert listed.update(both[:1], removed=frozenset("b"))
    assert listed.counts() == (1, 1)
    assert not listed.update(both[:1], removed=frozenset("b"))
    assert listed.update(both, removed=frozenset("b"))
    assert listed.counts() == (2, 2), "it is back"


def test_the_time_is_longer_than_an_allocation_takes() -> None:
    assert removed_devices.FREE_S >= 60


def mig(*uuids: str, on: bool = True, **more: object) -> Gpu:
    devices = tuple(MigDevice(uuid, "1g.10gb", 9856, 7, 0) for uuid in uuids)
    return replace(gpu_of(0), mig=on, mig_devices=devices, **more)


def gpus(*uuids: str, held: tuple[str, ...] = (), **more: object) -> Snapshot:
    holdings = (Holding("default", "a", "main", "x/any", held),) if held else ()
    stale = more.pop("stale_sources", ())
    return Snapshot(gpus=(mig(*uuids, **more),), holdings=holdings, stale_sources=stale)


def test_a_destroyed_mig_device_is_gone_after_a_minute_and_is_new_if_it_returns() -> None:
    removed = RemovedDevices()
    removed.take(gpus("MIG-a", "MIG-b"), 0)
    removed.take(gpus("MIG-a"), 1)
    assert removed.take(gpus("MIG-a"), FREE_S) == {uuid_of(0)}, "the slices of the GPU, which is in MIG mode"
    assert removed.take(gpus("MIG-a"), 1 + FREE_S) == {"MIG-b"}
    removed.take(gpus("MIG-a", "MIG-b"), 2 + FREE_S)
    assert removed.gone == {uuid_of(0)}
    removed.take(gpus(on=False), 3 + FREE_S)
    assert removed.gone == frozenset(), "its slices are offered again"
    assert removed.take(gpus(on=False), 3 + 2 * FREE_S) == {"MIG-a", "MIG-b"}


@pytest.mark.parametrize(
    "between",
    [
        gpus("MIG-a", held=("MIG-b", f"{uuid_of(0)}::3")),
        gpus("MIG-a", stale_sources=(StaleSource("gpus", "the driver hangs"),)),
        gpus(lost=True),
    ],
    ids=["held", "stale", "lost"],
)
def test_mig_devices_and_slices_stay_while_they_are_held_or_the_driver_does_not_list_the_gpu(
    between: Snapshot,
) -> None:
    removed = RemovedDevices()
    removed.take(gpus("MIG-a", "MIG-b"), 0)
    removed.take(gpus("MIG-a"), 1)
    assert removed.take(between, 10 * FREE_S) == frozenset()
    assert removed.gone == frozenset()


def test_the_slices_of_a_gpu_leave_the_list_together() -> None:
    slices = Devices("GPU-a", ("GPU-a::0", "GPU-a::1"), ())
    listed = DeviceList()
    listed.update((slices,))
    listed.update(())
    assert listed.counts() == (0, 2)
    assert listed.update((), held=["GPU-a::1"], removed=frozenset({"GPU-a"}))
    assert listed.counts() == (0, 1)
    assert listed.update((), removed=frozenset({"GPU-a"}))
    assert listed.counts() == (0, 0)
