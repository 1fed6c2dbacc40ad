"""Everything that a check gets: the cluster, the installation, a namespace of its own, and the options of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.cluster_suite.cluster_api import ClusterApi, SkippedError
from tests.cluster_suite.installation import Agent, Installation, is_true
from tests.cluster_suite.workspace import Workspace


@dataclass
class Suite:
    api: ClusterApi
    installation: Installation
    workspace: Workspace
    node: str | None = None
    """The only node on which checks start pods and simulate faults."""
    overlay: str | None = None
    """The kustomization that the installation was made of, for its removal."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Called at the end, whatever happened: the last entry first."""

    def candidates(self) -> list[Agent]:
        """Agents of nodes that take new pods."""
        found = [
            agent
            for agent in self.installation.agents()
            if agent.is_ready
            and is_true(agent.node, "Ready")
            and not agent.node["spec"].get("unschedulable")
            and self.node in (None, agent.node_name)
        ]
        if not found:
            raise SkippedError(f"no Ready agent on {self.node or 'a node that takes new pods'}")
        return found

    def clean(self) -> None:
        try:
            while self.undo:
                self.undo.pop()()
        finally:
            self.workspace.remove()
