"""The links: carrier, speed, traffic, errors and pauses of each PF."""

from nodeagent.metrics.family import row

# --- is it up, and as fast as it should be ------------------------------------------------------------------

row(
    "link_up",
    "device",
    "oper_up",
    help="1 while the netdev is operational.",
    use="Prefer nodeagent_link_carrier: the operational state follows the carrier by up to a second.",
    peers="node_network_up",
)
row(
    "link_carrier",
    "device",
    "carrier",
    help="1 while the link has carrier; absent while it is set down.",
    use="0 is a pulled cable, a dead optic or a switch port that is shut: alert NodeLinkDown.",
    peers="node_network_carrier",
)
row(
    "link_admin_up",
    "device",
    "admin_up",
    help="1 while the link is set up (IFF_UP).",
    use="0 is somebody's will, not a fault; ip link set DEVICE up ends it.",
    peers="label adminstate of node_network_info",
)
row(
    "link_carrier_up_total",
    "device",
    "carrier_up",
    help="Times that the carrier came.",
    use="With nodeagent_link_carrier_down_total; the two differ by at most one.",
    peers="node_network_carrier_up_changes_total",
)
row(
    "link_carrier_down_total",
    "device",
    "carrier_down",
    help="Times that the carrier was lost.",
    use="Flaps: increase(...[1h]) >= 3. Counted by the kernel, so none is missed between two scrapes.",
    peers="node_network_carrier_down_changes_total",
)
row(
    "link_ext_down_events_total",
    "device",
    "ext_down",
    help="Times that the PHY lost the link, as the driver tells the kernel.",
    use="More than the carrier's losses: short drops that the netdev did not notice.",
)
row(
    "link_down_events_total",
    "device",
    "link_down_events",
    help="Times that the PHY lost the link, as the firmware counts.",
    use="As nodeagent_link_ext_down_events_total, on mlx5.",
    peers="node_ethtool_link_down_events_phy; rdma_phy_link_down_events_total",
)
row(
    "link_speed_bytes",
    "device",
    "speed_mbps",
    scale=125000,
    help="Negotiated speed in bytes per second.",
    use="Below nodeagent_link_expected_speed_bytes: alert NodeLinkSpeedReduced.",
    peers="node_network_speed_bytes",
)
row(
    "link_supported_speed_bytes",
    "device",
    "supported_mbps",
    scale=125000,
    help="The fastest mode that the port supports, in bytes per second.",
    use="What the NIC could do; the cable and the switch may be made for less.",
)
row(
    "link_lanes",
    "device",
    "lanes",
    help="Lanes in use.",
    use="Fewer than on the other rails at equal speed per lane explain a reduced speed.",
)
row(
    "link_mtu_bytes",
    "device",
    "mtu_bytes",
    help="The MTU.",
    use="The same on every rail; see the LLDP finding frame_size_mismatch for the switch's side.",
    peers="node_network_mtu_bytes",
)
row(
    "link_transmit_queue_length",
    "device",
    "tx_queue_length",
    help="Packets that the queueing discipline may hold.",
    use="For tuning.",
    peers="node_network_transmit_queue_length",
)

# --- traffic ------------------------------------------------------------------------------------------------

_TRAFFIC = (
    ("receive_bytes", "rx_bytes", "Bytes received", "receive_bytes"),
    ("transmit_bytes", "tx_bytes", "Bytes sent", "transmit_bytes"),
    ("receive_packets", "rx_packets", "Packets received", "receive_packets"),
    ("transmit_packets", "tx_packets", "Packets sent", "transmit_packets"),
    ("receive_multicast", "rx_multicast", "Multicast packets received", "receive_multicast"),
    ("receive_compressed", "rx_compressed", "Compressed packets received", "receive_compressed"),
    ("transmit_compressed", "tx_compressed", "Compressed packets sent", "transmit_compressed"),
)
for noun, datum, what, peer in _TRAFFIC:
    row(
        f"link_{noun}_total",
        "device",
        datum,
        help=f"{what} by the kernel's stack.",
        use="RDMA goes past the kernel: on mlx5 see nodeagent_link_phy_* for everything on the wire.",
        peers=f"node_network_{peer}_total",
    )

