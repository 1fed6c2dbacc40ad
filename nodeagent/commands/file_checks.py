"""Check a file that agents or the controller read: each has its kind, and the cabling plan has none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nodeagent.config.bounded_yaml import load_document
from nodeagent.config.faults import ConfigError, ConfigFault, FaultList, HaltError, most_similar, quote
from nodeagent.config.followed_configuration import configuration_text, read_at_start
from nodeagent.config.yaml_tree import locate, parse
from nodeagent.controller_config import read_fabric
from nodeagent.fabric.topology_file import Topology, load_topology
from nodeagent.health.cabling import PlanError, of_node
from nodeagent.sources.cabling_plan import LIMITS

_KINDS = ("NodeAgentConfig", "FabricConfig", "FabricTopology")
_FAULTS_MAX = 100
"""Errors of a cabling plan that are shown: one wrong script makes one for each link of a cluster."""


class CheckedFile(NamedTuple):
    """The description of a good file, in words, and notes on it. ``unchecked``: why parts of the machine could not be
    compared with it."""

    content: str
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def check_file(path: Path, root: Path | None) -> CheckedFile:
    """Check a file of any kind. ``root``: a machine to check the agent's configuration against.

    Raises ``ConfigError`` with all errors of the file, or of a file that it names.
    """
    text = read_at_start(path, partial(configuration_text, path))
    document = _document(text)
    kind = document.get("kind")
    if isinstance(kind, str) and kind not in _KINDS:
        meant = most_similar(kind, _KINDS)
        if meant is None:
            raise _of_another_kind(text, kind, str(path))
        kind = meant
    if kind == "FabricConfig":
        config, topology = read_at_start(path, partial(read_fabric, path))
        named = [name for name in (config.topology, config.infiniband_cables) if name is not None]
        return CheckedFile(", ".join(["configuration of the controller", *named, *_counts(topology)]))
    if kind == "FabricTopology":
        topology = load_topology(text, name=str(path))
        return CheckedFile(", ".join(["fabric topology", *_counts(topology)]))
    if "apiVersion" not in document and kind is None and _is_plan(document):
        return _check_plan(document, str(path))
    from nodeagent.commands.scan import listing

    agent, remarks, unchecked = listing.check_text(text, root, name=str(path))
    return CheckedFile(f"{len(agent.resources)} resources configured", remarks, unchecked)


def _of_another_kind(text: str, kind: str, name: str) -> ConfigError:
    """One error: such an object has no settings to compare."""
    faults = FaultList()
    try:
        at = locate(parse(text, faults), ("kind",))
    except HaltError:
        return ConfigError(name, faults)
    message = f"is {quote(kind)}, must be one of {', '.join(_KINDS)}; a cabling plan has no kind"
    if kind == "ConfigMap":
        message += "; check the text in its `data`, as a file of its own"
    return ConfigError(name, [ConfigFault("kind", *at, message)])


def _document(text: str) -> dict[object, object]:
    """The file as a map; empty where it is none, which the agent's check explains with a line number."""
    try:
        document = load_document(text.encode("utf-8", "surrogateescape"), LIMITS)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _counts(topology: Topology) -> Iterator[str]:
    if topology.uplinks or topology.groups:
        yield f"{len(topology.uplinks)} switches"
        yield f"{len(topology.groups)} groups"


def _is_plan(document: dict[object, object]) -> bool:
    return any(
        isinstance(port, dict) and port.keys() & {"switch", "port"}
        for links in document.values()
        if isinstance(links, dict)
        for port in links.values()
    )


def _check_plan(document: dict[object, object], name: str) -> CheckedFile:
    """Every node of a cabling plan, as its agent reads it. A port that two links share is a note."""
    faults, notes, count = [], [], 0
    users: dict[tuple[str, str], str] = {}
    for node in document:
        try:
            if not isinstance(node, str):
                raise PlanError(f"{node}: the name of a node must be text: write it in quotes")
            ports = of_node(document, node)
        except PlanError as error:
            faults.append(ConfigFault("", None, None, str(error)))
            continue
        for link, port in ports.items():
            count += 1
            user = f"{node} {link}"
            first = users.setdefault((port.switch.lower(), port.port.lower()), user)
            if first != user:
                notes.append(f"{port.switch} {port.port} is planned for {first} and for {user}")
    if faults:
        raise ConfigError(name, faults[:_FAULTS_MAX])
    return CheckedFile(f"cabling plan, {len(document)} nodes, {count} links", tuple(notes))
