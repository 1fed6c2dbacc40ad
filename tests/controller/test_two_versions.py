"""Two versions meet during an update: agents and controllers of one read what those of the other have written.

``tests/golden/wire`` has the objects and definitions of earlier versions, as `tests/support/wire_objects.py` recorded
them there: the present version reads them without a loss, and leaves what is right. What the present version writes
passes the definitions of then, and a reader of then may ignore what it does not know, at every level.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster.cluster_settings import ClusterSettings, GpuMemLargestSettings, TaintSettings
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.largest_block import FreeBlock
from nodeagent.cluster.node_marks import OWN_MARKS
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import load_fabric
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks, VfHolder, Wire, convert_nodelinks
from nodeagent.fabric.rail_partners import rail_partners_object, rail_partners_of
from nodeagent.fabric.reports import STATE_LETTERS
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import HEALTHY
from nodeagent.features.other_programs import kept_objects
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.schema import apply_schema
from tests.cluster.test_node_report import RAILS, report_of, reporting, stored
from tests.cluster.test_reported_gpus import FELL, with_gpus
from tests.daemonset.test_rbac import CONTROLLER, facts, running, tell
from tests.support.label_prefixes import label_prefixes
from tests.support.nfd import nfd_definition
from tests.support.waiting import until
from tests.support.wire_objects import FABRIC, LOST, definitions, reports, timeless, written

WIRE = Path(__file__).parents[1] / "golden" / "wire"
VERSIONS = sorted(file.stem for file in WIRE.iterdir())
Json = dict[str, Any]
WRITES = {"create", "patch", "delete"}
NEW = "gpu-009"


def recorded(version: str, *kinds: str) -> list[Json]:
    found = json.loads((WIRE / f"{version}.json").read_text())
    return [deepcopy(one) for one in found if not kinds or one["kind"] in kinds]


def inside(part: Any, whole: Any, where: str = "") -> Iterator[str]:
    """The places of ``part`` that ``whole`` does not have."""
    if isinstance(part, dict) and isinstance(whole, dict):
        for key, value in part.items():
            if key in whole:
                yield from inside(value, whole[key], f"{where}.{key}")
            elif value not in ([], {}, None, False):
                yield f"{where}.{key}"
    elif isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        for number, pair in enumerate(zip(part, whole, strict=True)):
            yield from inside(*pair, f"{where}[{number}]")
    elif part != whole:
        yield f"{where}: {part!r} is {whole!r}"


def again(links: NodeLinks) -> Json:
    made: Json = json.loads(msgspec.json.encode(links))
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_a_report_of_an_earlier_agent_is_read_without_a_loss(version: str) -> None:
    found = recorded(version, "NodeLinks")
    assert len(found) > 8
    for one in found:
        for not_read in ("apiVersion", "kind", "summary"):  # the summary is for people
            one.pop(not_read)
        one["metadata"].pop("ownerReferences", None)
        assert [*inside(one, again(convert_nodelinks(one)))] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_of_partners_of_an_earlier_controller_is_read_without_a_loss(version: str) -> None:
    for one in recorded(version, "RailPartners"):
        made = json.loads(json.dumps(rail_partners_object(rail_partners_of(one))))
        assert [*inside(one["spec"], made["spec"])] == []


class EarlierReport(Wire, frozen=True, kw_only=True):
    """The fields that a controller reads which does not know `gpus`."""

    node_name: str
    links: tuple[NodeLink, ...] = ()
    holders: tuple[VfHolder, ...] = ()


def test_an_earlier_controller_reads_the_report_of_a_node_with_a_failed_gpu_as_ever() -> None:
    with_gpu = report_of(with_gpus(HEALTHY, FELL))
    assert with_gpu.gpus
    read = [
        msgspec.json.decode(msgspec.json.encode(one), type=EarlierReport)
        for one in (with_gpu, msgspec.structs.replace(with_gpu, gpus=()))
    ]
    assert read[0] == read[1]
    assert read[0].links == with_gpu.links


@pytest.mark.parametrize("version", VERSIONS)
async def test_under_an_earlier_definition_a_failed_gpu_costs_the_report_nothing_else(version: str) -> None:
    """Helm does not upgrade definitions. A server that names the field has its test in test_reported_gpus.py."""
    server = await ApiServer().start()
    try:
        for one in recorded(version, "CustomResourceDefinition"):
            server.put(one)
        async with reporting(server) as (inventory, reporter):
            failed = with_gpus(HEALTHY, FELL)
            inventory.publish("pci", functions=failed.functions, links=failed.links)
            inventory.publish("gpus", gpus=failed.gpus)
            found = await stored(server, lambda report: bool(report["links"]))
            assert "gpus" not in found
            await until(lambda: reporter.writes == 1)
    finally:
        await server.stop()


def fuller(value: Any) -> Any:
    """The same with a field of a later version in each object of it."""
    if isinstance(value, dict):
        return {key: fuller(one) for key, one in value.items()} | {"ofALaterVersion": {"a": [1]}}
    return [fuller(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_of_a_later_version_is_ignored_at_every_level(version: str) -> None:
    for one in recorded(version, "NodeLinks"):
        assert convert_nodelinks(fuller(one)) == convert_nodelinks(one)
    for one in recorded(version, "RailPartners"):
        assert rail_partners_of(fuller(one)) == rail_partners_of(one)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_of_a_later_version_is_no_fault_of_the_report(version: str) -> None:
    (one, *_) = recorded(version, "NodeLinks")
    one["links"][0]["state"] = "resting"
    assert "resting" not in STATE_LETTERS
    assert convert_nodelinks(one).links[0].state == "resting"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_mark_of_an_earlier_version_on_a_node_is_a_mark_of_this_one(version: str) -> None:
    config = load_fabric(FABRIC, name="fabric.yaml")
    keys = {mark.key for mark in OWN_MARKS}
    found = set()
    for node in recorded(version, "Node"):
        found |= {one["type"] for one in node.get("status", {}).get("conditions") or ()}
        found |= {one["key"] for one in node.get("spec", {}).get("taints") or ()}
        found |= {*(node["metadata"].get("labels") or ())} | {*(node["metadata"].get("annotations") or ())}
    others = {key for key in found if not key.startswith(label_prefixes(config))} - {"zone"}
    assert len(others) > 5
    assert others <= keys


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_agent_takes_back_the_marks_that_an_earlier_one_has_set(version: str) -> None:
    (before,) = (one for one in recorded(version, "Node") if one["metadata"]["name"] == "gpu-0")
    assert "nodeagent.io/device-failed" in str(before["spec"]["taints"])
    server = await ApiServer().start()
    server.put(before)
    inventory = Inventory()
    tell(inventory, facts(HEALTHY))
    client = ApiClient(Access(server.url, token=server.token("admin")))
    settings = ClusterSettings(
        conditions=True,
        label=True,
        taint=TaintSettings(enabled=True, rails_down=1),
        gpu_mem_largest=GpuMemLargestSettings(enabled=True),
    )
    marker = DeviceMarker(
        client, inventory, "gpu-0", settings, jitter_s=0, rate=RateLimit(100, 100),
        rails=lambda: RAILS, block=lambda _: FreeBlock(79, 79), level=lambda _: "env",
    )  # fmt: skip

    def taints() -> set[str]:
        """Those of the controller stay."""
        node = server.find("nodes", "gpu-0") or {"spec": {}}
        return {one["key"] for one in node["spec"].get("taints") or ()}

    try:
        async with asyncio.timeout(40), running(marker.run()):
            await server.until(lambda: taints() == {"nodeagent.io/links-below-minimum"})
    finally:
        await client.close()
        await server.stop()


@pytest.mark.slow
async def test_the_present_objects_are_written_under_the_definitions_of_each_version(tmp_path: Path) -> None:
    for version in VERSIONS:
        defined = recorded(version, "CustomResourceDefinition")
        assert {one["metadata"]["name"] for one in defined} == {
            one["metadata"]["name"] for one in definitions()
        }
        made = await written(reports(tmp_path), defined)
        by_kind = {one["spec"]["names"]["plural"]: one for one in defined}
        for plural, definition in by_kind.items():
            (schema,) = (
                one["schema"]["openAPIV3Schema"]
                for one in definition["spec"]["versions"]
                if one["name"] == "v1alpha1"
            )
            assert made[plural]
            for one in made[plural]:
                assert apply_schema(schema, deepcopy(one), strict=True) == []


async def settled(server: ApiServer) -> None:
    """A node joins, and has its label, its list and its place in the file of Slurm: the rest was looked at before."""
    (report,) = (one for one in server.objects("nodelinks") if one["nodeName"] == "gpu-008")
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NEW}})
    server.put({**report, "metadata": {"name": NEW, "namespace": "nodeagent"}, "nodeName": NEW})
    await server.until(lambda: "example.com/leaf" in str(server.find("nodes", NEW)))
    await server.until(lambda: server.find("railpartners", NEW))
    await server.until(lambda: NEW in str(server.objects("nodefeaturegroups")))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_controller_changes_nothing_of_what_an_earlier_one_wrote_for_the_same_reports(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_objects, "KEPT_PAUSE_S", 0.01)
    objects = recorded(version)
    server = await ApiServer().start()
    try:
        server.put(nfd_definition())
        for namespace in ("slurm", "node-feature-discovery", "nodeagent"):
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for one in sorted(objects, key=lambda one: one["kind"] != "CustomResourceDefinition"):
            server.put(one)
        place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
        access = Access(server.url, token=server.token(CONTROLLER))
        async with running(Controller(load_fabric(FABRIC, name="fabric.yaml"), access, place).run()):
            await settled(server)
        written = {
            (seen.verb, seen.resource, seen.name)
            for seen in server.requests
            if seen.verb in WRITES and seen.resource not in ("leases", "events")
        }
        names = {seen for seen in written if seen[0] in ("create", "delete")}
        assert {(verb, resource) for verb, resource, _ in names} <= {("create", "railpartners")}
        assert LOST not in {name for _, _, name in written}
        for one in objects:
            if one["kind"] == "Node":
                now = server.find("nodes", one["metadata"]["name"])
                assert now is not None
                assert timeless(now) == one
    finally:
        await server.stop()
