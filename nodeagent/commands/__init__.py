"""The verbs of the command line. Each verb prints its result to stdout and its logs to stderr.

A module or package holds one verb: its options, composition and rendering. A verb imports its room when it runs, so
that ``--help`` and ``config check`` do not load gRPC. ``options`` holds the options that several verbs share.
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
    remembered,
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
    remembered.add,
    doctor.add,
    plan.add_plan,
    plan.add_explain,
    plan.add_topology,
    capture.add,
    controller.add,
    demo.add,
)
"""One function for each verb, in the order of the help. A test compares this list with the modules."""
