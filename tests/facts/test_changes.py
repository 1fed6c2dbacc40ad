"""Changes of facts in words: what is worth an entry, and what an agent that starts does not write down."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.base.change_log import Change
from nodeagent.facts.changes import NodeChanges
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import (
    Gpu,
    Health,
    Identifier,
    Neighbor,
    Reason,
    Snapshot,
    StaleSource,
    State,
)  # fmt: skip
from tests.support.judged_machine import link, pf, vf

NIC = pf(1)
GPU = Gpu("GPU-1", 2, 2, "H100", "0000:3b:00.0", 81559, 0)
DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier for 1 s"),), allocatable=False)


def neighbor(switch: str, port: str = "Eth1", **more: Any) -> Neighbor:
    return Neighbor("eth1", Identifier("mac", "aa"), Identifier("ifname", port), switch, **more)


START = Snapshot(functions=(NIC, vf(NIC, 0)), links=(link(NIC),), gpus=(GPU,), neighbors=(neighbor("leaf3"),))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"functions": (replace(NIC, health=DOWN), vf(NIC, 0))}, [("nic", "nic3", "healthy", "down (carrier_down)")]),
        ({"functions": (replace(NIC, missing=True),)}, [("nic", "nic3", "healthy", "missing")]),
        ({"functions": ()}, [("nic", "nic3", "healthy", "not here")]),
        ({"functions": (NIC, replace(vf(NIC, 0), health=DOWN))}, []),  # its PF has the entry, if it is down
        ({"links": (link(NIC, speed=200_000),)}, [("link", "nic3", "400 Gbit/s, MTU 9000", "200 Gbit/s, MTU 9000")]),
        ({"links": (link(NIC, up=False),)}, []),
        ({"neighbors": (neighbor("leaf4"),)}, [("neighbor", "nic3", "leaf3 Eth1", "leaf4 Eth1")]),
        ({"neighbors": (neighbor("leaf4", stale=True),)}, []),
        ({"neighbors": ()}, []),
        ({"gpus": (replace(GPU, lost=True),)}, [("gpu", "gpu2", "healthy", "lost")]),
        ({"stale_sources": (StaleSource("gpus", "it hangs"),)}, [("source", "gpus", "answers", "no answer")]),
        ({"gpu_driver": "580"}, []),
        ({"product": "x", "holdings": ()}, []),
    ],
)  # fmt: skip
def test_a_change_is_an_entry_and_its_end_is_another(parts: dict[str, Any], expected: list[Any]) -> None:
    changes = NodeChanges(lambda: {NIC.pci_address: "nic3"})
    assert list(changes.take(START, 1.0)) == []
    found = [(it.what, it.where, it.before, it.after) for it in changes.take(replace(START, **parts), 2.0)]
    assert found == expected
    back = [(it.what, it.where, it.before, it.after) for it in changes.take(START, 3.0)]
    healthy = [(what, where, after, before) for what, where, before, after in expected if after != "not here"]
    assert back == healthy


def test_an_entry_has_the_reasons_and_each_name() -> None:
    changes = NodeChanges(dict)
    changes.take(START, 1.0)
    (entry,) = changes.take(replace(START, neighbors=(neighbor("leaf4"),)), 2.0)
    assert set(entry.names) == {"leaf3", "leaf4", "eth1", NIC.pci_address}
    (entry,) = changes.take(
        replace(START, functions=(replace(NIC, health=DOWN),), neighbors=(neighbor("leaf4"),)), 3.0
    )
    assert (entry.at, entry.where, entry.details) == (3.0, "eth1", ("no carrier for 1 s",))


def test_a_device_that_is_ill_at_the_first_look_is_an_entry() -> None:
    (entry,) = NodeChanges(dict).take(replace(START, functions=(replace(NIC, health=DOWN),)), 1.0)
    assert (entry.before, entry.after) == ("", "down (carrier_down)")


def test_no_snapshot_is_missed_by_a_reader_that_is_not_awake() -> None:
    inventory = Inventory()
    found: list[Change] = []
    changes = NodeChanges(dict)
    inventory.listener = lambda now: found.extend(changes.take(now, 0.0))
    for functions in ((NIC,), (replace(NIC, health=DOWN),), (NIC,)):
        inventory.publish("pci", functions=functions)
    assert [it.after for it in found] == ["down (carrier_down)", "healthy"]
