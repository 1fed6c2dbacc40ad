"""The first thing to do about a reason of a NIC or GPU, for lists and pages; docs/runbook.md has the whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

RUNBOOK = "docs/runbook.md#reasons"
_NO_READINGS = "the agent's readings stopped: kubectl logs of its pod"
_PACKETS_LOST = "replace cable or optics: packets are lost"
_REPLACE_GPU = "drain the node and reset the GPU; if it comes again, replace it"
_RESET_GPU = "drain the node, then reset the GPU or reboot"
_COOLING = "check fans, air flow, filters and water"
_CLEAN_CABLE = "clean or replace cable and optics"
_CLEAN_MODULE = "clean or replace the module"
_REMEDIES = {
    "carrier_down": "check cable, optics and the switch port",
    "admin_down": "the link is switched off on the node: ip link set DEVICE up",
    "device_missing": "the NIC left the PCI bus: reboot the node, then replace the NIC",
    "driver_unbound": "bind the NIC to its driver again",
    "not_answering": "the firmware of the NIC does not answer: drain the node and reboot it",
    "firmware_fatal": "the firmware of the NIC has failed: drain the node and reboot it",
    "transmit_timeouts": "the NIC does not send: drain the node, reload mlx5_core or reboot; then replace the NIC",
    "command_failures": "the firmware of the NIC refuses commands: drain the node and reboot it; update the firmware",
    "high_temperature": "the NIC or its module is too hot: check the fans and the air flow of the node",
    "slot_power": "set the power limit of the PCIe slot to 75 W in the machine's firmware, or move the NIC",
    "verbs_missing": "load ib_uverbs and restart udev (udevadm trigger), or reboot the node",
    "flapping": "reseat or replace cable and optics",
    "speed_reduced": "check the optics at both ends, and the speed of the switch port",
    "optics_laser": "replace the module of the node, not the fiber",
    "optics_": _CLEAN_MODULE,
    "pre_fec_ber": _CLEAN_CABLE,
    "post_fec": _PACKETS_LOST,
    "fec_uncorrectable": _PACKETS_LOST,
    "crc_errors": _PACKETS_LOST,
    "link_recoveries": _CLEAN_CABLE,
    "link_symbol_errors": _CLEAN_CABLE,
    "lane_imbalance": _CLEAN_MODULE,
    "pcie_": "reseat the card, or move it to another slot",
    "pause": "the node receives too slowly: look for a stuck program, then for PCIe errors",
    "gid_missing": "set the address of the NIC again",
    "rail_": "`nodeagent rails` shows the legs; check cable and optics of those that lose packets, at both ends",
    "miscabled": "move the cable to the port of the cabling plan",
    "ib_": "check the subnet manager",
    "repeated_xid": "test the GPU (dcgmi diag -r 3); if programs on other GPUs run, replace it",
    "xid_": _RESET_GPU,
    "recovery_": _RESET_GPU,
    "gpu_lost": "drain the node and reboot it; if the GPU stays away, replace it",
    "gpu_un": _RESET_GPU,
    "remap_": _REPLACE_GPU,
    "sram_": _REPLACE_GPU,
    "nvswitch_": "look at the log of nvidia-fabricmanager; drain the node and reboot it",
    "process_stuck": "end the process; if it cannot end, drain the node and reboot it",
    "temperature_margin": _COOLING,
    "thermal_slowdown": _COOLING,
    "memory_temperature": _COOLING,
    "power_slowdown": "check the power supplies of the node and their cables: the event log of its BMC",
    "nvlink_": "drain the node and reset its GPUs; if it comes again, replace the GPU or its cable",
    "fabric_": "look at the log of nvidia-fabricmanager, then drain the node and reset its GPUs",
    "driver_": "look at the kernel's log for the driver, then drain the node and reboot it",
    "data_stale": _NO_READINGS,
    "link_unseen": _NO_READINGS,
}
"""By the beginning of a reason. ``DEVICE`` is the name of the device."""
_SECTIONS = {
    "nodelinkdown": ("carrier_down", "admin_down", "device_missing", "driver_unbound", "not_answering"),
    "nodelinkflapping": ("flapping",),
    "nodelinkspeedreduced": ("speed_reduced",),
    "nodelinkmiscabled": ("miscabled",),
    "nodelinkprefecberhigh": ("pre_fec_ber", "lane_imbalance"),
    "nodelinkpostfecerrors": ("post_fec_errors", "fec_uncorrectable"),
    "nodelinkcrcerrors": ("crc_errors", "link_recoveries", "link_symbol_errors"),
    "nodelinkpausestorm": ("pause_",),
    "nodelinkhoststall": ("host_stall", "pcie_stall", "network_paused"),
    "nodetransceiverhot": ("optics_temperature",),
    "nodetransceiverlowlight": ("optics_rx_power",),
    "nodepciewidthreduced": ("pcie_width", "pcie_speed"),
    "nodepcieaer": ("pcie_aer_",),
    "noderdmanogid": ("gid_missing", "verbs_missing"),
    "nodenicfirmwareerror": ("firmware_fatal", "transmit_timeouts", "command_failures"),
    "nodegpuunhealthy": ("gpu_lost", "gpu_un"),
    "nodegpuxid": ("xid_", "recovery_"),
    "nodegpunvswitcherror": ("nvswitch_",),
    "nodegpunvlinkdown": (
        "nvlink_",
        "fabric_unhealthy",
        "fabric_degraded",
        "fabric_route_",
        "fabric_access_",
    ),
    "nodegpurowremap": ("remap_", "sram_"),
    "nodeagentcollectorstale": ("link_unseen", "data_stale"),
    "nodeagentsourcesilent": ("driver_silent",),
}
"""The sections of docs/runbook.md, with the beginnings of their reasons. The section `reasons` has the others."""


def remedy_for(reasons: Iterable[str], device: str) -> str:
    """The remedy for the first of these reasons of a device that has one, else the runbook."""
    found = next((text for reason in reasons if (text := remedy_of(reason))), RUNBOOK)
    return found.replace("DEVICE", device)


def runbook_links(runbook: str | None, reasons: Iterable[str]) -> dict[str, str]:
    """The address of the section of each reason, in the runbook at this address; none without one."""
    return {} if runbook is None else {key: f"{runbook}#{section_of(key)}" for key in sorted({*reasons})}


def section_of(reason: str) -> str:
    return next((name for name, starts in _SECTIONS.items() if reason.startswith(starts)), "reasons")


def remedy_of(reason: str) -> str | None:
    """The remedy for a reason of a NIC or GPU; ``None``: the runbook alone has it."""
    return next((remedy for start, remedy in _REMEDIES.items() if reason.startswith(start)), None)
