"""Check a file that agents or the controller read: each has its kind, and the cabling plan has none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import fields

from nodeagent.config.bounded_yaml import load_document
from nodeagent.config.config_files import FRAGMENT, fragment_folder, left_out
from nodeagent.config.file_errors import ConfigError, FileError, FileErrors, HaltError, most_similar, quote
from nodeagent.config.followed_configuration import configuration_files, read_at_start
from nodeagent.config.merged_tree import ConfigText
from nodeagent.config.setting import Settings
from nodeagent.config.yaml_tree import locate, parse
from nodeagent.controller_config import FabricConfig, read_fabric
from nodeagent.fabric.topology_file import FabricTopology, Topology, load_topology
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
    """Check a file of any kind, or a folder of fragments. ``root``: a machine to check the agent's configuration
    against.

    Raises ``ConfigError`` with all errors of the file, or of a file that it names.
    """
    files = read_at_start(path, partial(configuration_files, path))
    text = files[0].text
    documents = [_document(file.text) for file in files]
    document = next((one for one in documents if "kind" in one), documents[0])
    kind = document.get("kind")
    if kind is None or (isinstance(kind, str) and kind not in _KINDS):
        meant = _kind_by_keys({*chain(*documents)}) or (None if kind is None else most_similar(kind, _KINDS))
        if meant is None and kind is not None:
            raise _of_another_kind(text, kind, str(path))
        kind = meant
    if kind == "FabricConfig":
        config, topology = read_at_start(path, partial(read_fabric, path))
        named = [name for name in (config.topology, config.infiniband_cables) if name is not None]
        content = ["configuration of the controller", *_of_fragments(files), *named, *_counts(topology)]
        return CheckedFile(", ".join(content), tuple(_left_out(path)))
    if kind == "FabricTopology" and not path.is_dir():
        topology = load_topology(text, name=str(path))
        return CheckedFile(", ".join(["fabric topology", *_counts(topology)]))
    if len(files) == 1 and "apiVersion" not in document and kind is None and _is_plan(document):
        return _check_plan(document, str(path))
    from nodeagent.commands.scan import listing

    agent, remarks, unchecked = listing.check_text(files, root, name=str(path))
    content = [f"{len(agent.resources)} resources configured", *_of_fragments(files)]
    return CheckedFile(", ".join(content), (*remarks, *_left_out(path)), unchecked)


def _kind_by_keys(keys: Collection[object]) -> str | None:
    """The kind that has more of these settings than each other one. ``None``: no kind has."""
    from nodeagent.agent_config import Config

    settings_of: tuple[type[Settings], ...] = (Config, FabricConfig, FabricTopology)
    counts = {
        kind: sum(field.encode_name in keys for field in fields(settings))
        - len({"apiVersion", "kind"} & {*keys})
        for kind, settings in zip(_KINDS, settings_of, strict=True)
    }
    most = max(counts.values())
    found = [kind for kind, count in counts.items() if count == most > 0]
    return found[0] if len(found) == 1 else None


def _of_fragments(files: ConfigText) -> Iterator[str]:
    if len(files) > 1:
        yield f"{len(files)} files"


def _left_out(path: Path) -> Iterator[str]:
    """Sentences about files in the folder of fragments that may be meant and are not read."""
    folder = fragment_folder(path)
    for name in left_out(path):
        yield f"{folder / name} is not read: the name of a fragment ends in {FRAGMENT}"


def _of_another_kind(text: str, kind: str, name: str) -> ConfigError:
    """One error: such an object has no settings to compare."""
    faults = FileErrors()
    try:
        at = locate(parse(text, faults), ("kind",))
    except HaltError:
        return ConfigError(name, faults)
    message = f"is {quote(kind)}, must be one of {', '.join(_KINDS)}; a cabling plan has no kind"
    if kind == "ConfigMap":
        message += "; check the text in its `data`, as a file of its own"
    return ConfigError(name, [FileError("kind", at.line, at.column, message, at.file)])


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
            faults.append(FileError("", None, None, str(error)))
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
