"""Measurements of the adapter behind a link: PCIe, RDMA, VFs, firmware and the kernel log."""

from __future__ import annotations

from nodeagent.measurements.family import Family, row
from nodeagent.measurements.sample import Source

_EXPECTED = "the lower of the limits of the function and of the port above it"
_PCIE: tuple[Family, ...] = (
    row(
        "pcie_link_speed_transfers_per_second",
        "pci_address",
        Source.PCIE,
        ("pcie_gts", "current link speed in GT/s"),
        scale=1e9,
        help="Current speed of the PCIe link.",
        use="Idle devices lower their speed: compare max_over_time with the expected speed.",
        peers="node_pcidevice_current_link_transfers_per_second",
        rules="pcie_speed",
    ),
    row(
        "pcie_link_width_lanes",
        "pci_address",
        Source.PCIE,
        ("pcie_width", "current link width in lanes"),
        help="Current width of the PCIe link.",
        use="Below nodeagent_pcie_expected_link_width_lanes: alert NodePcieWidthReduced; reseat the card or the "
        "riser.",
        peers="node_pcidevice_current_link_width",
        rules="pcie_width",
    ),
    row(
        "pcie_expected_link_speed_transfers_per_second",
        "pci_address",
        Source.PCIE,
        ("pcie_expected_gts", f"{_EXPECTED}, in GT/s"),
        scale=1e9,
        help="Highest PCIe speed that both the function and the port above it support.",
        use="The function's own maximum alone would report every card in a slower slot.",
        peers="node_pcidevice_max_link_transfers_per_second (of the function alone)",
        rules="pcie_speed",
    ),
    row(
        "pcie_expected_link_width_lanes",
        "pci_address",
        Source.PCIE,
        ("pcie_expected_width", f"{_EXPECTED}, in lanes"),
        help="Largest PCIe width that both the function and the port above it support.",
        use="The function's own maximum alone would report every card in a narrower slot.",
        peers="node_pcidevice_max_link_width (of the function alone)",
        rules="pcie_width",
    ),
    row(
        "pcie_aer_errors_total",
        "pci_address,error,severity",
        Source.PCIE,
        ("aer_correctable", "aer_dev_correctable", "correctable"),
        ("aer_nonfatal", "aer_dev_nonfatal", "nonfatal"),
        ("aer_fatal", "aer_dev_fatal", "fatal"),
        per="error name of the kernel",
        help="PCIe errors by the kernel's names (Advanced Error Reporting); errors that never occurred have no series.",
        use="Any fatal or nonfatal: alert NodePcieAer. Always 0 where the firmware handles AER.",
        rules="pcie_aer_fatal pcie_aer_nonfatal pcie_aer_correctable",
    ),
    row(
        "pcie_signal_integrity_errors_total",
        "device,direction",
        Source.DRIVER,
        ("pcie_rx_signal_errors", "rx_pci_signal_integrity", "receive"),
        ("pcie_tx_signal_errors", "tx_pci_signal_integrity", "transmit"),
        help="Signal errors on PCIe, as the NIC counts.",
        use="Growing, with a reduced width or speed: the slot, the riser or the card.",
        peers="rdma_pcie_signal_integrity_total",
    ),
    row(
        "pcie_stalled_seconds_total",
        "device,operation",
        Source.DRIVER,
        ("pcie_stalled_read_seconds", "outbound_pci_stalled_rd_events: seconds with over 30 % stall", "read"),
        (
            "pcie_stalled_write_seconds",
            "outbound_pci_stalled_wr_events: seconds with over 30 % stall",
            "write",
        ),
        help="Seconds in which the NIC waited for PCIe for more than 30 % of the time.",
        use="The host slows the NIC down: ACS, IOMMU, a wrong NUMA node, a reduced PCIe link.",
        peers="rdma_pcie_outbound_stalled_seconds_total",
        rules="pcie_stall",
    ),
    row(
        "pcie_buffer_overflow_packets_total",
        "device",
        Source.DRIVER,
        ("pcie_buffer_overflows", "outbound_pci_buffer_overflow"),
        help="Packets lost because PCIe could not take them.",
        use="As nodeagent_pcie_stalled_seconds_total, but packets are lost already.",
        peers="rdma_pcie_outbound_buffer_overflow_total",
    ),
)


