"""A stand-in API server with one Node and two pods, an agent's client, and tasks that end with the test."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.cluster_node import running_pod


@pytest.fixture
async def server():
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    for name in "ab":
        server.put(running_pod(name))
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = ApiClient(Access(server.url, token=server.token("agent")))
    yield client
    await client.close()


@pytest.fixture
async def running():
    tasks = []
    yield lambda work: tasks.append(asyncio.ensure_future(work))
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, asyncio.CancelledError), error
