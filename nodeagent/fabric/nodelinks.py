"""NodeLinks: one node's report of its links, as the CRD ``nodeagent.io/v1alpha1`` defines it.

The structs have the fields and names of the CRD and accept fields of later versions. An absent field is ``None`` and is
not written. ``reports`` decides whether a report is accepted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nodeagent.facts.port_names import port_name

API_VERSION = "nodeagent.io/v1alpha1"
NODELINKS_KIND = "NodeLinks"
NOT_UP = frozenset(("down", "missing", "unknown", "unused"))
"""The states of a link that passes no traffic, or of which it is not known. A link in any other state is up."""

CONTENDERS_MAX = 4
"""Contenders of a link in a report: those that were there first."""
RAIL_ADDRESSES_MAX = 4
LEGS_MAX = 16
"""Legs of a link in a report: the worst ones."""
GPUS_MAX = 64
"""GPUs of a report: four times those of the largest node of 2026."""
GPU_REASONS_MAX, GPU_PODS_MAX = 8, 16
"""Of one GPU in a report; it may be divided into slices."""
GPU_TROUBLES = ("unhealthy", "degraded", "unknown")
"""The states of a GPU that a report names."""
LEG_LEVELS = (1, 10, 50, 100)
"""The levels of loss, in percent. A leg has the highest one that its loss reaches, about."""
CHECKABLE = "yes"
"""``rail_checked`` of a link that sends and answers probes."""


class ReportError(ValueError):
    """The report cannot be decoded. The message names the field and the reason."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """The encoding of all structs here. Unknown fields belong to another version and are ignored."""


class ReportedId(Wire, frozen=True, kw_only=True):
    """A chassis or port ID: its subtype (``mac``, ``ifname``, ``local``, …) and its value."""

    subtype: str
    value: str


class Contender(Wire, frozen=True, kw_only=True):
    """A switch port that announces itself on a link beside the link's neighbor."""

    chassis_id: ReportedId = msgspec.field(name="chassisID")
    port_id: ReportedId = msgspec.field(name="portID")
    system_name: str | None = None
    management_addresses: tuple[str, ...] = ()

    @property
    def port(self) -> str:
        """The port ID; empty if it is the chassis ID too."""
        return port_name(self.chassis_id, self.port_id, None)


class LinkNeighbor(Wire, frozen=True, kw_only=True):
    """The switch port at the other end. ``stale``: its LLDP information has expired, and this was the last.

    ``contested``: another confirmed neighbor sends on the link too. This one has sent for longer. ``contenders`` are
    the others, at most ``CONTENDERS_MAX``.
    """

    chassis_id: ReportedId = msgspec.field(name="chassisID")
    port_id: ReportedId = msgspec.field(name="portID")
    system_name: str | None = None
    port_description: str | None = None
    management_addresses: tuple[str, ...] = ()
    stale: bool = False
    contested: bool = False
    contenders: tuple[Contender, ...] = ()

    @property
    def port(self) -> str:
        """The port in one name; empty if the switch names none."""
        return port_name(self.chassis_id, self.port_id, self.port_description)


class RailLeg(Wire, frozen=True, kw_only=True):
    """The way to the NIC of a partner and back, which loses probes. A leg that is good stands in no report.

    ``nic`` is the name of the partner's link; ``scope`` is ``leaf`` or ``across``. ``level`` is one of ``LEG_LEVELS``,
    and a level, not a count: it changes when the state does. ``large``: only packets of the full MTU are lost."""

    node: str
    nic: str
    scope: str | None = None
    level: int
    large: bool = False
    since: str | None = None


class NodeLink(Wire, frozen=True, kw_only=True):
    """One link. ``fabric`` and ``rail`` are assigned by the node; ``rail`` counts from 0. ``link_type`` is
    ``infiniband``, or absent for Ethernet; ``rdma_device`` and ``node_guid`` are those of an InfiniBand link.
    ``reason_details`` has a sentence for each of ``reasons``, in their order: the value that started the fault beside
    its threshold.

    ``addresses`` are the addresses with prefix length that partners may probe, as ``10.0.1.3/24``; IPv6 link-local ones
    reach the same L2 network only. ``rail_checked`` is ``CHECKABLE`` or a word for why the link cannot be checked, and
    absent if this agent does not probe. A checked link without ``legs`` has good ones only.

    ``vf_prefix`` is the IPv4 prefix in which the VFs of the link get addresses in pods, and ``number`` that of the node
    in it, by the address of the link or as the controller gave it: absent, it has none. Both are absent without such a
    plan."""

    name: str
    netdev: str | None = None
    pci_address: str | None = None
    mac: str | None = None
    node_guid: str | None = None
    link_type: str | None = None
    rdma_device: str | None = None
    fabric: str | None = None
    rail: int | None = None
    speed_mbps: int | None = None
    state: str | None = None
    reasons: tuple[str, ...] = ()
    reason_details: tuple[str, ...] = ()
    neighbor: LinkNeighbor | None = None
    last_transition_time: str | None = None
    addresses: tuple[str, ...] = ()
    rail_checked: str | None = None
    legs: tuple[RailLeg, ...] = ()
    vf_prefix: str | None = None
    number: int | None = None


