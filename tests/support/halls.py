"""Halls for tests: correct cabling of every kind, and faults that a generator adds and names.

A ``Hall`` has nodes with rails, switches that number their ports in the order of cabling, and ``expected``: the
anomalies that its faults must cause. Each fault uses nodes of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nodeagent.fabric import AnomalyKind
from nodeagent.fabric.nodelinks import LinkNeighbor, Metadata, NodeLink, NodeLinks, ReportedId

Expected = tuple[str, str, str, str]
"""Kind, node, link and switch of an anomaly."""


@dataclass
class Hall:
    """``cables[node, rail]`` is the switch, or the node, that a link is cabled to.

    ``unit`` is the unit of each node. ``leaf[unit][rail]`` is the switch of a rail. ``shared`` are rails whose switches
    serve all units. ``chassis_per_port``: each switch port announces a chassis ID of its own. ``names`` are announced
    system names where they differ. ``addressed``: switches announce their management address. ``links`` is the number
    of links of each node that has not one for each rail. ``chassis``: the chassis ID of all switches. ``planes``: so
    many links of a node have one rail. ``outside`` are links without a rail and a fabric. ``one_id``: switches announce
    their chassis ID as the ID of each port, and the port's name in its description, or nowhere (``described``).
    ``managed``: the chassis ID is the address of the management port, so it is not that of the ports.
    """

    leaf: list[list[str]]
    size: int
    shared: int = 0
    chassis_per_port: bool = False
    addressed: bool = True
    chassis: str = ""
    planes: int = 1
    outside: range = range(0)
    one_id: bool = False
    described: bool = True
    managed: bool = False
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rails = len(self.leaf[0])
        self.unit = {
            f"su{unit}-n{number:02}": unit for unit in range(len(self.leaf)) for number in range(self.size)
        }
        self.cables: dict[tuple[str, int], str] = {
            (node, rail): self.leaf[unit][rail]
            for node, unit in self.unit.items()
            for rail in range(self.rails)
        }
        self.unused: set[tuple[str, int]] = set()
        self.links: dict[str, int] = {}
        self.speed: dict[int, int] = {}
        self.expected: Counter[Expected] = Counter()
        self.ports: dict[tuple[str, int, str], int] = {}
        self._shifted: set[int] = set()
        self._next: Counter[str] = Counter()
        self._free = {unit: sorted(self.nodes(unit)) for unit in range(len(self.leaf))}
        if len(self.leaf) > 1:
            for switch in sorted({leaves[rail] for leaves in self.leaf for rail in self.shared_rails}):
                self.expected["shared-switch", "", "", switch] += 1

    @property
    def shared_rails(self) -> range:
        return range(self.rails - self.shared, self.rails)

    @property
    def compute_rails(self) -> range:
        return range(self.rails - self.shared)

    def nodes(self, unit: int) -> list[str]:
        return [node for node, of in self.unit.items() if of == unit]

    def units(self) -> set[frozenset[str]]:
        """The nodes of each unit with a cable to a switch of a unit."""
        return {frozenset(nodes) for unit in range(len(self.leaf)) if (nodes := list(self._placed(unit)))}

    def _placed(self, unit: int) -> Iterator[str]:
        for node in self.nodes(unit):
            if any((node, rail) in self.cables for rail in self.compute_rails):
                yield node

    # --- reports --------------------------------------------------------------------------------------

    def reports(self) -> list[NodeLinks]:
        return [self.report(node) for node in self.unit]

    def report(self, node: str) -> NodeLinks:
        return NodeLinks(
            metadata=Metadata(name=node),
            node_name=node,
            links=tuple(self._link(node, rail) for rail in range(self.links.get(node, self.rails))),
        )

    def _link(self, node: str, rail: int) -> NodeLink:
        neighbor = self._neighbor(node, rail)
        state = "healthy" if neighbor is not None else "unused" if (node, rail) in self.unused else "down"
        return NodeLink(
            name=f"rail{rail}",
            rail=None if rail in self.outside else rail // self.planes,
            mac=self._mac(node, rail),
            fabric=None if rail in self.outside else "compute",
            speed_mbps=self.speed.get(rail, 400_000) if neighbor is not None else None,
            state=state,
            neighbor=neighbor,
        )

    def _neighbor(self, node: str, rail: int) -> LinkNeighbor | None:
        end = self.cables.get((node, rail))
        if end is None:
            return None
        if end in self.unit:
            mac = self._mac(end, rail)
            return LinkNeighbor(
                chassis_id=ReportedId(subtype="mac", value=mac), port_id=ReportedId(subtype="mac", value=mac)
            )
        if (node, rail, end) not in self.ports:
            self._next[end] += 1
            self.ports[node, rail, end] = self._next[end]
        port = self.ports[node, rail, end]
        chassis = self.chassis or _chassis(end, port if self.chassis_per_port else 0)
        return LinkNeighbor(
            chassis_id=ReportedId(subtype="mac", value=chassis),
            port_id=ReportedId(subtype="mac", value=f"{chassis[:-2]}ff" if self.managed else chassis)
            if self.one_id
            else ReportedId(subtype="ifname", value=f"Eth1/{port}"),
            port_description=f"Ethernet{4 * port}" if self.one_id and self.described else None,
            system_name=self.names.get(end, end) or None,
            management_addresses=(_address(end),) if self.addressed else (),
        )

    def key(self, switch: str) -> str:
        """The key of a switch in the tree."""
        if switch not in self.names:
            return switch
        return (
            f"address:{_address(switch)}" if self.chassis_per_port else f"chassis:mac:{_chassis(switch, 0)}"
        )

    @property
    def anomalies(self) -> Counter[Expected]:
        """The expected anomalies, with the keys of the switches."""
        return Counter(
            {
                (kind, node, link, self.key(switch)): n
                for (kind, node, link, switch), n in self.expected.items()
            }
        )

    def _mac(self, node: str, rail: int) -> str:
        return f"06:00:00:{self.unit[node]:02x}:{int(node[-2:]):02x}:{rail:02x}"

    # --- faults ---------------------------------------------------------------------------------------

    def take(self, unit: int, count: int = 1) -> list[str]:
        """Nodes of a unit without a fault so far; fewer if a quarter of the unit would have one."""
        free = self._free[unit]
        spare = max(0, len(free) - (3 * self.size + 3) // 4)
        taken = free[: min(count, spare)]
        self._free[unit] = free[len(taken) :]
        return taken

    def expect(self, kind: AnomalyKind, node: str, rail: int | None, switch: str) -> None:
        self.expected[str(kind), node, "" if rail is None else f"rail{rail}", switch] += 1

    def swap(self, chance: random.Random, unit: int) -> None:
        leaf = self.leaf[unit]
        pairs = [(i, j) for i in range(self.rails) for j in range(i) if leaf[i] != leaf[j]]
        for node in self.take(unit) if pairs else ():
            i, j = chance.choice(pairs)
            self.cables[node, i], self.cables[node, j] = leaf[j], leaf[i]
            self.expect(AnomalyKind.RAIL_SWAP, node, i, leaf[j])
            self.expect(AnomalyKind.RAIL_SWAP, node, j, leaf[i])

    def rotate(self, chance: random.Random, unit: int) -> None:
        """Three cables, each in the switch of the next one: neither an exchange of two nor a shift of all."""
        leaf = self.leaf[unit][: len(self.compute_rails)]
        apart = [(i, j, k) for k in range(len(leaf)) for j in range(k) for i in range(j) if k - i > 2]
        if len(set(leaf)) < len(leaf) or not apart:
            return
        for node in self.take(unit):
            rails = chance.choice(apart)
            for rail, other in zip(
                rails, chance.choice((rails[1:] + rails[:1], rails[2:] + rails[:2])), strict=True
            ):
                self.cables[node, rail] = leaf[other]
                self.expect(AnomalyKind.MISCABLED, node, rail, leaf[other])

    def shift(self, chance: random.Random, unit: int) -> None:
        """A rack whose cables are shifted by one rail: the last one goes to the first rail, nowhere, or away."""
        count = len(self.compute_rails)
        leaf = self.leaf[unit]
        if len(set(leaf[:count])) < 3 or unit in self._shifted:
            return  # Two racks of a unit that are shifted by the same number of rails are one anomaly.
        self._shifted.add(unit)
        rack = self.take(unit, chance.randint(1, 3))
        steps, end = chance.choice((1, -1)), chance.choice(("first", "nowhere", "away"))
        other = (unit + 1) % len(self.leaf)
        for node in rack:
            for rail in range(count):
                target = rail + steps
                if 0 <= target < count or end == "first":
                    self.cables[node, rail] = leaf[target % count]
                elif end == "away" and other != unit:
                    self.cables[node, rail] = self.leaf[other][target % count]
                else:
                    del self.cables[node, rail]
        if rack:
            start = 0 if steps > 0 else 1
            self.expected["rail-shift", rack[0], "", leaf[start + steps]] += 1

    def miscable(self, chance: random.Random, unit: int) -> None:
        """One cable in the switch of another rail; the cable of that rail is right."""
        leaf = self.leaf[unit]
        pairs = [(i, j) for i in range(self.rails) for j in range(self.rails) if leaf[i] != leaf[j]]
        for node in self.take(unit) if pairs else ():
            i, j = chance.choice(pairs)
            self.cables[node, i] = leaf[j]
            self.expect(AnomalyKind.MISCABLED, node, i, leaf[j])

    def stray(self, chance: random.Random, unit: int) -> None:
        """One cable in a switch that no other node has."""
        for node in self.take(unit):
            rail, switch = chance.randrange(self.rails), f"stray-of-{node}"
            self.cables[node, rail] = switch
            self.expect(AnomalyKind.MISCABLED, node, rail, switch)

    def miss(self, chance: random.Random, unit: int) -> None:
        for node in self.take(unit):
            rail = chance.randrange(self.rails)
            del self.cables[node, rail]
            self.expect(AnomalyKind.MISSING_RAIL, node, rail, self.leaf[unit][rail])

    def send_away(self, chance: random.Random, unit: int) -> None:
        """One cable in the switch of the same rail of another unit."""
        other = (unit + 1) % len(self.leaf)
        for node in self.take(unit) if other != unit and len(self.compute_rails) > 2 else ():
            rail = chance.choice(self.compute_rails)
            self.cables[node, rail] = self.leaf[other][rail]
            self.expect(AnomalyKind.FOREIGN_LEAF, node, rail, self.leaf[other][rail])

    def join_nodes(self, chance: random.Random, unit: int) -> None:
        """Two nodes cabled to each other."""
        pair = self.take(unit, 2)
        if len(pair) == 2:
            rail = chance.randrange(self.rails)
            self.cables[pair[0], rail], self.cables[pair[1], rail] = pair[1], pair[0]
            self.expect(AnomalyKind.NODE_TO_NODE, pair[0], rail, "")
        elif pair:
            self._free[unit] = pair + self._free[unit]

    def share_name(self, chance: random.Random) -> None:
        """Two switches with one name."""
        switches = sorted({switch for leaves in self.leaf for switch in leaves})
        if len(switches) > 1 and not self.names:
            one, other = chance.sample(switches, 2)
            self.names[one] = self.names[other] = "twin"
            self.expected["duplicate-system-name", "", "", "twin"] += 1


FAULTS = (
    Hall.swap,
    Hall.rotate,
    Hall.shift,
    Hall.miscable,
    Hall.stray,
    Hall.miss,
    Hall.send_away,
    Hall.join_nodes,
)


def _chassis(switch: str, port: int) -> str:
    octets = bytes((2, *hashlib.sha256(switch.encode()).digest()[:4], port))
    return octets.hex(":")


def _address(switch: str) -> str:
    return "10." + ".".join(str(octet) for octet in hashlib.sha256(switch.encode()).digest()[:3])


def draw_hall(
    chance: random.Random, *, units: int, size: int, rails: int, storage: Sequence[int] = (0, 0, 1, 2)
) -> Hall:
    """Correct cabling: one or two rails a leaf, or one leaf for all; ``storage``: numbers of shared switches."""
    on_leaf = chance.choice([count for count in (1, 1, 2, rails) if rails % count == 0])
    shared = chance.choice(storage) if rails > 1 else 0
    leaf = [
        [f"su{unit}-leaf{rail // on_leaf}" for rail in range(rails)] + [f"storage{i}" for i in range(shared)]
        for unit in range(units)
    ]
    return Hall(
        leaf, size, shared, chance_per_port := chance.random() < 0.3, chance_per_port or chance.random() < 0.5
    )


def named(anomalies: Iterable[object]) -> Counter[Expected]:
    return Counter((str(odd.kind), odd.node, odd.link, odd.switch) for odd in anomalies)
