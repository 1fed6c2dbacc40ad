"""The faults that a person requests of a simulated machine by text: ``nic3=down, gpu2=xid79``, or one a line.

The text is the whole state: a device that it does not name is healthy again. A device has one fault at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent_lab.sim.machine import Machine, MachineError
from nodeagent_lab.sim.simulated_leaves import SimulatedLeaves

LOST = 79
"""XID 79, "GPU has fallen off the bus" (NVIDIA, "XID Errors")."""
_DEVICE = re.compile(r"(nic|gpu)(0|[1-9][0-9]{0,3})", re.ASCII)
_XID = re.compile(r"xid([1-9][0-9]{0,2})", re.ASCII)
_NIC_FAULTS = ("down", "no-lldp", "foreign-leaf")
_CLOCKS, _FABRIC = "gpu_clock_reason", "gpu_fabric"
GPU_FAULTS: Mapping[str, Mapping[str, float]] = {
    "remap_failed": {"gpu_row_remap_failed": 1},
    "remap_limit": {"gpu_remapped_uncorrectable": 513},
    "remap_pending": {"gpu_row_remap_pending": 1},
    "sram_uncorrectable": {"gpu_ecc_uncorrectable_sram": 1},
    "sram_threshold": {"gpu_sram_threshold_exceeded": 1},
    "fabric_not_ready": {f"{_FABRIC}_not_ready": 1},
    "fabric_failed": {f"{_FABRIC}_failed": 1},
    "fabric_misconfigured": {f"{_FABRIC}_misconfigured": 1},
    "fabric_unhealthy": {f"{_FABRIC}_route_unhealthy": 1},
    "fabric_degraded": {f"{_FABRIC}_degraded_bandwidth": 1},
    "fabric_route_recovery": {f"{_FABRIC}_route_recovery": 1},
    "fabric_access_timeout": {f"{_FABRIC}_access_timeout": 1},
    "nvlink_down": {"gpu_nvlink_up/0": 0},
    "nvlink_effective_ber": {"gpu_nvlink_bit_error_ratio/effective": 4e-11},
    "nvlink_symbol_ber": {"gpu_nvlink_bit_error_ratio/symbol": 4e-11},
    "thermal_slowdown": {f"{_CLOCKS}/hardware_thermal": 1},
    "power_slowdown": {f"{_CLOCKS}/power_brake": 1},
    "memory_temperature": {"gpu_memory_celsius": 105},
    "temperature_margin": {"gpu_margin_celsius": 0, f"{_CLOCKS}/thermal": 1},
    "process_stuck": {"gpu_processes_stuck": 1},
    "pcie_width": {"gpu_pcie_width": 8},
}
"""The values that the driver measures while a GPU has a fault, by the name of the rule."""


class RequestedFaults:
    """The faults of one machine. ``nic<n>`` is its n-th NIC with VFs in PCI order, ``gpu<n>`` its n-th GPU.
    A GPU has ``xid<number>`` or a fault of ``GPU_FAULTS``.

    ``down``: the cable is pulled. ``no-lldp``: the switch sends no LLDP. ``foreign-leaf``: the cable is in the leaf
    switch of the next unit. ``xid<number>``: the driver reports the XID and requests a reset of the GPU, which has
    left the bus with XID 79. The end of each fault of a GPU is a reset.
    """

    def __init__(self, machine: Machine, leaves: SimulatedLeaves | None = None) -> None:
        self._machine, self._leaves = machine, leaves
        self._rails = [pf.address for pf in machine.pfs if pf.num_vfs]
        self._active: dict[str, str] = {}
        self._good: dict[str, dict[str, float | None]] = {}
        """The values of GPUs before their faults."""
        self.resetting: set[str] = set()
        """GPUs that answer again and still request their reset: readers take its end for the recovery."""
        self._show_neighbors()

    def apply(self, text: str) -> list[str]:
        """Make the machine have exactly these faults. Returns a sentence for each word that is not valid: the rest
        of the text counts."""
        wanted, refused = self._parse(text)
        before = self._active
        self._active = wanted
        for ended in [device for device, fault in before.items() if wanted.get(device) != fault]:
            self._change(ended, before[ended], refused, begins=False)
        for device, fault in wanted.items():
            if before.get(device) != fault:
                self._change(device, fault, refused, begins=True)
        if wanted != before:
            self._show_neighbors()
        return refused

    def end_resets(self) -> None:
        for device in self.resetting - self._active.keys():
            self._machine.set_recovery_action(int(device[3:]), "none")
        self.resetting.clear()

    def active(self) -> str:
        return ", ".join(f"{device}={fault}" for device, fault in sorted(self._active.items()))

    def _parse(self, text: str) -> tuple[dict[str, str], list[str]]:
        wanted: dict[str, str] = {}
        refused: list[str] = []
        for word in filter(None, map(str.strip, re.split(r"[,\n]", text))):
            device, _, fault = (part.strip() for part in word.partition("="))
            if not self._is_valid(device, fault):
                refused.append(f"{word!a} is not a fault of this machine: {self._valid()}")
            elif device in wanted:
                refused.append(f"{word!a}: {device} is already {wanted[device]}; a device has one fault")
            else:
                wanted[device] = fault
        return wanted, refused

    def _is_valid(self, device: str, fault: str) -> bool:
        found = _DEVICE.fullmatch(device)
        if found is None:
            return False
        if found[1] == "gpu":
            known = fault in GPU_FAULTS or _XID.fullmatch(fault)
            return int(found[2]) < len(self._machine.gpus) and bool(known)
        return int(found[2]) < len(self._rails) and fault in _NIC_FAULTS

    def _valid(self) -> str:
        groups = (
            ("nic", len(self._rails), "|".join(_NIC_FAULTS)),
            ("gpu", len(self._machine.gpus), f"xid<number>, such as xid79, or {'|'.join(GPU_FAULTS)}"),
        )
        return "; ".join(
            f"{kind}0 to {kind}{count - 1} can be {kind}<n>={faults}"
            for kind, count, faults in groups
            if count
        )

    def _change(self, device: str, fault: str, refused: list[str], *, begins: bool) -> None:
        number = int(device[3:])
        try:
            if fault == "down":
                self._machine.set_link(self._rails[number], up=not begins)
            elif begins and (xid := _XID.fullmatch(fault)):
                self._machine.raise_xid(number, int(xid[1]))
                if int(xid[1]) == LOST:
                    self._machine.lose_gpu(number)
                self._machine.set_recovery_action(number, "gpu_reset")
            elif begins and (values := GPU_FAULTS.get(fault)):
                self._good[device] = self._machine.measured(number, values)
                self._machine.measure(number, **values)
            elif not begins and device.startswith("gpu"):
                self._machine.measure(number, **self._good.pop(device, {}))
                self._machine.find_gpu(number)
                self._machine.set_recovery_action(number, "gpu_reset")
                self.resetting.add(device)
        except MachineError as error:
            refused.append(f"{device}={fault}: {error}")

    def _show_neighbors(self) -> None:
        if self._leaves is None:
            return
        rails = {fault: set[int]() for fault in _NIC_FAULTS}
        for device, fault in self._active.items():
            if device.startswith("nic"):
                rails[fault].add(int(device[3:]))
        silent = rails["down"] | rails["no-lldp"]
        self._machine.set_neighbors(self._leaves.answer(silent, rails["foreign-leaf"]))
