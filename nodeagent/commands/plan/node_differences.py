"""The values in which two nodes or captures differ, or one from most nodes of its model: the verb ``diff``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.plan.captured_values import captured_values, is_capture
from nodeagent.commands.plan.preview import Preview, read_preview
from nodeagent.console.options import FAILED, GOOD, USAGE
from nodeagent.console.similar_names import similar_names
from nodeagent.console.terminal import columns, note, screen, wrapped
from nodeagent.fabric.node_values import NODE_MODEL, VALUE_NAMES, NodeValues, by_name, same_value
from nodeagent.fabric.odd_nodes import PEERS_MIN, UsualValue, usual_values
from nodeagent.fabric.reports import shown

_COMPARE = "set peers.compare in the configuration of its agent"


class Difference(NamedTuple):
    """``nodes`` of ``peers`` have the ``other`` value. ``None``: it is not known."""

    value: str
    here: str | None
    other: str | None
    nodes: int
    peers: int

    @property
    def differs(self) -> bool:
        return self.here is not None and self.other is not None and not same_value(self.here, self.other)


def show_differences(options: argparse.Namespace) -> int:
    nodes: list[str] = [options.node, *([] if options.other is None else [options.other])]
    known: Mapping[str, NodeValues] = {node: captured_values(node) for node in nodes if is_capture(node)}
    origin: dict[str, Any] = {
        "cluster": None,
        "fabric": None,
        "time": rfc3339(time.time()),
        "source": "captures",
    }
    if len(nodes) < 2 or not known.keys() >= set(nodes):
        preview = read_preview(options)
        origin = preview.origin(options.source, time.time())
        known = {**preview.plan.levels.values, **known}
        for node in nodes:
            if node not in known:
                note(_why_unknown(preview, known, node))
                return USAGE
    mine = by_name(known[nodes[0]].values)
    if len(nodes) > 1:
        theirs = by_name(known[nodes[1]].values)
        usual = {name: UsualValue(value, 1, 1) for name, value in theirs.items()}
        against = nodes[1]
    else:
        usual = usual_values(known, mine.get(NODE_MODEL, ""))
        against = "MOST OTHERS"
        if not usual:
            note(
                f"fewer than {PEERS_MIN} nodes of the model {shown(mine.get(NODE_MODEL, 'unknown'))} report values, so "
                "none is usual: name a second node"
            )
            return USAGE
    found = [*_differences(mine, usual, every=options.all, models=len(nodes) > 1)]
    differ = [one for one in found if one.differs]
    if options.json:
        document = {"node": nodes[0], "against": nodes[1] if len(nodes) > 1 else None}
        print(json.dumps(origin | document | {"values": [one._asdict() for one in found]}, indent=2))
    else:
        _print_table(nodes, against, found, len(differ))
    return FAILED if differ else GOOD


def _print_table(nodes: list[str], against: str, found: list[Difference], count: int) -> None:
    alone = len(nodes) == 1
    rows = [
        (one.value, one.here, one.other, *((f"{one.nodes} of {one.peers}",) if alone else ()))
        for one in found
    ]
    heads = ("VALUE", shown(nodes[0]), shown(against), *(("NODES",) if alone else ()))
    if rows:
        print("\n".join(columns(heads, rows, screen())))
        print()
    whom = "most others of its model" if alone else nodes[1]
    said = f"{count} value{'s' if count != 1 else ''} of {nodes[0]}" if count else f"No value of {nodes[0]}"
    differs = "differ" if count > 1 else "differs"
    print("\n".join(wrapped(f"{said} {differs} from {whom}.", screen())))


def _differences(
    mine: Mapping[str, str], usual: Mapping[str, UsualValue], *, every: bool, models: bool
) -> list[Difference]:
    names = (NODE_MODEL, *VALUE_NAMES) if models else VALUE_NAMES
    found = []
    for name in names:
        here, other = mine.get(name), usual.get(name)
        value, nodes, peers = other or (None, 0, 0)
        one = Difference(name, here, value, nodes, peers)
        if one.differs or (every and (here, value) != (None, None)):
            found.append(one)
    return found


def _why_unknown(preview: Preview, known: Mapping[str, NodeValues], node: str) -> str:
    if preview.plan.levels.refused.get(node) is not None:
        return f"the report of {shown(node)} is refused: nodeagent explain {node}"
    if node in preview.plan.levels.reports:
        return f"{shown(node)} reports no values: {_COMPARE}"
    names: dict[str, Any] = {**known, **preview.plan.levels.reports}
    similar = ", ".join(map(shown, similar_names(node, names)))
    return f"no report is of {shown(node)}{f'; similar are {similar}' if similar else ''}"
