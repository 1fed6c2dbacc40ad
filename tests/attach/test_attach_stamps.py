"""The stamps of allocations: each Allocate names other CDI devices, and they are on the disk."""

from __future__ import annotations

from pathlib import Path

from nodeagent.attach.attach_stamps import STAMPS_MAX, AttachStamps
from nodeagent.facts.allocation import Allocation

VF = "0000:18:00.2"


def test_each_allocation_has_stamps_of_its_own_and_other_devices_keep_their_names(tmp_path: Path) -> None:
    stamps = AttachStamps(tmp_path)
    plain = Allocation(cdi_devices=(f"nodeagent.io/vf={VF}", f"nodeagent.io/attached={VF}"))
    made = [stamps.stamped(plain) for _ in range(2)]
    assert made[0] != made[1]
    for allocation in made:
        other, attached = allocation.cdi_devices
        assert other == f"nodeagent.io/vf={VF}"
        assert attached.startswith(f"nodeagent.io/attached={VF}-")
        stamps.write(allocation)
    expected = tuple(allocation.cdi_devices[1].rpartition("-")[2] for allocation in made)
    assert AttachStamps(tmp_path).read([VF, "0000:18:00.3"]) == {VF: expected, "0000:18:00.3": ()}


def test_an_allocation_without_netdevs_is_as_it_was(tmp_path: Path) -> None:
    plain = Allocation(cdi_devices=(f"nodeagent.io/vf={VF}",))
    assert AttachStamps(tmp_path).stamped(plain) is plain
    AttachStamps(tmp_path).write(plain)
    assert list(tmp_path.iterdir()) == []


def test_the_newest_stamps_are_kept(tmp_path: Path) -> None:
    stamps = AttachStamps(tmp_path)
    made = []
    for _ in range(STAMPS_MAX + 3):
        allocation = stamps.stamped(Allocation(cdi_devices=(f"nodeagent.io/attached={VF}",)))
        stamps.write(allocation)
        made.append(allocation.cdi_devices[0].rpartition("-")[2])
    assert stamps.read([VF]) == {VF: tuple(made[-STAMPS_MAX:])}