class HeldVf(Wire, frozen=True, kw_only=True):
    """A VF that a pod holds, and the name of its link."""

    link: str
    pci_address: str


class VfHolder(Wire, frozen=True, kw_only=True):
    """A pod with VFs. ``since``: when the agent saw it first, in RFC 3339."""

    namespace: str
    pod: str
    vfs: tuple[HeldVf, ...]
    since: str


class GpuMemoryLevel(Wire, frozen=True, kw_only=True):
    """A resource of GPU memory, and what keeps programs within their share of it: ``none``, ``env``, ``nvml-limits``,
    ``mps``, ``evict``. ``in_force``: whether the driver shows the limit of each container that it was read of,
    and ``since`` when this is so."""

    resource: str
    enforcement: str
    in_force: bool | None = None
    since: str | None = None


class ReportedDomain(Wire, frozen=True, kw_only=True):
    """The NVLink domain of some GPUs of the node, by NVML's index. Without ``cluster_uuid`` they are in none."""

    cluster_uuid: str | None = msgspec.field(default=None, name="clusterUUID")
    clique_id: int | None = msgspec.field(default=None, name="cliqueID")
    gpus: tuple[int, ...] = ()


class ReportedGpu(Wire, frozen=True, kw_only=True):
    """A GPU in trouble; one that is well stands in no report. ``index`` is NVML's; one that NVML does not name has its
    PCI address alone. ``reasons`` begin with the gravest, and ``reason_details`` has a sentence for each. ``since``:
    when it came into this state, in RFC 3339. ``pods`` hold it, as ``namespace/pod``."""

    index: int | None = None
    pci_address: str | None = None
    state: str
    reasons: tuple[str, ...] = ()
    reason_details: tuple[str, ...] = ()
    since: str | None = None
    pods: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int | None, str | None]:
        """Tells it apart from the other GPUs of its node."""
        return (self.index, None) if self.index is not None else (None, self.pci_address)


class ValueChange(Wire, frozen=True, kw_only=True):
    """Values of a node that changed at one time, by name, in RFC 3339. ``added`` were not known before."""

    since: str
    values: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class ComparedValues(Wire, frozen=True, kw_only=True):
    """The values that a node should share with its peers, in one text. ``changes`` are those of the last days, and
    ``since`` is when the node reported values first, in RFC 3339. ``node_values`` reads them."""

    values: str = ""
    changes: tuple[ValueChange, ...] = ()
    since: str | None = None


class RailLevel(Wire, frozen=True, kw_only=True):
    """A VF of a pod whose level differs from that of its pod: ``silent``, ``below`` its peers on this node, or
    ``unmeasured``."""

    link: str
    pci_address: str
    level: str
    since: str | None = None


class TrafficLevel(Wire, frozen=True, kw_only=True):
    """Whether the rails of a pod carry traffic: ``level`` is ``moving``, ``silent``, ``unused`` or ``unmeasured``, or a
    word of a later version. ``since``: since when it is silent or unused. ``longest_pause_seconds`` is that of the pod
    so far, rounded up. ``gpus`` of a silent pod are ``waiting``, ``working`` or ``idle``; ``idle_gpus`` are NVML's
    indexes. ``rails`` are those that differ."""

    namespace: str
    pod: str
    level: str
    since: str | None = None
    longest_pause_seconds: int = 0
    gpus: str | None = None
    idle_gpus: tuple[int, ...] = ()
    rails: tuple[RailLevel, ...] = ()


class Metadata(Wire, frozen=True, kw_only=True):
    """The part of the object's metadata that is used."""

    name: str | None = None
    namespace: str | None = None
    resource_version: str | None = None
    annotations: dict[str, str] | None = None


class NodeLinks(Wire, frozen=True, kw_only=True):
    """The report of one node. ``metadata.name`` must be the node's name too. ``nvlink_domains`` has one entry if its
    GPUs agree, and none if no GPU is in a domain. ``gpus`` are those in trouble alone, at most ``GPUS_MAX``.
    ``holders`` is empty unless the node is set to report them, ``compared`` is absent unless it is set to compare
    values, and ``traffic`` is empty unless it judges traffic; they stand beside the links, so that a change of them
    makes no plan."""

    api_version: str | None = None
    kind: str | None = None
    metadata: Metadata = Metadata()
    node_name: str
    links: tuple[NodeLink, ...] = ()
    gpu_memory: tuple[GpuMemoryLevel, ...] = ()
    nvlink_domains: tuple[ReportedDomain, ...] = ()
    gpus: tuple[ReportedGpu, ...] = ()
    holders: tuple[VfHolder, ...] = ()
    compared: ComparedValues | None = None
    traffic: tuple[TrafficLevel, ...] = ()


_DECODER = msgspec.json.Decoder(NodeLinks)


def decode_nodelinks(raw: bytes) -> NodeLinks:
    """Decode an object's JSON. Raises ``ReportError``."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReportError(str(error)) from None


def convert_nodelinks(document: Any, *, lax: bool = False) -> NodeLinks:
    """Convert a parsed YAML or JSON document; ``lax`` if all its scalars are text. Raises ``ReportError``."""
    try:
        return msgspec.convert(document, NodeLinks, strict=not lax)
    except msgspec.MsgspecError as error:
        raise ReportError(str(error)) from None
