"""The report of a node: its content, when it changes, and the effect of missing frames."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.cluster.node_report import HOLDERS_MAX, REPORT, NodeReporter, body, rails_of, report
from nodeagent.cluster.refused_fields import leave_out, refused_fields
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL
from nodeagent.fabric.nodelinks import (
    Contender,
    GpuMemoryLevel,
    NodeLinks,
    ReportedId,
    convert_nodelinks,
    decode_nodelinks,
)
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import (
    Function,
    Gpu,
    Health,
    Holding,
    Identifier,
    Link,
    Neighbor,
    Rdma,
    Reason,
    Snapshot,
    StaleSource,
    State,
)
from nodeagent.kube.access import Access, NodeClaim, node_of
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError, RefusedField
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, PortId
from nodeagent.lldp.lldpdu_codec import encode_lldpdu
from nodeagent.lldp.neighbor_table import NeighborTable
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.kubernetes_schemas import from_crd
from tests.support.manifests import built, of_kind
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
RAILS = {f"0000:{0x18 + n:02x}:00.0": n for n in range(8)}


def function(n: int, **fields: object) -> Function:
    made = Function(
        f"0000:{0x18 + n:02x}:00.0", "15b3", "1021", "mlx5_core", f"enp{24 + n}s0np0", "ethernet", None, None, None,
        0, ("pci0000:15",),
    )  # fmt: skip
    return replace(made, **fields)


def link(n: int) -> Link:
    return Link(
        f"enp{24 + n}s0np0",
        f"0000:{0x18 + n:02x}:00.0",
        f"02:00:00:00:00:0{n}",
        True,
        True,
        "up",
        400000,
        9000,
    )


def neighbor(n: int, port: str = "Ethernet1/1", leaf: str = "", **fields: object) -> Neighbor:
    made = Neighbor(
        f"enp{24 + n}s0np0",
        Identifier("mac", f"02:00:00:00:01:0{n}"),
        Identifier("ifname", port),
        system_name=leaf or f"su1-leaf0{n + 1}",
        port_description=port,
        management_addresses=(f"10.0.0.{n}",),
        confirmed=True,
    )
    return replace(made, **fields)


def snapshot(*neighbors: Neighbor, count: int = 8) -> Snapshot:
    return Snapshot(
        functions=tuple(map(function, range(count))),
        links=tuple(map(link, range(count))),
        neighbors=neighbors,
    )


def report_of(
    facts: Snapshot, before: NodeLinks | None = None, later_s: float = 0.0, **options: bool
) -> NodeLinks:
    return report(facts, "gpu-0", RAILS, before, now=NOON + later_s, namespace="nodeagent", **options)


def test_eight_links_are_one_small_object_that_reads_back():
    made = report_of(snapshot(*map(neighbor, range(8))))
    raw = msgspec.json.encode(made)
    assert decode_nodelinks(raw) == made
    assert len(raw) < 3300
    first = msgspec.to_builtins(made.links[0])
    assert first == {
        "name": "nic0", "netdev": "enp24s0np0", "pciAddress": "0000:18:00.0", "mac": "02:00:00:00:00:00",
        "fabric": "compute", "rail": 0, "speedMbps": 400000, "state": "healthy",
        "neighbor": {
            "chassisID": {"subtype": "mac", "value": "02:00:00:00:01:00"},
            "portID": {"subtype": "ifname", "value": "Ethernet1/1"},
            "systemName": "su1-leaf01",
            "managementAddresses": ("10.0.0.0",),
        },
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }  # fmt: skip


CLUSTER = "9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa"
ONE, TWO = f"{CLUSTER}.0", f"{CLUSTER}.4026"


def domains_of(*domains: str | None, before: NodeLinks | None = None, lost: int = -1) -> NodeLinks:
    gpus = tuple(
        Gpu(
            f"GPU-{n}",
            n,
            n,
            "NVIDIA GB200",
            f"0000:{n:02x}:00.0",
            189471,
            0,
            nvlink_domain=domain,
            lost=n == lost,
        )
        for n, domain in enumerate(domains)
    )
    return report_of(replace(snapshot(neighbor(0), count=1), gpus=gpus), before)


def written(made: NodeLinks) -> Any:
    return msgspec.to_builtins(made).get("nvlinkDomains")


def test_the_nvlink_domain_of_the_gpus_is_part_of_the_report():
    assert written(domains_of(ONE, ONE)) == ({"clusterUUID": CLUSTER, "cliqueID": 0, "gpus": (0, 1)},)
    assert written(domains_of("", "")) is None
    assert written(domains_of()) is None


def test_gpus_that_disagree_are_reported_each_with_its_domain():
    assert written(domains_of(TWO, ONE, "", ONE)) == (
        {"clusterUUID": CLUSTER, "cliqueID": 4026, "gpus": (0,)},
        {"clusterUUID": CLUSTER, "cliqueID": 0, "gpus": (1, 3)},
        {"gpus": (2,)},
    )


def test_the_last_reported_domain_stands_while_one_is_not_known():
    before = domains_of(ONE, ONE)
    for unknown in ((None, ONE), (None, ""), (None, None), ()):
        assert domains_of(*unknown, before=before).nvlink_domains == before.nvlink_domains
    assert domains_of(TWO, TWO, before=before).nvlink_domains == domains_of(TWO, TWO).nvlink_domains
    assert written(domains_of("", "", before=before)) is None


def test_a_lost_gpu_does_not_keep_the_others_from_their_new_domain():
    before = domains_of(ONE, ONE)
    assert written(domains_of(None, TWO, before=before, lost=0)) == (
        {"clusterUUID": CLUSTER, "cliqueID": 4026, "gpus": (1,)},
    )


def test_time_alone_changes_nothing():
    facts = snapshot(*map(neighbor, range(8)))
    first = report_of(facts)
    assert report_of(facts, first, 86400) == first


def test_a_failed_link_is_reported_with_time_and_reason_and_keeps_its_neighbor():
    first = report_of(snapshot(neighbor(0), count=1))
    down = Health(State.DOWN, (Reason("carrier_down", "…"),), allocatable=False)
    facts = replace(
        snapshot(neighbor(0, stale=True), count=1),
        functions=(function(0, health=down),),
    )
    second = report_of(facts, first, 60)
    (one,) = second.links
    assert (one.state, one.reasons, one.last_transition_time) == (
        "down", ("carrier_down",), "2026-11-21T12:01:00Z",
    )  # fmt: skip
    assert one.neighbor is not None
    assert one.neighbor.stale
    assert one.neighbor.system_name == "su1-leaf01"
    assert report_of(facts, second, 7200) == second


def test_the_first_neighbor_is_reported_at_once_and_another_one_when_it_is_confirmed():
    first = report_of(snapshot(neighbor(0, confirmed=False), count=1))
    assert first.links[0].neighbor is not None
    other = neighbor(0, leaf="su2-leaf01", chassis_id=Identifier("mac", "02:00:00:00:02:00"), confirmed=False)
    held = report_of(snapshot(other, count=1), first)
    assert held.links[0].neighbor == msgspec.structs.replace(first.links[0].neighbor, stale=True)
    moved = report_of(snapshot(replace(other, confirmed=True), count=1), held)
    assert moved.links[0].neighbor is not None
    assert moved.links[0].neighbor.system_name == "su2-leaf01"


def test_a_link_with_a_contender_is_reported_as_contested_with_both():
    one = neighbor(0)
    two = neighbor(
        0,
        "p9",
        "aaa",
        chassis_id=Identifier("local", "0"),
        management_addresses=("192.0.2.9",),
        contender=True,
    )
    first = report_of(snapshot(one, count=1))
    assert not first.links[0].neighbor.contested
    assert report_of(snapshot(one, replace(two, contender=False), count=1), first) == first
    assert report_of(snapshot(one, replace(two, stale=True), count=1), first) == first
    both = report_of(snapshot(one, two, count=1), first).links[0].neighbor
    contender = Contender(
        chassis_id=ReportedId(subtype="local", value="0"),
        port_id=ReportedId(subtype="ifname", value="p9"),
        system_name="aaa",
        management_addresses=("192.0.2.9",),
    )
    assert both == msgspec.structs.replace(first.links[0].neighbor, contested=True, contenders=(contender,))


def test_a_report_has_at_most_four_contenders_and_each_once():
    copies = [replace(neighbor(0), source=f"02:00:00:00:00:0{n}", contender=n > 0) for n in range(3)]
    reported = report_of(snapshot(*copies, count=1)).links[0].neighbor
    assert (reported.contested, len(reported.contenders)) == (True, 1)
    many = [neighbor(0, f"p{n}", "evil", confirmed=True, contender=True) for n in range(31)]
    reported = report_of(snapshot(neighbor(0), *many, count=1)).links[0].neighbor
    assert [one.port_id.value for one in reported.contenders] == ["p0", "p1", "p2", "p3"]


def test_another_name_of_the_same_port_is_reported_when_it_is_confirmed():
    first = report_of(snapshot(neighbor(0), count=1))
    renamed = replace(neighbor(0), system_name="other", confirmed=False)
    held = report_of(snapshot(renamed, count=1), first)
    assert held.links[0].neighbor == msgspec.structs.replace(first.links[0].neighbor, stale=True)
    confirmed = report_of(snapshot(replace(renamed, confirmed=True), count=1), held)
    assert confirmed.links[0].neighbor.system_name == "other"


PORTS = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.tuples(st.just("frame"), PORTS, st.sampled_from([0, 20, 120, 65535]))
    | st.tuples(st.just("carrier lost"))
    | st.tuples(st.just("wait"), st.sampled_from([1.0, 30.0, 200.0, 700.0])),
    max_size=60,
)


@given(STEPS)
def test_the_report_names_the_neighbor_that_the_table_shows_first(steps):
    """The table decides, so `nodeagent neighbors` and NodeLinks never disagree."""
    table, before, now = NeighborTable(), None, 0.0
    netdev = neighbor(0).link
    for step in steps:
        match step:
            case ("frame", port, ttl):
                pdu = Lldpdu(ChassisId(7, port.encode()), PortId(5, b"p"), ttl)
                table.receive(netdev, build_frame(NEAREST_BRIDGE, b"\2" * 6, encode_lldpdu(pdu)), now)
            case ("carrier lost",):
                table.mark_stale(netdev)
            case ("wait", seconds):
                now += seconds
        table.expire(now)
        facts = table.neighbors()
        before = report_of(snapshot(*facts, count=1), before, now)
        reported = before.links[0].neighbor
        if facts:
            assert (reported.chassis_id.value, reported.stale) == (facts[0].chassis_id.value, facts[0].stale)
        else:
            assert reported is None


def test_after_a_start_a_neighbor_without_frames_stays_and_becomes_stale_after_the_patience():
    first = report_of(snapshot(*map(neighbor, range(8))))
    assert report_of(snapshot(), first, 5, patient=True) == first
    late = report_of(snapshot(), first, 130)
    assert all(one.neighbor is not None and one.neighbor.stale for one in late.links)


def test_a_nic_of_a_rail_that_is_gone_after_a_restart_is_missing_and_keeps_its_place():
    first = report_of(snapshot(*map(neighbor, range(8))))
    facts = snapshot(*map(neighbor, range(7)), count=7)
    assert report_of(facts, first, patient=True) == first
    gone = Health(State.DOWN, (Reason("device_missing", "…"),), allocatable=False)
    remembered = (*facts.functions, function(7, missing=True, health=gone))
    facts = replace(facts, functions=remembered)
    second = report_of(facts, first, 200)
    assert [one.name for one in second.links] == [f"nic{n}" for n in range(8)]
    assert (second.links[7].state, second.links[7].reasons) == ("missing", ("device_missing",))
    assert second.links[7].neighbor is not None
    assert second.links[7].neighbor.stale
    assert body(second, None)["summary"] == {"links": "7/8", "switches": 7, "health": "missing"}
    assert report_of(facts, second, 400) == second


def test_pfs_with_one_rail_are_links_of_their_own():
    """Two selections number their NICs each from the start, such as the planes of each NIC."""
    planes = {address: rail // 2 for address, rail in RAILS.items()}
    facts = snapshot(*map(neighbor, range(8)))
    made = report(facts, "gpu-0", planes, None, now=NOON)
    assert [(one.name, one.rail) for one in made.links[:4]] == [
        ("nic0", 0), ("nic0.1", 0), ("nic1", 1), ("nic1.1", 1),
    ]  # fmt: skip
    assert {one.pci_address for one in made.links} == {*RAILS}
    assert report(facts, "gpu-0", planes, made, now=NOON + 300) == made


def test_an_infiniband_link_names_its_rdma_device():
    """`ibnetdiscover` names adapters so. The netdev of IPoIB has any name, and its address may be unknown."""
    facts = snapshot(count=2)
    guid = "0c42:a103:0016:054c"
    infiniband = replace(function(1), link_type="infiniband", rdma=Rdma("mlx5_7", node_guid=guid))
    ethernet = replace(function(0), rdma=Rdma("mlx5_0", node_guid="b83f:d203:0000:0001"))
    made = report_of(replace(facts, functions=(ethernet, infiniband)))
    assert [one.rdma_device for one in made.links] == [None, "mlx5_7"]
    assert [one.node_guid for one in made.links] == [None, guid]
    assert body(made, None)["links"][1]["rdmaDevice"] == "mlx5_7"
    assert body(made, None)["links"][1]["nodeGuid"] == guid
    assert [rail.identity for rail in rails_of(made)] == [link(0).mac, guid]
    # While the driver is loaded again, and in the report of an agent that gave no GUID
    without = replace(facts, functions=(ethernet, replace(infiniband, rdma=None)))
    assert report(without, "gpu-0", RAILS, made, now=NOON + 300).links[1].node_guid == guid
    ipoib = "00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:16:05:4c"
    older = replace(made, links=(made.links[0], replace(made.links[1], node_guid=None, mac=ipoib)))
    assert [rail.identity for rail in rails_of(older)] == [link(0).mac, None]


def test_a_missing_nic_without_a_rail_leaves_the_report():
    first = report_of(snapshot(*map(neighbor, range(8))))
    facts = snapshot(*map(neighbor, range(7)), count=7)
    forgotten = report_of(facts, first, 200)
    assert len(forgotten.links) == 7
    without_rail = replace(facts, functions=(*facts.functions, function(9, missing=True)))
    assert report_of(without_rail, first, 200) == forgotten


def test_the_node_is_read_from_the_claims_of_the_token():
    def token(payload: bytes) -> str:
        return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.x"

    good = b'{"iss":"k","kubernetes.io":{"namespace":"n","node":{"name":"gpu-0","uid":"u-1"}}}'
    assert node_of(f"Bearer {token(good)}") == NodeClaim("gpu-0", "u-1")
    for bad in (b"", b"[]", b"{}", b'{"kubernetes.io":{"node":7}}', b"\xff"):
        assert node_of(token(bad)) is None
    for text in (None, "", "Bearer", "a.b", "a.b.c.d", "e30.%%%.x", "e30.\u00e9.x"):
        assert node_of(text) is None


def test_the_summary_counts_for_kubectl_and_the_owner_is_the_node():
    facts = snapshot(neighbor(0), neighbor(1, stale=True), count=3)
    made = body(report_of(facts), NodeClaim("gpu-0", "u-1"))
    assert made["summary"] == {"links": "3/3", "switches": 1, "health": "healthy"}
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "gpu-0", "uid": "u-1"}
    ]


@asynccontextmanager
async def reporting(
    server: ApiServer,
    *,
    with_holders: bool = False,
    planned: Callable[[Mapping[str, tuple[float, float, str]]], object] = lambda _work: None,
) -> AsyncIterator[tuple[Inventory, NodeReporter]]:
    inventory = Inventory()
    client = ApiClient(Access(server.url, token=server.token()))
    sink = NodeReporter(
        client,
        inventory,
        "gpu-0",
        "nodeagent",
        lambda: RAILS,
        with_holders=with_holders,
        planned=planned,
        jitter_s=0,
        gather_s=0.05,
        gap_s=0.2,
        patience_s=0,
    )
    task = asyncio.create_task(sink.run())
    try:
        yield inventory, sink
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def stored(server: ApiServer, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        report = server.find("nodelinks", "gpu-0", "nodeagent")
        return report if report is not None and good(report) else None

    report = await until(found)
    assert report is not None
    return report


def state(inventory: Inventory, facts: Snapshot) -> None:
    inventory.publish("pci", functions=facts.functions, links=facts.links)
    inventory.publish("lldp", neighbors=facts.neighbors)


async def test_the_object_follows_the_facts_with_few_writes():
    server = await ApiServer().start()
    try:
        async with reporting(server) as (inventory, sink):
            state(inventory, snapshot(*map(neighbor, range(8))))
            first = await stored(server, lambda found: "neighbor" in found["links"][7])
            assert first["nodeName"] == "gpu-0"
            for count in range(200):
                state(inventory, snapshot(*map(neighbor, range(8 - count % 2))))
                await asyncio.sleep(0)
            state(inventory, snapshot(*(neighbor(n, f"Ethernet9/{n}") for n in range(8))))
            await stored(
                server, lambda found: found["links"][0]["neighbor"]["portID"]["value"] == "Ethernet9/0"
            )
            assert sink.writes <= 4
    finally:
        await server.stop()


async def test_planned_work_on_the_report_reaches_the_health_of_its_links(
    caplog: pytest.LogCaptureFixture,
):
    """The agent may not read Nodes: `nodeagent maintain` copies the annotation to the report."""
    server, taken = await ApiServer().start(), list[dict[str, Any]]()
    first, second = (it.pci_address for it in snapshot(neighbor(0), neighbor(1), count=2).functions)

    def annotate(*entries: dict[str, str]) -> None:
        report = server.find("nodelinks", "gpu-0", "nodeagent")
        assert report is not None
        server.put(
            {
                **report,
                "metadata": report["metadata"] | {"annotations": {MAINTENANCE_LABEL: json.dumps(entries)}},
            }
        )

    try:
        async with reporting(server, planned=lambda work: taken.append(dict(work))) as (inventory, _):
            state(inventory, snapshot(neighbor(0), neighbor(1), count=2))
            name = (await stored(server, lambda found: True))["links"][0]["name"]
            await until(lambda: taken == [{}])
            annotate(
                {
                    "link": name,
                    "since": "2026-01-01T00:00:00Z",
                    "until": "2100-01-01T00:00:00Z",
                    "reason": "optics",
                },
                {"link": name, "until": "2020-01-01T00:00:00Z"},
                {"until": "soon"},
            )
            for port in ("p1", "p2"):
                state(inventory, snapshot(neighbor(0, port), neighbor(1), count=2))
                await stored(
                    server, lambda it, port=port: it["links"][0]["neighbor"]["portID"]["value"] == port
                )
                await until(lambda: bool(taken[-1]))
            ((begin, end, why),) = taken[-1].values()
            assert taken[-1].keys() == {first}
            assert (begin < 0 < end, round(end - begin)) == (True, 4102444800 - 1767225600)
            assert why == "maintenance until 2100-01-01T00:00:00Z: optics"
            annotate({"until": "2100-01-01T00:00:00Z"})
            state(inventory, snapshot(neighbor(0, "p3"), neighbor(1), count=2))
            await until(lambda: len(taken[-1]) == 2)
            assert taken[-1].keys() == {first, second}
            kept = server.find("nodelinks", "gpu-0", "nodeagent")
            assert kept is not None
            assert MAINTENANCE_LABEL in kept["metadata"]["annotations"], (
                "the report keeps what a person wrote"
            )
        assert sum("entry 3" in line for line in caplog.messages) == 1
    finally:
        await server.stop()


async def test_an_outage_is_logged_once_and_then_the_present_state_is_written(
    caplog: pytest.LogCaptureFixture,
):
    server = await ApiServer().start()
    try:
        async with reporting(server) as (inventory, _):
            state(inventory, snapshot(neighbor(0), count=1))
            await stored(server, lambda found: True)
            port = server.port
            await server.stop()
            state(inventory, snapshot(neighbor(0, "p1"), count=1))
            await asyncio.sleep(0.5)
            state(inventory, snapshot(neighbor(0, "p2"), count=1))
            await server.start(port)
            await stored(server, lambda found: found["links"][0]["neighbor"]["portID"]["value"] == "p2")
        assert sum("does not reach" in line for line in caplog.messages) <= 2
    finally:
        await server.stop()


async def test_a_restarted_agent_writes_only_changes():
    server = await ApiServer().start()
    try:
        facts = snapshot(*map(neighbor, range(8)))
        async with reporting(server) as (inventory, sink):
            state(inventory, facts)
            await stored(server, lambda found: "neighbor" in found["links"][7])
        async with reporting(server) as (inventory, sink):
            state(inventory, facts)
            await asyncio.sleep(0.3)
            assert sink.writes == 0
    finally:
        await server.stop()


# --- against the shipped definition ---------------------------------------------------------------------


def crd() -> dict[str, Any]:
    (one,) = of_kind(built(), "CustomResourceDefinition")
    return one


def hostile(n: int) -> Neighbor:
    """The longest text of a frame, of unprintable characters."""
    return Neighbor(
        f"enp{24 + n}s0np0",
        Identifier("mac", ":".join(["ff"] * 255)),
        Identifier("unknown(9)", "\\xff" * 255),
        system_name="\\xff" * 255,
        port_description="\\u200b" * 85,
        management_addresses=tuple(f"10.{n}.{i // 256}.{i % 256}" for i in range(700)),
        confirmed=True,
    )


async def test_the_shipped_definition_accepts_and_keeps_everything_that_the_agent_writes():
    """A refused report would be refused each time, and a switch's text would leave the node without a place."""
    server = await ApiServer().start()
    try:
        server.put(crd())
        client = ApiClient(Access(server.url, token=server.token()))
        for facts in (snapshot(), snapshot(*map(neighbor, range(8))), snapshot(*map(hostile, range(8)))):
            levels = (GpuMemoryLevel(resource="nvidia-dgx-h100/gpu-mem", enforcement="nvml-limits"),)
            written = body(replace(report_of(facts), gpu_memory=levels), NodeClaim("gpu-0", "u-0"))
            await client.apply(REPORT, written, force=True)
            found = server.find("nodelinks", "gpu-0", "nodeagent")
            assert found is not None
            for part in ("nodeName", "summary", "gpuMemory", "links"):
                assert found[part] == json.loads(json.dumps(written[part]))
        await client.close()
    finally:
        await server.stop()


