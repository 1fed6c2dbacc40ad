"""The controller against the stand-in API server: reports become HyperNodes and labels, through outages too."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.known_neighbors import KnownNeighbors
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL
from nodeagent.fabric.nodelinks import LinkNeighbor, ReportedId
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.kube.access import Access
from nodeagent.web.web_settings import AccessSettings
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time", "with_and_without_features")

QUICK = HysteresisSettings(move_seconds=0.3, settle_seconds=0.0, grace_seconds=0.3, hold_seconds=1.0)
RULES = FabricConfig(hysteresis=QUICK)


def nodelinks(node: str, leaves: list[str], *, state: str = "healthy", stale: bool = False) -> dict[str, Any]:
    links = [
        {
            "name": f"nic{rail}", "fabric": "compute", "rail": rail, "state": state,
            "neighbor": {
                "chassisID": {"subtype": "mac", "value": f"02:00:{crc32(leaf.encode()).to_bytes(4).hex(':')}"},
                "portID": {"subtype": "ifname", "value": f"Ethernet-{node}"},
                "systemName": leaf,
                **({"stale": True} if stale else {}),
            },
        }
        for rail, leaf in enumerate(leaves)
    ]  # fmt: skip
    return {
        "apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks",
        "metadata": {"name": node, "namespace": "nodeagent"}, "nodeName": node, "links": links,
    }  # fmt: skip


def leaves(unit: int, rails: int = 2) -> list[str]:
    return [f"su{unit}-leaf{rail}" for rail in range(rails)]


def populate(server: ApiServer, units: int = 2, each: int = 4) -> None:
    for unit in range(units):
        for number in range(each):
            node = f"node-{unit}{number}"
            server.put(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"zone": "a"}}}
            )
            server.put(nodelinks(node, leaves(unit)))


def tree(server: ApiServer) -> dict[str, list[str]]:
    """The tier and the members of each HyperNode."""
    return {
        found["metadata"]["name"]: [
            str(found["spec"]["tier"]),
            *(member["selector"]["exactMatch"]["name"] for member in found["spec"]["members"]),
        ]
        for found in server.objects("hypernodes")
    }


def groups(server: ApiServer) -> list[list[str]]:
    return sorted(members[1:] for members in tree(server).values() if members[0] == "1")


def valid(server: ApiServer) -> None:
    """Volcano's rules for a tree, as far as one level of nodes can break them."""
    nodes = [name for group in groups(server) for name in group]
    assert len(nodes) == len(set(nodes)), "a node is in two HyperNodes"
    assert all(len(members) > 1 for members in tree(server).values()), "a HyperNode is empty"


@asynccontextmanager
async def running(
    server: ApiServer, rules: FabricConfig = RULES, identity: str = "a", topology: Topology = NO_TOPOLOGY
) -> AsyncIterator[Controller]:
    place = ReplicaSettings("nodeagent", identity, "127.0.0.1:0", 0.05, 3.0, 2.0, 0.2)
    controller = Controller(rules, Access(server.url, token=server.token()), place, topology)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled() or task.exception() is None


@asynccontextmanager
async def cluster(units: int = 2) -> AsyncIterator[ApiServer]:
    server = await ApiServer().start()
    populate(server, units)
    try:
        yield server
    finally:
        await server.stop()


def labels(server: ApiServer, node: str) -> dict[str, str]:
    found = server.find("nodes", node)
    assert found is not None
    return found["metadata"]["labels"]


FIRST = [f"node-0{n}" for n in range(4)]
SECOND = [f"node-1{n}" for n in range(4)]


async def test_two_units_become_two_hypernodes_and_their_nodes_are_labelled_once():
    async with cluster() as server, running(server) as controller:
        await until(lambda: groups(server) == [FIRST, SECOND])
        await until(lambda: all(len(labels(server, node)) > 1 for node in FIRST + SECOND))
        key = "topology.nodeagent.io/tier-1"
        assert len({labels(server, node)[key] for node in FIRST}) == 1
        assert labels(server, FIRST[0])[key] != labels(server, SECOND[0])[key]
        assert labels(server, FIRST[0])["zone"] == "a"
        await until(lambda: controller.hypernodes.writes == {("create", "ok"): 2})
        await until(lambda: controller.labels.writes == {"ok": 8})


