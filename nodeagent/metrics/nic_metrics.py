"""What the links hang on: transceivers, PCIe, RDMA, VFs, the firmware and the kernel's log."""

from nodeagent.metrics.family import row

# --- transceivers -------------------------------------------------------------------------------------------

row(
    "transceiver_temperature_celsius",
    "device",
    "module_celsius",
    help="Temperature of the module.",
    use="At the module's own high alarm (nodeagent_transceiver_threshold) the link is degraded: look at fans and cage.",
    peers="transceiver_module_temperature_degrees_celsius",
)
row(
    "transceiver_voltage_volts",
    "device",
    "module_volts",
    help="Supply voltage of the module.",
    use="Outside of its limits: reseat the module, then look at the NIC.",
    peers="transceiver_module_voltage_volts",
)
row(
    "transceiver_receive_power_watts",
    "device,lane",
    "rx_power_watts",
    help="Light received.",
    use="10 * log10(1000 * v) is dBm; lanes lie within 2 dB; 0 is darkness: the other end does not send.",
    peers="transceiver_laser_rx_power_milliwatts",
)
row(
    "transceiver_transmit_power_watts",
    "device,lane",
    "tx_power_watts",
    help="Light sent.",
    use="Below the low alarm the laser is worn out: change the module.",
    peers="transceiver_laser_tx_power_milliwatts",
)
row(
    "transceiver_bias_current_amperes",
    "device,lane",
    "bias_amperes",
    help="Laser bias current.",
    use="It climbs as a laser ages: compare with its neighbors' and with the limit.",
    peers="transceiver_laser_bias_current_milliamperes",
)
row(
    "transceiver_ready",
    "device",
    "module_ready",
    help="1 while the CMIS module is in the state ready.",
    use="0 under a link that should be up: the module is in low power or has a fault.",
)
_LEVELS = ("high_alarm", "high_warning", "low_warning", "low_alarm")
_SENSORS = {
    "temperature_celsius": "module_celsius",
    "voltage_volts": "module_volts",
    "receive_power_watts": "rx_power_watts",
    "transmit_power_watts": "tx_power_watts",
    "bias_current_amperes": "bias_amperes",
}
row(
    "transceiver_threshold",
    "device,sensor,level",
    *((f"{datum}_{level}", sensor, level) for sensor, datum in _SENSORS.items() for level in _LEVELS),
    help="The module's own limits, in the unit that stands in the sensor's name.",
    use="Draw them beside the sensor; the rules use them before any number of ours.",
    peers="transceiver_*_threshold_*",
)

# --- PCIe ---------------------------------------------------------------------------------------------------

