"""Each reason for which NodePrepareResources may refuse a claim, and how the scheduler is told before it chooses.

A refused claim keeps its pod on the node, without a container, until the kubelet asks again. So a device that no claim
can have is tainted, or is not published. The table has each place of the code that refuses.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.dra.claim_preparation import prepare_claim
from nodeagent.dra.device_taints import taints
from nodeagent.dra.devices import DraDevice
from nodeagent.dra.offered import without_plugin_holders
from nodeagent.facts.model import Function, Holding, Snapshot
from nodeagent.kinds import Refused
from tests.support.dra_node import CONFIG, NODE, claim_of, decoded, devices_of, machine, result
from tests.support.kind_machines import SICK

ROOT = Path(__file__).parents[2] / "nodeagent" / "dra"

REQUEST = "the claim itself is wrong, whatever the state of the devices"
CLAIM = "the claim is gone, is another one, is being ended or cannot be read"
STATE = "a device that no claim can have: it is tainted or not published"
SUMS = "other claims have the rest of it; the scheduler counts the same sums, and the claim waits for one that ends"
CHANGED = "another claim has the hardware from before a change of the configuration or of the VFs, and this one waits"
UNKNOWN = "right after the start of the agent; the claim waits for the facts"
DRIVER = "what the driver answers when a MIG device is made or removed"

REFUSALS = {
    "present_nodes.py:with_present_nodes": (STATE, 2),
    "claim_mig.py:make": (DRIVER, 2),
    "claim_mig.py:_removed": (DRIVER, 1),
    "claim_preparation.py:prepare_claim": (REQUEST, 2),
    "claim_preparation.py:renewed": (STATE, 2),
    "claim_preparation.py:_share": (STATE, 3),
    "claim_preparation.py:_check_devices": (STATE, 1),
    "claim_preparation.py:_check_sums": (SUMS, 2),
    "claim_preparation.py:_check_nics": (CHANGED, 1),
    "mig_place.py:check_place": (SUMS, 5),
    "claim_preparation.py:_check_limits": (REQUEST, 2),
    "claim_preparation.py:_check_clients": (SUMS, 1),
    "pf_device.py:choose": (STATE, 1),
    "claims.py:_current": (CLAIM, 1),
    "claims.py:_refuse_ended": (CLAIM, 1),
    "claims.py:prepare": (REQUEST, 1),
    "claims.py:_read": (CLAIM, 3),
    "claims.py:_decide": (UNKNOWN, 2),
    "claims.py:_make": (CLAIM, 2),
    "driver.py:_read": (CLAIM, 1),
}
"""``held_by`` and ``unhealthy`` are in the table of the device plugin (``tests/kinds/test_refusals.py``)."""


def test_each_refusal_of_the_code_is_in_the_table() -> None:
    found: Counter[str] = Counter()
    for path in sorted(ROOT.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                made = sum(isinstance(it, ast.Name) and it.id in ("Refused", "Occupied") for it in calls)
                found[f"{path.name}:{function.name}"] += made
    assert +found == {place: count for place, (_, count) in REFUSALS.items()}


FACTS = machine(rails=1, gpus=1)
BY_VF = CONFIG.replace("{kind: vf, mode: dra,", "{kind: vf, mode: dra, vfDevices: true,")


def functions_of(vfs: bool, pf: bool, **changes: object) -> tuple[Function, ...]:
    return tuple(
        replace(it, **changes) if (pf if it.parent is None else vfs) else it for it in FACTS.functions
    )


SICK_PF = replace(FACTS, functions=functions_of(vfs=True, pf=True, health=SICK))
SICK_VFS = replace(FACTS, functions=functions_of(vfs=True, pf=False, health=SICK))
SICK_GPU = replace(FACTS, gpus=(replace(FACTS.gpus[0], health=SICK),))
LOST_GPU = replace(FACTS, gpus=(replace(FACTS.gpus[0], health=SICK, lost=True),))
MIG_GPU = replace(FACTS, gpus=(replace(FACTS.gpus[0], mig=True),))
MISSING_PF = replace(FACTS, functions=functions_of(vfs=True, pf=True, health=SICK, missing=True))
HELD_GPU = replace(FACTS, holdings=(Holding("ml", "a", "main", "nvidia.com/gpu", (FACTS.gpus[0].uuid,)),))


@pytest.mark.parametrize(
    ("text", "pool", "snapshot"),
    [
        pytest.param(CONFIG, "nic", SICK_PF, id="a sick PF"),
        pytest.param(CONFIG, "nic", SICK_VFS, id="a sound PF without a sound VF"),
        pytest.param(CONFIG, "nic", MISSING_PF, id="a PF that is gone"),
        pytest.param(BY_VF, "nic", SICK_VFS, id="sick VFs"),
        pytest.param(CONFIG, "gpu", SICK_GPU, id="a sick GPU"),
        pytest.param(CONFIG, "gpu", LOST_GPU, id="a lost GPU"),
        pytest.param(CONFIG, "gpu", MIG_GPU, id="a GPU in MIG mode"),
        pytest.param(CONFIG, "gpu", HELD_GPU, id="a GPU that a pod holds through a device plugin"),
    ],
)
def test_a_device_that_no_claim_can_have_is_tainted_or_not_published(
    text: str, pool: str, snapshot: Snapshot
) -> None:
    def of_pool(facts: Snapshot) -> tuple[DraDevice, ...]:
        return tuple(it for it in devices_of(facts, text) if it.pool == pool)

    published, _ = without_plugin_holders(of_pool(snapshot), snapshot)
    marks = taints(published)
    for device in of_pool(FACTS):
        with pytest.raises(Refused):
            prepare_claim(
                decoded(claim_of("c", result(device, device.capacity.default, "r"))),
                node=NODE,
                devices=devices_of(snapshot, text),
                snapshot=snapshot,
                others=(),
                sequence=1,
            )
        effects = [taint["effect"] for taint in marks.get(device.name, ())]
        assert "NoSchedule" in effects or device.name not in {it.name for it in published}


def test_a_pf_with_a_sound_vf_has_no_taint() -> None:
    """Health is no part of the capacity: the VFs that are sick keep their place."""
    sick = next(it.pci_address for it in FACTS.functions if it.parent is not None)
    functions = tuple(replace(it, health=SICK) if it.pci_address == sick else it for it in FACTS.functions)
    devices = devices_of(replace(FACTS, functions=functions), CONFIG)
    assert taints(devices) == {}
    assert [it.capacity.total for it in devices] == [it.capacity.total for it in devices_of(FACTS, CONFIG)]
