"""Settings of the sources: the GPU driver, the links and LLDP."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nodeagent.config.setting import Argument, Glob, PciAddress, Seconds, Settings, listed, setting
from nodeagent.health.gpu_health_settings import GpuHealthSettings

Xid = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class GpuSettings(Settings, frozen=True, kw_only=True):
    """How the GPUs are found and watched."""

    driver: Annotated[
        Literal["nvml", "none"], setting("The library to ask; none leaves the GPUs of this node alone.")
    ] = "nvml"
    timeout_seconds: Annotated[
        Seconds, setting("A driver that has not answered for so long is reported as hanging.")
    ] = 5.0
    fatal_xids: Annotated[
        tuple[Xid, ...],
        listed(
            "XID errors that turn all devices of the GPU Unhealthy, besides those of the agent's own table."
        ),
    ] = ()
    ignore_xids: Annotated[
        tuple[Xid, ...],
        listed("XID errors that say nothing against the GPU, besides the table's 13, 31, 43, 45, 68 and 94."),
    ] = ()
    xid_clear_seconds: Annotated[
        Seconds | None,
        setting(
            "After an XID the GPU is Healthy again when it was reset, or after so long without another; null: only "
            "after a reset."
        ),
    ] = 600.0
    health: Annotated[GpuHealthSettings, setting("When what is measured on a GPU stands against it.")] = (
        GpuHealthSettings()
    )


class LinkSelect(Settings, frozen=True, kw_only=True):
    """Which netdevs are links: those that match all the lists given.

    Where all are empty: every physical Ethernet NIC, so no VFs, representors, bridges, bonds or loopback. What
    is named is taken, veth and tap too.
    """

    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the name of the netdev: ens*np0.")] = ()
    drivers: Annotated[tuple[Glob, ...], listed("Globs on the driver: mlx5_core.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    exclude: Annotated[tuple[Glob, ...], listed("Globs on the netdev or the PCI address to leave out.")] = ()


class LinksSettings(Settings, frozen=True, kw_only=True):
    """The links of this node: what is listened on by LLDP."""

    select: Annotated[LinkSelect, setting("Which netdevs; everything empty selects the physical NICs.")] = (
        LinkSelect()
    )


class LldpSettings(Settings, frozen=True, kw_only=True):
    """How the switch ports at the other end of the links are learnt."""

    source: Annotated[
        Literal["socket", "lldpd", "none"],
        setting(
            "Listen on sockets of our own (CAP_NET_RAW), ask an lldpd that runs on the host, or do neither."
        ),
    ] = "socket"
    command: Annotated[
        tuple[Argument, ...],
        setting("How lldpd is asked; it must print lldpcli's json0.", max_length=32, min_length=1),
    ] = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
    transmit: Annotated[
        bool,
        setting(
            "Announce this node to its switches too. Receive-only by default: a second speaker on a port, beside "
            "the NIC's firmware, upsets some switches."
        ),
    ] = False
