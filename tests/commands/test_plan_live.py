"""plan without a file: the cluster is read, whole, and nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from nodeagent.cli import main
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.fabrics import Cluster, links, rails


@asynccontextmanager
async def serving() -> AsyncIterator[ApiServer]:
    server = await ApiServer().start()
    try:
        yield server
    finally:
        await server.stop()


def fill(server: ApiServer) -> Cluster:
    """Two units that are published, and one node more that reports."""
    cluster = Cluster()
    cluster.hear(rails(2, 4))
    cluster.rest()
    for published in cluster.tree.objects.values():
        server.put(published)
    for node, row in rails(2, 5).items():
        report = links(node, row, api_version="nodeagent.io/v1alpha1", kind="NodeLinks")
        found = json.loads(msgspec.json.encode(report))
        found["metadata"]["namespace"] = "nodeagent"
        server.put(found)
        if node != "su001-n004":
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"a": "b"}}})
    return cluster


def kubeconfig(server: ApiServer, path: Path) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": server.token()}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


async def test_the_cluster_is_read_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving() as server:
        cluster = fill(server)
        file = kubeconfig(server, tmp_path / "kubeconfig")
        assert await asyncio.to_thread(main, ["plan", "--json", "--kubeconfig", str(file)]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert await asyncio.to_thread(main, ["topology", "--kubeconfig", str(file)]) == 0
        assert "su000-n004" in capsys.readouterr().out
        verbs = {seen.verb for seen in server.requests}
    assert [one["verb"] for one in plan["writes"]] == ["update"]
    assert plan["writes"][0]["object"]["metadata"]["name"] == cluster.home("su000-n000")
    assert plan["unplaced"] == [{"node": "su001-n004", "reason": "no Node has this name"}]
    assert verbs == {"list"}


async def test_a_cluster_that_cannot_be_reached_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving() as server:
        file = kubeconfig(server, tmp_path / "kubeconfig")
    assert await asyncio.to_thread(main, ["plan", "--kubeconfig", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "list /api/v1/configmaps: Unreachable" in line
