"""The verbs of the command line. Each verb prints its result to stdout and its logs to stderr.

A module or folder holds one verb, ``plan`` those of a whole fabric: options, composition and rendering. A verb
imports its room when it runs, so that ``--help`` and ``config check`` do not load gRPC. The daemons start without the
modules of the other verbs. What several verbs share is in ``console``. Another package adds verbs by entry points, as
the laboratory does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from nodeagent.console.options import FAILED, GOOD, ROOT, USAGE, Add, VerbFunction

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "FAILED",
    "GOOD",
    "ROOT",
    "SEPARATE",
    "USAGE",
    "VERBS",
    "VERB_GROUPS",
    "Add",
    "VerbFunction",
    "declaration",
    "declarations",
    "how_to_install",
    "joined_verbs",
]

VERBS: dict[str, str] = {
    "trouble": "plan.add_trouble",
    "health": "health.add",
    "gpus": "gpus.add",
    "history": "history.add",
    "job": "plan.add_job",
    "doctor": "doctor.add",
    "plan": "plan.add_plan",
    "explain": "plan.add_explain",
    "diff": "plan.add_diff",
    "topology": "plan.add_topology",
    "cabling": "plan.add_cabling",
    "maintain": "plan.add_maintain",
    "cordon": "cordon.add_cordon",
    "uncordon": "cordon.add_uncordon",
    "claim": "claim.add",
    "tell": "tell.add",
    "rails": "rails.add",
    "scan": "scan.add",
    "config": "config.add",
    "vfs": "vfs.add",
    "neighbors": "neighbors.add",
    "run": "run.add",
    "controller": "controller.add",
    "mps": "mps.add",
    "attach": "attaching.add",
    "remembered": "remembered.add",
    "capture": "capture.add",
    "completion": "completion.add",
    "man": "completion.add_man",
}
"""The module and the function that declare each verb, in the order of the help. A test compares the names with the
parser, and the functions with the modules."""

VERB_GROUPS = {
    "on call": ("trouble", "health", "gpus", "history", "job", "doctor"),
    "operate": (
        "plan",
        "explain",
        "diff",
        "topology",
        "cabling",
        "maintain",
        "cordon",
        "uncordon",
        "claim",
        "tell",
        "rails",
    ),
    "install": ("scan", "config", "vfs"),
}
"""The verbs by who needs them, in the help; the others follow."""

ENTRY_POINTS = "nodeagent.verbs"
"""The group in which another package names its verbs, each with its function ``add``."""

SEPARATE = ("demo", "decode")
"""The verbs of the laboratory, a package of its own in ``hack/lab``, which may be missing."""


def declarations(only: str | None = None) -> Iterator[Callable[[Add], None]]:
    """Import the function that declares the verb ``only``; those of all verbs if there is none of this name.

    A verb of the product looks for no other package, because reading the metadata of all packages takes longer than
    the start of a verb."""
    others = {} if only in VERBS else joined_verbs()
    if only in VERBS:
        yield declaration(only)
    elif only in others:
        yield others[only].load()
    else:
        yield from map(declaration, VERBS)
        yield from (other.load() for other in others.values())


def joined_verbs() -> dict[str, EntryPoint]:
    """The verbs of other packages that are installed."""
    from importlib.metadata import entry_points

    return {one.name: one for one in entry_points(group=ENTRY_POINTS) if one.name not in VERBS}


def how_to_install(verb: str) -> str:
    """The sentence for a verb of ``SEPARATE`` that is not installed."""
    return (
        f"`nodeagent {verb}` is in a package of its own, nodeagent-lab: pip install . ./hack/lab, in a copy of the "
        "repository"
    )


def declaration(verb: str) -> Callable[[Add], None]:
    """Import the module of a verb, and return the function that declares it."""
    module, _, function = VERBS[verb].partition(".")
    declare: Callable[[Add], None] = getattr(import_module(f"{__name__}.{module}"), function)
    return declare
