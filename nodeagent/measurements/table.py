"""The table of measurements, by metric family and by sample name. Pure.

To add a counter: add one row to ``link_rows``, ``wire_rows``, ``transceiver_rows``, ``adapter_rows`` or ``gpu_rows``,
and one line to the reader in ``sampling/`` that states it. The metric, its documentation and the checks of the tests
follow from the row.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.measurements.adapter_rows import ADAPTER_ROWS
from nodeagent.measurements.family import Family, MeasuredText, Measurement
from nodeagent.measurements.gpu_rows import GPU_ROWS
from nodeagent.measurements.link_rows import LINK_ROWS
from nodeagent.measurements.sample import Source
from nodeagent.measurements.transceiver_rows import TRANSCEIVER_ROWS
from nodeagent.measurements.wire_rows import WIRE_ROWS

NIC_ROWS = (*LINK_ROWS, *WIRE_ROWS, *TRANSCEIVER_ROWS, *ADAPTER_ROWS)

_WITHOUT_METRIC = (
    Measurement("gpu_xids", Source.GPU, "XIDs since the agent started, ignored ones included", True, "XID"),
)
"""Numbers that no family shows. ``nodeagent_gpu_xid_errors_total`` counts XIDs as they arrive."""


def by_name(families: Iterable[Family]) -> dict[str, Family]:
    """Raises ``ValueError`` if two families have one name."""
    named: dict[str, Family] = {}
    for family in families:
        if named.setdefault(family.name, family) is not family:
            raise ValueError(f"{family.name} is declared twice")
    return named


def by_sample_name(families: Iterable[Family]) -> dict[str, Measurement]:
    """Raises ``ValueError`` if two families show one sample name."""
    named: dict[str, Measurement] = {}
    for family in families:
        for measurement in family.measurements:
            if named.setdefault(measurement.name, measurement) is not measurement:
                raise ValueError(f"{measurement.name} feeds two families")
    return named


MEASUREMENTS: dict[str, Measurement] = {
    **by_sample_name(NIC_ROWS + GPU_ROWS),
    **{measurement.name: measurement for measurement in _WITHOUT_METRIC},
}
"""Every number that a sample may hold, by name. A reader leaves out what it cannot measure on a machine."""


TEXTS: dict[str, MeasuredText] = {
    name: MeasuredText(name, source, meaning, f"nodeagent_{noun}")
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
            "gpu_recovery_action",
            {
                "gpu_recovery_action": "the action that the driver requests: none, gpu_reset, node_reboot, …",
            },
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


def measurement(name: str) -> Measurement | None:
    """The measurement of ``name`` or ``name/key``; ``None`` if the key is missing or superfluous."""
    head, slash, _ = name.partition("/")
    known = MEASUREMENTS.get(head)
    return known if known is not None and bool(slash) == (known.per is not None) else None
