"""The manual page of all verbs, from the same declarations as their help (man-pages(7), roff).

`nodeagent man` prints ``nodeagent/commands/nodeagent.1``. A test compares the two; ``make golden`` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from nodeagent import __version__, cli
from nodeagent.commands.completion import parsers
from nodeagent.console.options import ALIGNED


def manual_page() -> str:
    """The page, with lines of usage as wide as ``COLUMNS`` of the environment."""
    return "\n".join(_page(cli._parser())) + "\n"


def _page(parser: argparse.ArgumentParser) -> Iterator[str]:
    first, *verbs = parsers(parser)
    summary, _, about = (first.description or "").partition("\n")
    yield f'.TH NODEAGENT 1 "" "nodeagent {__version__}" "User Commands"'
    yield from (".SH NAME", f"nodeagent \\- {_roff(summary[0].lower() + summary[1:].rstrip('.'))}")
    yield from (".SH SYNOPSIS", ".B nodeagent", ".I VERB", "[options]")
    yield from (".SH DESCRIPTION", *_paragraphs(about))
    yield ".SH VERBS"
    for verb in verbs:
        yield f".SS {_roff(verb.prog)}"
        yield from _paragraphs(verb.description or "")
        yield from _verbatim(verb.format_usage())
        for action in verb._actions:
            if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
                continue
            if not isinstance(action, argparse._SubParsersAction):
                yield from _option(verb, action)
    examples, _, codes = (first.epilog or "").partition("exit codes:")
    yield from (".SH EXAMPLES", *_verbatim(examples.partition("\n")[2]))
    yield from (".SH EXIT STATUS", *_verbatim(codes.strip("\n")))


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    formatter = parser._get_formatter()
    yield from (".TP", f".B {_roff(formatter._format_action_invocation(action))}")
    yield _roff(" ".join(formatter._expand_help(action).split())) if action.help else "\\&"


def _paragraphs(text: str) -> Iterator[str]:
    """Lines that are indented or aligned with spaces stay lines."""
    for paragraph in text.strip().split("\n\n"):
        yield ".PP"
        yield from _verbatim(paragraph) if ALIGNED.search(paragraph) else map(_roff, paragraph.splitlines())


def _verbatim(text: str) -> Iterator[str]:
    yield from (".PP", ".nf", *map(_roff, text.rstrip().splitlines()), ".fi")


def _roff(text: str) -> str:
    """Text in which roff finds no request and no escape; ``-`` stays the character of the keyboard."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