_ERRORS = (
    ("receive_errors", "rx_errors", "Packets received with an error of any kind", "receive_errs"),
    ("transmit_errors", "tx_errors", "Packets that could not be sent", "transmit_errs"),
    ("receive_dropped", "rx_dropped", "Packets received and dropped by the kernel", "receive_drop"),
    ("transmit_dropped", "tx_dropped", "Packets dropped before they were sent", "transmit_drop"),
    ("receive_missed", "rx_missed", "Packets that the NIC had no room for", "part of receive_drop"),
    ("receive_length_errors", "rx_length_errors", "Packets of a wrong length", "part of receive_frame"),
    ("receive_over_errors", "rx_over_errors", "Receive ring overflows", "part of receive_frame"),
    ("receive_frame_errors", "rx_frame_errors", "Misaligned frames", "receive_frame"),
    ("receive_fifo_errors", "rx_fifo_errors", "Receive FIFO overruns", "receive_fifo"),
    ("receive_nohandler", "rx_nohandler", "Packets that nobody took", "receive_nohandler"),
    ("transmit_aborted_errors", "tx_aborted_errors", "Transmissions given up", "part of transmit_carrier"),
    (
        "transmit_carrier_errors",
        "tx_carrier_errors",
        "Transmissions that lost the carrier",
        "transmit_carrier",
    ),
    ("transmit_fifo_errors", "tx_fifo_errors", "Transmit FIFO underruns", "transmit_fifo"),
    ("transmit_heartbeat_errors", "tx_heartbeat_errors", "Heartbeat errors", "part of transmit_carrier"),
    ("transmit_window_errors", "tx_window_errors", "Late collisions", "part of transmit_carrier"),
    ("collisions", "collisions", "Collisions", "transmit_colls"),
)
for noun, datum, what, peer in _ERRORS:
    row(
        f"link_{noun}_total",
        "device",
        datum,
        help=f"{what}.",
        use="Should stand still on a link between a node and its leaf; a rate deserves a look at the kind.",
        peers=f"{peer} of node_network_*",
    )

row(
    "link_receive_crc_errors_total",
    "device",
    "crc_errors",
    help="Frames received with a wrong checksum.",
    use="What FEC let pass, or a NIC without FEC: above 10 per second the link is degraded; clean the optics.",
    peers="node_ethtool_received_crc_errors_phy; rdma_phy_rx_crc_errors_total",
)
row(
    "link_phy_receive_bytes_total",
    "device",
    "phy_rx_bytes",
    help="Bytes received on the wire, RDMA included.",
    use="The load of the link; divide its rate by nodeagent_link_speed_bytes.",
    peers="node_ethtool_received_bytes_phy",
)
row(
    "link_phy_transmit_bytes_total",
    "device",
    "phy_tx_bytes",
    help="Bytes sent on the wire, RDMA included.",
    use="The load of the link; divide its rate by nodeagent_link_speed_bytes.",
    peers="node_ethtool_transmitted_bytes_phy",
)
row(
    "link_receive_discards_total",
    "device",
    "rx_discards",
    help="Packets that the adapter had no room for.",
    use="The host is slower than the wire: look at PCIe (width, stalls) and at PFC.",
    peers="node_ethtool_received_discards_phy; rdma_netdev_rx_discards_phy_total",
)
row(
    "link_transmit_discards_total",
    "device",
    "tx_discards",
    help="Packets that the adapter could not send in time.",
    use="The fabric holds the node up: look at received pauses.",
    peers="node_ethtool_transmitted_discards_phy",
)
row(
    "link_receive_out_of_buffer_total",
    "device",
    "rx_out_of_buffer",
    help="Packets for which no receive buffer was posted.",
    use="Software is too slow for the kernel's queues; not RDMA's.",
    peers="node_ethtool_received_out_of_buffer; rdma_netdev_rx_out_of_buffer_total",
)

# --- bit errors ---------------------------------------------------------------------------------------------

