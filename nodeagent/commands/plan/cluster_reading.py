"""Read the reports, Nodes and HyperNodes of a cluster once. Nothing is written.

An object with errors is refused alone, as in a file. A kind that the cluster does not have counts as empty, with a
note. Any other error ends the reading, because half of the reports would make another fabric.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeagent.commands.plan.objects import Objects, keep_latest, store_object
from nodeagent.commands.plan.preview import SourceError
from nodeagent.commands.user_files import UserFileError
from nodeagent.kube.access import Access, AccessError, in_cluster, kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Partial, Resource

NO_CLUSTER = (
    "name a cluster with --kubeconfig FILE, or read reports with --from FILE "
    "(`nodeagent demo --nodes 64 --write DIR` makes some)"
)


def access(file: Path | None) -> Access:
    """The access of the given kubeconfig, of the pod's service account, or of the kubeconfig that kubectl uses.

    Raises ``UserFileError`` for the given file, ``SourceError`` for the others.
    """
    if file is None:
        try:
            return in_cluster() or kubeconfig(None)
        except (AccessError, OSError) as error:
            why = str(error) if isinstance(error, AccessError) else f"{error.filename}: {error.strerror}"
            raise SourceError(f"{why}: {NO_CLUSTER}") from error
    try:
        return kubeconfig(file)
    except AccessError as error:
        fault = str(error).removeprefix(f"{file}: ")
        raise UserFileError(
            str(file), fault, "a kubeconfig, as `kubectl config view --raw` prints it"
        ) from error


async def read(cluster: Access) -> Objects:
    """Read all objects of all namespaces. Raises ``ApiError``."""
    client = ApiClient(cluster)
    objects = Objects()
    try:
        for resource in (NODELINKS, HYPERNODES):
            documents: list[Any] = []
            await _list_into(documents, client, resource, objects)
            for document in documents:
                store_object({"kind": resource.kind, **document}, objects)
        nodes: list[Partial] = []
        await _list_into(nodes, client, NODES.partial, objects)
    finally:
        await client.close()
    objects.nodes.update((node.metadata.name, dict(node.metadata.labels or {})) for node in nodes)
    keep_latest(objects)
    return objects


async def _list_into(target: list[Any], client: ApiClient, resource: Resource[Any], objects: Objects) -> None:
    try:
        await client.list_each(resource, target.append, target.clear)
    except ApiError as error:
        if not error.missing:
            raise
        objects.notes.append(f"the cluster has no kind {resource.kind}: is its CRD installed?")
