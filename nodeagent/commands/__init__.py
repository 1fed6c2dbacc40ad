"""The verbs of the command line. Each verb prints its result to stdout and its logs to stderr.

A module or package holds one verb: options, composition and rendering. A verb imports its
room when it runs, so that ``--help`` and ``config check`` do not load gRPC. The agent starts without the modules of the
other verbs. ``options`` holds the options that several verbs share. Other packages add verbs by entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from nodeagent.console.options import FAILED, GOOD, ROOT, USAGE, Add, Verb

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "FAILED",
    "GOOD",
    "ROOT",
    "SEPARATE",
    "USAGE",
    "VERBS",
    "Add",
    "Verb",
    "declaration",
    "declarations",
    "how_to_install",
    "joined",
]

VERBS: dict[str, str] = {
    "run": "run.add",
    "scan": "scan.add",
    "neighbors": "neighbors.add",
    "config": "config.add",
    "mps": "mps.add",
    "health": "health.add",
    "gpus": "gpus.add",
    "history": "history.add",
    "remembered": "remembered.add",
    "cordon": "cordon.add_cordon",
    "uncordon": "cordon.add_uncordon",
    "controller": "controller.add",
    "completion": "completion.add",
    "man": "completion.add_man",
}
"""The module and the function that declare each verb, in the order of the help. A test compares the names with the
parser, and the functions with the modules."""

ENTRY_POINTS = "nodeagent.verbs"
"""The group in which another package names its verbs, each with its function ``add``."""

_TOOLS = (
    *("trouble", "job", "plan", "explain", "topology", "cabling", "maintain"),
    *("doctor", "rails", "vfs", "capture", "claim"),
)
SEPARATE = {**dict.fromkeys(_TOOLS, "tools"), **dict.fromkeys(("demo", "decode"), "lab")}
"""The verbs of packages that may be missing, each with the folder of its package in ``hack``."""


def declarations(only: str | None = None) -> Iterator[Callable[[Add], None]]:
    """Import the function that declares the verb ``only``; those of all verbs if there is none of this name.

    A verb of the product looks for no other package, because reading the metadata of all packages takes longer than
    the start of a verb."""
    others = {} if only in VERBS else joined()
    if only in VERBS:
        yield declaration(only)
    elif only in others:
        yield others[only].load()
    else:
        yield from map(declaration, VERBS)
        yield from (other.load() for other in others.values())


def joined() -> dict[str, EntryPoint]:
    """The verbs of other packages that are installed."""
    from importlib.metadata import entry_points

    return {one.name: one for one in entry_points(group=ENTRY_POINTS) if one.name not in VERBS}


def how_to_install(verb: str) -> str:
    """The sentence for a verb of ``SEPARATE`` that is not installed."""
    folder = SEPARATE[verb]
    folders = " ".join(f"./hack/{one}" for one in dict.fromkeys(("tools", folder)))
    return (
        f"`nodeagent {verb}` is in a package of its own, nodeagent-{folder}: pip install . {folders}, in a copy of the "
        "repository"
    )


def declaration(verb: str) -> Callable[[Add], None]:
    """Import the module of a verb, and return the function that declares it."""
    module, _, function = VERBS[verb].partition(".")
    declare: Callable[[Add], None] = getattr(import_module(f"{__name__}.{module}"), function)
    return declare
