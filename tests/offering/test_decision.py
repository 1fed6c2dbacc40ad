"""Resources that are withheld until their facts are known, and the sentences about NICs that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu, HostPaths
from nodeagent.kinds.rail_numbers import Rail
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering.decision import decide, offered_pools
from nodeagent.offering.kept_rails import KeptRails
from nodeagent.offering.offer import Offer, selection
from tests.offering.test_offer import machine, pf
from tests.support.kind_machines import WITH_DRIVER

CONFIG = load(
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"
    "- {kind: vf, name: 'nic{rail}'}\n- {kind: gpu-mem, name: 'gpu{gpu}'}\n",
    name="test",
)

CLAIMS = (
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"
    "- {kind: gpu-mem, mode: dra}\n"
)


@pytest.mark.parametrize(
    ("published", "withheld"),
    [((), ["nic{rail}", "gpu{gpu}"]), (("pci",), ["gpu{gpu}"]), (("gpus",), ["nic{rail}"])],
)
def test_names_with_a_number_wait_for_the_source_of_their_own_devices(
    tmp_path: Path, published: tuple[str, ...], withheld: list[str]
) -> None:
    inventory = Inventory()
    for source in published:
        inventory.publish(source, **{"functions" if source == "pci" else source: ()})
    memories = RailMemory(tmp_path), SliceSizes(tmp_path)
    _, found = decide(Offer(CONFIG), inventory.snapshot, inventory, (), *memories, pod_resources=False)
    assert [one.resource for one in found] == withheld


@pytest.mark.parametrize(
    ("entry", "waits"),
    [
        ("name: 'gpu{gpu}'", True),
        ("name: gpu, select: {indexes: ['0']}", True),
        ("name: gpu, select: {uuids: [GPU-00000000-0000-0000-0000-000000000000]}", False),
    ],
)
def test_gpus_by_index_wait_for_the_bus_which_shows_those_that_the_driver_does_not_count(
    tmp_path: Path, entry: str, waits: bool
) -> None:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\n"
    offer = Offer(load(f"{head}resources: [{{kind: gpu-mem, {entry}}}]\n", name="test"))
    inventory, memories = Inventory(), (RailMemory(tmp_path), SliceSizes(tmp_path))
    gpu = Gpu("GPU-00000000-0000-0000-0000-000000000000", 0, 0, "H100", "0000:1b:00.0", 81559, 0)
    inventory.publish("gpus", gpus=(gpu,))
    inventory.publish("paths", paths=WITH_DRIVER)
    for known in (False, True):
        if known:
            inventory.publish("pci", functions=())
        _, found = decide(offer, inventory.snapshot, inventory, (), *memories, pod_resources=False)
        assert [one.reason for one in found] == (["pci are not known yet"] if waits and not known else [])


def test_gpus_wait_for_the_library_of_their_driver(tmp_path: Path) -> None:
    """The operator's driver container may be later than the agent."""
    gpu = Gpu("GPU-0", 0, 0, "NVIDIA H100 80GB HBM3", "0000:1b:00.0", 81559, 0)
    inventory, offer = Inventory(), Offer(CONFIG)
    inventory.publish("pci", functions=())
    inventory.publish("gpus", gpus=(gpu,))
    memories = RailMemory(tmp_path), SliceSizes(tmp_path)
    for paths, withheld in ((HostPaths(), ["x/gpu0"]), (WITH_DRIVER, [])):
        inventory.publish("paths", paths=paths)
        offered, found = decide(offer, inventory.snapshot, inventory, (), *memories, pod_resources=False)
        assert [one.resource for one in found] == withheld
        assert all("gpu.driverRoot" in one.reason for one in found)
        assert [*withheld, *(kind.resource for kind in offered if kind.source == "gpus")] == ["x/gpu0"]


def test_claims_of_gpus_wait_for_the_library_of_their_driver(tmp_path: Path) -> None:
    offer = Offer(load(CLAIMS, name="test"))
    inventory = Inventory()
    inventory.publish("gpus", gpus=machine(gpus=1).gpus)
    files = OfferFiles(DeviceInfoFiles(tmp_path / "devinfo"), CdiSpecFiles(tmp_path / "cdi"))
    for paths, blocked in ((HostPaths(), 1), (WITH_DRIVER, 0)):
        inventory.publish("paths", paths=paths)
        devices = offer.dra_devices(inventory.snapshot)
        current = offered_pools(offer, devices, inventory.snapshot, inventory, files, pod_resources=False)
        assert [len(current.pools["gpu"] or ()), len(current.obstacles)] == [1, blocked]


def test_as_many_nics_that_came_as_went_are_one_sentence_with_one_command(tmp_path: Path) -> None:
    guids = [f"0c42:a103:0016:054{k}" for k in range(4)]
    inventory = Inventory()
    inventory.publish("pci", functions=tuple(pf(k, vfs=1) for k in (2, 3)))
    key = selection(CONFIG.resources[0])

    def said(*rails: Rail) -> list[str]:
        return list(
            KeptRails(RailMemory(tmp_path), inventory).missing(
                Offer(CONFIG, {key: rails}), inventory.snapshot
            )
        )

    unknown = [Rail(k, pf(k).pci_address) for k in range(2)]
    late = [Rail(k, pf(k).pci_address, guids[k], late=True) for k in (2, 3)]
    (one,) = said(*unknown, *late)
    assert one == (
        "2 NICs (nic0, nic1) went and 2 NICs (nic2, nic3) came: the PCI buses were renumbered, or other NICs are in "
        "other slots. If the new ones take their place, drain the node, use `nodeagent remembered forget "
        "--all-rails` and restart the agent: they get the numbers in PCI order"
    )
    known = [replace(rail, identity=guids[rail.number]) for rail in unknown]
    (one,) = said(*known, *late)
    assert "came: other NICs are in other slots." in one
    # A NIC that had its number before the others went replaces none of them.
    assert len(said(*unknown, *(replace(rail, late=False) for rail in late))) == 2
    assert len(said(*unknown, late[0], replace(late[1], late=False))) == 2


def test_a_missing_nic_is_named_by_its_address_and_without_one_by_its_mac(tmp_path: Path) -> None:
    inventory = Inventory()
    inventory.publish("pci", functions=())
    rails = (Rail(0, "0000:01:00.0", "02:00:00:00:00:01"), Rail(1, None, "02:00:00:00:00:02"))
    offer = Offer(CONFIG, {selection(CONFIG.resources[0]): rails})
    offer.kinds(inventory.snapshot)
    first, second = KeptRails(RailMemory(tmp_path), inventory).missing(offer, inventory.snapshot)
    assert first.startswith("nic0: NIC 0000:01:00.0 is missing")
    assert "`nodeagent remembered forget 0000:01:00.0`" in first
    assert second.startswith("nic1: NIC 02:00:00:00:00:02 is missing")
