"""The machine to check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.host.sysfs import Tree


@dataclass(frozen=True, slots=True)
class Target:
    """The machine to check, and the time limits.

    ``recorded``: a captured or simulated machine, of which only files are known. ``kubelet_dir``: ``None`` where the
    machine has no kubelet. ``wait_s``: seconds for which LLDP is received.
    """

    tree: Tree
    config: Config
    recorded: bool
    kubelet_dir: Path | None
    wait_s: float = 0.0
    timeout_s: float = 10.0
