"""The command line. Here exceptions become a line on stderr and an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from nodeagent import __version__
from nodeagent.commands import (
    GOOD,
    SEPARATE,
    USAGE,
    VERB_GROUPS,
    VerbFunction,
    declarations,
    how_to_install,
    joined_verbs,
)
from nodeagent.console.options import ALIGNED, common_options, with_watch_apart

WIDE = "1000"
"""Columns of ``-o wide``; no table is wider."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Made for each option too, so its width must not import `shutil` and its compression libraries, as argparse's
    own does."""

    def __init__(self, prog: str) -> None:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() else 0
        if not width:
            try:
                width = os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ else 0
            except (OSError, ValueError):
                width = 0
        super().__init__(prog, max_help_position=24, width=(width or 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Sentences wrap between words, and so does the last column of an aligned line. A line of one column is a
        command, which stays whole for copying."""
        from itertools import groupby
        from textwrap import wrap

        lines: list[str] = []
        for aligned, block in groupby(text.splitlines(), lambda line: not line or bool(ALIGNED.search(line))):
            for line in block if aligned else [" ".join(block)]:
                column = line.rfind("  ") + 2 if aligned else 0
                whole = len(line) <= width or (aligned and not line[:column].strip())
                lines += [line] if whole else wrap(
                    line, width, initial_indent=indent, subsequent_indent=indent + " " * column,
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
        return "\n".join(lines)


_MEANT = {
    "errors": "trouble", "faults": "trouble", "problems": "trouble", "status": "trouble", "troubles": "trouble",
    "check": "doctor", "diagnose": "doctor", "describe": "explain", "why": "explain", "events": "history",
    "log": "history", "logs": "history", "list": "scan", "ls": "scan", "devices": "scan", "map": "topology",
    "tree": "topology", "gpu": "gpus", "top": "gpus", "nvidia-smi": "gpus", "jobs": "job", "pods": "job",
    "lldp": "neighbors", "drain": "cordon", "silence": "maintain", "cables": "cabling", "start": "run", "agent": "run",
}  # fmt: skip
"""The verb for a word that people type, where no letters tell it."""

_ABOUT = """\
The agent that a GPU cluster runs on every node.

It offers GPU memory slices and SR-IOV VFs to the kubelet, and marks them unhealthy and healthy again as their
health changes. `nodeagent scan` also works on a machine that is not a cluster node."""

_EXAMPLES = """\
examples:
  nodeagent demo                               run the agent on a simulated DGX H100
  nodeagent demo --nodes 64                    run the controller on a simulated fabric
  nodeagent scan                               the devices of this machine, and what would be offered
  nodeagent config defaults > nodeagent.yaml   a commented configuration to start from
  nodeagent config check nodeagent.yaml
  nodeagent vfs apply --config nodeagent.yaml  create the VFs (as an init container does)
  nodeagent run --config nodeagent.yaml        the daemon
  nodeagent VERB --help                        the options of a verb
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose subparsers it makes too; it names the verb or value that a wrong one resembles.

    Its help has the verbs in groups, and the options of a verb before those that every verb has."""

    def format_usage(self) -> str:
        self._actions.sort(key=_is_of_every_verb)
        return super().format_usage()

    def format_help(self) -> str:
        self._actions.sort(key=_is_of_every_verb)
        verbs = next((one for one in self._actions if isinstance(one, argparse._SubParsersAction)), None)
        if verbs is None or verbs.metavar != "VERB" or len(verbs.choices) == 1:
            return super().format_help()
        shown = {one.dest: one for one in verbs._get_subactions()}
        grouped = {
            title: [one for name in names if (one := shown.pop(name, None))]
            for title, names in VERB_GROUPS.items()
        }
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, actions in (*grouped.items(), ("other verbs", list(shown.values()))):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([one for one in self._actions if one is not verbs])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse has the suggestion from Python 3.14 on."""
        if action.choices is None or value in action.choices:
            return
        from nodeagent.config.file_errors import did_you_mean, quote

        known = [str(choice) for choice in action.choices]
        if (meant := _MEANT.get(str(value))) in known:
            raise argparse.ArgumentError(action, f"{quote(str(value))} is unknown; did you mean {meant}?")
        hint = did_you_mean(str(value), known).removeprefix("; ") or f"there is {', '.join(known)}"
        raise argparse.ArgumentError(action, f"{quote(str(value))} is unknown: {hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. An exception that the operator can resolve is printed as one line."""
    words = with_watch_apart(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:  # as git and kubectl have it
        words = [*words[1:2], "--help"]
    if not words:
        _parser().print_help()
        return GOOD
    if words[0] in SEPARATE and words[0] not in joined_verbs():
        print(f"nodeagent: {how_to_install(words[0])}", file=sys.stderr)
        return USAGE
    if os.environ.get("NODEAGENT_GUEST"):
        from nodeagent.console.guest_memory import leave_limit, stay_within

        stay_within()
    options = _parser(words[0]).parse_args(words)
    if options.log_level:  # some verbs set no level of their own
        from nodeagent.console.log_lines import log_to_stderr

        log_to_stderr(options.log_level)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale may lack ≥, a file name may be no text
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC logs every closed connection
    if getattr(options, "output", None) == "wide":
        os.environ["COLUMNS"] = WIDE
    verb: VerbFunction = options.verb
    code: int | None = None
    try:
        code = _as_yaml(verb, options) if getattr(options, "output", None) == "yaml" else verb(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        from nodeagent.console.exit_codes import SHOWS, code_without_result, codes_of
        from nodeagent.console.terminal import discard_stdout

        discard_stdout()
        if code is None:  # a watch ends with its reader; what another one would have found is not known
            watches = getattr(options, "watch", None) not in (None, False)
            code = GOOD if watches or codes_of(options) is SHOWS else code_without_result(options)
        return code
    except Exception as error:  # noqa: BLE001 - the outermost handler
        if isinstance(error, MemoryError) and os.environ.get("NODEAGENT_GUEST"):
            leave_limit()
        return _explain(error, options)


def _as_yaml(verb: VerbFunction, options: argparse.Namespace) -> int:
    """Print the document of ``--json`` as YAML."""
    import json
    from contextlib import redirect_stdout

    import yaml

    if getattr(options, "watch", None) is not None:
        from nodeagent.console.terminal import note

        note("-o yaml prints one document: leave --watch out, or write -o json")
        return USAGE
    held = io.StringIO()
    with redirect_stdout(held):
        code = verb(options)
    if text := held.getvalue().strip():
        print(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=120), end="")
    return code


def _explain(error: Exception, options: argparse.Namespace) -> int:
    """One line (or one for each error of a configuration) on stderr, and the exit code."""
    from nodeagent.base.plain_text import one_line
    from nodeagent.config.file_errors import ConfigError
    from nodeagent.console.exit_codes import code_without_result
    from nodeagent.console.terminal import note
    from nodeagent.console.user_files import UserFileError

    if isinstance(error, ConfigError):
        print("\n".join(map(one_line, str(error).split("\n"))), file=sys.stderr)
        return USAGE
    if isinstance(error, UserFileError):
        note(str(error))
        return USAGE
    if isinstance(error, MemoryError) and os.environ.get("NODEAGENT_GUEST"):
        from nodeagent.console.guest_memory import OUT_OF_MEMORY

        note(OUT_OF_MEMORY)
        return code_without_result(options)
    ours = type(error).__module__.startswith(("nodeagent.", "nodeagent_lab."))
    known = ours or isinstance(error, OSError)
    if not known or logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("nodeagent").error("Unexpected.", exc_info=error)
    if isinstance(error, OSError) and error.filename is not None:
        note(f"{error.filename}: {error.strerror}")
    else:
        note(str(error))
    return code_without_result(options)


def _parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all verbs, or of the verb ``only``: options of other verbs would delay the start of the agent."""
    parser = _Parser(
        prog="nodeagent",
        description=_ABOUT,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, prog=parser.prog)

    def add(name: str, verb: VerbFunction, summary: str, about: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{about}".strip(),
            formatter_class=_Formatter,
        )
        made.set_defaults(verb=verb, parser=_parser)
        common_options(made)
        return made

    for declare in declarations(only):
        try:
            declare(add)
        except argparse.ArgumentError as error:
            verb = [*verbs.choices][-1]
            twice = f"the verb {verb} ({declare.__module__}) adds an option that it has already: {error}"
            raise ValueError(f"{twice}; `common_options` has added it, or the verb itself") from error
    missing = [verb for verb in SEPARATE if verb not in verbs.choices]
    examples = "\n".join(line for line in _EXAMPLES.split("\n") if _verb_of(line) not in missing)
    if missing:
        examples += f"\nnot installed: {', '.join(missing)}\n  each says how to install it\n"
    if len(verbs.choices) > 1:
        from nodeagent.console.exit_codes import table

        examples += f"\nexit codes:\n{table()}\n"
    parser.epilog = examples
    return parser


def _is_of_every_verb(action: argparse.Action) -> bool:
    return action.dest in ("root", "log_level")


def _verb_of(example: str) -> str:
    return next(iter(example.removeprefix("  nodeagent ").split()), "")


if __name__ == "__main__":
    sys.exit(main())