async def test_the_api_server_stores_a_report_and_little_beside_it():
    """100,000 of them are in etcd and in the first list of the controller, with their managedFields."""
    server = await ApiServer().start()
    try:
        server.put(crd())
        client = ApiClient(Access(server.url, token=server.token()))
        written = body(report_of(snapshot(*map(neighbor, range(8)))), NodeClaim("gpu-0", "u-0"))
        await client.apply(REPORT, written, force=True)
        found = server.find("nodelinks", "gpu-0", "nodeagent")
        assert found is not None
        assert found["metadata"]["managedFields"][0]["manager"]
        assert len(json.dumps(found["metadata"], separators=(",", ":"))) < 900
        assert len(json.dumps(found, separators=(",", ":"))) < 4300
        await client.close()
    finally:
        await server.stop()


def test_the_order_of_addresses_changes_nothing():
    one, other = (
        neighbor(0, management_addresses=found)
        for found in (("10.0.0.2", "10.0.0.1"), ("10.0.0.1", "10.0.0.2"))
    )
    first = report_of(snapshot(one, count=1))
    assert report_of(snapshot(other, count=1), first).links == first.links


def test_the_report_has_the_enforcement_of_each_resource_and_an_older_definition_costs_only_that():
    levels = (
        GpuMemoryLevel(resource="x/gpu-mem", enforcement="mps"),
        GpuMemoryLevel(resource="x/gpu-mem-hard", enforcement="nvml-limits"),
    )
    links = report(Snapshot(), "n1", {}, None, now=0.0, levels=levels)
    written = msgspec.json.decode(msgspec.json.encode(body(links, None)))
    assert written["gpuMemory"] == [
        {"resource": "x/gpu-mem", "enforcement": "mps"},
        {"resource": "x/gpu-mem-hard", "enforcement": "nvml-limits"},
    ]
    assert convert_nodelinks(written).gpu_memory == links.gpu_memory
    why = "failed to create typed patch object: .gpuMemory: field not declared in schema"
    refused = ApiError("patch", "/nodelinks/n1", 500, "", why)
    assert leave_out(written, refused_fields(refused)) == ["gpuMemory"]
    assert "gpuMemory" not in written
    assert "gpuMemory" not in body(report(Snapshot(), "n1", {}, None, now=0.0), None)


