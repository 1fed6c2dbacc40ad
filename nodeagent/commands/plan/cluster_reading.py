"""Read the reports, Nodes and HyperNodes of a cluster once. Nothing is written.

An object with errors is refused alone, as in a file. A kind that the cluster does not have counts as empty, with a
note. Any other error ends the reading, because half of the reports would make another fabric.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.commands.plan.objects import Objects, store_object
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


async def read(cluster: Access, objects: Objects) -> None:
    """Read all objects of all namespaces, one page at a time. Raises ``ApiError``."""
    client = ApiClient(cluster)

    def take_node(node: Partial) -> None:
        objects.stored += 1
        objects.nodes[node.metadata.name] = dict(node.metadata.labels or {})

    def store(document: dict[str, Any], kind: str) -> None:
        store_object({"kind": kind, **document}, objects)

    try:
        for resource, forget in (
            (NODELINKS, objects.drop_reports),
            (HYPERNODES, objects.hypernodes.clear),
        ):
            await _list(client, resource, partial(store, kind=resource.kind), forget, objects)
        await _list(client, NODES.partial, take_node, objects.nodes.clear, objects)
    finally:
        await client.close()


async def _list(
    client: ApiClient,
    resource: Resource[Any],
    take: Callable[[Any], None],
    forget: Callable[[], None],
    objects: Objects,
) -> None:
    try:
        await client.list_each(resource, take, forget)
    except ApiError as error:
        if not error.missing:
            raise
        objects.notes.append(f"the cluster has no kind {resource.kind}: is its CRD installed?")
