"""The load of the demo's machine: values that change, light that fades, and a dark link that stays dark."""

from __future__ import annotations

from pathlib import Path

from nodeagent_lab.demo.machine_load import MachineLoad
from nodeagent_lab.sim.machine import Machine


def test_the_values_of_gpus_and_nics_change_and_fading_light_falls(tmp_path: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(tmp_path)
    first, last = (pf.address for pf in machine.pfs if pf.num_vfs)
    load = MachineLoad(machine, [first, last])
    load.change(0.0)
    before = dict(machine.nic(first).hardware.link), dict(machine.nic(first).hardware.module)
    load.dimming[first] = 0.001
    machine.set_link(last, up=False)
    dark = dict(machine.nic(last).hardware.link)
    for turn in range(1, 9):
        load.change(turn * 5.0)
    hardware = machine.nic(first).hardware
    assert hardware.link["rx_bytes"] > before[0]["rx_bytes"]
    assert hardware.module["rx_power_watts/0"] < 0.0001, "below the low alarm of the module"
    assert machine.nic(last).hardware.link == dark, "no traffic without a cable"
