"""The table of measurements: each number that a sample may hold, and the metric family that shows it. Pure.

Rules, metrics and recordings use these names. To add a counter: add its row here, and one line to the reader in
``sampling/`` that states it. What only the documentation says of a family is in ``hack/docs/metric_notes.py``.

The order of the rows is that of the metrics page.
"""

from __future__ import annotations

from nodeagent.measurements.family import FROM_RULES, Family, Measurement, row
from nodeagent.measurements.sample import Source

ADMINISTRATION, DEVLINK, DRIVER, FEC, GPU = (
    Source.ADMINISTRATION,
    Source.DEVLINK,
    Source.DRIVER,
    Source.FEC,
    Source.GPU,
)
KERNEL, LINK, MODES, MODULE, PAUSE = Source.KERNEL, Source.LINK, Source.MODES, Source.MODULE, Source.PAUSE
PCIE, RAILS, RDMA, STATE, VF = Source.PCIE, Source.RAILS, Source.RDMA, Source.STATE, Source.VF

_MEMORY = "nvmlDeviceGetMemoryInfo_v2, as nvidia-smi shows it"
_ECC = "since the driver was loaded (volatile)"
_LIFETIME = "nvmlDeviceGetMemoryErrorCounter, aggregate"
_NVLINK = "data link layer, all links"
_FABRIC = "nvmlDeviceGetGpuFabricInfoV health mask, 0 or 1"
GPU_ROWS: tuple[Family, ...] = (
    row("gpu_memory_used_bytes", "gpu", GPU, "Memory in use on the GPU, by all processes.",
        ("gpu_memory_used_bytes", _MEMORY)),
    row("gpu_memory_reserved_bytes", "gpu", GPU, "Memory that driver and firmware keep for themselves.",
        ("gpu_memory_reserved_bytes", _MEMORY)),
    row("gpu_memory_total_bytes", "gpu", GPU, "Memory of the GPU.",
        ("gpu_memory_total_bytes", _MEMORY)),
    row("gpu_temperature_celsius", "gpu,sensor", GPU, "Temperature of the GPU and of its memory.",
        ("gpu_celsius", "nvmlDeviceGetTemperature, the GPU's own sensor", "gpu"),
        ("gpu_memory_celsius", "NVML_FI_DEV_MEMORY_TEMP", "memory")),
    row("gpu_temperature_limit_celsius", "gpu,sensor", GPU, "Temperature at which the hardware slows the GPU down.",
        ("gpu_limit_celsius", "nvmlDeviceGetTemperatureThreshold, slowdown", "gpu"),
        ("gpu_memory_limit_celsius", "nvmlDeviceGetTemperatureThreshold, memory", "memory")),
    row("gpu_temperature_margin_celsius", "gpu,which", GPU,
        "Degrees to the nearest slowdown (T.Limit): left now, and those at which the memory slows the GPU down.",
        ("gpu_margin_celsius", "nvmlDeviceGetMarginTemperature", "left"),
        ("gpu_memory_least_margin_celsius", "NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT", "memory")),
    row("gpu_utilization_ratio", "gpu", GPU, "Share of the last period in which a kernel ran.",
        ("gpu_utilization", "share of the last period in which a kernel ran, 0 to 1")),
    row("gpu_activity_ratio", "gpu,unit", GPU,
        "Share of its highest rate at which a unit of the GPU worked since the last reading.",
        ("gpu_activity", "nvmlGpmMetricsGet, 0 to 1; only with gpu.profiling"), per="unit of the GPU"),
    row("gpu_memory_utilization_ratio", "gpu", GPU, "Share of the last period in which memory was read or written.",
        ("gpu_memory_utilization", "nvmlDeviceGetUtilizationRates, 0 to 1")),
    row("gpu_codec_utilization_ratio", "gpu,codec", GPU, "Use of the video encoder and decoder.",
        ("gpu_encoder_utilization", "nvmlDeviceGetEncoderUtilization, 0 to 1", "encoder"),
        ("gpu_decoder_utilization", "nvmlDeviceGetDecoderUtilization, 0 to 1", "decoder")),
    row("gpu_power_watts", "gpu", GPU, "Power that the GPU draws.",
        ("gpu_power_watts", "nvmlDeviceGetPowerUsage")),
    row("gpu_power_limit_watts", "gpu", GPU, "Power that the GPU may draw.",
        ("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit")),
    row("gpu_energy_joules_total", "gpu", GPU, "Energy used since the driver was loaded.",
        ("gpu_energy_joules", "nvmlDeviceGetTotalEnergyConsumption")),
    row("gpu_clock_hertz", "gpu,clock", GPU, "Clocks of the multiprocessors and of the memory.",
        ("gpu_sm_hertz", "nvmlDeviceGetClockInfo", "sm"),
        ("gpu_memory_hertz", "nvmlDeviceGetClockInfo", "memory")),
    row("gpu_clock_reason", "gpu,reason", GPU, "1 while this is a reason that the clocks are not higher.",
        ("gpu_clock_reason", "nvmlDeviceGetCurrentClocksEventReasons, 0 or 1"), per="reason of NVML"),
    row("gpu_performance_state", "gpu", GPU, "The P-state; 0 is the fastest.",
        ("gpu_performance_state", "P-state, 0 is the fastest")),
    row("gpu_persistence_mode", "gpu", GPU, "1 while the driver keeps the GPU ready without a program that uses it.",
        ("gpu_persistence_mode", "nvmlDeviceGetPersistenceMode, 0 or 1")),
    row("gpu_ecc_errors_total", "gpu,type,location", GPU, "ECC errors since the driver was loaded.",
        ("gpu_ecc_correctable_sram", _ECC, "correctable", "sram"),
        ("gpu_ecc_correctable_dram", _ECC, "correctable", "dram"),
        ("gpu_ecc_uncorrectable_sram", _ECC, "uncorrectable", "sram"),
        ("gpu_ecc_uncorrectable_dram", _ECC, "uncorrectable", "dram")),
    row("gpu_ecc_lifetime_errors_total", "gpu,type,location", GPU, "ECC errors over the GPU's lifetime.",
        ("gpu_ecc_correctable_sram_lifetime", _LIFETIME, "correctable", "sram"),
        ("gpu_ecc_correctable_dram_lifetime", _LIFETIME, "correctable", "dram"),
        ("gpu_ecc_uncorrectable_sram_lifetime", _LIFETIME, "uncorrectable", "sram"),
        ("gpu_ecc_uncorrectable_dram_lifetime", _LIFETIME, "uncorrectable", "dram")),
    row("gpu_sram_threshold_exceeded", "gpu", GPU, "1 when the GPU has more SRAM errors than the driver accepts.",
        ("gpu_sram_threshold_exceeded", "nvmlDeviceGetSramEccErrorStatus, 0 or 1")),
    row("gpu_remapped_rows", "gpu,cause", GPU, "Rows of memory replaced by spare rows.",
        ("gpu_remapped_correctable", "rows remapped for correctable errors", "correctable"),
        ("gpu_remapped_uncorrectable", "rows remapped for uncorrectable errors", "uncorrectable")),
    row("gpu_row_remap_pending", "gpu", GPU, "1 while the replacement of a row waits for a reset.",
        ("gpu_row_remap_pending", "nvmlDeviceGetRemappedRows, 0 or 1: a reset is needed")),
    row("gpu_row_remap_failed", "gpu", GPU, "1 when a row could not be replaced.",
        ("gpu_row_remap_failed", "nvmlDeviceGetRemappedRows, 0 or 1")),
    row("gpu_nvlink_up", "gpu,link", GPU, "1 while the NVLink is up.",
        ("gpu_nvlink_up", "nvmlDeviceGetNvLinkState, 0 or 1; Hopper has 18"), per="NVLink"),
    row("gpu_nvlink_errors_total", "gpu,kind", GPU, "NVLink errors of the data link layer, all links.",
        ("gpu_nvlink_replays", _NVLINK, "replay"),
        ("gpu_nvlink_recoveries", _NVLINK, "recovery"),
        ("gpu_nvlink_crc_errors", _NVLINK, "crc"),
        ("gpu_nvlink_symbol_errors", "sum of NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS", "symbol")),
    row("gpu_nvlink_bit_error_ratio", "gpu,kind", GPU, "Bit error ratio of the worst NVLink since it came up.",
        ("gpu_nvlink_bit_error_ratio", "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER and _SYMBOL_BER"),
        per="kind: effective or symbol"),
    row("gpu_nvlink_bytes_total", "gpu,direction", GPU, "Data that all NVLinks carried, without protocol.",
        ("gpu_nvlink_bytes", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX"), per="direction"),
    row("gpu_nvlink_rate_bytes", "gpu,direction", GPU,
        "Data that all NVLinks carried in each second since the last reading.",
        ("gpu_nvlink_rate", "nvmlGpmMetricsGet; only with gpu.profiling"), per="direction"),
    row("gpu_nvlink_speed_bytes", "gpu", GPU, "Speed of one NVLink in bytes per second.",
        ("gpu_nvlink_bytes_per_second", "speed of the slowest NVLink that is up")),
    row("gpu_pcie_bytes_total", "gpu,direction", GPU, "Data that the GPU sent and received over PCIe.",
        ("gpu_pcie_bytes", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES"), per="direction"),
    row("gpu_pcie_replays_total", "gpu", GPU, "PCIe packets that were sent again.",
        ("gpu_pcie_replays", "nvmlDeviceGetPcieReplayCounter")),
    row("gpu_pcie_generation", "gpu,which", GPU,
        "PCIe generation: current, and the highest that GPU and slot support.",
        ("gpu_pcie_generation", "current PCIe generation", "current"),
        ("gpu_pcie_generation_max", "highest PCIe generation that GPU and slot support", "possible")),
    row("gpu_pcie_width_lanes", "gpu,which", GPU,
        "PCIe width in lanes: current, and the largest that GPU and slot support.",
        ("gpu_pcie_width", "current PCIe width in lanes", "current"),
        ("gpu_pcie_width_max", "largest PCIe width that GPU and slot support, in lanes", "possible")),
    row("gpu_fabric_fault", "gpu,fault", GPU, "1 while the GPU reports this fault of the NVLink fabric.",
        ("gpu_fabric_degraded_bandwidth", _FABRIC, "degraded_bandwidth"),
        ("gpu_fabric_route_recovery", _FABRIC, "route_recovery"),
        ("gpu_fabric_route_unhealthy", _FABRIC, "route_unhealthy"),
        ("gpu_fabric_access_timeout", _FABRIC, "access_timeout"),
        ("gpu_fabric_misconfigured", _FABRIC, "misconfigured"),
        ("gpu_fabric_not_ready", "nvmlDeviceGetGpuFabricInfoV state, 0 or 1", "not_ready"),
        ("gpu_fabric_failed", "nvmlDeviceGetGpuFabricInfoV status of a completed registration, 0 or 1", "failed")),
    row("gpu_processes", "gpu", GPU, "Processes on the GPU: compute, graphics, and clients of MPS.",
        ("gpu_processes", "processes on the GPU; only with gpu.health.processes")),
    row("gpu_processes_stuck", "gpu", GPU, "Processes on the GPU that hang in the kernel (state D) between readings.",
        ("gpu_processes_stuck", "/proc/PID/task/PID/stat; only with gpu.health.processes")),
    row("gpu_pcie_errors_total", "gpu,error", GPU, "PCIe errors by NVML's names.",
        ("gpu_pcie_errors", "NVML_FI_DEV_PCIE_COUNT_..."), per="error name of NVML"),
    row("gpu_sram_uncorrectable_errors_total", "gpu,part", GPU, "Uncorrectable SRAM errors over the GPU's lifetime.",
        ("gpu_sram_uncorrectable_lifetime", "nvmlDeviceGetSramEccErrorStatus, aggregate"), per="part of the GPU"),
    row("gpu_container_memory_used_bytes", "gpu,container_id", GPU,
        "Memory of the GPU that a container's processes use.",
        ("gpu_container_memory_bytes", "memory of the container's processes, by container ID, host or unknown; "
         "only with gpu.health.processes"),
        per="container"),
)  # fmt: skip

FIGURE_ROWS: tuple[Family, ...] = (
    row("gpu_health_since_timestamp_seconds", "gpu", FROM_RULES, "Time of the last change of state.",
        ("gpu_since_unix", "time of the last change of state")),
    row("gpu_rule_value", "gpu,rule", FROM_RULES, "The number that a rule compares with its threshold.",
        ("gpu_rule_value", "the value that each rule compares"), per="rule"),
    row("link_health_since_timestamp_seconds", "device", FROM_RULES, "Time of the last change of state.",
        ("since_unix", "time of the last change of state")),
    row("link_flap_penalty", "device", FROM_RULES, "Penalty for flaps; it halves in each half-life.",
        ("flap_penalty", "flap damping")),
    row("link_implausible_values_total", "device", FROM_RULES,
        "Values of counters that the rules dropped: registers of ones, steps beyond the speed of the line.",
        ("implausible_values", "values of counters that the rules dropped")),
    row("link_expected_speed_bytes", "device", FROM_RULES,
        "The speed that the link should have, in bytes per second.",
        ("expected_speed_mbps", "the speed that speed_reduced compares with"), scale=125000),
    row("link_pre_fec_bit_error_ratio", "device", FROM_RULES,
        "Bits that FEC corrected, as a share of all bits, over the rule's window.",
        ("pre_fec_ber", "the value that pre_fec_ber compares")),
    row("link_post_fec_bit_error_ratio", "device", FROM_RULES,
        "Symbol errors after FEC, as a share of all bits, over the rule's window.",
        ("post_fec_errors", "the value that post_fec_errors compares")),
    row("link_rule_value", "device,rule", FROM_RULES,
        "The number that a rule compares with its threshold, unless it has no threshold or a family of its own.",
        ("rule_value", "the value that each rule compares"), per="rule"),
)  # fmt: skip
"""The numbers behind the health of links and GPUs. ``metrics/exposition.py`` makes samples of them by these names."""

_STATE_ROWS: tuple[Family, ...] = (
    row("link_up", "device", LINK, "1 while the netdev is operational.", ("oper_up", "IFLA_OPERSTATE is UP, 0 or 1")),
    row("link_carrier", "device", LINK, "1 while the link has carrier; absent while it is set down.",
        ("carrier", "IFLA_CARRIER, 0 or 1; absent while the link is set down")),
    row("link_admin_up", "device", LINK, "1 while the link is set up (IFF_UP).", ("admin_up", "IFF_UP, 0 or 1")),
    row("link_carrier_up_total", "device", LINK, "Times that the link gained carrier.",
        ("carrier_up", "IFLA_CARRIER_UP_COUNT")),
    row("link_carrier_down_total", "device", LINK, "Times that the link lost carrier.",
        ("carrier_down", "IFLA_CARRIER_DOWN_COUNT")),
    row("link_ext_down_events_total", "device", STATE,
        "Times that the PHY lost the link, as the driver reports to the kernel.",
        ("ext_down", "ETHTOOL_A_LINKSTATE_EXT_DOWN_CNT: the PHY lost the link")),
    row("link_down_events_total", "device", DRIVER, "Times that the PHY lost the link, as the firmware counts.",
        ("link_down_events", "link_down_events_phy")),
    row("link_administration_changes_total", "device,change", ADMINISTRATION,
        "Changes of the link by an administrator since the agent started.",
        ("administration", "netlink notices: set up or down, MTU, rings, channels, pauses"), per="change"),
    row("link_speed_bytes", "device", MODES, "Negotiated speed in bytes per second.",
        ("speed_mbps", "negotiated speed in Mbit/s; absent when unknown"), scale=125000),
    row("link_supported_speed_bytes", "device", MODES,
        "The fastest mode that the port supports, in bytes per second.",
        ("supported_mbps", "fastest mode that the port supports, in Mbit/s"), scale=125000),
    row("link_lanes", "device", MODES, "Lanes in use.", ("lanes", "ETHTOOL_A_LINKMODES_LANES")),
    row("link_mtu_bytes", "device", LINK, "The MTU.", ("mtu_bytes", "IFLA_MTU")),
    row("link_transmit_queue_length", "device", LINK, "Packets that the queueing discipline may hold.",
        ("tx_queue_length", "IFLA_TXQLEN, in packets")),
)  # fmt: skip

_STATS64_ROWS = tuple(
    row(f"link_{noun}_total", "device", LINK, help_, (name, "IFLA_STATS64"))
    for noun, name, help_ in (
        ("receive_bytes", "rx_bytes", "Bytes received by the kernel's network stack."),
        ("transmit_bytes", "tx_bytes", "Bytes sent by the kernel's network stack."),
        ("receive_packets", "rx_packets", "Packets received by the kernel's network stack."),
        ("transmit_packets", "tx_packets", "Packets sent by the kernel's network stack."),
        ("receive_multicast", "rx_multicast", "Multicast packets received by the kernel's network stack."),
        ("receive_compressed", "rx_compressed", "Compressed packets received by the kernel's network stack."),
        ("transmit_compressed", "tx_compressed", "Compressed packets sent by the kernel's network stack."),
        ("receive_errors", "rx_errors", "Packets received with an error of any kind."),
        ("transmit_errors", "tx_errors", "Packets that could not be sent."),
        ("receive_dropped", "rx_dropped", "Packets received and dropped by the kernel."),
        ("transmit_dropped", "tx_dropped", "Packets dropped before they were sent."),
        ("receive_missed", "rx_missed", "Packets lost because the NIC had no room."),
        ("receive_length_errors", "rx_length_errors", "Packets of a wrong length."),
        ("receive_over_errors", "rx_over_errors", "Receive ring overflows."),
        ("receive_frame_errors", "rx_frame_errors", "Misaligned frames."),
        ("receive_fifo_errors", "rx_fifo_errors", "Receive FIFO overruns."),
        ("receive_nohandler", "rx_nohandler", "Packets without a receiver."),
        ("transmit_aborted_errors", "tx_aborted_errors", "Aborted transmissions."),
        ("transmit_carrier_errors", "tx_carrier_errors", "Carrier losses while sending."),
        ("transmit_fifo_errors", "tx_fifo_errors", "Transmit FIFO underruns."),
        ("transmit_heartbeat_errors", "tx_heartbeat_errors", "Heartbeat errors."),
        ("transmit_window_errors", "tx_window_errors", "Late collisions."),
        ("collisions", "collisions", "Collisions."),
    )
)

_WIRE_ROWS: tuple[Family, ...] = (
    row("link_receive_crc_errors_total", "device", LINK, "Frames received with a wrong checksum.",
        ("crc_errors", "IFLA_STATS64 rx_crc_errors, or the driver's rx_crc_errors_phy if it has one")),
    row("link_phy_receive_bytes_total", "device", DRIVER, "Bytes received on the wire, RDMA included.",
        ("phy_rx_bytes", "rx_bytes_phy, RDMA included")),
    row("link_phy_transmit_bytes_total", "device", DRIVER, "Bytes sent on the wire, RDMA included.",
        ("phy_tx_bytes", "tx_bytes_phy, RDMA included")),
    row("link_receive_discards_total", "device", DRIVER, "Packets discarded because the adapter had no room.",
        ("rx_discards", "rx_discards_phy: the adapter had no room")),
    row("link_transmit_discards_total", "device", DRIVER, "Packets that the adapter could not send in time.",
        ("tx_discards", "tx_discards_phy")),
    row("link_receive_out_of_buffer_total", "device", DRIVER, "Packets for which no receive buffer was posted.",
        ("rx_out_of_buffer", "rx_out_of_buffer: no receive buffer was posted")),
    row("link_fec_corrected_blocks_total", "device", FEC, "FEC blocks received with errors that were corrected.",
        ("fec_corrected_blocks", "ETHTOOL_A_FEC_STAT_CORRECTED, all lanes")),
    row("link_fec_uncorrectable_blocks_total", "device", FEC,
        "FEC blocks received with more errors than can be corrected: packets were lost.",
        ("fec_uncorrectable_blocks", "ETHTOOL_A_FEC_STAT_UNCORR, all lanes")),
    row("link_fec_corrected_bit_errors_total", "device", FEC, "Bits that FEC corrected.",
        ("fec_corrected_bits", "ETHTOOL_A_FEC_STAT_CORR_BITS, or the driver's rx_corrected_bits_phy")),
    row("link_phy_symbol_errors_total", "device", DRIVER, "Symbol errors after FEC: traffic was lost.",
        ("symbol_errors", "rx_pcs_symbol_err_phy: not corrected by FEC, traffic is lost")),
    row("link_lane_bit_errors_total", "device,lane", DRIVER, "Bit errors of one lane before FEC.",
        ("lane_errors", "rx_err_lane_N_phy, before FEC"), per="lane"),
    row("link_phy_receive_line_bytes_total", "device", DRIVER,
        "Everything received on the line, idle symbols included, in bytes.",
        ("phy_rx_bits", "rx_bits_phy: the denominator of bit error ratios"), scale=0.125),
    row("link_pause_frames_total", "device,priority,direction", DRIVER, "PFC pause frames.",
        ("prio_rx_pause_frames", "rx_prioN_pause: the peer paused this node", "receive"),
        ("prio_tx_pause_frames", "tx_prioN_pause: this node paused the peer", "transmit"), per="priority"),
    row("link_pause_seconds_total", "device,priority,direction", DRIVER, "Time in which a priority was paused.",
        ("prio_rx_pause_seconds", "rx_prioN_pause_duration: time in which this node did not send", "receive"),
        ("prio_tx_pause_seconds", "tx_prioN_pause_duration: time in which the peer did not send", "transmit"),
        per="priority"),
    row("link_pause_transitions_total", "device,priority", DRIVER,
        "Times that a priority went from sending to paused.",
        ("prio_rx_pause_transitions", "rx_prioN_pause_transition"), per="priority"),
    row("link_global_pause_frames_total", "device,direction", PAUSE,
        "IEEE 802.3x pause frames, which stop all priorities.",
        ("rx_pause_frames", "IEEE 802.3x: the peer paused this node", "receive"),
        ("tx_pause_frames", "IEEE 802.3x: this node paused the peer", "transmit")),
    row("link_global_pause_seconds_total", "device,direction", DRIVER,
        "Time in which IEEE 802.3x pauses stopped all priorities.",
        ("global_rx_pause_seconds", "rx_global_pause_duration: time in which this node did not send", "receive"),
        ("global_tx_pause_seconds", "tx_global_pause_duration: time in which the peer did not send", "transmit")),
    row("link_pause_storm_events_total", "device,severity", DRIVER,
        "Times that the NIC paused its peer for too long.",
        ("pause_storm_warnings", "tx_pause_storm_warning_events", "warning"),
        ("pause_storm_errors", "tx_pause_storm_error_events: the NIC stops pausing and loses packets", "error")),
    row("link_ecn_marked_packets_total", "device,priority", DRIVER, "Packets received with an ECN mark.",
        ("prio_ecn_marked", "rx_prioN_marked"), per="priority"),
    row("link_priority_discards_total", "device,priority,reason", DRIVER,
        "Packets of one priority that the adapter discarded.", ("prio_discards", "rx_prioN_discards", "any"),
        ("prio_buffer_discards", "rx_prioN_buf_discard", "buffer"),
        ("prio_congestion_discards", "rx_prioN_cong_discard", "congestion"), per="priority"),
    row("link_module_events_total", "device,event", DRIVER, "Transceiver events that the firmware counted.",
        ("module_unplugs", "module_unplug", "unplug"),
        ("module_high_temperatures", "module_high_temp", "high_temperature"),
        ("module_bus_stuck", "module_bus_stuck", "bus_stuck"),
        ("module_bad_shorted", "module_bad_shorted", "bad_shorted")),
)  # fmt: skip
"""Counters of the NIC on the wire, RDMA included."""

_SENSORS = {
    "temperature_celsius": "module_celsius",
    "voltage_volts": "module_volts",
    "receive_power_watts": "rx_power_watts",
    "transmit_power_watts": "tx_power_watts",
    "bias_current_amperes": "bias_amperes",
}
LIMIT_LEVELS = ("high_alarm", "high_warning", "low_warning", "low_alarm")
"""Sample names of a module's own limits: the sensor's name, then one of these."""
LIMITS_OF_ALERTS = frozenset({"module_celsius_high_warning", "rx_power_watts_low_alarm"})
"""The limits that alerts and dashboards compare with (``hack/monitoring.py``, ``hack/dashboards.py``)."""
OTHER_LIMITS = (
    frozenset(f"{name}_{level}" for name in _SENSORS.values() for level in LIMIT_LEVELS) - LIMITS_OF_ALERTS
)

_TRANSCEIVER_ROWS: tuple[Family, ...] = (
    row("transceiver_temperature_celsius", "device", MODULE, "Temperature of the module.",
        ("module_celsius", "temperature of the module")),
    row("transceiver_voltage_volts", "device", MODULE, "Supply voltage of the module.",
        ("module_volts", "supply voltage of the module")),
    row("transceiver_receive_power_watts", "device,lane", MODULE, "Optical power received.",
        ("rx_power_watts", "optical power received; 0 W is stated as 0"), per="lane"),
    row("transceiver_transmit_power_watts", "device,lane", MODULE, "Optical power sent.",
        ("tx_power_watts", "optical power sent; 0 W is stated as 0"), per="lane"),
    row("transceiver_bias_current_amperes", "device,lane", MODULE, "Laser bias current.",
        ("bias_amperes", "laser bias current"), per="lane"),
    row("transceiver_ready", "device", MODULE, "1 while the CMIS module is in the state ready.",
        ("module_ready", "the CMIS module state is ready, 0 or 1")),
    row("transceiver_threshold", "device,sensor,level", MODULE,
        "The module's own limits, in the unit at the end of the sensor's name.",
        *((f"{name}_{level}", "the module's own limit", sensor, level)
          for sensor, name in _SENSORS.items() for level in LIMIT_LEVELS)),
)  # fmt: skip

_EXPECTED = "the lower of the limits of the function and of the port above it"
_PCIE_ROWS: tuple[Family, ...] = (
    row("pcie_link_speed_transfers_per_second", "pci_address", PCIE, "Current speed of the PCIe link.",
        ("pcie_gts", "current link speed in GT/s"), scale=1e9),
    row("pcie_link_width_lanes", "pci_address", PCIE, "Current width of the PCIe link.",
        ("pcie_width", "current link width in lanes")),
    row("pcie_expected_link_speed_transfers_per_second", "pci_address", PCIE,
        "Highest PCIe speed that both the function and the port above it support.",
        ("pcie_expected_gts", f"{_EXPECTED}, in GT/s"), scale=1e9),
    row("pcie_expected_link_width_lanes", "pci_address", PCIE,
        "Largest PCIe width that both the function and the port above it support.",
        ("pcie_expected_width", f"{_EXPECTED}, in lanes")),
    row("pcie_aer_errors_total", "pci_address,error,severity", PCIE,
        "PCIe errors by the kernel's names (Advanced Error Reporting); errors that never occurred have no series.",
        ("aer_correctable", "aer_dev_correctable", "correctable"), ("aer_nonfatal", "aer_dev_nonfatal", "nonfatal"),
        ("aer_fatal", "aer_dev_fatal", "fatal"), per="error name of the kernel"),
    row("pcie_signal_integrity_errors_total", "device,direction", DRIVER, "Signal errors on PCIe, as the NIC counts.",
        ("pcie_rx_signal_errors", "rx_pci_signal_integrity", "receive"),
        ("pcie_tx_signal_errors", "tx_pci_signal_integrity", "transmit")),
    row("pcie_stalled_seconds_total", "device,operation", DRIVER,
        "Seconds in which the NIC waited for PCIe for more than 30 % of the time.",
        ("pcie_stalled_read_seconds", "outbound_pci_stalled_rd_events: seconds with over 30 % stall", "read"),
        ("pcie_stalled_write_seconds", "outbound_pci_stalled_wr_events: seconds with over 30 % stall", "write")),
    row("pcie_buffer_overflow_packets_total", "device", DRIVER, "Packets lost because PCIe could not take them.",
        ("pcie_buffer_overflows", "outbound_pci_buffer_overflow")),
)  # fmt: skip

_PORT = "rdma_device,port"
_RDMA_ROWS: tuple[Family, ...] = (
    row("rdma_port_active", _PORT, RDMA, "1 while the RDMA port is active.",
        ("rdma_port_active", "ports/N/state is 4 (ACTIVE), 0 or 1")),
    row("rdma_roce_v2_gids", _PORT, RDMA, "GIDs of type RoCE v2 that are in use.",
        ("roce_v2_gids", "non-zero GIDs of type RoCE v2; with none no connection can be made")),
    row("infiniband_port_state", _PORT, RDMA,
        "State of the InfiniBand port: 1 Down, 2 Init, 3 Armed, 4 Active.",
        ("ib_state", "ports/N/state of an InfiniBand port: 1 Down, 2 Init, 3 Armed, 4 Active")),
    row("infiniband_port_physical_state", _PORT, RDMA,
        "Physical state of the InfiniBand port: 2 Polling, 3 Disabled, 5 LinkUp, 6 LinkErrorRecovery.",
        ("ib_physical_state", "ports/N/phys_state of an InfiniBand port: 2 Polling, 3 Disabled, 5 LinkUp")),
    row("infiniband_port_lid", _PORT, RDMA, "Local ID (LID) of the InfiniBand port; 0: none.",
        ("ib_lid", "ports/N/lid of an InfiniBand port, 0 without one")),
    row("infiniband_port_sm_lid", _PORT, RDMA,
        "LID of the subnet manager that configured the InfiniBand port; 0: none.",
        ("ib_sm_lid", "ports/N/sm_lid of an InfiniBand port, 0 without one")),
    row("rdma_receive_bytes_total", _PORT, RDMA, "Bytes received.",
        ("rdma_rx_bytes", "port_rcv_data x 4")),
    row("rdma_transmit_bytes_total", _PORT, RDMA, "Bytes sent.",
        ("rdma_tx_bytes", "port_xmit_data x 4")),
    row("rdma_out_of_sequence_packets_total", _PORT, RDMA, "Packets received out of order.",
        ("rdma_out_of_sequence", "out_of_sequence")),
    row("rdma_packet_sequence_errors_total", _PORT, RDMA, "NAKs received for packets out of order.",
        ("rdma_packet_sequence_errors", "packet_seq_err")),
    row("rdma_local_ack_timeouts_total", _PORT, RDMA, "Acknowledgements that did not arrive in time.",
        ("rdma_ack_timeouts", "local_ack_timeout_err")),
    row("rdma_rnr_nak_retries_total", _PORT, RDMA,
        "Receiver-not-ready NAKs that were followed by a retry.",
        ("rdma_rnr_retries", "rnr_nak_retry_err: within the retry limit, no fault")),
    row("rdma_adaptive_retransmits_total", _PORT, RDMA, "Adaptive retransmissions.",
        ("rdma_adaptive_retransmits", "roce_adp_retrans")),
    row("rdma_slow_restarts_total", _PORT, RDMA, "Slow restarts after loss.",
        ("rdma_slow_restarts", "roce_slow_restart")),
    row("rdma_cnp_sent_total", _PORT, RDMA, "Congestion notifications sent.",
        ("rdma_cnp_sent", "np_cnp_sent")),
    row("rdma_cnp_handled_total", _PORT, RDMA, "Congestion notifications received and obeyed.",
        ("rdma_cnp_handled", "rp_cnp_handled")),
    row("rdma_ecn_marked_packets_total", _PORT, RDMA, "RoCE packets received with an ECN mark.",
        ("rdma_ecn_marked", "np_ecn_marked_roce_packets")),
    row("rdma_icrc_errors_total", _PORT, RDMA, "RoCE packets received with a wrong checksum.",
        ("rdma_icrc_errors", "rx_icrc_encapsulated")),
    row("rdma_cqe_errors_total", "rdma_device,port,side", RDMA, "Completions with an error.",
        ("rdma_requester_cqe_errors", "req_cqe_error", "requester"),
        ("rdma_responder_cqe_errors", "resp_cqe_error", "responder")),
)  # fmt: skip

_VF_ROWS = tuple(
    row(f"vf_{noun}_total", "pf,vf,pci_address", VF, help_, (name, "IFLA_VF_STATS"), per="VF index")
    for noun, name, help_ in (
        ("receive_bytes", "vf_rx_bytes", "Bytes received by the VF."),
        ("transmit_bytes", "vf_tx_bytes", "Bytes sent by the VF."),
        ("receive_packets", "vf_rx_packets", "Packets received by the VF."),
        ("transmit_packets", "vf_tx_packets", "Packets sent by the VF."),
        ("receive_dropped", "vf_rx_dropped", "Packets for the VF that were dropped."),
        ("transmit_dropped", "vf_tx_dropped", "Packets from the VF that were dropped."),
    )
)

_RAIL_ROWS: tuple[Family, ...] = (
    row("rail_probes_total", "device,scope", RAILS, "Packets sent to the partners of this rail.",
        ("rail_probes", "probes of rails.probe"), per="scope"),
    row("rail_probes_lost_total", "device,scope", RAILS, "Of these, packets without an answer within 10 s.",
        ("rail_probes_lost", "probes of rails.probe"), per="scope"),
    row("rail_checkable", "device", RAILS, "1 if the rail can be probed; `nodeagent rails` says why not.",
        ("rail_checkable", "0 or 1")),
    row("rail_partner_nodes", "device", RAILS, "Nodes whose agents this rail probes.",
        ("rail_partners", "without those whose agent is absent")),
    row("rail_lossy_nodes", "device,size", RAILS, "Nodes to and from which this rail loses packets.",
        ("rail_lossy_small", "by the level of their legs", "small"),
        ("rail_lossy_large", "only packets of the full MTU", "large")),
    row("rail_loss_ratio", "device", RAILS, "Loss of the last 15 minutes on the legs that lose packets.",
        ("rail_loss", "0 to 1; 0 if no leg loses any")),
)  # fmt: skip
_FIRMWARE_ROWS: tuple[Family, ...] = (
    row("devlink_health_state", "pci_address,reporter", DEVLINK,
        "1 while a health reporter of the firmware is in the state error.",
        ("devlink_error", "the reporter's state is error, 0 or 1"), per="reporter"),
    row("devlink_health_errors_total", "pci_address,reporter", DEVLINK, "Errors that a health reporter counted.",
        ("devlink_errors", "DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT"), per="reporter"),
    row("devlink_health_recoveries_total", "pci_address,reporter", DEVLINK, "Recoveries that a health reporter made.",
        ("devlink_recoveries", "DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT"), per="reporter"),
    row("kernel_events_total", "pci_address,pattern", KERNEL, "Lines of the kernel log that match a known pattern.",
        ("kernel_events", "matching lines of the kernel log"), per="pattern"),
)  # fmt: skip

NIC_ROWS = (
    *(*_STATE_ROWS, *_STATS64_ROWS, *_WIRE_ROWS, *_TRANSCEIVER_ROWS),
    *(*_PCIE_ROWS, *_RDMA_ROWS, *_VF_ROWS, *_RAIL_ROWS, *_FIRMWARE_ROWS),
)
SAMPLED = (*GPU_ROWS, *FIGURE_ROWS, *NIC_ROWS)
"""The families that samples and health figures feed, in the order of the metrics page."""

_WITHOUT_METRIC = (
    Measurement(
        "gpu_xids", GPU, "XIDs since the agent started, ignored ones included", counter=True, per="XID"
    ),
    Measurement(
        "rail_rtt",
        RAILS,
        "answers by round trip; nodeagent_rail_round_trip_seconds",
        counter=True,
        per="bound",
    ),
    Measurement(
        "rail_lossy_packets",
        RAILS,
        counter=False,
        origin="probes of the last 15 minutes on the legs that lose packets",
    ),
    Measurement(
        "rail_lossy_partners",
        RAILS,
        counter=False,
        origin="the partners of these legs: NICs, of which a node has several",
    ),
    Measurement(
        "rail_lossy_way",
        RAILS,
        counter=False,
        origin="1: most were lost on the way there; -1: on the way back",
    ),
    Measurement("rail_lossy_since", RAILS, counter=False, origin="Unix time of the first loss on these legs"),
)
"""Numbers that no family shows. ``nodeagent_gpu_xid_errors_total`` counts XIDs as they arrive."""

MEASUREMENTS: dict[str, Measurement] = {
    number.name: number
    for number in (*(n for family in NIC_ROWS + GPU_ROWS for n in family.measurements), *_WITHOUT_METRIC)
}
"""Every number that a sample may hold, by name. A reader leaves out what it cannot measure on a machine."""


def measurement(name: str) -> Measurement | None:
    """The measurement of ``name`` or ``name/key``; ``None`` if the key is missing or superfluous."""
    head, slash, _ = name.partition("/")
    known = MEASUREMENTS.get(head)
    return known if known is not None and bool(slash) == (known.per is not None) else None