async def test_links_without_frames_write_nothing():
    async with cluster() as server, running(server) as controller:
        await until(lambda: controller.labels.writes["ok"] == 8)
        plans = controller.progress.plans
        for unit, nodes in enumerate((FIRST, SECOND)):
            for node in nodes:
                server.put(nodelinks(node, leaves(unit), state="down", stale=True))
        await until(lambda: controller.progress.plans > plans)
        assert controller.hypernodes.writes.total() == 2


async def test_a_node_that_moves_is_one_shrink_and_one_grow():
    async with cluster() as server:
        server.admit.append(lambda *_: valid(server))
        async with running(server) as controller:
            await until(lambda: controller.labels.writes["ok"] == 8)
            server.put(nodelinks("node-03", leaves(1)))
            await until(lambda: groups(server) == [FIRST[:3], ["node-03", *SECOND]])
            await until(lambda: controller.labels.writes["ok"] == 9)
            await until(lambda: controller.hypernodes.writes == {("create", "ok"): 2, ("update", "ok"): 2})


async def test_a_report_that_names_switches_of_all_units_writes_nothing():
    """A node of the first unit reports a cable to each of the others, or a wrong cable and a switch of its own."""
    units = 30
    async with cluster(units) as server, running(server) as controller:
        await until(lambda: controller.labels.writes["ok"] == 4 * units)
        published, writes = tree(server), controller.hypernodes.writes.total()
        assert len(published) == units
        for reported in (
            [*leaves(0), *(leaf for unit in range(1, units) for leaf in leaves(unit)), "its own"],
            ["su0-leaf0", "su1-leaf1", "its own"],
        ):
            server.put(nodelinks("node-03", reported))
            await asyncio.sleep(120)
            assert tree(server) == published
            assert controller.hypernodes.writes.total() == writes
            assert controller.labels.writes["ok"] == 4 * units


async def test_a_restart_writes_nothing_and_another_replica_takes_over():
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        before = tree(server)
        async with running(server, identity="b") as second:
            await until(lambda: second.progress.plans)
            await until(lambda: second.lease.leading)
            assert second.hypernodes.writes.total() == 0
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-14"}})
            server.put(nodelinks("node-14", leaves(1)))
            await until(lambda: groups(server)[1][-1] == "node-14")
        assert tree(server).keys() == before.keys()


async def test_of_two_replicas_one_leads_and_the_other_follows_when_it_ends():
    async with cluster() as server, running(server, identity="b") as other:
        async with running(server, identity="a") as one:
            await until(lambda: one.lease.leading or other.lease.leading)
            await until(lambda: one.labels.writes.total() + other.labels.writes.total() >= 8)
            assert one.lease.leading != other.lease.leading
        await until(lambda: other.lease.leading)


@pytest.mark.parametrize("fault", ["500", "429", "403", "half", "close", "lost"])
async def test_a_failed_write_is_repeated_and_the_tree_is_always_valid(fault: str):
    async with cluster() as server:
        server.fail(fault, verb="create", resource="hypernodes", times=2)
        async with running(server):
            await until(lambda: groups(server) == [FIRST, SECOND])
            valid(server)


async def test_writes_are_repeated_until_the_webhook_is_up():
    async with cluster() as server:
        down = True
        server.admit.append(lambda _user, _verb, plural, _was, _now: (
            "validatehypernodes.volcano.sh: no endpoints" if down and plural == "hypernodes" else None
        ))  # fmt: skip
        async with running(server) as controller:
            await until(lambda: controller.hypernodes.writes["create", "refused"] >= 2)
            down = False
            await until(lambda: groups(server) == [FIRST, SECOND])


async def test_a_hypernode_of_another_owner_is_never_written_and_reported_as_an_event():
    theirs = {
        "apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode",
        "metadata": {"name": "ufm-leaf", "labels": {"volcano.sh/network-topology-source": "ufm"}},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "node-00"}}}]},
    }  # fmt: skip
    async with cluster() as server:
        server.put(theirs)
        async with running(server) as controller:
            await until(lambda: server.objects("events"))
            (event,) = server.objects("events")
            assert event["reason"] == "ForeignHyperNode"
            assert "node-00" in event["message"]
            assert controller.hypernodes.writes.total() == 0
        found = server.find("hypernodes", "ufm-leaf")
        assert found is not None
        assert found["spec"] == theirs["spec"]