def test_whether_a_limit_is_in_force_is_reported_with_the_time_of_its_change():
    def reported(in_force: bool | None, before: NodeLinks | None, now: float) -> NodeLinks:
        levels = (GpuMemoryLevel(resource="x/gpu-mem", enforcement="env", in_force=in_force),)
        return report(Snapshot(), "n1", {}, before, now=now, levels=levels)

    first = reported(True, None, 0.0)
    later = reported(True, first, 60.0)
    assert later == first, "a report without a change is not written"
    lost = reported(False, later, 120.0)
    (level,) = lost.gpu_memory
    assert (level.in_force, level.since) == (False, "1970-01-01T00:02:00Z")
    assert reported(None, lost, 180.0).gpu_memory[0].since is None


def test_an_older_definition_costs_of_the_enforcement_only_what_it_lacks():
    levels = tuple(
        GpuMemoryLevel(resource=f"x/gpu-mem{n}", enforcement="env", in_force=True) for n in range(2)
    )
    written = msgspec.json.decode(
        msgspec.json.encode(body(report(Snapshot(), "n1", {}, None, now=0.0, levels=levels), None))
    )
    for name in ("inForce", "since"):
        field = f'.gpuMemory[resource="x/gpu-mem0"].{name}'
        why = f"failed to create typed patch object: {field}: field not declared in schema"
        refused = ApiError("patch", "/nodelinks/n1", 500, "", why)
        assert leave_out(written, refused_fields(refused)) == [f"gpuMemory[{n}].{name}" for n in range(2)]
    assert written["gpuMemory"] == [{"resource": f"x/gpu-mem{n}", "enforcement": "env"} for n in range(2)]