row(
    "link_fec_corrected_blocks_total",
    "device",
    "fec_corrected_blocks",
    help="FEC blocks received with errors that were corrected.",
    use="Normal at 100G per lane and above; compare rails, not numbers.",
)
row(
    "link_fec_uncorrectable_blocks_total",
    "device",
    "fec_uncorrectable_blocks",
    help="FEC blocks received with more errors than can be corrected: packets were lost.",
    use="Ten in five minutes degrade the link; clean or change cable and optics.",
)
row(
    "link_fec_corrected_bit_errors_total",
    "device",
    "fec_corrected_bits",
    help="Bits that FEC corrected.",
    use="Numerator of the pre-FEC bit error ratio; see nodeagent_link_phy_receive_line_bytes_total.",
    peers="node_ethtool_received_corrected_bits_phy; rdma_phy_rx_corrected_bits_total",
)
row(
    "link_phy_symbol_errors_total",
    "device",
    "symbol_errors",
    help="Symbol errors after FEC: traffic was lost.",
    use="Above 1e-12 of the bits the link is degraded: alert NodeLinkPostFecErrors.",
    peers="node_ethtool_received_pcs_symbol_err_phy; rdma_phy_rx_pcs_symbol_err_total",
)
row(
    "link_lane_bit_errors_total",
    "device,lane",
    "lane_errors",
    help="Bit errors of one lane before FEC.",
    use="One lane ten times worse than the next is dirt on the connector or a bad lane, not the fabric.",
    peers="rdma_phy_rx_err_lane_total",
)
row(
    "link_phy_receive_line_bytes_total",
    "device",
    "phy_rx_bits",
    scale=0.125,
    help="Everything received on the line, idle symbols included, in bytes.",
    use="Denominator of bit error ratios: 8 * rate(...).",
    peers="rdma_phy_rx_bits_total (bits)",
)

# --- pauses -------------------------------------------------------------------------------------------------

_PRIORITY = "only priorities with PFC count; receive: the peer paused us, transmit: we paused the peer"
row(
    "link_pause_frames_total",
    "device,priority,direction",
    ("prio_rx_pause_frames", "receive"),
    ("prio_tx_pause_frames", "transmit"),
    help="PFC pause frames.",
    use=f"See the seconds; {_PRIORITY}.",
    peers="node_ethtool_received_prio3_pause; rdma_roce_pfc_pause_frames_total",
)
row(
    "link_pause_seconds_total",
    "device,priority,direction",
    ("prio_rx_pause_seconds", "receive"),
    ("prio_tx_pause_seconds", "transmit"),
    help="Time in which a priority was paused.",
    use=f"rate() is the share of time: above 5 % transmitted look at the host, above 25 % received at the fabric; "
    f"{_PRIORITY}.",
    peers="rdma_roce_pfc_pause_duration_total (microseconds)",
)
row(
    "link_pause_transitions_total",
    "device,priority",
    "prio_rx_pause_transitions",
    help="Times that a priority went from sending to paused.",
    use="Many short pauses are congestion that comes and goes; few long ones a stopped receiver.",
    peers="rdma_roce_pfc_pause_transitions_total",
)
row(
    "link_global_pause_frames_total",
    "device,direction",
    ("rx_pause_frames", "receive"),
    ("tx_pause_frames", "transmit"),
    help="IEEE 802.3x pause frames, which stop all priorities.",
    use="Should stand still where PFC is in use: one side is set up for global pause.",
    peers="rdma_netdev_global_pause_frames_total",
)
row(
    "link_pause_storm_events_total",
    "device,severity",
    ("pause_storm_warnings", "warning"),
    ("pause_storm_errors", "error"),
    help="Times that the NIC found itself pausing its peer for too long.",
    use="An error switches pausing off and loses packets: alert NodeLinkPauseStorm; look at the host.",
    peers="rdma_netdev_pause_storm_events_total",
)
row(
    "link_ecn_marked_packets_total",
    "device,priority",
    "prio_ecn_marked",
    help="Packets received with an ECN mark.",
    use="Congestion on the way here; with DCQCN the sender slows down.",
    peers="rdma_netdev_prio_ecn_marked_total",
)
row(
    "link_priority_discards_total",
    "device,priority,reason",
    ("prio_discards", "any"),
    ("prio_buffer_discards", "buffer"),
    ("prio_congestion_discards", "congestion"),
    help="Packets of one priority that the adapter threw away.",
    use="Should stand still on lossless priorities; otherwise PFC does not reach the sender.",
    peers="rdma_netdev_prio_*_discard_total",
)
row(
    "link_module_events_total",
    "device,event",
    ("module_unplugs", "unplug"),
    ("module_high_temperatures", "high_temperature"),
    ("module_bus_stuck", "bus_stuck"),
    ("module_bad_shorted", "bad_shorted"),
    help="What the firmware noticed of the transceiver.",
    use="Any increase: reseat the module, then change it.",
    peers="node_ethtool_module_*",
)
