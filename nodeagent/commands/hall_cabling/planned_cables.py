"""Read a cabling plan: the planned switch and port of each link of each node, in one of three forms.

* ``.csv``: a header with ``node``, ``link``, ``switch`` and ``port`` in any order, then one line for each cable. Other
  columns are ignored. An export of cables from NetBox needs its columns renamed.
* ``.dot`` or ``.gv``: lines such as ``"gpu-1":"ens1f0np0" -- "leaf1":"swp1"``, in either order, as Cumulus PTM reads
  them. The end that a report names is the node.
* Everything else: the YAML of ``health.cablingPlan``, which maps nodes to links to ``{switch: …, port: …}``.

A link is the name of a link, its netdev or its PCI address. A port may be empty: then any port of the switch is right.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container

from nodeagent.commands import user_files
from nodeagent.commands.user_files import UserFileError
from nodeagent.config.bounded_yaml import Limits, load_document
from nodeagent.health.cabling import PlanError, Port, of_node

EXPECTED = "a cabling plan: YAML of nodes, links and {switch, port}, CSV with node,link,switch,port, or DOT"
COLUMNS = ("node", "link", "switch", "port")
SIZE_MAX = 64 * 1024 * 1024
LIMITS = Limits(size=SIZE_MAX, values=20_000_000)
_END = r'\s*"?([^":\s]+)"?\s*:\s*"?([^"\s;]+?)"?\s*'
_CABLE = re.compile(rf"{_END}--{_END}(\[.*\])?\s*;?\s*")

PlannedCables = dict[str, dict[str, Port]]
"""By node, and by link."""


def read(source: str, nodes: Container[str]) -> PlannedCables:
    """``nodes`` have a report. Raises ``UserFileError``."""
    content = user_files.read(source, EXPECTED, SIZE_MAX)
    user_files.refuse_unless_utf8(content, source, EXPECTED)
    text = content.decode()
    if source.endswith(".csv"):
        return _from_csv(text, source)
    if source.endswith((".dot", ".gv")):
        return _from_dot(text, source, nodes)
    return _from_yaml(text, source)


def _from_yaml(text: str, source: str) -> PlannedCables:
    try:
        document = load_document(text, LIMITS)
        if not isinstance(document, dict):
            raise PlanError("it must map nodes to links to {switch: …, port: …}")
        return {str(node): of_node(document, node) for node in document}
    except (ValueError, PlanError) as error:
        raise UserFileError(source, str(error), EXPECTED) from error


def _from_csv(text: str, source: str) -> PlannedCables:
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    heads = [(head or "").strip().lower() for head in rows.fieldnames or ()]
    rows.fieldnames = heads
    if missing := [column for column in COLUMNS if column not in heads]:
        raise UserFileError(source, f"the header has no column {missing[0]}", EXPECTED, 1)
    cables: PlannedCables = {}
    for row in rows:
        node, link, switch, port = ((row[column] or "").strip() for column in COLUMNS)
        if not node and not link:
            continue
        if not node or not link or not switch:
            raise UserFileError(source, "a cable needs a node, a link and a switch", EXPECTED, rows.line_num)
        _add(cables, node, link, Port(switch, port), source, rows.line_num)
    return cables


def _from_dot(text: str, source: str, nodes: Container[str]) -> PlannedCables:
    cables: PlannedCables = {}
    for number, line in enumerate(text.splitlines(), 1):
        if "--" not in line or line.lstrip().startswith(("//", "#")):
            continue
        cable = _CABLE.fullmatch(line)
        if cable is None:
            raise UserFileError(source, "this line is no cable", EXPECTED, number)
        ends = (cable[1], cable[2]), (cable[3], cable[4])
        if ends[0][0] not in nodes:
            ends = ends[1], ends[0]
        (node, link), (switch, port) = ends
        if node in nodes and switch not in nodes:
            _add(cables, node, link, Port(switch, port), source, number)
    return cables


def _add(cables: PlannedCables, node: str, link: str, port: Port, source: str, line: int) -> None:
    links = cables.setdefault(node, {})
    if link in links:
        raise UserFileError(source, f"{link} of {node} is listed twice", EXPECTED, line)
    links[link] = port
