"""Remarks on links: no neighbor, foreign frames, or settings that differ between the node and its neighbor. Pure.

No remark contains a duration or a counter: a remark that persists is an equal fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.facts.model import Ets, Neighbor, Remark

NO_NEIGHBOR_AFTER_S = 65.0
"""Two transmission intervals of 802.1AB (msgTxInterval, 30 s) and 5 s for delays."""

NO_NEIGHBOR = "silent_port"
OWN_FRAMES = "own_frames"
FLOODED = "flooded"
FRAME_SIZE = "frame_size_mismatch"
PFC = "pfc_mismatch"
ETS = "ets_mismatch"
DUPLICATE = "duplicate_neighbor"
CROWDED = "several_neighbors"
LINK_REMARK_KEYS = (NO_NEIGHBOR, OWN_FRAMES, FLOODED, FRAME_SIZE, PFC, ETS, DUPLICATE, CROWDED)

# NVIDIA's PCI device IDs of the BlueField NICs, 1 to 3.
_BLUEFIELD = frozenset({"a2d2", "a2d6", "a2dc"})

_SWITCH = "LLDP is most likely off on the switch port, or not installed on the switch"
_FIRMWARE = {
    "i40e": "the NIC's firmware consumes the frames by default: "
    "ethtool --set-priv-flags {link} disable-fw-lldp on",
    "ice": "the NIC's firmware may consume the frames: ethtool --set-priv-flags {link} fw-lldp-agent off",
    "mlx5_core": f"{_SWITCH}; the NIC's firmware may consume the frames if its own LLDP is on: "
    "mlxconfig -d {pci_address} query, and set LLDP_NB_RX_MODE and LLDP_NB_DCBX of the port to off",
    "bnxt_en": f"{_SWITCH}; the NIC's firmware may consume the frames if its LLDP agent (nearest bridge) or "
    "its DCBX is on: switch both off with niccli",
}
_BLUEFIELD_REASON = (
    "a BlueField in DPU mode passes the frames to its Arm cores: check there, or set NIC mode with mlxconfig; "
    + _SWITCH
)


@dataclass(frozen=True, slots=True)
class LinkSide:
    """The node's side of a link. ``without_neighbor``: it has carrier, and no neighbor for ``NO_NEIGHBOR_AFTER_S``;
    ``malformed``: why the latest frame could not be decoded; ``own_frames``: frames of the node itself came in
    within ``NO_NEIGHBOR_AFTER_S``. ``pfc`` and ``ets`` as in ``Neighbor``, ``None`` if they cannot be read.
    """

    link: str
    pci_address: str | None = None
    driver: str | None = None
    device: str | None = None
    mtu: int | None = None
    without_neighbor: bool = False
    malformed: str | None = None
    own_frames: bool = False
    flooded: bool = False
    pfc: tuple[int, ...] | None = None
    ets: Ets | None = None


def find_remarks(sides: Iterable[LinkSide], neighbors: Sequence[Neighbor]) -> tuple[Remark, ...]:
    """Remarks sorted by link and key; stale neighbors are ignored."""
    live: dict[str, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            live.setdefault(neighbor.link, []).append(neighbor)
    remarks: set[Remark] = set()
    for side in sides:
        remarks.update(_reception(side))
        for neighbor in live.get(side.link, ()):
            remarks.update(_mismatches(side, neighbor))
    remarks.update(_several_neighbors(neighbors))
    return tuple(sorted(remarks, key=lambda remark: (remark.link, remark.key, remark.detail)))


def missing_frames_reason(side: LinkSide) -> str:
    """The likely reason, by driver, why no LLDP arrives."""
    if side.device in _BLUEFIELD:
        return _BLUEFIELD_REASON
    return _FIRMWARE.get(side.driver or "", _SWITCH).format(
        link=side.link, pci_address=side.pci_address or side.link
    )


def _reception(side: LinkSide) -> Iterable[Remark]:
    if side.flooded:
        detail = "more LLDP frames come in than any switch sends; most are not decoded"
        yield Remark(side.link, FLOODED, detail)
    if side.without_neighbor and side.own_frames:
        detail = (
            "only this node's own LLDP frames come in: a loop, or another agent of this host sends through a VF, a "
            "representor or a software netdev; a neighbor with a MAC of this node counts as the node itself"
        )
        yield Remark(side.link, OWN_FRAMES, detail)
    elif side.without_neighbor and side.malformed is not None:
        detail = (
            f"carrier, but the received LLDP frames are malformed ({side.malformed}): check the switch; "
            f"tcpdump -i {side.link} -w - ether proto 0x88cc | nodeagent decode -"
        )
        yield Remark(side.link, NO_NEIGHBOR, detail)
    elif side.without_neighbor:
        detail = f"carrier, but no LLDP for {NO_NEIGHBOR_AFTER_S:.0f} s: {missing_frames_reason(side)}"
        yield Remark(side.link, NO_NEIGHBOR, detail)


def _mismatches(side: LinkSide, neighbor: Neighbor) -> Iterable[Remark]:
    size = neighbor.maximum_frame_size
    # 802.3 counts header and checksum; lldpd and the switches built on it send the bare MTU. So a frame is too
    # large for certain only if the node's MTU exceeds the announced size.
    if side.mtu is not None and size and side.mtu > size:
        detail = f"MTU {side.mtu} here, but {neighbor.place} takes frames of at most {size} octets"
        yield Remark(side.link, FRAME_SIZE, detail)
    if side.pfc is not None and neighbor.pfc is not None and side.pfc != neighbor.pfc:
        ours, theirs = _numbers(side.pfc), _numbers(neighbor.pfc)
        yield Remark(side.link, PFC, f"PFC for priorities {ours} here, {theirs} at {neighbor.place}")
    if side.ets is not None and neighbor.ets is not None:
        differing = _differences(side.ets, neighbor.ets)
        if differing:
            detail = f"ETS differs from {neighbor.place} in {', '.join(differing)}"
            yield Remark(side.link, ETS, detail)


def find_duplicates(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """Live neighbors of one port on several links, one for each link: one port cannot hold two cables."""
    groups: dict[object, dict[str, Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale and neighbor.port:
            groups.setdefault((neighbor.chassis_id, neighbor.port), {}).setdefault(neighbor.link, neighbor)
    return tuple(tuple(group.values()) for group in groups.values() if len(group) > 1)


def find_crowded(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """The neighbor of each contested link, and its contenders."""
    groups: dict[str, list[Neighbor]] = {}
    for neighbor in neighbors:
        if neighbor.link not in groups or (neighbor.contender and not neighbor.stale):
            groups.setdefault(neighbor.link, []).append(neighbor)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _several_neighbors(neighbors: Sequence[Neighbor]) -> Iterable[Remark]:
    for group in find_duplicates(neighbors):
        links = ", ".join(sorted(neighbor.link for neighbor in group))
        detail = f"frames of {group[0].place} come in on {links}: a device forwards LLDP, or two ports have one name"
        for neighbor in group:
            yield Remark(neighbor.link, DUPLICATE, detail)
    for group in find_crowded(neighbors):
        first, other, *more = group
        names, cause = other.place, ""
        if names == first.place:
            names += f" from {other.source} and not from {first.source}"
            cause = "the switch has two supervisors that both send, "
        names += " and others" if more else ""
        detail = (
            f"several neighbors on one port: beside {first.place}, confirmed longest, there is {names}: {cause}"
            "a device between them forwards LLDP, or a program on this node sends forged frames"
        )
        yield Remark(first.link, CROWDED, detail)


def _differences(ours: Ets, theirs: Ets) -> tuple[str, ...]:
    """Bandwidth is compared only for classes that both sides schedule by ETS."""
    shared = [c for c in range(8) if ours.algorithms[c] == theirs.algorithms[c] == "ets"]
    pairs = (
        ("the traffic classes of priorities", ours.classes, theirs.classes),
        ("algorithms", ours.algorithms, theirs.algorithms),
        ("bandwidth", [ours.bandwidth[c] for c in shared], [theirs.bandwidth[c] for c in shared]),
    )
    return tuple(what for what, here, there in pairs if here != there)


def _numbers(priorities: tuple[int, ...]) -> str:
    return ",".join(map(str, priorities)) or "none"
