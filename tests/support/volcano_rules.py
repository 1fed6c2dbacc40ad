"""What Volcano's scheduler demands of HyperNodes, written from its rules and from nothing of ours.

``Tree`` takes objects as they are on the wire. ``faults`` are sentences, each for something that makes the
scheduler stop all jobs with a topology, count a node twice, or refuse the object at the door.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

LABEL_MAX = 63
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
ETCD_MAX = 1_500_000


class Tree:
    """The HyperNodes of a cluster, whoever owns them."""

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
        found = self.objects[name]["spec"]["members"]
        return [one["selector"]["exactMatch"]["name"] for one in found if one["type"] == kind]

    def faults(self) -> list[str]:
        return [*self._door(), *self._nodes(), *self._parents(), *self._circles(), *self._tier_names()]

    def _door(self) -> list[str]:
        """Schema, webhook and policy."""
        said = []
        for name, one in self.objects.items():
            spec = one["spec"]
            if len(name) > LABEL_MAX or not SUBDOMAIN.fullmatch(name):
                said.append(f"{name}: no good name")
            if one["apiVersion"] != "topology.volcano.sh/v1alpha1" or one["kind"] != "HyperNode":
                said.append(f"{name}: of another kind")
            if not isinstance(spec.get("tier"), int) or spec["tier"] < 1:
                said.append(f"{name}: tier {spec.get('tier')}")
            if not spec.get("members"):
                said.append(f"{name}: no members")
            listed = []
            for member in spec.get("members", ()):
                if member["type"] not in ("Node", "HyperNode") or list(member["selector"]) != ["exactMatch"]:
                    said.append(f"{name}: the member {member}")
                    continue
                target = member["selector"]["exactMatch"]["name"]
                if not SUBDOMAIN.fullmatch(target) or len(target) > 253:
                    said.append(f"{name}: the member name {target!r}")
                listed.append((member["type"], target))
            if len(set(listed)) != len(listed):
                said.append(f"{name}: a member twice")
            if "status" in one:
                said.append(f"{name}: status is Volcano's")
            if len(str(one)) > ETCD_MAX:
                said.append(f"{name}: too large for etcd")
            values = one["metadata"].get("labels", {}).values()
            said += [f"{name}: the label value {value}" for value in values if len(value) > LABEL_MAX]
        return said

    def _nodes(self) -> list[str]:
        """A node in two HyperNodes is counted in both, and found in either."""
        homes = defaultdict(list)
        for name in self.objects:
            for node in self.members(name, "Node"):
                homes[node].append(name)
        return [f"the node {node} is in {where}" for node, where in homes.items() if len(where) > 1]

    def _parents(self) -> list[str]:
        """'already has a parent' stops every job with a topology; a parent must be of a higher tier."""
        said = []
        parents = defaultdict(list)
        for name, one in self.objects.items():
            for child in self.members(name, "HyperNode"):
                parents[child].append(name)
                below = self.objects.get(child)
                if below is not None and below["spec"]["tier"] >= one["spec"]["tier"]:
                    said.append(f"{child} is as high as its parent {name}")
        return said + [
            f"{child} has the parents {where}" for child, where in parents.items() if len(where) > 1
        ]

    def _circles(self) -> list[str]:
        said = []
        for start in self.objects:
            seen: set[str] = set()
            todo = self._children(start)
            while todo:
                child = todo.pop()
                if child == start:
                    said.append(f"{start} is below itself")
                    break
                if child not in seen:
                    seen.add(child)
                    todo += self._children(child)
        return said

    def _children(self, name: str) -> list[str]:
        return self.members(name, "HyperNode") if name in self.objects else []

    def _tier_names(self) -> list[str]:
        """The scheduler has one table of tier names; the last of two that differ wins."""
        tiers = defaultdict(set)
        for one in self.objects.values():
            tiers[one["spec"].get("tierName", "")].add(one["spec"]["tier"])
        return [
            f"the tier name {name} means {sorted(found)}" for name, found in tiers.items() if len(found) > 1
        ]

    def leaves(self) -> dict[str, frozenset[str]]:
        """The nodes of each HyperNode of tier 1."""
        return {
            name: frozenset(self.members(name, "Node"))
            for name, one in self.objects.items()
            if one["spec"]["tier"] == 1
        }