def _rdma_counter(
    noun: str,
    measured: tuple[str, str],
    *,
    help: str,  # noqa: A002 - the format's own word
    use: str,
    peer: str,
    rules: str = "",
) -> Family:
    return row(
        f"rdma_{noun}_total",
        "rdma_device,port",
        Source.RDMA,
        measured,
        help=help,
        use=use,
        peers=f"node_infiniband_{peer}_total",
        rules=rules,
    )


_RDMA: tuple[Family, ...] = (
    row(
        "rdma_port_active",
        "rdma_device,port",
        Source.RDMA,
        ("rdma_port_active", "ports/N/state is 4 (ACTIVE), 0 or 1"),
        help="1 while the RDMA port is active.",
        use="0 with carrier: the RDMA part of the driver failed; reload the driver.",
        peers="node_infiniband_state_id",
        rules="gid_missing",
    ),
    row(
        "rdma_roce_v2_gids",
        "rdma_device,port",
        Source.RDMA,
        ("roce_v2_gids", "non-zero GIDs of type RoCE v2; with none no connection can be made"),
        help="GIDs of type RoCE v2 that are in use.",
        use="0 on an active port: no connection can be made: alert NodeRdmaNoGid; check the netdev's addresses.",
        rules="gid_missing",
    ),
    _rdma_counter(
        "receive_bytes",
        ("rdma_rx_bytes", "port_rcv_data x 4"),
        help="Bytes received.",
        use="Load.",
        peer="port_data_received_bytes",
    ),
    _rdma_counter(
        "transmit_bytes",
        ("rdma_tx_bytes", "port_xmit_data x 4"),
        help="Bytes sent.",
        use="Load.",
        peer="port_data_transmitted_bytes",
    ),
    _rdma_counter(
        "out_of_sequence_packets",
        ("rdma_out_of_sequence", "out_of_sequence"),
        help="Packets received out of order.",
        use="Loss or multipath: above 100 per second check the fabric.",
        peer="out_of_sequence_packets_received",
        rules="out_of_sequence",
    ),
    _rdma_counter(
        "packet_sequence_errors",
        ("rdma_packet_sequence_errors", "packet_seq_err"),
        help="NAKs received for packets out of order.",
        use="The other end lost packets: packets from this node are dropped on the path.",
        peer="packet_sequence_errors",
    ),
    _rdma_counter(
        "local_ack_timeouts",
        ("rdma_ack_timeouts", "local_ack_timeout_err"),
        help="Acknowledgements that did not arrive in time.",
        use="Above 1 per second: loss or a peer that stopped; the fault may be at the other end.",
        peer="local_ack_timeout_errors",
        rules="rdma_timeouts",
    ),
    _rdma_counter(
        "rnr_nak_retries",
        ("rdma_rnr_retries", "rnr_nak_retry_err: within the retry limit, no fault"),
        help="Receiver-not-ready NAKs that were followed by a retry.",
        use="No fault: the peer's application posts its receives late.",
        peer="rnr_nak_retry_packets_received",
    ),
    _rdma_counter(
        "adaptive_retransmits",
        ("rdma_adaptive_retransmits", "roce_adp_retrans"),
        help="Adaptive retransmissions.",
        use="Packet loss that RoCE repaired itself.",
        peer="roce_adp_retransmits",
    ),
    _rdma_counter(
        "slow_restarts",
        ("rdma_slow_restarts", "roce_slow_restart"),
        help="Slow restarts after loss.",
        use="Above 10 per second throughput drops.",
        peer="roce_slow_restart_used",
        rules="slow_restart",
    ),
    _rdma_counter(
        "cnp_sent",
        ("rdma_cnp_sent", "np_cnp_sent"),
        help="Congestion notifications sent.",
        use="Marked traffic arrives at this node; 0 is no fault where DCQCN is off.",
        peer="np_cnp_packets_sent",
    ),
    _rdma_counter(
        "cnp_handled",
        ("rdma_cnp_handled", "rp_cnp_handled"),
        help="Congestion notifications received and obeyed.",
        use="Congestion elsewhere slows this node down.",
        peer="rp_cnp_packets_handled",
    ),
    _rdma_counter(
        "ecn_marked_packets",
        ("rdma_ecn_marked", "np_ecn_marked_roce_packets"),
        help="RoCE packets received with an ECN mark.",
        use="Congestion on the path to this node.",
        peer="np_ecn_marked_roce_packets_received",
    ),
    _rdma_counter(
        "icrc_errors",
        ("rdma_icrc_errors", "rx_icrc_encapsulated"),
        help="RoCE packets received with a wrong checksum.",
        use="A switch or a NIC changes packets: find the path that the affected nodes share.",
        peer="rx_icrc_encapsulated_errors",
    ),
    row(
        "rdma_cqe_errors_total",
        "rdma_device,port,side",
        Source.RDMA,
        ("rdma_requester_cqe_errors", "req_cqe_error", "requester"),
        ("rdma_responder_cqe_errors", "resp_cqe_error", "responder"),
        help="Completions with an error.",
        use="Jobs received errors; a peak after a flap means that jobs ended.",
        peers="node_infiniband_req_cqes_errors_total; node_infiniband_resp_cqes_errors_total",
    ),
)

