"""Resources that are withheld until their facts are known, and the sentences about NICs that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent_config import load
from nodeagent.facts.inventory import Inventory
from nodeagent.kinds.rail_numbers import Rail
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering.decision import decide
from nodeagent.offering.kept_rails import KeptRails
from nodeagent.offering.offer import Offer, selection

CONFIG = load(
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"
    "- {kind: vf, name: 'nic{rail}'}\n- {kind: gpu-mem, name: 'gpu{gpu}'}\n",
    name="test",
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