# Pods that hold VFs


def vf(n: int, index: int) -> Function:
    address = f"0000:{0x18 + n:02x}:00.{index + 1}"
    return replace(function(n), pci_address=address, parent=f"0000:{0x18 + n:02x}:00.0", netdev=None)


def held(*holdings: Holding) -> Snapshot:
    """Two links with two VFs each."""
    functions = tuple(entry for n in range(2) for entry in (function(n), vf(n, 0), vf(n, 1)))
    return replace(snapshot(count=2), functions=functions, holdings=holdings)


def holding(pod: str, *ids: str, container: str = "main") -> Holding:
    return Holding("team", pod, container, "example.com/nic", ids)


TRAINER = holding("trainer", "0000:18:00.1", "0000:19:00.2")


def test_the_pods_with_vfs_are_reported_on_request_alone():
    facts = held(TRAINER, holding("trainer", "GPU-0::1"), holding("other", "GPU-0::2"))
    assert "holders" not in msgspec.to_builtins(report_of(facts))
    made = report_of(facts, with_holders=True)
    assert msgspec.to_builtins(made)["holders"] == (
        {
            "namespace": "team",
            "pod": "trainer",
            "vfs": (
                {"link": "nic0", "pciAddress": "0000:18:00.1"},
                {"link": "nic1", "pciAddress": "0000:19:00.2"},
            ),
            "since": "2026-11-21T12:00:00Z",
        },
    )
    assert decode_nodelinks(msgspec.json.encode(made)) == made


