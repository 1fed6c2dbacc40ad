"""What agent and controller must be allowed to do at the API server, one line for each: exactly what the roles in
``daemonset/`` grant (a test compares the two), so that a role that was edited, or never applied, is found by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["agent", "controller"]
ROLES: tuple[Role, ...] = ("agent", "controller")
ACCOUNTS: dict[Role, str] = {"agent": "nodeagent", "controller": "nodeagent-controller"}
"""Service accounts of the manifests."""
LEASE = "nodeagent-controller"


@dataclass(frozen=True, slots=True)
class Demand:
    """``resource`` may name a part of one (``hypernodes/status``). ``own``: in the namespace of nodeagent alone.
    ``name``: of that one object. ``wanted`` says what for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    wanted: str
    own: bool = False
    name: str = ""

    def sentence(self, verb: str) -> str:
        resource, slash, part = self.resource.partition("/")
        whole = (f"{resource}.{self.group}" if self.group else resource) + slash + part
        return f"{verb} {whole}{f' {self.name}' if self.name else ''}"


DEMANDS: dict[Role, tuple[Demand, ...]] = {
    "agent": (
        Demand("nodeagent.io", "nodelinks", ("get", "create", "patch"), "to report its links", own=True),
        Demand("", "events", ("create", "patch"), "to say what happened"),
    ),
    "controller": (
        Demand(
            "nodeagent.io",
            "nodelinks",
            ("list", "watch"),
            "to read what the nodes report",
            own=True,
        ),
        Demand("coordination.k8s.io", "leases", ("create",), "to agree on a leader", own=True),
        Demand(
            "coordination.k8s.io", "leases", ("get", "patch"), "to agree on a leader", own=True, name=LEASE
        ),
        Demand("", "nodes", ("list", "watch", "patch"), "to label the nodes with their place in the tree"),
        Demand(
            "topology.volcano.sh",
            "hypernodes",
            ("list", "watch", "create", "patch", "delete"),
            "to write the tree that Volcano schedules by",
        ),
        Demand("topology.volcano.sh", "hypernodes/status", ("patch",), "to mark HyperNodes that overlap"),
        Demand("", "events", ("create",), "to say why it holds back"),
    ),
}