row(
    "pcie_link_speed_transfers_per_second",
    "pci_address",
    "pcie_gts",
    scale=1e9,
    help="Speed of the PCIe link at present.",
    use="Idle devices train down: compare max_over_time with the expected speed.",
    peers="node_pcidevice_current_link_transfers_per_second",
)
row(
    "pcie_link_width_lanes",
    "pci_address",
    "pcie_width",
    help="Width of the PCIe link at present.",
    use="Below nodeagent_pcie_expected_link_width_lanes: alert NodePcieWidthReduced; reseat the card or the riser.",
    peers="node_pcidevice_current_link_width",
)
row(
    "pcie_expected_link_speed_transfers_per_second",
    "pci_address",
    "pcie_expected_gts",
    scale=1e9,
    help="The least of what the function and the port above it can do.",
    use="The function's own maximum alone would condemn every card in a slower slot.",
    peers="node_pcidevice_max_link_transfers_per_second (of the function alone)",
)
row(
    "pcie_expected_link_width_lanes",
    "pci_address",
    "pcie_expected_width",
    help="The least of what the function and the port above it can do.",
    use="The function's own maximum alone would condemn every card in a narrower slot.",
    peers="node_pcidevice_max_link_width (of the function alone)",
)
row(
    "pcie_aer_errors_total",
    "pci_address,error,severity",
    ("aer_correctable", "correctable"),
    ("aer_nonfatal", "nonfatal"),
    ("aer_fatal", "fatal"),
    help="PCIe errors by the kernel's names (Advanced Error Reporting); those that never came have no series.",
    use="Any fatal or nonfatal: alert NodePcieAer. They stay 0 where the firmware handles AER.",
)
row(
    "pcie_signal_integrity_errors_total",
    "device,direction",
    ("pcie_rx_signal_errors", "receive"),
    ("pcie_tx_signal_errors", "transmit"),
    help="Signal errors on PCIe, as the NIC counts.",
    use="A rate with a reduced width or speed: the slot, the riser or the card.",
    peers="rdma_pcie_signal_integrity_total",
)
row(
    "pcie_stalled_seconds_total",
    "device,operation",
    ("pcie_stalled_read_seconds", "read"),
    ("pcie_stalled_write_seconds", "write"),
    help="Seconds in which the NIC waited for PCIe for more than 30 % of the time.",
    use="The host holds the NIC up: ACS, IOMMU, a wrong NUMA node, a reduced PCIe link.",
    peers="rdma_pcie_outbound_stalled_seconds_total",
)
row(
    "pcie_buffer_overflow_packets_total",
    "device",
    "pcie_buffer_overflows",
    help="Packets lost because PCIe could not take them.",
    use="As nodeagent_pcie_stalled_seconds_total, past the point where it hurts.",
    peers="rdma_pcie_outbound_buffer_overflow_total",
)

# --- RDMA ---------------------------------------------------------------------------------------------------

row(
    "rdma_port_active",
    "rdma_device,port",
    "rdma_port_active",
    help="1 while the RDMA port is active.",
    use="0 with carrier: the driver has lost its RDMA half; reload it.",
    peers="node_infiniband_state_id",
)
row(
    "rdma_roce_v2_gids",
    "rdma_device,port",
    "roce_v2_gids",
    help="GIDs of type RoCE v2 that are in use.",
    use="0 on an active port: no connection can be made: alert NodeRdmaNoGid; look at the addresses of the netdev.",
)

_RDMA = (
    (
        "receive_bytes",
        "rdma_rx_bytes",
        "Bytes received",
        "Load.",
        "node_infiniband_port_data_received_bytes_total",
    ),
    (
        "transmit_bytes",
        "rdma_tx_bytes",
        "Bytes sent",
        "Load.",
        "node_infiniband_port_data_transmitted_bytes_total",
    ),
    (
        "out_of_sequence_packets",
        "rdma_out_of_sequence",
        "Packets received out of order",
        "Loss or multipath: above 100 per second look at the fabric.",
        "node_infiniband_out_of_sequence_packets_received_total",
    ),
    (
        "packet_sequence_errors",
        "rdma_packet_sequence_errors",
        "NAKs received for packets out of order",
        "The other end saw loss: packets of ours are dropped on the way.",
        "node_infiniband_packet_sequence_errors_total",
    ),
    (
        "local_ack_timeouts",
        "rdma_ack_timeouts",
        "Acknowledgements that did not come in time",
        "Above 1 per second: loss or a peer that has stopped; may be the other end's fault.",
        "node_infiniband_local_ack_timeout_errors_total",
    ),
    (
        "rnr_nak_retries",
        "rdma_rnr_retries",
        "Receiver-not-ready NAKs that a retry answered",
        "No fault: the peer's application posts its receives late.",
        "node_infiniband_rnr_nak_retry_packets_received_total",
    ),
    (
        "adaptive_retransmits",
        "rdma_adaptive_retransmits",
        "Adaptive retransmissions",
        "Loss that RoCE mended by itself.",
        "node_infiniband_roce_adp_retransmits_total",
    ),
    (
        "slow_restarts",
        "rdma_slow_restarts",
        "Slow restarts after loss",
        "Above 10 per second throughput suffers.",
        "node_infiniband_roce_slow_restart_used_total",
    ),
    (
        "cnp_sent",
        "rdma_cnp_sent",
        "Congestion notifications sent",
        "Traffic arrives here marked; 0 is no fault where DCQCN is off.",
        "node_infiniband_np_cnp_packets_sent_total",
    ),
    (
        "cnp_handled",
        "rdma_cnp_handled",
        "Congestion notifications received and heeded",
        "This node is slowed down by others' congestion.",
        "node_infiniband_rp_cnp_packets_handled_total",
    ),
    (
        "ecn_marked_packets",
        "rdma_ecn_marked",
        "RoCE packets received with an ECN mark",
        "Congestion on the way here.",
        "node_infiniband_np_ecn_marked_roce_packets_received_total",
    ),
    (
        "icrc_errors",
        "rdma_icrc_errors",
        "RoCE packets received with a wrong checksum",
        "A switch or a NIC changes packets: find the path they have in common.",
        "node_infiniband_rx_icrc_encapsulated_errors_total",
    ),
)
for noun, datum, what, use_, peer in _RDMA:
    row(f"rdma_{noun}_total", "rdma_device,port", datum, help=f"{what}.", use=use_, peers=peer)
