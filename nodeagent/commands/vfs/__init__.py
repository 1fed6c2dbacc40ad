"""The verb `vfs`: create and configure VFs, or show them."""

from __future__ import annotations

import argparse

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import (
    FAILED,
    GOOD,
    Add,
    common_options,
    config_option,
    json_option,
    kubelet_dir_option,
    load,
)
from nodeagent.console.terminal import screen, tell


def add(add: Add) -> None:
    parser = add(
        "vfs",
        _vfs_show,
        "create and configure virtual functions, or show them",
        "`apply` makes the machine match the `vfs` section of the configuration. It may be run again at any time\n"
        "and changes only what differs. It never changes the number of VFs of a PF while one of them is in use, and\n"
        "nothing of a VF that a pod or a program holds; it prints what differs there. Without a kubelet that lists\n"
        "the pods it refuses to change VFs that exist. The exit code is 1 if a PF was refused or failed; differences\n"
        "of held VFs alone are no failure.\n"
        "Run it as an init container; the daemon itself then needs no write access to /sys.",
    )
    parts = parser.add_subparsers(title="parts", metavar="apply|show", required=True)
    for name, verb, summary in (
        ("apply", _vfs_apply, "make the VFs match the configuration"),
        ("show", _vfs_show, "show each PF with its VFs, and how they differ from the configuration"),
    ):
        part = parts.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        part.set_defaults(verb=verb)
        common_options(part, of_part=True)
        config_option(part)
        json_option(part)
        kubelet_dir_option(part)
        if name == "apply":
            part.add_argument(
                "--force",
                action="store_true",
                help="change VFs whose users are unknown too, for example without a kubelet; a VF with a known user\n"
                "stays as it is",
            )


def _vfs_apply(options: argparse.Namespace) -> int:
    from nodeagent.commands.vfs import apply

    config = load(options.config)
    log_to_stderr(options.log_level or "info")
    result = apply.apply(config, options.root, force=options.force, kubelet_dir=options.kubelet_dir)
    said = tell(apply.as_json(result, options.root) if options.json else apply.as_table(result, screen()))
    return GOOD if result.good and said else FAILED


def _vfs_show(options: argparse.Namespace) -> int:
    from nodeagent.commands.vfs import apply

    config = load(options.config)
    log_to_stderr(options.log_level or "warning")
    result = apply.show(config, options.root, options.kubelet_dir)
    print(apply.as_json(result, options.root) if options.json else apply.as_table(result, screen()))
    return GOOD
