"""Read the counters of the pods' VFs and the load of their GPUs, publish the levels, and answer with figures.

It reads samples that are taken anyhow (`samples.vfSeconds`, `health.gpu.readSeconds`) and asks no device.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from nodeagent.fabric.traffic_figures import PodFigures, TrafficFigures, VfFigures
from nodeagent.facts.allocation import hardware_of
from nodeagent.facts.model import Snapshot
from nodeagent.features.pod_traffic.traffic_judge import (
    GpuLoad,
    PodNow,
    PodVf,
    TrafficJudge,
    VfCounters,
)
from nodeagent.features.seam import AgentCore
from nodeagent.host.clock import boottime
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.measurements.sample import Sample, Source
from nodeagent.web.server import Page, json_page

JUDGED_EVERY_S = 15.0
POD_TRAFFIC = "traffic"
_COUNTERS = ("vf_rx_bytes", "vf_tx_bytes", "vf_rx_packets", "vf_tx_packets")


class TrafficWatch:
    def __init__(self, core: AgentCore) -> None:
        self._core, self._judge = core, TrafficJudge()

    async def run(self, _node: str | None) -> None:
        """Publish until cancelled."""
        await self._core.settled.wait()
        while True:
            self.look()
            await asyncio.sleep(JUDGED_EVERY_S)

    def look(self) -> None:
        """Judge the newest samples, once it is known what pods hold."""
        snapshot = self._core.inventory.snapshot
        if snapshot.holdings is None:
            return
        samples = tuple(self._core.samples())
        levels = self._judge.take(
            boottime(),
            pods_now(snapshot, self._core.allocated_at),
            vf_counters(snapshot, samples),
            gpu_loads(snapshot, samples),
            time.time() - boottime(),
        )
        self._core.inventory.publish(POD_TRAFFIC, pod_traffic=levels)

    def figures(self) -> TrafficFigures:
        """The traffic of each VF between its last two readings, and the load of the GPUs."""
        snapshot, now = self._core.inventory.snapshot, boottime()
        samples, rates = tuple(self._core.samples()), self._judge.rates()
        names, loads = nic_names(self._core.offer.rails), gpu_loads(snapshot, samples)
        pods = []
        for name, held in pods_now(snapshot, self._core.allocated_at).items():
            namespace, _, pod = name.partition("/")
            vfs = []
            for vf in held.vfs:
                rate, moved_at = rates.get(vf.address, (None, None))
                vfs.append(
                    VfFigures(
                        link=names.get(vf.pf, vf.pf),
                        pci_address=vf.address,
                        seconds=None if rate is None else rate.seconds,
                        received=None if rate is None else rate.received,
                        sent=None if rate is None else rate.sent,
                        received_packets=None if rate is None else rate.received_packets,
                        sent_packets=None if rate is None else rate.sent_packets,
                        quiet_s=None if moved_at is None else max(0.0, now - moved_at),
                        measured=self._judge.is_measured(vf),
                    )
                )
            quiet_since, longest = self._judge.quiet(name)
            gpus = {str(index): loads[index].utilization for index in held.gpus if index in loads}
            quiet_s = None if quiet_since is None else now - quiet_since
            pods.append(PodFigures(namespace, pod, tuple(vfs), gpus, quiet_s, longest))
        return TrafficFigures(pods=tuple(pods))

    def page(self, _accept: str) -> Page:
        return json_page(self.figures())


def pods_now(snapshot: Snapshot, allocated_at: Callable[[str], float] = lambda _id: 0.0) -> dict[str, PodNow]:
    """The VFs and GPUs of each pod with a VF. ``allocated_at``: see ``AgentCore``."""
    functions = {function.pci_address: function for function in snapshot.functions}
    gpus = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    for gpu in snapshot.gpus:
        gpus |= dict.fromkeys((device.uuid for device in gpu.mig_devices), -1)
    vfs: dict[str, dict[str, PodVf]] = {}
    used: dict[str, set[int]] = {}
    claims: dict[str, set[str]] = {}
    for held in snapshot.holdings or ():
        name = f"{held.namespace}/{held.pod}"
        for id_ in held.device_ids if held.pod else ():
            function = functions.get(id_)
            if function is not None and function.parent is not None:
                parent = functions.get(function.parent)
                driver = None if parent is None else parent.driver
                vfs.setdefault(name, {})[id_] = PodVf(id_, function.parent, driver)
                claims.setdefault(name, set()).add(held.claim)
            elif (index := gpus.get(hardware_of(id_) or "", -1)) >= 0:
                used.setdefault(name, set()).add(index)
    return {
        name: PodNow(
            tuple(of[id_] for id_ in sorted(of)),
            tuple(sorted(used.get(name, ()))),
            frozenset(claims[name]),
            max(map(allocated_at, of)),
        )
        for name, of in vfs.items()
    }


def vf_counters(snapshot: Snapshot, samples: Iterable[Sample]) -> dict[str, VfCounters]:
    """The counters of each VF by PCI address. A VF without both counters of bytes is not measured."""
    of_pf = {sample.device: sample for sample in samples if sample.source is Source.VF}
    found = {}
    for function in snapshot.functions:
        sample = of_pf.get(function.parent or "")
        if sample is None or function.vf_index is None:
            continue
        values = [sample.values.get(f"{name}/{function.vf_index}") for name in _COUNTERS]
        if values[0] is not None and values[1] is not None:
            found[function.pci_address] = VfCounters(sample.at, *(value or 0.0 for value in values))
    return found


def gpu_loads(snapshot: Snapshot, samples: Iterable[Sample]) -> dict[int, GpuLoad]:
    """The load of each GPU by NVML's index."""
    indexes: Mapping[str, int] = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    return {
        indexes[sample.device]: GpuLoad(
            sample.at, sample.values["gpu_utilization"], sample.values.get("gpu_memory_utilization")
        )
        for sample in samples
        if sample.source is Source.GPU and sample.device in indexes and "gpu_utilization" in sample.values
    }