async def test_invalid_reports_are_named_and_do_not_affect_other_nodes():
    async with cluster() as server:
        server.put(nodelinks("ghost", leaves(0)))
        server.put({**nodelinks("node-00", leaves(1)), "nodeName": "node-10"})
        server.put({**nodelinks("node-01", []), "links": "what?"})
        async with running(server) as controller:
            await until(lambda: groups(server) == [["node-02", "node-03"], SECOND])
            assert controller.progress.outcome is not None
            unplaced = {one.node for one in controller.progress.outcome.unplaced}
            assert {"ghost", "node-00", "node-01"} <= unplaced


async def test_metrics_and_probes_show_the_state():
    async with cluster() as server, running(server) as controller:
        await until(lambda: controller.labels.writes["ok"] == 8)
        async with asyncio.timeout(10):
            port = await controller.port

            async def get(path: str) -> tuple[int, str]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                writer.close()
                return int(head.split()[1]), body.decode()

            status, text = await get("/metrics")
            assert status == 200
            samples = {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert samples["nodeagent_controller_leader", ()] == 1
            assert samples["nodeagent_fabric_nodes", (("state", "placed"),)] == 8
            assert samples["nodeagent_fabric_hypernodes", (("tier", "1"),)] == 2
            status, text = await get("/readyz")
            assert status == 200
            assert "nodes: 8 known" in text


async def test_planned_work_on_nodes_is_a_series_a_mark_of_the_map_and_one_log_line(
    caplog: pytest.LogCaptureFixture,
):
    def annotate(server: ApiServer, node: str, entries: object, **labels: str) -> None:
        text = None if entries is None else json.dumps(entries)
        meta = {"name": node, "labels": labels, "annotations": {MAINTENANCE_LABEL: text} if text else {}}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": meta})

    async with cluster() as server, running(server) as controller:
        book = controller.planner.inputs.maintenance
        annotate(server, "node-00", [{"until": "2100-01-01T00:00:00Z", "link": "nic0", "netdev": "enp1"}, {}])
        annotate(server, "node-01", [{"until": "2100-01-01T00:00:00Z"}, {"until": "2020-01-01T00:00:00Z"}])
        await until(lambda: len(book.of_node) == 2)
        for beat in range(3):
            annotate(server, "node-00", [{"until": "2100-01-01T00:00:00Z", "link": "nic0", "netdev": "enp1"}, {}],
                     beat=str(beat))  # fmt: skip
        await until(lambda: controller.cluster.nodes.objects and controller.progress.plans > 0)
        series = {
            line.split(" ")[0] for line in page(controller) if "maintenance_end" in line and line[0] != "#"
        }
        name = "nodeagent_maintenance_end_timestamp_seconds"
        assert series == {
            f'{name}{{device="enp1",link="nic0",node="node-00",pci_address=""}}',
            f'{name}{{device="",link="",node="node-01",pci_address=""}}',
        }
        view = json.loads(await controller.pages._document())
        assert [(it["node"], it["link"]) for it in view["maintenance"]] == [
            ("node-00", "nic0"),
            ("node-01", ""),
        ]
        revision = controller.cluster.revision
        annotate(server, "node-01", None)
        await until(lambda: "node-01" not in book.of_node)
        assert controller.cluster.revision > revision, "the map is drawn again"
        server.remove("nodes", "node-00")
        await until(lambda: not book.of_node)
        assert sum("entry 2" in line for line in caplog.messages) == 1


def node_object(name: str, ready: str, *taints: str) -> dict[str, Any]:
    """A Node as the controller of nodes leaves it, with what nobody here reads."""
    condition = {
        "type": "Ready",
        "status": ready,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "m",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]},
        "status": {
            "conditions": [{"type": "DiskPressure", "status": "False"}, condition],
            "images": [{"names": ["x"], "sizeBytes": 1}],
        },
    }


