"""Fixtures of a whole agent with an API server: a stand-in server with its Node, and the agent's kubeconfig."""

from __future__ import annotations

import pytest
import yaml

from nodeagent_lab.sim.apiserver import ApiServer


@pytest.fixture
async def server():
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    yield server
    await server.stop()


@pytest.fixture
def kubeconfig(server, tmp_path):
    path = tmp_path / "kubeconfig"
    text = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "nodeagent"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [
            {"name": "u", "user": {"token": server.token("system:serviceaccount:nodeagent:nodeagent")}}
        ],
    }
    path.write_text(yaml.safe_dump(text))
    return path
