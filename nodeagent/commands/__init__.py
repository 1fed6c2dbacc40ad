"""The verbs of the command line. Each verb prints its result to stdout and its logs to stderr.

A module or package holds one verb, ``plan`` those of a fabric: options, composition and rendering. A verb imports its
room when it runs, so that ``--help`` and ``config check`` do not load gRPC. The agent starts without the modules of the
other verbs. ``options`` holds the options that several verbs share.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from nodeagent.commands.options import FAILED, GOOD, ROOT, USAGE, Add, Verb

__all__ = ["FAILED", "GOOD", "ROOT", "USAGE", "VERBS", "Add", "Verb", "declaration"]

VERBS: dict[str, str] = {
    "run": "run.add",
    "scan": "scan.add",
    "neighbors": "neighbors.add",
    "decode": "decode.add",
    "config": "config.add",
    "vfs": "vfs.add",
    "mps": "mps.add",
    "health": "health.add",
    "gpus": "gpus.add",
    "remembered": "remembered.add",
    "claim": "claim.add",
    "doctor": "doctor.add",
    "plan": "plan.add_plan",
    "explain": "plan.add_explain",
    "topology": "plan.add_topology",
    "cabling": "hall_cabling.add",
    "capture": "capture.add",
    "controller": "controller.add",
    "demo": "demo.add",
    "completion": "completion.add",
    "man": "man.add",
}
"""The module and the function that declare each verb, in the order of the help. A test compares the names with the
parser, and the functions with the modules."""


def declaration(verb: str) -> Callable[[Add], None]:
    """Import the module of a verb, and return the function that declares it."""
    module, _, function = VERBS[verb].partition(".")
    declare: Callable[[Add], None] = getattr(import_module(f"{__name__}.{module}"), function)
    return declare