def test_a_holder_keeps_its_time_over_restarts_and_while_podresources_does_not_answer():
    first = report_of(held(TRAINER), with_holders=True)
    second = holding("second", "0000:18:00.2")
    later = report_of(held(second, TRAINER), first, 60.0, with_holders=True)
    assert [(holder.pod, holder.since[11:16]) for holder in later.holders] == [
        ("second", "12:01"),
        ("trainer", "12:00"),
    ]
    unanswered = report_of(replace(held(), holdings=None), later, 120.0, with_holders=True)
    assert unanswered.holders == later.holders
    assert report_of(held(), later, 120.0, with_holders=True).holders == ()
    assert report_of(held(TRAINER), later, 120.0).holders == (), "the setting was switched off"


def test_the_next_pod_of_a_name_has_a_time_of_its_own():
    """Without a look at podresources in between, its VFs tell them apart."""
    first = report_of(held(TRAINER), with_holders=True)
    more = report_of(
        held(TRAINER, holding("trainer", "0000:18:00.2", container="side")), first, 30.0, with_holders=True
    )
    fewer = report_of(held(holding("trainer", "0000:19:00.2")), more, 45.0, with_holders=True)
    again = report_of(
        held(holding("trainer", "0000:18:00.2", "0000:19:00.1")), fewer, 60.0, with_holders=True
    )
    times = [holder.since[11:] for made in (first, more, fewer, again) for holder in made.holders]
    assert times == ["12:00:00Z", "12:00:00Z", "12:00:00Z", "12:01:00Z"]


