"""The objects that cross the wire between agent and controller: made by both at work, in one small cluster.

Eight nodes report as those of `nodeagent demo --write` do, with addresses on their rails; the agent of ``gpu-0`` marks
its Node and reports a failed link; the controller writes all of its outputs. What differs from run to run is left out.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import load_fabric
from nodeagent.features.other_programs import kept_objects
from nodeagent.kube.access import Access
from nodeagent_lab.demo.sample_reports import FILE, write_reports
from nodeagent_lab.sim.apiserver import ApiServer
from tests.daemonset.test_rbac import CONTROLLER, agent_at_work, running
from tests.support.manifests import DAEMONSET
from tests.support.nfd import nfd_definition

FABRIC = """\
apiVersion: nodeagent.io/v1alpha1
kind: FabricConfig
outputs: [hypernodes, labels, slurm, nodefeaturegroups]
minLinks: 8
nodes: {minLinksCondition: true, minLinksTaint: true, afterSeconds: 0, taintPercent: 100}
rails: {probe: true}
tiers: {assumeFullBisection: true}
troubleAnnotation: true
labels: {keys: ["topology.nodeagent.io/tier-{tier}", "example.com/{tierName}"], presets: [topograph]}
hysteresis: {moveSeconds: 0.1, settleSeconds: 0, graceSeconds: 0.1, debounceSeconds: 0}
"""
NODES = 8
LOST = "gpu-003"
"""Its links are down, so that it is marked."""
KINDS = ("nodelinks", "railpartners", "hypernodes", "nodes", "configmaps", "nodefeaturegroups")
RUN = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"}
"""Fields of metadata that each run has its own values of."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def reports(folder: Path) -> list[dict[str, Any]]:
    """The NodeLinks of the nodes."""
    write_reports("dgx-h100", folder, NODES)
    found: list[dict[str, Any]] = yaml.safe_load((folder / FILE).read_text())["items"]
    for number, one in enumerate(found, 1):
        one |= {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks"}
        for place, link in enumerate(one["links"]):
            link["addresses"] = [f"10.0.{place}.{number}/24"]
            if one["nodeName"] == LOST:
                link |= {"state": "down", "reasons": ["carrier_down"]}
    return found


def definitions() -> list[dict[str, Any]]:
    """The definitions of our own kinds."""
    files = ("base/cluster/nodelinks.yaml", "components/rails/objects/railpartners.yaml")
    return [yaml.safe_load((DAEMONSET / file).read_text()) for file in files]


async def written(nodelinks: list[dict[str, Any]], defined: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The objects in the cluster after both have worked, by plural. It has these definitions."""
    server, pause = await ApiServer().start(), kept_objects.KEPT_PAUSE_S
    kept_objects.KEPT_PAUSE_S = 0.01
    try:
        for one in (*defined, nfd_definition()):
            server.put(one)
        for namespace in ("slurm", "node-feature-discovery", "nodeagent"):
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for one in nodelinks:
            meta = {"name": one["nodeName"], "labels": {"zone": "a"}}
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": meta})
            server.put(one)
        await agent_at_work(server, marks=True)
        place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
        access = Access(server.url, token=server.token(CONTROLLER))
        async with running(Controller(load_fabric(FABRIC, name="fabric.yaml"), access, place).run()):
            await server.until(lambda: all(server.objects(kind) for kind in KINDS))
            await server.until(lambda: len(server.objects("railpartners")) == NODES)
            await server.until(lambda: (server.find("nodes", LOST) or {}).get("spec", {}).get("taints"))
            await server.until(
                lambda: any("nodeagent.io/trouble" in str(one) for one in server.objects("hypernodes"))
            )
        return {kind: [timeless(one) for one in server.objects(kind)] for kind in KINDS}
    finally:
        kept_objects.KEPT_PAUSE_S = pause
        await server.stop()


def timeless(one: Any) -> Any:
    """The object without what each run has of its own."""
    made = json.loads(TIME.sub("2026-01-01T00:00:00Z", json.dumps(one)))
    made["metadata"] = {key: value for key, value in made["metadata"].items() if key not in RUN}
    for owner in made["metadata"].get("ownerReferences", ()):
        owner.pop("uid")
    return made


async def made_now() -> dict[str, list[Any]]:
    with TemporaryDirectory() as folder:
        return await written(reports(Path(folder)), definitions())


def lines(objects: dict[str, list[Any]]) -> str:
    """The text of a file in ``tests/golden/wire``: a line for each object."""
    listed = (f"{json.dumps(one, sort_keys=True)}" for kind in sorted(objects) for one in objects[kind])
    return "[\n" + ",\n".join(listed) + "\n]\n"


if __name__ == "__main__":
    sys.stdout.write(lines({"definitions": definitions(), **asyncio.run(made_now())}))
