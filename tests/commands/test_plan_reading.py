"""A plan of the cluster as the API server has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands.plan.objects import Objects
from nodeagent.commands.plan.preview import make_objects, make_preview, read_cluster
from nodeagent.fabric import FabricRules
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiError
from nodeagent_lab.sim.apiserver import ApiServer

LINK = {
    "name": "rail0", "fabric": "compute", "rail": 0, "state": "healthy",
    "neighbor": {
        "chassisID": {"subtype": "mac", "value": "02:00:00:00:00:01"},
        "portID": {"subtype": "ifname", "value": "swp1"}, "systemName": "leaf0",
    },
}  # fmt: skip
PUBLISHED = {
    "apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode",
    "metadata": {"name": "theirs", "labels": {"volcano.sh/network-topology-source": "ufm"}},
    "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "far"}}}]},
}  # fmt: skip


@pytest.fixture
async def server():
    server = await ApiServer().start()
    for i in range(2):
        server.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"gpu-{i}", "labels": {"zone": "a"}}}
        )
        port = {**LINK["neighbor"], "portID": {"subtype": "ifname", "value": f"swp{i}"}}
        server.put(report(f"gpu-{i}", [{**LINK, "neighbor": port}]))
    server.put(PUBLISHED)
    yield server
    await server.stop()


def report(node: str, links: object):
    return {
        "apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks",
        "metadata": {"name": node, "namespace": "nodeagent"}, "nodeName": node, "links": links,
    }  # fmt: skip


def access(server: ApiServer) -> Access:
    return Access(server.url, token=server.token())


async def read(server: ApiServer) -> Objects:
    objects = make_objects(FabricRules())
    await read_cluster(access(server), objects)
    return objects


async def test_reports_nodes_and_hypernodes_are_read_and_nothing_is_written(server: ApiServer):
    objects = await read(server)
    assert set(objects.planner.inputs.reports) == {"gpu-0", "gpu-1"}
    assert objects.nodes == {"gpu-0": {"zone": "a"}, "gpu-1": {"zone": "a"}}
    assert [*objects.hypernodes] == ["theirs"]
    seen = make_preview(objects)
    assert [one.nodes for one in seen.outcome.hypernodes if one.ours] == [("gpu-0", "gpu-1")]
    assert {verb for verb, _ in server.counts} == {"list"}


async def test_an_object_that_is_no_report_is_refused_by_itself(server: ApiServer):
    server.put(report("gpu-2", "what?"))
    objects = await read(server)
    assert len(objects.planner.inputs.reports) == 2
    assert "is not a NodeLinks object" in objects.refused["gpu-2"]


async def test_a_kind_that_the_cluster_does_not_have_is_one_without_objects(server: ApiServer):
    server.fail("404", resource="hypernodes")
    objects = await read(server)
    assert objects.hypernodes == {}
    assert objects.notes == ["the cluster has no kind HyperNode: is its CRD installed?"]


async def test_a_missing_list_permission_is_an_error_and_no_partial_fabric(server: ApiServer):
    server.fail("403", resource="nodes")
    with pytest.raises(ApiError, match="list nodes"):
        await read(server)


async def test_the_verb_reads_the_cluster_of_a_kubeconfig(server: ApiServer, tmp_path: Path, capsys):
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "c", "user": {"token": server.token()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }))  # fmt: skip
    assert await asyncio.to_thread(cli.main, ["plan", "--json", "--kubeconfig", str(file)]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [one["verb"] for one in planned["writes"]] == ["create"]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"kind": "Pod"}, "an object of kind 'Pod'"),
        ({"kind": None}, "an object of kind null"),
        ({"a": 1}, "an object without kind"),
    ],
)
def test_a_file_of_other_objects_is_refused_with_what_the_first_one_is(
    document: dict[str, object], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "others.json"
    file.write_text(json.dumps([document, {"kind": "Secret"}]))
    assert cli.main(["plan", "--from", str(file)]) == 2
    assert f"others.json:1: {what}; expected NodeLinks" in capsys.readouterr().err