def test_a_node_full_of_pods_has_a_bounded_report_that_the_definition_accepts():
    holdings = [Holding("n" * 63, f"{n:0253}", "c", "r", ("0000:18:00.1",)) for n in range(500)]
    made = report_of(held(*holdings), with_holders=True)
    assert len(made.holders) == HOLDERS_MAX
    schema = from_crd(of_kind(built(), "CustomResourceDefinition")[0])
    written = json.loads(msgspec.json.encode(body(made, None)))
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(written))


async def test_pods_that_come_and_go_write_no_more_often_than_other_changes():
    server = await ApiServer().start()
    async with reporting(server, with_holders=True) as (inventory, sink):
        facts = held()
        state(inventory, facts)
        inventory.publish("holdings", holdings=())
        await stored(server, lambda found: len(found["links"]) == 2)
        began, writes = asyncio.get_running_loop().time(), sink.writes
        for n in range(30):
            inventory.publish("holdings", holdings=(holding(f"pod-{n}", "0000:18:00.1"),))
            await asyncio.sleep(0.01)
        found = await stored(
            server, lambda found: [holder["pod"] for holder in found.get("holders", ())] == ["pod-29"]
        )
        passed = asyncio.get_running_loop().time() - began
        assert found["holders"][0]["vfs"] == [{"link": "nic0", "pciAddress": "0000:18:00.1"}]
        assert 1 <= sink.writes - writes <= 2 + passed / 0.2, "gap_s between two writes"
    await server.stop()


