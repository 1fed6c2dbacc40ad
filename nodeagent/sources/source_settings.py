"""Settings of the sources: the links, LLDP and InfiniBand."""

from typing import Annotated, Literal

import msgspec

from nodeagent.config.setting import AbsolutePath, Argument, Glob, PciAddress, Settings, listed, setting


class LinkSelect(Settings, frozen=True, kw_only=True):
    """Which netdevs are links. A link matches every list that is not empty.

    Without any list the links are the physical Ethernet NICs: no VFs, representors, bridges, bonds or loopback. A
    netdev that is named is a link in any case, veth and tap too.
    """

    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the netdev's name: ens*np0.")] = ()
    drivers: Annotated[tuple[Glob, ...], listed("Globs on the driver's name: mlx5_core.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    exclude: Annotated[
        tuple[Glob, ...], listed("Globs on the netdev's name or the PCI address of NICs to leave out.")
    ] = ()


class LinksSettings(Settings, frozen=True, kw_only=True):
    """The links of this node, on which LLDP is received."""

    select: Annotated[
        LinkSelect, setting("Which netdevs are links; without any list, the physical NICs.")
    ] = LinkSelect()


class LldpSettings(Settings, frozen=True, kw_only=True):
    """How the agent reads the switch port at the other end of each link."""

    source: Annotated[
        Literal["socket", "lldpd", "none"],
        setting(
            "socket: receive LLDP frames on sockets of the agent (needs CAP_NET_RAW). lldpd: ask an lldpd "
            "that runs on the host. none: no LLDP."
        ),
    ] = "socket"
    command: Annotated[
        tuple[Argument, ...],
        setting(
            "Command that asks lldpd; it must print the json0 format of lldpcli.", max_length=32, min_length=1
        ),
    ] = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
    ttl_max_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=30, le=65535)],
        setting(
            "Longest time in seconds for which a neighbor counts after its last frame, whatever TTL the frame has. "
            "Switches mostly send 120. Not for source: lldpd."
        ),
    ] = 600.0
    transmit: Annotated[
        bool,
        setting(
            "Send LLDP frames to the switches too. Off by default: some switches reject a second LLDP sender "
            "on a port beside the NIC's firmware."
        ),
    ] = False


class InfinibandSettings(Settings, frozen=True, kw_only=True):
    """How the agent reads the switch port at the other end of each InfiniBand link, where there is no LLDP."""

    query: Annotated[
        Literal["auto", "never"],
        setting(
            "auto: each InfiniBand port asks its peer for its GUID, port and name: two packets over one hop, when "
            "its state changes and else every 5 to 10 minutes. Needs /dev/infiniband/umad*, which could also change "
            "the fabric. never: do not ask."
        ),
    ] = "never"
    node_names: Annotated[
        AbsolutePath | None,
        setting(
            "File of the agent's container with names of switches by GUID, in the form of opensm's node-name-map: "
            'lines such as 0xb83fd20300aa0000 "su1-leaf0". For switches that have only the name of their model.'
        ),
    ] = None

    @property
    def asks(self) -> bool:
        """Whether the source runs. On a machine without InfiniBand ports it finds none."""
        return self.query != "never"
