"""Planned work on a link, a node or a switch: write it into an annotation of the Nodes, end it, and list it."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.plan.given_objects import GivenObjects
from nodeagent.commands.plan.objects import read_objects
from nodeagent.commands.plan.preview import cluster_access, make_objects
from nodeagent.console.json_document import node_name
from nodeagent.console.moments import local, moment
from nodeagent.console.options import FAILED, GOOD, USAGE
from nodeagent.console.similar_names import similar_names
from nodeagent.console.terminal import note, screen, screen_section, tell
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.maintenance import (
    MAINTENANCE_ENTRIES_MAX,
    MAINTENANCE_LABEL,
    MAINTENANCE_NAME_MAX,
    TEXT_MAX,
    Maintenance,
    read_maintenance,
    write_maintenance,
)
from nodeagent.fabric.nodelinks import NodeLinks, ReportError, convert_nodelinks
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS, NODES, Partial

TRIES = 5
"""Of one write: another client may have changed the Node since it was read."""


def run_maintain(options: argparse.Namespace) -> int:
    """Carry the verb out. Return the exit code."""
    now = time.time()
    fault, until = "", now
    try:
        until = now if options.until is None else moment(options.until, now, past=False)
    except ValueError as error:
        fault = str(error)
    if not options.target and (options.end or options.until):
        fault = "name a link (gpu-17/nic3), a node or a switch"
    elif options.target and not options.end and not fault and until <= now:
        fault = "give --until with a time that is still to come, or --end"
    if fault:
        note(fault)
        return USAGE
    return asyncio.run(_run(options, now, until))


def _given(source: str) -> GivenObjects:
    """The Nodes and reports of ``--from``. Raises ``UserFileError``."""
    read = make_objects(FabricRules())
    read.documents = []
    read_objects(source, read)
    return GivenObjects(read.documents)


async def _run(options: argparse.Namespace, now: float, until: float) -> int:
    client: ApiClient | GivenObjects
    if options.source is None:
        access = cluster_access(options.kubeconfig, options.context)
        client, server, here = (
            ApiClient(access, manager="nodeagent-maintain"),
            access.server,
            node_name(options.root),
        )
    else:
        client, server, here = _given(options.source), None, ""
    choice = _Choice(frozenset(map(str.lower, options.target)), here)
    try:
        standing = await _standing(client, now)
        if not options.target:
            return _list(standing, server, options.source or "cluster", as_json=options.json)
        spaces = await _choose(client, choice, standing, None if options.end else _maker(options, now, until))
        if unknown := [name for name in options.target if name.lower() not in choice.met]:
            fault = (
                "it is not under maintenance" if options.end else "no node, NODE/nic3 or switch is called so"
            )
            lister = "nodeagent maintain" if options.end else "nodeagent topology"
            similar = ", ".join(similar_names(unknown[0], choice.known - {unknown[0].lower()}))
            note(
                f"{unknown[0]}: {fault}; {f'similar are {similar}' if similar else f'`{lister}` lists what is'}"
            )
            return USAGE
        return await _write_all(client, choice, spaces, now, end=options.end)
    finally:
        await client.close()


def _maker(options: argparse.Namespace, now: float, until: float) -> Callable[..., Maintenance]:
    """Make the entry of a link, of a switch's link, or of a node."""
    author = one_line(options.author or getpass.getuser(), MAINTENANCE_NAME_MAX)
    since, to = (datetime.fromtimestamp(int(at), UTC) for at in (now, until))
    return partial(
        Maintenance, since=since, until=to, author=author, reason=one_line(options.reason, TEXT_MAX)
    )


