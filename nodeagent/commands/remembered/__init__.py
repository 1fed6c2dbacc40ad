"""The verb `remembered`: show the rails and GPUs that the agent keeps over restarts, and forget one."""

from __future__ import annotations

import argparse
import sys

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import USAGE, Add, config_option, json_option, load


def add(add: Add) -> None:
    parser = add(
        "remembered",
        _remembered,
        "show the rails and GPUs that the agent keeps over restarts, and forget one that is gone for good",
        "  nodeagent remembered                     every rail with its NIC, every GPU, and whether it is here\n"
        "  nodeagent remembered forget nic2         remove rails: nic2, 0000:1a:00.0, a permanent MAC or node GUID\n"
        "  nodeagent remembered forget GPU-…        remove GPUs, by UUID\n"
        "  nodeagent remembered forget --all-rails  number all NICs again, in PCI order\n\n"
        "The agent stores rails and GPUs in `health.stateDirectory`. A NIC keeps its number over restarts and\n"
        "reboots, also while it is missing, and a GPU that is gone stays on the kubelet's list as Unhealthy. A card\n"
        "that is replaced in its slot takes the place over; a NIC that is moved takes its rail along.\n\n"
        "A running agent takes a removal over within `scanSeconds`. A NIC that is here keeps its number until the\n"
        "agent is restarted; drain the node first, because pods on it may get another network. The slices of a\n"
        "forgotten GPU leave the kubelet's list at the restart, and a GPU that the driver lists is stored again.\n"
        "docs/rails.md has the steps for a change of the cabling.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--all-rails", action="store_true", help="with forget: every rail")
    parser.add_argument("target", nargs="*", metavar="forget NAME", help="see above")


def _remembered(options: argparse.Namespace) -> int:
    from nodeagent.commands.remembered import stored_devices

    config = load(options.config)
    log_to_stderr(options.log_level or "error")
    match options.target:
        case [] if not options.all_rails:
            return stored_devices.show(config, options)
        case ["forget", *names] if bool(names) != options.all_rails:
            of_gpus = [name.startswith("GPU-") for name in names]
            if not any(of_gpus):
                return stored_devices.forget_rails(config, options.root, names)
            if all(of_gpus):
                return stored_devices.forget_gpus(config, options.root, names)
    print(
        "nodeagent: use `remembered`, `remembered forget nic2`, `remembered forget GPU-…` or "
        "`remembered forget --all-rails`",
        file=sys.stderr,
    )
    return USAGE
