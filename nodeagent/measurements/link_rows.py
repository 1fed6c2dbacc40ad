"""Measurements of the links as the kernel counts them: carrier, speed, traffic and errors of each PF."""

from __future__ import annotations

from nodeagent.measurements.family import Family, row
from nodeagent.measurements.sample import Source

_STATE: tuple[Family, ...] = (
    row(
        "link_up",
        "device",
        Source.LINK,
        ("oper_up", "IFLA_OPERSTATE is UP, 0 or 1"),
        help="1 while the netdev is operational.",
        use="Prefer nodeagent_link_carrier: the operational state follows the carrier by up to a second.",
        peers="node_network_up",
    ),
    row(
        "link_carrier",
        "device",
        Source.LINK,
        ("carrier", "IFLA_CARRIER, 0 or 1; absent while the link is set down"),
        help="1 while the link has carrier; absent while it is set down.",
        use="0: a pulled cable, a dead optic or a disabled switch port. Alert NodeLinkDown.",
        peers="node_network_carrier",
        rules="carrier_down",
    ),
    row(
        "link_admin_up",
        "device",
        Source.LINK,
        ("admin_up", "IFF_UP, 0 or 1"),
        help="1 while the link is set up (IFF_UP).",
        use="0: an administrator set the link down; ip link set DEVICE up sets it up again.",
        peers="label adminstate of node_network_info",
        rules="admin_down",
    ),
    row(
        "link_carrier_up_total",
        "device",
        Source.LINK,
        ("carrier_up", "IFLA_CARRIER_UP_COUNT"),
        help="Times that the link gained carrier.",
        use="Compare with nodeagent_link_carrier_down_total; the two differ by at most 1.",
        peers="node_network_carrier_up_changes_total",
    ),
    row(
        "link_carrier_down_total",
        "device",
        Source.LINK,
        ("carrier_down", "IFLA_CARRIER_DOWN_COUNT"),
        help="Times that the link lost carrier.",
        use="Flaps: increase(...[1h]) >= 3. The kernel counts, so no loss between two scrapes is missed.",
        peers="node_network_carrier_down_changes_total",
        rules="flapping flapping_daily",
    ),
    row(
        "link_ext_down_events_total",
        "device",
        Source.STATE,
        ("ext_down", "ETHTOOL_A_LINKSTATE_EXT_DOWN_CNT: the PHY lost the link"),
        help="Times that the PHY lost the link, as the driver reports to the kernel.",
        use="More than the carrier losses: short drops that the netdev did not notice.",
    ),
    row(
        "link_down_events_total",
        "device",
        Source.DRIVER,
        ("link_down_events", "link_down_events_phy"),
        help="Times that the PHY lost the link, as the firmware counts.",
        use="The same as nodeagent_link_ext_down_events_total, on mlx5.",
        peers="node_ethtool_link_down_events_phy; rdma_phy_link_down_events_total",
    ),
    row(
        "link_administration_changes_total",
        "device,change",
        Source.ADMINISTRATION,
        ("administration", "netlink notices: set up or down, MTU, rings, channels, pauses"),
        per="change",
        help="Changes of the link by an administrator since the agent started.",
        use="A carrier loss near such a change is no flap.",
        rules="flapping flapping_daily",
    ),
    row(
        "link_speed_bytes",
        "device",
        Source.MODES,
        ("speed_mbps", "negotiated speed in Mbit/s; absent when unknown"),
        scale=125000,
        help="Negotiated speed in bytes per second.",
        use="Below nodeagent_link_expected_speed_bytes: alert NodeLinkSpeedReduced.",
        peers="node_network_speed_bytes",
        rules="speed_reduced",
    ),
    row(
        "link_supported_speed_bytes",
        "device",
        Source.MODES,
        ("supported_mbps", "fastest mode that the port supports, in Mbit/s"),
        scale=125000,
        help="The fastest mode that the port supports, in bytes per second.",
        use="The NIC's own limit; cable and switch may be built for less.",
    ),
    row(
        "link_lanes",
        "device",
        Source.MODES,
        ("lanes", "ETHTOOL_A_LINKMODES_LANES"),
        help="Lanes in use.",
        use="Fewer lanes than on the other rails, at equal speed per lane, explain a reduced speed.",
    ),
    row(
        "link_mtu_bytes",
        "device",
        Source.LINK,
        ("mtu_bytes", "IFLA_MTU"),
        help="The MTU.",
        use="Should be equal on every rail; the LLDP finding frame_size_mismatch compares it with the switch.",
        peers="node_network_mtu_bytes",
    ),
    row(
        "link_transmit_queue_length",
        "device",
        Source.LINK,
        ("tx_queue_length", "IFLA_TXQLEN, in packets"),
        help="Packets that the queueing discipline may hold.",
        use="For tuning.",
        peers="node_network_transmit_queue_length",
    ),
)

