"""The GPUs of the node for their labels: from the facts, the last measurements and the offer. Reads nothing itself."""

from __future__ import annotations

from collections import Counter

from nodeagent.features.gpu_labels.gfd_labels import RESOURCE, SHARED_RESOURCE, GpusOfNode, GpuTexts
from nodeagent.features.gpu_labels.nfd_settings import OfferedGpus
from nodeagent.features.seam import AgentCore
from nodeagent.measurements.sample import Source


def gpus_now(core: AgentCore, offered: OfferedGpus) -> GpusOfNode:
    """For the event loop, to which samples and offer belong. The PCI classes are not known here."""
    snapshot = core.inventory.snapshot
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
