"""`nodeagent attach`: the netdevs of VFs come into the pods that hold them."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from nodeagent.console.json_document import json_document
from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, USAGE, Add, json_option, kubelet_dir_option
from nodeagent.console.terminal import note, screen, screen_section


def add(add: Add) -> None:
    parser = add(
        "attach",
        _attach,
        "move the netdevs of VFs into the pods that hold them, with a name and an address for each rail",
        "A plugin of the container runtime's NRI beside the agent, whose settings `attach` have the names and the\n"
        "addresses. A container that holds a VF starts only once the VF's netdev is in its pod. This process may end\n"
        "and start again at any time. It needs CAP_SYS_ADMIN, CAP_NET_ADMIN and the NRI socket (docs/attach.md).",
    )
    kubelet_dir_option(parser)
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/var/lib/nodeagent"),
        metavar="DIR",
        help="`health.stateDirectory` of the agent, whose folder `attach` has its plan (default: %(default)s)",
    )
    parser.add_argument(
        "--cdi",
        type=Path,
        default=Path("/var/run/cdi"),
        metavar="DIR",
        help="the folder of CDI specs that the container runtime reads (default: %(default)s)",
    )
    parser.add_argument(
        "--nri",
        type=Path,
        default=Path("/var/run/nri/nri.sock"),
        metavar="SOCKET",
        help="the socket of the container runtime's NRI (default: %(default)s)",
    )

    parser.add_argument(
        "--plugins",
        type=Path,
        default=Path("/opt/cni/bin"),
        metavar="DIR",
        help="the folder of CNI plugins, for `attach.ipam` (default: %(default)s)",
    )

    parser.add_argument(
        "--list",
        action="store_true",
        help="print the netdevs of VFs in the pods of this node, as the running `nodeagent attach` keeps them in "
        "--directory, and end",
    )
    json_option(parser)


def _list(options: argparse.Namespace) -> int:
    from nodeagent.attach.attach_files import AttachFiles

    try:
        netdevs = AttachFiles(options.directory).read_state().netdevs
    except (OSError, ValueError) as error:
        note(f"the netdevs in pods cannot be read: {error}")
        return USAGE
    if options.json:
        print(json_document(netdevs, options.root, None))
        return GOOD
    rows = [
        (f"{one.namespace}/{one.pod}", one.device, one.netdev, ", ".join(one.addresses)) for one in netdevs
    ]
    print(screen_section("NETDEVS IN PODS", ("POD", "DEVICE", "NETDEV", "ADDRESS"), rows, screen()))
    return GOOD


def _attach(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    from nodeagent.host.sysfs import no_machine

    if not (options.root / "sys").exists():
        note(no_machine(options.root))
        return USAGE
    from nodeagent.attach.attach_daemon import AttachPaths, run_attach

    log_to_stderr(options.log_level or "info", daemon=True)
    podresources = options.kubelet_dir / "pod-resources" / "kubelet.sock"
    paths = AttachPaths(options.directory, podresources, options.cdi, options.nri, options.plugins)
    asyncio.run(run_attach(paths))
    return GOOD
