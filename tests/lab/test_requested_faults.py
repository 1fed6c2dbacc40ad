"""The faults that a text requests of a simulated machine, and its neighbors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeagent.health.gpu_settings import GpuHealthSettings
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS, GpuView, measured_rules
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.lldp.lldpd_json import neighbors_of
from nodeagent_lab.demo.simulated_node import SimulatedNode
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.requested_faults import RequestedFaults
from nodeagent_lab.sim.simulated_leaves import SimulatedLeaves, node_number

WITHOUT = {"nvlink_errors", "nvlink_symbol_errors", "nvswitch_error", "pcie_speed"}
"""Rates, the kernel log, and 15 minutes of load."""


def small() -> Machine:
    return Machine.load("two-gpu-two-nic")


@pytest.mark.parametrize(
    ("node", "number"),
    [
        ("kind-control-plane", 0), ("kind-worker", 1), ("kind-worker2", 2), ("kind-worker17", 17),
        ("kind-control-plane3", 2), ("minikube", 1), ("minikube-m02", 2), ("gpu-007", 7),
    ],
)  # fmt: skip
def test_the_number_of_a_node_is_at_the_end_of_its_name(node: str, number: int) -> None:
    assert node_number(node) == number


@pytest.mark.parametrize(
    "word", ["nic2=down", "gpu2=xid79", "nic0", "nic0=broken", "gpu0=down", "gpu0=xid0", "gpu0=xid1234", "disk=full",
             "nic01=down", "nic\u0661=down", "=", "nic0=\x1b[2J"],
)  # fmt: skip
def test_a_word_that_is_not_valid_is_named_with_the_valid_ones_and_the_rest_counts(word: str) -> None:
    machine = small()
    faults = RequestedFaults(machine)
    (refusal,) = faults.apply(f"{word}, nic1=down")
    assert refusal.isascii()
    assert "\x1b" not in refusal
    assert "nic0 to nic1 can be nic<n>=down|no-lldp|foreign-leaf" in refusal
    assert "gpu0 to gpu1 can be gpu<n>=xid<number>" in refusal
    assert faults.active() == "nic1=down"
    assert [pf.carrier for pf in machine.pfs if pf.num_vfs] == [True, False]


def test_a_device_has_one_fault_at_a_time() -> None:
    faults = RequestedFaults(small())
    (refusal,) = faults.apply("nic0=down,nic0=no-lldp")
    assert "nic0 is already down" in refusal
    assert faults.active() == "nic0=down"


@pytest.mark.parametrize(
    "text", ["nic0=down,gpu1=xid79", "nic0=down\ngpu1=xid79\n", "nic0=down,\r\n\r\ngpu1=xid79"]
)
def test_faults_are_separated_by_commas_or_lines(text: str) -> None:
    faults = RequestedFaults(small())
    assert faults.apply(text) == []
    assert faults.active() == "gpu1=xid79, nic0=down"


def test_a_fault_that_is_no_longer_named_ends_and_another_one_of_the_device_replaces_it() -> None:
    machine = small()
    faults = RequestedFaults(machine)
    gpu = machine.gpu(1).gpu
    assert gpu is not None
    faults.apply(" nic0 = down , gpu1=xid79 ")
    assert (gpu.lost, gpu.recovery_action) == (True, "gpu_reset")
    faults.apply("gpu1=xid48")
    assert (gpu.lost, gpu.recovery_action) == (False, "gpu_reset")
    assert machine.pfs[0].carrier
    assert faults.apply("") == []
    faults.end_resets()
    assert (gpu.lost, gpu.recovery_action) == (False, "none")
    assert faults.active() == ""


@pytest.mark.parametrize("key", [key for key in MEASURED_KEYS if key not in WITHOUT])
def test_a_gpu_has_the_fault_of_the_rule_that_is_named_and_its_end_restores_the_values(key: str) -> None:
    machine = small()
    faults, gpu, limits = RequestedFaults(machine), machine.gpu(1).gpu, GpuHealthSettings()
    assert gpu is not None
    (rule,) = (rule for rule in measured_rules(limits) if rule.key == key)
    good = dict(gpu.values)

    def bad(values: Mapping[str, float]) -> bool:
        assert gpu is not None
        found = rule.measure(GpuView(GpuReading(1, gpu.uuid), values, frozenset({0}), limits))
        return found is not None and (found.value >= rule.enter if found.bad is None else found.bad)

    assert not bad(gpu.values)
    assert faults.apply(f"gpu1={key}") == []
    assert bad(gpu.values)
    assert faults.apply("gpu1=xid13") == [], "another one of the GPU replaces it"
    assert (dict(gpu.values), bad(gpu.values)) == (good, False)
    faults.apply("")
    faults.end_resets()
    assert gpu.recovery_action == "none"


def test_the_neighbors_are_those_of_the_cables(tmp_path: Path) -> None:
    machine = small()
    netdevs = [pf.netdev.name for pf in machine.pfs if pf.num_vfs and pf.netdev is not None]
    faults = RequestedFaults(machine, SimulatedLeaves("kind-worker", netdevs))
    machine.write(tmp_path)

    def switches(text: str) -> dict[str, str | None]:
        faults.apply(text)
        found = neighbors_of((tmp_path / ".nodeagent/lldp.json").read_bytes())
        return {neighbor.link: neighbor.system_name for neighbor in found}

    one, other = netdevs
    assert switches("nic0=foreign-leaf") == {one: "su2-leaf0", other: "su1-leaf1"}
    assert switches("nic1=down") == {one: "su1-leaf0"}
    assert switches("nic0=no-lldp") == {other: "su1-leaf1"}
    assert switches("") == {one: "su1-leaf0", other: "su1-leaf1"}


def test_each_node_has_hardware_of_its_own_and_the_same_in_every_run() -> None:
    one, again, other = (SimulatedNode("dgx-h100", node=node).machine for node in ("a1", "a1", "a2"))
    assert uuids(one) == uuids(again)
    assert not uuids(one) & uuids(other)
    assert not macs(one) & macs(other)


def macs(machine: Machine) -> set[str]:
    return {pf.netdev.mac for pf in machine.pfs if pf.netdev is not None}


def uuids(machine: Machine) -> set[str]:
    return {pf.gpu.uuid for pf in machine.gpus if pf.gpu is not None}


def test_a_machine_that_is_written_again_has_its_own_state_and_later_events(tmp_path: Path) -> None:
    """The container that simulates it has restarted; the agent still reads the files."""
    first = small()
    first.write(tmp_path)
    first.raise_xid(0, 79)
    first.set_link(first.pfs[0].address, up=False)
    again = small()
    again.write(tmp_path, again=True)
    assert (tmp_path / "sys/class/net" / str(again.model.nics[0].netdev) / "carrier").read_text() == "1\n"
    again.raise_xid(0, 48)
    (event,) = json.loads((tmp_path / ".nodeagent/gpus.json").read_bytes())["events"]
    assert (event["sequence"], event["xid"]) == (2, 48)
