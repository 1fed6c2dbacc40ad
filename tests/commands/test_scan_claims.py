"""`nodeagent scan` lists the devices that claims allocate, and why devices of a resource are not healthy."""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.commands.scan.listing import machine_json, machine_table
from nodeagent.console.running_sources import view_of
from nodeagent.facts.model import HostPaths, Snapshot, StaleSource
from nodeagent.offering.offer import Offer
from nodeagent.web.machine_view import MachineView
from tests.dra.test_published_pools import CONFIG
from tests.support.kind_machines import SICK, WITH_DRIVER, dgx
from tests.support.mig_driver import MigDriver

VIEW = view_of(Offer(load(CONFIG, name="test")), dgx())


def test_the_table_has_each_device_with_its_capacity_rail_and_place() -> None:
    part = machine_table(VIEW).partition("ALLOCATED BY CLAIMS\n")[2].partition("\n\n")[0]
    rows = [line.split() for line in part.splitlines()]
    assert rows[0] == ["DEVICE", "POOL", "CAPACITY", "RAIL", "LEAF", "PCIE", "ROOT", "PARENT"]
    assert rows[4][1:5] == ["gpu", "80896Mi", "-", "-"]
    assert rows[12] == ["nic-0000-43-00-0", "nic", "8", "VFs", "3", "-", "pci0000:03", "0000:43:00.0"]
    assert len(rows) == 17
    assert "nic3" in machine_table(VIEW).partition("PCIE AFFINITY\n")[2]


def test_programs_get_the_attributes_and_the_answer_of_an_agent_is_decoded() -> None:
    devices = json.loads(machine_json(VIEW))["byClaim"]
    assert devices[11]["attributes"]["rail"] == 3
    assert msgspec.json.decode(msgspec.json.encode(VIEW), type=MachineView).by_claim == VIEW.by_claim


def test_without_mode_dra_there_is_no_such_part() -> None:
    plain = CONFIG.replace(", mode: dra", "")
    assert "ALLOCATED BY CLAIMS" not in machine_table(view_of(Offer(load(plain, name="test")), dgx()))


def test_the_places_of_a_mig_profile_are_one_row_of_the_table_and_all_in_the_json() -> None:
    gpu = dgx().gpus[0]
    facts = replace(dgx(), gpus=(MigDriver(gpu.uuid).facts(gpu),))
    divided = view_of(Offer(load(CONFIG.replace("gpu-mem", "mig"), name="test")), facts)
    part = machine_table(divided).partition("ALLOCATED BY CLAIMS\n")[2].partition("\n\n")[0]
    rows = [line.strip().split("  ")[0] for line in part.splitlines() if " mig " in line]
    assert rows[:3] == ["1g.10gb, 7 places", "1g.10gb+me, 7 places", "1g.20gb, 4 places"]
    assert rows[-1] == "7g.80gb, 1 place"
    assert "9984Mi" in part
    assert "Mi VFs" not in part
    assert sum(it["pool"] == "mig" for it in json.loads(machine_json(divided))["byClaim"]) == 25


HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def reasons(config: str, facts: Snapshot) -> list[str]:
    facts = replace(facts, paths=WITH_DRIVER)
    shown = machine_table(view_of(Offer(load(HEAD + config, name="test")), facts))
    return [line.strip() for line in shown.partition("REASONS\n")[2].splitlines()]


def test_the_reason_of_devices_that_lack_more_than_their_gpu_is_shown() -> None:
    mps = "resources: [{kind: gpu-mem, sliceMiB: 40000, enforcement: mps, mode: devicePlugin}]\n"
    lacking = [line for line in reasons(mps, dgx()) if "mps_daemon" in line]
    assert lacking == [
        "gpu-mem: 16 of 16 devices unhealthy: mps_daemon: it has no MPS daemon yet: `nodeagent mps` starts it "
        "(components/gpu-mps)"
    ]
    first, *rest = dgx().gpus
    works = tuple((gpu.uuid, "") for gpu in rest)
    broken = replace(dgx(), mps_obstacles=((first.uuid, "the daemon does not answer"), *works))
    assert [line for line in reasons(mps, broken) if "mps_daemon" in line] == [
        "gpu-mem: 2 of 16 devices unhealthy: mps_daemon: the daemon does not answer"
    ]
    sick = replace(dgx(), gpus=(replace(first, health=SICK), *rest))
    (line,) = (it for it in reasons("resources: [{kind: gpu-mem}]\n", sick) if "XID 79" in it)
    assert line.startswith("GPU0 "), "the fault of a GPU is said once"


def test_a_resource_without_the_library_of_the_driver_is_withheld_as_the_agent_withholds_it() -> None:
    """It was listed with 16 healthy devices beside the remark that no container can have one."""
    offer = Offer(
        load(HEAD + "resources: [{kind: gpu-mem, sliceMiB: 40000, mode: devicePlugin}]\n", name="test")
    )
    for paths, listed in ((WITH_DRIVER, ["gpu-mem"]), (HostPaths(gpu_nodes=("/dev/nvidiactl",)), [])):
        view = view_of(offer, replace(dgx(), paths=paths))
        assert [resource.rpartition("/")[2] for resource, _ in view.resources] == listed
        assert any("libcuda.so.1" in trouble.message for trouble in view.troubles) is not bool(listed)
    silent = (StaleSource("paths", "hangs"),)
    unknown = view_of(offer, replace(dgx(), stale_sources=silent))
    assert len(unknown.resources) == 1, "a source that has failed proves nothing"
    assert not unknown.troubles