def test_a_reason_has_its_sentence_with_the_value_beside_the_threshold():
    reasons = (Reason("flapping", "nic1: 5 losses in 60 s\nand more; limit 3"), Reason("ber", "x" * 5000))
    ill = Health(State.DEGRADED, reasons, allocatable=True)
    facts = snapshot(*map(neighbor, range(8)))
    functions = (facts.functions[0], replace(facts.functions[1], health=ill), *facts.functions[2:])
    link = report_of(replace(facts, functions=functions)).links[1]
    assert link.reasons == ("ber", "flapping")
    assert link.reason_details[1] == "nic1: 5 losses in 60 s\\nand more; limit 3"
    assert len(link.reason_details[0]) == 256


def test_a_definition_without_the_new_fields_costs_only_those():
    made = report_of(held(TRAINER), with_holders=True)
    written = json.loads(msgspec.json.encode(body(made, None)))
    written["links"][1]["reasonDetails"] = ["a"]
    for field in (".holders", ".links[0].reasonDetails"):
        why = f"failed to create typed patch object: {field}: field not declared in schema"
        refused = ApiError("patch", "/nodelinks/gpu-0", 500, "", why)
        assert leave_out(written, refused_fields(refused)) in (["holders"], ["nic1.reasonDetails"])
    assert "holders" not in written
    assert not any("reasonDetails" in link for link in written["links"])


