"""The rules of Volcano's scheduler for HyperNodes, written from its source and independent of our code.

``VolcanoTree`` takes objects as on the wire. ``faults`` are sentences: each describes a fault that makes the scheduler
stop all jobs with a topology, count a node twice, or refuse the object.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

LABEL_MAX = 63
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
ETCD_MAX = 1_500_000


class VolcanoTree:
    """The HyperNodes of a cluster, of all owners."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    def apply(self, verb: str, hypernode: dict[str, Any]) -> None:
        name = hypernode["metadata"]["name"]
        if verb == "create":
            assert name not in self.objects, f"409: {name} exists"
            self.objects[name] = hypernode
        elif verb == "update":
            assert name in self.objects, f"404: {name}"
            self.objects[name] = hypernode
        else:
            assert verb == "delete", verb
            assert name in self.objects, f"404: {name}"
            del self.objects[name]

    def members(self, name: str, kind: str) -> list[str]:
        members = self.objects[name]["spec"]["members"]
        return [member["selector"]["exactMatch"]["name"] for member in members if member["type"] == kind]

    def faults(self) -> list[str]:
        return [*self._schema(), *self._nodes(), *self._parents(), *self._cycles(), *self._tier_names()]

    def _schema(self) -> list[str]:
        """The schema, the webhook and the policy."""
        faults = []
        for name, hypernode in self.objects.items():
            spec = hypernode["spec"]
            if len(name) > LABEL_MAX or not SUBDOMAIN.fullmatch(name):
                faults.append(f"{name}: no good name")
            if hypernode["apiVersion"] != "topology.volcano.sh/v1alpha1" or hypernode["kind"] != "HyperNode":
                faults.append(f"{name}: of another kind")
            if not isinstance(spec.get("tier"), int) or spec["tier"] < 1:
                faults.append(f"{name}: tier {spec.get('tier')}")
            if not spec.get("members"):
                faults.append(f"{name}: no members")
            listed = []
            for member in spec.get("members", ()):
                if member["type"] not in ("Node", "HyperNode") or list(member["selector"]) != ["exactMatch"]:
                    faults.append(f"{name}: the member {member}")
                    continue
                target = member["selector"]["exactMatch"]["name"]
                if not SUBDOMAIN.fullmatch(target) or len(target) > 253:
                    faults.append(f"{name}: the member name {target!r}")
                listed.append((member["type"], target))
            if len(set(listed)) != len(listed):
                faults.append(f"{name}: a member twice")
            if "status" in hypernode:
                faults.append(f"{name}: status is Volcano's")
            if len(str(hypernode)) > ETCD_MAX:
                faults.append(f"{name}: too large for etcd")
            values = hypernode["metadata"].get("labels", {}).values()
            faults += [f"{name}: the label value {value}" for value in values if len(value) > LABEL_MAX]
        return faults

    def _nodes(self) -> list[str]:
        """A node in two HyperNodes counts in both, and the scheduler finds it in either."""
        homes = defaultdict(list)
        for name in self.objects:
            for node in self.members(name, "Node"):
                homes[node].append(name)
        return [f"the node {node} is in {where}" for node, where in homes.items() if len(where) > 1]

    def _parents(self) -> list[str]:
        """'already has a parent' stops every job with a topology. A parent must have a higher tier."""
        faults = []
        parents = defaultdict(list)
        for name, hypernode in self.objects.items():
            for child in self.members(name, "HyperNode"):
                parents[child].append(name)
                below = self.objects.get(child)
                if below is not None and below["spec"]["tier"] >= hypernode["spec"]["tier"]:
                    faults.append(f"{child} is as high as its parent {name}")
        return faults + [
            f"{child} has the parents {where}" for child, where in parents.items() if len(where) > 1
        ]

    def _cycles(self) -> list[str]:
        faults = []
        for start in self.objects:
            seen: set[str] = set()
            todo = self._children(start)
            while todo:
                child = todo.pop()
                if child == start:
                    faults.append(f"{start} is below itself")
                    break
                if child not in seen:
                    seen.add(child)
                    todo += self._children(child)
        return faults

    def _children(self, name: str) -> list[str]:
        return self.members(name, "HyperNode") if name in self.objects else []

    def _tier_names(self) -> list[str]:
        """The scheduler has one table of tier names; of two different tiers for a name the last one wins."""
        tiers = defaultdict(set)
        for hypernode in self.objects.values():
            tiers[hypernode["spec"].get("tierName", "")].add(hypernode["spec"]["tier"])
        return [
            f"the tier name {name} means {sorted(numbers)}"
            for name, numbers in tiers.items()
            if len(numbers) > 1
        ]

    def leaves(self) -> dict[str, frozenset[str]]:
        """The nodes of each HyperNode of tier 1."""
        return {
            name: frozenset(self.members(name, "Node"))
            for name, hypernode in self.objects.items()
            if hypernode["spec"]["tier"] == 1
        }
