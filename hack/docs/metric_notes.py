"""The documentation of each metric family beside its name, labels and help. The programs do not need it.

A family that samples feed, or a function computes, has one entry by its name without ``nodeagent_``.
"""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """``use`` is what to do with the numbers, ``peers`` are other exporters' names for them.

    ``rules`` are the health rules that read the samples of the family. ``origin`` is where a function has the numbers
    from; for samples it is in the row of each number.
    """

    use: str
    peers: str = ""
    rules: str = ""
    origin: str = ""


_RULES = "the rules"
_ACCOUNTING = "NVML's processes, /proc/PID/cgroup, the kubelet's podresources API"
_STACK = "RDMA bypasses the kernel: on mlx5, nodeagent_link_phy_* counts everything on the wire."
_ERRORS = "Should not grow on a link between a node and its leaf; if it does, the error kind shows the cause."
_BY_POD = "By pod: join nodeagent_device_pod_info on pci_address = device_id."

AGENT: dict[str, Note] = {
    "gpu_memory_used_bytes": Note(
        "Compare with the memory that pods requested: without the toolkit's limits nothing enforces slices.",
        peers="DCGM_FI_DEV_FB_USED (MiB)"),
    "gpu_memory_reserved_bytes": Note(
        "Neither in use nor free; a GPU without work has it.", peers="DCGM_FI_DEV_FB_RESERVED (MiB)"),
    "gpu_memory_total_bytes": Note("Denominator of the memory in use.", peers="DCGM_FI_DEV_FB_TOTAL (MiB)"),
    "gpu_temperature_celsius": Note(
        "One GPU hotter than the others under equal load: airflow or thermal paste.",
        peers="DCGM_FI_DEV_GPU_TEMP; DCGM_FI_DEV_MEMORY_TEMP", rules="memory_temperature"),
    "gpu_temperature_limit_celsius": Note(
        "The distance to it is the reserve of the cooling.",
        peers="DCGM_FI_DEV_SLOWDOWN_TEMP; DCGM_FI_DEV_MEM_MAX_OP_TEMP", rules="memory_temperature"),
    "gpu_temperature_margin_celsius": Note(
        "left at or below memory while clock reason thermal is 1: the GPU or its memory is too hot.",
        peers="DCGM_FI_DEV_GPU_TEMP_LIMIT (left)", rules="temperature_margin"),
    "gpu_utilization_ratio": Note(
        "1 may be one small kernel after another; 0 on an allocated GPU: the job waits.",
        peers="DCGM_FI_DEV_GPU_UTIL (percent)", rules="pcie_speed"),
    "gpu_activity_ratio": Note(
        "sm near 1 with a low tensor: the kernels do not use the tensor cores; a high memory: bandwidth limits them.",
        peers="DCGM_FI_PROF_GR_ENGINE_ACTIVE, _SM_ACTIVE, _SM_OCCUPANCY, _PIPE_TENSOR_ACTIVE, _PIPE_FP64_ACTIVE, "
        "_PIPE_FP32_ACTIVE, _PIPE_FP16_ACTIVE, _DRAM_ACTIVE"),
    "gpu_memory_utilization_ratio": Note(
        "High beside a low use of the multiprocessors: the job waits for memory.",
        peers="DCGM_FI_DEV_MEM_COPY_UTIL (percent)"),
    "gpu_codec_utilization_ratio": Note(
        "At 1 the pods that decode video wait for each other.",
        peers="DCGM_FI_DEV_ENC_UTIL; DCGM_FI_DEV_DEC_UTIL (percent)"),
    "gpu_power_watts": Note("Less than that of the others under equal load: this GPU waits.",
        peers="DCGM_FI_DEV_POWER_USAGE"),
    "gpu_power_limit_watts": Note("Equal on all GPUs of one model, unless somebody set it.",
        peers="DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
    "gpu_energy_joules_total": Note("Its rate is the mean power.", peers="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION (mJ)"),
    "gpu_clock_hertz": Note("One GPU slower than the others under equal load: see nodeagent_gpu_clock_reason.",
        peers="DCGM_FI_DEV_SM_CLOCK; DCGM_FI_DEV_MEM_CLOCK (MHz)"),
    "gpu_clock_reason": Note(
        "Under load power_cap is usual. hardware_thermal, hardware_slowdown, power_brake: look at cooling and power.",
        peers="DCGM_FI_DEV_CLOCKS_EVENT_REASONS (bits)", rules="thermal_slowdown power_slowdown temperature_margin"),
    "gpu_performance_state": Note(
        "PCIe speed is compared only in state 0 or while a kernel runs.", peers="DCGM_FI_DEV_PSTATE",
        rules="pcie_speed"),
    "gpu_persistence_mode": Note(
        "0: the first program on an idle GPU waits for seconds, unless the agent or another one keeps the driver open.",
        peers="DCGM_FI_DEV_PERSISTENCE_MODE (not by default)"),
    "gpu_ecc_mode": Note(
        "0: errors of the memory are neither corrected nor counted. A mode that was set counts from the next reset.",
        peers="DCGM_FI_DEV_ECC_CURRENT (not by default)"),
    "gpu_ecc_errors_total": Note(
        "Uncorrectable in SRAM: the GPU is unhealthy until it is reset.",
        peers="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL; DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", rules="sram_uncorrectable"),
    "gpu_ecc_lifetime_errors_total": Note(
        "Outlives the driver and a reset; needed to return the GPU to the vendor.",
        peers="DCGM_FI_DEV_ECC_SBE_AGG_TOTAL; DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
    "gpu_sram_threshold_exceeded": Note("NVIDIA's own limit for returning the GPU.", rules="sram_threshold"),
    "gpu_remapped_rows": Note(
        "Permanent; with more than 512 uncorrectable the GPU must be replaced.",
        peers="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS; DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        rules="remap_limit"),
    "gpu_row_remap_pending": Note(
        "Drain the GPU and reset it when it is idle.", peers="DCGM_FI_DEV_ROW_REMAP_PENDING",
        rules="remap_pending"),
    "gpu_row_remap_failed": Note("Replace the GPU.", peers="DCGM_FI_DEV_ROW_REMAP_FAILURE", rules="remap_failed"),
    "gpu_nvlink_up": Note(
        "Any 0 that was 1: reason nvlink_down, alert NodeGpuUnhealthy; jobs on several GPUs fall back to PCIe or fail.",
        peers="DCGM_EXP_P2P_STATUS", rules="nvlink_down"),
    "gpu_nvlink_errors_total": Note(
        "Recoveries cost time; single CRC errors are corrected. A rising rate often precedes a link failure.",
        peers="DCGM_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL; DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS",
        rules="nvlink_errors nvlink_symbol_errors"),
    "gpu_nvlink_bit_error_ratio": Note(
        "1.5e-254 is a link without errors. It falls slowly, because it counts since the link came up.",
        peers="DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER; DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER",
        rules="nvlink_effective_ber nvlink_symbol_ber"),
    "gpu_nvlink_bytes_total": Note(
        "Equal on all GPUs of a collective.", peers="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL; DCGM_FI_PROF_NVLINK_*_BYTES"),
    "gpu_nvlink_rate_bytes": Note(
        "Divide by nvlink_speed_bytes and the number of links: the use of the NVLinks.",
        peers="DCGM_FI_PROF_NVLINK_TX_BYTES, DCGM_FI_PROF_NVLINK_RX_BYTES"),
    "gpu_nvlink_speed_bytes": Note("Equal on all GPUs of a node."),
    "gpu_pcie_bytes_total": Note(
        "Traffic with the host and with NICs.", peers="DCGM_FI_PROF_PCIE_TX_BYTES; DCGM_FI_PROF_PCIE_RX_BYTES"),
    "gpu_pcie_replays_total": Note(
        "A steady rate: reseat the GPU; compare with nodeagent_pcie_aer_errors_total.",
        peers="DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    "gpu_pcie_generation": Note(
        "Idle GPUs lower their speed: compare under load.",
        peers="DCGM_FI_DEV_PCIE_LINK_GEN; DCGM_FI_DEV_PCIE_MAX_LINK_GEN", rules="pcie_speed"),
    "gpu_pcie_width_lanes": Note(
        "Unequal: alert NodePcieWidthReduced.",
        peers="DCGM_FI_DEV_PCIE_LINK_WIDTH; DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", rules="pcie_width"),
    "gpu_fabric_fault": Note(
        "The fabric manager's log names the switch; jobs on several GPUs are slow or fail.",
        rules="fabric_not_ready fabric_failed fabric_misconfigured fabric_unhealthy fabric_degraded "
        "fabric_route_recovery fabric_access_timeout"),
    "gpu_processes": Note("More than the pods on the GPU: a process uses it without the kubelet."),
    "gpu_processes_stuck": Note("A reset of the GPU waits for them.", rules="process_stuck"),
    "gpu_pcie_errors_total": Note(
        "As nodeagent_pcie_aer_errors_total, counted by the GPU.",
        peers="DCGM_FI_PROF_PCIE_*; DCGM_FI_DEV_PCIE_COUNT_*"),
    "gpu_sram_uncorrectable_errors_total": Note(
        "Shows a part that fails repeatedly; needed to return the GPU to the vendor."),
    "gpu_container_memory_used_bytes": Note(
        "Shows a container that uses more than it requested: join container_id of kube_pod_container_info (without "
        "its scheme). host is a process in no container. Only where gpu.health.processes is on; process IDs are "
        "never shown.", peers="FB_USED by process in dcgm-exporter"),
    "gpu_health_since_timestamp_seconds": Note("time() - this is the time spent in the state."),
    "gpu_rule_value": Note("Shows how near to a fault a GPU is."),
    "link_health_since_timestamp_seconds": Note("time() - this is the time spent in the state."),
    "link_flap_penalty": Note(
        "Above the suppress limit the link is degraded until the penalty falls to the reuse limit."),
    "link_implausible_values_total": Note(
        "Rising: PCI reads of the device fail; it is about to leave the bus, or its firmware is stuck."),
    "link_expected_speed_bytes": Note(
        "Set it in the configuration; otherwise the rules use the speed of its peers, or its own highest."),
    "link_pre_fec_bit_error_ratio": Note(
        "The standard allows 2.4e-4 at 100G per lane; above 1e-4 the link is degraded."),
    "link_post_fec_bit_error_ratio": Note("The standard allows 1e-12; above it the link is degraded."),
    "link_rule_value": Note(
        "Shows how near to a fault a link is; nodeagent health rules prints thresholds and units."),
    "link_up": Note(
        "Prefer nodeagent_link_carrier: the operational state follows the carrier by up to a second.",
        peers="node_network_up"),
    "link_carrier": Note(
        "0: a pulled cable, a dead optic or a disabled switch port. Alert NodeLinkDown.",
        peers="node_network_carrier", rules="carrier_down"),
    "link_admin_up": Note(
        "0: an administrator set the link down; ip link set DEVICE up sets it up again.",
        peers="label adminstate of node_network_info", rules="admin_down"),
    "link_carrier_up_total": Note(
        "Compare with nodeagent_link_carrier_down_total; the two differ by at most 1.",
        peers="node_network_carrier_up_changes_total"),
    "link_carrier_down_total": Note(
        "Flaps: increase(...[1h]) >= 3. The kernel counts, so no loss between two scrapes is missed.",
        peers="node_network_carrier_down_changes_total", rules="flapping flapping_daily"),
    "link_ext_down_events_total": Note("More than the carrier losses: short drops that the netdev did not notice."),
    "link_down_events_total": Note(
        "The same as nodeagent_link_ext_down_events_total, on mlx5.",
        peers="node_ethtool_link_down_events_phy; rdma_phy_link_down_events_total"),
    "link_administration_changes_total": Note(
        "A carrier loss near such a change is no flap.", rules="flapping flapping_daily"),
    "link_speed_bytes": Note(
        "Below nodeagent_link_expected_speed_bytes: alert NodeLinkSpeedReduced.", peers="node_network_speed_bytes",
        rules="speed_reduced"),
    "link_supported_speed_bytes": Note("The NIC's own limit; cable and switch may be built for less."),
    "link_lanes": Note("Fewer lanes than on the other rails, at equal speed per lane, explain a reduced speed."),
    "link_mtu_bytes": Note(
        "Should be equal on every rail; the LLDP finding frame_size_mismatch compares it with the switch.",
        peers="node_network_mtu_bytes"),
    "link_transmit_queue_length": Note("For tuning.", peers="node_network_transmit_queue_length"),
    "link_receive_bytes_total": Note(_STACK, peers="node_network_receive_bytes_total", rules="pcie_speed"),
    "link_transmit_bytes_total": Note(_STACK, peers="node_network_transmit_bytes_total", rules="pcie_speed"),
    "link_receive_packets_total": Note(_STACK, peers="node_network_receive_packets_total"),
    "link_transmit_packets_total": Note(_STACK, peers="node_network_transmit_packets_total"),
    "link_receive_multicast_total": Note(_STACK, peers="node_network_receive_multicast_total"),
    "link_receive_compressed_total": Note(_STACK, peers="node_network_receive_compressed_total"),
    "link_transmit_compressed_total": Note(_STACK, peers="node_network_transmit_compressed_total"),
    "link_receive_errors_total": Note(_ERRORS, peers="receive_errs of node_network_*"),
    "link_transmit_errors_total": Note(_ERRORS, peers="transmit_errs of node_network_*"),
    "link_receive_dropped_total": Note(_ERRORS, peers="receive_drop of node_network_*"),
    "link_transmit_dropped_total": Note(_ERRORS, peers="transmit_drop of node_network_*"),
    "link_receive_missed_total": Note(_ERRORS, peers="part of receive_drop of node_network_*"),
    "link_receive_length_errors_total": Note(_ERRORS, peers="part of receive_frame of node_network_*"),
    "link_receive_over_errors_total": Note(_ERRORS, peers="part of receive_frame of node_network_*"),
    "link_receive_frame_errors_total": Note(_ERRORS, peers="receive_frame of node_network_*"),
    "link_receive_fifo_errors_total": Note(_ERRORS, peers="receive_fifo of node_network_*"),
    "link_receive_nohandler_total": Note(_ERRORS, peers="receive_nohandler of node_network_*"),
    "link_transmit_aborted_errors_total": Note(_ERRORS, peers="part of transmit_carrier of node_network_*"),
    "link_transmit_carrier_errors_total": Note(_ERRORS, peers="transmit_carrier of node_network_*"),
    "link_transmit_fifo_errors_total": Note(_ERRORS, peers="transmit_fifo of node_network_*"),
    "link_transmit_heartbeat_errors_total": Note(_ERRORS, peers="part of transmit_carrier of node_network_*"),
    "link_transmit_window_errors_total": Note(_ERRORS, peers="part of transmit_carrier of node_network_*"),
    "link_collisions_total": Note(_ERRORS, peers="transmit_colls of node_network_*"),
    "link_receive_crc_errors_total": Note(
        "Errors that FEC did not correct, or a NIC without FEC. Above 10 per second the link is degraded; clean "
        "the optics.", peers="node_ethtool_received_crc_errors_phy; rdma_phy_rx_crc_errors_total",
        rules="crc_errors rail_loss"),
    "rail_probes_total": Note("1.5 a second for each rail at the default, unless a partner does not answer."),
    "rail_probes_lost_total": Note(
        "Divide its rate by that of nodeagent_rail_probes_total: loss within the leaf, and across."),
    "rail_checkable": Note("0: nodeagent rails says why; a rail that is not probed may lose anything."),
    "rail_partner_nodes": Note("Below 2, no partner's word is enough to blame the link.", rules="rail_loss rail_mtu"),
    "rail_lossy_nodes": Note(
        "As many as nodeagent_rail_partner_nodes: the link, or its whole leaf. One: the partner's link.",
        rules="rail_loss rail_mtu"),
    "rail_loss_ratio": Note("Above 0.001, collectives over this rail wait.", rules="rail_loss"),
    "link_phy_receive_bytes_total": Note(
        "The load of the link; divide its rate by nodeagent_link_speed_bytes.",
        peers="node_ethtool_received_bytes_phy", rules="pcie_speed"),
    "link_phy_transmit_bytes_total": Note(
        "The load of the link; divide its rate by nodeagent_link_speed_bytes.",
        peers="node_ethtool_transmitted_bytes_phy", rules="pcie_speed"),
    "link_receive_discards_total": Note(
        "The host is slower than the wire: check PCIe (width, stalls) and PFC.",
        peers="node_ethtool_received_discards_phy; rdma_netdev_rx_discards_phy_total"),
    "link_transmit_discards_total": Note(
        "The fabric slows the node down: check received pauses.", peers="node_ethtool_transmitted_discards_phy"),
    "link_receive_out_of_buffer_total": Note(
        "Software is too slow for the kernel's queues; RDMA is not affected.",
        peers="node_ethtool_received_out_of_buffer; rdma_netdev_rx_out_of_buffer_total"),
    "link_fec_corrected_blocks_total": Note("Normal at 100G per lane and above; compare rails with each other."),
    "link_fec_uncorrectable_blocks_total": Note(
        "Ten in five minutes degrade the link; clean or replace cable and optics.", rules="fec_uncorrectable"),
    "link_fec_corrected_bit_errors_total": Note(
        "Numerator of the pre-FEC bit error ratio; see nodeagent_link_phy_receive_line_bytes_total.",
        peers="node_ethtool_received_corrected_bits_phy; rdma_phy_rx_corrected_bits_total",
        rules="pre_fec_ber pre_fec_ber_warning"),
    "link_phy_symbol_errors_total": Note(
        "Above 1e-12 of the bits the link is degraded: alert NodeLinkPostFecErrors.",
        peers="node_ethtool_received_pcs_symbol_err_phy; rdma_phy_rx_pcs_symbol_err_total",
        rules="post_fec_errors"),
    "link_lane_bit_errors_total": Note(
        "One lane with ten times the errors of the next: dirt on the connector or a bad lane, not the fabric.",
        peers="rdma_phy_rx_err_lane_total", rules="lane_imbalance"),
    "link_phy_receive_line_bytes_total": Note(
        "Denominator of bit error ratios: 8 * rate(...). Without it the rules take the speed of the line.",
        peers="rdma_phy_rx_bits_total (bits)",
        rules="pre_fec_ber pre_fec_ber_warning post_fec_errors"),
    "link_mac_faults_total": Note(
        "local: this side receives nothing usable; remote: the peer does not."),
    "link_mac_errors_total": Note(
        "One that grows on one link alone: clean or replace its cable or module. length and too_long on many: a peer "
        "with another MTU."),
    "link_mac_oversize_frames_total": Note("No error: some NICs count jumbo frames here."),
    "link_mac_control_frames_total": Note(
        "Should not grow where neither PFC nor global pause is in use."),
    "link_mac_control_unsupported_frames_total": Note(
        "The peer sends control frames that this NIC ignores: compare the PFC settings of both ends."),
    "link_pause_frames_total": Note(
        "Prefer nodeagent_link_pause_seconds_total; only priorities with PFC count; receive: the peer paused this "
        "node, transmit: this node paused the peer.",
        peers="node_ethtool_received_prio3_pause; rdma_roce_pfc_pause_frames_total"),
    "link_pause_seconds_total": Note(
        "rate() is the share of time: above 5 % transmitted check the host, above 25 % received the fabric; only "
        "priorities with PFC count; receive: the peer paused this node, transmit: this node paused the peer.",
        peers="rdma_roce_pfc_pause_duration_total (microseconds)", rules="host_stall network_paused pause_source "
        "transmit_timeouts"),
    "link_pause_transitions_total": Note(
        "Many short pauses: congestion that comes and goes. Few long ones: a receiver that stopped.",
        peers="rdma_roce_pfc_pause_transitions_total"),
    "link_global_pause_frames_total": Note(
        "Should not grow where PFC is in use: one side is configured for global pause.",
        peers="rdma_netdev_global_pause_frames_total"),
    "link_global_pause_seconds_total": Note(
        "As nodeagent_link_pause_seconds_total, on a port without PFC.",
        peers="node_ethtool_transmitted_global_pause_duration", rules="host_stall network_paused pause_source "
        "transmit_timeouts"),
    "link_pause_storm_events_total": Note(
        "After an error the NIC stops pausing and loses packets: alert NodeLinkPauseStorm; check the host.",
        peers="rdma_netdev_pause_storm_events_total", rules="pause_storm"),
    "link_ecn_marked_packets_total": Note(
        "Congestion on the path to this node; with DCQCN the sender slows down.",
        peers="rdma_netdev_prio_ecn_marked_total"),
    "link_priority_discards_total": Note(
        "Should not grow on lossless priorities; otherwise PFC does not reach the sender.",
        peers="rdma_netdev_prio_*_discard_total"),
    "link_module_events_total": Note(
        "Any increase: reseat the module; if it happens again, replace it.", peers="node_ethtool_module_*"),
    "transceiver_temperature_celsius": Note(
        "At the module's own high alarm (`nodeagent health`) the link is degraded: check fans and cage.",
        peers="transceiver_module_temperature_degrees_celsius",
        rules="optics_temperature optics_temperature_warning"),
    "transceiver_voltage_volts": Note(
        "Outside its limits: reseat the module, then check the NIC.", peers="transceiver_module_voltage_volts"),
    "transceiver_receive_power_watts": Note(
        "10 * log10(1000 * v) is dBm; lanes differ by at most 2 dB; 0: the other end does not send.",
        peers="transceiver_laser_rx_power_milliwatts",
        rules="optics_rx_power optics_rx_power_warning lane_imbalance"),
    "transceiver_transmit_power_watts": Note(
        "Below the low alarm the laser is at the end of its life: replace the module.",
        peers="transceiver_laser_tx_power_milliwatts", rules="optics_laser"),
    "transceiver_bias_current_amperes": Note(
        "Rises as a laser ages: compare with the other lanes and with the limit.",
        peers="transceiver_laser_bias_current_milliamperes", rules="optics_laser"),
    "transceiver_ready": Note(
        "0 on a link that should be up: the module is in low power or has a fault.", rules="optics_laser"),
    "transceiver_threshold": Note(
        "Draw them with the sensor; the rules prefer them to the configured limits. By default those that alerts "
        "compare with, all with `web.opticsLimits: all`.", peers="transceiver_*_threshold_*",
        rules="optics_temperature optics_temperature_warning optics_rx_power optics_rx_power_warning"),
    "pcie_link_speed_transfers_per_second": Note(
        "Idle devices lower their speed: compare max_over_time with the expected speed.",
        peers="node_pcidevice_current_link_transfers_per_second", rules="pcie_speed"),
    "pcie_link_width_lanes": Note(
        "Below nodeagent_pcie_expected_link_width_lanes: alert NodePcieWidthReduced; reseat the card or the riser.",
        peers="node_pcidevice_current_link_width", rules="pcie_width"),
    "pcie_expected_link_speed_transfers_per_second": Note(
        "The function's own maximum alone would report every card in a slower slot.",
        peers="node_pcidevice_max_link_transfers_per_second (of the function alone)", rules="pcie_speed"),
    "pcie_expected_link_width_lanes": Note(
        "The function's own maximum alone would report every card in a narrower slot.",
        peers="node_pcidevice_max_link_width (of the function alone)", rules="pcie_width"),
    "pcie_aer_errors_total": Note(
        "Any fatal or nonfatal: alert NodePcieAer; of a NIC by its reason. Always 0 where the firmware handles AER.",
        rules="pcie_aer_fatal pcie_aer_nonfatal pcie_aer_correctable"),
    "pcie_signal_integrity_errors_total": Note(
        "Growing, with a reduced width or speed: the slot, the riser or the card.",
        peers="rdma_pcie_signal_integrity_total"),
    "pcie_stalled_seconds_total": Note(
        "The host slows the NIC down: ACS, IOMMU, a wrong NUMA node, a reduced PCIe link.",
        peers="rdma_pcie_outbound_stalled_seconds_total", rules="pcie_stall"),
    "pcie_buffer_overflow_packets_total": Note(
        "As nodeagent_pcie_stalled_seconds_total, but packets are lost already.",
        peers="rdma_pcie_outbound_buffer_overflow_total"),
    "rdma_implied_nak_errors_total": Note(
        "As nodeagent_rdma_packet_sequence_errors_total: packets were lost on the way.",
        peers="node_infiniband_implied_nak_seq_errors_total"),
    "rdma_duplicate_requests_total": Note(
        "Normal after retries; many point to lost acknowledgments.",
        peers="node_infiniband_duplicate_requests_packets_total"),
    "rdma_out_of_buffer_packets_total": Note(
        "The program is too slow to post receive buffers: the network has no fault.",
        peers="node_infiniband_out_of_buffer_drops_total"),
    "rdma_cnp_ignored_total": Note(
        "Congestion control is off on this port.", peers="node_infiniband_rp_cnp_ignored_packets_received_total"),
    "rdma_adaptive_retransmit_timeouts_total": Note(
        "As nodeagent_rdma_adaptive_retransmits_total.", peers="node_infiniband_roce_adp_retransmits_timeout_total"),
    "rdma_slow_restart_events_total": Note(
        "As nodeagent_rdma_slow_restarts_total.", peers="node_infiniband_roce_slow_restart_cnps_total"),
    "rdma_flush_errors_total": Note(
        "Follows another error, or the end of a program.", peers="node_infiniband_req_cqes_flush_errors_total"),
    "rdma_access_errors_total": Note(
        "A program used memory that its peer has not registered.",
        peers="node_infiniband_req_remote_access_errors_total"),
    "rdma_invalid_requests_total": Note(
        "A fault of a program.", peers="node_infiniband_req_remote_invalid_request_errors_total"),
    "rdma_length_errors_total": Note(
        "A fault of a program.", peers="node_infiniband_resp_local_length_errors_total"),
    "rdma_retries_exceeded_total": Note(
        "Each ends a connection, and NCCL with it: look for lost packets on the way and for a dead peer.",
        peers="node_infiniband_req_transport_retries_exceeded_total"),
    "rdma_received_requests_total": Note(
        "Load by operation.", peers="node_infiniband_rx_read_requests_total"),
    "rdma_dct_connections_total": Note("Load.", peers="node_infiniband_rx_dct_connect_requests_total"),
    "rdma_discarded_packets_total": Note("The NIC has no room, or the packet is too long for the MTU."),
    "rdma_error_packets_total": Note("Compare rails with each other."),
    "rdma_retransmitted_packets_total": Note("Some are normal; compare rails with each other."),
    "rdma_retransmitted_bytes_total": Note("As nodeagent_rdma_retransmitted_packets_total."),
    "rdma_path_events_total": Note(
        "unresponsive: the peer is gone; impaired and many time-outs: the network drops packets."),
    "rdma_work_request_errors_total": Note("A sustained increase is a fault, no tuning."),
    "infiniband_link_downed_total": Note(
        "rate() above 0: cable, module or the other end.", peers="node_infiniband_link_downed_total",
        rules="flapping flapping_daily"),
    "infiniband_link_recoveries_total": Note(
        "The cable is weak; a lost link comes next.", peers="node_infiniband_link_error_recovery_total",
        rules="link_recoveries"),
    "infiniband_symbol_errors_total": Note(
        "Compare rails with each other.", peers="node_infiniband_symbol_error_total", rules="link_symbol_errors"),
    "infiniband_receive_errors_total": Note(
        "any: this cable or this port; remote_physical: a link farther away.",
        peers="node_infiniband_port_receive_errors_total", rules="crc_errors"),
    "infiniband_transmit_discards_total": Note(
        "The port was down, or the network did not take the packets in time.",
        peers="node_infiniband_port_transmit_discards_total"),
    "infiniband_link_integrity_errors_total": Note(
        "Replace the cable.", peers="node_infiniband_local_link_integrity_errors_total"),
    "infiniband_buffer_overruns_total": Note(
        "The other end sent without credits: firmware.",
        peers="node_infiniband_excessive_buffer_overrun_errors_total"),
    "infiniband_management_drops_total": Note(
        "The subnet manager asks more than the port answers.", peers="node_infiniband_vl15_dropped_total"),
    "infiniband_transmit_waits_total": Note(
        "Congestion of the network, not a fault of the port; compare rails with each other.",
        peers="node_infiniband_port_transmit_wait_total"),
    "rdma_port_active": Note(
        "0 with carrier: the RDMA part of the driver failed; reload the driver.", peers="node_infiniband_state_id",
        rules="gid_missing verbs_missing"),
    "rdma_roce_v2_gids": Note(
        "0 on an active port: no connection can be made: alert NodeRdmaNoGid; check the netdev's addresses.",
        rules="gid_missing"),
    "infiniband_port_state": Note(
        "2 for a minute with a working cable: no subnet manager has configured the port.",
        peers="node_infiniband_state_id", rules="ib_no_sm ib_armed ib_no_lid"),
    "infiniband_port_physical_state": Note(
        "2: no signal from the cable. 3: the port was disabled.", peers="node_infiniband_physical_state_id",
        rules="ib_disabled ib_no_sm ib_armed"),
    "infiniband_port_lid": Note(
        "0 on an active port: nothing can be addressed; check the subnet manager.", rules="ib_no_lid"),
    "infiniband_port_sm_lid": Note(
        "A change is a failover of the subnet manager. A manager that has ended keeps its LID here.",
        rules="ib_no_lid"),
    "rdma_receive_bytes_total": Note("Load.", peers="node_infiniband_port_data_received_bytes_total"),
    "rdma_transmit_bytes_total": Note("Load.", peers="node_infiniband_port_data_transmitted_bytes_total"),
    "rdma_out_of_sequence_packets_total": Note(
        "Loss or multipath: above 100 per second check the fabric.",
        peers="node_infiniband_out_of_sequence_packets_received_total", rules="out_of_sequence"),
    "rdma_packet_sequence_errors_total": Note(
        "The other end lost packets: packets from this node are dropped on the path.",
        peers="node_infiniband_packet_sequence_errors_total"),
    "rdma_local_ack_timeouts_total": Note(
        "Above 1 per second: loss or a peer that stopped; the fault may be at the other end.",
        peers="node_infiniband_local_ack_timeout_errors_total", rules="rdma_timeouts"),
    "rdma_rnr_nak_retries_total": Note(
        "No fault: the peer's application posts its receives late.",
        peers="node_infiniband_rnr_nak_retry_packets_received_total"),
    "rdma_adaptive_retransmits_total": Note(
        "Packet loss that RoCE repaired itself.", peers="node_infiniband_roce_adp_retransmits_total"),
    "rdma_slow_restarts_total": Note(
        "Above 10 per second throughput drops.", peers="node_infiniband_roce_slow_restart_used_total",
        rules="slow_restart"),
    "rdma_cnp_sent_total": Note(
        "Marked traffic arrives at this node; 0 is not a fault where DCQCN is off.",
        peers="node_infiniband_np_cnp_packets_sent_total"),
    "rdma_cnp_handled_total": Note(
        "Congestion elsewhere slows this node down.", peers="node_infiniband_rp_cnp_packets_handled_total"),
    "rdma_ecn_marked_packets_total": Note(
        "Congestion on the path to this node.", peers="node_infiniband_np_ecn_marked_roce_packets_received_total"),
    "rdma_icrc_errors_total": Note(
        "A switch or a NIC changes packets: find the path that the affected nodes share.",
        peers="node_infiniband_rx_icrc_encapsulated_errors_total"),
    "rdma_cqe_errors_total": Note(
        "Jobs received errors; a peak after a flap means that jobs ended.",
        peers="node_infiniband_req_cqes_errors_total; node_infiniband_resp_cqes_errors_total"),
    "vf_receive_bytes_total": Note(_BY_POD, peers="sriov_vf_rx_bytes; node_net_vf_receive_bytes_total"),
    "vf_transmit_bytes_total": Note(_BY_POD, peers="sriov_vf_tx_bytes"),
    "vf_receive_packets_total": Note(_BY_POD, peers="sriov_vf_rx_packets"),
    "vf_transmit_packets_total": Note(_BY_POD, peers="sriov_vf_tx_packets"),
    "vf_receive_dropped_total": Note(_BY_POD, peers="sriov_vf_rx_dropped"),
    "vf_transmit_dropped_total": Note(_BY_POD, peers="sriov_vf_tx_dropped"),
    "devlink_health_state": Note(
        "fw_fatal in error: alert NodeNicFirmwareError; run devlink health show, then recover or reboot.",
        rules="firmware_fatal"),
    "devlink_health_errors_total": Note("The reporters tx and rx count queues that had to be recovered."),
    "devlink_health_recoveries_total": Note(
        "Fewer than the errors: the firmware did not recover from some of them."),
    "kernel_events_total": Note(
        "Messages of the driver about this device; the rules use the same patterns.",
        peers="problem_counter (node-problem-detector)",
        rules="firmware_fatal transmit_timeouts command_failures high_temperature"),
    "pcie_slot_power_low": Note(
        "Absent until the driver has written a line about it. 1: set the power limit of the slot in the machine's "
        "firmware.", rules="slot_power"),
    "gpus": Note(
        "on_bus above named: a GPU is lost or is not offered; nodeagent_gpu_health_reason gives the reason.",
        origin="/sys/bus/pci/devices and NVML"),
    "gpu_recovery_action": Note(
        "gpu_reset: drain and reset; node_reboot: reboot; none: nothing.",
        origin="gpu: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
    "gpu_info": Note("Join on gpu for anything descriptive.", peers="labels of every DCGM series", origin="NVML"),
    "gpu_health_state": Note(
        "unhealthy: the kubelet starts no new pods on it; nodeagent_gpu_health_reason gives the reason.",
        peers="DCGM_EXP_GPU_HEALTH_STATUS", origin=_RULES),
    "gpu_health_reason": Note("The reason's section in docs/runbook.md has the remedy.", origin=_RULES),
    "gpu_fabric_state": Note(
        "Anything but completed on an NVSwitch system: the fabric manager did not finish.",
        origin="gpu: nvmlDeviceGetGpuFabricInfoV"),
    "gpu_mps_ready": Note(
        "0: the slices of the GPU are Unhealthy, with the reason mps_daemon. Only with enforcement mps.",
        peers="none", origin="`nodeagent mps`, which probes the daemon"),
    "gpu_nic_affinity_info": Note(
        "A GPU should use a NIC at PIX or PXB.", origin="the PCI paths under /sys/devices"),
    "link_health_state": Note(
        "Watch this one first: the families below show the cause. unknown never changes what pods can get; unused "
        "was never up; missing is a NIC of a rail that is gone.", origin=_RULES),
    "link_health_reason": Note(
        "Several may be active at once; docs/runbook.md has the remedy for each.", origin=_RULES),
    "link_info": Note(
        "Join on device for anything descriptive.", peers="node_ethtool_info; node_network_info; rdma_port_info",
        origin="sysfs, RTM_GETLINK, ETHTOOL_GDRVINFO"),
    "link_ext_state": Note(
        "No cable, no module, link training failed: read it first when a link is down.",
        origin="state: ETHTOOL_A_LINKSTATE_EXT_STATE and EXT_SUBSTATE"),
    "link_fec_info": Note(
        "Must be equal on both ends; off at 100G per lane is a fault.", origin="fec: ETHTOOL_A_FEC_ACTIVE"),
    "transceiver_info": Note(
        "Faults with one part number or revision point to a bad batch.", peers="transceiver_vendor_*_info",
        origin="module: ETHTOOL_MSG_MODULE_EEPROM_GET"),
    "transceiver_module_state": Note(
        "fault: replace it; low-power on a link that should be up: the host did not power it up.",
        origin="module: CMIS 00h byte 3, or ETHTOOL_MSG_MODULE_GET"),
    "pcie_info": Note(
        "Join on pci_address to add a name to the PCIe families.", peers="node_pcidevice_info",
        origin="sysfs, NVML"),
    "rdma_port_info": Note("Join on rdma_device for the netdev.", peers="rdma_port_info", origin="sysfs"),
    "pf_vfs": Note(
        "Fewer configured than wanted: nodeagent vfs apply.",
        peers="node_pcidevice_sriov_numvfs; node_pcidevice_sriov_totalvfs", origin="sriov_numvfs, sriov_totalvfs"),
    "vf_info": Note(
        "Join on pci_address. link_state enable keeps a VF up when its PF loses carrier: the pod does not notice.",
        peers="node_net_vf_info", origin="sysfs, IFLA_VFINFO_LIST"),
    "lldp_neighbor_info": Note(
        "Join on device to see faults by leaf. Texts come from the switch, escaped and cut.",
        peers="none of the agents here; lldp exporters vary", origin="AF_PACKET, EtherType 88cc; InfiniBand: umad"),
    "lldp_neighbors": Note(
        "1 is right. More: a device between node and switch forwards LLDP. 0 with carrier: LLDP is off on the "
        "switch.", origin="AF_PACKET, EtherType 88cc; InfiniBand: umad"),
    "lldp_neighbor_expected": Note(
        "0: alert NodeLinkMiscabled; nodeagent neighbors shows the neighbor.", origin="the rules: miscabled"),
    "lldp_finding": Note(
        "frame_size_mismatch, pfc_mismatch, ets_mismatch: configure switch and node alike; see nodeagent neighbors.",
        origin="lldp/findings"),
    "lldp_neighbor_duplicates": Note(
        "Two cables show one port: a device forwards LLDP, or two switches have one configuration.",
        origin="lldp/findings"),
    "device_pod_info": Note(
        "Join it to add pods: device_id is a VF's PCI address or a GPU's UUID.",
        peers="sriov_kubepoddevice; pod labels of dcgm-exporter", origin="the kubelet's podresources API"),
    "device_pod_devices": Note(
        "GPU memory by pod: multiply by nodeagent_resource_device_bytes.", origin="the kubelet's podresources API"),
    "link_device_allocatable": Note("0: the link's devices are Unhealthy."),
    "link_device_free": Note(
        "0 on one rail: pods that need all rails do not fit on the node.",
        origin="the agent, and the kubelet's podresources API"),
    "gpu_device_allocatable": Note("0: the GPU is Unhealthy."),
    "gpu_device_free": Note(
        "All slices of a container are on one GPU, so a pod cannot request the sum over GPUs.",
        origin="the agent, and the kubelet's podresources API"),
    "resource_largest_free_block": Note(
        "Larger requests are refused here although the scheduler counts enough free devices: fragmentation.",
        origin="the agent, and the kubelet's podresources API"),
    "resource_device_bytes": Note("Converts slices to bytes.", origin="the configuration"),
    "resource_enforcement": Note(
        "none: a program that uses more than its share takes it from its neighbors; docs/gpu-memory.md.",
        origin="the configuration, the driver's version and the host's cgroups"),
    "gpu_container_limit_in_force": Note(
        "0: the container runs without the limit that the level promises; its Event GpuMemoryNotLimited names the "
        "cause. Absent while it is not known.", peers="none",
        origin="nvmlDeviceGetMemoryLimits_v1 for the cgroup of each container"),
    "gpu_container_limit_since_timestamp_seconds": Note(
        "time() - this is how long it has been so, as far as this agent has seen it.", peers="none",
        origin="as gpu_container_limit_in_force"),
    "build_info": Note("Follow a rollout."),
    "attach_connected": Note(
        "0: new pods with VFs wait. Only with `attach.interface`.", origin="the files of `nodeagent attach`"),
    "attach_waiting_pods": Note(
        "`nodeagent doctor` names each pod and its reason.", origin="the files of `nodeagent attach`"),
    "attach_seconds": Note(
        "Eight netdevs take some 20 ms of a processor; seconds: a driver holds the kernel's lock.",
        origin="the files of `nodeagent attach`; from its start on"),
    "attach_failures_total": Note(
        "plan: a VF has no address; holder: two pods hold one VF; name, move: a CNI plugin uses the name; "
        "the log has each reason.", origin="the files of `nodeagent attach`; from its start on"),
    "rail_round_trip_seconds": Note(
        "Compare rails and nodes: one that is slower than its neighbors has congestion, pauses or another path."),
    "rpc_duration_seconds": Note(
        "The kubelet admits pods one after another and waits for Allocate: above 0.1 s check the disk."),
    "rpcs_total": Note("Any result but OK: a pod was refused; its event gives the reason."),
    "claims_prepared": Note(
        "Compare with the pods of the node: a claim without a pod is ended after two comparisons with the API "
        "server."),
    "claim_conflicts_total": Note(
        "It grows for a moment when pods are deleted by force; if it continues to grow, several schedulers "
        "overbook."),
    "kubelet_registrations_total": Note(
        "More than the restarts of the kubelet: another plugin registers the same resource."),
    "resource_registered": Note("0: /readyz gives the reason."),
    "file_unwritable": Note("The resources that need it are withheld: alert NodeAgentFileUnwritable."),
    "state_unwritable": Note(
        "A restart of the agent loses what the file has; /readyz has the remedy: alert NodeAgentStateUnwritable."),
    "resource_devices": Note("The kubelet gives unhealthy devices to no new pod."),
    "source_silent": Note("Its last facts stay valid; the log gives the reason: alert NodeAgentSourceSilent."),
    "hanging_call_seconds": Note(
        "A read of the machine or a write to a disk hangs in the kernel; `/readyz` and the log name it."),
    "task_restarts_total": Note("Rising: the log has the reason of each restart."),
    "cluster_writes_total": Note(
        "refused rises: the API server rejects what the agent writes; /readyz gives the reason."),
    "cluster_writes_failing": Note("1 for long: alert NodeAgentClusterWritesFailing; /readyz gives the reason."),
    "cluster_objects_removed_total": Note(
        "Rises without a restart of the kubelet: another client deletes them, or the driver is not registered."),
    "cluster_report_left_out": Note(
        "Above 0: the definition of NodeLinks is older than the agent; apply it again."),
    "configuration_in_force": Note("0: the running configuration stays; /readyz and the log have the fault."),
    "gpu_driver_stuck_threads": Note(
        "Above 0 for long: the driver hangs, and nvidia-smi hangs too. Reset the GPU or reboot."),
    "collector_up": Note("0 for long: alert NodeAgentCollectorStale.", peers="node_scrape_collector_success"),
    "collector_duration_seconds": Note(
        "Slow firmware shows here first. Not part of the scrape time.",
        peers="node_scrape_collector_duration_seconds"),
    "collector_last_success_timestamp_seconds": Note("time() - this is the age of its values."),
    "collector_errors_total": Note(
        "The log has the reason of each kind of error once.", peers="rdma_scrape_errors_total"),
    "netlink_overruns_total": Note("No change is lost. Many: a program changes links in a loop.", origin="ENOBUFS"),
    "lldp_last_received_timestamp_seconds": Note(
        "Older than two intervals of the switch (60 s): the switch stopped sending.",
        origin="AF_PACKET, EtherType 88cc"),
    "web_certificate_expiry_timestamp_seconds": Note("Alert some days before: NodeAgentCertificateExpiring."),
    "web_certificate_fresh": Note(
        "0: the files are missing, incomplete, expired or do not match; the log names the cause."),
    "series_dropped_total": Note("Should not exist: raise web.seriesMax, or find the cause of so many names."),
    "gpu_health_transitions_total": Note(
        "A GPU that changes back and forth has a fault that a reset only hides.", origin=_RULES),
    "gpu_xid_errors_total": Note(
        "docs/reference/gpu-rules.md lists the XIDs that make a GPU unhealthy; repeated XIDs count each time.",
        peers="DCGM_FI_DEV_XID_ERRORS (gauge: the last one); DCGM_EXP_XID_ERRORS_COUNT",
        origin="nvmlEventSetWait_v2"),
    "gpu_last_xid_timestamp_seconds": Note(
        "Shows in a dashboard which XID came first.", origin="nvmlEventSetWait_v2"),
    "nvswitch_sxid_errors_total": Note(
        "A fatal one degrades the GPUs with NVLinks (nvswitch_error). Equal lines of one second count once.",
        peers="DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS, DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS",
        origin="kernel log: SXid"),
    "gpu_accounting_on": Note("0 with gpu.health.processes on: the log and nodeagent gpus name what is missing."),
    "gpu_pod_memory_granted_bytes": Note(
        "Compare with nodeagent_gpu_pod_memory_used_bytes. Only where gpu.health.processes is on.",
        origin=_ACCOUNTING),
    "gpu_pod_memory_used_bytes": Note(
        "Above the grant: the pod takes memory of its neighbors. Only where gpu.health.processes is on.",
        peers="FB_USED by pod in dcgm-exporter, for whole GPUs",
        origin=_ACCOUNTING),
    "gpu_pod_utilization_ratio": Note(
        "Which of the pods on a shared GPU uses it. Only where gpu.health.processes is on.",
        peers="none; dcgm-exporter has it for the GPU (dcgm-exporter#307)",
        origin="nvmlDeviceGetProcessUtilization"),
    "gpu_outside_memory_used_bytes": Note(
        "nodeagent gpus names the processes: a display server, an MPS server, a program that a person has started.",
        origin=_ACCOUNTING),
    "gpu_memory_limits": Note(
        "failed: a container can use more than its share; its Event names the cause.", peers="none",
        origin="nvmlDeviceGetMemoryLimits_v1 for the cgroup of each container"),
    "gpu_memory_limit_writes_total": Note(
        "One for each start of a container. A steady growth: another program changes the limits.", peers="none",
        origin="nvmlDeviceSetMemoryLimits_v1"),
    "gpu_mps_daemon_ends_total": Note(
        "Each end takes the GPU from all its programs; the log and Events name the pods. Only with enforcement mps.",
        peers="none", origin="`nodeagent mps`"),
    "link_health_transitions_total": Note(
        "Many: the thresholds of a rule are too close to each other, or the link really flaps.",
        origin=_RULES),
}  # fmt: skip

CONTROLLER: dict[str, Note] = {
    "build_info": Note("Follow a rollout."),
    "maintenance_end_timestamp_seconds": Note(
        "Alerts about the link or node are silent until then: nodeagent maintain. All replicas export it, 20,000 "
        "series at most: aggregate with max."
    ),
    "node_away_start_timestamp_seconds": Note(
        "nodeagent trouble has what its kubelet says. The leader exports it, 20,000 series at most; absent once the "
        "node is Ready and its agent runs.", origin="the condition Ready of the Node, the agent's pod"
    ),
    "odd_nodes": Note(
        "nodeagent trouble names the nodes, nodeagent diff NODE their values. The leader exports it, a series for each "
        "compared value; absent while no agent compares.", origin="`compared` of the reports"
    ),
    "gpu_trouble_start_timestamp_seconds": Note(
        "nodeagent trouble has the reasons, the pods and what to do. The leader exports it, 20,000 series at most; not "
        "of a node that is away.", origin="the NodeLinks of the node"
    ),
    "controller_leader": Note("The sum must be 1; it is 0 for some seconds when the leader changes."),
    "configuration_in_force": Note("0: the running configuration stays; /readyz and the log have the fault."),
    "fabric_plans_total": Note("Grows with every change of a report."),
    "fabric_suppressed_writes_total": Note("Compare with nodeagent_controller_writes_total."),
    "fabric_plan_duration_seconds": Note("Some milliseconds per thousand nodes."),
    "fabric_nodes": Note("unplaced: nodeagent explain NODE prints the reason."),
    "fabric_hypernodes": Note("Changes only when cabling changes."),
    "fabric_anomalies": Note("The controller's Events name the nodes and switches."),
    "fabric_breaker_open": Note(
        "1: find the cause before nodes move; the log and the Events give the numbers and the end of the hold."),
    "fabric_foreign_hypernodes": Note("Above 0: two controllers manage the same nodes."),
    "watch_objects": Note("The cluster's size."),
    "watch_age_seconds": Note("Above some minutes: the API server does not answer, and the fabric is not updated."),
    "watch_lists_total": Note("Many: watches break; a list of all reports costs the API server most."),
    "controller_writes_total": Note("Any result but ok: the log has the reason."),
    "fabric_marked_nodes": Note("Each needs a repair; absent unless marks are configured."),
    "fabric_spared_nodes": Note("Above 0: a fault of the fabric rather than of nodes."),
    "rail_legs": Note("bad above 0: nodeagent_fabric_anomalies has the place, if it is known."),
    "switch_reads_total": Note("Any result but ok: the log names the switch."),
    "switches": Note("silent: check address, credentials and access lists."),
    "switch_rounds_total": Note("Grows at the configured rate."),
    "switch_round_duration_seconds": Note("Near the configured interval: switches answer slowly."),
    "job_gpus_degraded": Note(
        "Above 0: nodeagent job -n NAMESPACE KIND/NAME names the GPUs. Needs jobs and cluster.reportHolders."
    ),
    "job_links_degraded": Note(
        "Above 0: nodeagent job -n NAMESPACE KIND/NAME names the links. At most 200 jobs, those in trouble first; "
        "needs jobs and cluster.reportHolders."),
    "job_stalled_seconds": Note(
        "Above 0: alert NodeFabricJobStalled; nodeagent job NAME --rails names who did not arrive. Needs "
        "traffic.report of the agents."),
    "job_rails_below_peers": Note(
        "Above 0: nodeagent job NAME --rails names the rails. Needs traffic.report of the agents."),
    "job_leaf_groups": Note("Of the same jobs; nodeagent job prints the fewest possible beside it."),
    "task_restarts_total": Note("Rising: the log has the reason of each restart."),
}  # fmt: skip
