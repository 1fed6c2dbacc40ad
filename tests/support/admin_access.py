"""A stand-in API server that real clients reach as an administrator: kubectl and Helm send a token over TLS only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.resource_types import MINOR
from nodeagent_lab.sim.apiserver.tls import Certificates
from tests.support.needs import need


@asynccontextmanager
async def administered(folder: Path, minor: int = MINOR) -> AsyncIterator[tuple[ApiServer, Path]]:
    """Start an API server of Kubernetes 1.x; yield it with the kubeconfig of an administrator in the folder."""
    need("openssl")
    certificates = Certificates(folder)
    server = await ApiServer(tls=certificates, minor=minor).start()
    kubeconfig = folder / "kubeconfig"
    cluster = {"server": server.url, "certificate-authority": str(certificates.ca)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin",
        "clusters": [{"name": "admin", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": server.token("admin")}}],
        "contexts": [{"name": "admin", "context": {"cluster": "admin", "user": "admin"}}],
    }
    kubeconfig.write_text(json.dumps(content))
    try:
        yield server, kubeconfig
    finally:
        await server.stop()
