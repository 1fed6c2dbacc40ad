"""Samples recorded for a while, in the form of ``nodeagent.health.recording``: to tune rules on what has happened.

The file grows line by line, so that a recording which is interrupted is one as far as it goes. It names devices
and no node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nodeagent import __version__
from nodeagent.commands.capture import gpu_recorder as cards
from nodeagent.commands.capture.machine import CaptureError
from nodeagent.health.recording import Header, Subject, encode
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample
from nodeagent.model import Function, Link
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import gpu_source, pci_source
from nodeagent.sources.machine_access import hints, is_recorded, permanent_macs

Writer = Callable[[bytes], object]

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def record(
    root: Path,
    file: Path,
    seconds: float,
    rates: SamplesSettings | None = None,
    pace: gpu_source.Pace | None = None,
) -> str:
    """Record the machine under ``root`` for so long; answers a summary for a person. Raises ``CaptureError``."""
    try:
        # A recording is nobody's but who made it, and not to be lost for another one.
        with file.open("xb", buffering=0) as out:
            return asyncio.run(_record(Tree(root), out.write, file, seconds, rates, pace))
    except FileExistsError as error:
        raise CaptureError(f"{file} is there already; name a file that is not") from error
    except OSError as error:
        raise CaptureError(f"{file} cannot be written: {error.strerror}") from error


async def _record(
    tree: Tree,
    write: Writer,
    file: Path,
    seconds: float,
    rates: SamplesSettings | None,
    pace: gpu_source.Pace | None,
) -> str:
    facts = await asyncio.to_thread(pci_source.scan, tree)
    pfs = tuple(one for one in facts.functions if one.parent is None)
    macs = {} if is_recorded(tree) else await asyncio.to_thread(permanent_macs)
    early: list[Sample] | None = []
    count = 0

    def state(samples: Sequence[Sample]) -> None:
        nonlocal count
        if early is not None:  # the header comes first, and names the GPUs
            early.extend(samples)
            return
        count += len(samples)
        write(b"".join(map(encode, samples)))

    async with cards.listening(tree, state, pace) as hearing:
        write(encode(header(tree, pfs, facts.links, macs, tuple(cards.subjects(hearing)))))
        first, early = early, None
        state(first or ())
        sampler = Sampler(tree, lambda: facts.functions, state, rates)
        try:
            async with asyncio.timeout(seconds):
                with hints(tree) as waking:
                    await sampler.watch(waking)
        except TimeoutError:
            pass
    silent = [f"{source}: {one.reason}" for source, one in sampler.statuses.items() if one.reason]
    silent += [f"gpu: {hearing.why}"] if hearing.why is not None else []
    what = f"{len(pfs)} PFs and {len(hearing.judge.gpus)} GPUs"
    lines = [f"{file}: {count} samples of {what} in {seconds:g} s"]
    if silent:
        lines.append("These sources have not spoken:")
        lines += [f"  {line}" for line in sorted(silent)]
    return "\n".join([*lines, f"Judge them with: nodeagent health replay {file}"])


def header(
    tree: Tree,
    pfs: Sequence[Function],
    links: Sequence[Link],
    macs: Mapping[str, str | None],
    gpus: Sequence[Subject] = (),
) -> Header:
    """``macs`` are permanent addresses, as far as the kernel says them."""
    by_device = {link.pci_address: link for link in links}
    return Header(
        agent=__version__,
        boot_id=tree.text(_BOOT_ID) or "",
        booted_at=round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 3),
        devices=(
            *(subject(pf, by_device.get(pf.pci_address), macs.get(pf.pci_address)) for pf in pfs),
            *gpus,
        ),
    )


def subject(pf: Function, link: Link | None, mac: str | None) -> Subject:
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
