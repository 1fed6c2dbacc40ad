"""What a plan is made of, read from the API server once: reports, Nodes and HyperNodes. Nothing is written.

The law of this file: an object that cannot be read is refused by itself, as in a file. A kind that the cluster
does not have is one without objects, and that is said; any other answer than a list ends the reading, for half of
the reports would be another fabric.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeagent.commands.plan.objects import Objects, settle, take
from nodeagent.kube.access import Access, in_cluster, kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Partial, Resource


def access(file: Path | None) -> Access:
    """The kubeconfig that is given, or the pod's service account, or what kubectl goes by."""
    return (None if file is not None else in_cluster()) or kubeconfig(file)


async def read(way: Access) -> Objects:
    """Everything, of all namespaces. Raises ``ApiError``."""
    client = ApiClient(way)
    objects = Objects()
    try:
        for resource in (NODELINKS, HYPERNODES):
            found: list[Any] = []
            await _listed(client, resource, found, objects)
            for one in found:
                take({"kind": resource.kind, **one}, objects)
        nodes: list[Partial] = []
        await _listed(client, NODES.partial, nodes, objects)
    finally:
        await client.close()
    objects.nodes.update((one.metadata.name, dict(one.metadata.labels or {})) for one in nodes)
    settle(objects)
    return objects


async def _listed(client: ApiClient, resource: Resource[Any], found: list[Any], objects: Objects) -> None:
    try:
        await client.list_each(resource, found.append, found.clear)
    except ApiError as error:
        if not error.missing:
            raise
        objects.notes.append(f"the cluster has no kind {resource.kind}: is its CRD installed?")
