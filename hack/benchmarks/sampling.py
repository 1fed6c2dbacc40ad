"""Measure the sampling of 73 interfaces beside pyroute2 with the same reads, and the time from a lost carrier to a
sample.

The interfaces are veths in a network namespace of its own. Carriers are lost on taps, because linkwatch delays the
events of taps, but not those of veths.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.stage import Stage
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample
from nodeagent.model import Function
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sim.netns import Netns

CPU_MS = 3.0
SYSCALLS = 120.0
PYROUTE2_TIMES = 8.0
PAIRS = 36
_FAST = SamplesSettings(
    driver_seconds=None,
    rdma_seconds=None,
    pcie_seconds=None,
    devlink_seconds=None,
    vf_seconds=None,
    module_seconds=None,
    kernel_log=False,
)
_NOTE = (
    "72 veths and lo. A cycle is one dump each of links with counters, modes, link state, FEC and pauses, the "
    "hand-over from the thread, decoding, and publishing the samples"
)
_BESIDE = (
    "get_links, then link modes and link state of each interface: pyroute2 has neither dumps of these nor FEC "
    "and pauses"
)


async def sampling(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    del stage  # a real kernel is measured
    group = "Sampling 73 interfaces"
    try:
        ns = Netns()
    except PermissionError:
        return
    with ns:
        ns.ip("\n".join(f"link add v{n} up type veth peer name w{n}" for n in range(PAIRS)))
        with ns.entered():
            cycles, times = (20, 5) if quick else (100, 20)
            agent_ms = await _measure_agent(times, cycles // 5)
            yield Figure(group, "CPU of a fast cycle", "ms", agent_ms, {"p50": CPU_MS}, _NOTE)
            pyroute2_ms = await asyncio.to_thread(_measure_pyroute2, 3 if quick else 10)
            yield Figure(group, "  pyroute2, the same reads", "ms", pyroute2_ms, {}, _BESIDE)
            ratio = sorted(pyroute2_ms)[len(pyroute2_ms) // 2] / sorted(agent_ms)[len(agent_ms) // 2]
            yield Figure(group, f"  ratio (goal: {PYROUTE2_TIMES:g} or more)", "", [ratio])
        if shutil.which("strace"):
            few, many = await _syscalls(ns, 10), await _syscalls(ns, 60)
            calls = (many - few) / 50
            yield Figure(group, "system calls of a fast cycle", "", [calls], {"max": SYSCALLS}, _NOTE)
    if Path("/dev/net/tun").exists():
        first, second = await _losses(5 if quick else 25)
        group = "From a carrier lost on a tap to the sample"
        yield Figure(
            group, "the first", "ms", first, {},
            "it includes a deliberate wait of 30 ms: the kubelet gets the change first, which `taps` measures",
        )  # fmt: skip
        yield Figure(
            group, "another NIC's, 100 ms later", "ms", second, {},
            "the kernel announces it up to a second late; the repeated reads after the first one find it",
        )  # fmt: skip


def _functions(names: Sequence[str]) -> tuple[Function, ...]:
    return tuple(
        Function(
            f"0000:{n:02x}:00.0", "15b3", "1021", "veth", name, "ethernet", None, None, None, None,
            ("pci0000:00", f"0000:{n:02x}:00.0"),
        )
        for n, name in enumerate(names)
    )  # fmt: skip


def _sampler(state: Callable[[Sequence[Sample]], None] = lambda _: None) -> Sampler:
    functions = _functions([f"{end}{n}" for end in "vw" for n in range(PAIRS)])
    return Sampler(Tree("/"), lambda: functions, state, _FAST)


async def cycles(count: int) -> None:
    sampler = _sampler()
    for _ in range(count):
        await sampler.once()
    sampler.close()


async def _measure_agent(times: int, count: int) -> list[float]:
    sampler = _sampler()
    await sampler.once()
    samples = []
    for _ in range(times):
        began = time.process_time()
        for _ in range(count):
            await sampler.once()
        samples.append(1000 * (time.process_time() - began) / count)
    sampler.close()
    return samples


def _measure_pyroute2(times: int) -> list[float]:
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.generic.ethtool import NlEthtool  # noqa: PLC0415

    samples = []
    with IPRoute() as route:
        ethtool = NlEthtool()
        for turn in range(times + 1):
            began = time.process_time()
            for link in route.get_links():
                name = link.get_attr("IFLA_IFNAME")
                if name != "lo":
                    ethtool.get_linkmode(name)
                    ethtool.get_linkstate(name)
            if turn:
                samples.append(1000 * (time.process_time() - began))
        ethtool.close()
    return samples


async def _syscalls(ns: Netns, count: int) -> int:
    """System calls of a whole process, with its start."""
    here = Path(__file__).parent.parent
    code = f"import asyncio; from benchmarks.sampling import cycles; asyncio.run(cycles({count}))"
    traced = await asyncio.to_thread(
        subprocess.run,
        ns.command("strace", "-f", "-c", "-q", sys.executable, "-c", code),
        env=os.environ | {"PYTHONPATH": f"{here}:{here.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    total = re.search(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s.*total$", traced.stderr, re.MULTILINE)
    assert total, traced.stderr
    return int(total[1])


# include/uapi/linux/if_tun.h
_TUNSETIFF, _TUNSETCARRIER = 0x400454CA, 0x400454E2
_IFF_TAP_NO_PI = 0x0002 | 0x1000
_APART_S = 0.1
_QUIET_S = 2.5
"""linkwatch sends an event up to a second after the change, and then none for a second."""


async def _losses(count: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the sample: of the first loss after a quiet time, and of another loss 100 ms later."""
    news = asyncio.Event()
    carrier: dict[str, float | None] = {}

    def state(samples: Sequence[Sample]) -> None:
        carrier.update({sample.device: sample.values.get("carrier") for sample in samples})
        news.set()

    async def lost(fd: int, device: str) -> float:
        began = time.monotonic()
        fcntl.ioctl(fd, _TUNSETCARRIER, struct.pack("I", 0))
        while carrier.get(device) != 0:
            news.clear()
            await news.wait()
        return 1000 * (time.monotonic() - began)

    first, second = [], []
    functions = _functions(["tap0", "tap1"])
    with Netns() as ns, ns.entered(), LinkEvents() as events:
        taps = [os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC) for _ in range(2)]
        for n, fd in enumerate(taps):
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", f"tap{n}".encode(), _IFF_TAP_NO_PI))
        ns.ip("link set tap0 up\nlink set tap1 up")
        task = asyncio.create_task(Sampler(Tree("/"), lambda: functions, state, _FAST).watch([events]))
        for _ in range(count):
            for fd in taps:
                fcntl.ioctl(fd, _TUNSETCARRIER, struct.pack("I", 1))
            await asyncio.sleep(_QUIET_S)
            first.append(await lost(taps[0], functions[0].pci_address))
            await asyncio.sleep(_APART_S)
            second.append(await lost(taps[1], functions[1].pci_address))
            await asyncio.sleep(_QUIET_S)
        task.cancel()
        await asyncio.wait((task,))
        for fd in taps:
            os.close(fd)
    return first, second
