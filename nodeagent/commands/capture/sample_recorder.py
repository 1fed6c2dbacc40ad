"""Record samples for some time, in the format of ``health/recording.py``, to tune rules on real events.

The file grows line by line, so an interrupted recording is valid up to its end. It names devices, never the node.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from nodeagent import __version__, discovery
from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.supervise import beside, keep
from nodeagent.commands.capture.machine_capture import CaptureError
from nodeagent.commands.health.replay import DRIVER, PRESENT, VFS
from nodeagent.facts.model import Function, Gpu, Link
from nodeagent.health.gpu import GpuState
from nodeagent.health.recording import Header, Subject, encode
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import GpuEvent
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import gpu_source, pci_source
from nodeagent.sources.bounded_scan import BoundedScan
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.machine_access import hints, permanent_macs
from nodeagent.sources.nvml_session import DriverReading

Publish = Callable[[tuple[Sample, ...]], object]

FIRST_READING_S = 15.0
"""Longer than the 10 s after which the source gives up a driver that hangs. A GPU that answers later is not in the
header, so its samples would have no device."""
FACTS_S = 1.0
"""Between two scans of the PCI bus."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def record(
    root: Path,
    file: Path,
    seconds: float,
    rates: SamplesSettings | None = None,
    pace: gpu_source.Pace | None = None,
) -> str:
    """Record the machine under ``root`` in a new file. Returns a summary. Raises ``CaptureError``."""
    try:
        # Mode x: a recording must not overwrite another one.
        with file.open("xb", buffering=0) as out:
            os.fchmod(out.fileno(), 0o600)
            return asyncio.run(_record(Tree(root), out.write, file, seconds, rates, pace))
    except FileExistsError as error:
        raise CaptureError(f"{file} exists already; name a new file") from error
    except OSError as error:
        raise CaptureError(f"{file} cannot be written: {error.strerror}") from error


async def _record(
    tree: Tree,
    write: Callable[[bytes], object],
    file: Path,
    seconds: float,
    rates: SamplesSettings | None,
    pace: gpu_source.Pace | None,
) -> str:
    facts = await BoundedScan("capture", tree).run(pci_source.scan, tree)
    pfs = tuple(function for function in facts.functions if function.parent is None)
    macs = await in_thread(partial(permanent_macs, tree))
    before_header: list[Sample] | None = []
    count = 0
    latest_at: dict[tuple[str, Source], float] = {}

    def publish(samples: Sequence[Sample]) -> None:
        nonlocal count
        samples = [_in_order(sample, latest_at) for sample in samples]
        if before_header is not None:  # the header is the first line, and it needs the names of the GPUs
            before_header.extend(samples)
            return
        count += len(samples)
        write(b"".join(map(encode, samples)))

    async with gpu_recorder(tree, publish, pace) as gpus:
        write(encode(header(tree, pfs, facts.links, macs, tuple(gpu_subjects(gpus)))))
        waiting, before_header = before_header, None
        publish(waiting or ())
        sampler = Sampler(tree, lambda: facts.functions, publish, rates)
        try:
            async with asyncio.timeout(seconds):
                facts_of_pfs = keep("facts", partial(_record_facts, tree, pfs, publish))
                with hints(tree) as waking:
                    async with beside(facts_of_pfs, asyncio.sleep(0)):
                        await sampler.watch(waking)
        except TimeoutError:
            pass
    failed = [f"{source}: {status.reason}" for source, status in sampler.statuses.items() if status.reason]
    failed += [f"gpu: {gpus.why}"] if gpus.why is not None else []
    devices = f"{len(pfs)} PFs and {len(gpus.health.gpus.devices)} GPUs"
    lines = [f"{file}: {count} samples of {devices} in {seconds:g} s"]
    if failed:
        lines.append("These readers failed:")
        lines += [f"  {line}" for line in sorted(failed)]
    return "\n".join([*lines, f"To replay the rules on it: nodeagent health replay {file}"])


def _in_order(sample: Sample, latest_at: dict[tuple[str, Source], float]) -> Sample:
    """Return the sample with a time that does not go back: a slow reading has the time of its start."""
    key = sample.device, sample.source
    at = latest_at[key] = max(sample.at, latest_at.get(key, sample.at))
    return sample if at == sample.at else msgspec.structs.replace(sample, at=at)


async def _record_facts(tree: Tree, pfs: Sequence[Function], publish: Publish) -> None:
    """Record whether each PF is present, its driver and the number of its VFs, now and after each change."""
    recorded: dict[str, Sample] = {}
    while True:
        facts = await BoundedScan("capture", tree).run(pci_source.scan, tree)
        present = {function.pci_address: function for function in facts.functions}
        samples = [_facts_sample(pf.pci_address, present.get(pf.pci_address)) for pf in pfs]
        changed = [sample for sample in samples if sample != recorded.get(sample.device)]
        recorded = {sample.device: sample for sample in samples}
        at = boottime()
        publish(tuple(msgspec.structs.replace(sample, at=at) for sample in changed))
        await asyncio.sleep(FACTS_S)