@dataclass
class _Choice:
    """The entries for the places that are ``wanted``, by small letters. ``here`` is this node, whose links need no
    other name."""

    wanted: frozenset[str]
    here: str
    of_node: dict[str, list[Maintenance]] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """All names that were offered."""

    def offer(self, node: str, names: Iterable[str | None], entry: Maintenance) -> None:
        """Take the entry of a place if one of its names is wanted."""
        own = {name.lower() for name in names if name}
        if entry.link and not entry.switch:
            own = {f"{node.lower()}/{name}" for name in own} | (own if node == self.here else set())
        self.known |= own
        if hit := own & self.wanted:
            self.met |= hit
            self.of_node.setdefault(node, []).append(entry)

    def offer_links(self, report: NodeLinks, made: Callable[..., Maintenance]) -> None:
        taken = {link.name for link in report.links}
        for link in report.links:
            parts = {"link": link.name, "netdev": link.netdev or "", "pci_address": link.pci_address or ""}
            rail = f"nic{link.rail}" if f"nic{link.rail}" not in taken else None
            own = (link.name, rail, link.netdev, link.pci_address, link.mac, link.rdma_device)
            self.offer(report.node_name, own, made(**parts))
            if link.neighbor is not None:
                ends = (link.neighbor.system_name, link.neighbor.chassis_id.value)
                self.offer(report.node_name, ends, made(**parts, switch=ends[0] or ends[1]))


class UnreadableError(Exception):
    """An annotation that is not written, and why."""


async def _standing(client: ApiClient | GivenObjects, now: float) -> dict[str, list[Maintenance]]:
    """The entries of each Node whose time is not over. Raises ``ApiError``."""
    standing: dict[str, list[Maintenance]] = {}

    def take(node: Partial) -> None:
        entries, fault = read_maintenance((node.metadata.annotations or {}).get(MAINTENANCE_LABEL))
        standing[node.metadata.name] = [entry for entry in entries if entry.end > now]
        if fault:
            note(f"{MAINTENANCE_LABEL} of the Node {node.metadata.name} is wrong and partly ignored: {fault}")

    await client.list_each(NODES.partial, take, standing.clear)
    return standing


async def _choose(
    client: ApiClient | GivenObjects,
    choice: _Choice,
    standing: Mapping[str, Iterable[Maintenance]],
    made: Callable[..., Maintenance] | None,
) -> dict[str, str]:
    """Offer every place, or without ``made`` every standing entry. Return the namespaces of the reports."""
    spaces: dict[str, str] = {}

    def take(document: dict[str, Any]) -> None:
        if space := document["metadata"].get("namespace"):
            spaces[document["metadata"]["name"]] = space
        with suppress(ReportError):
            report = convert_nodelinks(document)
            if made is not None and report.node_name in standing:
                choice.offer_links(report, made)

    for node, entries in standing.items():
        for entry in (made(),) if made is not None else entries:
            names = (entry.link, entry.netdev, entry.pci_address) if entry.link else (node,)
            choice.offer(node, (entry.switch,) if entry.switch else names, entry)
    await client.list_each(NODELINKS, take, spaces.clear)
    return spaces


async def _write_all(
    client: ApiClient | GivenObjects, choice: _Choice, spaces: Mapping[str, str], now: float, *, end: bool
) -> int:
    """Write all, then print what is written: also what is written when an error or Ctrl-C ends it."""
    written: list[str] = []
    faults: list[str] = []
    try:
        await _write_nodes(client, choice, spaces, now, written, faults, end=end)
    finally:
        said = tell("\n".join((*(client.patches if isinstance(client, GivenObjects) else ()), *written)))
        for fault in faults:
            note(fault)
    return GOOD if said and len(written) == sum(map(len, choice.of_node.values())) else FAILED


