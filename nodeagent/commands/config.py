"""The verb `config`: validate a file, list features, print the default or the JSON schema, convert other files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.console.options import (
    FAILED,
    GOOD,
    USAGE,
    Add,
    common_options,
    config_files,
    config_option,
    json_option,
    load_config,
)

if TYPE_CHECKING:
    from nodeagent.commands.config_from.draft import Draft

CONVERTED_PROGRAMS = ("sriovdp", "sriov-operator", "nvidia", "rdma-shared")
"""The programs whose configuration `config from` converts."""


def add(add: Add) -> None:
    parser = add(
        "config",
        _config_check,
        "validate a configuration, list its features, print the default, print the JSON schema, "
        "convert that of another program",
    )
    parser.set_defaults(root=None)  # without --root a file is checked without a machine
    parts = parser.add_subparsers(title="parts", metavar="check|features|defaults|schema|from", required=True)
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
    features = parts.add_parser(
        "features",
        help="which features are on, and what each needs in the cluster",
        description="Which features the configuration of the agent and that of the controller have on, and what each\n"
        "needs in the cluster. A name is that of a component (daemonset/components), which brings its settings,\n"
        "rights and policy. A hyphen: no such configuration was read, or it has no setting for the feature.",
        formatter_class=parser.formatter_class,
    )
    config_option(features)
    features.add_argument(
        "--fabric",
        type=Path,
        metavar="FILE",
        help="the configuration of the controller, with its fragments, or a folder (default: none)",
    )
    json_option(features)
    features.set_defaults(verb=_config_features)
    defaults = parts.add_parser("defaults", help="print the default configuration with comments")
    defaults.set_defaults(verb=_config_defaults)
    schema = parts.add_parser("schema", help="print the JSON schema, for editors and CI")
    schema.set_defaults(verb=_config_schema)
    other = _add_from(parts, parser.formatter_class)
    for part in (check, features, defaults, schema, other):
        common_options(part, of_part=True)


def _add_from(parts: Any, formatter: Any) -> argparse.ArgumentParser:
    other: argparse.ArgumentParser = parts.add_parser(
        "from",
        help="convert the configuration of another program, and name each key that is lost",
        description="Write a configuration that offers what another program offers, on stdout. Name each key without\n"
        "counterpart on stderr, why, and what to do. FILE is the program's configuration, a ConfigMap with it, a\n"
        "policy of NVIDIA's network operator, or policies as kubectl prints them; - is standard input. The exit\n"
        "code is 1 if something that was in use is lost, and 2 if a file cannot be read.",
        formatter_class=formatter,
    )
    other.add_argument(
        "program",
        choices=CONVERTED_PROGRAMS,
        metavar="|".join(CONVERTED_PROGRAMS),
        help="whose configuration it is",
    )
    other.add_argument("files", nargs="+", metavar="FILE", help="a file, or - for standard input")
    other.add_argument(
        "--prefix",
        metavar="NAME",
        help="the part of the resource names before the slash, where the file does not say it (default: intel.com of "
        "sriovdp, openshift.io of sriov-operator, rdma of rdma-shared)",
    )
    other.add_argument("--key", metavar="KEY", help="the key of a ConfigMap that has several")
    other.add_argument(
        "--labels",
        type=_labels,
        metavar="KEY=VALUE,...",
        help="convert the policies of the SR-IOV operator that select a node with these labels",
    )
    other.add_argument(
        "--gpu-memory",
        type=_memory,
        metavar="MIB",
        help="the memory of each GPU in MiB as nvidia-smi prints it, for replicas of NVIDIA's plugin",
    )
    other.set_defaults(verb=_config_from)
    return other


def _labels(text: str) -> dict[str, str]:
    labels = dict(part.partition("=")[::2] for part in text.split(",") if part)
    if not labels or not all(labels):
        raise argparse.ArgumentTypeError(f"{text!r} has no labels: write KEY=VALUE,KEY=VALUE")
    return labels


def _memory(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 8 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MiB such as 81559")
    return int(text)


def _config_from(options: argparse.Namespace) -> int:
    from nodeagent.base.bounded_calls import Unanswered
    from nodeagent.base.plain_text import one_line
    from nodeagent.commands.config_from.foreign_documents import UnreadableFile
    from nodeagent.config.file_errors import ConfigError
    from nodeagent.host.sysfs import SysfsError

    try:
        files = [
            ("standard input", _standard_input()) if name == "-" else (name, _text_of_file(Path(name)))
            for name in options.files
        ]
        draft = converted_text(
            options.program,
            files,
            prefix=options.prefix,
            key=options.key,
            labels=options.labels,
            memory_mib=options.gpu_memory,
            root=options.root,
        )
    except (UnreadableFile, SysfsError, Unanswered) as error:
        print(one_line(str(error)), file=sys.stderr)
        return USAGE
    except ConfigError as error:
        print("\n".join(map(one_line, str(error).split("\n"))), file=sys.stderr)
        return USAGE
    for remark in draft.remarks:
        print(one_line(str(remark)), file=sys.stderr)
    print(draft.text(), end="")
    return FAILED if draft.lost else GOOD


def converted_text(
    program: str,
    files: Sequence[tuple[str, str]],
    *,
    prefix: str | None = None,
    key: str | None = None,
    labels: Mapping[str, str] | None = None,
    memory_mib: int | None = None,
    root: Path | None = None,
) -> Draft:
    """Convert files of a program, given as name and text. What our own check refuses is a comment in the result.
    ``root``: a machine whose VFs the files may name by address.

    Raises ``UnreadableFile``, ``ConfigError`` for settings that no entry has, ``SysfsError`` and ``Unanswered``."""
    from nodeagent.agent_config import check
    from nodeagent.commands.config_from.from_nvidia import draft_of_nvidia
    from nodeagent.commands.config_from.from_rdma_shared import draft_of_rdma_shared
    from nodeagent.commands.config_from.from_sriov_operator import draft_of_policies
    from nodeagent.commands.config_from.from_sriovdp import draft_of_sriovdp
    from nodeagent.commands.config_from.vf_selection import NO_MACHINE, machine_vfs
    from nodeagent.config.file_errors import ConfigError
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.pci_source import scan_once

    match program:
        case "sriovdp":
            machine = NO_MACHINE if root is None else machine_vfs(scan_once(Tree(root)).functions)
            draft = draft_of_sriovdp(files, prefix, key, machine)
        case "sriov-operator":
            draft = draft_of_policies(files, prefix, labels)
        case "rdma-shared":
            draft = draft_of_rdma_shared(files, prefix, key)
        case _:
            draft = draft_of_nvidia(files, memory_mib, key)
    while True:
        try:
            check(
                draft.text(),
                name="the converted configuration",
                gpu_memories_mib=None if memory_mib is None else (memory_mib,) * 8,
            )
        except ConfigError as error:
            if not draft.switch_off(error):
                raise
        else:
            return draft


def _text_of_file(path: Path) -> str:
    """Raises ``ConfigError``."""
    from functools import partial

    from nodeagent.config.followed_configuration import configuration_text, read_at_start

    return read_at_start(path, partial(configuration_text, path))


def _standard_input() -> str:
    from nodeagent.config.yaml_tree import YAML_SIZE_MAX

    return sys.stdin.buffer.read(4 * YAML_SIZE_MAX + 1).decode("utf-8", "surrogateescape")


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


def _config_features(options: argparse.Namespace) -> int:
    from nodeagent.commands.feature_table import shown_features
    from nodeagent.console.terminal import columns, screen
    from nodeagent.controller_config import read_fabric

    agent = load_config(options.config)
    fabric = None if options.fabric is None else read_fabric(options.fabric)[0]
    features = list(shown_features(agent, fabric))
    if options.json:
        from nodeagent.console.json_document import json_document

        listed = {"features": [one._asdict() for one in features]}
        print(json_document(listed, options.root or Path("/"), None))
    else:
        print("\n".join(columns(("FEATURE", "AGENT", "CONTROLLER", "NEEDS"), features, screen())))
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