row(
    "rdma_cqe_errors_total",
    "rdma_device,port,side",
    ("rdma_requester_cqe_errors", "requester"),
    ("rdma_responder_cqe_errors", "responder"),
    help="Completions with an error.",
    use="Jobs have seen errors; a peak after a flap is the jobs' end.",
    peers="node_infiniband_req_cqes_errors_total; node_infiniband_resp_cqes_errors_total",
)

# --- VFs ----------------------------------------------------------------------------------------------------

_VF = (
    (
        "receive_bytes",
        "vf_rx_bytes",
        "Bytes received by the VF",
        "sriov_vf_rx_bytes; node_net_vf_receive_bytes_total",
    ),
    ("transmit_bytes", "vf_tx_bytes", "Bytes sent by the VF", "sriov_vf_tx_bytes"),
    ("receive_packets", "vf_rx_packets", "Packets received by the VF", "sriov_vf_rx_packets"),
    ("transmit_packets", "vf_tx_packets", "Packets sent by the VF", "sriov_vf_tx_packets"),
    ("receive_dropped", "vf_rx_dropped", "Packets for the VF that were dropped", "sriov_vf_rx_dropped"),
    ("transmit_dropped", "vf_tx_dropped", "Packets of the VF that were dropped", "sriov_vf_tx_dropped"),
)
for noun, datum, what, peer in _VF:
    row(
        f"vf_{noun}_total",
        "pf,vf,pci_address",
        datum,
        help=f"{what}.",
        use="By pod: join nodeagent_device_pod_info on pci_address = device_id.",
        peers=peer,
    )

# --- firmware and kernel ------------------------------------------------------------------------------------

row(
    "devlink_health_state",
    "pci_address,reporter",
    "devlink_error",
    help="1 while a health reporter of the firmware is in the state error.",
    use="fw_fatal in error: alert NodeNicFirmwareError; devlink health show, then recover or reboot.",
)
row(
    "devlink_health_errors_total",
    "pci_address,reporter",
    "devlink_errors",
    help="Errors that a health reporter saw.",
    use="tx and rx reporters count queues that had to be mended.",
)
row(
    "devlink_health_recoveries_total",
    "pci_address,reporter",
    "devlink_recoveries",
    help="Recoveries that a health reporter made.",
    use="Fewer than the errors: some were not mended.",
)
row(
    "kernel_events_total",
    "pci_address,pattern",
    "kernel_events",
    help="Lines of the kernel's log that match a known pattern.",
    use="What the driver says of the device in words; the patterns are the rules'.",
    peers="problem_counter (node-problem-detector)",
)
