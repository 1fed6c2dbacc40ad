"""The outputs of the controller, in clusters with and without the definition of HyperNodes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec import structs

from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import FabricRules, compute
from nodeagent.fabric.fabric_settings import LabelSettings
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import (
    FIRST,
    RULES,
    SECOND,
    cluster,
    groups,
    labels,
    leaves,
    nodelinks,
    running,
    tree,
)
from tests.support.fabrics import links, rails
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

KEY = "topology.nodeagent.io/tier-1"


def labelled(server: ApiServer) -> dict[str, str | None]:
    return {node: labels(server, node).get(KEY) for node in FIRST + SECOND}


async def test_labels_do_not_wait_for_the_definition_of_hypernodes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with cluster() as server:
        server.fail("404", resource="hypernodes", times=None)
        async with running(server) as controller:
            await until(lambda: all(labelled(server).values()))
            written = labelled(server)
            assert len(set(written.values())) == 2
            assert not server.objects("hypernodes")
            assert {verb for verb, resource in server.counts if resource == "hypernodes"} == {"list"}
            lines = [
                record.getMessage() for record in caplog.records if "no definition" in record.getMessage()
            ]
            assert lines == [
                "The cluster has no definition of this resource; what needs it waits for it. "
                "resource=hypernodes.topology.volcano.sh"
            ]
            server.heal()
            await until(lambda: groups(server) == [FIRST, SECOND], "the tree, once the definition is there")
            assert set(tree(server)) == set(written.values())
            assert labelled(server) == written
            assert not controller.cluster.hypernodes.lacking


async def test_labels_alone_keep_their_values_when_the_first_switch_changes() -> None:
    """The names come from the labels: a new leader has no other memory."""
    only_labels = structs.replace(RULES, outputs=("labels",))
    async with cluster() as server:
        async with running(server, only_labels):
            await until(lambda: all(labelled(server).values()))
        before = labelled(server)
        for node in FIRST:
            server.put(nodelinks(node, ["a-new-switch", *leaves(0)]))
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-09", "labels": {}}})
        server.put(nodelinks("node-09", ["a-new-switch", *leaves(0)]))
        async with running(server, only_labels, "b"):
            await until(lambda: labels(server, "node-09").get(KEY))
            assert labels(server, "node-09")[KEY] == before[FIRST[0]]
            assert labelled(server) == before
        assert not server.objects("hypernodes")


async def test_hypernodes_alone_leave_the_nodes_as_they_are() -> None:
    async with cluster() as server, running(server, structs.replace(RULES, outputs=("hypernodes",))):
        await until(lambda: groups(server) == [FIRST, SECOND])
        assert not any(verb == "patch" and resource == "nodes" for verb, resource in server.counts)


def planned(rules: FabricRules, **more: Any) -> dict[str, dict[str, str]]:
    cables = rails(2, 4)
    outcome = compute([links(node, row) for node, row in cables.items()], rules=rules, **more)
    return {node: dict(named) for node, named in outcome.labels.items()}


def test_the_labels_of_topograph_count_from_zero() -> None:
    rules = FabricConfig(labels=LabelSettings(presets=("topograph",)))
    for found in planned(rules).values():
        assert found["fabric.topograph.run/tier-0"] == found[KEY]
        assert len(found) == 2


def test_a_label_that_no_hypernode_can_have_as_a_name_is_no_memory() -> None:
    nodes = {node: {KEY: "Not_A Name"} for node in rails(2, 4)}
    assert planned(FabricRules(), nodes=nodes) == planned(FabricRules())


def test_labels_of_a_tree_give_the_same_tree_again() -> None:
    nodes = {node: {KEY: f"own-{node[:5]}"} for node in rails(2, 4)}
    assert len({named[KEY] for named in nodes.values()}) == 2
    assert planned(FabricRules(), nodes=nodes) == nodes
