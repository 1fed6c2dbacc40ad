"""How often what is measured on NICs is read, source by source."""

from typing import Annotated

import msgspec

from nodeagent.config.setting import Settings, setting

RATE_MAX_S = 600
"""A sample older than 15 minutes is not shown, so that intervals must be shorter."""

Every = Annotated[float, msgspec.Meta(ge=1, le=RATE_MAX_S)]


class SamplesSettings(Settings, frozen=True, kw_only=True):
    """How often each collector reads the NICs. A link that changes is read at once, whatever the intervals.

    null turns a collector off; its metrics are then absent, and rules that need them do not fire.
    """

    link_seconds: Annotated[
        Every,
        setting("Seconds between two readings of state and counters. A reading takes about 1 ms of CPU."),
    ] = 5.0
    ethtool_seconds: Annotated[
        Every | None,
        setting(
            "Seconds between two readings of speed, link-down reason, FEC and pause frames while all links are "
            "healthy. With a faulty link they are read every linkSeconds, and after a change of a link at once."
        ),
    ] = 15.0
    driver_seconds: Annotated[
        Every | None,
        setting(
            "Seconds between two readings of the drivers' statistics (ethtool -S) and of the kernel's standard ones "
            "(ethtool -S NETDEV --all-groups). On mlx5 a reading costs several firmware commands."
        ),
    ] = 15.0
    rdma_seconds: Annotated[
        Every | None,
        setting(
            "Seconds between two readings of state, GIDs and counters of RDMA ports. On mlx5 a reading costs "
            "firmware commands."
        ),
    ] = 15.0
    pcie_seconds: Annotated[
        Every | None, setting("Seconds between two readings of PCIe link speed, link width and AER counters.")
    ] = 30.0
    devlink_seconds: Annotated[
        Every | None, setting("Seconds between two readings of the drivers' devlink health reporters.")
    ] = 30.0
    vf_seconds: Annotated[
        Every | None,
        setting(
            "Seconds between two readings of the VF traffic counters of each PF. On mlx5 each VF costs a "
            "firmware command under the kernel's RTNL lock."
        ),
    ] = 30.0
    module_seconds: Annotated[
        Every | None,
        setting(
            "Seconds between two readings of transceivers: temperature, optical power, vendor. A reading is "
            "slow and needs CAP_NET_ADMIN."
        ),
    ] = 60.0
    kernel_log: Annotated[
        bool,
        setting("Search the kernel log for errors of NICs and NVLinks; needs the host's /dev/kmsg."),
    ] = True
    hang_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=RATE_MAX_S)],
        setting(
            "A collector that has not answered for this many seconds is reported as hanging. The other "
            "collectors continue."
        ),
    ] = 10.0
