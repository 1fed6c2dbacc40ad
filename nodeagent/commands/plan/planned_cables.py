"""Read a cabling plan: the planned switch and port of each link of each node, in one of four forms.

* ``.csv``: a header with ``node``, ``link``, ``switch`` and ``port`` in any order, and optionally ``rack``, then one
  line for each cable. Other columns are ignored.
* ``.csv`` as NetBox exports its cables ("All data") or imports them: the columns ``Device A``, ``Termination A``,
  ``Rack A`` and those of side B, or ``side_a_device``, ``side_a_name``. Either side may be the node. Cables without a
  node, cables to be removed, and cables at a termination that is no link of any node (power, console, BMC) are left
  out.
* ``.dot`` or ``.gv``: lines such as ``"gpu-1":"ens1f0np0" -- "leaf1":"swp1"``, in either order, as Cumulus PTM reads
  them. The end that a report names is the node.
* Everything else: the YAML of ``health.cablingPlan``, which maps nodes to links to ``{switch: …, port: …}``.

A link is the name of a link, its netdev or its PCI address. A port may be empty: then any port of the switch is right.
Sources of NetBox's columns: ``CableTable`` and ``CableImportForm`` of NetBox 4.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from nodeagent.config.bounded_yaml import Limits, load_document
from nodeagent.console import user_files
from nodeagent.console.user_files import UserFileError
from nodeagent.health.cabling import PlanError, Port, of_node, same_name

_EXPECTED = "a cabling plan: YAML of nodes, links and {switch, port}, CSV with node,link,switch,port, or DOT"
_COLUMNS = ("node", "link", "switch", "port")
RACK = "rack"
NETBOX_ENDS = (
    (("device a", "termination a", "rack a"), ("device b", "termination b", "rack b")),
    (("side_a_device", "side_a_name", "rack a"), ("side_b_device", "side_b_name", "rack b")),
)
"""The columns of device, termination and rack at both ends of a cable: in exports, and in files for imports."""
TO_BE_REMOVED = "decommissioning"
_LABEL = re.compile(r"\s*\([^()]*\)$")
"""NetBox adds the label of an interface to its name."""
_SIZE_MAX = 64 * 1024 * 1024
_LIMITS = Limits(size=_SIZE_MAX, values=20_000_000)
_END = r'\s*"?([^":\s]+)"?\s*:\s*"?([^"\s;]+?)"?\s*'
_CABLE = re.compile(rf"{_END}--{_END}(\[.*\])?\s*;?\s*")

PlannedCables = dict[str, dict[str, Port]]
"""By node, and by link."""


class CablingPlan(NamedTuple):
    """The planned cables, and the rack of each node, as far as the plan names them. ``left_out`` counts the cables that
    lead to no node of the cluster."""

    cables: PlannedCables
    racks: dict[str, str]
    left_out: int = 0


def read_planned_cables(source: str, nodes: Collection[str], links: Collection[str]) -> CablingPlan:
    """``nodes`` are those of the cluster, ``links`` all names, netdevs and PCI addresses in their reports. Raises
    ``UserFileError``."""
    content = user_files.read_user_file(source, _EXPECTED, _SIZE_MAX)
    user_files.refuse_unless_utf8(content, source, _EXPECTED)
    return planned_cables_of(content.decode(), source, nodes, links)


def planned_cables_of(text: str, source: str, nodes: Collection[str], links: Collection[str]) -> CablingPlan:
    """The same of a ``text``; ``source`` is the name of its file, which shows its form."""
    known = _PlanNodes(nodes)
    if source.endswith(".csv"):
        plan = _from_csv(text, source, known, links)
    elif source.endswith((".dot", ".gv")):
        plan = _from_dot(text, source, known)
    else:
        plan = CablingPlan(_from_yaml(text, source, known), {})
    if not any(plan.cables.values()):
        fault = "no cable in it leads from a link of a node to a switch"
        raise UserFileError(
            source, f"{fault}: devices need the names of the nodes" if plan.left_out else fault, _EXPECTED
        )
    return plan


class _PlanNodes:
    """Finds the node of the cluster that a plan names, with or without its domain."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = frozenset(nodes)
        self._by_host: dict[str, list[str]] = {}
        for node in nodes:
            self._by_host.setdefault(node.partition(".")[0], []).append(node)

    def find(self, name: str) -> str | None:
        """``None``: no node has this name, or several may be meant."""
        name = name.lower()
        if name in self._nodes:
            return name
        same = [node for node in self._by_host.get(name.partition(".")[0], ()) if same_name(name, node)]
        return same[0] if len(same) == 1 else None


def _from_yaml(text: str, source: str, known: _PlanNodes) -> PlannedCables:
    try:
        document = load_document(text, _LIMITS)
        if not isinstance(document, dict):
            raise PlanError("it must map nodes to links to {switch: …, port: …}")
        cables: PlannedCables = {}
        for name in document:
            node = known.find(str(name)) or str(name)
            if node in cables:
                raise PlanError(f"{node} is listed twice, with and without its domain")
            cables[node] = of_node(document, name)
        return cables
    except (ValueError, PlanError) as error:
        raise UserFileError(source, str(error), _EXPECTED) from error


