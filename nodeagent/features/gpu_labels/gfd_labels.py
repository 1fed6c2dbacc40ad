"""The labels of a node's GPUs, with the names and the forms of NVIDIA's GPU Feature Discovery (GFD). Pure.

Read in GFD's source at the commit that docs/reference/verified.md names. The labels speak of the resource
``nvidia.com/gpu``: the number of replicas and the ending ``-SHARED`` are those of a gpu-mem resource with this name, or
with that of GFD's renamed one, ``nvidia.com/gpu.shared``. Slices under another name share no ``nvidia.com/gpu``.

Where GFD has no fixed answer, or ends with an error, there is one here: of several models the one with the most GPUs
is named, and a value that is not known, or that is no label value, leaves its label out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.facts.model import Gpu, MigDevice

RESOURCE = "nvidia.com/gpu"
SHARED_RESOURCE = "nvidia.com/gpu.shared"
PRODUCT = f"{RESOURCE}.product"
_PLAIN = re.compile(r"[^A-Za-z0-9\-_. ]")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""A label value: at most 63 characters (Kubernetes, "Labels and Selectors", syntax and character set)."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""A key behind its prefix."""
_DRIVER = re.compile(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?")
_DECIMALS = re.compile(r"([0-9]+)\.([0-9]+)")
_SLICES = re.compile(r"(?:([0-9]+)c\.)?([0-9]+)g\.")
_ENGINES = {
    "multiprocessors": "multiprocessors",
    "engines.copy": "copy-engines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpeg-engines",
    "engines.ofa": "ofa-engines",
}
"""By the ending of the label, the name in ``MigDevice.takes``."""
_FAMILIES = {
    1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell",
    13: "rubin",
}  # fmt: skip
"""By the major number of the compute capability; 7 and 8 have two families each."""
_MODES = {0x030000: "graphics", 0x030200: "compute"}
"""By the PCI class: a VGA controller, a 3D controller."""


class GpuTexts(NamedTuple):
    """The texts of one GPU beside its facts; empty: not known. ``mig_capable`` is ``yes`` or ``no``,
    ``pci_class`` a number of 24 bits."""

    compute_capability: str = ""
    cuda_version: str = ""
    mig_capable: str = ""
    pci_class: int | None = None


class GpusOfNode(NamedTuple):
    """The GPUs that answer, by index. ``replicas``: the devices of each GPU, by UUID, in the resource that shares it;
    ``renamed``: that resource is ``SHARED_RESOURCE``. ``mps``: a resource is shared by MPS. ``by_profile``: MIG devices
    are offered, each profile as a resource."""

    gpus: tuple[Gpu, ...]
    texts: Mapping[str, GpuTexts]
    machine: str | None = None
    driver: str | None = None
    replicas: Mapping[str, int] = {}
    renamed: bool = False
    mps: bool = False
    by_profile: bool = False

    def text(self, gpu: Gpu) -> GpuTexts:
        return self.texts.get(gpu.uuid, GpuTexts())


def gpu_labels(node: GpusOfNode) -> dict[str, str]:
    """The labels by key, in the order of the keys; empty if no GPU answers."""
    if not node.gpus:
        return {}
    found = {f"nvidia.com/{name}": value for name, value in _labels(node)}
    return {key: found[key] for key in sorted(found) if _is_label(key, found[key])}


def sanitized(text: str) -> str:
    """The text with a label value's characters alone, its words joined.

    >>> [sanitized(it) for it in ("NVIDIA A100-SXM4-40GB", " Quadro  RTX 6000/8000 ", "1g.10gb.me")]
    ['NVIDIA-A100-SXM4-40GB', 'Quadro-RTX-60008000', '1g.10gb.me']
    """
    return "-".join(_PLAIN.sub("", text).split())


def family(major: int, minor: int) -> str:
    """The name of the architecture.

    >>> [family(*it) for it in ((7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (12, 0), (11, 0))]
    ['volta', 'turing', 'ampere', 'ada-lovelace', 'hopper', 'blackwell', 'undefined']
    """
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def _is_label(key: str, value: str) -> bool:
    return _NAME.fullmatch(key.partition("/")[2]) is not None and _VALUE.fullmatch(value) is not None


def _labels(node: GpusOfNode) -> Iterator[tuple[str, str]]:
    yield "gpu.machine", sanitized(node.machine or "") or "unknown"
    yield from _versions(node)
    if capable := {node.text(gpu).mig_capable for gpu in node.gpus} - {""}:
        yield "mig.capable", "true" if "yes" in capable else "false"
    yield "mps.capable", "true" if node.mps and not any(gpu.mig for gpu in node.gpus) else "false"
    yield "gpu.mode", _mode([node.text(gpu).pci_class for gpu in node.gpus])
    if len(domains := {gpu.nvlink_domain for gpu in node.gpus} - {None, ""}) == 1:
        yield "gpu.clique", str(*domains)
    yield from _whole_gpus(node)
    if node.by_profile:
        yield "mig.strategy", "mixed"
        yield from _mig_profiles(node.gpus)


def _versions(node: GpusOfNode) -> Iterator[tuple[str, str]]:
    """Each number has two labels: GFD still writes those that it calls deprecated."""
    if version := _DRIVER.fullmatch(node.driver or ""):
        major, minor, revision = version.groups(default="")
        yield "cuda.driver-version.full", version[0]
        for old, new, number in (
            ("major", "major", major),
            ("minor", "minor", minor),
            ("rev", "revision", revision),
        ):
            yield f"cuda.driver.{old}", number
            yield f"cuda.driver-version.{new}", number
    cuda = next((text for gpu in node.gpus if (text := node.text(gpu).cuda_version)), "")
    if runtime := _DECIMALS.fullmatch(cuda):
        yield "cuda.runtime-version.full", cuda
        for name, number in zip(("major", "minor"), runtime.groups(), strict=True):
            yield f"cuda.runtime.{name}", number
            yield f"cuda.runtime-version.{name}", number


def _mode(classes: Iterable[int | None]) -> str:
    seen = {*classes}
    (only,) = seen if len(seen) == 1 else (None,)
    return "unknown" if only is None else _MODES.get(only, "unknown")


def _whole_gpus(node: GpusOfNode) -> Iterator[tuple[str, str]]:
    """Of one model. GPUs in MIG mode count, and they alone have the labels if there are no others."""
    counts = Counter(gpu.name for gpu in node.gpus)
    undivided = [gpu for gpu in node.gpus if not gpu.mig]
    most = max(counts[gpu.name] for gpu in undivided or node.gpus)
    gpu = next(gpu for gpu in undivided or node.gpus if counts[gpu.name] == most)
    alike = {node.replicas.get(one.uuid, 1) for one in undivided if one.name == gpu.name} or {0}
    shared = max(alike) > 1
    ending = "-SHARED" if shared and not node.renamed else ""
    if product := sanitized(gpu.name):
        yield "gpu.product", f"{product}{ending}"
    yield "gpu.count", str(counts[gpu.name])
    if len(alike) == 1:
        yield "gpu.replicas", str(max(alike))
    yield "gpu.sharing-strategy", ("mps" if node.mps else "time-slicing") if shared else "none"
    if gpu.memory_mib:
        yield "gpu.memory", str(gpu.memory_mib)
    if capability := _DECIMALS.fullmatch(node.text(gpu).compute_capability):
        major, minor = int(capability[1]), int(capability[2])
        if major:
            yield "gpu.family", family(major, minor)
            yield "gpu.compute.major", str(major)
            yield "gpu.compute.minor", str(minor)


def _mig_profiles(gpus: Iterable[Gpu]) -> Iterator[tuple[str, str]]:
    """Of each profile, as of a resource ``nvidia.com/mig-1g.10gb``."""
    found: dict[str, list[tuple[Gpu, MigDevice]]] = {}
    for gpu in gpus:
        for device in gpu.mig_devices if gpu.mig else ():
            found.setdefault(device.profile.replace("+", "."), []).append((gpu, device))
    for profile, devices in found.items():
        gpu, device = devices[0]
        start = f"mig-{profile}"
        if product := sanitized(gpu.name):
            yield f"{start}.product", f"{product}-MIG-{sanitized(profile)}"
        yield f"{start}.count", str(len(devices))
        yield f"{start}.replicas", "1"
        yield f"{start}.sharing-strategy", "none"
        yield f"{start}.memory", str(device.memory_mib)
        if slices := _SLICES.match(device.profile):
            yield f"{start}.slices.gi", slices[2]
            yield f"{start}.slices.ci", slices[1] or slices[2]
        if takes := dict(device.takes):
            for ending, name in _ENGINES.items():
                yield f"{start}.{ending}", str(takes.get(name, 0))
