"""What each verb of the command line takes and does. Answers go to stdout, logs to stderr.

Each verb imports what it needs when it runs, so that ``--help`` and ``config check`` never pay for gRPC.
One file for each, and ``common`` for what they share.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.commands import (
    capture,
    config,
    controller,
    demo,
    doctor,
    health,
    neighbors,
    plan,
    run,
    scan,
    vfs,
)
from nodeagent.commands.options import FAILED, GOOD, ROOT, USAGE, Add, Verb

__all__ = ["FAILED", "GOOD", "ROOT", "USAGE", "VERBS", "Add", "Verb"]

VERBS: tuple[Callable[[Add], None], ...] = (
    run.add,
    scan.add,
    neighbors.add_neighbors,
    neighbors.add_decode,
    config.add,
    vfs.add,
    health.add,
    doctor.add,
    plan.add_plan,
    plan.add_explain,
    plan.add_topology,
    capture.add,
    controller.add,
    demo.add,
)
"""In the order of the help."""