def _facts_sample(address: str, pf: Function | None) -> Sample:
    """Return a sample without a time."""
    if pf is None:
        return Sample(0.0, address, Source.PCIE, {PRESENT: 0.0})
    texts = {DRIVER: pf.driver} if pf.driver is not None else {}
    return Sample(0.0, address, Source.PCIE, {PRESENT: 1.0, VFS: float(pf.num_vfs or 0)}, texts)


def header(
    tree: Tree,
    pfs: Sequence[Function],
    links: Sequence[Link],
    macs: Mapping[str, str | None],
    gpus: Sequence[Subject] = (),
) -> Header:
    """Return the header. ``macs``: the permanent MAC addresses from the kernel, by PCI address."""
    by_device = {link.pci_address: link for link in links}
    return Header(
        agent=__version__,
        boot_id=tree.text(_BOOT_ID) or "",
        booted_at=round(time.time() - boottime(), 3),
        devices=(
            *(_nic_subject(pf, by_device.get(pf.pci_address), macs.get(pf.pci_address)) for pf in pfs),
            *gpus,
        ),
    )


def _nic_subject(pf: Function, link: Link | None, mac: str | None) -> Subject:
    return Subject(
        device=pf.pci_address,
        netdev=pf.netdev,
        rdma=pf.rdma.device if pf.rdma else None,
        mac=mac or (link.mac if link else None),
        driver=pf.driver,
        link_type=pf.link_type,
        speed_mbps=link.speed_mbps if link else None,
        numa_node=pf.numa_node,
        default_route=link.default_route if link else False,
        path=pf.pci_path,
    )


class GpuRecorder(GpuPublisher):
    """Record the GPUs with every value that the rules use, by the agent's own GPU source.

    There are three kinds of samples: the measured values; the driver's answer about each GPU at each reading
    (``gpu_lost``, ``gpu_mig`` and texts); and the XIDs so far at each event (``gpu_xids``). There are none while the
    driver does not answer. ``answered`` is set when the driver answers, or is known to be absent."""

    def __init__(self, publish: Publish) -> None:
        super().__init__(discovery.health_service(Config()))
        self._record = publish
        self.answered = asyncio.Event()
        self.why: str | None = None
        """Why the driver does not answer."""
        self.offered: tuple[Gpu, ...] = ()
        self.publish_to(self._keep_offered, publish)

    def take_reading(self, reading: DriverReading) -> None:
        super().take_reading(reading)
        self.why = None
        at = boottime()
        self._record(tuple(_reading_sample(at, gpu) for gpu in self.health.gpus.devices.values()))
        self.answered.set()

    def take_event(self, event: GpuEvent) -> None:
        super().take_event(event)
        if event.uuid is not None and (event.xid is not None or event.unavailable):
            values = {
                f"gpu_xids/{xid}": float(count)
                for (uuid, xid), count in self.xids.items()
                if uuid == event.uuid
            }
            values |= {"gpu_unavailable": 1.0} if event.unavailable else {}
            self._record((Sample(boottime(), event.uuid, Source.GPU, values),))

    def take_absence(self, why: str, again_s: float) -> None:
        super().take_absence(why, again_s)
        self.answered.set()

    def take_driver_failure(self, why: str) -> None:
        super().take_driver_failure(why)
        self.why = why
        self.answered.set()

    def _keep_offered(self, gpus: tuple[Gpu, ...]) -> None:
        self.offered = gpus


@asynccontextmanager
async def gpu_recorder(
    tree: Tree, publish: Publish, pace: gpu_source.Pace | None = None
) -> AsyncIterator[GpuRecorder]:
    """Enters after the driver's first answer, or after ``FIRST_READING_S``."""
    recorder = GpuRecorder(publish)

    async def watch() -> None:
        await gpu_source.watch(
            lambda: discovery.driver(tree, Config().gpu), tree, recorder, lambda _why: None, pace=pace
        )

    async with beside(keep("gpus", watch), recorder.answered.wait(), FIRST_READING_S):
        if not recorder.answered.is_set():
            recorder.why = f"the GPU driver has not answered within {FIRST_READING_S:g} s"
        yield recorder


def gpu_subjects(recorder: GpuRecorder) -> Iterator[Subject]:
    """The GPUs for the header of the recording."""
    places = {gpu.uuid: (gpu.numa_node, gpu.pci_path) for gpu in recorder.offered}
    for uuid, gpu in recorder.health.gpus.devices.items():
        numa_node, path = places.get(uuid, (None, ()))
        yield Subject(uuid, "gpu", index=gpu.index, numa_node=numa_node, path=path)


def _reading_sample(at: float, gpu: GpuState) -> Sample:
    reading = gpu.reading
    texts = {"gpu_recovery_action": reading.recovery_action, "gpu_fault": reading.fault}
    return Sample(
        at,
        gpu.uuid,
        Source.GPU,
        {"gpu_lost": float(gpu.lost), "gpu_mig": float(reading.mig)},
        {name: text for name, text in texts.items() if text is not None},
    )
