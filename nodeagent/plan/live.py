"""The cluster as it is now, read once: what the controller would see. Nothing is written, nothing is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeagent.kube.access import Access, in_cluster, kubeconfig
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Partial, Resource
from nodeagent.plan.stream import Objects, settle, take


def access(file: Path | None) -> Access:
    """The given kubeconfig, or the pod's service account, or as kubectl does."""
    found = None if file is not None else in_cluster()
    return found or kubeconfig(file)


async def read(way: Access) -> Objects:
    """All reports, HyperNodes and Nodes. Raises ``ApiError``; without the right to list Nodes, or where
    nobody has defined HyperNodes, a note says so."""
    objects = Objects()
    client = Client(way)
    try:
        for one in await _all(client, NODELINKS):
            take({"kind": NODELINKS.kind, **one}, objects)
        try:
            hypernodes = await _all(client, HYPERNODES)
        except ApiError as error:
            if not error.missing:
                raise
            objects.notes.append("the cluster has no HyperNodes (is Volcano's CRD installed?)")
            hypernodes = []
        for one in hypernodes:
            take({"kind": HYPERNODES.kind, **one}, objects)
        try:
            nodes: list[Partial] = await _all(client, NODES.partial)
        except ApiError as error:
            if error.status != 403:
                raise
            objects.notes.append(f"{error}: every node that reports is taken to exist")
            nodes = []
        objects.nodes = {node.metadata.name: node.metadata.labels or {} for node in nodes}
    finally:
        await client.close()
    settle(objects)
    return objects


async def _all(client: Client, resource: Resource[Any]) -> list[Any]:
    return (await client.list(resource)).items
