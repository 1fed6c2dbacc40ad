"""The API server refuses a part of a node's report: the rest must be published, and an operator must see the part.

Conditions: a NIC that was never cabled, and one that is pulled while the agent runs. A definition in the cluster that
is older than the agent and lists fewer states. A value beyond a limit of the definition, and an API server that refuses
every report. The node keeps its place in the tree, and ``/readyz``, a metric, an Event and one log line name
what is missing. The agent stays ready: devices come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cluster.node_report import NodeReporter
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.running_agent import Node, node, shorten

HEAD = "two-gpus-and-two-nics"


@pytest.fixture(autouse=True)
def _prompt_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0, gather_s=0.2, gap_s=0.5)


DEFINITION = Path(__file__).parents[2] / "daemonset" / "base" / "cluster" / "nodelinks.yaml"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    yield server
    await server.stop()


def older_definition(**changes: Any) -> dict[str, Any]:
    """The shipped definition without the states ``missing`` and ``unused``; ``changes`` are limits of link fields."""
    definition = deepcopy(yaml.safe_load(DEFINITION.read_text()))
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    link = properties["links"]["items"]["properties"]
    states = ["healthy", "degraded", "down", "miscabled", "unknown"]
    properties["summary"]["properties"]["health"]["enum"] = states
    link["state"]["enum"] = states
    for name, schema in changes.items():
        link[name] = schema
    return definition


async def start(agent: Node, server: ApiServer, *, patient: bool = False) -> None:
    path = agent.folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [
                    {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "nodeagent"}}
                ],
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [
                    {
                        "name": "u",
                        "user": {"token": server.token("system:serviceaccount:nodeagent:nodeagent")},
                    }
                ],
            }
        )
    )
    await agent.kubelet.start()
    text = f"cluster: {{access: kubeconfig, kubeconfig: {path}}}\n"
    await agent.start_agent(agent.configure(text), node_name="gpu-0")
    await agent.allocatable(f"{HEAD}/nic0", 4)


async def until(server: ApiServer, good: Callable[[], object]) -> None:
    async with asyncio.timeout(40):
        await server.until(good)


def links(server: ApiServer) -> dict[str, dict[str, Any]]:
    report = server.find("nodelinks", "gpu-0", "nodeagent")
    return {link["name"]: link for link in report["links"]} if report else {}


def event_reasons(server: ApiServer) -> set[str]:
    return {event["reason"] for event in server.objects("events")}


async def test_a_nic_that_was_never_cabled_costs_neither_the_report_nor_its_count(server: ApiServer) -> None:
    async with node() as agent:
        agent.machine.set_link(1, up=False)
        await start(agent, server)
        await until(server, lambda: links(server))
        assert {link["state"] for link in links(server).values()} == {"healthy", "unused"}
        report = server.find("nodelinks", "gpu-0", "nodeagent")
        assert report is not None
        assert report["summary"]["links"] == "2/2", "of three NICs, an uncabled NIC does not count"
        assert not [request for request in server.requests if request.status == 422]


async def test_a_pulled_nic_with_a_rail_is_missing_in_the_report_and_in_the_metrics(
    server: ApiServer,
) -> None:
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: links(server))
        address = agent.machine.nic(1).address
        agent.machine.unplug(1)
        await until(server, lambda: links(server).get("nic1", {}).get("state") == "missing")
        link = links(server)["nic1"]
        assert (link["pciAddress"], link["reasons"]) == (address, ["device_missing"])
        metrics = (await agent.get("/metrics"))[1]
        states = [line for line in metrics.splitlines() if line.startswith("nodeagent_link_health_state{")]
        missing = [line for line in states if 'state="missing"' in line and line.endswith(" 1")]
        assert len(missing) == 1


async def test_a_rail_whose_nic_is_missing_since_the_start_of_the_agent_is_missing_in_the_report(
    server: ApiServer,
) -> None:
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: len(links(server)) == 3)
        await agent.stop_agent()
        agent.machine.unplug(1)
        server.remove("nodelinks", "gpu-0", "nodeagent")  # so that nothing is known from an earlier report
        text = agent.config_file.read_text()
        await agent.start_agent(agent.configure(text), node_name="gpu-0")
        await until(server, lambda: links(server).get("nic1", {}).get("state") == "missing")
        report = server.find("nodelinks", "gpu-0", "nodeagent")
        assert report is not None
        assert report["summary"] == {"links": "2/3", "switches": 0, "health": "missing"}
        assert links(server)["nic0"]["state"] == "healthy"


async def test_an_older_definition_costs_a_word_and_no_link(server: ApiServer, caplog: Any) -> None:
    """Helm does not upgrade definitions."""
    server.put(older_definition())
    async with node() as agent:
        agent.machine.set_link(1, up=False)
        await start(agent, server)
        await until(server, lambda: len(links(server)) == 3)
        assert {link["state"] for link in links(server).values()} == {"healthy", "down"}
        await agent.until(lambda: bool(agent.agent.deliveries.remarks()))
        code, ready = await agent.get("/readyz")
        assert code == 200
        assert "nic1.state (unused)" in ready
        assert "nodelinks.yaml" in ready
        assert "nodeagent_cluster_report_left_out 1" in (await agent.get("/metrics"))[1]
        await until(server, lambda: "ReportIncomplete" in event_reasons(server))
        assert caplog.text.count("report is incomplete") == 1


async def test_a_value_beyond_a_limit_costs_its_field_alone(server: ApiServer) -> None:
    server.put(older_definition(netdev={"type": "string", "maxLength": 3}, mac={"type": "integer"}))
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: len(links(server)) == 3)
        await agent.until(lambda: bool(agent.agent.deliveries.remarks()))
        for link in links(server).values():
            assert "netdev" not in link
            assert "mac" not in link
            assert link["pciAddress"]
        assert "nic0.netdev" in (await agent.get("/readyz"))[1]


@pytest.mark.slow
async def test_a_refused_report_is_named_where_an_operator_looks_and_recovers_without_a_restart(
    server: ApiServer,
) -> None:
    broken = older_definition()
    broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["nodeName"]["maxLength"] = 1
    server.put(broken)
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: "ReportRefused" in event_reasons(server))
        code, ready = await agent.get("/readyz")
        assert code == 200, "devices come first"
        assert "cluster nodelinks: is refused by the API server" in ready
        assert "nodeName" in ready
        metrics = (await agent.get("/metrics"))[1]
        assert 'nodeagent_cluster_writes_failing{part="nodelinks"} 1' in metrics
        assert 'nodeagent_cluster_writes_total{part="nodelinks",result="refused"}' in metrics
        server.put(yaml.safe_load(DEFINITION.read_text()))
        await until(server, lambda: links(server))
        await agent.until(lambda: not agent.agent.deliveries.remarks())
        assert "refused" not in (await agent.get("/readyz"))[1]


async def test_a_definition_that_lacks_a_field_costs_this_field(server: ApiServer) -> None:
    """A real API server refuses such an apply as a whole, with a message and without causes."""
    message = (
        "failed to create typed patch object (nodeagent/gpu-0; nodeagent.io/v1alpha1, Kind=NodeLinks): errors:\n"
        '  .links[name="nic0"].mac: field not declared in schema'
    )
    server.fail("500", verb="patch", resource="nodelinks", message=message)
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: len(links(server)) == 3)
        assert not any("mac" in link for link in links(server).values())
        assert all(link["pciAddress"] for link in links(server).values())
        await agent.until(lambda: bool(agent.agent.deliveries.remarks()))
        assert "nic0.mac" in (await agent.get("/readyz"))[1]


@pytest.mark.slow
async def test_a_right_that_arrives_after_the_agent_is_used_within_seconds(server: ApiServer) -> None:
    """An installation creates the DaemonSet and its role in any order."""
    rights = list(yaml.safe_load_all(DEFINITION.with_name("rbac.yaml").read_text()))
    server.rbac = True
    async with node() as agent:
        await start(agent, server)
        await until(server, lambda: any(request.status == 403 for request in server.requests))
        await agent.until(lambda: bool(agent.agent.deliveries.remarks()))
        assert "a role must grant us the verb get on nodelinks" in (await agent.get("/readyz"))[1]
        for right in rights:
            if right["kind"] in ("Role", "RoleBinding"):
                right["metadata"].setdefault("namespace", "nodeagent")
            server.put(right)
        await until(server, lambda: links(server))