def _from_csv(text: str, source: str, known: _PlanNodes, links: Collection[str]) -> CablingPlan:
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True, strict=True)
    try:
        heads = [(head or "").strip().lower() for head in rows.fieldnames or ()]
        rows.fieldnames = heads
        for ends in NETBOX_ENDS:
            if any(end[1] in heads for end in ends):
                return _from_netbox(rows, source, ends, known, links)
        return _from_columns(rows, source, known)
    except csv.Error as error:
        raise UserFileError(source, str(error), _EXPECTED, rows.reader.line_num) from error


def _from_columns(rows: csv.DictReader[str], source: str, known: _PlanNodes) -> CablingPlan:
    heads = rows.fieldnames or ()
    if missing := [column for column in _COLUMNS if column not in heads]:
        raise UserFileError(source, f"the header has no column {missing[0]}", _EXPECTED, 1)
    plan = CablingPlan({}, {})
    for row in rows:
        node, link, switch, port, rack = ((row.get(column) or "").strip() for column in (*_COLUMNS, RACK))
        if not node and not link:
            continue
        if not node or not link or not switch:
            raise UserFileError(source, "a cable needs a node, a link and a switch", _EXPECTED, rows.line_num)
        node = known.find(node) or node
        _add(plan.cables, node, link, Port(switch, port), source, rows.line_num)
        if rack:
            plan.racks[node] = rack
    return plan


def _from_netbox(
    rows: csv.DictReader[str],
    source: str,
    ends: tuple[tuple[str, str, str], tuple[str, str, str]],
    known: _PlanNodes,
    links: Collection[str],
) -> CablingPlan:
    for device, termination, _ in ends:
        for column in (device, termination):
            if column not in (rows.fieldnames or ()):
                fault = (
                    f"the header has no column {column}: export all data of the cables, not the current view"
                )
                raise UserFileError(source, fault, _EXPECTED, 1)
    plan, left_out = CablingPlan({}, {}), 0
    for row in rows:
        if (row.get("status") or "").strip().lower() == TO_BE_REMOVED:
            continue
        near, far = (_end(row, columns) for columns in ends)
        if not _has_node(near, known):
            near, far = far, near
        if not _has_node(near, known) or _has_node(far, known):
            left_out += not _has_node(near, known)
            continue
        if len(near.devices) != 1 or len(far.devices) != 1:
            fault = "a cable of a node has several devices at one end: list one cable for each of them"
            raise UserFileError(source, fault, _EXPECTED, rows.line_num)
        node = known.find(near.devices[0]) or near.devices[0]
        port = far.terminations[0] if len(far.terminations) == 1 else ""
        for link in near.terminations:
            if link in links:
                _add(plan.cables, node, link, Port(far.devices[0], port), source, rows.line_num)
        if near.rack:
            plan.racks[node] = near.rack
    return plan._replace(left_out=left_out)


class _CableEnd(NamedTuple):
    devices: tuple[str, ...]
    terminations: tuple[str, ...]
    rack: str


def _end(row: dict[str, str], columns: tuple[str, str, str]) -> _CableEnd:
    """NetBox separates several terminations of one end by commas."""
    devices, terminations, rack = ((row.get(column) or "") for column in columns)
    return _CableEnd(
        tuple(_parts(devices)), tuple(_LABEL.sub("", name) for name in _parts(terminations)), rack.strip()
    )


def _parts(text: str) -> Iterator[str]:
    return (part.strip() for part in text.split(",") if part.strip())


def _has_node(end: _CableEnd, known: _PlanNodes) -> bool:
    return any(known.find(device) is not None for device in end.devices)


def _from_dot(text: str, source: str, known: _PlanNodes) -> CablingPlan:
    cables: PlannedCables = {}
    left_out = 0
    for number, line in enumerate(text.splitlines(), 1):
        if "--" not in line or line.lstrip().startswith(("//", "#")):
            continue
        cable = _CABLE.fullmatch(line)
        if cable is None:
            raise UserFileError(source, "this line is no cable", _EXPECTED, number)
        ends = (cable[1], cable[2]), (cable[3], cable[4])
        if known.find(ends[0][0]) is None:
            ends = ends[1], ends[0]
        (name, link), (switch, port) = ends
        node = known.find(name)
        if node is None:
            left_out += 1
        elif known.find(switch) is None:
            _add(cables, node, link, Port(switch, port), source, number)
    return CablingPlan(cables, {}, left_out)


def _add(cables: PlannedCables, node: str, link: str, port: Port, source: str, line: int) -> None:
    links = cables.setdefault(node, {})
    if link in links:
        raise UserFileError(source, f"{link} of {node} is listed twice", _EXPECTED, line)
    links[link] = port
