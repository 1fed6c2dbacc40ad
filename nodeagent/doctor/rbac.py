"""The rights that agent and controller need at the API server: exactly those that the roles in ``daemonset/`` grant.

A test compares the two. An edited or missing role is found by the name of the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["agent", "controller"]
ROLES: tuple[Role, ...] = ("agent", "controller")
ACCOUNTS: dict[Role, str] = {"agent": "nodeagent", "controller": "nodeagent-controller"}
"""Service accounts of the manifests."""
_LEASE = "nodeagent-controller"


@dataclass(frozen=True, slots=True)
class NeededRight:
    """``resource`` may have a subresource (``hypernodes/status``). ``own_namespace``: only in nodeagent's namespace.
    ``name``: only this object. ``purpose`` completes "may not ..., "."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    own_namespace: bool = False
    name: str = ""

    def sentence(self, verb: str) -> str:
        resource, slash, part = self.resource.partition("/")
        whole = (f"{resource}.{self.group}" if self.group else resource) + slash + part
        return f"{verb} {whole}{f' {self.name}' if self.name else ''}"


NEEDED_RIGHTS: dict[Role, tuple[NeededRight, ...]] = {
    "agent": (
        NeededRight(
            "nodeagent.io", "nodelinks", ("get", "create", "patch"), "to report its links", own_namespace=True
        ),
        NeededRight("", "events", ("create", "patch"), "to write Events for faults"),
    ),
    "controller": (
        NeededRight(
            "nodeagent.io",
            "nodelinks",
            ("list", "watch"),
            "to read the reports of the nodes",
            own_namespace=True,
        ),
        NeededRight("", "pods", ("list", "watch"), "to see whether agents run", own_namespace=True),
        NeededRight("coordination.k8s.io", "leases", ("create",), "to elect a leader", own_namespace=True),
        NeededRight(
            "coordination.k8s.io",
            "leases",
            ("get", "patch"),
            "to elect a leader",
            own_namespace=True,
            name=_LEASE,
        ),
        NeededRight(
            "", "nodes", ("list", "watch", "patch"), "to label the nodes with their position in the tree"
        ),
        NeededRight(
            "topology.volcano.sh",
            "hypernodes",
            ("list", "watch", "create", "patch", "delete"),
            "to write the tree that Volcano uses",
        ),
        NeededRight(
            "topology.volcano.sh", "hypernodes/status", ("patch",), "to mark HyperNodes that overlap"
        ),
        NeededRight("", "events", ("create",), "to write Events about held moves"),
    ),
}

_CLAIM_STATUS = "to write the status of a claim's devices (cluster.claimStatus)"
DRA_RIGHTS = (
    NeededRight(
        "resource.k8s.io",
        "resourceslices",
        ("list", "watch", "create", "patch", "delete"),
        "to publish GPUs and PFs",
    ),
    NeededRight("resource.k8s.io", "resourceclaims", ("get",), "to hand out the devices of a claim"),
    NeededRight("resource.k8s.io", "resourceclaims/status", ("patch",), _CLAIM_STATUS),
    NeededRight(
        "resource.k8s.io",
        "resourceclaims/driver",
        ("associated-node:patch",),
        _CLAIM_STATUS,
        name="nodeagent.io",
    ),
)
"""Rights of an agent beside its ``NEEDED_RIGHTS`` where a resource has mode dra."""
