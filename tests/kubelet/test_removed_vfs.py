"""Removed VFs leave the kubelet's list after podresources has answered for a minute that no pod holds them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.kubelet import removed_vfs
from nodeagent.kubelet.device_list import DeviceList
from nodeagent.kubelet.removed_vfs import FREE_S, RemovedVfs
from nodeagent.model import Devices, Holding, Snapshot, StaleSource
from tests.support.judged_machine import pf, vf

PF = pf(1)
VFS = [vf(PF, index) for index in range(3)]
HELD = Holding("default", "a", "main", "x/nic0", (VFS[2].pci_address,))
LAST = VFS[2].pci_address


def snapshot(*, holdings: tuple[Holding, ...] | None = (), missing: int = 1, **more: object) -> Snapshot:
    vfs = [replace(function, missing=index >= 3 - missing) for index, function in enumerate(VFS)]
    return Snapshot(functions=(PF, *vfs), holdings=holdings, **more)  # type: ignore[arg-type]


def test_a_removed_vf_is_gone_after_a_minute_without_a_pod() -> None:
    removed = RemovedVfs()
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
    removed = RemovedVfs()
    removed.take(snapshot(), 0)
    removed.take(between, FREE_S - 1)
    assert removed.take(snapshot(), FREE_S) == frozenset()
    assert removed.take(snapshot(), 2 * FREE_S) == {LAST}


def test_the_vfs_of_a_pf_that_is_missing_or_has_no_driver_stay() -> None:
    for parent in (replace(PF, missing=True), replace(PF, driver=None)):
        facts = Snapshot(functions=(parent, *(replace(one, missing=True) for one in VFS)), holdings=())
        removed = RemovedVfs()
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
    assert removed_vfs.FREE_S >= 60
