"""Record samples for some time, in the format of ``health/recording.py``, to tune rules on real events.

The file grows line by line, so an interrupted recording is valid up to its end. It names devices, never the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nodeagent import __version__
from nodeagent.commands.capture.gpu_recorder import gpu_recorder, gpu_subjects
from nodeagent.commands.capture.machine_capture import CaptureError
from nodeagent.health.recording import Header, Subject, encode
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample
from nodeagent.model import Function, Link
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import gpu_source, pci_source
from nodeagent.sources.machine_access import hints, is_recorded, permanent_macs

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
    facts = await asyncio.to_thread(pci_source.scan, tree)
    pfs = tuple(function for function in facts.functions if function.parent is None)
    macs = {} if is_recorded(tree) else await asyncio.to_thread(permanent_macs)
    before_header: list[Sample] | None = []
    count = 0

    def publish(samples: Sequence[Sample]) -> None:
        nonlocal count
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
                with hints(tree) as waking:
                    await sampler.watch(waking)
        except TimeoutError:
            pass
    failed = [f"{source}: {status.reason}" for source, status in sampler.statuses.items() if status.reason]
    failed += [f"gpu: {gpus.why}"] if gpus.why is not None else []
    devices = f"{len(pfs)} PFs and {len(gpus.health.gpus.gpus)} GPUs"
    lines = [f"{file}: {count} samples of {devices} in {seconds:g} s"]
    if failed:
        lines.append("These readers failed:")
        lines += [f"  {line}" for line in sorted(failed)]
    return "\n".join([*lines, f"To replay the rules on it: nodeagent health replay {file}"])


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
        booted_at=round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 3),
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
