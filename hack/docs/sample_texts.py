"""The texts of samples, and the names that only recordings have: what the documentation lists beside the numbers.

The numbers are in ``nodeagent/measurements/table.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.measurements.sample import Source


class MeasuredText(NamedTuple):
    """One text of a sample, such as a firmware version. ``family`` shows it as a label; empty if no metric does."""

    name: str
    source: Source
    meaning: str
    family: str


TEXTS: dict[str, MeasuredText] = {
    name: MeasuredText(name, source, meaning, f"nodeagent_{noun}" if noun else "")
    for source, noun, meanings in (
        (
            Source.STATE,
            "link_ext_state",
            {
                "ext_state": "why the link is down, in the kernel's words (ETHTOOL_A_LINKSTATE_EXT_STATE)",
                "ext_substate": "more detail (ETHTOOL_A_LINKSTATE_EXT_SUBSTATE)",
            },
        ),
        (Source.FEC, "link_fec_info", {"fec_mode": "the active FEC mode: RS, BASER, LLRS, …"}),
        (Source.DRIVER, "link_info", {"driver": "ETHTOOL_GDRVINFO", "firmware": "ETHTOOL_GDRVINFO"}),
        (
            Source.MODULE,
            "transceiver_info",
            {
                "module_type": "the identifier's name: QSFP-DD, OSFP, …",
                "module_vendor": "vendor name in the EEPROM",
                "module_part": "part number",
                "module_serial": "serial number",
                "module_revision": "revision",
            },
        ),
        (
            Source.MODULE,
            "transceiver_module_state",
            {"module_state": "CMIS: low-power, power-up, ready, power-down, fault"},
        ),
        (
            Source.VF,
            "vf_info",
            {
                "vf_mac": "per VF index: the MAC address that the PF set; zeros: the VF's driver chose it",
                "vf_vlan": "per VF index: VLAN ID, 0 for none",
                "vf_trust": "per VF index: on or off",
                "vf_spoof_check": "per VF index: on or off",
                "vf_link_state": "per VF index: auto, enable or disable",
            },
        ),
        (
            Source.RDMA,
            "rdma_port_info",
            {
                "rdma_device": "name of the RDMA device, such as mlx5_0",
                "rdma_link_layer": "Ethernet or InfiniBand",
                "rdma_phys_state": "LinkUp, Disabled, …",
                "node_guid": "node GUID of the RDMA device",
            },
        ),
        (Source.GPU, "gpu_fabric_state", {"gpu_fabric_state": "nvmlDeviceGetGpuFabricInfoV"}),
        (
            Source.GPU,
            "gpu_info",
            {"gpu_vbios": "VBIOS version", "gpu_serial": "serial number", "gpu_driver": "driver version"},
        ),
        (
            Source.GPU,
            "",
            {
                "gpu_compute_capability": "compute capability of CUDA: 9.0",
                "gpu_cuda_version": "newest version of CUDA that the driver runs: 13.0",
                "gpu_mig_capable": "yes or no: whether the GPU has a MIG mode",
            },
        ),
        (
            Source.GPU,
            "gpu_recovery_action",
            {"gpu_recovery_action": "the action that the driver requests: none, gpu_reset, node_reboot, …"},
        ),
    )
    for name, meaning in meanings.items()
}
"""Every text that a sample may hold, by name."""

RECORDED_ONLY: dict[str, str] = {
    "gpu_lost": "0 or 1: the driver no longer lists the GPU, or cannot reach it",
    "gpu_mig": "0 or 1: MIG is on",
    "gpu_unavailable": "1 at the moment at which the driver gave up the GPU",
    "gpu_fault": "a text: why the driver could not read the GPU",
    "pf_present": "0 or 1: the PF is on the PCI bus",
    "pf_vfs": "the number of its VFs",
    "pf_driver": "a text: its driver; missing without one",
}
"""Names that occur only in recordings: the driver's answers about a GPU, and facts of a PF. The agent has them as
events and facts."""
