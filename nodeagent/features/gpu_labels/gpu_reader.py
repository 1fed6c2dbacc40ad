"""Read the GPUs of the node for their labels: from the facts, the last measurements, the offer and sysfs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from nodeagent.features.gpu_labels.gfd_labels import RESOURCE, SHARED_RESOURCE, GpusOfNode, GpuTexts
from nodeagent.features.gpu_labels.nfd_settings import OfferedGpus
from nodeagent.features.seam import AgentCore
from nodeagent.host.sysfs import SysfsError
from nodeagent.measurements.sample import Source


class GpuReader:
    """``offered`` returns what the configuration in force says."""

    def __init__(self, core: AgentCore, offered: Callable[[], OfferedGpus]) -> None:
        self._core, self._offered = core, offered
        self._classes: dict[str, int | None] = {}

    def read(self) -> GpusOfNode:
        """Blocks: it reads the PCI class of each GPU once."""
        core, snapshot, offered = self._core, self._core.inventory.snapshot, self._offered()
        texts = {one.device: one.texts for one in core.samples() if one.source is Source.GPU}
        gpus = tuple(gpu for gpu in snapshot.gpus if not gpu.lost)
        shares: dict[str, Counter[str]] = {RESOURCE: Counter(), SHARED_RESOURCE: Counter()}
        for kind in core.offer.offered:
            if kind.resource in shares:
                for devices in kind.devices(snapshot):
                    shares[kind.resource][devices.parent] += len(devices.ids)
        renamed = not shares[RESOURCE] and bool(shares[SHARED_RESOURCE])
        return GpusOfNode(
            gpus=gpus,
            texts={
                gpu.uuid: GpuTexts(
                    of.get("gpu_compute_capability", ""),
                    of.get("gpu_cuda_version", ""),
                    of.get("gpu_mig_capable", ""),
                    self._class(gpu.pci_address),
                )
                for gpu in gpus
                for of in [texts.get(gpu.uuid, {})]
            },
            machine=snapshot.product,
            driver=snapshot.gpu_driver,
            replicas=dict(shares[SHARED_RESOURCE if renamed else RESOURCE]),
            renamed=renamed,
            mps=offered.mps,
            by_profile=offered.by_profile,
        )

    def _class(self, address: str) -> int | None:
        if self._classes.get(address) is None:
            try:
                self._classes[address] = self._core.tree.integer(f"/sys/bus/pci/devices/{address}/class")
            except SysfsError:
                return None
        return self._classes[address]