_VFS = tuple(
    row(
        f"vf_{noun}_total",
        "pf,vf,pci_address",
        Source.VF,
        (name, "IFLA_VF_STATS"),
        per="VF index",
        help=f"{meaning}.",
        use="By pod: join nodeagent_device_pod_info on pci_address = device_id.",
        peers=f"sriov_{name}{peer}",
    )
    for noun, name, meaning, peer in (
        ("receive_bytes", "vf_rx_bytes", "Bytes received by the VF", "; node_net_vf_receive_bytes_total"),
        ("transmit_bytes", "vf_tx_bytes", "Bytes sent by the VF", ""),
        ("receive_packets", "vf_rx_packets", "Packets received by the VF", ""),
        ("transmit_packets", "vf_tx_packets", "Packets sent by the VF", ""),
        ("receive_dropped", "vf_rx_dropped", "Packets for the VF that were dropped", ""),
        ("transmit_dropped", "vf_tx_dropped", "Packets from the VF that were dropped", ""),
    )
)

_FIRMWARE: tuple[Family, ...] = (
    row(
        "devlink_health_state",
        "pci_address,reporter",
        Source.DEVLINK,
        ("devlink_error", "the reporter's state is error, 0 or 1"),
        per="reporter",
        help="1 while a health reporter of the firmware is in the state error.",
        use="fw_fatal in error: alert NodeNicFirmwareError; run devlink health show, then recover or reboot.",
        rules="firmware_fatal",
    ),
    row(
        "devlink_health_errors_total",
        "pci_address,reporter",
        Source.DEVLINK,
        ("devlink_errors", "DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT"),
        per="reporter",
        help="Errors that a health reporter counted.",
        use="The reporters tx and rx count queues that had to be recovered.",
    ),
    row(
        "devlink_health_recoveries_total",
        "pci_address,reporter",
        Source.DEVLINK,
        ("devlink_recoveries", "DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT"),
        per="reporter",
        help="Recoveries that a health reporter made.",
        use="Fewer than the errors: the firmware did not recover from some of them.",
    ),
    row(
        "kernel_events_total",
        "pci_address,pattern",
        Source.KERNEL,
        ("kernel_events", "matching lines of the kernel log"),
        per="pattern",
        help="Lines of the kernel log that match a known pattern.",
        use="Messages of the driver about this device; the rules use the same patterns.",
        peers="problem_counter (node-problem-detector)",
        rules="firmware_fatal",
    ),
)

ADAPTER_ROWS = (*_PCIE, *_RDMA, *_VFS, *_FIRMWARE)
