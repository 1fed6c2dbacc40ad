"""The verbs `completion` and `man`: a script by which a shell completes words, and the manual page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent.console.options import GOOD, USAGE, Add

SHELLS = ("bash", "zsh", "fish")
PAGE = Path(__file__).with_name("nodeagent.1")
"""The manual page, which ``hack/docs/manual_page.py`` writes."""


def add(add: Add) -> None:
    parser = add(
        "completion",
        _completion,
        "print the completion of a shell",
        "  mkdir -p ~/.local/share/bash-completion/completions\n"
        "  nodeagent completion bash > ~/.local/share/bash-completion/completions/nodeagent\n"
        '  nodeagent completion zsh > "${fpath[1]}/_nodeagent"\n'
        "  nodeagent completion fish > ~/.config/fish/completions/nodeagent.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help=", ".join(SHELLS))


def add_man(add: Add) -> None:
    add("man", _man, "print the manual page", "Read it with: nodeagent man | man -l -")


def _man(_options: argparse.Namespace) -> int:
    print(PAGE.read_text(encoding="utf-8"), end="")
    return GOOD


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        print("nodeagent: completion needs the Python package shtab", file=sys.stderr)
        return USAGE

    parser: argparse.ArgumentParser = options.parser()
    files = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for each in parsers(parser):
        for action in each._actions:
            if action.metavar in files:
                action.complete = files[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return GOOD


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """``parser`` and the parsers of its verbs and their parts."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)