_TRAFFIC = tuple(
    row(
        f"link_{noun}_total",
        "device",
        Source.LINK,
        (name, "IFLA_STATS64"),
        help=f"{meaning} by the kernel's network stack.",
        use="RDMA bypasses the kernel: on mlx5, nodeagent_link_phy_* counts everything on the wire.",
        peers=f"node_network_{noun}_total",
        rules="pcie_speed" if noun.endswith("_bytes") else "",
    )
    for noun, name, meaning in (
        ("receive_bytes", "rx_bytes", "Bytes received"),
        ("transmit_bytes", "tx_bytes", "Bytes sent"),
        ("receive_packets", "rx_packets", "Packets received"),
        ("transmit_packets", "tx_packets", "Packets sent"),
        ("receive_multicast", "rx_multicast", "Multicast packets received"),
        ("receive_compressed", "rx_compressed", "Compressed packets received"),
        ("transmit_compressed", "tx_compressed", "Compressed packets sent"),
    )
)

_ERRORS = tuple(
    row(
        f"link_{noun}_total",
        "device",
        Source.LINK,
        (name, "IFLA_STATS64"),
        help=f"{meaning}.",
        use="Should not grow on a link between a node and its leaf; if it does, the error kind shows the cause.",
        peers=f"{peer} of node_network_*",
    )
    for noun, name, meaning, peer in (
        ("receive_errors", "rx_errors", "Packets received with an error of any kind", "receive_errs"),
        ("transmit_errors", "tx_errors", "Packets that could not be sent", "transmit_errs"),
        ("receive_dropped", "rx_dropped", "Packets received and dropped by the kernel", "receive_drop"),
        ("transmit_dropped", "tx_dropped", "Packets dropped before they were sent", "transmit_drop"),
        ("receive_missed", "rx_missed", "Packets lost because the NIC had no room", "part of receive_drop"),
        ("receive_length_errors", "rx_length_errors", "Packets of a wrong length", "part of receive_frame"),
        ("receive_over_errors", "rx_over_errors", "Receive ring overflows", "part of receive_frame"),
        ("receive_frame_errors", "rx_frame_errors", "Misaligned frames", "receive_frame"),
        ("receive_fifo_errors", "rx_fifo_errors", "Receive FIFO overruns", "receive_fifo"),
        ("receive_nohandler", "rx_nohandler", "Packets without a receiver", "receive_nohandler"),
        ("transmit_aborted_errors", "tx_aborted_errors", "Aborted transmissions", "part of transmit_carrier"),
        ("transmit_carrier_errors", "tx_carrier_errors", "Carrier losses while sending", "transmit_carrier"),
        ("transmit_fifo_errors", "tx_fifo_errors", "Transmit FIFO underruns", "transmit_fifo"),
        ("transmit_heartbeat_errors", "tx_heartbeat_errors", "Heartbeat errors", "part of transmit_carrier"),
        ("transmit_window_errors", "tx_window_errors", "Late collisions", "part of transmit_carrier"),
        ("collisions", "collisions", "Collisions", "transmit_colls"),
    )
)

LINK_ROWS = (*_STATE, *_TRAFFIC, *_ERRORS)
