"""The installation: the agents, their nodes and configuration, the resources that the nodes offer, the controller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.cluster_suite.cluster_api import BrokenError, ClusterApi, Object

LABELS = "app.kubernetes.io/name=nodeagent,app.kubernetes.io/component={}"
FAULTS = "simulate.nodeagent.io/faults"
"""The annotation of overlays/kind for faults of the simulated machine."""
DEFAULT_RESOURCES = [{"kind": "vf", "name": "nic{rail}"}, {"kind": "gpu-mem", "name": "gpu-mem"}]


def quantity(text: Any) -> int:
    """The whole number of a quantity of devices, which the API server may write as ``8k``."""
    found = re.fullmatch(r"(\d+)(k|M|G|)", str(text))
    return int(found[1]) * 1000 ** ("", "k", "M", "G").index(found[2]) if found else 0


@dataclass(frozen=True)
class Agent:
    """The pod of an agent, its Node as it was at the start, and its configuration."""

    pod: Object
    node: Object
    settings: Object

    @property
    def node_name(self) -> str:
        return str(self.pod["spec"]["nodeName"])

    @property
    def is_ready(self) -> bool:
        return is_true(self.pod, "Ready")

    @property
    def image(self) -> str:
        return next(one["image"] for one in self.pod["spec"]["containers"] if one["name"] == "nodeagent")

    @property
    def simulated(self) -> bool:
        """Whether the laboratory's container takes faults from an annotation of the pod."""
        return any(one["name"] == "faults" for one in self.pod["spec"]["containers"])

    @property
    def entries(self) -> list[Object]:
        found = self.settings.get("resources")
        return DEFAULT_RESOURCES if found is None else found

    def offered(self, node: Object, kind: str | None = None, field: str = "allocatable") -> dict[str, int]:
        """The resources of a device plugin with more than 0 devices in ``field``, by name, of ``kind`` or all."""
        return {
            name: amount
            for entry in self.entries
            if entry.get("mode") != "dra" and kind in (None, entry["kind"])
            for name, amount in self.names(entry, node, field)
            if amount
        }

    def names(self, entry: Object, node: Object, field: str) -> Iterator[tuple[str, int]]:
        prefix = self.settings.get("resourcePrefix", "auto")
        default = {"vf": "nic{rail}", "gpu-mem": "gpu-mem", "gpu": "gpu"}.get(entry["kind"], "mig-{profile}")
        words = re.split(r"(\{\w+\})", entry.get("name", default))
        shapes = {"{rail}": r"\d+"}
        shape = "".join(
            shapes.get(word, r"[\w.-]+") if word.startswith("{") else re.escape(word) for word in words
        )
        pattern = re.compile((r"[\w.-]+" if prefix == "auto" else re.escape(prefix)) + "/" + shape)
        for name, amount in sorted(node["status"].get(field, {}).items()):
            if pattern.fullmatch(name):
                yield name, quantity(amount)

    def uses_dra(self) -> bool:
        return any(entry.get("mode") == "dra" for entry in self.entries)


def is_true(thing: Object, condition: str) -> bool:
    conditions = thing.get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


class Installation:
    """Read again at each question, because the checks change the cluster."""

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    @classmethod
    def find(cls, api: ClusterApi, namespace: str | None) -> Installation:
        sets = api.items("/apis/apps/v1/daemonsets", labelSelector=LABELS.format("agent"))
        spaces = sorted({one["metadata"]["namespace"] for one in sets})
        if namespace is not None:
            spaces = [one for one in spaces if one == namespace]
        if not spaces:
            where = f"in the namespace {namespace}" if namespace else "in any namespace"
            raise BrokenError(f"no DaemonSet of nodeagent {where}. Install it first: docs/install.md")
        if len(spaces) > 1:
            raise BrokenError(
                f"agents in several namespaces ({', '.join(spaces)}): choose one by --namespace"
            )
        return cls(api, spaces[0])

    def daemon_sets(self) -> list[Object]:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets"
        return self.api.items(path, labelSelector=LABELS.format("agent"))

    def pods(self, component: str) -> list[Object]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = self.api.items(path, labelSelector=LABELS.format(component))
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def agents(self) -> list[Agent]:
        maps: dict[str, Object] = {}
        found = []
        for pod in self.pods("agent"):
            if not pod["spec"].get("nodeName"):
                continue
            volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
            name = volumes["config"]["configMap"]["name"]
            if name not in maps:
                data = self.api.get(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")["data"]
                maps[name] = yaml.safe_load(data["nodeagent.yaml"]) or {}
            found.append(Agent(pod, self.node(pod["spec"]["nodeName"]), maps[name]))
        return sorted(found, key=lambda agent: agent.node_name)

    def node(self, name: str) -> Object:
        return self.api.get(f"/api/v1/nodes/{name}")

    def reports(self) -> dict[str, Object]:
        path = f"/apis/nodeagent.io/v1alpha1/namespaces/{self.namespace}/nodelinks"
        return {one["metadata"]["name"]: one for one in self.api.items(path)}

    def free(self, agent: Agent) -> dict[str, int]:
        """The devices of the agent's node that no pod has requested."""
        left = agent.offered(self.node(agent.node_name))
        pods = self.api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={agent.node_name}")
        for pod in pods:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            for container in pod["spec"]["containers"]:
                for name, amount in container.get("resources", {}).get("limits", {}).items():
                    if name in left:
                        left[name] -= quantity(amount)
        return {name: amount for name, amount in left.items() if amount > 0}
