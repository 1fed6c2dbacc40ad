"""The verb `claim`: print a ResourceClaimTemplate for a share of a GPU or a MIG device, and VFs, as YAML, and a pod
that uses it.

The order of the requests matters: the scheduler searches depth-first, so a request that cannot be met costs all
combinations of those before it. The GPU is first, then the VF beside it, then the VFs without a constraint of place.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from nodeagent.console.options import GOOD, USAGE, Add

NICS_MAX = 8
"""The DeviceClasses of ``daemonset/components/dra`` have eight rails."""
_MEMORY = re.compile(r"([1-9][0-9]{0,6})(Gi|Mi|)")
_PROFILE = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,4}gb([-+][a-z.]{1,12})?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
EXAMPLE_IMAGE = "REGISTRY/training:1"
_PLAIN = re.compile(r"-[a-df-z]")
"""A hyphen before a letter other than e: no boolean, number or date of YAML has this."""
NEAR_BY = {"pcie-root": "resource.kubernetes.io/pcieRoot", "numa-node": "resource.kubernetes.io/numaNode"}
"""The attributes that a GPU and a VF beside it have in common, by the word of the option."""
DISTINCT = "nodeagent.io/rail"
GPU, _MIG = "gpu", "mig"


def add(add: Add) -> None:
    parser = add(
        "claim",
        _claim,
        "print a ResourceClaimTemplate and a pod that uses it",
        "For nodes whose resources have mode dra. The template requests a share of one GPU or a MIG device, VFs on\n"
        "different rails, or both. It is printed for `kubectl apply -f -`; no cluster is needed.\n\n"
        "--near puts the GPU and one VF below the same PCIe root; the scheduler chooses the pair. --near-rail fixes\n"
        "the rail of that VF. On a machine whose GPUs and NICs share no PCIe root, such as a GB200 tray,\n"
        "--near-by numa-node joins them by their NUMA node.\n\n"
        "The requests that are hardest to meet come first: the scheduler tries all combinations of the requests\n"
        "before one that it cannot meet.",
    )
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument("--gpu-mem", metavar="GIB", help="memory on one GPU: 40 (GiB), 40Gi or 10240Mi")
    gpu.add_argument(
        "--mig", metavar="PROFILE", help="a MIG device, made for the claim: 1g.10gb, 3g.40gb or 1g.10gb+me"
    )
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
    parser.add_argument("--image", help="image of the container; default: a name that you replace")
    parser.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="what the container runs, with its arguments; put -- before it if an argument begins with a hyphen",
    )


def _claim(options: argparse.Namespace) -> int:
    try:
        request = ClaimRequest.checked(
            options.gpu_mem,
            options.nics,
            near=options.near,
            near_rail=options.near_rail,
            name=options.name,
            near_by=options.near_by,
            mig=options.mig,
            image=options.image,
            command=options.command,
        )
    except ClaimError as error:
        print(f"nodeagent claim: {error}", file=sys.stderr)
        return USAGE
    print(claim_yaml(request), end="")
    return GOOD


class ClaimError(ValueError):
    """The options ask for something that no claim can have; the message names the option."""


class ClaimRequest(NamedTuple):
    """``memory`` is a quantity, ``mig`` a profile; both are empty for no GPU. With ``near`` the GPU and one VF have the
    same value of the attribute ``NEAR_BY[near_by]``; ``near_rail`` is the rail of that VF, ``None``: any. The container
    has the ``image`` and runs ``command``, or what the image runs if it is empty."""

    memory: str
    nics: int
    near: bool
    near_rail: int | None
    name: str
    near_by: str = "pcie-root"
    mig: str = ""
    image: str = ""
    command: tuple[str, ...] = ()

    @property
    def gpu(self) -> str:
        """The name of the request for the GPU; empty without one."""
        return _MIG if self.mig else GPU if self.memory else ""

    @classmethod
    def checked(
        cls,
        memory: str | None,
        nics: int,
        *,
        near: bool,
        near_rail: int | None,
        name: str | None,
        near_by: str | None = None,
        mig: str | None = None,
        image: str | None = None,
        command: Sequence[str] = (),
    ) -> ClaimRequest:
        """Raises ``ClaimError``. ``near_by`` implies ``near``; ``None`` is ``pcie-root``. Without an ``image`` the pod
        has the one of ``EXAMPLE_IMAGE``, and no command."""
        match = _MEMORY.fullmatch(memory) if memory is not None else None
        if memory is not None and match is None:
            raise ClaimError(f"--gpu-mem {memory} is no amount of memory; write 40 (GiB), 40Gi or 10240Mi")
        if not 0 <= nics <= NICS_MAX:
            raise ClaimError(f"--nics {nics} must be 0 to {NICS_MAX}")
        if mig is not None and not _PROFILE.fullmatch(mig):
            raise ClaimError(f"--mig {mig!r} is no profile; write 1g.10gb, as nvidia-smi mig -lgip names it")
        if match is None and mig is None and not nics:
            raise ClaimError("give --gpu-mem or --mig, --nics, or both")
        if near_rail is not None and not 0 <= near_rail < nics:
            raise ClaimError(f"--near-rail {near_rail} needs --nics {near_rail + 1} or more")
        near = near or near_rail is not None or near_by is not None
        near_by = near_by or "pcie-root"
        if near and ((match is None and mig is None) or not nics):
            raise ClaimError("--near needs --gpu-mem or --mig, and --nics 1 or more")
        quantity = f"{match[1]}{match[2] or 'Gi'}" if match else ""
        if name is not None and not _NAME.fullmatch(name):
            raise ClaimError(f"--name {name!r} is no name of an object: use a-z, 0-9 and -")
        if image is not None and not _IMAGE.fullmatch(image):
            raise ClaimError(
                f"--image {image!r} is no name of an image; write busybox or REGISTRY/training:1"
            )
        if command and image is None:
            raise ClaimError(f"{command[0]!r} is a command for the container, which needs --image")
        made = cls(
            quantity, nics, near, near_rail, name or "", near_by, mig or "", image or "", tuple(command)
        )
        return made if name else made._replace(name=_name(made))

    @property
    def by_rail(self) -> bool:
        """Whether each VF has a fixed rail: all rails, or one fixed beside the GPU."""
        return self.near_rail is not None or (self.nics == NICS_MAX and not self.near)

    @property
    def nic_requests(self) -> list[tuple[str, str]]:
        """Name and DeviceClass of each request for a VF, the scarce one first."""
        if self.by_rail:
            rails = sorted(range(self.nics), key=lambda rail: rail != self.near_rail)
            return [(f"rail{rail}", f"nic{rail}") for rail in rails]
        names = [f"nic{index}" for index in range(self.nics)]
        return [("near" if self.near and name == "nic0" else name, "nic") for name in names]


def claim_yaml(request: ClaimRequest) -> str:
    """The two objects as YAML."""
    return "\n".join([*_template(request), "---", *_pod(request), ""])


def _template(request: ClaimRequest) -> list[str]:
    nics = request.nic_requests
    lines = [
        "apiVersion: resource.k8s.io/v1",
        "kind: ResourceClaimTemplate",
        "metadata:",
        f"  name: {_scalar(request.name)}",
        "spec:",
        "  spec:",
        "    devices:",
        "      requests:",
    ]
    if request.gpu and nics:
        lines.append("      # Keep this order: the requests that are hardest to meet come first.")
    if request.memory:
        lines += [
            f"      - name: {GPU}",
            "        exactly:",
            "          deviceClassName: gpu-share",
            "          capacity:",
            "            requests:",
            f"              memory: {request.memory}",
        ]
    if request.mig:
        lines += [
            f"      - name: {_MIG}",
            "        exactly:",
            "          deviceClassName: mig",
            "          selectors:",
            "          - cel:",
            f'              expression: device.attributes["nodeagent.io"].profile == "{request.mig}"',
        ]
    for name, device_class in nics:
        lines += [f"      - name: {name}", "        exactly:", f"          deviceClassName: {device_class}"]
    names = [name for name, _ in nics]
    constraints = []
    if request.near:
        constraints += [
            f"      - requests: [{request.gpu}, {names[0]}]",
            f"        matchAttribute: {NEAR_BY[request.near_by]}",
        ]
    if not request.by_rail and len(names) > 1:
        constraints += [f"      - requests: [{', '.join(names)}]", f"        distinctAttribute: {DISTINCT}"]
    return [*lines, *(["      constraints:", *constraints] if constraints else [])]


def _pod(request: ClaimRequest) -> list[str]:
    return [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        f"  name: {_scalar(request.name)}",
        "spec:",
        "  restartPolicy: Never",
        "  resourceClaims:",
        "  - name: devices",
        f"    resourceClaimTemplateName: {_scalar(request.name)}",
        "  containers:",
        "  - name: main",
        f"    image: {json.dumps(request.image) if request.image else EXAMPLE_IMAGE}",
        *([f"    command: {json.dumps(request.command)}"] if request.command else []),
        "    resources:",
        "      claims:",
        "      - name: devices",
    ]


def _scalar(name: str) -> str:
    """The name as a YAML string: ``null``, ``on`` and ``1e3`` are no strings without quotes."""
    return name if _PLAIN.search(name) else f'"{name}"'


def _name(request: ClaimRequest) -> str:
    """A name such as ``gpu-40gi-8-nics-near``."""
    parts = [f"gpu-{request.memory.lower()}"] if request.memory else []
    if request.mig:
        parts.append("mig-" + re.sub(r"[^a-z0-9]+", "-", request.mig))
    if request.nics:
        parts.append(f"{request.nics}-nic{'s' if request.nics > 1 else ''}")
    if request.near:
        parts.append("near" if request.near_rail is None else f"near-rail{request.near_rail}")
    if request.near_by != "pcie-root":
        parts.append(request.near_by)
    return "-".join(parts)
