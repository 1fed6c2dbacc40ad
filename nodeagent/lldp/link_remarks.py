"""What is wrong with a link, judged by what its neighbors say of themselves or that none speaks.

Pure: our own side of each link comes in as ``Near``. Nothing here counts seconds into a sentence: a finding
that stands is an equal fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.lldp.table import crowded, duplicates
from nodeagent.model import Ets, Finding, Neighbor

SILENT_AFTER_S = 65.0
"""Two of 802.1AB's transmission intervals (msgTxInterval, 30 s) and some patience."""

SILENT = "silent_port"
OWN_FRAMES = "own_frames"
FLOODED = "flooded"
FRAME_SIZE = "frame_size_mismatch"
PFC = "pfc_mismatch"
ETS = "ets_mismatch"
DUPLICATE = "duplicate_neighbor"
CROWDED = "several_neighbors"
KEYS = (SILENT, OWN_FRAMES, FLOODED, FRAME_SIZE, PFC, ETS, DUPLICATE, CROWDED)

# NVIDIA's PCI device IDs of the BlueField NICs, 1 to 3.
_BLUEFIELD = frozenset({"a2d2", "a2d6", "a2dc"})

_SWITCH = "LLDP is most likely off on the switch port, or not installed on the switch"
_FIRMWARE = {
    "i40e": "the NIC's firmware takes the frames unless told otherwise: "
    "ethtool --set-priv-flags {link} disable-fw-lldp on",
    "ice": "the NIC's firmware may take the frames: ethtool --set-priv-flags {link} fw-lldp-agent off",
    "mlx5_core": f"{_SWITCH}; the NIC's firmware may take the frames where its own LLDP is on: "
    "mlxconfig -d {pci_address} query, and set LLDP_NB_RX_MODE and LLDP_NB_DCBX of the port to off",
    "bnxt_en": f"{_SWITCH}; the NIC's firmware may take the frames where its LLDP agent (nearest bridge) or "
    "its DCBX is on: switch both off with niccli",
}
_BLUEFIELD_REASON = (
    "a BlueField in DPU mode gives the frames to its Arm cores: look there, or set NIC mode with mlxconfig; "
    + _SWITCH
)


@dataclass(frozen=True, slots=True)
class Near:
    """Our side of a link. ``quiet``: it has carrier and heard nobody for ``SILENT_AFTER_S``; ``malformed``: why
    the latest frame was not understood; ``hears_itself``: in that time only frames of our own came. ``pfc`` and
    ``ets`` as in ``Neighbor``, ``None`` where they cannot be read.
    """

    link: str
    pci_address: str | None = None
    driver: str | None = None
    device: str | None = None
    mtu: int | None = None
    quiet: bool = False
    malformed: str | None = None
    hears_itself: bool = False
    flooded: bool = False
    pfc: tuple[int, ...] | None = None
    ets: Ets | None = None


def findings(sides: Iterable[Near], neighbors: Iterable[Neighbor]) -> tuple[Finding, ...]:
    """Sorted by link and key; stale neighbors say nothing any more."""
    live: dict[str, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            live.setdefault(neighbor.link, []).append(neighbor)
    found: set[Finding] = set()
    for near in sides:
        found.update(_of_ours(near))
        for neighbor in live.get(near.link, ()):
            found.update(_between(near, neighbor))
    found.update(_of_several(live))
    return tuple(sorted(found, key=lambda one: (one.link, one.key, one.detail)))


def name_of(neighbor: Neighbor) -> str:
    """As a person would say it: ``leaf-1 swp3``."""
    return f"{neighbor.system_name or neighbor.chassis_id.value} {neighbor.port_id.value}"


def silence_reason(near: Near) -> str:
    """Why a link may hear nothing, by driver."""
    if near.device in _BLUEFIELD:
        return _BLUEFIELD_REASON
    return _FIRMWARE.get(near.driver or "", _SWITCH).format(
        link=near.link, pci_address=near.pci_address or near.link
    )


def _of_ours(near: Near) -> Iterable[Finding]:
    if near.flooded:
        detail = "more LLDP frames come in than any switch sends; most are not looked at"
        yield Finding(near.link, FLOODED, detail)
    if near.quiet and near.hears_itself:
        detail = (
            "only this node's own LLDP comes in: a loop, or another agent of this host through a VF, a "
            "representor or a software netdev; a neighbor with this node's name or MAC is taken for the node"
        )
        yield Finding(near.link, OWN_FRAMES, detail)
    elif near.quiet and near.malformed is not None:
        detail = (
            f"carrier, and the frames that come in as LLDP are none ({near.malformed}): look at the switch; "
            f"tcpdump -i {near.link} -w - ether proto 0x88cc | nodeagent decode -"
        )
        yield Finding(near.link, SILENT, detail)
    elif near.quiet:
        detail = f"carrier, but no LLDP for {SILENT_AFTER_S:.0f} s: {silence_reason(near)}"
        yield Finding(near.link, SILENT, detail)


def _between(near: Near, neighbor: Neighbor) -> Iterable[Finding]:
    size = neighbor.maximum_frame_size
    # 802.3 counts header and checksum, lldpd and the switches built on it send the bare MTU: a frame of ours
    # is too large for certain only where our MTU is larger than what was said.
    if near.mtu is not None and size and near.mtu > size:
        detail = f"MTU {near.mtu} here, frames of at most {size} octets at {name_of(neighbor)}"
        yield Finding(near.link, FRAME_SIZE, detail)
    if near.pfc is not None and neighbor.pfc is not None and near.pfc != neighbor.pfc:
        ours, theirs = _numbers(near.pfc), _numbers(neighbor.pfc)
        yield Finding(near.link, PFC, f"PFC for priorities {ours} here, {theirs} at {name_of(neighbor)}")
    if near.ets is not None and neighbor.ets is not None:
        differing = _different(near.ets, neighbor.ets)
        if differing:
            detail = f"ETS differs from {name_of(neighbor)} in {', '.join(differing)}"
            yield Finding(near.link, ETS, detail)


def _of_several(live: Mapping[str, list[Neighbor]]) -> Iterable[Finding]:
    everybody = [neighbor for group in live.values() for neighbor in group]
    for group in duplicates(everybody):
        links = ", ".join(sorted(neighbor.link for neighbor in group))
        detail = (
            f"{name_of(group[0])} is heard on {links}: something forwards LLDP, or two ports have one name"
        )
        for neighbor in group:
            yield Finding(neighbor.link, DUPLICATE, detail)
    for group in crowded(everybody):
        names = ", ".join(sorted(name_of(neighbor) for neighbor in group))
        detail = f"{len(group)} neighbors speak on one port ({names}): a device between them forwards LLDP"
        yield Finding(group[0].link, CROWDED, detail)


def _different(ours: Ets, theirs: Ets) -> tuple[str, ...]:
    """Bandwidth means something only where a class is scheduled by it."""
    shared = [c for c in range(8) if ours.algorithms[c] == theirs.algorithms[c] == "ets"]
    pairs = (
        ("the traffic classes of priorities", ours.classes, theirs.classes),
        ("algorithms", ours.algorithms, theirs.algorithms),
        ("bandwidth", [ours.bandwidth[c] for c in shared], [theirs.bandwidth[c] for c in shared]),
    )
    return tuple(what for what, here, there in pairs if here != there)


def _numbers(priorities: tuple[int, ...]) -> str:
    return ",".join(map(str, priorities)) or "none"
