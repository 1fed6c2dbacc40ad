"""A small API server over HTTP and HTTPS, for the tests, the benchmarks and the demo.

It behaves like the real one wherever a client can see it: resource versions, pages that expire, watches with
bookmarks and 410, conflicts, server-side apply with managed fields, status subresources, structural schemas, RBAC and
PartialObjectMetadata.

Compared with kube-apiserver 1.36.2: by its source (registry, validation, server-side apply), and by hand with the real
one for each writer of agent and controller until 2026-11-24 (docs/reference/verified.md). The differences:

* one version of each kind, no conversion, no CEL, no protobuf, no tables, no OpenAPI, no aggregation;
* admission only checks that the namespace exists, plus what a test adds with ``admit`` and ``fail``;
* garbage is collected at once, pods end at once, and no controller runs;
* a restart loses everything unless the next server gets the same store.
"""

from nodeagent_lab.sim.apiserver.api_server import ApiServer, RequestRecord
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError

__all__ = ["ApiRefusedError", "ApiServer", "RequestRecord"]
