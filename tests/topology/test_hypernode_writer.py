"""The writer of the tree and the API server: each verb, and what the log says about failures."""

from __future__ import annotations

import logging

import pytest

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.outcome import TreeWrite
from nodeagent.kube.client import ApiClient
from nodeagent.topology.hypernodes import HyperNodeWriter
from nodeagent.topology.write_log import WriteLog
from nodeagent_lab.sim.apiserver import ApiServer


def leaf(*nodes: str, version: str | None = None) -> HyperNode:
    return HyperNode(name="leaf-0", tier=1, nodes=nodes, resource_version=version)


def members(server: ApiServer) -> list[list[str]]:
    return [
        [member["selector"]["exactMatch"]["name"] for member in one["spec"]["members"]]
        for one in server.objects("hypernodes")
    ]


async def test_an_object_is_created_changed_and_deleted_in_the_version_that_was_planned_on(
    server: ApiServer, client: ApiClient
) -> None:
    writer = HyperNodeWriter(client, WriteLog())
    made = await writer.write([TreeWrite("create", leaf("n1"))])
    assert members(server) == [["n1"]]
    old = made.versions["leaf-0"]
    changed = await writer.write([TreeWrite("update", leaf("n1", "n2", version=old))])
    assert members(server) == [["n1", "n2"]]
    refused = await writer.write([TreeWrite("delete", leaf(version=old))])
    assert (len(refused.failed), members(server)) == (1, [["n1", "n2"]])
    gone = await writer.write([TreeWrite("delete", leaf(version=changed.versions["leaf-0"]))])
    assert (gone.failed, gone.versions, members(server)) == ([], {"leaf-0": None}, [])
    again = await writer.write([TreeWrite("delete", leaf())])
    assert (again.failed, again.versions) == ([], {"leaf-0": None}), "another one has deleted it"


async def test_a_failure_is_logged_once_until_the_object_can_be_written_again(
    server: ApiServer, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer = HyperNodeWriter(client, WriteLog())
    for _ in range(2):
        server.fail("403", verb="create", resource="hypernodes", times=3)
        for _ in range(3):
            assert (await writer.write([TreeWrite("create", leaf("n1"))])).failed
        await writer.write([TreeWrite("create", leaf("n1"))])
        await writer.write([TreeWrite("delete", leaf())])
    assert caplog.text.count("A HyperNode cannot be written; the next plan tries again.") == 2
    assert caplog.text.count("A HyperNode can be written again.") == 2
