"""The exit codes of all verbs: one table, by what a verb does. A verb without a row fails a test."""

from __future__ import annotations

import argparse
from textwrap import wrap
from typing import NamedTuple

from nodeagent.console.options import FAILED, USAGE


class Codes(NamedTuple):
    """One row: a kind of verbs, and the meaning of 0, 1 and 2."""

    kind: str
    good: str
    failed: str
    usage: str


LOOKS = Codes(
    "look for faults",
    "nothing is wrong",
    "something is wrong",
    "it could not look (no cluster, no agent, a name that does not exist), or wrong usage",
)
SHOWS = Codes(
    "show or print",
    "it is shown",
    "-",
    "it could not look (no cluster, a driver that does not answer, a copy of a machine where no frame arrives, a name "
    "that does not exist), or wrong usage",
)
WRITES = Codes(
    "write",
    "all is done",
    "not all is done (also: the server is away), or its report was cut off: stderr says what is written",
    "wrong usage or configuration, or a name that does not exist: nothing is done",
)
RUNS = Codes("run until a signal", "a signal has ended it", "it cannot go on", "wrong usage or configuration")

EXIT_CODES = {
    **dict.fromkeys(("doctor", "trouble", "job", "cabling", "diff", "rails", "rails check"), LOOKS),
    **dict.fromkeys(("health --problem", "config check", "config from"), LOOKS),
    **dict.fromkeys(
        (
            *("health", "scan", "neighbors", "gpus", "history", "vfs show", "plan", "explain", "topology"),
            "rails traffic",
        ),
        SHOWS,
    ),
    **dict.fromkeys(
        (
            "claim",
            "tell",
            "completion",
            "config features",
            "config defaults",
            "config schema",
            "decode",
            "man",
        ),
        SHOWS,
    ),
    **dict.fromkeys(("maintain", "cordon", "uncordon", "remembered", "vfs apply", "capture"), WRITES),
    **dict.fromkeys(("run", "controller", "mps", "attach", "demo"), RUNS),
}
"""By the words of the verb."""
WIDTH = 78
_NAMED = {"maintain": "target", "cordon": "device", "remembered": "target"}
"""Verbs that write what is named, and list what is written without a name."""


def codes_of(options: argparse.Namespace) -> Codes:
    """The row of what these options ask for."""
    verb = options.words
    if verb in _NAMED and not getattr(options, _NAMED[verb]) and not getattr(options, "all_rails", False):
        return SHOWS
    return LOOKS if verb == "health" and options.problem else EXIT_CODES.get(verb, RUNS)


def code_without_result(options: argparse.Namespace) -> int:
    """The code for a verb that an error has ended."""
    return USAGE if codes_of(options) in (LOOKS, SHOWS) else FAILED


def table() -> str:
    """For the help and the manual page."""
    lines = []
    for codes in (LOOKS, SHOWS, WRITES, RUNS):
        verbs = ", ".join(verb for verb, of in EXIT_CODES.items() if of is codes)
        lines += wrap(f"Verbs that {codes.kind}: {verbs}", WIDTH, initial_indent="  ", subsequent_indent="  ")
        for code, meaning in enumerate(codes[1:]):
            indent = f"    {code}  "
            if meaning != "-":
                lines += wrap(meaning, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    lines += ["  `cordon`, `maintain` and `remembered` without a name show.", "  130: Ctrl-C ended it."]
    return "\n".join(lines)