async def test_a_dead_node_is_a_trouble_a_series_and_a_change_until_it_is_ready_and_nothing_is_written():
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(server.objects("hypernodes")) == 2)
        key = "topology.nodeagent.io/tier-1"
        await until(lambda: all(key in labels(server, node) for node in (*FIRST, *SECOND)))
        await until(lambda: controller.progress.outcome and not controller.progress.outcome.relabel)
        ours, theirs = labels(server, "node-00"), labels(server, "node-10")

        def writes() -> list[str]:
            read = ("list", "watch", "get")
            return [
                seen.resource
                for seen in server.requests
                if seen.verb not in read and seen.resource != "leases"
            ]

        before = writes()

        def put(name: str, ready: str, *taints: str) -> None:
            node = node_object(name, ready, *taints)
            node["metadata"]["labels"] = ours if name[5] == "0" else theirs
            server.put(node)

        for name in FIRST:
            put(name, "Unknown", "node.kubernetes.io/unreachable")
        put("node-10", "False")
        server.put(node_object("storage-1", "Unknown"))
        away = controller.planner.inputs.away
        await until(lambda: len(away) == 6)
        view = json.loads(await controller.pages._document())
        assert sorted((one["what"], len(one["nodes"])) for one in view["troubles"]) == [
            ("4 nodes went away at once", 4),
            ("not ready", 1),
        ]
        assert [*view["away"]] == sorted((*FIRST, "node-10"))
        series = [line for line in page(controller) if line.startswith("nodeagent_node_away")]
        assert len(series) == 5
        assert any(f'hypernode="{ours[key]}",node="node-00",why="unreachable"' in line for line in series)
        told = [
            (one.where, one.before, one.after) for one in controller.changes.changes if one.what == "node"
        ]
        assert ("node-10", "ready", "not ready") in told
        assert "storage-1" not in {where for where, _, _ in told}
        revision = controller.cluster.revision
        for name in (*FIRST, "node-10"):
            put(name, "True")
        await until(lambda: set(away) == {"storage-1"})
        assert controller.cluster.revision > revision
        server.remove("nodes", "storage-1")
        await until(lambda: not away)
        assert ("node-10", "not ready", "ready") in [
            (one.where, one.before, one.after) for one in controller.changes.changes
        ]
        assert writes() == before, "the tree and the labels do not depend on it"


async def test_planned_work_that_ends_draws_the_map_again():
    async with cluster() as server, running(server) as controller:
        await until(lambda: controller.progress.plans > 0)
        meta = {
            "name": "node-00",
            "annotations": {MAINTENANCE_LABEL: json.dumps([{"until": rfc3339(time.time() + 60)}])},
        }
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: "node-00" in controller.planner.inputs.maintenance.of_node)
        await asyncio.sleep(30)
        await controller.cluster.changed(controller.cluster.revision)
        assert 50 < loop.time() - began <= 60


def page(controller: Controller) -> list[str]:
    return controller.pages.metrics("").body.decode().splitlines()


async def test_the_page_shows_the_neighbor_that_the_operators_file_has():
    guid = "0000000000100001"
    known = LinkNeighbor(
        chassis_id=ReportedId(subtype="switch-guid", value="00000000000000a0"),
        port_id=ReportedId(subtype="port-number", value="7"),
        system_name="leaf-a0",
    )
    topology = Topology(neighbors=KnownNeighbors({guid: known}))
    async with cluster() as server, running(server, topology=topology) as controller:
        report = nodelinks("node-00", leaves(0))
        report["links"][0] |= {
            "neighbor": None,
            "mac": "00:00:10:49:fe:80:00:00:00:00:00:00:00:00:00:00:00:10:00:01",
        }
        server.put(report)
        reader, writer = await asyncio.open_connection("127.0.0.1", await controller.port)
        writer.write(b"GET /ui/node.json?name=node-00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        assert json.loads(body)["links"][0]["neighbor"]["systemName"] == "leaf-a0"


async def test_the_configuration_can_switch_the_map_off():
    rules = structs.replace(RULES, web=AccessSettings(ui=False))
    async with cluster() as server, running(server, rules) as controller:
        for path, status in (("/ui/", 404), ("/healthz", 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", await controller.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert int((await reader.read()).split()[1]) == status
            writer.close()


async def test_the_breaker_holds_a_plan_that_would_move_half_of_the_cluster():
    times = structs.replace(QUICK, hold_nodes=2, hold_seconds=30.0)
    rules = structs.replace(RULES, hysteresis=times)
    async with cluster() as server, running(server, rules) as controller:
        await until(lambda: controller.labels.writes["ok"] >= 8 and groups(server) == [FIRST, SECOND])
        for node in FIRST:
            server.put(nodelinks(node, leaves(1)))
        await until(lambda: controller.progress.held, "the breaker")
        assert groups(server) == [FIRST, SECOND]
        await until(lambda: server.objects("events"))
        assert server.objects("events")[0]["reason"] == "BreakerOpen"
