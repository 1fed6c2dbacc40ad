"""hack/kwok_fleet.py: its Nodes and reports become the tree of its fabric, in a stand-in API server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hack.kwok_fleet import KWOK, fleet, main
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import groups, labels, running, tree, valid
from tests.support.kubernetes_schemas import NEWEST, complaints, from_crd
from tests.support.manifests import built, named
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
UNIT = 4


def objects(*arguments: str) -> list[dict[str, Any]]:
    """Return the objects that kubectl applies."""
    done = subprocess.run(
        [sys.executable, ROOT / "hack/kwok_fleet.py", *arguments],
        capture_output=True,
        check=True,
        timeout=120,
    )
    listed = json.loads(done.stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    return listed["items"]


@pytest.mark.needs("kubernetes_validate")
def test_the_server_accepts_the_nodes_and_the_reports() -> None:
    """KWOK, "Manage nodes": the annotation selects the Nodes, and the taint of the same name keeps real pods away."""
    import jsonschema

    made = objects("--nodes", "4")
    nodes = [one for one in made if one["kind"] == "Node"]
    assert len(nodes) == 4
    assert complaints(nodes[0], NEWEST) == []
    for one in nodes:
        assert one["metadata"]["annotations"] == {KWOK: "fake"}
        assert one["spec"]["taints"] == [{"key": KWOK, "value": "fake", "effect": "NoSchedule"}]
        assert one["status"]["allocatable"]["nvidia-dgx-h100/gpu-mem"] == "632"
        assert one["status"]["allocatable"]["nvidia-dgx-h100/nic7"] == "8"
    schema = from_crd(named(built(), "CustomResourceDefinition", "nodelinks.nodeagent.io"))
    reports = [one for one in made if one["kind"] == "NodeLinks"]
    assert [one["nodeName"] for one in reports] == [one["metadata"]["name"] for one in nodes]
    for one in reports:
        jsonschema.validate(one, schema)


@pytest.mark.parametrize(
    "arguments",
    [
        "--nodes 0", "--nodes -5", "--nodes 4 --wrong-cables 5", "--wrong-cables -1", "--machine bogus",
        "--dead-switches 9", "--dead-switches -1",
    ],
)  # fmt: skip
def test_arguments_without_a_fleet_are_refused_before_anything_is_written(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kwok_fleet.py", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert arguments.split()[-2] in written.err.splitlines()[-1]


async def test_the_controller_builds_the_tree_of_the_fleet_and_a_dead_switch_moves_no_node() -> None:
    server = await ApiServer().start()
    try:
        made = await asyncio.to_thread(lambda: [*fleet(2 * UNIT, "dgx-h100", 0, 0)])
        for one in made:
            server.put(one)
        names = [one["metadata"]["name"] for one in made if one["kind"] == "Node"]
        units = [names[start : start + UNIT] for start in range(0, 2 * UNIT, UNIT)]
        async with running(server) as controller:
            await until(lambda: groups(server) == units, "a group for each unit")
            valid(server)
            key = "topology.nodeagent.io/tier-1"
            await until(lambda: all(key in labels(server, name) for name in names), "labels")
            before, plans = tree(server), controller.progress.plans
            for one in await asyncio.to_thread(lambda: [*fleet(2 * UNIT, "dgx-h100", 2, 2)]):
                if one["kind"] == "NodeLinks":
                    server.put(one)

            def anomalies() -> set[str]:
                outcome = controller.progress.outcome
                return {str(anomaly.kind) for anomaly in outcome.anomalies} if outcome else set()

            await until(lambda: "foreign-leaf" in anomalies(), "the wrong cables")
            assert controller.progress.plans > plans
            assert tree(server) == before
    finally:
        await server.stop()
