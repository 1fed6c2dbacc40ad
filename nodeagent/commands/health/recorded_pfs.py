"""The PFs of a recording: their facts on the PCI bus, as the header and later samples report them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nodeagent.facts.model import Function, Link
from nodeagent.health.recording import Subject
from nodeagent.health.structural import Faults, find_faults
from nodeagent.measurements.sample import Sample

PRESENT, VFS, DRIVER = "pf_present", "pf_vfs", "pf_driver"
"""Names in the samples with facts. Without a driver the last one is missing."""


class RecordedPfs:
    """All PFs that the header names. Samples of a recording contain the state of their links."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        subjects = tuple(subjects)
        self.links = tuple(map(_link, subjects))
        self.functions: tuple[Function, ...] = ()
        """All of them, the missing ones too."""
        self._present = {subject.device: _function(subject) for subject in subjects}
        self._known = frozenset(self._present)

    def take(self, sample: Sample) -> bool:
        """Return whether the sample has facts of a PF, and is no measurement."""
        address = sample.device
        if PRESENT not in sample.values or address not in self._known:
            return False
        if sample.values[PRESENT] == 0:
            self._present.pop(address, None)
            return True
        known = self._present.get(address) or next(
            function for function in self.functions if function.pci_address == address
        )
        vfs = sample.values.get(VFS)
        self._present[address] = replace(
            known,
            driver=sample.texts.get(DRIVER),
            num_vfs=known.num_vfs if vfs is None else int(vfs),
            missing=False,
        )
        return True

    def facts(self) -> tuple[tuple[Function, ...], tuple[Link, ...], Faults]:
        """Return the functions, their links, and their faults."""
        self.functions, faults = find_faults(self._present.values(), self.links, self.functions)
        return self.functions, self.links, faults


def _function(subject: Subject) -> Function:
    return Function(
        subject.device,
        vendor="",
        device=str(subject.speed_mbps or ""),
        driver=subject.driver or "unknown",
        netdev=subject.netdev,
        link_type=subject.link_type,
        rdma=None,
        vfio_group=None,
        vdpa=None,
        numa_node=subject.numa_node,
        pci_path=subject.path,
    )


def _link(subject: Subject) -> Link:
    """Return a link; the samples contain its state."""
    return Link(
        subject.netdev or subject.device,
        subject.device,
        subject.mac,
        admin_up=True,
        carrier=None,
        operstate=None,
        speed_mbps=None,
        mtu=None,
        default_route=subject.default_route,
    )
