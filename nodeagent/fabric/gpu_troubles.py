"""The GPUs in trouble of a report, with what a person asks about them: since when, why, and whose pods. Pure.

What a report says is about its own node alone, and every text of it is shown as foreign text. A GPU is there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from nodeagent.base.change_log import Change
from nodeagent.base.plain_text import one_line
from nodeagent.fabric.link_faults import FAULTS_MAX, unix
from nodeagent.fabric.nodelinks import GPU_PODS_MAX, GPU_REASONS_MAX, GPUS_MAX, NodeLinks, ReportedGpu

_WELL = ("healthy", "unused")
_KEY_MAX, _DETAIL_MAX, _POD_MAX = 63, 256, 63 + 1 + 253


class GpuFault(NamedTuple):
    """A GPU in trouble. ``gpu`` is its name for people, as ``GPU 3``. ``since``: Unix time."""

    node: str
    gpu: str
    state: str
    since: float | None
    reasons: tuple[str, ...]
    details: tuple[str, ...]
    pods: tuple[str, ...]


def gpu_faults(report: NodeLinks) -> Iterator[GpuFault]:
    """The GPUs of a report that are in trouble, in its order. A state of a later version is one of trouble."""
    seen: set[str] = set()
    for gpu in report.gpus[:GPUS_MAX]:
        name = _gpu_name(gpu)
        if gpu.state not in _WELL and name not in seen:
            seen.add(name)
            yield GpuFault(
                report.node_name,
                name,
                one_line(gpu.state, _KEY_MAX, ascii_only=True),
                unix(gpu.since),
                _texts(gpu.reasons[:GPU_REASONS_MAX], _KEY_MAX),
                _texts((gpu.reason_details or gpu.reasons)[:GPU_REASONS_MAX], _DETAIL_MAX),
                _texts(gpu.pods[:GPU_PODS_MAX], _POD_MAX),
            )


def _gpu_name(gpu: ReportedGpu) -> str:
    """Its name for people: by NVML's index, or by its place on the PCI bus."""
    if gpu.index is not None:
        return f"GPU {gpu.index}"
    return f"GPU at {one_line(gpu.pci_address or 'an unknown place', _KEY_MAX, ascii_only=True)}"


def _texts(texts: Sequence[str], limit: int) -> tuple[str, ...]:
    return tuple(one_line(text, limit, ascii_only=True) for text in texts)


def gpu_changes(
    node: str, before: Sequence[GpuFault], after: Sequence[GpuFault], at: float
) -> Iterator[Change]:
    """The differences of two reports of a node. A GPU that is not listed is healthy."""
    earlier, now = ({one.gpu: one for one in faults} for faults in (before, after))
    for name in dict.fromkeys((*earlier, *now)):
        texts = [_in_words(faults.get(name)) for faults in (earlier, now)]
        if texts[0] != texts[1]:
            details = now[name].details if name in now else ()
            where = name.replace("GPU ", "gpu", 1) if " at " not in name else name
            yield Change(at, "gpu", where, texts[0], texts[1], details, (name,), node)


def _in_words(fault: GpuFault | None) -> str:
    if fault is None:
        return "healthy"
    return f"{fault.state} ({', '.join(fault.reasons)})" if fault.reasons else fault.state


def gpu_series(
    faults: Mapping[str, Sequence[GpuFault]], groups: Mapping[str, str]
) -> dict[tuple[str, str, str, str], float]:
    """Since when each GPU is in trouble (Unix time, 0 if it is not known), by node, leaf group, GPU and state: for
    metrics, at most ``FAULTS_MAX``. ``groups`` are the leaf groups of nodes."""
    every = (fault for _, of_node in sorted(faults.items()) for fault in of_node)
    return {
        (fault.node, groups.get(fault.node, ""), fault.gpu.removeprefix("GPU ").removeprefix("at "), fault.state):
            fault.since or 0.0
        for fault in islice(every, FAULTS_MAX)
    }  # fmt: skip
