"""The values of an LLDPDU: the TLVs of IEEE 802.1AB-2016, 802.1Q annex D, 802.3 clause 79 and LLDP-MED.

Numbers stay as in the frame; the tables here have their names. Text is decoded without loss (see ``escaping``).
Bits that the standards reserve are dropped. ``None`` is an absent TLV. ``gc=False``: no value contains itself.
"""

from __future__ import annotations

import msgspec

from nodeagent.lldp.escaping import address, mac, text_of

CHASSIS_WORDS = {
    1: "component",
    2: "ifalias",
    3: "port-component",
    4: "mac",
    5: "network",
    6: "ifname",
    7: "local",
}
PORT_WORDS = {
    1: "ifalias",
    2: "component",
    3: "mac",
    4: "network",
    5: "ifname",
    6: "agent-circuit-id",
    7: "local",
}
CAPABILITY_WORDS = (
    "other",
    "repeater",
    "bridge",
    "wlan-access-point",
    "router",
    "telephone",
    "docsis",
    "station",
    "c-vlan",
    "s-vlan",
    "two-port-mac-relay",
)
INTERFACE_WORDS = {1: "unknown", 2: "ifindex", 3: "system-port"}
SELECTOR_WORDS = {1: "ethertype", 2: "tcp-sctp", 3: "udp-dccp", 4: "port", 5: "dscp"}


class LldpError(ValueError):
    """An invalid LLDP frame, or a value that does not fit a frame. ``offset`` counts octets from the start of the
    input; when encoding it is the offset of the TLV that does not fit.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} at byte {offset}")
        self.message = message
        self.offset = offset


def _identifier(word: str, raw: bytes) -> str:
    if word == "mac":
        return mac(raw)
    if word == "network":
        return address(raw[0], raw[1:]) if raw else ""
    return text_of(raw).rstrip("\0")


class ChassisId(msgspec.Struct, frozen=True, gc=False):
    subtype: int
    raw: bytes

    @property
    def word(self) -> str:
        return CHASSIS_WORDS[self.subtype]

    @property
    def text(self) -> str:
        """In the notation of its subtype: a MAC, an address, or text (undecodable bytes as surrogates)."""
        return _identifier(self.word, self.raw)


class PortId(msgspec.Struct, frozen=True, gc=False):
    subtype: int
    raw: bytes

    @property
    def word(self) -> str:
        return PORT_WORDS[self.subtype]

    @property
    def text(self) -> str:
        return _identifier(self.word, self.raw)


class Capabilities(msgspec.Struct, frozen=True, gc=False):
    """Bit n is ``CAPABILITY_WORDS[n]``."""

    supported: int
    enabled: int


def capability_words(bits: int) -> tuple[str, ...]:
    return tuple(
        CAPABILITY_WORDS[n] if n < len(CAPABILITY_WORDS) else f"bit-{n}" for n in range(16) if bits >> n & 1
    )


class ManagementAddress(msgspec.Struct, frozen=True, gc=False):
    """``family`` is IANA's address family number; ``oid`` is raw, and mostly empty."""

    family: int
    raw: bytes
    interface_subtype: int = 1
    interface_number: int = 0
    oid: bytes = b""

    @property
    def text(self) -> str:
        return address(self.family, self.raw)


class Ppvid(msgspec.Struct, frozen=True, gc=False):
    """A port and protocol VLAN."""

    vid: int
    supported: bool
    enabled: bool


class Vlan(msgspec.Struct, frozen=True, gc=False):
    vid: int
    name: str


class LinkAggregation(msgspec.Struct, frozen=True, gc=False):
    """``port_id`` is the ifIndex of the aggregated port, 0 while not aggregated."""

    capable: bool
    enabled: bool
    port_id: int


class EtsRecommendation(msgspec.Struct, frozen=True, gc=False):
    """``classes[p]`` is the traffic class of priority p; ``bandwidth[c]`` (percent) and ``algorithms[c]``
    (``facts.model.ets_algorithm``) belong to class c. Eight octets each.
    """

    classes: bytes
    bandwidth: bytes
    algorithms: bytes


class EtsConfiguration(msgspec.Struct, frozen=True, gc=False):
    """``max_classes`` is 1 to 8 (0 in the frame means 8). The tables are as in ``EtsRecommendation``."""

    willing: bool
    credit_based_shaper: bool
    max_classes: int
    classes: bytes
    bandwidth: bytes
    algorithms: bytes


class Pfc(msgspec.Struct, frozen=True, gc=False):
    """Bit p of ``enabled`` is priority p; ``capability`` is how many classes may have PFC, 0 for any number."""

    willing: bool
    macsec_bypass: bool
    capability: int
    enabled: int

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(p for p in range(8) if self.enabled >> p & 1)


class Application(msgspec.Struct, frozen=True, gc=False):
    """Frames of ``protocol`` have ``priority``; ``SELECTOR_WORDS[selector]`` is the kind of number in ``protocol``."""

    priority: int
    selector: int
    protocol: int


class MacPhy(msgspec.Struct, frozen=True, gc=False):
    """Autonegotiation: ``advertised`` is the PMD bit string, ``mau`` the operational MAU type (RFC 4836)."""

    autonegotiation_supported: bool
    autonegotiation_enabled: bool
    advertised: int
    mau: int


class MedCapabilities(msgspec.Struct, frozen=True, gc=False):
    bits: int
    device_class: int


class Med(msgspec.Struct, frozen=True, gc=False):
    """LLDP-MED (ANSI/TIA-1057): capabilities and inventory; policies, locations and power stay raw."""

    capabilities: MedCapabilities | None = None
    hardware_revision: str | None = None
    firmware_revision: str | None = None
    software_revision: str | None = None
    serial_number: str | None = None
    manufacturer: str | None = None
    model: str | None = None
    asset_id: str | None = None


class Organizational(msgspec.Struct, frozen=True, gc=False):
    """A raw TLV of an unknown organization."""

    oui: bytes
    subtype: int
    value: bytes


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """A raw TLV of a type that 802.1AB reserves (9 to 126)."""

    type: int
    value: bytes


class Lldpdu(msgspec.Struct, frozen=True, gc=False):
    """The content of one LLDP frame. ``ttl`` is in seconds; 0 is a shutdown, which needs no further TLV.

    ``applications`` is ``None`` without the TLV, empty if the TLV has no entry. ``warnings`` list the dropped TLVs
    with their offsets.
    """

    chassis_id: ChassisId
    port_id: PortId
    ttl: int
    port_description: str | None = None
    system_name: str | None = None
    system_description: str | None = None
    capabilities: Capabilities | None = None
    management_addresses: tuple[ManagementAddress, ...] = ()
    pvid: int | None = None
    ppvids: tuple[Ppvid, ...] = ()
    vlans: tuple[Vlan, ...] = ()
    link_aggregation: LinkAggregation | None = None
    """The TLV of 802.1; ``link_aggregation_8023`` is the deprecated one of 802.3, which EOS still sends."""
    link_aggregation_8023: LinkAggregation | None = None
    ets: EtsConfiguration | None = None
    ets_recommendation: EtsRecommendation | None = None
    pfc: Pfc | None = None
    applications: tuple[Application, ...] | None = None
    mac_phy: MacPhy | None = None
    maximum_frame_size: int | None = None
    med: Med | None = None
    organizational: tuple[Organizational, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    warnings: tuple[str, ...] = ()
