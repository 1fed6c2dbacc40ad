"""The verb `config`: validate a file, print the default, print the JSON schema."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nodeagent.console.options import FAILED, GOOD, USAGE, Add, common_options, config_files


def add(add: Add) -> None:
    parser = add(
        "config", _config_check, "validate a configuration, print the default, print the JSON schema"
    )
    parser.set_defaults(root=None)  # without --root a file is checked without a machine
    parts = parser.add_subparsers(title="parts", metavar="check|defaults|schema", required=True)
    check = parts.add_parser(
        "check",
        help="validate FILE: one line for each error, with its place and a suggestion",
        description="Validate FILE: one line for each error, with its place and a suggestion. FILE is the agent's\n"
        "configuration, the controller's (kind: FabricConfig, with the files that it names), a fabric topology\n"
        "(kind: FabricTopology), or a cabling plan (nodes, their links and ports).\n"
        "The configuration of the agent or the controller may be a folder of fragments, or a file with\n"
        "fragments in a folder beside it: nodeagent.d/*.yaml of nodeagent.yaml. They are checked as the one\n"
        "configuration that they make: mappings are merged, and what two of them set is an error.",
        formatter_class=parser.formatter_class,
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(verb=_config_check)
    defaults = parts.add_parser("defaults", help="print the default configuration with comments")
    defaults.set_defaults(verb=_config_defaults)
    schema = parts.add_parser("schema", help="print the JSON schema, for editors and CI")
    schema.set_defaults(verb=_config_schema)
    for part in (check, defaults, schema):
        common_options(part, of_part=True)


def _config_check(options: argparse.Namespace) -> int:
    from nodeagent.base.plain_text import one_line
    from nodeagent.commands.file_checks import check_file
    from nodeagent.config.file_errors import ConfigError

    config_files(options.file)  # a file that cannot be read has no errors to list
    try:
        checked = check_file(options.file, options.root)
    except ConfigError as error:
        print("\n".join(map(one_line, str(error).split("\n"))), file=sys.stderr)
        return FAILED
    for note in checked.notes:
        print(one_line(f"{options.file}: note: {note}"))
    for sentence in checked.unchecked:
        print(one_line(f"{options.file}: not checked for this machine: {sentence}"))
    if checked.unchecked:
        return USAGE
    print(one_line(f"{options.file}: good, {checked.content}"))
    return GOOD


def default_file() -> str:
    """The default configuration as YAML, with the meaning of every setting."""
    from nodeagent.agent_config import ABOUT, Config
    from nodeagent.config.reference import commented

    return commented(Config(), ABOUT)


def json_schema() -> dict[str, Any]:
    """A JSON schema of the configuration."""
    from nodeagent.agent_config import Config
    from nodeagent.config.reference import schema

    return schema(Config, "nodeagent configuration")


def _config_defaults(_options: argparse.Namespace) -> int:
    print(default_file(), end="")
    return GOOD


def _config_schema(_options: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return GOOD
