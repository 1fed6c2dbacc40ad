"""Random halls without wrong cables, and what one node may report in them: anything.

A ``Cabling`` has the links of each node: rail and switch. Units have 1 to 32 nodes and 1 to 10 rails, with a leaf for
each rail or for several, MLAG pairs, two ToR switches for each rail, or one leaf. Nodes of a unit may be of models with
fewer or more rails. The further rails lead to a leaf of the unit, or to a border switch that few nodes of any unit
have; less than half of a node's links do.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

from nodeagent.fabric.nodelinks import LinkNeighbor, Metadata, NodeLink, NodeLinks, ReportedId

Links = tuple[tuple[int | None, str], ...]
"""The rail of each link of a node, and its switch: a name, or a name and another chassis ID (``name|chassis``); empty:
no neighbor."""
Cabling = dict[str, Links]

KINDS = ("leaf for each rail", "leaf for two rails", "one leaf", "MLAG pair", "two ToRs for each rail")


def report(node: str, links: Links) -> NodeLinks:
    made = []
    for i, (rail, switch) in enumerate(links):
        neighbor = None
        if switch:
            name, _, chassis = switch.partition("|")
            neighbor = LinkNeighbor(
                chassis_id=ReportedId(subtype="mac", value=chassis or f"chassis of {name}"),
                port_id=ReportedId(subtype="ifname", value=f"port of {node} nic{i}"),
                system_name=name,
            )
        made.append(
            NodeLink(
                name=f"nic{i}",
                rail=rail,
                fabric="compute",
                speed_mbps=400_000,
                state="healthy" if switch else "unused",
                neighbor=neighbor,
            )
        )
    return NodeLinks(metadata=Metadata(name=node), node_name=node, links=tuple(made))


def reports(cabling: Mapping[str, Links]) -> list[NodeLinks]:
    return [report(node, links) for node, links in cabling.items()]


def draw_cabling(
    chance: random.Random,
    units: int,
    *,
    rails: int = 0,
    sizes: Iterable[int] = range(1, 33),
    holes: float = 0.0,
) -> Cabling:
    """A hall of so many units. ``holes`` is the share of links that have no neighbor yet."""
    rails = rails or chance.randint(1, 10)
    kind = chance.choice(KINDS)
    single = kind == "one leaf"
    storage = chance.choice((0, 0, 0, 1, 1 if single else 2)) if rails > 1 else 0
    management = chance.random() < 0.2 and rails > 1
    odd = chance.choice((0, 0, 1, 2))
    several = chance.random() < 0.5
    sizes = tuple(sizes)
    size = chance.choice(sizes)
    cabling: Cabling = {}
    for unit in range(units):
        if several:
            size = chance.choice(sizes)
        models = chance.choice(("all", "all", "few rails", "more rails"))
        for n in range(size):
            count = rails
            if models == "few rails" and n % 3 == 2:
                count = min(rails, 2)
            links: list[tuple[int | None, str]] = []
            for rail in range(count):
                links += [(rail, f"su{unit}-{leaf}") for leaf in leaves(kind, rail)]
            if models == "more rails" and n % 4 == 3 and rails > 2:
                links += [(rail, f"su{unit}-leaf{rail}") for rail in range(rails, rails + 2)]
            links += [(20 + i, f"storage{i}") for i in range(storage)]
            if management:
                links.append((30, "management"))
            cabling[f"su{unit}-n{n:02}"] = tuple(links)
    nodes = Counter(switch for links in cabling.values() for switch in {switch for _, switch in links})
    unit_sizes = Counter(node.partition("-")[0] for node in cabling)
    for i in range(odd):
        for node in chance.sample(sorted(cabling), min(len(cabling), chance.choice((1, 1, 2, 3)))):
            links = list(cabling[node])
            own = sum(switch.startswith("su") for _, switch in links)
            if own > 2 * (i + 1):
                links.append((40 + i if chance.random() < 0.8 else None, f"border{i}"))
            few = sum(2 * nodes[switch] < unit_sizes[node.partition("-")[0]] for _, switch in links)
            shared = sum(switch.startswith(("storage", "management")) for _, switch in links)
            if 2 * few < len(links) - shared:
                cabling[node] = tuple(links)
    return {
        node: tuple((rail, "" if chance.random() < holes else switch) for rail, switch in links)
        for node, links in cabling.items()
    }


def leaves(kind: str, rail: int) -> list[str]:
    match kind:
        case "leaf for two rails":
            return [f"leaf{rail // 2}"]
        case "one leaf":
            return ["leaf"]
        case "MLAG pair":
            return [f"leaf{'ab'[rail % 2]}"]
        case "two ToRs for each rail":
            return [f"tor{rail}x", f"tor{rail}y"]
    return [f"leaf{rail}"]


def switches(cabling: Mapping[str, Links]) -> list[str]:
    return sorted({switch for links in cabling.values() for _, switch in links if switch})


def draw_lie(chance: random.Random, cabling: Mapping[str, Links]) -> Links:
    """The links of one node, of any content: switches of others on any rails, new ones, other names, other nodes."""
    known = switches(cabling) or ["fake2"]
    few = chance.sample(known, min(len(known), chance.randint(1, 3)))
    rails: list[int | None] = [
        *sorted({rail for links in cabling.values() for rail, _ in links if rail is not None})
    ]
    style = chance.choice(("all", "few", "fake", "mixed", "mixed", "half"))
    made: list[tuple[int | None, str]] = []
    if style == "all":
        made = [(chance.choice((*rails, 50, None)), switch) for switch in known]
    elif style == "half":  # two nodes in one
        for node in chance.sample(sorted(cabling), min(2, len(cabling))):
            made += chance.sample(cabling[node], chance.randint(1, len(cabling[node])))
        made += [(60 + i, f"fake{i}") for i in range(chance.randrange(3))]
    else:
        for _ in range(chance.randint(1, 12)):
            of = chance.choice(known)
            switch = {
                "few": chance.choice(few),
                "fake": chance.choice((of, "fake0", "fake1")),
                "mixed": chance.choice(
                    (
                        of,
                        of,
                        chance.choice(few),
                        "fake0",
                        "",
                        f"{of}|chassis of {chance.choice(known)}",
                        f"new|chassis of {of}",
                        f"{of}.example",
                        chance.choice(sorted(cabling)),
                    )
                ),
            }[style]
            made.append((chance.choice((*rails, 50, 51, None)), switch))
    return tuple(made)
