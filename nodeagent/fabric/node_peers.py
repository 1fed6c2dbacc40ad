"""Which LLDP announcements come from nodes of the cluster: a NIC may be cabled to the NIC of another node.

A node is no switch, whatever it announces. It is known by its name, or by a chassis ID that is the MAC address of one
of its links. An InfiniBand adapter is never a switch; the first word of its description is its host. A switch may have
the name of a node: an announcement on more links than the node has is a switch's.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.fabric.groups import CablingPattern
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.reports import ADAPTER_GUID, MAC_OCTETS, SwitchAnnouncement, octets, shown

LINKS_MAX = 16
"""The most links of a node whose announcements are looked for. A DGX H100 has 13 ports."""


class NodePeers:
    """``of`` is the node of each announcement that comes from a node."""

    def __init__(self, patterns: Iterable[CablingPattern], levels: Levels) -> None:
        self._levels = levels
        self.of: dict[SwitchAnnouncement, str] = {}
        links: dict[SwitchAnnouncement, int] = {}
        for pattern in patterns:
            for slot in pattern.cables:
                if slot.neighbor is not None:
                    links[slot.neighbor] = links.get(slot.neighbor, 0) + len(pattern.nodes)
        self._find_adapters(links)
        self._find_by_name(links)
        self._find_by_mac(links)

    def _find_adapters(self, announcements: Iterable[SwitchAnnouncement]) -> None:
        for announcement in announcements:
            subtype, _, guid = announcement.chassis.partition("=")
            if subtype == ADAPTER_GUID:
                host = announcement.name.partition(" ")[0]
                self.of[announcement] = self._node(host) or shown(host or guid)

    def _find_by_name(self, links: dict[SwitchAnnouncement, int]) -> None:
        by_node: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in links:
            if announcement not in self.of and announcement.name and (node := self._node(announcement.name)):
                by_node.setdefault(node, []).append(announcement)
        for node, announcements in by_node.items():
            report = self._levels.reports.get(node)
            has = LINKS_MAX
            if report is not None:
                has = max(len(report.macs) // MAC_OCTETS, len(report.shape))
            if sum(links[announcement] for announcement in announcements) <= has:
                self.of.update(dict.fromkeys(announcements, node))

    def _node(self, name: str) -> str:
        whole = name.lower().rstrip(".")
        reports, nodes = self._levels.reports, self._levels.nodes
        for form in (whole, whole.partition(".")[0]):
            if form in reports or form in nodes:
                return form
        return ""

    def _find_by_mac(self, links: dict[SwitchAnnouncement, int]) -> None:
        wanted: dict[bytes, list[SwitchAnnouncement]] = {}
        for announcement, count in links.items():
            if count <= LINKS_MAX and announcement not in self.of:
                subtype, _, value = announcement.chassis.partition("=")
                if subtype == "mac" and (mac := octets(value)):
                    wanted.setdefault(mac, []).append(announcement)
        if not wanted:
            return
        for node, report in self._levels.reports.items():
            macs = report.macs
            for start in range(0, len(macs), MAC_OCTETS):
                for announcement in wanted.get(macs[start : start + MAC_OCTETS], ()):
                    self.of[announcement] = node
