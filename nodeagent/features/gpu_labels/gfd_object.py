"""Look for the object in which GPU Feature Discovery (GFD) gives its labels to NFD, in place of a file.

It is the NodeFeature ``nvidia-features-for-<node>`` in GFD's namespace, whichever that is: so the objects of this name
in all namespaces are listed, every ``GFD_LOOK_S``. The API server answers from its memory: such a list of all agents
would read all NodeFeatures of the cluster in etcd each time before Kubernetes 1.31, which has consistent reads from
the cache.
"""

from __future__ import annotations

import asyncio
import logging
import time

from nodeagent.base.backoff import jittered
from nodeagent.cluster.retry import ApiRetry
from nodeagent.features.gpu_labels.label_keeper import LabelKeeper
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import Json, Resource

log = logging.getLogger(__name__)

GFD_LOOK_S = 600.0
NODE_FEATURES: Resource[Json] = Resource(
    "nfd.k8s-sigs.io", "v1alpha1", "nodefeatures", "NodeFeature", True, dict
)


async def follow_gfd_object(client: ApiClient, node: str, keeper: LabelKeeper) -> None:
    """Tell the keeper until cancelled. Without the right, or without NFD's definition, a file is the only sign."""
    name, told = f"nvidia-features-for-{node}", False
    retry = ApiRetry("The API server does not say whether GPU Feature Discovery labels this Node")
    while True:
        wait_s, found = jittered(GFD_LOOK_S), []
        try:
            found = (await client.list(NODE_FEATURES, fields=f"metadata.name={name}", cached=True)).items
        except ApiError as error:
            if error.status not in (403, 404):
                await asyncio.sleep(retry.failed(error, time.monotonic()))
                continue
            if error.status == 403 and not told:
                told = True
                log.info("GPU Feature Discovery is known by its file alone. reason=%r", str(error))
        retry.succeeded()
        keeper.gfd_object = next((f"{one['metadata']['namespace']}/{name}" for one in found), None)
        keeper.asking = False
        await asyncio.sleep(wait_s)
