"""The GPUs and NICs of a claim as programs are told of them, by environment variables. Pure.

vLLM has the pairs and sets the variables of a transport in each worker: ``VLLM_GPU_NIC_PCIE_MAPPING`` and
``VLLM_NIC_SELECTION_VARS``, which must be set together (``vllm/v1/executor/vllm_net_devices.py``). It puts its own
device before a value that is there, so a variable that vLLM sets is not set here. A worker whose GPU the mapping lacks
does not start, so each GPU has a NIC, however far. UCX and NVSHMEM take devices with ports as a filter, and choose the
nearest of them. A VF has one port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from nodeagent.dra.devices import DraDevice
from nodeagent.dra.nccl_devices import ib_hca
from nodeagent.facts.affinity import affinity
from nodeagent.facts.model import Function, Gpu, Snapshot

_UCX, _NVSHMEM = "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST"
_PORT = 1


def told(
    vfs: Mapping[str, Collection[str]],
    gpus: Collection[str],
    devices: Iterable[DraDevice],
    snapshot: Snapshot,
) -> tuple[tuple[str, str], ...]:
    """Return the variables of a claim with these VFs (PCI addresses by the name of the program that is told of them)
    and GPUs (UUIDs). Without a GPU the pairs are those of all GPUs of the node, which others hand out.

    ``devices`` are all devices of the node. VFs without an RDMA device are left out, and so is a variable without one.
    """
    able = {it.pci_address: it for it in snapshot.functions if it.rdma is not None and it.vdpa is None}
    of = {program: [able[vf] for vf in sorted(names) if vf in able] for program, names in vfs.items()}
    here = [it for it in snapshot.gpus if not it.lost]
    mapping = pairs([it for it in here if it.uuid in gpus] or here, of.get("vllm", ()))
    ports = {name: _ports(of.get(name, ())) for name in ("ucx", "nvshmem")}
    found: dict[str, str | None] = {
        _UCX: ports["ucx"],
        _NVSHMEM: ports["nvshmem"],
        "NCCL_IB_HCA": ib_hca(vfs.get("nccl", ()), devices, snapshot.functions),
    }
    if mapping:
        by_worker = [_UCX, _NVSHMEM] if ports["nvshmem"] else [_UCX]
        found |= dict.fromkeys(by_worker)
        found["VLLM_GPU_NIC_PCIE_MAPPING"] = ",".join(f"{gpu}={nic}" for gpu, nic in mapping.items())
        found["VLLM_NIC_SELECTION_VARS"] = ",".join(f"{name}:{_PORT}" for name in by_worker)
    return tuple((name, value) for name, value in found.items() if value)


def pairs(gpus: Iterable[Gpu], nics: Sequence[Function]) -> dict[str, str]:
    """Return the NIC of each GPU, both by PCI address, in the order of the GPUs' addresses.

    It is the nearest one; among equally near ones that of the PF, then the NIC, that has fewest GPUs. A GPU with fewer
    such NICs chooses first, so that another one does not take its only one.
    """
    if not nics:
        return {}
    near: dict[str, list[Function]] = {}
    for gpu in gpus:
        far = [affinity(gpu.pci_path, gpu.numa_node, nic.pci_path, nic.numa_node) for nic in nics]
        near[gpu.pci_address] = [nic for nic, hop in zip(nics, far, strict=True) if hop == min(far)]
    used: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for gpu_address, candidates in sorted(near.items(), key=lambda it: (len(it[1]), it[0])):
        nic = min(
            candidates,
            key=lambda it: (used[it.parent or it.pci_address], used[it.pci_address], it.pci_address),
        )
        used.update({nic.parent or nic.pci_address, nic.pci_address})
        chosen[gpu_address] = nic.pci_address
    return dict(sorted(chosen.items()))


def _ports(nics: Iterable[Function]) -> str | None:
    return ",".join(f"{it.rdma.device}:{_PORT}" for it in nics if it.rdma is not None) or None
