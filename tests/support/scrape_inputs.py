"""The scrape input of a simulated DGX H100: its own facts, and samples with every name of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from zlib import crc32

from msgspec import structs
from msgspec.structs import replace

from hack.docs.sample_texts import TEXTS
from nodeagent import agent_features
from nodeagent.agent_config import Config
from nodeagent.base.unwritable_memory import UnwritableMemory
from nodeagent.commands.scan.listing import scan_machine
from nodeagent.dra.prepared_claim import ClaimFigures
from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.facts.model import (
    ContainerLimit,
    Function,
    Gpu,
    Health,
    Holding,
    Identifier,
    Neighbor,
    Reason,
    Remark,
    Snapshot,
    State,
)
from nodeagent.kubelet.rpc_stats import ResourceStatus, RpcStats
from nodeagent.kubelet.withheld import UnwritableFile
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS, OTHER_LIMITS
from nodeagent.metrics.exposition import Exposition
from nodeagent.metrics.scrape_input import ClusterWrites, ScrapeInput
from nodeagent.offering.offer import Offer
from nodeagent.sharing.gpu_accounts import accounts
from nodeagent.web.pages import device_counts
from nodeagent_lab.sim.machine import Machine

KEYS = {
    "bound": ("0.001", "+Inf", "sum"),
    "direction": ("transmit", "receive"),
    "reason of NVML": ("power_cap",),
    "unit of the GPU": ("sm", "sm_occupancy", "tensor", "memory"),
    "lane": ("0", "1"),
    "priority": ("3",),
    "error name of the kernel": ("RxErr", "Timeout"),
    "reporter": ("fw", "fw_fatal"),
    "pattern": ("cmd_timeout",),
    "VF index": ("0", "1"),
    "NVLink": tuple(map(str, range(18))),
    "XID": ("79",),
}
T = TypeVar("T", Function, Gpu)
WORDS = {"gpu_fabric_state": "completed", "module_vendor": 'AC"ME\\', "rdma_link_layer": "Ethernet"}


@cache
def facts(model: str = "dgx-h100") -> tuple[Snapshot, Offer]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        Machine.load(model).write(Path(folder))
        view = asyncio.run(scan_machine(Config(), Path(folder)))
    offer = Offer(Config())
    offer.kinds(view.snapshot)
    return view.snapshot, offer


def samples_of(device: str, sources: Iterable[Source], at: float = 100.0) -> Iterator[Sample]:
    """Every name that these sources could state; each number follows from its name alone."""
    for source in sources:
        values: dict[str, float] = {}
        for name, measurement in MEASUREMENTS.items():
            if measurement.source is source:
                keys = KEYS.get(measurement.per, ("x",)) if measurement.per else ("",)
                values.update({f"{name}/{key}" if key else name: crc32(name.encode()) % 997 for key in keys})
        texts = {
            f"{name}/0" if name.startswith("vf_") else name: WORDS.get(name, name.partition("_")[2] or name)
            for name, text in TEXTS.items()
            if text.source is source
        }
        yield Sample(at, device, source, values, texts)


NIC_SOURCES = tuple(source for source in Source if source is not Source.GPU)


def samples(snapshot: Snapshot, at: float = 100.0) -> tuple[Sample, ...]:
    pfs = [function.pci_address for function in snapshot.functions if function.parent is None]
    nics = (sample for pf in pfs for sample in samples_of(pf, NIC_SOURCES, at))
    gpus = (sample for gpu in snapshot.gpus for sample in samples_of(gpu.uuid, [Source.GPU], at))
    return (*nics, *gpus)


def with_faults(snapshot: Snapshot) -> Snapshot:
    """One link down, one miscabled, one GPU unhealthy; neighbors, remarks and two pods."""
    links = [link.netdev for link in snapshot.links]
    pfs = [function for function in snapshot.functions if function.parent is None and function.num_vfs]
    vfs = [function for function in snapshot.functions if function.parent is not None]
    healths = {
        pfs[0].pci_address: _health(State.DOWN, "carrier_down"),
        pfs[1].pci_address: _health(State.MISCABLED, "miscabled"),
        pfs[2].pci_address: _health(State.DEGRADED, "flapping", "speed_reduced"),
    }
    return replace(
        snapshot,
        mps_obstacles=((snapshot.gpus[0].uuid, ""), (snapshot.gpus[1].uuid, "it has crashed")),
        functions=tuple(
            _with(function, healths.get(function.pci_address)) for function in snapshot.functions
        ),
        gpus=tuple(
            _with(gpu, _health(State.UNHEALTHY, "xid_79") if gpu.index == 3 else None)
            for gpu in snapshot.gpus
        ),
        neighbors=tuple(
            Neighbor(
                link,
                Identifier("mac", f"02:00:00:00:00:{n:02x}"),
                Identifier("ifname", f"swp{n}"),
                f"leaf-{n}",
            )
            for n, link in enumerate(links)
        ),
        remarks=(Remark(links[0], "pfc_mismatch", "PFC for priorities 3 here, none there"),),
        holdings=(
            Holding("train", "worker-0", "main", "nvidia-dgx-h100/nic0", (vfs[0].pci_address,)),
            Holding(
                "train", "worker-1", "main", "nvidia-dgx-h100/gpu-mem", (f"{snapshot.gpus[0].uuid}::20",)
            ),
            Holding(
                "train",
                "worker-0",
                "main",
                "nvidia-dgx-h100/gpu-mem",
                tuple(f"{snapshot.gpus[0].uuid}::{n}" for n in range(20)),
            ),
        ),
    )


def _health(state: State, *reasons: str) -> Health:
    return Health(state, tuple(Reason(key, f"because of {key}") for key in reasons), allocatable=False)


def _with(device: T, health: Health | None) -> T:
    return device if health is None else replace(device, health=health)


@dataclass
class Figures:
    """The health figures of one device."""

    since: float | None
    penalty: float | None
    transitions: dict[tuple[str, str], int]
    values: dict[str, float]
    implausible: int | None = 0


def scrape_input(snapshot: Snapshot | None = None, at: float = 100.0, **changes: object) -> ScrapeInput:
    whole, offer = facts()
    snapshot = snapshot or with_faults(whole)
    rpc_stats = RpcStats()
    with rpc_stats.call("nvidia-dgx-h100/nic0", "Allocate"):
        pass
    for durations in rpc_stats.durations.values():  # no clock in a golden file
        durations.counts, durations.sum_s = [1] + [0] * (len(durations.counts) - 1), 0.0004
    rpc_stats.registrations["nvidia-dgx-h100/nic0", "OK"] += 1
    pf = next(
        function.pci_address
        for function in snapshot.functions
        if function.parent is None and function.num_vfs
    )
    values = {
        "flapping": 1234.5,
        "pre_fec_ber": 1.5e-7,
        "post_fec_errors": 0.0,
        "expected_speed_mbps": 400_000,
    }
    gpu = snapshot.gpus[0].uuid
    states = (("worker-0", "in force"), ("worker-1", "not in force"), ("worker-2", "unknown"))
    limits = (ContainerLimit("train", name, "main", gpu, 24 << 30, state, 1.75e9) for name, state in states)
    snapshot = structs.replace(snapshot, gpu_limits=tuple(limits))
    shown = ScrapeInput(
        snapshot=snapshot,
        samples=samples(snapshot, at),
        device_counts=tuple(device_counts(offer.kinds(snapshot), snapshot)),
        reader_statuses=tuple(ReaderStatus(source, duration_s=0.002, succeeded_at=99.0) for source in Source),
        health_figures={
            pf: Figures(50.0, 1234.5, {("healthy", "down"): 2}, values),
            snapshot.gpus[3].uuid: Figures(60.0, None, {("healthy", "unhealthy"): 1}, {"remap_limit": 3}),
        },
        statuses=(ResourceStatus("nvidia-dgx-h100/nic0", True, "", 8, 8, 1),),
        unwritable=(UnwritableFile("/var/run/cdi/nodeagent-gpu.json", "ENOSPC", "it is full", "free space"),),
        unwritable_state=(UnwritableMemory("/var/lib/nodeagent/rails.json", "it is full", "rails move"),),
        rpc_stats=rpc_stats,
        claims=ClaimFigures(prepared=3, conflicts=1),
        restarts={"pods": 1},
        cluster_writes=(
            ClusterWrites("nodelinks", {"ok": 3}),
            ClusterWrites("events", {"failed": 1}, "no"),
            ClusterWrites("slices", {"ok": 2}, removed=2),
        ),
        xids={(snapshot.gpus[3].uuid, 79): 2},
        xid_times={(snapshot.gpus[3].uuid, 79): 60.0},
        sxids={("0000:05:00.0", 20034): 4},
        overruns={"links": 1},
        last_lldp={snapshot.links[0].netdev: 90.0},
        boot_unix=1_700_000_000.0,
        certificate=(1_800_000_000.0, True),
        rails=offer.rails,
        limit_counts={"set": 2, "waiting": 1, "failed": 0},
        limit_writes=5,
        mps_ends={snapshot.gpus[0].uuid: 1},
        gpu_accounts=accounts(
            snapshot,
            {"nvidia-dgx-h100/gpu-mem": 1 << 30},
            {
                snapshot.gpus[0].uuid: GpuUsage(
                    (PodUse("train", "worker-0", 24 << 30, 2, 0.5),), (NamedProcess(7, "X", 1 << 20),)
                )
            },
        ),
    )
    return structs.replace(shown, **changes)


def page(
    shown: ScrapeInput,
    *,
    openmetrics: bool = False,
    series_max: int = 10_000,
    left_out: Container[str] = OTHER_LIMITS,
) -> str:
    further = [family for row in agent_features.AGENT for family in row.families]
    return "".join(Exposition(series_max, left_out, further).pieces(shown, openmetrics))
