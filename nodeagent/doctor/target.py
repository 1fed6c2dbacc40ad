"""The machine that is looked at, and how: what every look is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.host.sysfs import Tree


@dataclass(frozen=True, slots=True)
class Subject:
    """``recorded``: a captured or simulated machine, of which nothing is known but its files. ``kubelet_dir`` is
    ``None`` where no kubelet belongs to the machine. ``wait_s`` is how long LLDP is listened to.
    """

    tree: Tree
    config: Config
    recorded: bool
    kubelet_dir: Path | None
    wait_s: float = 0.0
    timeout_s: float = 10.0
