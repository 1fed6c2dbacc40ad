"""A stand-in API server: HTTP and HTTPS, small and real, for the tests, the benchmarks and the demo.

It keeps to what the real one does where clients can tell: resource versions, pages that expire, watches with
bookmarks and 410, conflicts, server-side apply with managed fields, status subresources, structural schemas,
RBAC, and PartialObjectMetadata. Where it is less:

* one version of each kind, no conversion, no CEL, no protobuf, no tables, no OpenAPI, no aggregation;
* of admission only namespaces that must exist, and what ``admit`` and ``fail`` are told;
* garbage is collected at once, pods end at once, and no controller runs;
* nothing is kept over a restart unless the store is handed on.
"""

from nodeagent.sim.apiserver.api_server import ApiServer, Seen
from nodeagent.sim.apiserver.responses import RefusedError

__all__ = ["ApiServer", "RefusedError", "Seen"]
