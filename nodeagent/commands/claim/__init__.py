"""The verb `claim`: print the ResourceClaimTemplate for a share of a GPU and VFs, and a pod that uses it."""

from __future__ import annotations

import argparse
import sys

from nodeagent.commands.options import GOOD, USAGE, Add


def add(add: Add) -> None:
    parser = add(
        "claim",
        _claim,
        "print a ResourceClaimTemplate and a pod that uses it",
        "For nodes whose resources have mode dra. The template requests a share of one GPU, VFs on different rails,\n"
        "or both. It is printed for `kubectl apply -f -`; no cluster is needed.\n\n"
        "--near puts the GPU and one VF below the same PCIe root; the scheduler chooses the pair. --near-rail fixes\n"
        "the rail of that VF. On a machine whose GPUs and NICs share no PCIe root, such as a GB200 tray,\n"
        "--near-by numa-node joins them by their NUMA node.\n\n"
        "The requests that are hardest to meet come first: the scheduler tries all combinations of the requests\n"
        "before one that it cannot meet.",
    )
    parser.add_argument("--gpu-mem", metavar="GIB", help="memory on one GPU: 40 (GiB), 40Gi or 10240Mi")
    parser.add_argument(
        "--nics", metavar="N", type=int, default=0, help="number of VFs, each on another rail"
    )
    near = parser.add_mutually_exclusive_group()
    near.add_argument("--near", action="store_true", help="the GPU and one VF have the same PCIe root")
    near.add_argument(
        "--near-rail",
        metavar="RAIL",
        type=int,
        help="as --near, with the VF of this rail; the rails are 0 to N-1",
    )
    parser.add_argument(
        "--near-by",
        choices=("pcie-root", "numa-node"),
        help="as --near, with the attribute that the GPU and the VF have in common (default: pcie-root)",
    )
    parser.add_argument(
        "--name", help="name of the template and of the pod; default: derived from the request"
    )


def _claim(options: argparse.Namespace) -> int:
    from nodeagent.commands.claim.claim_template import ClaimError, ClaimRequest, text

    try:
        request = ClaimRequest.checked(
            options.gpu_mem,
            options.nics,
            near=options.near,
            near_rail=options.near_rail,
            name=options.name,
            near_by=options.near_by,
        )
    except ClaimError as error:
        print(f"nodeagent claim: {error}", file=sys.stderr)
        return USAGE
    print(text(request), end="")
    return GOOD