def test_a_claim_that_no_pod_uses_is_no_holder():
    claim = Holding("team", "", "", "example.com/nic", ("0000:18:00.2",), "nics")
    made = report_of(held(claim, TRAINER), with_holders=True)
    assert [holder.pod for holder in made.holders] == ["trainer"]


def test_a_refused_holder_costs_the_holders_alone():
    written = json.loads(msgspec.json.encode(body(report_of(held(TRAINER), with_holders=True), None)))
    causes = (RefusedField("holders[0].pod", "Invalid value"), RefusedField("links[1].mac", "Invalid value"))
    refused = ApiError("patch", "/nodelinks/gpu-0", 422, "Invalid", "", causes=causes)
    assert sorted(leave_out(written, refused_fields(refused))) == ["holders", "nic1.mac"]
    assert len(written["links"]) == 2
    assert "holders" not in written


def test_the_enforcement_stands_while_the_gpus_are_not_known_and_goes_with_an_answer():
    levels = (GpuMemoryLevel(resource="x/gpu-mem", enforcement="env"),)
    before = report(Snapshot(), "n1", {}, None, now=0.0, levels=levels)
    silent = Snapshot(stale_sources=(StaleSource("gpus", "it did not answer within 10 s"),))
    assert report(silent, "n1", {}, before, now=1.0).gpu_memory == levels
    assert report(silent, "n1", {}, None, now=1.0).gpu_memory == ()
    assert report(Snapshot(), "n1", {}, before, now=1.0).gpu_memory == ()