async def _write_nodes(
    client: ApiClient | GivenObjects,
    choice: _Choice,
    spaces: Mapping[str, str],
    now: float,
    written: list[str],
    faults: list[str],
    *,
    end: bool,
) -> None:
    uncounted = False
    for node, entries in sorted(choice.of_node.items()):
        try:
            await _write(client, node, entries, now, end=end)
        except UnreadableError as error:
            faults.append(str(error))
            continue
        except ApiError as error:
            faults.append(f"{node}: {error}")
            if error.status == 403:
                break
            continue
        for entry in entries:
            said = "no longer under maintenance" if end else f"under maintenance until {local(entry.end)}"
            written.append(one_line(f"{node}{'/' if entry.link else ''}{entry.link} is {said}"))
        try:  # the agent may not read its Node, and reads its report
            if (space := spaces.get(node)) is not None:
                await _copy(client, node, space)
        except ApiError as error:
            if not uncounted:
                faults.insert(0, f"the agents do not learn of it and count flaps: {error}")
            uncounted = True


async def _write(
    client: ApiClient | GivenObjects, node: str, entries: Collection[Maintenance], now: float, *, end: bool
) -> None:
    """Put entries into the annotation of a Node, or take them out with ``end``; those whose time is over go too. Raises
    ``ApiError``, and ``UnreadableError`` for an annotation that must stay as it is."""
    places = {(entry.link, entry.switch) for entry in entries}
    for left in reversed(range(TRIES)):
        meta = (await client.get(NODES.partial, node)).metadata
        stored, fault = read_maintenance((meta.annotations or {}).get(MAINTENANCE_LABEL))
        if fault:
            remedy = f"mend it, or remove it: kubectl annotate node {node} {MAINTENANCE_LABEL}-"
            raise UnreadableError(
                f"{node}: {MAINTENANCE_LABEL} cannot be read whole ({fault}), and nothing was changed; {remedy}"
            )
        kept = [it for it in stored if it.end > now and (it.link, it.switch) not in places]
        if not end and (count := len(kept) + len(entries)) > MAINTENANCE_ENTRIES_MAX:
            remedy = "name the whole node instead of its links"
            raise UnreadableError(
                f"{node}: it would have {count} entries, at most {MAINTENANCE_ENTRIES_MAX} count; {remedy}"
            )
        text = write_maintenance(kept if end else [*kept, *entries])
        body = {"resourceVersion": meta.resource_version, "annotations": {MAINTENANCE_LABEL: text}}
        try:
            await client.patch(NODES.partial, node, {"metadata": body})
            return
        except ApiError as error:
            if error.status != 409 or not left:
                raise


async def _copy(client: ApiClient | GivenObjects, node: str, space: str) -> None:
    """Copy the annotation of the Node to its report. The Node is read after the report, so that of two people at work
    the later one copies the work of both. Raises ``ApiError``."""
    for left in reversed(range(TRIES)):
        version = (await client.get(NODELINKS.partial, node, namespace=space)).metadata.resource_version
        text = ((await client.get(NODES.partial, node)).metadata.annotations or {}).get(MAINTENANCE_LABEL)
        body = {"resourceVersion": version, "annotations": {MAINTENANCE_LABEL: text}}
        try:
            await client.patch(NODELINKS.partial, node, {"metadata": body}, namespace=space)
            return
        except ApiError as error:
            if error.status != 409 or not left:
                raise


def _list(
    standing: Mapping[str, Iterable[Maintenance]], cluster: str | None, source: str, *, as_json: bool
) -> int:
    every = [(node, it) for node, entries in sorted(standing.items()) for it in entries]
    if as_json:
        found = [{"node": node, **msgspec.to_builtins(it)} for node, it in every]
        origin = {"cluster": cluster, "time": rfc3339(time.time()), "source": source}
        print(json.dumps({**origin, "maintenance": found}, indent=2))
    elif not every:
        print("Nothing is under maintenance.")
    else:
        rows = [(node, it.link, it.switch, local(it.end), it.author, it.reason) for node, it in every]
        cells = [[cell or None for cell in row] for row in rows]
        heads = ("NODE", "LINK", "SWITCH", "UNTIL", "BY", "REASON")
        print(screen_section("UNDER MAINTENANCE", heads, cells, screen(), optional=("SWITCH",)), end="")
    return GOOD
