"""How often what is measured on NICs is read, source by source."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nodeagent.config.setting import Settings, setting

RATE_MAX_S = 600
"""What is older than 15 minutes is no longer shown."""

Every = Annotated[float, msgspec.Meta(ge=1, le=RATE_MAX_S)]


class SamplesSettings(Settings, frozen=True, kw_only=True):
    """How often what is measured on NICs is read. Whatever the rates, a link that changes is read at once.

    null leaves a source out: what it alone tells is then unknown.
    """

    link_seconds: Annotated[
        Every,
        setting("State and counters of links, speed, why a link is down, FEC and pauses: some 3 ms of CPU."),
    ] = 5.0
    driver_seconds: Annotated[
        Every | None, setting("The drivers' own statistics; on mlx5 several commands to the firmware.")
    ] = 15.0
    rdma_seconds: Annotated[
        Every | None, setting("State, GIDs and counters of RDMA ports; on mlx5 commands to the firmware.")
    ] = 15.0
    pcie_seconds: Annotated[Every | None, setting("Speed and width of the PCIe links, and AER.")] = 30.0
    devlink_seconds: Annotated[Every | None, setting("The drivers' health reporters.")] = 30.0
    vf_seconds: Annotated[
        Every | None,
        setting(
            "The traffic of VFs as their PF counts it; on mlx5 a command to the firmware for each, with the kernel's "
            "lock of all netdevs held."
        ),
    ] = 30.0
    module_seconds: Annotated[
        Every | None,
        setting("Transceivers: temperature, light, who made them. Slow, and needs CAP_NET_ADMIN."),
    ] = 60.0
    kernel_log: Annotated[
        bool, setting("Look in the kernel's log for a NIC's firmware in trouble; needs the host's /dev/kmsg.")
    ] = True
    hang_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=RATE_MAX_S)],
        setting("A source that has not answered for so long is reported as hanging; the others go on."),
    ] = 10.0
